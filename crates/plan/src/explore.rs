//! The explorer, as data: orders in which a device may run a plan's ops, what it may poison, and
//! what each thread of a threaded run does. Devices run it; nothing runs here.
//!
//! A plan that keeps contract 2 gives the same bits in every such order. A kernel that touches
//! what it does not declare, or an edge that is missing, shows as a difference, and the seed
//! brings it back.

use crate::mix::mix64;
use crate::{BufferKind, EdgeKind, LaneId, OpId, Packing, StepPlan};
use core::ops::Range;

/// What dead bytes are filled with: a NaN in every float format, and no valid index or token.
pub const POISON: u8 = 0xff;

/// An op of one of several steps that are run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepOp {
    /// From 0.
    pub step: u32,
    /// The op.
    pub op: OpId,
}

/// Splitmix64 as a sequence.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(mix64(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// A number below `n`, which is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix64(self.0) % n.max(1) as u64) as usize
    }
}

/// A linear extension of the partial order of `steps` consecutive steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// Every op of every step once.
    pub order: Vec<StepOp>,
    /// Steps.
    pub steps: u32,
}

impl Extension {
    /// Step after step, ops as listed: what every other order is compared with.
    pub fn program_order(plan: &StepPlan, steps: u32) -> Extension {
        let step = |step| plan.op_ids().map(move |op| StepOp { step, op });
        Extension { order: (0..steps).flat_map(step).collect(), steps }
    }

    /// A random one; the same for the same plan, number of steps and seed. A third of the seeds
    /// draw uniformly among the ops that may run; the others give lanes random priorities and
    /// change them at a few random moments, because a lane that runs far ahead of the others is
    /// what finds a missing edge (Burckhardt et al., 2010).
    ///
    /// None where the lanes wait for each other or an id is out of range. An op that launches
    /// programmatically runs whole, after the one it waits for.
    pub fn random(plan: &StepPlan, steps: u32, seed: u64) -> Option<Extension> {
        let mut draw = Draw::new(seed);
        let mut ready = Ready::new(plan, steps)?;
        let total = plan.ops.len() * steps as usize;
        let uniform = draw.below(3) == 0;
        // The host of each step counts as a lane of its own: steps order it by edges alone.
        let lane_of = |i: usize| {
            let (step, op) = (i / plan.ops.len(), &plan.ops[i % plan.ops.len()]);
            if op.lane == LaneId::HOST { plan.lanes.len() + step } else { op.lane.index() }
        };
        let mut priority: Vec<usize> =
            (0..plan.lanes.len() + steps as usize).map(|_| draw.below(1 << 30)).collect();
        let changes: Vec<usize> = (0..2 + draw.below(4)).map(|_| draw.below(total)).collect();
        let mut order = Vec::with_capacity(total);
        while !ready.now.is_empty() {
            if changes.contains(&order.len()) {
                let lane = draw.below(priority.len());
                priority[lane] = draw.below(1 << 30);
            }
            let at = if uniform {
                draw.below(ready.now.len())
            } else {
                let best = (0..ready.now.len()).max_by_key(|p| priority[lane_of(ready.now[*p])]);
                best.unwrap_or(0)
            };
            let i = ready.now.swap_remove(at);
            let (step, op) = (i / plan.ops.len(), i % plan.ops.len());
            order.push(StepOp { step: step as u32, op: OpId(op as u32) });
            ready.ran(i);
        }
        (order.len() == total).then_some(Extension { order, steps })
    }

    /// Bytes of the arena that mean nothing at each point of this order: none of the buffers
    /// there is between its first and its last use of a step. A device fills them with
    /// [`POISON`]; in a right plan nobody ever reads them.
    pub fn poisons(&self, plan: &StepPlan, packing: &Packing) -> Vec<Poison> {
        let ops = plan.ops.len();
        let mut spot = vec![0; ops * self.steps as usize];
        for (i, o) in self.order.iter().enumerate() {
            spot[o.step as usize * ops + o.op.index()] = i;
        }
        let mut lives: Vec<(Range<u64>, usize, usize)> = Vec::new();
        for id in plan.buffer_ids() {
            let Some(lo) = packing.offset(id) else { continue };
            let arena = lo..lo.saturating_add(plan.buffer(id).bytes);
            let uses = |o: &usize| {
                let op = &plan.ops[*o];
                op.reads.iter().chain(&op.writes).any(|a| a.buffer() == id)
            };
            let users: Vec<usize> = (0..ops).filter(uses).collect();
            for step in 0..self.steps as usize {
                let spots = users.iter().map(|o| spot[step * ops + o]);
                if let (Some(first), Some(last)) = (spots.clone().min(), spots.max()) {
                    lives.push((arena.clone(), first, last));
                }
            }
        }
        let mut out = vec![Poison { before: 0, arena: 0..packing.arena_bytes() }];
        for (arena, _, last) in &lives {
            let before = last + 1;
            let mut dead = vec![arena.clone()];
            for (other, _, _) in lives.iter().filter(|(_, f, l)| *f <= *last && *l > *last) {
                dead = dead.into_iter().flat_map(|d| without(d, other)).collect();
            }
            out.extend(dead.into_iter().map(|arena| Poison { before, arena }));
        }
        out.sort_by_key(|p| (p.before, p.arena.start));
        out
    }
}

/// What remains of `a` without `b`.
fn without(a: Range<u64>, b: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let left = a.start..a.end.min(b.start);
    let right = a.start.max(b.end)..a.end;
    [left, right].into_iter().filter(|r| !r.is_empty())
}

/// Bytes that mean nothing before the op at this place of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poison {
    /// Index into [`Extension::order`]; its length for what is dead at the end.
    pub before: usize,
    /// Bytes of the arena.
    pub arena: Range<u64>,
}

/// Which ops may run: all that they wait for has run.
struct Ready<'a> {
    plan: &'a StepPlan,
    steps: usize,
    waits: Vec<u32>,
    outgoing: Vec<Vec<(u32, bool)>>,
    /// Device ops that have not run, per step.
    device_left: Vec<usize>,
    now: Vec<usize>,
}

impl<'a> Ready<'a> {
    fn new(plan: &'a StepPlan, steps: u32) -> Option<Ready<'a>> {
        let (n, steps) = (plan.ops.len(), steps as usize);
        let in_range = |o: OpId| o.index() < n;
        let lanes_exist = plan.ops.iter().all(|op| op.lane.index() < plan.lanes.len());
        if !lanes_exist || !plan.edges.iter().all(|e| in_range(e.from) && in_range(e.to)) {
            return None;
        }
        let mut outgoing = vec![Vec::new(); n];
        let mut waits = vec![0u32; n * steps];
        for e in &plan.edges {
            let next = e.kind == EdgeKind::NextStep;
            outgoing[e.from.index()].push((e.to.0, next));
            for step in usize::from(next)..steps {
                waits[step * n + e.to.index()] += 1;
            }
        }
        let mut last: Vec<Option<usize>> = vec![None; plan.lanes.len()];
        for (i, op) in plan.ops.iter().enumerate() {
            if let Some(before) = last[op.lane.index()].replace(i) {
                outgoing[before].push((i as u32, false));
                (0..steps).for_each(|step| waits[step * n + i] += 1);
            }
        }
        let device = |i: &usize| plan.ops[*i].lane != LaneId::HOST;
        let devices = (0..n).filter(device).count();
        if devices > 0 {
            for step in 1..steps {
                (0..n).filter(device).for_each(|i| waits[step * n + i] += 1);
            }
        }
        let now = (0..n * steps).filter(|i| waits[*i] == 0).collect();
        Some(Ready { plan, steps, waits, outgoing, device_left: vec![devices; steps], now })
    }

    fn ran(&mut self, i: usize) {
        let n = self.plan.ops.len();
        let (step, op) = (i / n, i % n);
        for (to, next) in self.outgoing[op].clone() {
            let at = step + usize::from(next);
            if at < self.steps {
                self.release(at * n + to as usize);
            }
        }
        if self.plan.ops[op].lane != LaneId::HOST {
            self.device_left[step] -= 1;
            if self.device_left[step] == 0 && step + 1 < self.steps {
                for o in 0..n {
                    if self.plan.ops[o].lane != LaneId::HOST {
                        self.release((step + 1) * n + o);
                    }
                }
            }
        }
    }

    fn release(&mut self, i: usize) {
        self.waits[i] -= 1;
        if self.waits[i] == 0 {
            self.now.push(i);
        }
    }
}

/// One thing that a lane's thread does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneItem {
    /// Waits until the event has been recorded.
    Wait(u32),
    /// Waits so long: injected around edges.
    Delay { micros: u32 },
    /// Runs the op.
    Run(StepOp),
    /// Records the event.
    Record(u32),
}

/// A run with one thread a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Threaded {
    /// What each lane does, the host's first.
    pub lanes: Vec<Vec<LaneItem>>,
    /// Events, numbered from 0, each recorded once.
    pub events: u32,
}

impl Threaded {
    /// Lists what each lane's thread does in `steps` steps. Delays of up to `delay_us` stand, by
    /// the seed, before half of the waits, after half of the waits and before half of the
    /// records: where an edge is missing or names the wrong op, some seed makes it matter.
    ///
    /// None as for [`Extension::random`].
    pub fn new(plan: &StepPlan, steps: u32, seed: u64, delay_us: u32) -> Option<Threaded> {
        // The host is one thread; any order of its ops will do that all waits allow.
        let host = Extension::random(plan, steps, seed)?;
        let mut draw = Draw::new(!seed);
        let n = plan.ops.len();
        let event = |step: u32, op: usize| step * n as u32 + op as u32;
        let mut lanes = vec![Vec::new(); plan.lanes.len()];
        let device: Vec<StepOp> = Extension::program_order(plan, steps).order;
        let of_device = device.iter().filter(|o| plan.op(o.op).lane != LaneId::HOST);
        let of_host = host.order.iter().filter(|o| plan.op(o.op).lane == LaneId::HOST);
        let mut last_of_lane: Vec<Option<usize>> = vec![None; plan.lanes.len()];
        let mut first_of_lane = last_of_lane.clone();
        for (i, op) in plan.ops.iter().enumerate() {
            first_of_lane[op.lane.index()].get_or_insert(i);
            last_of_lane[op.lane.index()] = Some(i);
        }
        for o in of_device.chain(of_host) {
            let lane = plan.op(o.op).lane;
            let items: &mut Vec<LaneItem> = &mut lanes[lane.index()];
            let mut delay = |items: &mut Vec<LaneItem>| {
                if delay_us > 0 && draw.below(2) == 0 {
                    let micros = draw.below(delay_us as usize + 1) as u32;
                    items.push(LaneItem::Delay { micros });
                }
            };
            let mut waits = Vec::new();
            for e in plan.edges.iter().filter(|e| e.to == o.op) {
                match e.kind {
                    EdgeKind::NextStep if o.step == 0 => {}
                    EdgeKind::NextStep => waits.push(event(o.step - 1, e.from.index())),
                    _ => waits.push(event(o.step, e.from.index())),
                }
            }
            let first = first_of_lane[lane.index()] == Some(o.op.index());
            if lane != LaneId::HOST && o.step > 0 && first {
                let ends = last_of_lane.iter().skip(1).flatten();
                waits.extend(ends.map(|end| event(o.step - 1, *end)));
            }
            for wait in waits {
                delay(items);
                items.push(LaneItem::Wait(wait));
                delay(items);
            }
            items.push(LaneItem::Run(*o));
            delay(items);
            items.push(LaneItem::Record(event(o.step, o.op.index())));
        }
        Some(Threaded { lanes, events: steps * n as u32 })
    }
}

/// True for buffers whose bytes an explorer compares at the end of every step: what anyone
/// outside the step can see.
pub fn is_visible(kind: BufferKind) -> bool {
    matches!(kind, BufferKind::Output { .. } | BufferKind::State(_))
}
