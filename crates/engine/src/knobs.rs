//! The engine's knobs as plain numbers, taken from the registry in `flow`.

use lockstep_flow::{AuditPart, Micros, OnMismatch};
use lockstep_plan::KvDtype;

/// What the engine is told (see `lockstep_flow::knobs::KNOBS` for meaning and bounds).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// `decode.graph-max-bs`.
    pub graph_max_bs: u32,
    /// `sched.max-running-requests`.
    pub running_max: u32,
    /// `sched.max-queued-requests`.
    pub queued_max: u32,
    /// `sched.chunked-prefill-size`, in tokens.
    pub chunk_tokens: u32,
    /// `sched.prefix-cache`.
    pub prefix_cache: bool,
    /// `pool.kv-memory`, in bytes.
    pub kv_bytes: u64,
    /// `pool.kv-dtype`; `None` is auto.
    pub kv_dtype: Option<KvDtype>,
    /// `decode.lanes`.
    pub lanes: u32,
    /// `model.context-length`, in tokens; 0 is the model's own.
    pub context_tokens: u32,
    /// `audit.rate`: one step in this many; 0 is off.
    pub audit_rate: u32,
    /// `audit.on-mismatch`.
    pub on_mismatch: OnMismatch,
    /// How long a digest that was found true counts before its page is compared again where it is
    /// read or swept; a pass over the weights takes twice as long at least. Zero: never.
    pub audit_proof_age: Micros,
    /// Which parts of the audit are on, in the order of [`AuditPart::ALL`]: a drill asks each
    /// alone.
    pub audit_parts: [bool; AuditPart::ALL.len()],
    /// Every step op by op (tests and the isolation ladder).
    pub eager: bool,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            graph_max_bs: 32,
            running_max: 256,
            queued_max: 1024,
            chunk_tokens: 512,
            prefix_cache: true,
            kv_bytes: 1 << 30,
            kv_dtype: None,
            lanes: 8,
            context_tokens: 0,
            audit_rate: 1000,
            on_mismatch: OnMismatch::Quarantine,
            audit_proof_age: Micros::from_millis(30_000),
            audit_parts: [true; AuditPart::ALL.len()],
            eager: false,
        }
    }
}
