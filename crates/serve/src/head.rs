//! Headers that ask for what this server does not do.

use crate::body;
use crate::error::ApiError;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The middleware.
pub async fn layer(request: Request, next: Next) -> Response {
    let Err(e) = check(request.headers()) else { return next.run(request).await };
    if !request.headers().contains_key(header::EXPECT) {
        // A client that sends all of its body first sees the answer then.
        body::discard(&mut request.into_body()).await;
    }
    e.into_response()
}

/// Refuses expectations and codings that nobody here meets: a body in a coding would be read as if
/// it were in none.
fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    for found in tokens(headers, &header::EXPECT) {
        if found != "100-continue" {
            return Err(ApiError::Expectation { found });
        }
    }
    for found in tokens(headers, &header::CONTENT_ENCODING) {
        if found != "identity" {
            return Err(ApiError::ContentEncoding { found });
        }
    }
    for found in tokens(headers, &header::TRANSFER_ENCODING) {
        if !["chunked", "identity"].contains(&found.as_str()) {
            return Err(ApiError::TransferEncoding { found });
        }
    }
    Ok(())
}

/// The words of a list header, in lower case.
fn tokens(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> {
    let word = |w: &[u8]| {
        let head: String = String::from_utf8_lossy(w.trim_ascii()).chars().take(60).collect();
        head.to_ascii_lowercase()
    };
    let all = headers.get_all(name).iter();
    all.flat_map(move |v| v.as_bytes().split(|b| *b == b',').map(word)).filter(|w| !w.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn codings_and_expectations_are_checked_word_by_word() {
        let status = |name: HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            check(&headers).err().map(|e| e.status().as_u16())
        };
        assert_eq!(status(header::EXPECT, "100-Continue"), None);
        assert_eq!(status(header::EXPECT, "100-continue, fast"), Some(417));
        assert_eq!(status(header::EXPECT, "foo"), Some(417));
        assert_eq!(status(header::CONTENT_ENCODING, "identity"), None);
        assert_eq!(status(header::CONTENT_ENCODING, ""), None);
        assert_eq!(status(header::CONTENT_ENCODING, "GZIP"), Some(415));
        assert_eq!(status(header::CONTENT_ENCODING, "identity, br"), Some(415));
        assert_eq!(status(header::TRANSFER_ENCODING, "chunked"), None);
        assert_eq!(status(header::TRANSFER_ENCODING, "gzip, chunked"), Some(501));
    }
}
