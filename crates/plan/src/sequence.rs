//! Order between steps of different buckets: one generation's plans share an arena, two
//! generations share state and weights.
//!
//! Across a change of bucket the rule for waits is the one of [`EdgeKind::NextStep`]: device lanes
//! begin when all device lanes of every earlier step have ended, and an op with a `NextStep` edge
//! from a device lane (from the host) waits for all device lanes (all host ops) of every earlier
//! step, whatever their buckets. So what holds from a step of plan A to the next step, of plan B,
//! holds at any distance and with any plans in between, and looking at every ordered pair covers
//! every sequence.

use crate::hazard::{Fault, Hazard, Touch, When};
use crate::order::Order;
use crate::uses::{self, Findings, Use};
use crate::{BufferId, BufferKind, Digest, EdgeKind, LaneId, Proven, StepPlan};
use core::ops::Range;
use std::collections::HashMap;

/// What two plans have in common, beside state and weights of one name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arenas {
    /// Buckets of one generation lie in the same arena.
    Shared,
    /// Each lies in its own: the old generation and the new one.
    Separate,
}

/// Proof that steps of these plans may follow each other in any order; only [`prove_any_order`]
/// makes one.
///
/// ```compile_fail
/// fn forge(digest: lockstep_plan::Digest) -> lockstep_plan::AnyOrder {
///     lockstep_plan::AnyOrder { digest, pairs: 0 }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnyOrder {
    digest: Digest,
    pairs: u64,
}

impl AnyOrder {
    /// Of the digests of all plans, in the order given.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Pairs of accesses compared.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// Proves that steps of `plans` may follow each other in any order, each any number of times.
///
/// # Errors
/// What may go wrong, the names of ops prefixed by their bucket.
pub fn prove_any_order(plans: &[&Proven], arenas: Arenas) -> Result<AnyOrder, Vec<Hazard>> {
    let sides: Vec<Side> = plans.iter().map(|p| Side::new(p)).collect();
    let mut out = Findings::default();
    for first in &sides {
        for then in &sides {
            pair(first, then, arenas, &mut out);
        }
    }
    finish(plans, out)
}

/// Proves that a step of `then` may follow a step of `first`, and the other way round is not asked.
///
/// # Errors
/// As [`prove_any_order`].
pub fn prove_sequence(
    first: &Proven,
    then: &Proven,
    arenas: Arenas,
) -> Result<AnyOrder, Vec<Hazard>> {
    let mut out = Findings::default();
    pair(&Side::new(first), &Side::new(then), arenas, &mut out);
    finish(&[first, then], out)
}

/// Proves that steps of `old` and steps of `new` may follow each other in any order, the two in
/// arenas of their own: the last replay of one generation and the first of another, and back.
/// Order within each is [`prove_any_order`]'s.
///
/// # Errors
/// As [`prove_any_order`].
pub fn prove_between(old: &[&Proven], new: &[&Proven]) -> Result<AnyOrder, Vec<Hazard>> {
    let mut out = Findings::default();
    let new_sides: Vec<Side> = new.iter().map(|p| Side::new(p)).collect();
    for first in old.iter().map(|p| Side::new(p)) {
        for then in &new_sides {
            pair(&first, then, Arenas::Separate, &mut out);
            pair(then, &first, Arenas::Separate, &mut out);
        }
    }
    let all: Vec<&Proven> = old.iter().chain(new).copied().collect();
    finish(&all, out)
}

fn finish(plans: &[&Proven], out: Findings) -> Result<AnyOrder, Vec<Hazard>> {
    if !out.hazards.is_empty() {
        return Err(out.hazards);
    }
    let digests: Vec<Digest> = plans.iter().map(|p| p.digest()).collect();
    Ok(AnyOrder { digest: Digest::of(&digests), pairs: out.pairs })
}

/// What an op knows of all earlier steps.
#[derive(Clone, Copy, Default)]
struct Knows {
    devices_ended: bool,
    host_ended: bool,
}

impl Knows {
    fn join(self, other: Knows) -> Knows {
        Knows {
            devices_ended: self.devices_ended || other.devices_ended,
            host_ended: self.host_ended || other.host_ended,
        }
    }
}

/// One plan, as the earlier or the later of two steps.
struct Side<'a> {
    proven: &'a Proven,
    uses: Vec<Vec<Use>>,
    /// Per op, as the later step: what it knows at its start and after its wait.
    start: Vec<Knows>,
    wait: Vec<Knows>,
    /// Per op, as the earlier step: which classes' ends imply its own.
    ends_with_devices: Vec<bool>,
    ends_with_host: Vec<bool>,
    by_name: HashMap<&'a str, BufferId>,
    host: Vec<(BufferId, Use)>,
    /// Buffers of the arena by offset: what the host touches comes first.
    placed: Vec<(u64, BufferId)>,
}

impl<'a> Side<'a> {
    fn new(proven: &'a Proven) -> Side<'a> {
        let plan = proven.plan();
        let order = Order::new(plan);
        let uses = uses::by_buffer(plan, &order);
        let (start, wait) = knowledge(plan);
        let is_host = |o: crate::OpId| plan.op(o).lane == LaneId::HOST;
        let host = plan
            .buffer_ids()
            .flat_map(|b| uses[b.index()].iter().map(move |u| (b, *u)))
            .filter(|(_, u)| is_host(u.op))
            .collect();
        let by_name = plan
            .buffer_ids()
            .filter(|b| !plan.buffer(*b).kind.in_arena())
            .map(|b| (plan.buffer(b).name.as_str(), b))
            .collect();
        let packing = proven.packing();
        let mut placed: Vec<(u64, BufferId)> =
            plan.buffer_ids().filter_map(|b| Some((packing.offset(b)?, b))).collect();
        placed.sort_unstable();
        Side {
            placed,
            ends_with_devices: implied(plan, false),
            ends_with_host: implied(plan, true),
            proven,
            uses,
            start,
            wait,
            by_name,
            host,
        }
    }

    fn plan(&self) -> &'a StepPlan {
        self.proven.plan()
    }

    /// Where a use lies in the arena; none for state and weights.
    fn arena(&self, buffer: BufferId, u: Use) -> Option<Range<u64>> {
        let offset = self.proven.packing().offset(buffer)?;
        Some(offset + u.lo..offset + u.hi)
    }

    fn touch(&self, u: Use, when: When) -> Touch {
        let mut touch = u.touch(self.plan());
        touch.op_name = format!("{}/{}", self.plan().bucket, touch.op_name);
        touch.when = when;
        touch
    }
}

/// Which ops have ended once all host ops (all device lanes) have: those, and what leads to them.
fn implied(plan: &StepPlan, host: bool) -> Vec<bool> {
    let mut implied: Vec<bool> =
        plan.ops.iter().map(|op| (op.lane == LaneId::HOST) == host).collect();
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); plan.ops.len()];
    for e in plan.edges.iter().filter(|e| e.kind != EdgeKind::NextStep) {
        outgoing[e.from.index()].push(e.to.index());
    }
    let mut next_on_lane: Vec<Option<usize>> = vec![None; plan.lanes.len()];
    for u in (0..plan.ops.len()).rev() {
        let next = next_on_lane[plan.ops[u].lane.index()].replace(u);
        implied[u] |= outgoing[u].iter().copied().chain(next).any(|v| implied[v]);
    }
    implied
}

/// What each op knows of earlier steps at its start and after its wait.
fn knowledge(plan: &StepPlan) -> (Vec<Knows>, Vec<Knows>) {
    let n = plan.ops.len();
    let (mut start, mut wait) = (vec![Knows::default(); n], vec![Knows::default(); n]);
    let mut incoming: Vec<Vec<crate::Edge>> = vec![Vec::new(); n];
    for e in &plan.edges {
        incoming[e.to.index()].push(*e);
    }
    let mut last_on_lane: Vec<Option<usize>> = vec![None; plan.lanes.len()];
    for v in 0..n {
        let lane = plan.ops[v].lane;
        let mut s = Knows { devices_ended: lane != LaneId::HOST, host_ended: false };
        let mut w = Knows::default();
        let before = last_on_lane[lane.index()].replace(v);
        let mut lane_order = before;
        for e in &incoming[v] {
            let u = e.from.index();
            match e.kind {
                EdgeKind::Event => s = s.join(wait[u]),
                EdgeKind::Programmatic { .. } => {
                    s = s.join(start[u]);
                    w = w.join(wait[u]);
                    if before == Some(u) {
                        lane_order = None;
                    }
                }
                EdgeKind::NextStep if plan.ops[u].lane == LaneId::HOST => s.host_ended = true,
                EdgeKind::NextStep => s.devices_ended = true,
            }
        }
        if let Some(u) = lane_order {
            s = s.join(wait[u]);
        }
        (start[v], wait[v]) = (s, w.join(s));
    }
    (start, wait)
}

/// Compares what the host touches in one step with everything in the other. Two device lanes are
/// ordered by the boundary itself.
fn pair(first: &Side, then: &Side, arenas: Arenas, out: &mut Findings) {
    bound_alike(first, then, out);
    for &(buffer, host) in &first.host {
        each_common(first, buffer, host, then, arenas, &mut |u| ordered(first, host, then, u, out));
    }
    for &(buffer, host) in &then.host {
        each_common(then, buffer, host, first, arenas, &mut |u| ordered(first, u, then, host, out));
    }
}

/// Every use of the other side that has bytes in common with this one.
fn each_common(
    side: &Side,
    buffer: BufferId,
    u: Use,
    other: &Side,
    arenas: Arenas,
    f: &mut dyn FnMut(Use),
) {
    let Some(arena) = side.arena(buffer, u) else {
        let name = side.plan().buffer(buffer).name.as_str();
        if let Some(b) = other.by_name.get(name) {
            other.uses[b.index()].iter().filter(|o| o.lo < u.hi && u.lo < o.hi).for_each(|o| f(*o));
        }
        return;
    };
    if arenas == Arenas::Separate {
        return;
    }
    for &(offset, b) in other.placed.iter().take_while(|(offset, _)| *offset < arena.end) {
        for o in &other.uses[b.index()] {
            if offset + o.lo < arena.end && arena.start < offset + o.hi {
                f(*o);
            }
        }
    }
}

fn ordered(first: &Side, u: Use, then: &Side, v: Use, out: &mut Findings) {
    if !(u.write || v.write) {
        return;
    }
    out.pairs += 1;
    let knows = if v.before_wait { &then.start } else { &then.wait }[v.op.index()];
    let ended = knows.devices_ended && first.ends_with_devices[u.op.index()]
        || knows.host_ended && first.ends_with_host[u.op.index()];
    if !ended {
        let (a, b) = (first.touch(u, When::ThisStep), then.touch(v, When::NextStep));
        let bytes = u.lo.max(v.lo)..u.hi.min(v.hi).max(u.lo.max(v.lo));
        out.push(Hazard::new(Fault::Race { first: a, second: b, bytes }));
    }
}

/// State and weights of one name are one thing.
fn bound_alike(first: &Side, then: &Side, out: &mut Findings) {
    for (name, a) in &first.by_name {
        let Some(b) = then.by_name.get(name) else { continue };
        let (a, b) = (first.plan().buffer(*a), then.plan().buffer(*b));
        if (a.kind, a.bytes) != (b.kind, b.bytes) {
            let kind = |k: BufferKind| if k == BufferKind::Weight { "weight" } else { "state" };
            out.push(Hazard::new(Fault::BoundTwice {
                name: a.name.clone(),
                first: (kind(a.kind), a.bytes),
                then: (kind(b.kind), b.bytes),
            }));
        }
    }
}
