//! Load shaped to fill a bucket: long streams hold the batch at a size while sessions are judged
//! in it.

use super::load::Bench;
use crate::client::{Client, Reading};
use crate::coverage::Bucket;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Tokens of a holder's stream, at most.
const HOLDER_TOKENS_MAX: u64 = 512;
/// Tokens of its prompt, at most.
const PROMPT_TOKENS: u64 = 64;
/// How long holders get to start before sessions come.
const START: Duration = Duration::from_millis(400);

/// Streams that run until they are dropped.
pub struct Holders(#[allow(dead_code, reason = "dropping it ends the streams")] JoinSet<()>);

/// How many sessions are judged while a bucket is held, and how many streams hold it.
pub fn shape(bucket: &Bucket) -> (usize, usize) {
    let judged = if bucket.rows <= 4 { 1 } else { 2 };
    (judged, (bucket.rows as usize).saturating_sub(judged))
}

/// Starts `count` streams. Each begins again when it ends.
pub async fn hold(bench: &Arc<Bench>, count: usize, capacity_tokens: Option<u64>) -> Holders {
    // All of them must fit, with as much again for the sessions that are judged.
    let fit = capacity_tokens.map_or(HOLDER_TOKENS_MAX, |c| c / (2 * count.max(1) as u64));
    let tokens = fit.saturating_sub(PROMPT_TOKENS).clamp(16, HOLDER_TOKENS_MAX);
    let mut streams = JoinSet::new();
    for at in 0..count {
        let client = bench.client.clone();
        streams.spawn(async move {
            for turn in 0u64.. {
                stream(&client, at, turn, tokens).await;
            }
        });
    }
    tokio::time::sleep(START).await;
    Holders(streams)
}

/// One stream; where the server does not know `ignore_eos`, one that ends as it likes.
async fn stream(client: &Client, at: usize, turn: u64, tokens: u64) {
    let text = format!("Count from {at} upwards, one number a line, and never stop. ({turn})");
    let mut body: Value = json!({
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "stream": true,
        "ignore_eos": true,
    });
    let exchange = client.chat(&body, Reading::default()).await;
    if exchange.is_done() {
        return;
    }
    if let Some(fields) = body.as_object_mut().filter(|_| exchange.status == Some(400)) {
        fields.remove("ignore_eos");
        client.chat(&body, Reading::default()).await;
        return;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_and_sessions_make_up_the_bucket() {
        for rows in [1, 2, 4, 8, 96] {
            let bucket =
                Bucket { rows, rows_min: 1, is_captured: None, seen: 0, is_required: true };
            let (judged, held) = shape(&bucket);
            assert_eq!(judged + held, rows as usize);
            assert!(judged > 0);
        }
    }
}
