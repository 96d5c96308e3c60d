//! What comes back: ids and numbers only; text is made of them elsewhere.

use crate::{RequestId, Token};
use core::fmt;

/// Why a request ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// An end-of-text or stop token (which is not part of the text), or the grammar's end.
    Stop,
    /// `max_tokens` reached.
    Length,
}

/// Why a request ended badly, after it had been admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The client went away or asked to stop.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// The server stopped before it was done.
    ShuttingDown,
    /// A grammar error.
    Grammar(crate::MaskError),
    /// The step failed; the words say what.
    Engine { what: String },
    /// The audit found that what it was computed from, or what came of it, may be wrong.
    Audit { part: crate::AuditPart, what: String },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Cancelled => write!(f, "the request was cancelled"),
            Failure::DeadlineExceeded => write!(f, "the request's deadline passed"),
            Failure::ShuttingDown => write!(f, "the server stopped before the request was done"),
            Failure::Grammar(e) => e.fmt(f),
            Failure::Engine { what } => write!(f, "the engine failed: {what}"),
            Failure::Audit { part, what } => write!(
                f,
                "the audit ({part}) ended the request, whose result could be wrong: {what}; ask again"
            ),
        }
    }
}

impl core::error::Error for Failure {}

/// A token with the log-probabilities that were asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct TokenLogprob {
    /// The token itself.
    pub token: Token,
    /// Natural log of its probability under the model (before temperature and truncation).
    pub logprob: f32,
    /// The most likely tokens there, best first; as many as were asked for.
    pub top: Vec<(Token, f32)>,
}

/// What a request cost.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, how many came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens produced, the end-of-text token included.
    pub completion_tokens: u32,
    /// How often it was preempted and resumed.
    pub preemptions: u32,
    /// Tokens that a prediction block had drafted and a step checked.
    pub drafted_tokens: u32,
    /// Of those, how many were what the model itself sampled there.
    pub accepted_tokens: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum EventKind {
    /// It left the queue.
    Started { cached_tokens: u32 },
    /// Log-probabilities of prompt tokens `from..from + entries.len()` (`echo`); the prompt's
    /// first token has none and is never in here.
    Prompt { from: u32, entries: Vec<TokenLogprob> },
    /// One more output token. `logprob` is there where it was asked for.
    Token { token: Token, index: u32, logprob: Option<TokenLogprob> },
    /// Final: it ended well.
    Finished { reason: FinishReason, usage: Usage },
    /// Final: it did not.
    Failed { failure: Failure, usage: Usage },
}

impl EventKind {
    /// True for the one event that ends a request (contract 5).
    pub fn is_final(&self) -> bool {
        matches!(self, EventKind::Finished { .. } | EventKind::Failed { .. })
    }
}

/// An event and the request it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Whose.
    pub request: RequestId,
    /// What.
    pub kind: EventKind,
}

/// Where a request's events go; called on the step thread, so it must not block.
pub trait EventSink: Send {
    /// Takes an event. False says that nobody listens any more: the engine then cancels the
    /// request and frees its pages within one step.
    fn emit(&mut self, event: Event) -> bool;
}
