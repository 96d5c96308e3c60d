//! Races: conflicting accesses that nothing orders, within a step and from one to the next.

use crate::hazard::{Fault, Hazard, When};
use crate::order::Order;
use crate::uses::{Findings, Pieces, Use};
use crate::{Edge, EdgeKind, LaneId, StepPlan};
use std::collections::HashSet;

/// Checks every buffer.
pub(crate) fn check(plan: &StepPlan, order: &Order, uses: &[Vec<Use>], out: &mut Findings) {
    for uses in uses.iter().filter(|u| u.iter().any(|u| u.write)) {
        within_step(plan, order, uses, out);
        to_next_step(plan, order, uses, out);
    }
}

/// Walks the uses in program order and keeps, for every piece of the buffer, only those that no
/// later use covers: the last write, and the reads since. An access that is ordered after a
/// covering use is ordered after what that use covered, so every unordered pair shows as an
/// unordered pair with the front, and the work stays near linear in the uses.
fn within_step(plan: &StepPlan, order: &Order, uses: &[Use], out: &mut Findings) {
    let pieces = Pieces::new(uses);
    let mut fronts: Vec<Vec<u32>> = vec![Vec::new(); pieces.len()];
    let mut reported = HashSet::new();
    for (i, &new) in uses.iter().enumerate() {
        for piece in pieces.of(new) {
            let front = &mut fronts[piece];
            front.retain(|&old| {
                let old = uses[old as usize];
                let same_op = old.op == new.op;
                let ordered = same_op || order.before(old.op, new.op, new.before_wait);
                out.pairs += 1;
                let conflict = old.write || new.write;
                if conflict && !ordered && reported.insert((old.op, new.op)) {
                    out.push(in_step_hazard(plan, old, new));
                }
                let covered = ordered && (new.write || !old.write);
                !covered
            });
            front.push(i as u32);
        }
    }
}

fn in_step_hazard(plan: &StepPlan, old: Use, new: Use) -> Hazard {
    let (first, second) = (old.touch(plan), new.touch(plan));
    let bytes = old.lo.max(new.lo)..old.hi.min(new.hi);
    let missing = Some(Edge { from: old.op, to: new.op, kind: EdgeKind::Event });
    Hazard { fault: Fault::Race { first, second, bytes }, missing }
}

/// Device lanes of consecutive steps are ordered; what the host touches is compared with every
/// use a step later and a step earlier.
fn to_next_step(plan: &StepPlan, order: &Order, uses: &[Use], out: &mut Findings) {
    let mut reported = HashSet::new();
    let mut pair = |earlier: Use, later: Use, out: &mut Findings| {
        let bytes = earlier.lo.max(later.lo)..earlier.hi.min(later.hi);
        if !(earlier.write || later.write) || bytes.is_empty() {
            return;
        }
        out.pairs += 1;
        if !order.before_next(earlier.op, later.op, later.before_wait)
            && reported.insert((earlier.op, later.op))
        {
            let (first, mut second) = (earlier.touch(plan), later.touch(plan));
            second.when = When::NextStep;
            let edge = Edge { from: earlier.op, to: later.op, kind: EdgeKind::NextStep };
            let fault = Fault::Race { first, second, bytes };
            out.push(Hazard { fault, missing: Some(edge) });
        }
    };
    for &host in uses.iter().filter(|u| plan.op(u.op).lane == LaneId::HOST) {
        let before = out.hazards.len();
        for &other in uses.iter().filter(|u| u.op != host.op) {
            pair(host, other, out);
            pair(other, host, out);
        }
        // What keeps an op from overtaking itself is mostly somebody else, who is then named.
        if out.hazards.len() == before {
            pair(host, host, out);
        }
    }
}
