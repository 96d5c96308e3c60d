//! What the scheduler has done, as plain numbers; `serve` gives them names.

use lockstep_flow::Refusal;

/// Requests that were not admitted, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refused {
    /// Too many are queued.
    pub queue_full: u64,
    /// Draining or failed.
    pub not_serving: u64,
    /// Longer than the model's context.
    pub context_too_long: u64,
    /// Larger than the token pool.
    pub pool_too_small: u64,
    /// No prompt, a token outside the vocabulary, a parameter out of its range.
    pub bad_input: u64,
}

impl Refused {
    pub(crate) fn count(&mut self, refusal: &Refusal) {
        *match refusal {
            Refusal::QueueFull { .. } => &mut self.queue_full,
            Refusal::TooManySequences { .. } => &mut self.bad_input,
            Refusal::NotServing { .. } => &mut self.not_serving,
            Refusal::ContextTooLong { .. } => &mut self.context_too_long,
            Refusal::PoolTooSmall { .. } => &mut self.pool_too_small,
            Refusal::EmptyPrompt | Refusal::TokenOutOfRange { .. } | Refusal::Sampling(_) => {
                &mut self.bad_input
            }
        } += 1;
    }
}

/// Totals since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SchedCounters {
    /// Requests admitted to the queue.
    pub admitted: u64,
    /// Requests refused.
    pub refused: Refused,
    /// Requests that left the queue for the first time.
    pub started: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests that ended badly.
    pub failed: u64,
    /// Times a running request was put back into the queue.
    pub preemptions: u64,
    /// Steps planned.
    pub steps: u64,
    /// Rows whose sequence was decoding: one token, and drafts behind it.
    pub decode_rows: u64,
    /// Of those, rows without a draft although drafts are on.
    pub undrafted_rows: u64,
    /// Drafts that came back checked.
    pub drafted_tokens: u64,
    /// Of those, drafts that were what the model sampled there.
    pub accepted_tokens: u64,
    /// Rows of prompt tokens.
    pub prefill_rows: u64,
    /// Tokens of those.
    pub prefill_tokens: u64,
    /// Of those, tokens that had been computed before a preemption.
    pub recomputed_tokens: u64,
    /// Token rows of buckets with nothing in them.
    pub padded_rows: u64,
    /// Rows whose outcome was thrown away: the request had ended or been preempted meanwhile.
    pub discarded_rows: u64,
    /// Rows left out of a step because the pool had no page for them.
    pub stalled_rows: u64,
    /// Rows taken out of a planned step: what they read is still being compared.
    pub postponed_rows: u64,
    /// Requests that waited for another one to prefill the prompt they share.
    pub prefix_waits: u64,
}
