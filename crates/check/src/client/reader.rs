//! Reads the body of a generating request into its [`Exchange`].

use super::answer::{fold, shorten};
use super::exchange::{Abort, Exchange, Outcome, Phase, ProtocolFault, Reading};
use super::sse::{EVENT_BYTES_MAX, Event, SseReader};
use super::{ANSWER_BYTES_MAX, http_fault};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// How long the end of a body may be away once all of the answer is here.
const TAIL: Duration = Duration::from_secs(1);

/// A body with a limit on the time between two reads. The timer is moved when it fires, not with
/// every read.
struct Body {
    incoming: Incoming,
    idle: Duration,
    read_at: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>, Outcome> {
        loop {
            let frame = tokio::select! {
                biased;
                frame = self.incoming.frame() => frame,
                () = self.alarm.as_mut() => {
                    let due = self.read_at + self.idle;
                    if due <= Instant::now() {
                        return Err(Outcome::Timeout { phase: Phase::Idle });
                    }
                    self.alarm.as_mut().reset(due);
                    continue;
                }
            };
            let Some(frame) = frame else { return Ok(None) };
            self.read_at = Instant::now();
            if let Ok(data) = frame.map_err(|e| http_fault(&e))?.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

/// Reads an answer with status 200. True where the connection can be used again.
pub(crate) async fn read(
    response: Response<Incoming>,
    idle: Duration,
    reading: Reading,
    exchange: &mut Exchange,
) -> Result<bool, Outcome> {
    let kind = response.headers().get(CONTENT_TYPE).map(|v| v.as_bytes().to_ascii_lowercase());
    let is_stream = kind.is_some_and(|k| k.starts_with(b"text/event-stream"));
    let now = Instant::now();
    let alarm = Box::pin(sleep_until(now + idle));
    let mut body = Body { incoming: response.into_body(), idle, read_at: now, alarm };
    if is_stream {
        stream(&mut body, reading, exchange).await
    } else {
        whole(&mut body, reading, exchange).await
    }
}

/// Books a piece of the body.
fn book(exchange: &mut Exchange, data: &[u8], reading: Reading) -> Result<(), Outcome> {
    exchange.body_bytes += data.len() as u64;
    let room = reading.raw_bytes_max.saturating_sub(exchange.raw.len());
    exchange.raw.extend_from_slice(&data[..data.len().min(room)]);
    if exchange.body_bytes > ANSWER_BYTES_MAX as u64 {
        let fault = ProtocolFault::TooLarge { bytes_max: ANSWER_BYTES_MAX };
        return Err(Outcome::Protocol { fault });
    }
    Ok(())
}

fn is_enough(exchange: &Exchange, abort: Option<Abort>) -> bool {
    match abort {
        None => false,
        Some(Abort::Chunks(n)) => exchange.chunks.len() >= n as usize,
        Some(Abort::Bytes(n)) => exchange.body_bytes >= n,
    }
}

async fn whole(
    body: &mut Body,
    reading: Reading,
    exchange: &mut Exchange,
) -> Result<bool, Outcome> {
    let mut text = Vec::new();
    while let Some(data) = body.next().await? {
        book(exchange, &data, reading)?;
        text.extend_from_slice(&data);
        // There are no chunks before the end; only bytes can be counted.
        if is_enough(exchange, reading.abort) {
            return Err(Outcome::Aborted);
        }
    }
    let after = exchange.began_at.elapsed();
    exchange.ended_after = after;
    fold(exchange, &text, after, false)?;
    Ok(true)
}

async fn stream(
    body: &mut Body,
    reading: Reading,
    exchange: &mut Exchange,
) -> Result<bool, Outcome> {
    let mut reader = SseReader::default();
    while let Some(data) = body.next().await? {
        let after = exchange.began_at.elapsed();
        exchange.ended_after = after;
        book(exchange, &data, reading)?;
        let mut outcome = Ok(());
        let pushed = reader.push(&data, |event| {
            if outcome.is_ok() && !exchange.has_done_marker {
                outcome = take(exchange, event, after);
            }
        });
        outcome?;
        if pushed.is_err() {
            let fault = ProtocolFault::TooLarge { bytes_max: EVENT_BYTES_MAX };
            return Err(Outcome::Protocol { fault });
        }
        if exchange.has_done_marker {
            return Ok(ends_now(body).await);
        }
        if is_enough(exchange, reading.abort) {
            return Err(Outcome::Aborted);
        }
    }
    // Some servers end with the body, without a marker, or without its blank line.
    match reader.unfinished().as_deref() {
        Some(b"[DONE]") => exchange.has_done_marker = true,
        Some(rest) => {
            let rest = shorten(&String::from_utf8_lossy(rest));
            return Err(Outcome::Cut { why: format!("the stream ends in the event {rest:?}") });
        }
        None => {}
    }
    if exchange.finish_reason.is_none() && !exchange.has_done_marker {
        let why = "the stream ends without a finish_reason and without [DONE]".to_owned();
        return Err(Outcome::Cut { why });
    }
    Ok(true)
}

/// Whether nothing more comes, so that the connection is free.
async fn ends_now(body: &mut Body) -> bool {
    matches!(timeout(TAIL, body.next()).await, Ok(Ok(None)))
}

fn take(exchange: &mut Exchange, event: Event<'_>, after: Duration) -> Result<(), Outcome> {
    if event.data == b"[DONE]" {
        exchange.has_done_marker = true;
        return Ok(());
    }
    let folded = fold(exchange, event.data, after, true);
    match (event.name, folded) {
        (b"error", Ok(()) | Err(Outcome::Protocol { .. })) => {
            let message = shorten(&String::from_utf8_lossy(event.data));
            Err(Outcome::Failed { message })
        }
        (_, folded) => folded,
    }
}
