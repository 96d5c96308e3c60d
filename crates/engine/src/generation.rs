//! A generation: one complete, immutable set of executables.
//!
//! The first one goes from Sealed to Live; every other one is staged ([`crate::yard`]) and has to
//! be Verified before it serves.

use crate::blueprint::Blueprint;
use crate::counters::BucketCounters;
use crate::draft::{Draft, Packed};
use crate::{EngineError, Knobs};
use lockstep_device::{ArenaId, Device, ExecId, Mode};
use lockstep_flow::limits::DRAFTS_MAX;
use lockstep_flow::{BucketKey, decode_ladder};
use lockstep_model::{Model, PlanShape};
use lockstep_plan::{
    Arenas, Backend, BufferId, InOutBytes, LIVE_COUNTS, Proven, StepPlan, prove, prove_any_order,
};
use std::sync::Arc;

/// A proven plan of one bucket.
#[derive(Clone, Debug)]
pub struct ProvenBucket {
    /// Its shape.
    pub key: BucketKey,
    /// Whether it is to be captured.
    pub mode: Mode,
    /// Plan, packing and proof.
    pub proven: Arc<Proven>,
}

/// Inputs and outputs of a plan, looked up once.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// `[T]`.
    pub token_source: BufferId,
    /// `[T]`.
    pub token_seq: BufferId,
    /// `[T]`.
    pub positions: BufferId,
    /// `[T]`.
    pub write_slots: BufferId,
    /// `[S]`.
    pub seq_slots: BufferId,
    /// `[S][pages_per_seq_max]`.
    pub block_table: BufferId,
    /// `[R]`.
    pub logit_rows: BufferId,
    /// `[R]`.
    pub logit_slots: BufferId,
    /// `[R]`.
    pub params: BufferId,
    /// `[R][ceil(vocab / 32)]`.
    pub masks: BufferId,
    /// `[R][LOGIT_BIAS_MAX]`.
    pub bias: BufferId,
    /// Three words.
    pub live_counts: BufferId,
    /// `[R]`.
    pub results: BufferId,
    /// `[R][vocab]`, a transient that stays whole until the next step.
    pub logits: BufferId,
    /// `[R]`, one for each token drafted of a sequence.
    pub drafts: [Option<BufferId>; DRAFTS_MAX as usize],
    /// `[R][vocab]`: logits of the last of those, which stay whole too.
    pub draft_logits: Option<BufferId>,
}

/// An executable bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Its shape.
    pub key: BucketKey,
    /// How its steps run.
    pub mode: Mode,
    /// The executable.
    pub exec: ExecId,
    /// The same plan in the shadow arena, for the audit; captured buckets have one where the audit
    /// is on.
    pub twin: Option<ExecId>,
    /// The audit took it out of service: it runs eagerly until a new generation replaces it.
    pub quarantined: bool,
    /// Its manifest was compared since its generation became live.
    pub checked: bool,
    /// Where its inputs and outputs are.
    pub io: Io,
    /// Plan, packing and proof.
    pub proven: Arc<Proven>,
}

/// All buckets of a generation.
#[derive(Debug)]
pub struct Generation {
    /// Knobs, shapes, plans and proofs.
    pub blueprint: Arc<Blueprint>,
    /// Its arena, shared by all buckets, which never run at the same time.
    pub arena: ArenaId,
    /// The arena of the audit's twins.
    pub shadow: Option<ArenaId>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Buckets: decode ascending, then prefill ascending, then echo.
    pub buckets: Vec<Bucket>,
    /// What ran through each, while the step loop does not count it itself.
    pub counters: Vec<BucketCounters>,
    /// Every bucket has shown that it gives the same bits as replay and op by op.
    pub verified: bool,
    /// The bucket whose manifest is compared next.
    pub check_next: usize,
}

impl Generation {
    /// Puts together what the device has: `execs` are executables and twins by bucket.
    pub fn new(
        blueprint: Arc<Blueprint>,
        (arena, shadow): (ArenaId, Option<ArenaId>),
        execs: &[(ExecId, Option<ExecId>)],
    ) -> Generation {
        let buckets: Vec<Bucket> = blueprint
            .proven
            .iter()
            .zip(&blueprint.io)
            .zip(execs)
            .map(|((b, &io), &(exec, twin))| Bucket {
                key: b.key,
                mode: b.mode,
                exec,
                twin,
                quarantined: false,
                checked: false,
                io,
                proven: b.proven.clone(),
            })
            .collect();
        Generation {
            arena,
            shadow,
            arena_bytes: blueprint.arena_bytes(),
            counters: vec![BucketCounters::default(); buckets.len()],
            buckets,
            blueprint,
            verified: false,
            check_next: 0,
        }
    }

    /// 1 for the first.
    pub fn number(&self) -> u64 {
        self.blueprint.number
    }

    /// Shapes of its buckets.
    pub fn keys(&self) -> Vec<BucketKey> {
        self.buckets.iter().map(|b| b.key).collect()
    }

    /// Steps, and how many of them were replays, by what `counters` say.
    pub fn steps(counters: &[BucketCounters]) -> (u64, u64) {
        let replays: u64 = counters.iter().map(|c| c.replays).sum();
        let eager: u64 = counters.iter().map(|c| c.eager_steps).sum();
        (replays + eager, replays)
    }
}

/// The bucket keys of a generation, with how each is to run.
///
/// Decode runs from 1 to `running_max`, captured up to `graph_max_bs`, and where drafts are made
/// every such bucket has one beside it that checks them. Prefill and mixed steps take T from a
/// short ladder with room for every running sequence (and its drafts); echo buckets have a logit
/// row for every token.
pub fn ladder(knobs: &Knobs) -> Vec<(BucketKey, Mode)> {
    let mut keys = Vec::new();
    let captured = knobs.graph_max_bs.min(knobs.running_max);
    let mut decode = decode_ladder(captured);
    decode.extend(decode_ladder(knobs.running_max).into_iter().filter(|n| *n > captured));
    for n in decode {
        let mode = if n <= captured { Mode::Captured } else { Mode::Eager };
        keys.push((BucketKey::decode(n), mode));
        if knobs.drafts > 0 {
            keys.push((BucketKey::verify(n, knobs.drafts), mode));
        }
    }
    let seqs = knobs.running_max;
    let rows = BucketKey::verify(seqs, knobs.drafts).logit_rows;
    for tokens in prefill_ladder(knobs.chunk_tokens, rows) {
        keys.push((BucketKey { tokens, seqs, logit_rows: rows }, Mode::Captured));
    }
    let echo = ECHO_TOKENS.min(knobs.chunk_tokens) + rows;
    keys.push((BucketKey { tokens: echo, seqs, logit_rows: echo }, Mode::Captured));
    keys
}

/// Prompt tokens of a step that reports the prompt's log-probabilities: logits of every token
/// cost `vocab * 4` bytes each.
pub const ECHO_TOKENS: u32 = 64;

/// Token slots of prefill and mixed steps: the chunk, quarters of it, and room for `rows` tokens
/// of decoding sequences beside each.
fn prefill_ladder(chunk: u32, rows: u32) -> Vec<u32> {
    let mut ladder = vec![chunk + rows];
    let mut t = chunk;
    while t > 64 {
        t /= 4;
        ladder.push(t + rows);
    }
    ladder.reverse();
    ladder.dedup();
    ladder
}

/// Builds, packs and proves the plans of all buckets. Needs sizes only, no device memory.
///
/// # Errors
/// What the prover refuses, with every hazard.
pub fn prove_all(
    model: &Model,
    backend: &dyn Backend,
    shape: &PlanShape,
    keys: &[(BucketKey, Mode)],
) -> Result<Vec<ProvenBucket>, EngineError> {
    prove_drafts(model, backend, shape, keys, (&Packed, 1))
}

/// As [`prove_all`], with the plans of a numbered generation as `draft` makes them.
pub fn prove_drafts(
    model: &Model,
    backend: &dyn Backend,
    shape: &PlanShape,
    keys: &[(BucketKey, Mode)],
    (draft, number): (&dyn Draft, u64),
) -> Result<Vec<ProvenBucket>, EngineError> {
    let plan = |&(key, mode)| Ok((mode, model.plan(backend, shape, key)?));
    let plans = keys.iter().map(plan).collect::<Result<Vec<_>, EngineError>>()?;
    let io = plans.iter().map(|(_, plan)| InOutBytes::of(plan));
    let room = io.fold(InOutBytes::default(), InOutBytes::join);
    let proven = plans
        .into_iter()
        .map(|(mode, plan)| {
            let key = plan.bucket;
            let (plan, packing) = draft.draft(number, plan, room);
            let proven = prove(plan, packing)
                .map_err(|hazards| EngineError::Refused { bucket: key, hazards })?;
            Ok(ProvenBucket { key, mode, proven: Arc::new(proven) })
        })
        .collect::<Result<Vec<_>, EngineError>>()?;
    prove_order(&proven)?;
    Ok(proven)
}

/// Proves that steps of the buckets may follow each other in any order in their shared arena.
fn prove_order(proven: &[ProvenBucket]) -> Result<(), EngineError> {
    let plans: Vec<&Proven> = proven.iter().map(|b| b.proven.as_ref()).collect();
    let bucket = proven[0].key;
    prove_any_order(&plans, Arenas::Shared)
        .map_err(|hazards| EngineError::Refused { bucket, hazards })?;
    Ok(())
}

/// Puts proven buckets on the device: arena, capture (largest first), seal.
pub fn capture_all(
    device: &mut dyn Device,
    blueprint: Arc<Blueprint>,
) -> Result<Generation, EngineError> {
    let (bytes, shadow_bytes) = (blueprint.arena_bytes(), blueprint.shadow_bytes());
    let arena = device.arena(bytes)?;
    let shadow = if shadow_bytes > 0 { Some(device.arena(shadow_bytes)?) } else { None };
    let mut execs = vec![None; blueprint.proven.len()];
    for i in blueprint.capture_order() {
        let ProvenBucket { mode, proven, .. } = &blueprint.proven[i];
        let exec = device.capture(proven, arena)?;
        device.seal(exec)?;
        let twin = match shadow.filter(|_| *mode == Mode::Captured) {
            None => None,
            Some(shadow) => {
                let twin = device.capture(proven, shadow)?;
                device.seal(twin)?;
                Some(twin)
            }
        };
        execs[i] = Some((exec, twin));
    }
    let execs: Vec<_> = execs.into_iter().flatten().collect();
    assert_eq!(execs.len(), blueprint.proven.len(), "every bucket was captured");
    Ok(Generation::new(blueprint, (arena, shadow), &execs))
}

impl Io {
    /// Looks every name up.
    pub fn of(plan: &StepPlan) -> Io {
        let find = |name: &str| {
            plan.find(name).unwrap_or_else(|| panic!("every plan has the buffer {name}"))
        };
        let drafts: [_; DRAFTS_MAX as usize] =
            core::array::from_fn(|i| plan.find(&format!("drafts.{i}")));
        let count = drafts.iter().flatten().count();
        Io {
            token_source: find("token_source"),
            token_seq: find("token_seq"),
            positions: find("positions"),
            write_slots: find("write_slots"),
            seq_slots: find("seq_slots"),
            block_table: find("block_table"),
            logit_rows: find("logit_rows"),
            logit_slots: find("logit_slots"),
            params: find("sample_params"),
            masks: find("masks"),
            bias: find("logit_bias"),
            live_counts: find(LIVE_COUNTS),
            results: find("results"),
            logits: find("logits"),
            drafts,
            draft_logits: plan.find(&format!("draft_logits.{}", count.wrapping_sub(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knobs(graph_max_bs: u32, running_max: u32) -> Knobs {
        Knobs { graph_max_bs, running_max, ..Knobs::default() }
    }

    #[test]
    fn the_ladder_of_32_captures_8_buckets_and_runs_to_the_running_limit() {
        let keys = ladder(&knobs(32, 256));
        let decode: Vec<_> = keys.iter().filter(|(k, _)| k.is_decode()).collect();
        let captured: Vec<u32> =
            decode.iter().filter(|(_, m)| *m == Mode::Captured).map(|(k, _)| k.seqs).collect();
        assert_eq!(captured, [1, 2, 4, 8, 12, 16, 24, 32]);
        assert_eq!(decode.last().unwrap().0.seqs, 256);
    }

    #[test]
    fn every_mixed_step_has_a_bucket() {
        for running in [1, 3, 16, 256] {
            let k = knobs(16, running);
            let keys = ladder(&k);
            let fits = |t, s, r| keys.iter().any(|(b, _)| b.holds(t, s, r));
            assert!(fits(k.chunk_tokens + running - 1, running, running));
            assert!(fits(running, running, running));
        }
    }
}
