//! What a client asks for, once text has become tokens.

use crate::{Micros, RequestId, SamplingError, SamplingParams, Token, TokenMask};
use core::fmt;
use std::sync::Arc;

/// One sequence to complete. A chat with `n` choices is `n` requests that share a prompt; the
/// prefix cache makes the prompt cost once.
#[derive(Debug)]
pub struct Request {
    /// Unique for the life of the process.
    pub id: RequestId,
    /// At least one token.
    pub prompt: Arc<[Token]>,
    /// Already checked.
    pub params: SamplingParams,
    /// Constrains what may be sampled.
    pub grammar: Option<Box<dyn TokenMask>>,
    /// When it arrived; order of arrival is order of service.
    pub arrived: Micros,
    /// After this it ends with [`crate::Failure::DeadlineExceeded`].
    pub deadline: Option<Micros>,
    /// Which adapter's weights it uses; part of the prefix key. 0 is none.
    pub adapter: u32,
    /// False recomputes the prompt even where the prefix cache holds it.
    pub use_prefix_cache: bool,
}

/// Proof of admission: a queued or running request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The request that it admits.
    pub id: RequestId,
    /// How many were queued in front of it.
    pub queued_before: u32,
}

/// Why a request was not admitted. Nothing of it is kept.
#[derive(Clone, PartialEq, Debug)]
pub enum Refusal {
    /// `max_queued_requests` are queued, or the places left are fewer than the sequences asked
    /// for: HTTP 429 with `Retry-After`.
    QueueFull { queued: u32, limit: u32, retry_after_s: u32 },
    /// One request of more sequences than may be queued and running together, however long it
    /// waits: HTTP 400.
    TooManySequences { sequences: u32, limit: u32 },
    /// The server is draining or its engine has failed: HTTP 503.
    NotServing { why: String },
    /// Prompt and output can never fit the model's context: HTTP 400.
    ContextTooLong { prompt_tokens: u32, max_tokens: u32, context_max_tokens: u32 },
    /// Prompt and output can never fit the token pool: HTTP 400.
    PoolTooSmall { needed_tokens: u32, capacity_tokens: u32 },
    /// A prompt of no tokens: HTTP 400.
    EmptyPrompt,
    /// A prompt token outside the vocabulary: HTTP 400.
    TokenOutOfRange { token: Token, at: u32, vocab: u32 },
    /// A sampling parameter out of its range: HTTP 400.
    Sampling(SamplingError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::QueueFull { queued, limit, retry_after_s } => write!(
                f,
                "no room now: {queued} requests are queued and max_queued_requests is {limit}; \
                 retry in {retry_after_s} s"
            ),
            Refusal::TooManySequences { sequences, limit } => write!(
                f,
                "the request asks for {sequences} sequences, and at most {limit} can be live at \
                 once (max_running_requests and max_queued_requests together): split it"
            ),
            Refusal::NotServing { why } => write!(f, "the server takes no new requests: {why}"),
            Refusal::ContextTooLong { prompt_tokens, max_tokens, context_max_tokens } => write!(
                f,
                "the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}; together \
                 they exceed the context of {context_max_tokens} tokens: shorten either"
            ),
            Refusal::PoolTooSmall { needed_tokens, capacity_tokens } => write!(
                f,
                "the request needs {needed_tokens} tokens of KV and the pool holds \
                 {capacity_tokens}: shorten it, or start the server with a larger --kv-memory"
            ),
            Refusal::EmptyPrompt => write!(f, "the prompt has no tokens; it needs at least one"),
            Refusal::TokenOutOfRange { token, at, vocab } => {
                write!(f, "token {token} at index {at} is outside the vocabulary of {vocab}")
            }
            Refusal::Sampling(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for Refusal {}
