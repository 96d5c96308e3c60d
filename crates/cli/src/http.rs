//! One GET of plain HTTP/1, enough to ask a server on one's own network.

use core::fmt;
use lockstep_check::client::{NoAnswer, NoServer};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(20);
/// Bytes of an answer, at most.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Why nothing came back.
#[derive(Debug)]
pub enum GetError {
    /// Not an address that this client understands.
    Url { url: String, what: &'static str },
    /// No connection.
    Connect { url: String, why: io::Error },
    /// A connection, but no answer.
    Answer { address: String, why: io::Error },
    /// Not HTTP.
    NotHttp { address: String },
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GetError::Url { url, what } => {
                write!(f, "'{url}' {what}; write it as http://HOST:PORT")
            }
            GetError::Connect { url, why } => NoServer { url, why: &why.to_string() }.fmt(f),
            GetError::Answer { address, why }
                if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                NoAnswer { url: address, seconds: ANSWER.as_secs() }.fmt(f)
            }
            GetError::Answer { address, why } => {
                write!(f, "the server at {address} did not answer: {why}")
            }
            GetError::NotHttp { address } => {
                write!(f, "what listens at {address} does not speak HTTP")
            }
        }
    }
}

impl core::error::Error for GetError {}

/// Host and port of a URL, and the path that it has beyond.
fn split(url: &str) -> Result<(String, String), GetError> {
    let bad = |what| GetError::Url { url: url.into(), what };
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some(("https", _)) => return Err(bad("is HTTPS, which this command does not speak")),
        Some(_) => return Err(bad("is not an HTTP address")),
        None => url,
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if authority.is_empty() || authority.contains(['@', ' ', '\r', '\n', '?', '#']) {
        return Err(bad("has no usable host"));
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':')
    });
    let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    Ok((address, path.trim_end_matches('/').to_owned()))
}

/// Gets `path` below `base`.
pub fn get(base: &str, path: &str, api_key: Option<&str>) -> Result<Answer, GetError> {
    let (address, prefix) = split(base)?;
    let clean = |s: &str| !s.bytes().any(|b| b.is_ascii_control() || b == b' ');
    if !clean(&prefix) || !api_key.is_none_or(clean) {
        return Err(GetError::Url { url: base.into(), what: "or its key holds odd characters" });
    }
    let connect = |why| GetError::Connect { url: base.trim_end_matches('/').into(), why };
    let mut stream = open(&address).map_err(connect)?;
    let auth = api_key.map_or(String::new(), |k| format!("Authorization: Bearer {k}\r\n"));
    // HTTP/1.0, so that the body ends with the connection and needs no decoding.
    let request = format!("GET {prefix}{path} HTTP/1.0\r\nHost: {address}\r\n{auth}\r\n");
    let mut bytes = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|why| GetError::Answer { address: address.clone(), why })?;
    parse(&bytes).ok_or(GetError::NotHttp { address })
}

fn open(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, CONNECT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER))?;
                stream.set_write_timeout(Some(ANSWER))?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: bytes[end + 4..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let ok = |url: &str| split(url).unwrap();
        assert_eq!(ok("http://a:1"), ("a:1".into(), "".into()));
        assert_eq!(ok("a:1/"), ("a:1".into(), "".into()));
        assert_eq!(ok("http://a/x/"), ("a:80".into(), "/x".into()));
        assert_eq!(ok("http://[::1]:7"), ("[::1]:7".into(), "".into()));
        for bad in ["https://a", "ftp://a", "http://", "http://u@a", "http://a b"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    /// What was found: "did not answer: Resource temporarily unavailable (os error 11)".
    #[test]
    fn a_server_that_does_not_answer_in_time_is_said_to_be_one() {
        let why = io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        let words = GetError::Answer { address: "a:1".into(), why }.to_string();
        assert_eq!(words, "the server at a:1 does not answer within 20 s");
    }

    #[test]
    fn only_http_is_an_answer() {
        let a = parse(b"HTTP/1.1 503 Gone\r\nX: y\r\n\r\nbody").unwrap();
        assert_eq!(a, Answer { status: 503, body: b"body".to_vec() });
        assert_eq!(parse(b"SSH-2.0-x\r\n\r\n"), None);
        assert_eq!(parse(b""), None);
    }
}
