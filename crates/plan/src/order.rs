//! Happens-before, recomputed from lanes and edges alone.
//!
//! The ops of a lane form a chain, so the ops of one lane that precede a point are a prefix of
//! that lane: the transitive closure is one count a lane and point, exactly, and takes
//! `ops * lanes` words where a bit matrix would take `ops * ops` bits.
//!
//! Three points of an op matter. Accesses run from its *start* to its *end*; those after a
//! programmatic wait run from the *wait* to the end. An access of `u` precedes an access of `v`
//! where the end of `u` precedes the point at which that access of `v` may begin.
//!
//! Two consecutive steps are unrolled. Device lanes of the first all end before device lanes of
//! the second start; the host's ops are tied to other steps by `NextStep` edges alone. Two steps
//! are enough for any number: paths never run backwards, an op that writes conflicts with itself
//! one step later, and so an order between neighbours carries on from step to step.

use crate::{BeforeWait, Edge, EdgeKind, LaneId, OpId, StepPlan};

/// Happens-before of a plan whose ids are in range and whose in-step edges run forward.
pub(crate) struct Order {
    lanes: usize,
    lane: Vec<u8>,
    rank: Vec<u32>,
    before_wait: Vec<BeforeWait>,
    /// Per op and lane: how many of that lane's first ops have ended when the op starts.
    start: Vec<u32>,
    /// The same, when its programmatic wait is over.
    wait: Vec<u32>,
    /// Per op of the next step and lane: how many of *this* step's ops have ended.
    next_start: Vec<u32>,
    next_wait: Vec<u32>,
    /// Clocks joined, for the record of what a proof cost.
    pub(crate) joins: u64,
}

impl Order {
    /// Takes a plan that `structure` has accepted.
    pub(crate) fn new(plan: &StepPlan) -> Order {
        let (n, lanes) = (plan.ops.len(), plan.lanes.len());
        let mut counts = vec![0u32; lanes];
        let mut rank = Vec::with_capacity(n);
        for op in &plan.ops {
            rank.push(counts[op.lane.index()]);
            counts[op.lane.index()] += 1;
        }
        let mut before_wait = vec![BeforeWait::default(); n];
        for e in &plan.edges {
            if let EdgeKind::Programmatic { before_wait: mask } = e.kind {
                let at = &mut before_wait[e.to.index()];
                *at = at.join(mask);
            }
        }
        let mut order = Order {
            lanes,
            lane: plan.ops.iter().map(|op| op.lane.0).collect(),
            rank,
            before_wait,
            start: vec![0; n * lanes],
            wait: vec![0; n * lanes],
            next_start: vec![0; n * lanes],
            next_wait: vec![0; n * lanes],
            joins: 0,
        };
        let incoming = Incoming::new(plan);
        let (mut start, mut wait) = (vec![0; n * lanes], vec![0; n * lanes]);
        order.sweep(&incoming, &mut start, &mut wait, &vec![None; n], true);
        (order.start, order.wait) = (start, wait);

        let base = order.next_base(plan, &incoming, &counts);
        let (mut start, mut wait) = (vec![0; n * lanes], vec![0; n * lanes]);
        order.sweep(&incoming, &mut start, &mut wait, &base, false);
        (order.next_start, order.next_wait) = (start, wait);
        order
    }

    /// One pass over a step in program order. `base` is what an op knows from elsewhere;
    /// `count_ends` says that the ops swept are the ones that the clocks count.
    fn sweep(
        &mut self,
        incoming: &Incoming,
        start: &mut [u32],
        wait: &mut [u32],
        base: &[Option<Vec<u32>>],
        count_ends: bool,
    ) {
        let lanes = self.lanes;
        let mut last_on_lane: Vec<Option<usize>> = vec![None; lanes];
        let mut at_start = vec![0u32; lanes];
        let mut at_wait = vec![0u32; lanes];
        for (v, base) in base.iter().enumerate() {
            match base {
                Some(b) => at_start.copy_from_slice(b),
                None => at_start.fill(0),
            }
            at_wait.fill(0);
            let lane = self.lane[v] as usize;
            let joined = |clock: &mut [u32], of: &[u32], u: usize| {
                for (c, k) in clock.iter_mut().zip(&of[u * lanes..(u + 1) * lanes]) {
                    *c = (*c).max(*k);
                }
            };
            // The end of `u`: all that its wait knows, and `u` itself.
            let ended = |clock: &mut [u32], wait: &[u32], u: usize| {
                joined(clock, wait, u);
                if count_ends {
                    let l = self.lane[u] as usize;
                    clock[l] = clock[l].max(self.rank[u] + 1);
                }
            };
            let before = last_on_lane[lane];
            let mut lane_order = before;
            for e in incoming.of(v) {
                let u = e.from.index();
                match e.kind {
                    EdgeKind::Event => ended(&mut at_start, wait, u),
                    EdgeKind::Programmatic { .. } => {
                        joined(&mut at_start, start, u);
                        ended(&mut at_wait, wait, u);
                        if before == Some(u) {
                            lane_order = None;
                        }
                    }
                    EdgeKind::NextStep => {}
                }
                self.joins += 1;
            }
            if let Some(u) = lane_order {
                ended(&mut at_start, wait, u);
                self.joins += 1;
            }
            let at = v * lanes..(v + 1) * lanes;
            start[at.clone()].copy_from_slice(&at_start);
            for (w, s) in at_wait.iter_mut().zip(&at_start) {
                *w = (*w).max(*s);
            }
            wait[at].copy_from_slice(&at_wait);
            last_on_lane[lane] = Some(v);
        }
    }

    /// What each op of the next step knows of this one before its own step adds to it.
    fn next_base(
        &self,
        plan: &StepPlan,
        incoming: &Incoming,
        counts: &[u32],
    ) -> Vec<Option<Vec<u32>>> {
        let mut device_done = vec![0u32; self.lanes];
        for (u, op) in plan.ops.iter().enumerate() {
            if op.lane != LaneId::HOST && self.rank[u] + 1 == counts[op.lane.index()] {
                self.join_end(&mut device_done, u);
            }
        }
        (0..plan.ops.len())
            .map(|v| {
                let host = plan.ops[v].lane == LaneId::HOST;
                let mut base = (!host).then(|| device_done.clone());
                for e in incoming.of(v).filter(|e| e.kind == EdgeKind::NextStep) {
                    let base = base.get_or_insert_with(|| vec![0; self.lanes]);
                    self.join_end(base, e.from.index());
                }
                base
            })
            .collect()
    }

    fn join_end(&self, clock: &mut [u32], u: usize) {
        for (c, k) in clock.iter_mut().zip(&self.wait[u * self.lanes..(u + 1) * self.lanes]) {
            *c = (*c).max(*k);
        }
        let l = self.lane[u] as usize;
        clock[l] = clock[l].max(self.rank[u] + 1);
    }

    /// True where the access of `v` comes before its programmatic wait.
    pub(crate) fn is_before_wait(&self, v: OpId, write: bool, index: usize) -> bool {
        self.before_wait[v.index()].holds(write, index)
    }

    fn holds(&self, clocks: &[u32], u: OpId, v: OpId) -> bool {
        let lane = self.lane[u.index()] as usize;
        self.rank[u.index()] < clocks[v.index() * self.lanes + lane]
    }

    /// True where `u` has ended before an access of `v` may begin, in one step.
    pub(crate) fn before(&self, u: OpId, v: OpId, v_before_wait: bool) -> bool {
        self.holds(if v_before_wait { &self.start } else { &self.wait }, u, v)
    }

    /// True where `u` of a step has ended before an access of `v` of the next may begin.
    pub(crate) fn before_next(&self, u: OpId, v: OpId, v_before_wait: bool) -> bool {
        self.holds(if v_before_wait { &self.next_start } else { &self.next_wait }, u, v)
    }

    /// How many ops of each lane have ended when the op's access may begin.
    pub(crate) fn clock(&self, v: OpId, v_before_wait: bool) -> &[u32] {
        let clocks = if v_before_wait { &self.start } else { &self.wait };
        &clocks[v.index() * self.lanes..(v.index() + 1) * self.lanes]
    }

    /// Lane and number in it.
    pub(crate) fn place(&self, u: OpId) -> (usize, u32) {
        (self.lane[u.index()] as usize, self.rank[u.index()])
    }
}

/// Edges by their target.
struct Incoming {
    first: Vec<u32>,
    edges: Vec<Edge>,
}

impl Incoming {
    fn new(plan: &StepPlan) -> Incoming {
        let mut first = vec![0u32; plan.ops.len() + 1];
        for e in &plan.edges {
            first[e.to.index() + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut edges = plan.edges.clone();
        edges.sort_by_key(|e| e.to);
        Incoming { first, edges }
    }

    fn of(&self, v: usize) -> impl Iterator<Item = &Edge> {
        self.edges[self.first[v] as usize..self.first[v + 1] as usize].iter()
    }
}
