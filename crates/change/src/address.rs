//! Addresses of servers: whether they are on this machine, and at which port.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

/// `host:port` of an address; the port may be missing.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

/// The host of an address, without the brackets of IPv6.
pub fn host(url: &str) -> &str {
    let authority = authority(url);
    match authority.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

/// True where a server is on this machine: at loopback, or at an address of its own.
pub fn is_here(url: &str) -> bool {
    let host = host(url);
    // Only an address of this machine can be bound; nothing is sent.
    let is_own = |ip: IpAddr| ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok();
    match host.parse::<IpAddr>() {
        Ok(ip) => is_own(ip),
        Err(_) if host == "localhost" => true,
        Err(_) => (host, 0).to_socket_addrs().is_ok_and(|mut all| all.any(|a| is_own(a.ip()))),
    }
}

/// The addresses at which a server of this machine may listen to be reached at `url`; empty where
/// any of them may be meant.
pub fn addresses(url: &str) -> Vec<IpAddr> {
    let found = (host(url), 0).to_socket_addrs();
    found.map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default()
}

/// The port of an address, where it names one.
pub fn port(url: &str) -> Option<u16> {
    authority(url).rsplit_once(':')?.1.parse().ok()
}

/// True where two addresses are those of one server, as far as their words tell.
pub fn is_same(a: &str, b: &str) -> bool {
    let hosts = host(a) == host(b) || (is_here(a) && is_here(b));
    hosts && port(a).unwrap_or(80) == port(b).unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        assert_eq!(port("http://127.0.0.1:8080/v1"), Some(8080));
        assert_eq!(port("http://[::1]:7"), Some(7));
        assert_eq!(port("http://host"), None);
        assert!(is_here("http://localhost:1") && is_here("[::1]:7/v1") && is_here("127.0.0.2:1"));
        // Addresses for documentation (RFC 5737) are nobody's.
        assert!(!is_here("http://192.0.2.7:1") && !is_here("http://198.51.100.1"));
        assert_eq!(addresses("http://127.0.0.3:1"), ["127.0.0.3".parse::<IpAddr>().unwrap()]);
        assert!(is_same("http://localhost:1/", "127.0.0.1:1/v1"));
        assert!(!is_same("http://a:1", "http://a:2"));
        assert!(!is_same("http://192.0.2.1:1", "http://192.0.2.2:1"));
    }
}
