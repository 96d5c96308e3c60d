//! Addresses of servers: whether they are on this machine, and at which port.

use std::net::IpAddr;

/// `host:port` of an address; the port may be missing.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

/// The host of an address, without the brackets of IPv6.
fn host(url: &str) -> &str {
    let authority = authority(url);
    match authority.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

/// True where a server is on this machine.
pub fn is_here(url: &str) -> bool {
    let host = host(url);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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
        assert!(!is_here("http://example.org:1") && !is_here("http://10.0.0.1"));
        assert!(is_same("http://localhost:1/", "127.0.0.1:1/v1"));
        assert!(!is_same("http://a:1", "http://a:2") && !is_same("http://a:1", "http://b:1"));
    }
}
