//! What steps are counted as.

use crate::core::Core;
use lockstep_flow::Durations;
use lockstep_flow::status::EagerReason;

/// Counters that the status is filled from.
#[derive(Clone, Copy, Default, Debug)]
pub struct StepCounters {
    /// Steps.
    pub steps: u64,
    /// Steps in which every row decoded.
    pub decode_steps: u64,
    /// Of those, captured.
    pub decode_steps_captured: u64,
    /// Steps with prompt tokens.
    pub prefill_steps: u64,
    /// Of those, captured.
    pub prefill_steps_captured: u64,
    /// Tokens given to clients or ended with.
    pub generated_tokens: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of started ones, cached.
    pub cached_tokens: u64,
    /// Steps that the pool refused to sign: its books and the scheduler's disagreed.
    pub lease_refusals: u64,
    /// Requests that ended because their client went away or asked to.
    pub cancelled: u64,
    /// Requests that ended because their grammar could not be followed further.
    pub grammar_stopped: u64,
    /// Flips to a staged generation.
    pub flips: u64,
    /// Flips back.
    pub rollbacks: u64,
    /// Of those, by the audit.
    pub rollbacks_by_audit: u64,
    /// Generations retired.
    pub retired: u64,
    /// Canary steps.
    pub canary_steps: u64,
    /// Manifests that differed.
    pub manifest_mismatches: u64,
    /// How long decode steps took.
    pub decode_times: Durations,
    /// How long steps with prompt tokens took.
    pub prefill_times: Durations,
}

/// What ran through one bucket.
#[derive(Clone, Copy, Default, Debug)]
pub struct BucketCounters {
    /// Captured steps.
    pub replays: u64,
    /// Eager steps.
    pub eager_steps: u64,
    /// Live token rows.
    pub live_rows: u64,
    /// Padded token rows.
    pub padded_rows: u64,
}

/// Reasons in the order of [`Core::eager_reasons`].
pub const EAGER_REASONS: [EagerReason; 5] = [
    EagerReason::AboveGraphMaxBs,
    EagerReason::PrefillNotCaptured,
    EagerReason::Quarantined,
    EagerReason::Audit,
    EagerReason::Configured,
];

impl Core {
    /// The step in flight has run in bucket `at`: as a replay, or op by op for a reason.
    pub(crate) fn count(&mut self, at: usize, tokens: u32, reason: Option<EagerReason>) {
        let batch = self.step();
        let (decoded, live) = (batch.decode_rows, batch.live.tokens);
        let decode = decoded as usize == batch.rows.len();
        if decode {
            self.decoded = decoded;
        }
        self.last_rows = live;
        let c = &mut self.counters;
        let captured = u64::from(reason.is_none());
        c.steps += 1;
        let (steps, of_those) = if decode {
            (&mut c.decode_steps, &mut c.decode_steps_captured)
        } else {
            (&mut c.prefill_steps, &mut c.prefill_steps_captured)
        };
        *steps += 1;
        *of_those += captured;
        let b = &mut self.bucket_counters[at];
        b.replays += captured;
        b.eager_steps += 1 - captured;
        b.live_rows += u64::from(live);
        b.padded_rows += u64::from(tokens - live);
        if let Some(i) = reason.and_then(|r| EAGER_REASONS.iter().position(|x| *x == r)) {
            self.eager_reasons[i] += 1;
        }
    }
}
