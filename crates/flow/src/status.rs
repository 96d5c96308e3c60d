//! What an engine says about itself: plain numbers, filled by `engine`, read by `serve` (metrics,
//! `/server_info`, `/v1/loads`, the decode log line) and by `lockstep status` through it.
//!
//! Counters only ever grow; gauges are the present. Rates (tokens a second) are not in here: the
//! reader differentiates counters, so that two readers cannot disagree about a window.

use crate::generation::GenerationError;
use crate::{AuditUse, BucketAudit, BucketKey, Durations, GenerationReport, Micros};
use core::fmt;

/// Whether requests are taken, and if not, why.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Health {
    /// Takes requests.
    #[default]
    Serving,
    /// Finishes what it has and takes nothing new.
    Draining,
    /// Stopped; `why` says what failed. Stays so (failures latch).
    Failed { why: String },
}

impl Health {
    /// True where a new request would be considered.
    pub fn is_serving(&self) -> bool {
        *self == Health::Serving
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Serving => f.write_str("serving"),
            Health::Draining => f.write_str("draining"),
            Health::Failed { why } => write!(f, "failed: {why}"),
        }
    }
}

/// What is served: fixed once the weights are loaded.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ModelFacts {
    /// The model's own name (GGUF `general.name`, or the folder's name).
    pub name: String,
    /// Where it was read from.
    pub path: String,
    /// `llama`, `qwen2`, `qwen3`, ...
    pub architecture: String,
    /// How the file stores its weights: `Q4_1`, `BF16`, ...
    pub quantization: String,
    /// Vocabulary size in tokens.
    pub vocab: u32,
    /// Longest sequence in tokens, as configured.
    pub context_max_tokens: u32,
    /// Weights, counted.
    pub parameters: u64,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Hex digest of the weights; part of `system_fingerprint`.
    pub weights_digest: String,
    /// Of which model it takes the place, and why; empty where it is the one that was asked for.
    pub stands_in: String,
}

/// What computes: fixed for the life of the process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeviceFacts {
    /// `cpu`, `cuda`.
    pub name: String,
    /// The instruction path that was chosen: `avx512-vnni`, `avx2`, `portable`.
    pub isa: String,
    /// Compute threads.
    pub threads: u32,
    /// Bytes of the arena that all buckets share.
    pub arena_bytes: u64,
}

/// One sub-pool of the token pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubPoolUse {
    /// `full` for plain KV; `swa`, `c4`, `c128`, `index` where a model has them.
    pub name: String,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages that requests can use (without the reserved one).
    pub pages_total: u32,
    /// Pages held by running requests and canary steps, shared ones counted once.
    pub pages_used: u32,
    /// Of those, the ones of canary steps, which give them back where requests lack pages.
    pub pages_canary: u32,
    /// Pages that only the prefix cache holds: evictable.
    pub pages_cached: u32,
    /// Tokens with live KV in the used pages.
    pub tokens_used: u64,
    /// Bytes of the sub-pool.
    pub bytes_total: u64,
}

impl SubPoolUse {
    /// Tokens that fit.
    pub fn tokens_total(&self) -> u64 {
        u64::from(self.pages_total) * u64::from(self.page_tokens)
    }

    /// Used pages over all pages, 0 to 1.
    pub fn usage(&self) -> f64 {
        if self.pages_total == 0 {
            0.0
        } else {
            f64::from(self.pages_used) / f64::from(self.pages_total)
        }
    }
}

/// How a bucket executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketMode {
    /// Captured: replayed.
    Captured,
    /// Proven, but run op by op (above `graph_max_bs`).
    Eager,
    /// Taken out of service by the audit.
    Quarantined,
}

impl BucketMode {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            BucketMode::Captured => "captured",
            BucketMode::Eager => "eager",
            BucketMode::Quarantined => "quarantined",
        }
    }
}

/// One bucket of the live generation and what ran through it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketUse {
    /// Its shape.
    pub key: BucketKey,
    /// How it executes.
    pub mode: BucketMode,
    /// Steps replayed through its capture.
    pub replays: u64,
    /// Steps run op by op at its shape.
    pub eager_steps: u64,
    /// Rows (token slots) that carried a live token, over all its steps.
    pub live_rows: u64,
    /// Rows that were padding, over all its steps.
    pub padded_rows: u64,
    /// Its audits.
    pub audit: BucketAudit,
}

/// What all generations together hold on the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ArenaUse {
    /// Bytes of all arenas, shadow ones included.
    pub bytes: u64,
    /// Arenas.
    pub arenas: u32,
    /// Captured plans.
    pub executables: u32,
}

/// Why a step did not replay a captured bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EagerReason {
    /// More rows than the largest captured bucket holds.
    AboveGraphMaxBs,
    /// A prefill or mixed step whose shape is not captured.
    PrefillNotCaptured,
    /// The audit took the bucket out of service.
    Quarantined,
    /// The audit ran this step's eager twin.
    Audit,
    /// Asked for by the operator.
    Configured,
}

impl EagerReason {
    /// The label's value in `/metrics`.
    pub const fn as_str(self) -> &'static str {
        match self {
            EagerReason::AboveGraphMaxBs => "above_graph_max_bs",
            EagerReason::PrefillNotCaptured => "prefill_not_captured",
            EagerReason::Quarantined => "quarantined",
            EagerReason::Audit => "audit",
            EagerReason::Configured => "configured",
        }
    }
}

/// Why a step was not launched while the one before it ran: the host ended that one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WaitReason {
    /// Somebody looks at every step's logits.
    Tap,
    /// A generation is on its way, or watched and to be judged now.
    Generation,
    /// A canary step is to run between two steps.
    Canary,
    /// The step runs beside its eager twin, or the audit has found a page that differs.
    Audit,
    /// The step runs op by op.
    Eager,
    /// A running request has prompt tokens to compute.
    Prefill,
    /// A grammar has to see a token before its request takes another.
    Grammar,
    /// A request of the queue can start.
    Admission,
    /// The pool has not a page for each running request's next token.
    Pages,
}

impl WaitReason {
    /// All of them.
    pub const ALL: [WaitReason; 9] = [
        WaitReason::Tap,
        WaitReason::Generation,
        WaitReason::Canary,
        WaitReason::Audit,
        WaitReason::Eager,
        WaitReason::Prefill,
        WaitReason::Grammar,
        WaitReason::Admission,
        WaitReason::Pages,
    ];

    /// The label's value in `/metrics`.
    pub const fn as_str(self) -> &'static str {
        match self {
            WaitReason::Tap => "tap",
            WaitReason::Generation => "generation",
            WaitReason::Canary => "canary",
            WaitReason::Audit => "audit",
            WaitReason::Eager => "eager",
            WaitReason::Prefill => "prefill",
            WaitReason::Grammar => "grammar",
            WaitReason::Admission => "admission",
            WaitReason::Pages => "pages",
        }
    }
}

/// Totals since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Steps, captured and eager.
    pub steps: u64,
    /// Of those, launched before the host had seen the tokens of the step before.
    pub pipelined_steps: u64,
    /// Steps in which every live row was a decode row.
    pub decode_steps: u64,
    /// Of those, how many replayed a captured bucket.
    pub decode_steps_captured: u64,
    /// Steps that held at least one prompt token.
    pub prefill_steps: u64,
    /// Of those, how many replayed a captured bucket.
    pub prefill_steps_captured: u64,
    /// Prompt tokens of admitted requests, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Prompt tokens computed (recomputed ones after a preemption too).
    pub prefill_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Drafted tokens that a step checked.
    pub drafted_tokens: u64,
    /// Of those, how many the model itself sampled there.
    pub accepted_tokens: u64,
    /// Decode rows that had no draft to check although drafts are on.
    pub undrafted_rows: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests cancelled by their client or an operator.
    pub cancelled: u64,
    /// Requests that ended because their own grammar could not be followed further.
    pub grammar_stopped: u64,
    /// Requests that ended badly otherwise.
    pub failed: u64,
    /// Requests refused because the queue was full.
    pub refused_queue_full: u64,
    /// Requests refused for any other reason.
    pub refused_other: u64,
    /// Times a running request was preempted.
    pub preemptions: u64,
    /// Pages dropped from the prefix cache to make room.
    pub evicted_pages: u64,
    /// Steps audited.
    pub audits: u64,
    /// Audits that found a difference.
    pub audit_mismatches: u64,
    /// Generations staged after the first.
    pub generations_staged: u64,
    /// Of those, rejected ones.
    pub generations_rejected: u64,
    /// Of those, retired ones.
    pub generations_retired: u64,
    /// Flips to a generation that had been staged.
    pub flips: u64,
    /// Flips back to a draining generation.
    pub rollbacks: u64,
    /// Of those, how many the audit asked for.
    pub rollbacks_by_audit: u64,
    /// Canary steps run to verify staged generations.
    pub canary_steps: u64,
    /// Times that a manifest was compared with what is bound.
    pub manifest_checks: u64,
    /// Of those, how many differed: the bucket left service.
    pub manifest_mismatches: u64,
}

/// What a process does wrong on purpose. Only a build with the feature `lab` of the binary has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabFault {
    /// The drill's name.
    pub drill: String,
    /// Steps in a million that it is meant to hit.
    pub per_million: u32,
    /// Steps that it has hit. Where a step has nothing that the fault could hit, it is left alone.
    pub strikes: u64,
    /// Steps of captured buckets so far, canary steps included.
    pub replays: u64,
}

/// A snapshot of the engine. Taken without stopping the step loop; its parts may be one step apart.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct EngineStatus {
    /// Whether it serves.
    pub health: Health,
    /// What it serves.
    pub model: ModelFacts,
    /// What it runs on.
    pub device: DeviceFacts,
    /// Since its start.
    pub uptime: Micros,
    /// Sequences that run.
    pub running: u32,
    /// Sequences that wait.
    pub queued: u32,
    /// Sequences of the last decode step; 0 before the first.
    pub decoded: u32,
    /// `max_running_requests`.
    pub running_max: u32,
    /// `max_queued_requests`.
    pub queued_max: u32,
    /// Most prompt tokens of one step.
    pub chunked_prefill_tokens: u32,
    /// The sub-pools; the first one's tokens are the capacity that admission uses.
    pub pools: Vec<SubPoolUse>,
    /// The live generation's number.
    pub generation: u64,
    /// Every generation that is remembered, ascending; the last [`GENERATIONS_KEPT`] ones.
    ///
    /// [`GENERATIONS_KEPT`]: crate::generation::GENERATIONS_KEPT
    pub generations: Vec<GenerationReport>,
    /// Device memory held by arenas now, and how many arenas and executables there are.
    pub arenas: ArenaUse,
    /// The live generation's buckets, ascending, with what ran through each since it was made.
    pub buckets: Vec<BucketUse>,
    /// Steps that ran eagerly, by reason; reasons that never happened may be absent.
    pub eager_steps: Vec<(EagerReason, u64)>,
    /// Steps that waited for the host, by reason; empty where no step is launched ahead.
    pub waited_steps: Vec<(WaitReason, u64)>,
    /// Totals.
    pub counters: Counters,
    /// What the audit did and found.
    pub audit: AuditUse,
    /// How long decode steps took, from the choice of the batch to its events.
    pub decode_step_times: Durations,
    /// The same of steps with prompt tokens.
    pub prefill_step_times: Durations,
    /// The generation for which steps are held, while the live one's place is given to it.
    pub held_for: Option<u64>,
    /// What is done wrong on purpose, in a lab build.
    pub lab: Option<LabFault>,
}

impl EngineStatus {
    /// The captured decode buckets' sizes, ascending.
    pub fn captured_decode_sizes(&self) -> Vec<u32> {
        let decode = |b: &&BucketUse| b.mode == BucketMode::Captured && b.key.is_decode();
        self.buckets.iter().filter(decode).map(|b| b.key.seqs).collect()
    }

    /// The report of a generation.
    pub fn generation_report(&self, number: u64) -> Option<&GenerationReport> {
        self.generations.iter().find(|g| g.number == number)
    }

    /// What to say about a generation that has no report: it was never there, or is forgotten.
    pub fn unknown_generation(&self, number: u64) -> GenerationError {
        let of = |r: Option<&GenerationReport>| r.map_or(0, |r| r.number);
        let (oldest, newest) = (of(self.generations.first()), of(self.generations.last()));
        GenerationError::Unknown { number, oldest, newest }
    }

    /// Tokens of KV that the pool holds.
    pub fn capacity_tokens(&self) -> u64 {
        self.pools.first().map_or(0, SubPoolUse::tokens_total)
    }

    /// The fullest sub-pool's usage, 0 to 1.
    pub fn token_usage(&self) -> f64 {
        self.pools.iter().map(SubPoolUse::usage).fold(0.0, f64::max)
    }

    /// The same without the pages of canary steps, which no request has to wait for.
    pub fn requests_usage(&self) -> f64 {
        let of = |p: &SubPoolUse| {
            let pages_used = p.pages_used.saturating_sub(p.pages_canary);
            SubPoolUse { pages_used, ..p.clone() }.usage()
        };
        self.pools.iter().map(of).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_the_fullest_sub_pools() {
        let pool = |used| SubPoolUse {
            name: "full".into(),
            page_tokens: 32,
            pages_total: 10,
            pages_used: used,
            pages_canary: 0,
            pages_cached: 0,
            tokens_used: 0,
            bytes_total: 0,
        };
        assert_eq!(pool(0).tokens_total(), 320);
        assert_eq!([pool(1), pool(5)].iter().map(SubPoolUse::usage).fold(0.0, f64::max), 0.5);
        assert_eq!(SubPoolUse { pages_total: 0, ..pool(0) }.usage(), 0.0);
    }
}
