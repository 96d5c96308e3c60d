//! Accesses by buffer: the form in which races, lifetimes and definedness are judged.

use crate::hazard::{Hazard, Rule, Touch};
use crate::order::Order;
use crate::{Access, OpId, StepPlan};

/// Hazards kept of one rule; a plan that breaks a rule a thousand times has one cause.
const HAZARDS_PER_RULE_MAX: usize = 256;

/// One access of an op, of at least one byte.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub op: OpId,
    pub write: bool,
    pub before_wait: bool,
    pub lo: u64,
    pub hi: u64,
    /// Index among the op's reads or writes.
    pub index: u32,
}

impl Use {
    pub(crate) fn access(self, plan: &StepPlan) -> &Access {
        let op = plan.op(self.op);
        if self.write { &op.writes[self.index as usize] } else { &op.reads[self.index as usize] }
    }

    pub(crate) fn touch(self, plan: &StepPlan) -> Touch {
        Touch::new(plan, self.op, self.write, self.access(plan))
    }
}

/// Uses of every buffer in program order; of one op, reads before writes.
pub(crate) fn by_buffer(plan: &StepPlan, order: &Order) -> Vec<Vec<Use>> {
    let mut uses: Vec<Vec<Use>> = vec![Vec::new(); plan.buffers.len()];
    for op in plan.op_ids() {
        let o = plan.op(op);
        for (list, write) in [(&o.reads, false), (&o.writes, true)] {
            for (i, access) in list.iter().enumerate() {
                let (lo, hi) = match access {
                    Access::Static { span, .. } => (span.offset, span.end()),
                    Access::Indexed { buffer, .. } => (0, plan.buffer(*buffer).bytes),
                };
                if lo < hi {
                    let before_wait = order.is_before_wait(op, write, i);
                    let index = i as u32;
                    let u = Use { op, write, before_wait, lo, hi, index };
                    uses[access.buffer().index()].push(u);
                }
            }
        }
    }
    uses
}

/// The buffer's bytes cut wherever a use begins or ends: within a piece, uses are all or nothing.
pub(crate) struct Pieces {
    cuts: Vec<u64>,
}

impl Pieces {
    pub(crate) fn new(uses: &[Use]) -> Pieces {
        let mut cuts: Vec<u64> = uses.iter().flat_map(|u| [u.lo, u.hi]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        Pieces { cuts }
    }

    pub(crate) fn len(&self) -> usize {
        self.cuts.len().saturating_sub(1)
    }

    pub(crate) fn of(&self, u: Use) -> core::ops::Range<usize> {
        let at = |byte| self.cuts.partition_point(|c| *c < byte);
        at(u.lo)..at(u.hi)
    }

    pub(crate) fn bytes(&self, piece: usize) -> core::ops::Range<u64> {
        self.cuts[piece]..self.cuts[piece + 1]
    }
}

/// Where the rules put what they find, and what they count.
#[derive(Default)]
pub(crate) struct Findings {
    pub hazards: Vec<Hazard>,
    counts: [usize; Rule::ALL.len()],
    /// Pairs of accesses or buffers compared.
    pub pairs: u64,
}

impl Findings {
    pub(crate) fn push(&mut self, hazard: Hazard) {
        let count = &mut self.counts[hazard.rule() as usize];
        *count += 1;
        if *count <= HAZARDS_PER_RULE_MAX {
            self.hazards.push(hazard);
        }
    }
}
