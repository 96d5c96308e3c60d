//! The scheduler's knobs.

use crate::SchedError;
use lockstep_flow::Token;
use lockstep_flow::limits::{CONTEXT_TOKENS_MAX, DRAFTS_MAX, RUNNING_REQUESTS_MAX, VOCAB_MAX};

/// Knobs and the model's facts that the scheduler needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedConfig {
    /// Sequences that have a slot at once (`max_running_requests`).
    pub running_requests_max: u32,
    /// Requests beyond those that may wait (`max_queued_requests`).
    pub queued_requests_max: u32,
    /// Most prompt tokens of one step (`chunked_prefill_size`).
    pub chunked_prefill_tokens: u32,
    /// The model's context.
    pub context_tokens_max: u32,
    /// The model's vocabulary size.
    pub vocab: u32,
    /// The model's end-of-text tokens.
    pub eos_tokens: Vec<Token>,
    /// Keep and use the prefix index.
    pub prefix_cache: bool,
    /// Steps in flight: 1 where the host waits for each step, 2 where step N+1 is launched before
    /// step N has come back.
    pub depth: u32,
    /// Tokens that the engine drafts of each sequence in a step; 0 where it drafts none. More need
    /// steps one at a time (`depth` 1), since what comes next follows from what was accepted.
    pub drafts: u32,
    /// A step is cut to the bucket below, and the rest of its prompt tokens left for the next
    /// one, where that saves more than this share of the token rows. 100 never cuts.
    pub padding_max_percent: u32,
}

impl SchedConfig {
    /// Checks every bound and says which one failed and what would do.
    pub fn check(&self) -> Result<(), SchedError> {
        let bound = |what, found: u32, min: u32, max: u32| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(SchedError::Config { what, found, min, max })
            }
        };
        bound("running_requests_max", self.running_requests_max, 1, RUNNING_REQUESTS_MAX)?;
        bound("queued_requests_max", self.queued_requests_max, 0, 1 << 20)?;
        bound("chunked_prefill_tokens", self.chunked_prefill_tokens, 1, 1 << 20)?;
        bound("context_tokens_max", self.context_tokens_max, 2, CONTEXT_TOKENS_MAX)?;
        bound("vocab", self.vocab, 1, VOCAB_MAX)?;
        bound("depth", self.depth, 1, if self.drafts > 0 { 1 } else { 16 })?;
        bound("drafts", self.drafts, 0, DRAFTS_MAX)?;
        bound("padding_max_percent", self.padding_max_percent, 0, 100)
    }
}
