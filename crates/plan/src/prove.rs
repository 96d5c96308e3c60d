//! `prove`: contract 2, checked. The only door from a plan to something executable.

use crate::order::Order;
use crate::uses::{self, Findings};
use crate::{
    Digest, Hazard, Obligation, Packing, StepPlan, alias, defined, race, rules, structure,
};

/// What a proof looked at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ProofCounts {
    /// Ops of the plan.
    pub ops: u64,
    /// Lanes, the host's included.
    pub lanes: u64,
    /// Buffers.
    pub buffers: u64,
    /// Edges.
    pub edges: u64,
    /// Clocks joined to recompute happens-before over two steps.
    pub clock_joins: u64,
    /// Pairs of accesses or of buffers that were compared.
    pub pairs: u64,
}

/// A plan and its packing that keep contract 2. Only [`prove`] makes one, so whoever holds one
/// holds a proof:
///
/// ```compile_fail
/// use lockstep_plan::{Packing, Proven, StepPlan};
/// fn forge(plan: StepPlan, packing: Packing) -> Proven {
///     Proven { plan, packing, obligations: Vec::new(), counts: Default::default() }
/// }
/// ```
///
/// and what was proven cannot be changed afterwards:
///
/// ```compile_fail
/// fn tamper(proven: &mut lockstep_plan::Proven) {
///     proven.plan().edges.clear();
/// }
/// ```
///
/// ```
/// fn read(proven: &lockstep_plan::Proven) -> usize {
///     proven.plan().edges.len()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Proven {
    plan: StepPlan,
    packing: Packing,
    obligations: Vec<Obligation>,
    counts: ProofCounts,
    digest: Digest,
}

impl Proven {
    /// The plan.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Where its buffers lie.
    pub fn packing(&self) -> &Packing {
        &self.packing
    }

    /// What every step's lease has to vouch for.
    pub fn obligations(&self) -> &[Obligation] {
        &self.obligations
    }

    /// What the proof looked at.
    pub fn counts(&self) -> &ProofCounts {
        &self.counts
    }

    /// Of plan and packing.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// Proves that every replay of `plan`, placed by `packing`, keeps contract 2 whatever the timing
/// of its lanes, and in any number of steps one after the other. Happens-before is recomputed
/// from lanes and edges; how the edges came about does not matter.
///
/// An indexed access counts as one of the whole buffer, so that two ops that touch different
/// pages of one buffer must be ordered; and bytes of the arena may pass from one transient to
/// another once a step, not back and forth. Both refuse more than they must, and nothing else
/// does.
///
/// # Errors
/// Every reason to refuse it, the first 256 of each rule.
pub fn prove(plan: StepPlan, packing: Packing) -> Result<Proven, Vec<Hazard>> {
    let hazards = structure::check(&plan);
    if !hazards.is_empty() {
        return Err(hazards);
    }
    let order = Order::new(&plan);
    let uses = uses::by_buffer(&plan, &order);
    let mut findings = Findings::default();
    race::check(&plan, &order, &uses, &mut findings);
    alias::check(&plan, &order, &uses, &packing, &mut findings);
    defined::check(&plan, &order, &uses, &mut findings);
    let obligations = rules::check(&plan, &mut findings);
    if !findings.hazards.is_empty() {
        return Err(findings.hazards);
    }
    let counts = ProofCounts {
        ops: plan.ops.len() as u64,
        lanes: plan.lanes.len() as u64,
        buffers: plan.buffers.len() as u64,
        edges: plan.edges.len() as u64,
        clock_joins: order.joins,
        pairs: findings.pairs,
    };
    let digest = Digest::of(&(&plan, packing.offsets(), packing.arena_bytes()));
    Ok(Proven { plan, packing, obligations, counts, digest })
}
