//! Addresses of servers: whether they are on this machine, and at which port.

use lockstep_check::client::Target;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

/// An address as every command reads it. Routers list workers by schemes of their own as well
/// (`grpc://`): only the host and the port of an address count here.
fn parsed(url: &str) -> Option<Target> {
    Target::parse(url.split_once("://").map_or(url, |(_, rest)| rest)).ok()
}

/// The host of an address, without the brackets of IPv6; empty where it is none.
pub fn host(url: &str) -> String {
    parsed(url).map(|t| t.host().to_owned()).unwrap_or_default()
}

/// The port of an address, 80 where it names none; `None` where it is no address.
pub fn port(url: &str) -> Option<u16> {
    parsed(url).map(|t| t.port())
}

/// True where a server is on this machine: at loopback, or at an address of its own.
pub fn is_here(url: &str) -> bool {
    let host = host(url);
    // Only an address of this machine can be bound; nothing is sent.
    let is_own = |ip: IpAddr| ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok();
    match host.parse::<IpAddr>() {
        Ok(ip) => is_own(ip),
        Err(_) if host == "localhost" => true,
        Err(_) => {
            (host.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.any(|a| is_own(a.ip())))
        }
    }
}

/// The addresses at which a server of this machine may listen to be reached at `url`; empty where
/// any of them may be meant.
pub fn addresses(url: &str) -> Vec<IpAddr> {
    let found = (host(url).as_str(), 0).to_socket_addrs();
    found.map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default()
}

/// True where two addresses may be those of one server: any two of this machine at one port are,
/// since a server may listen at all of them. [`pick`] tells apart those that are listed together.
pub fn is_same(a: &str, b: &str) -> bool {
    let hosts = host(a).eq_ignore_ascii_case(&host(b)) || (is_here(a) && is_here(b));
    hosts && port(a) == port(b)
}

/// True where two addresses name one port of one IP address.
fn is_equal(a: &str, b: &str) -> bool {
    let (host_a, host_b) = (host(a), host(b));
    let is_host = || {
        let all = resolved(&host_b);
        host_a.eq_ignore_ascii_case(&host_b) || resolved(&host_a).iter().any(|ip| all.contains(ip))
    };
    port(a) == port(b) && is_host()
}

fn resolved(host: &str) -> Vec<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    match host.parse::<IpAddr>() {
        Ok(ip) => vec![ip.to_canonical()],
        Err(_) => addresses(host).into_iter().map(|ip| ip.to_canonical()).collect(),
    }
}

/// Which of several listed servers is the one at `url`: the one of the same words, else of the same
/// IP address and port, else (where `is_loose`) the only one that may be it ([`is_same`]).
///
/// # Errors
/// Several fit equally well: their places in the list.
pub fn pick(listed: &[&str], url: &str, is_loose: bool) -> Result<Option<usize>, Vec<usize>> {
    let bare = |u: &str| u.trim_end_matches('/').to_owned();
    if let Some(at) = listed.iter().position(|u| bare(u) == bare(url)) {
        return Ok(Some(at));
    }
    let ways: &[fn(&str, &str) -> bool] = if is_loose { &[is_equal, is_same] } else { &[is_equal] };
    for fits in ways {
        let all: Vec<usize> = (0..listed.len()).filter(|&at| fits(listed[at], url)).collect();
        let Some(&first) = all.first() else { continue };
        let is_one = all.iter().all(|&at| bare(listed[at]) == bare(listed[first]));
        return if is_one { Ok(Some(first)) } else { Err(all) };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug of the first version: of two servers at one port of two addresses of this machine, the
    /// first that a router listed was taken for the one that was meant.
    #[test]
    fn of_two_addresses_at_one_port_the_one_that_is_meant_is_picked() {
        let two = ["http://127.0.0.2:7", "http://127.0.0.1:7/"];
        assert_eq!(pick(&two, "http://127.0.0.1:7", true), Ok(Some(1)), "its words");
        assert_eq!(pick(&two, "http://localhost:7", true), Ok(Some(1)), "its address");
        assert_eq!(pick(&two, "http://127.0.0.3:7", true), Err(vec![0, 1]), "either may be it");
        assert_eq!(pick(&two, "http://127.0.0.3:7", false), Ok(None));
        assert_eq!(pick(&two[..1], "http://127.0.0.3:7", true), Ok(Some(0)), "no other may be it");
        assert_eq!(pick(&two, "http://127.0.0.1:8", true), Ok(None));
        let both = ["http://[::1]:7", "http://127.0.0.1:7"];
        assert_eq!(pick(&both, "localhost:7", true), Err(vec![0, 1]), "localhost is both");
        assert_eq!(pick(&[two[0], two[0]], "127.0.0.2:7", true), Ok(Some(0)), "listed twice");
    }

    #[test]
    fn addresses_are_taken_apart() {
        assert_eq!(port("http://127.0.0.1:8080/v1"), Some(8080));
        assert_eq!(port("http://[::1]:7"), Some(7));
        assert_eq!((port("http://host"), port("a:x")), (Some(80), None));
        assert_eq!((host("http://[::1]:7/v1"), host("grpc://a:7")), ("::1".into(), "a".into()));
        assert!(is_here("http://localhost:1") && is_here("[::1]:7/v1") && is_here("127.0.0.2:1"));
        // Addresses for documentation (RFC 5737) are nobody's.
        assert!(!is_here("http://192.0.2.7:1") && !is_here("http://198.51.100.1"));
        assert_eq!(addresses("http://127.0.0.3:1"), ["127.0.0.3".parse::<IpAddr>().unwrap()]);
        assert!(is_same("http://localhost:1/", "127.0.0.1:1/v1"));
        assert!(!is_same("http://a:1", "http://a:2"));
        assert!(!is_same("http://192.0.2.1:1", "http://192.0.2.2:1"));
    }
}
