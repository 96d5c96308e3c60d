//! Reading a request body: bounded in bytes and in time.

use crate::error::ApiError;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use lockstep_flow::limits::BODY_BYTES_MAX;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::timeout;

/// How long a body may take from its first byte to its last.
const BODY_SECONDS: u64 = 60;
/// What is read and dropped of a body that is too large, so that a client which sends first and
/// reads afterwards sees the answer rather than a reset connection.
const DISCARD_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;
const DISCARD_SECONDS: u64 = 10;
/// A client that sends nothing for so long waits for its answer.
const QUIET: Duration = Duration::from_millis(250);

async fn next(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_trailers)) => {}
            Err(e) => return Some(Err(e)),
        }
    }
}

/// Reads and drops a body, within bounds, for as long as the client sends it.
pub async fn discard(body: &mut Body) {
    let mut bytes = 0;
    let all = async {
        while let Ok(Some(Ok(data))) = timeout(QUIET, next(body)).await {
            bytes += data.len();
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Too slow is as good as too much: the connection closes either way.
    let _ = timeout(Duration::from_secs(DISCARD_SECONDS), all).await;
}

/// The whole body, of at most [`BODY_BYTES_MAX`] bytes within [`BODY_SECONDS`].
pub async fn read(headers: &HeaderMap, mut body: Body) -> Result<Vec<u8>, ApiError> {
    let too_large = ApiError::BodyTooLarge { limit_bytes: BODY_BYTES_MAX };
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    if length.is_some_and(|n| n > BODY_BYTES_MAX as u64) {
        discard(&mut body).await;
        return Err(too_large);
    }
    let mut bytes: Vec<u8> = Vec::new();
    let all = async {
        while let Some(data) = next(&mut body).await {
            let data = data.map_err(|_| ApiError::Body { what: "it broke off".into() })?;
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                return Ok(false);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(true)
    };
    match timeout(Duration::from_secs(BODY_SECONDS), all).await {
        Ok(Ok(true)) => Ok(bytes),
        Ok(Ok(false)) => {
            drop(bytes);
            discard(&mut body).await;
            Err(too_large)
        }
        Ok(Err(e)) => Err(e),
        Err(_) => Err(ApiError::BodyTimeout { seconds: BODY_SECONDS }),
    }
}
