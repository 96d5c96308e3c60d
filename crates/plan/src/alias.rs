//! Aliasing: bytes of the arena change hands only along the partial order.

use crate::hazard::{Fault, Hazard};
use crate::order::Order;
use crate::uses::{Findings, Use};
use crate::{BufferId, BufferKind, Edge, EdgeKind, Packing, StepPlan};
use std::collections::BTreeMap;

/// When each transient lives, in the partial order.
pub(crate) struct Lifetimes {
    lanes: usize,
    /// Per buffer and lane: how many of the lane's first ops must have ended for it to be dead.
    last_use: Vec<u32>,
    /// Per buffer and lane: how many of the lane's first ops have ended before any of its writers.
    first_write: Vec<u32>,
    /// Per buffer: its first writer in program order; none for what is never written.
    pub(crate) first_writer: Vec<Option<u32>>,
}

impl Lifetimes {
    pub(crate) fn new(plan: &StepPlan, order: &Order, uses: &[Vec<Use>]) -> Lifetimes {
        let lanes = plan.lanes.len();
        let n = plan.buffers.len();
        let mut last_use = vec![0; n * lanes];
        let mut first_write = vec![u32::MAX; n * lanes];
        let mut first_writer = vec![None; n];
        for (b, uses) in uses.iter().enumerate() {
            for u in uses {
                let (lane, rank) = order.place(u.op);
                let at = &mut last_use[b * lanes + lane];
                *at = (*at).max(rank + 1);
                if u.write {
                    first_writer[b].get_or_insert(u.op.0);
                    let clock = order.clock(u.op, u.before_wait);
                    for (f, c) in first_write[b * lanes..].iter_mut().zip(clock) {
                        *f = (*f).min(*c);
                    }
                }
            }
        }
        Lifetimes { lanes, last_use, first_write, first_writer }
    }

    /// True where every use of `a` ends before any write of `b` may begin.
    pub(crate) fn precedes(&self, a: usize, b: usize) -> bool {
        let at = |x: usize| x * self.lanes..(x + 1) * self.lanes;
        self.last_use[at(a)].iter().zip(&self.first_write[at(b)]).all(|(last, first)| last <= first)
    }
}

/// Checks that every buffer of the arena has a place and keeps it as long as it lives.
pub(crate) fn check(
    plan: &StepPlan,
    order: &Order,
    uses: &[Vec<Use>],
    packing: &Packing,
    out: &mut Findings,
) {
    let before = out.hazards.len();
    placement(plan, packing, out);
    if out.hazards.len() == before {
        sharing(plan, order, uses, packing, out);
    }
}

fn placement(plan: &StepPlan, packing: &Packing, out: &mut Findings) {
    for id in plan.buffer_ids() {
        let b = plan.buffer(id);
        let buffer = || b.name.clone();
        match packing.offset(id) {
            None if b.kind.in_arena() => {
                out.push(Hazard::new(Fault::Placement { buffer: buffer(), placed: false }));
            }
            Some(_) if !b.kind.in_arena() => {
                out.push(Hazard::new(Fault::Placement { buffer: buffer(), placed: true }));
            }
            Some(offset) => {
                if offset % u64::from(b.align) != 0 {
                    let (buffer, align) = (buffer(), b.align);
                    out.push(Hazard::new(Fault::Misaligned { buffer, offset, align }));
                }
                let arena_bytes = packing.arena_bytes();
                if offset.checked_add(b.bytes).is_none_or(|end| end > arena_bytes) {
                    let arena = offset..offset.saturating_add(b.bytes);
                    let buffer = buffer();
                    out.push(Hazard::new(Fault::OutsideArena { buffer, arena, arena_bytes }));
                }
            }
            None => {}
        }
    }
}

/// Gives the arena to the transients in the order of their first writers and asks, of every byte
/// that changes hands, whether its last owner is dead by then. Death is transitive (an owner that
/// is written has uses of its own), so asking the last owner is asking all of them.
fn sharing(
    plan: &StepPlan,
    order: &Order,
    uses: &[Vec<Use>],
    packing: &Packing,
    out: &mut Findings,
) {
    let life = Lifetimes::new(plan, order, uses);
    // Inputs and outputs live across steps: they own their bytes before any transient does.
    let mut takers: Vec<(Option<u32>, BufferId)> = plan
        .buffer_ids()
        .filter(|id| plan.buffer(*id).kind.in_arena() && plan.buffer(*id).bytes > 0)
        .map(|id| {
            let lives = plan.buffer(id).kind != BufferKind::Transient;
            (if lives { None } else { life.first_writer[id.index()] }, id)
        })
        .filter(|(at, id)| at.is_some() || plan.buffer(*id).kind != BufferKind::Transient)
        .collect();
    takers.sort_unstable();
    let mut owners: BTreeMap<u64, (u64, BufferId)> = BTreeMap::new();
    for (_, b) in takers {
        let Some(lo) = packing.offset(b) else { continue };
        let hi = lo + plan.buffer(b).bytes;
        let first = owners.range(..=lo).next_back().map_or(lo, |(start, _)| *start);
        let overlapped: Vec<_> = owners
            .range(first..hi)
            .filter(|(_, (end, _))| *end > lo)
            .map(|(start, (end, a))| (*start, *end, *a))
            .collect();
        for (start, end, a) in overlapped {
            out.pairs += 1;
            let arena = start.max(lo)..end.min(hi);
            let kinds = [plan.buffer(a).kind, plan.buffer(b).kind];
            if kinds.iter().any(|k| *k != BufferKind::Transient) {
                let (a, b) = (plan.buffer(a).name.clone(), plan.buffer(b).name.clone());
                out.push(Hazard::new(Fault::SharedInOut { a, b, arena }));
            } else if !life.precedes(a.index(), b.index()) {
                out.push(hazard(plan, order, &uses[a.index()], &uses[b.index()], arena));
            }
            owners.remove(&start);
            if start < lo {
                owners.insert(start, (lo, a));
            }
            if end > hi {
                owners.insert(hi, (end, a));
            }
        }
        owners.insert(lo, (hi, b));
    }
}

/// Names the last use of the old owner that a write of the new one does not wait for.
fn hazard(
    plan: &StepPlan,
    order: &Order,
    old: &[Use],
    new: &[Use],
    arena: core::ops::Range<u64>,
) -> Hazard {
    let clash = |write: &Use| {
        let late = |u: &&Use| u.op == write.op || !order.before(u.op, write.op, write.before_wait);
        old.iter().rev().find(late).map(|u| (*u, *write))
    };
    let (last, write) = new.iter().filter(|u| u.write).find_map(clash).unwrap_or((old[0], new[0]));
    let edge = Edge { from: last.op, to: write.op, kind: EdgeKind::Event };
    let fault = Fault::Aliasing { first: last.touch(plan), second: write.touch(plan), arena };
    Hazard { fault, missing: (last.op < write.op).then_some(edge) }
}
