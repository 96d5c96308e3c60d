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

/// Walks the ops in program order and keeps, for every piece of the buffer, only those uses that
/// no later use covers: the last write, and the reads since. An access that is ordered after a
/// covering use is ordered after what that use covered, so every unordered pair shows as an
/// unordered pair with the front, and the work stays near linear in the uses.
fn within_step(plan: &StepPlan, order: &Order, uses: &[Use], out: &mut Findings) {
    let pieces = Pieces::new(uses);
    let mut fronts: Vec<Vec<Use>> = vec![Vec::new(); pieces.len()];
    let mut reported = HashSet::new();
    for of_op in uses.chunk_by(|a, b| a.op == b.op) {
        // All of an op's uses are compared before any of them covers anything: one that comes
        // after its programmatic wait must not hide what one before the wait runs beside.
        for new in of_op {
            for piece in pieces.of(*new) {
                for old in &fronts[piece] {
                    out.pairs += 1;
                    let conflict = old.write || new.write;
                    if conflict
                        && !order.before(old.op, new.op, new.before_wait)
                        && reported.insert((old.op, new.op))
                    {
                        out.push(in_step_hazard(plan, *old, *new));
                    }
                }
            }
        }
        for new in of_op {
            for piece in pieces.of(*new) {
                fronts[piece].retain(|old| {
                    let ordered = old.op == new.op || order.before(old.op, new.op, new.before_wait);
                    !(ordered && (new.write || !old.write))
                });
                fronts[piece].push(*new);
            }
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
