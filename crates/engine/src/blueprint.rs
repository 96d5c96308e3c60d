//! What a generation is before any device has it: knobs, shapes, proven plans, digests.

use crate::Knobs;
use crate::generation::{Io, ProvenBucket};
use lockstep_device::Mode;
use lockstep_flow::generation::{BucketEvidence, GenerationDigests};
use lockstep_model::PlanShape;
use lockstep_plan::{BufferKind, Digest, Proven};

/// See the module.
#[derive(Debug)]
pub struct Blueprint {
    /// 1 for the first.
    pub number: u64,
    /// Its knobs.
    pub knobs: Knobs,
    /// Shapes of its plans.
    pub shape: PlanShape,
    /// Its plans: decode ascending, then prefill ascending, then echo.
    pub proven: Vec<ProvenBucket>,
    /// Inputs and outputs of each plan.
    pub io: Vec<Io>,
    /// What it is.
    pub digests: GenerationDigests,
}

impl Blueprint {
    /// Takes digests of what was proven. `weights` is the weights' own.
    pub fn new(
        number: u64,
        knobs: Knobs,
        shape: PlanShape,
        proven: Vec<ProvenBucket>,
        weights: &str,
    ) -> Blueprint {
        let plans: Vec<Digest> = proven.iter().map(|b| b.proven.digest()).collect();
        let digests = GenerationDigests {
            plans: Digest::of(&plans).to_string(),
            state_layout: state_layout(&proven).to_string(),
            numerics: numerics(&proven).to_string(),
            weights: weights.into(),
        };
        let io = proven.iter().map(|b| Io::of(b.proven.plan())).collect();
        Blueprint { number, knobs, shape, proven, io, digests }
    }

    /// Its plans, in order.
    pub fn plans(&self) -> Vec<&Proven> {
        self.proven.iter().map(|b| b.proven.as_ref()).collect()
    }

    /// Bytes of the arena that its buckets share.
    pub fn arena_bytes(&self) -> u64 {
        self.proven.iter().map(|b| b.proven.packing().arena_bytes()).max().unwrap_or(0)
    }

    /// Bytes of the arena of the audit's twins.
    pub fn shadow_bytes(&self) -> u64 {
        if self.knobs.audit_rate > 0 { self.arena_bytes() } else { 0 }
    }

    /// Its buckets, largest arena first: the order of capture.
    pub fn capture_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.proven.len()).collect();
        let bytes = |i: &usize| self.proven[*i].proven.packing().arena_bytes();
        order.sort_by_key(|i| core::cmp::Reverse(bytes(i)));
        order
    }

    /// What its proofs say of each bucket.
    pub fn evidence(&self) -> Vec<BucketEvidence> {
        let of = |b: &ProvenBucket| BucketEvidence {
            arena_bytes: b.proven.packing().arena_bytes(),
            ops: b.proven.counts().ops as u32,
            proof_pairs: b.proven.counts().pairs,
            ..BucketEvidence::none(b.key, b.mode == Mode::Captured)
        };
        self.proven.iter().map(of).collect()
    }
}

/// Names, kinds and bytes of all state.
fn state_layout(proven: &[ProvenBucket]) -> Digest {
    let mut all: Vec<(&str, u64, BufferKind)> = proven
        .iter()
        .flat_map(|b| &b.proven.plan().buffers)
        .filter(|b| matches!(b.kind, BufferKind::State(_)))
        .map(|b| (b.name.as_str(), b.bytes, b.kind))
        .collect();
    all.sort_by_key(|(name, bytes, _)| (*name, *bytes));
    all.dedup();
    Digest::of(&all)
}

/// Kernels in program order, the same in every bucket, and the formats that they read: weights and
/// state by name.
fn numerics(proven: &[ProvenBucket]) -> Digest {
    let mut kernels: Vec<Vec<(&str, &str)>> = proven
        .iter()
        .map(|b| {
            let ops = b.proven.plan().ops.iter().filter(|op| !op.kind.is_host());
            ops.map(|op| (op.name.as_str(), op.kind.kernel())).collect()
        })
        .collect();
    kernels.sort();
    kernels.dedup();
    let bound = |k: BufferKind| matches!(k, BufferKind::Weight | BufferKind::State(_));
    let mut formats: Vec<(&str, lockstep_plan::Elem)> = proven
        .iter()
        .flat_map(|b| &b.proven.plan().buffers)
        .filter(|b| bound(b.kind))
        .map(|b| (b.name.as_str(), b.elem))
        .collect();
    formats.sort_by_key(|(name, _)| *name);
    formats.dedup();
    Digest::of(&(kernels, formats))
}
