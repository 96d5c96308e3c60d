//! Who may call what.

use crate::app::Shared;
use crate::error::ApiError;
use crate::ui;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The keys of a server.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Of every route except the probes; `None` opens them.
    pub api: Option<String>,
    /// Of the admin routes.
    pub admin: Option<String>,
    /// Admin routes are open without a key of their own.
    pub loopback: bool,
}

/// Routes that an orchestrator or a scraper calls without a key, as on other servers.
const OPEN: [&str; 3] = ["/health", "/health_generate", "/metrics"];
/// Routes that act on the server or on other clients' requests.
fn is_admin(path: &str) -> bool {
    path == "/abort_request" || path == "/admin" || path.starts_with("/admin/")
}

/// Compares every byte whatever the first difference; only the length shows in the time.
fn same(given: &[u8], key: &[u8]) -> bool {
    let difference = given.iter().zip(key).fold(0u8, |d, (a, b)| d | (a ^ b));
    given.len() == key.len() && std::hint::black_box(difference) == 0
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

impl Keys {
    fn has(&self, key: Option<&String>, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = key else { return Ok(()) };
        match bearer(headers) {
            Some(given) if same(given, key.as_bytes()) => Ok(()),
            Some(_) => {
                Err(ApiError::Unauthorized { what: "the bearer token is not the right one" })
            }
            None => Err(ApiError::Unauthorized {
                what: "this server wants a key: send Authorization: Bearer KEY",
            }),
        }
    }

    /// Decides on a request.
    pub fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if is_admin(path) {
            return self.check_admin(method, headers);
        }
        if OPEN.contains(&path) || ui::ROUTES.contains(&path) {
            return Ok(());
        }
        self.has(self.api.as_ref(), headers)
    }

    fn check_admin(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        match (&self.admin, self.loopback) {
            (Some(_), _) => self.has(self.admin.as_ref(), headers)?,
            (None, true) if self.api.is_none() && !names_loopback(headers) => {
                return Err(ApiError::Forbidden {
                    what: "without an admin key the admin routes answer to localhost, 127.0.0.1 \
                           and [::1] only, and Host is another name; use one of these, or start \
                           the server with --admin-key",
                });
            }
            (None, true) => self.has(self.api.as_ref(), headers)?,
            (None, false) => {
                return Err(ApiError::Forbidden {
                    what: "admin routes are closed: this server listens beyond loopback and has \
                           no admin key; start it with --admin-key",
                });
            }
        }
        // A web page can make a browser on this machine send plain forms to loopback, but not
        // this content type without a preflight that we never grant.
        let json =
            |v: &[u8]| v.trim_ascii_start().to_ascii_lowercase().starts_with(b"application/json");
        let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|v| json(v.as_bytes()));
        if *method == Method::POST && !is_json { Err(ApiError::MediaType) } else { Ok(()) }
    }
}

/// Is `Host` a name of this machine for itself, or absent? A browser that was given another name
/// for 127.0.0.1 (DNS rebinding) sends that name, and to it our routes would be its page's own.
fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |ip: std::net::IpAddr| ip.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// The middleware.
pub async fn layer(State(app): State<Shared>, request: Request, next: Next) -> Response {
    match app.keys.check(request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(e) => e.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(auth: Option<&str>, json: bool) -> HeaderMap {
        let mut h = HeaderMap::new();
        if let Some(auth) = auth {
            h.insert(header::AUTHORIZATION, HeaderValue::from_str(auth).unwrap());
        }
        if json {
            h.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        h
    }

    fn status(keys: &Keys, path: &str, auth: Option<&str>) -> u16 {
        match keys.check(&Method::POST, path, &headers(auth, true)) {
            Ok(()) => 200,
            Err(e) => e.status().as_u16(),
        }
    }

    #[test]
    fn keys_open_what_they_should() {
        let k = |api: &str, admin: &str, loopback| Keys {
            api: (!api.is_empty()).then(|| api.into()),
            admin: (!admin.is_empty()).then(|| admin.into()),
            loopback,
        };
        let chat = "/v1/chat/completions";
        assert_eq!(status(&k("", "", true), chat, None), 200);
        assert_eq!(status(&k("s3", "", true), chat, None), 401);
        assert_eq!(status(&k("s3", "", true), chat, Some("Bearer s4")), 401);
        assert_eq!(status(&k("s3", "", true), chat, Some("Bearer s")), 401);
        assert_eq!(status(&k("s3", "", true), chat, Some("bearer s3")), 200);
        assert_eq!(status(&k("s3", "", true), "/health", None), 200);
        assert_eq!(status(&k("s3", "", true), "/server_info", None), 401);
        assert_eq!(status(&k("s3", "", true), "/ui", None), 200);
        assert_eq!(status(&k("s3", "", true), "/ui/data", None), 401);
        assert_eq!(status(&k("", "", true), "/abort_request", None), 200);
        assert_eq!(status(&k("", "", false), "/abort_request", None), 403);
        assert_eq!(status(&k("s3", "ad", false), "/abort_request", Some("Bearer s3")), 401);
        assert_eq!(status(&k("s3", "ad", false), "/abort_request", Some("Bearer ad")), 200);
        for path in ["/admin/generations", "/admin/generations/2/flip", "/admin/nothing"] {
            assert_eq!(status(&k("", "", false), path, None), 403, "{path}");
            assert_eq!(status(&k("s3", "ad", true), path, Some("Bearer s3")), 401, "{path}");
            assert_eq!(status(&k("s3", "ad", true), path, Some("Bearer ad")), 200, "{path}");
            assert_eq!(status(&k("", "", true), path, None), 200, "{path}");
        }
        let plain = headers(None, false);
        let named = |host: &'static str| {
            let mut h = headers(None, true);
            h.insert(header::HOST, HeaderValue::from_static(host));
            k("", "", true).check(&Method::POST, "/admin/generations", &h).is_ok()
        };
        for host in ["localhost:30001", "127.0.0.1:30001", "[::1]:30001", "LOCALHOST", "127.0.0.2"]
        {
            assert!(named(host), "{host}");
        }
        for host in ["a-page-that-rebinds.example:30001", "localhost.example", "10.0.0.1", "", "["]
        {
            assert!(!named(host), "{host}");
        }
        let e = k("", "", true).check(&Method::POST, "/abort_request", &plain).unwrap_err();
        assert_eq!(e.status(), 415);
    }
}
