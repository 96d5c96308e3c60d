//! Which server is asked, as what, and how long it may take.

use core::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

/// A server: where it is, its key, its model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// `host:port`, as it goes into the `Host` header.
    pub authority: String,
    /// What stands before `/v1` in every path, without a slash at its end; mostly empty.
    pub prefix: String,
    /// Sent as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// The `model` of requests that name none; `None` until it is given or discovered.
    pub model: Option<String>,
    /// How long things may take.
    pub timeouts: Timeouts,
}

/// How long each part of an exchange may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// To a connection.
    pub connect: Duration,
    /// Between two reads, and from the request to the first byte.
    pub idle: Duration,
    /// The whole exchange.
    pub total: Duration,
    /// The whole of a plain question (a GET, which generates nothing) with its answer.
    pub plain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            total: Duration::from_secs(1800),
            plain: Duration::from_secs(60),
        }
    }
}

/// Why a URL or a key is no target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetError {
    /// HTTPS.
    Https { url: String },
    /// Another scheme.
    Scheme { url: String },
    /// No host, or one that cannot be sent.
    Host { url: String },
    /// A port and nothing else.
    PortAlone { url: String, port: u16 },
    /// A user or a password before the host.
    User { url: String },
    /// An IPv6 address without brackets, or with something else in them.
    Brackets { url: String },
    /// A query or a fragment, which have no place in a server's address.
    Query { url: String },
    /// The port is not 1 to 65,535.
    Port { url: String },
    /// A path, key or name with blanks or control characters.
    Characters { what: &'static str },
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Https { url } => write!(
                f,
                "'{url}' is HTTPS, which this client does not speak; name the server's own port \
                 as http://HOST:PORT (through a tunnel or behind its proxy), or put a local proxy \
                 that speaks TLS in between"
            ),
            TargetError::Scheme { url } => {
                write!(f, "'{url}' is not an HTTP address; write it as http://HOST:PORT")
            }
            TargetError::Host { url } => {
                write!(f, "'{url}' has no usable host; write it as http://HOST:PORT")
            }
            TargetError::PortAlone { url, port } => write!(
                f,
                "'{url}' is a port without a host; 'http://127.0.0.1:{port}' is that port of this \
                 machine"
            ),
            TargetError::User { url } => write!(
                f,
                "'{url}' has a user before the host, which this client does not send; a key goes \
                 with --api-key, and '{}' would work",
                url.replace(HIDDEN, "")
            ),
            TargetError::Brackets { url } => write!(
                f,
                "'{url}' has no usable host: an IPv6 address stands in brackets, as in \
                 http://[::1]:PORT"
            ),
            TargetError::Query { url } => {
                let plain = url.split(['?', '#']).next().unwrap_or("");
                write!(
                    f,
                    "'{url}' has a part from ? or # on, which is no part of a server's address; \
                     '{plain}' would work"
                )
            }
            TargetError::Port { url } => {
                write!(f, "the port of '{url}' is not a number from 1 to 65535")
            }
            TargetError::Characters { what } => {
                write!(f, "the {what} holds blanks or control characters")
            }
        }
    }
}

impl core::error::Error for TargetError {}

fn is_clean(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic())
}

/// What stands for a user and password in words.
const HIDDEN: &str = "...@";

/// An address as it may be shown: without a user's password.
fn shown(url: &str) -> String {
    let from = url.find("://").map_or(0, |at| at + 3);
    let authority = url[from..].split(['/', '?', '#']).next().unwrap_or("");
    match authority.rfind('@') {
        Some(at) => format!("{}{HIDDEN}{}", &url[..from], &url[from + at + 1..]),
        None => url.to_owned(),
    }
}

impl Target {
    /// A target from `http://HOST[:PORT][/PATH][/v1]`; without a scheme it is HTTP, without a port
    /// port 80. Every command reads addresses by this.
    pub fn parse(url: &str) -> Result<Target, TargetError> {
        let named = || shown(url);
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(TargetError::Https { url: named() });
            }
            Some(_) => return Err(TargetError::Scheme { url: named() }),
            None => url,
        };
        if rest.split(['/', '?', '#']).next().is_some_and(|a| a.contains('@')) {
            return Err(TargetError::User { url: named() });
        }
        if rest.contains(['?', '#']) {
            return Err(TargetError::Query { url: named() });
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if let Some(port) = port_alone(authority) {
            return Err(match port.parse() {
                Ok(0) | Err(_) => TargetError::Port { url: named() },
                Ok(port) => TargetError::PortAlone { url: named(), port },
            });
        }
        if !is_clean(path) {
            return Err(TargetError::Characters { what: "path" });
        }
        let path = path.trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/').to_owned();
        Ok(Target {
            authority: with_port(authority, url)?,
            prefix,
            api_key: None,
            model: None,
            timeouts: Timeouts::default(),
        })
    }

    /// The host, without the brackets of IPv6.
    pub fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80)
    }

    /// With a key; an empty one is none.
    pub fn with_api_key(mut self, key: Option<&str>) -> Result<Target, TargetError> {
        let key = key.filter(|k| !k.is_empty());
        if !key.is_none_or(is_clean) {
            return Err(TargetError::Characters { what: "API key" });
        }
        self.api_key = key.map(str::to_owned);
        Ok(self)
    }

    /// With the name of a model; without one it is discovered.
    pub fn with_model(mut self, model: Option<&str>) -> Target {
        self.model = model.map(str::to_owned);
        self
    }

    /// With other timeouts.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Target {
        self.timeouts = timeouts;
        self
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

/// The digits of `30001` or `:30001`, which are an IPv4 address to the resolver (0.0.117.49).
fn port_alone(authority: &str) -> Option<&str> {
    let digits = authority.strip_prefix(':').unwrap_or(authority);
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(digits)
}

/// `host:port` of an authority, port 80 where it names none.
fn with_port(authority: &str, url: &str) -> Result<String, TargetError> {
    let brackets = || TargetError::Brackets { url: shown(url) };
    // The colons of [::1] are not a port's.
    let (host, port) = if authority.starts_with('[') {
        let end = authority.find(']').ok_or_else(brackets)? + 1;
        let (host, port) = authority.split_at(end);
        host[1..end - 1].parse::<Ipv6Addr>().map_err(|_| brackets())?;
        (host, port)
    } else {
        let end = authority.find(':').unwrap_or(authority.len());
        let (host, port) = authority.split_at(end);
        if port.matches(':').count() > 1 {
            return Err(brackets());
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if host.is_empty() || !host.bytes().all(fits) {
            return Err(TargetError::Host { url: shown(url) });
        }
        (host, port)
    };
    if port.is_empty() {
        return Ok(format!("{host}:80"));
    }
    let digits = port.strip_prefix(':').filter(|p| p.bytes().all(|b| b.is_ascii_digit()));
    let number = digits.and_then(|p| p.parse::<u16>().ok()).filter(|n| *n != 0);
    let number = number.ok_or_else(|| TargetError::Port { url: shown(url) })?;
    Ok(format!("{host}:{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let ok = |url: &str| {
            let t = Target::parse(url).unwrap();
            (t.authority, t.prefix)
        };
        let pair = |a: &str, p: &str| (a.to_owned(), p.to_owned());
        assert_eq!(ok("http://a:1"), pair("a:1", ""));
        assert_eq!(ok("a:1/"), pair("a:1", ""));
        assert_eq!(ok("http://a:1/v1/"), pair("a:1", ""));
        assert_eq!(ok("http://a/x/v1"), pair("a:80", "/x"));
        assert_eq!(ok("http://[::1]:7/v1"), pair("[::1]:7", ""));
        assert_eq!(ok("http://[::1]"), pair("[::1]:80", ""));
        assert_eq!(ok("[::1]:7//"), pair("[::1]:7", ""));
        assert_eq!(ok("HTTP://A.b-c_d:0080"), pair("A.b-c_d:80", ""));
        assert_eq!(ok("a:1/x//v1//"), pair("a:1", "/x"));
        for bad in
            ["ftp://a", "http://", "http://u@a", "http://a b", "a:0", "a:70000", "a:+1", ":1"]
        {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "//a", "a:", "a:1 ", "a,b", "a\\b", "[::1", "[a]:1", "[::1]x:1", "a%0d:1"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        let both = |url: &str| Target::parse(url).map(|t| (t.host().to_owned(), t.port()));
        assert_eq!(both("[::1]:7/v1"), Ok(("::1".into(), 7)));
        assert_eq!(both("a"), Ok(("a".into(), 80)));
    }

    /// `status` once took `::1:7` for the host `::1` with a port, and nobody else did.
    #[test]
    fn an_ipv6_address_without_brackets_is_told_so() {
        for url in ["::1", "http://::1:7", "fe80::1/v1"] {
            let words = Target::parse(url).unwrap_err().to_string();
            assert!(words.contains("http://[::1]:PORT"), "{words}");
        }
    }

    /// What was found: an address that was refused was shown with the password in it.
    #[test]
    fn a_password_in_an_address_is_not_shown() {
        for url in ["http://u:secret@a:1/v1", "https://secret@a", "ftp://u:secret@a/", "secret@a?x"]
        {
            let words = Target::parse(url).unwrap_err().to_string();
            assert!(!words.contains("secret"), "{words}");
        }
        let words = Target::parse("http://u:p@a:1/v1").unwrap_err().to_string();
        assert!(words.contains("'http://a:1/v1' would work"), "{words}");
    }

    /// What was found: `status 41000` waited for a host of that name.
    #[test]
    fn a_port_alone_is_told_the_address() {
        for url in ["41000", ":41000", "http://41000/v1"] {
            let words = Target::parse(url).unwrap_err().to_string();
            assert!(words.contains("'http://127.0.0.1:41000'"), "{words}");
        }
        // Nor is a number that is no port asked as a host: 99999 was, which is 0.1.134.159.
        for url in ["0", "99999", ":70000", "http://4294967296/v1"] {
            let words = Target::parse(url).unwrap_err().to_string();
            assert!(words.contains("not a number from 1 to 65535"), "{words}");
        }
        for host in ["41000.lan", "4100a", "127.0.0.1"] {
            assert!(Target::parse(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn https_is_told_what_would_work() {
        let words = Target::parse("https://a:1/v1").unwrap_err().to_string();
        assert!(words.contains("http://HOST:PORT") && words.contains("proxy"), "{words}");
    }

    /// It was once told that the host was unusable.
    #[test]
    fn a_query_in_a_url_is_named_as_one() {
        for url in ["http://a:1?x=1", "a:1/v1?x=1", "a:1/#top"] {
            let words = Target::parse(url).unwrap_err().to_string();
            let plain = url.split(['?', '#']).next().unwrap();
            assert!(words.contains(&format!("'{plain}' would work")), "{words}");
        }
    }

    #[test]
    fn a_key_cannot_smuggle_a_header() {
        let target = Target::parse("a:1").unwrap();
        assert!(target.clone().with_api_key(Some("x\r\nEvil: y")).is_err());
        assert_eq!(target.with_api_key(Some("")).unwrap().api_key, None);
    }
}
