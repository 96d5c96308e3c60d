//! Which server is asked, as what, and how long it may take.

use core::fmt;
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
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            total: Duration::from_secs(1800),
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

impl Target {
    /// A target from `http://HOST[:PORT][/PATH][/v1]`; without a scheme it is HTTP.
    pub fn parse(url: &str) -> Result<Target, TargetError> {
        let named = || url.to_owned();
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(TargetError::Https { url: named() }),
            Some(_) => return Err(TargetError::Scheme { url: named() }),
            None => url,
        };
        if rest.contains(['?', '#']) {
            return Err(TargetError::Query { url: named() });
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let has_bad = authority.contains('@') || !is_clean(authority);
        if authority.is_empty() || authority.starts_with(':') || has_bad {
            return Err(TargetError::Host { url: named() });
        }
        if !is_clean(path) {
            return Err(TargetError::Characters { what: "path" });
        }
        let path = path.trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/').to_owned();
        Ok(Target {
            authority: with_port(authority).ok_or_else(|| TargetError::Port { url: named() })?,
            prefix,
            api_key: None,
            model: None,
            timeouts: Timeouts::default(),
        })
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

/// `host:port` of an authority, port 80 where it names none.
fn with_port(authority: &str) -> Option<String> {
    // The colons of [::1] are not a port's.
    let after_host = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[after_host..].rsplit_once(':') {
        None => Some(format!("{authority}:80")),
        Some((_, port)) => {
            let number: u16 = port.parse().ok()?;
            let digits = port.bytes().all(|b| b.is_ascii_digit());
            (number != 0 && digits).then(|| authority.to_owned())
        }
    }
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
        for bad in
            ["ftp://a", "http://", "http://u@a", "http://a b", "a:0", "a:70000", "a:+1", ":1"]
        {
            assert!(Target::parse(bad).is_err(), "{bad}");
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
