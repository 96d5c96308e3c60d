//! What is kept of one request.

use super::workload::Planned;
use crate::client::{Exchange, Outcome};
use std::time::Instant;

/// How a request ended, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The whole answer came.
    Done,
    /// 429 or 503.
    Refused,
    /// It took too long.
    Timeout,
    /// Anything else.
    Error,
}

/// One request. Times are seconds since the run began.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// How it ended.
    pub class: Class,
    /// The words of what went wrong.
    pub words: Option<String>,
    /// When it was due; later than that is the client's fault.
    pub due_s: f64,
    /// When it began.
    pub began_s: f64,
    /// When its first output came.
    pub first_s: Option<f64>,
    /// When it ended.
    pub ended_s: f64,
    /// Prompt tokens: the server's count, else what was asked.
    pub input_tokens: u64,
    /// Output tokens: the server's count, else the chunks'.
    pub output_tokens: u64,
    /// Prompt tokens that were asked; 0 where a conversation decides it.
    pub input_asked: u64,
    /// Output tokens that were asked.
    pub output_asked: u64,
    /// Prompt tokens from the server's prefix cache.
    pub cached_tokens: u64,
    /// When each chunk with output came, and its tokens.
    pub chunks: Vec<(f64, u32)>,
    /// What the server itself measured, where it tells (llama.cpp): output tokens, and the
    /// milliseconds from the first of them to the last.
    pub server_decode: Option<(f64, f64)>,
}

impl Sample {
    /// Of an exchange in a run that began at `run_began`.
    pub fn of(exchange: &Exchange, planned: &Planned, run_began: Instant, due_s: f64) -> Sample {
        let began_s = exchange.began_at.saturating_duration_since(run_began).as_secs_f64();
        let class = match exchange.outcome {
            Outcome::Done => Class::Done,
            Outcome::Refused { .. } => Class::Refused,
            Outcome::Timeout { .. } => Class::Timeout,
            _ => Class::Error,
        };
        Sample {
            class,
            words: (class != Class::Done).then(|| exchange.outcome.to_string()),
            due_s,
            began_s,
            first_s: exchange.first_token_after.map(|t| began_s + t.as_secs_f64()),
            ended_s: began_s + exchange.ended_after.as_secs_f64(),
            input_tokens: exchange
                .usage
                .map_or(u64::from(planned.input_tokens), |u| u.prompt_tokens),
            output_tokens: exchange.output_tokens(),
            input_asked: u64::from(planned.input_tokens),
            output_asked: u64::from(planned.output_tokens),
            cached_tokens: exchange.usage.and_then(|u| u.cached_tokens).unwrap_or(0),
            chunks: exchange
                .chunks
                .iter()
                .map(|c| (began_s + c.after.as_secs_f64(), c.tokens))
                .collect(),
            server_decode: exchange
                .timings
                .as_ref()
                .and_then(|t| Some((t["predicted_n"].as_f64()?, t["predicted_ms"].as_f64()?))),
        }
    }

    /// From beginning to end, milliseconds.
    pub fn e2e_ms(&self) -> f64 {
        (self.ended_s - self.began_s) * 1e3
    }

    /// To the first output, milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.first_s.map(|first| (first - self.began_s) * 1e3)
    }

    /// Milliseconds an output token after the first; `None` of fewer than two.
    pub fn tpot_ms(&self) -> Option<f64> {
        let rest = self.output_tokens.checked_sub(1).filter(|&n| n > 0)?;
        Some((self.ended_s - self.first_s?) * 1e3 / rest as f64)
    }
}
