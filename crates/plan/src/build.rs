//! The builder: ops in any convenient order, edges derived from data dependencies.
//!
//! `prove` never trusts this derivation; it recomputes happens-before from lanes and edges alone.

use crate::{
    Access, Axis, Buffer, BufferId, BufferKind, Decision, Edge, EdgeKind, Elem, LaneId, Op, OpId,
    OpKind, PaddingPolicy, StateKind, StepPlan, declare, row_axis,
};
use lockstep_flow::BucketKey;

/// Alignment of every buffer: a cache line, and one AVX-512 register.
const ALIGN: u32 = 64;

/// Name of the input that holds the live rows of each axis: three u32, T then S then R.
pub const LIVE_COUNTS: &str = "live_counts";

/// Its size.
pub const LIVE_COUNTS_BYTES: u64 = 12;

/// Builds a [`StepPlan`].
pub struct PlanBuilder {
    plan: StepPlan,
    lanes_max: usize,
    live: Option<BufferId>,
}

impl PlanBuilder {
    /// Starts a plan of `bucket` with at most `lanes_max` device lanes (`decode.lanes`); lanes
    /// beyond it fold into the main lane, which changes no bits.
    pub fn new(bucket: BucketKey, lanes_max: u32) -> PlanBuilder {
        assert!(lanes_max >= 1, "a plan has at least the main lane");
        let plan = StepPlan {
            bucket,
            buffers: Vec::new(),
            ops: Vec::new(),
            lanes: vec!["host".into(), "main".into()],
            edges: Vec::new(),
        };
        PlanBuilder { plan, lanes_max: lanes_max as usize, live: None }
    }

    /// A buffer declared earlier, by name.
    pub fn find(&self, name: &str) -> Option<BufferId> {
        self.plan.find(name)
    }

    /// The bucket being built.
    pub fn bucket(&self) -> BucketKey {
        self.plan.bucket
    }

    /// A lane by name, made on first use.
    pub fn lane(&mut self, name: &str) -> LaneId {
        if let Some(i) = self.plan.lanes.iter().position(|l| l == name) {
            return LaneId(i as u8);
        }
        if self.plan.lanes.len() > self.lanes_max {
            return LaneId::MAIN;
        }
        self.plan.lanes.push(name.into());
        LaneId((self.plan.lanes.len() - 1) as u8)
    }

    fn push(&mut self, buffer: Buffer) -> BufferId {
        assert!(
            self.plan.find(&buffer.name).is_none(),
            "buffer {} is declared twice in one plan",
            buffer.name
        );
        self.plan.buffers.push(buffer);
        BufferId((self.plan.buffers.len() - 1) as u32)
    }

    /// A weight of `bytes`.
    pub fn weight(&mut self, name: impl Into<String>, bytes: u64, elem: Elem) -> BufferId {
        let kind = BufferKind::Weight;
        self.push(Buffer { name: name.into(), bytes, align: ALIGN, kind, rows: None, elem })
    }

    /// State of `blocks` pages or slots.
    pub fn state(
        &mut self,
        name: impl Into<String>,
        state: StateKind,
        blocks: u32,
        elem: Elem,
    ) -> BufferId {
        let block = match state {
            StateKind::Pages { page_bytes } => page_bytes,
            StateKind::Slots { slot_bytes } => slot_bytes,
        };
        let bytes = block * u64::from(blocks);
        let kind = BufferKind::State(state);
        self.push(Buffer { name: name.into(), bytes, align: ALIGN, kind, rows: None, elem })
    }

    /// A buffer with one row of `row_bytes` for each slot of `axis`.
    pub fn rows(
        &mut self,
        name: impl Into<String>,
        kind: BufferKind,
        axis: Axis,
        row_bytes: u64,
        elem: Elem,
    ) -> BufferId {
        let bytes = u64::from(axis.rows(self.plan.bucket)) * row_bytes;
        let rows = Some((axis, row_bytes));
        self.push(Buffer { name: name.into(), bytes, align: ALIGN, kind, rows, elem })
    }

    /// An input table of u32 rows, padded with `padding`.
    pub fn table(
        &mut self,
        name: impl Into<String>,
        axis: Axis,
        words: u64,
        padding: u32,
    ) -> BufferId {
        let kind = BufferKind::Input { padding: PaddingPolicy::Word(padding), late: false };
        self.rows(name, kind, axis, words * 4, Elem::U32)
    }

    /// Declares the input that holds the live counts; every op over rows declared after it reads
    /// it. A kernel may skip rows past the live count of its axis: that choice is made at run
    /// time inside the kernel, so it is not a frozen decision, and no live row's bits change.
    pub fn live_counts(&mut self) -> BufferId {
        let kind = BufferKind::Input { padding: PaddingPolicy::NoRows, late: false };
        let id = self.push(Buffer {
            name: LIVE_COUNTS.into(),
            bytes: LIVE_COUNTS_BYTES,
            align: ALIGN,
            kind,
            rows: None,
            elem: Elem::U32,
        });
        self.live = Some(id);
        id
    }

    /// A transient with one row a slot of `axis`.
    pub fn transient(
        &mut self,
        name: impl Into<String>,
        axis: Axis,
        row_bytes: u64,
        elem: Elem,
    ) -> BufferId {
        self.rows(name, BufferKind::Transient, axis, row_bytes, elem)
    }

    /// Transient bytes whose layout is the device's own.
    pub fn scratch(&mut self, name: impl Into<String>, bytes: u64) -> BufferId {
        let kind = BufferKind::Transient;
        let elem = Elem::Opaque;
        self.push(Buffer { name: name.into(), bytes, align: ALIGN, kind, rows: None, elem })
    }

    /// An op on `lane`, its accesses declared by its kind.
    pub fn op(&mut self, name: impl Into<String>, lane: LaneId, kind: OpKind) -> OpId {
        let mut accesses = declare(&kind, &self.plan.buffers);
        if let (Some(live), true) = (self.live, row_axis(&kind).is_some()) {
            accesses.reads.push(Access::whole(live, LIVE_COUNTS_BYTES));
        }
        let name = name.into();
        self.plan.ops.push(Op {
            name,
            kind,
            reads: accesses.reads,
            writes: accesses.writes,
            lane,
            decisions: Vec::new(),
        });
        OpId((self.plan.ops.len() - 1) as u32)
    }

    /// An op whose accesses are given instead of declared by its kind: [`OpKind::Mix`].
    pub fn op_with(
        &mut self,
        name: impl Into<String>,
        lane: LaneId,
        kind: OpKind,
        reads: Vec<Access>,
        writes: Vec<Access>,
    ) -> OpId {
        let (name, decisions) = (name.into(), Vec::new());
        self.plan.ops.push(Op { name, kind, reads, writes, lane, decisions });
        OpId((self.plan.ops.len() - 1) as u32)
    }

    /// States what the last op's kernel decides, and on what.
    pub fn decides(&mut self, decision: Decision) {
        let op = self.plan.ops.last_mut().expect("decides() follows an op");
        op.decisions.push(decision);
    }

    /// An edge stated by hand.
    pub fn edge(&mut self, from: OpId, to: OpId) {
        self.plan.edges.push(Edge { from, to, kind: EdgeKind::Event });
    }

    /// Puts the host's reads and writes around the ops, derives the edges and hands the plan over.
    pub fn finish(mut self) -> StepPlan {
        self.add_host_ops();
        derive_edges(&mut self.plan);
        self.plan
    }

    /// Inputs are written before the first op (late ones before their first reader), outputs read
    /// after the last.
    fn add_host_ops(&mut self) {
        let shift = |edges: &mut [Edge], at: u32| {
            for e in edges {
                for op in [&mut e.from, &mut e.to] {
                    if op.0 >= at {
                        op.0 += 1;
                    }
                }
            }
        };
        for id in self.plan.buffer_ids() {
            let buffer = self.plan.buffer(id);
            let name = buffer.name.clone();
            let (kind, at) = match buffer.kind {
                BufferKind::Input { late: false, .. } => (OpKind::HostWrite { input: id }, 0),
                BufferKind::Input { late: true, .. } => {
                    let reads = |op: &Op| op.reads.iter().any(|a| a.buffer() == id);
                    let first = self.plan.ops.iter().position(reads);
                    (OpKind::HostWrite { input: id }, first.unwrap_or(self.plan.ops.len()))
                }
                BufferKind::Output { .. } => (OpKind::HostRead { output: id }, self.plan.ops.len()),
                _ => continue,
            };
            let accesses = declare(&kind, &self.plan.buffers);
            shift(&mut self.plan.edges, at as u32);
            self.plan.ops.insert(
                at,
                Op {
                    name: format!("host.{name}"),
                    kind,
                    reads: accesses.reads,
                    writes: accesses.writes,
                    lane: LaneId::HOST,
                    decisions: Vec::new(),
                },
            );
        }
    }
}

/// Adds the edges that data dependencies between lanes ask for and that are not implied already.
pub fn derive_edges(plan: &mut StepPlan) {
    let lanes = plan.lanes.len();
    // known[op][lane]: how many of that lane's first ops are known to precede the op.
    let mut known: Vec<Vec<u32>> = Vec::with_capacity(plan.ops.len());
    let mut rank: Vec<u32> = Vec::with_capacity(plan.ops.len());
    let mut last_on_lane: Vec<Option<usize>> = vec![None; lanes];
    let mut counts = vec![0u32; lanes];
    let mut new_edges = Vec::new();
    for i in 0..plan.ops.len() {
        let lane = plan.ops[i].lane.index();
        let mut seen = last_on_lane[lane].map_or_else(|| vec![0; lanes], |p| known[p].clone());
        let join = |seen: &mut Vec<u32>, from: usize, known: &[Vec<u32>], rank: &[u32]| {
            let from_lane = plan.ops[from].lane.index();
            for (s, k) in seen.iter_mut().zip(&known[from]) {
                *s = (*s).max(*k);
            }
            seen[from_lane] = seen[from_lane].max(rank[from] + 1);
        };
        for e in plan.edges.iter().filter(|e| e.to.index() == i && e.kind == EdgeKind::Event) {
            join(&mut seen, e.from.index(), &known, &rank);
        }
        // Latest first, so that one edge from a lane covers the earlier ones.
        for j in (0..i).rev() {
            let other = plan.ops[j].lane.index();
            if other != lane && rank[j] >= seen[other] && conflict(&plan.ops[j], &plan.ops[i]) {
                let (from, to) = (OpId(j as u32), OpId(i as u32));
                new_edges.push(Edge { from, to, kind: EdgeKind::Event });
                join(&mut seen, j, &known, &rank);
            }
        }
        rank.push(counts[lane]);
        counts[lane] += 1;
        seen[lane] = counts[lane];
        known.push(seen);
        last_on_lane[lane] = Some(i);
    }
    plan.edges.extend(new_edges);
    derive_next_step_edges(plan);
}

/// The host may touch inputs and outputs of step n + 1 only after step n's device lanes are done
/// with them, and the device may write outputs again only after the host has read them. One edge
/// a lane is enough: from its last op that touches an input, to its first that writes an output.
fn derive_next_step_edges(plan: &mut StepPlan) {
    let mut new_edges = Vec::new();
    let of_host = |i: &usize| plan.ops[*i].kind.is_host();
    for host in (0..plan.ops.len()).filter(of_host) {
        // Whichever of the two comes last in step n precedes the other in step n + 1.
        let (mut last_user, mut first_user) =
            (vec![None; plan.lanes.len()], vec![None; plan.lanes.len()]);
        for device in (0..plan.ops.len()).filter(|i| !of_host(i)) {
            if conflict(&plan.ops[host], &plan.ops[device]) {
                let lane = plan.ops[device].lane.index();
                if device > host {
                    last_user[lane] = Some(device);
                } else {
                    first_user[lane].get_or_insert(device);
                }
            }
        }
        let mut edge = |from: usize, to: usize| {
            let (from, to) = (OpId(from as u32), OpId(to as u32));
            new_edges.push(Edge { from, to, kind: EdgeKind::NextStep });
        };
        let met = last_user.iter().chain(&first_user).any(Option::is_some);
        last_user.into_iter().flatten().for_each(|device| edge(device, host));
        first_user.into_iter().flatten().for_each(|device| edge(host, device));
        if !met && !plan.ops[host].writes.is_empty() {
            // Nobody reads what it writes: it still must not overtake itself.
            edge(host, host);
        }
    }
    plan.edges.extend(new_edges);
}

/// True where the two ops touch common bytes and at least one writes them.
pub fn conflict(a: &Op, b: &Op) -> bool {
    let hits = |xs: &[Access], ys: &[Access]| xs.iter().any(|x| ys.iter().any(|y| touch(x, y)));
    hits(&a.writes, &b.writes) || hits(&a.writes, &b.reads) || hits(&a.reads, &b.writes)
}

fn touch(x: &Access, y: &Access) -> bool {
    match (x, y) {
        (Access::Static { span: a, .. }, Access::Static { span: b, .. }) => a.overlaps(*b),
        _ => x.buffer() == y.buffer(),
    }
}
