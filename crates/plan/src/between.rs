//! What is between two ops: the question about one pair.

use crate::hazard::{Fault, Hazard, When};
use crate::order::Order;
use crate::uses::{self, Use};
use crate::{BufferId, Edge, EdgeKind, OpId, Packing, StepPlan, structure};
use core::ops::Range;

/// Every clash of two ops: bytes that both touch, at least one of them writing, in one buffer or in
/// two that share them by `packing`, with nothing that orders the two accesses. Where `second`
/// stands before `first` in the plan, it is `second` of the next step.
///
/// [`crate::prove`] compares an access with the last ones before it, gives the bytes of the arena
/// to one owner after the other, and keeps the first 256 hazards of a rule: enough to refuse every
/// wrong plan, not to name every wrong pair of it. This names the pair that is asked for. A plan
/// whose structure is wrong has its hazards of structure instead.
pub fn hazards_between(
    plan: &StepPlan,
    packing: &Packing,
    first: OpId,
    second: OpId,
) -> Vec<Hazard> {
    let hazards = structure::check(plan);
    if !hazards.is_empty() || first == second {
        return hazards;
    }
    let order = Order::new(plan);
    let all = uses::by_buffer(plan, &order);
    let of = |op: OpId| {
        let all = all.iter().enumerate();
        let each = all.flat_map(|(b, uses)| uses.iter().map(move |u| (BufferId(b as u32), *u)));
        each.filter(move |(_, u)| u.op == op)
    };
    let pairs = of(first).flat_map(|old| of(second).map(move |new| (old, new)));
    pairs.filter_map(|(old, new)| clash(plan, packing, &order, old, new)).collect()
}

fn clash(
    plan: &StepPlan,
    packing: &Packing,
    order: &Order,
    (x, old): (BufferId, Use),
    (y, new): (BufferId, Use),
) -> Option<Hazard> {
    let (next, when, kind) = match old.op < new.op {
        true => (false, When::ThisStep, EdgeKind::Event),
        false => (true, When::NextStep, EdgeKind::NextStep),
    };
    let before = if next { Order::before_next } else { Order::before };
    if before(order, old.op, new.op, new.before_wait) || !(old.write || new.write) {
        return None;
    }
    let (first, mut second) = (old.touch(plan), new.touch(plan));
    second.when = when;
    let fault = if x == y {
        let bytes = common(old.lo..old.hi, new.lo..new.hi)?;
        Fault::Race { first, second, bytes }
    } else {
        let place = |b, u: Use| packing.offset(b).map(|at| at + u.lo..at + u.hi);
        Fault::Aliasing { first, second, arena: common(place(x, old)?, place(y, new)?)? }
    };
    Some(Hazard { fault, missing: Some(Edge { from: old.op, to: new.op, kind }) })
}

fn common(a: Range<u64>, b: Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}
