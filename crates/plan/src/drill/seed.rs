//! How each fault gets into a plan.

use crate::drill::Drilled;
use crate::explore::Draw;
use crate::order::Order;
use crate::{
    Access, BeforeWait, BufferId, BufferKind, Decision, DependsOn, Edge, EdgeKind, LaneId, OpId,
    OpKind, Packing, StepPlan, pack, uses,
};

pub(super) struct Drill<'a> {
    clean: &'a StepPlan,
    order: Order,
    pub(super) plan: StepPlan,
    draw: Draw,
}

impl<'a> Drill<'a> {
    /// `clean` has passed the check of structure.
    pub(super) fn new(clean: &'a StepPlan, seed: u64) -> Drill<'a> {
        Drill { clean, order: Order::new(clean), plan: clean.clone(), draw: Draw::new(seed) }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.draw.below(from.len())])
    }

    fn name(&self, op: OpId) -> &str {
        &self.clean.op(op).name
    }

    fn is_host(&self, op: OpId) -> bool {
        self.clean.op(op).lane == LaneId::HOST
    }

    /// An event edge that nothing else implies and that `wanted` likes: the first from a random
    /// one of those on.
    fn needed_edge(&mut self, wanted: impl Fn(&Edge) -> bool) -> Option<usize> {
        let likely = |e: &Edge| e.kind == EdgeKind::Event && wanted(e);
        let edges = &self.clean.edges;
        let found: Vec<usize> = (0..edges.len()).filter(|i| likely(&edges[*i])).collect();
        let first = self.draw.below(found.len());
        let (before, after) = found.split_at(first.min(found.len()));
        after.iter().chain(before).copied().find(|i| {
            let e = self.clean.edges[*i];
            let mut plan = self.clean.clone();
            plan.edges.remove(*i);
            !Order::new(&plan).before(e.from, e.to, false)
        })
    }

    /// Between device lanes where there is such an edge: the host's are drilled elsewhere.
    pub(super) fn dropped_edge(&mut self) -> Option<String> {
        let clean = self.clean;
        let i = self
            .needed_edge(|e| clean.op(e.from).lane != LaneId::HOST)
            .or_else(|| self.needed_edge(|_| true))?;
        let e = self.plan.edges.remove(i);
        Some(format!("event {} -> {}", self.name(e.from), self.name(e.to)))
    }

    pub(super) fn older_fork(&mut self) -> Option<String> {
        let clean = self.clean;
        let older = |e: &Edge| {
            let lane = clean.op(e.from).lane;
            (0..e.from.0).rev().map(OpId).find(|o| clean.op(*o).lane == lane)
        };
        let i =
            self.needed_edge(|e| clean.op(e.from).lane != LaneId::HOST && older(e).is_some())?;
        let e = clean.edges[i];
        let from = older(&e)?;
        self.plan.edges[i].from = from;
        Some(format!(
            "{} waits for {} instead of {}",
            self.name(e.to),
            self.name(from),
            self.name(e.from)
        ))
    }

    /// Transients of two lanes that live side by side, the larger first.
    fn side_by_side(&self) -> Vec<(BufferId, BufferId)> {
        let uses = uses::by_buffer(self.clean, &self.order);
        let life = crate::alias::Lifetimes::new(self.clean, &self.order, &uses);
        let lane = |b: BufferId| Some(self.clean.op(OpId(life.first_writer[b.index()]?)).lane);
        let bytes = |b: BufferId| self.clean.buffer(b).bytes;
        let transients: Vec<BufferId> = self
            .clean
            .buffer_ids()
            .filter(|b| self.clean.buffer(*b).kind == BufferKind::Transient && bytes(*b) > 0)
            .filter(|b| lane(*b).is_some())
            .collect();
        let mut found = Vec::new();
        for (i, &a) in transients.iter().enumerate() {
            for &b in &transients[..i] {
                let (x, y) = (a.index(), b.index());
                if lane(a) != lane(b) && !life.precedes(x, y) && !life.precedes(y, x) {
                    found.push(if bytes(a) < bytes(b) { (b, a) } else { (a, b) });
                }
            }
        }
        found
    }

    /// The clean packing with `b` put where `a` lies.
    fn on_top(&self, a: BufferId, b: BufferId) -> Option<Packing> {
        let packing = pack(self.clean);
        let mut offsets = packing.offsets().to_vec();
        let at = packing.offset(a)?;
        offsets[b.index()] = Some(at);
        let aligned = at.is_multiple_of(self.clean.buffer(b).align.into());
        let inside = at + self.clean.buffer(b).bytes <= packing.arena_bytes();
        (aligned && inside).then(|| Packing::from_offsets(offsets, packing.arena_bytes()))
    }

    pub(super) fn shared_scratch(mut self) -> Option<Drilled> {
        let (a, b) = self.pick(&self.side_by_side())?;
        let packing = self.on_top(a, b)?;
        let spot = format!("{} lies on {}", self.clean.buffer(b).name, self.clean.buffer(a).name);
        Some(Drilled { plan: self.plan, packing, spot })
    }

    /// Spoils the row view of one device read of rows that may be padded.
    pub(super) fn view(&mut self, spoil: impl Fn(&mut crate::RowView)) -> Option<String> {
        let mut found = Vec::new();
        for op in self.clean.op_ids().filter(|o| !self.is_host(*o)) {
            for (i, a) in self.clean.op(op).reads.iter().enumerate() {
                if let Access::Static { span, rows: Some(_) } = a
                    && let Some((axis, _)) = self.clean.buffer(span.buffer).rows
                    && axis.rows(self.clean.bucket) > 1
                {
                    found.push((op, i, span.buffer));
                }
            }
        }
        let (op, i, buffer) = self.pick(&found)?;
        if let Access::Static { rows: Some(view), .. } = &mut self.plan.ops[op.index()].reads[i] {
            spoil(view);
        }
        Some(format!("{} reads {}", self.name(op), self.clean.buffer(buffer).name))
    }

    pub(super) fn frozen(&mut self) -> Option<String> {
        let ops: Vec<OpId> = self.clean.op_ids().filter(|o| !self.is_host(*o)).collect();
        let op = self.pick(&ops)?;
        let decision = Decision {
            name: "short context: take all keys".into(),
            depends_on: DependsOn::LiveBatch,
        };
        self.plan.ops[op.index()].decisions.push(decision);
        Some(self.name(op).into())
    }

    pub(super) fn unreserved(&mut self) -> Option<String> {
        let mut found = Vec::new();
        for op in self.clean.op_ids() {
            for (i, a) in self.clean.op(op).writes.iter().enumerate() {
                if let Access::Indexed { via, .. } = a
                    && let Some((axis, _)) = self.clean.buffer(*via).rows
                    && axis.rows(self.clean.bucket) > 1
                {
                    found.push((op, i));
                }
            }
        }
        let (op, i) = self.pick(&found)?;
        if let Access::Indexed { reserved_for_padding, .. } =
            &mut self.plan.ops[op.index()].writes[i]
        {
            *reserved_for_padding = false;
        }
        Some(self.name(op).into())
    }

    pub(super) fn next_step_edge(&mut self, output: bool) -> Option<String> {
        let reads = |o: OpId| matches!(self.clean.op(o).kind, OpKind::HostRead { .. });
        let found: Vec<usize> = (0..self.clean.edges.len())
            .filter(|i| self.clean.edges[*i].kind == EdgeKind::NextStep)
            .filter(|i| reads(self.clean.edges[*i].from) == output)
            .filter(|i| {
                let e = self.clean.edges[*i];
                let mut plan = self.clean.clone();
                plan.edges.remove(*i);
                !Order::new(&plan).before_next(e.from, e.to, false)
            })
            .collect();
        let i = self.pick(&found)?;
        let e = self.plan.edges.remove(i);
        Some(format!(
            "{} of the next step no longer waits for {}",
            self.name(e.to),
            self.name(e.from)
        ))
    }

    /// An op with several writes forgets to declare one that it alone uses, and an allocator that
    /// does not know of it has given the bytes to another lane.
    pub(super) fn undeclared(mut self) -> Option<Drilled> {
        let mut found = Vec::new();
        for (a, b) in self.side_by_side() {
            for (victim, scratch) in [(a, b), (b, a)] {
                let touches = |o: &OpId| {
                    let op = self.clean.op(*o);
                    op.reads.iter().chain(&op.writes).any(|x| x.buffer() == scratch)
                };
                let mut users = self.clean.op_ids().filter(touches);
                if let (Some(op), None) = (users.next(), users.next())
                    && self.clean.op(op).writes.len() > 1
                {
                    found.push((op, scratch, victim));
                }
            }
        }
        let (op, scratch, victim) = self.pick(&found)?;
        let packing = self.on_top(victim, scratch)?;
        let o = &mut self.plan.ops[op.index()];
        o.writes.retain(|a| a.buffer() != scratch);
        o.reads.retain(|a| a.buffer() != scratch);
        let name = |b: BufferId| self.clean.buffer(b).name.clone();
        let spot = format!("{} writes {} on {}", self.name(op), name(scratch), name(victim));
        Some(Drilled { plan: self.plan, packing, spot })
    }

    pub(super) fn repacked(&mut self) -> Option<String> {
        let is_weight = |b: &BufferId| self.clean.buffer(*b).kind == BufferKind::Weight;
        let weights: Vec<BufferId> = self.clean.buffer_ids().filter(is_weight).collect();
        let weight = self.pick(&weights)?;
        let name = self.clean.buffer(weight).name.clone();
        let kind = OpKind::HostWrite { input: weight };
        self.plan.ops.push(crate::Op {
            name: format!("host.repack.{name}"),
            writes: vec![Access::whole(weight, self.clean.buffer(weight).bytes)],
            reads: Vec::new(),
            kind,
            lane: LaneId::HOST,
            decisions: Vec::new(),
        });
        Some(name)
    }

    /// Makes a lane's own order programmatic, with the read of what the neighbour wrote first.
    pub(super) fn before_wait(&mut self) -> Option<String> {
        let mut found = Vec::new();
        let mut last: Vec<Option<OpId>> = vec![None; self.clean.lanes.len()];
        for to in self.clean.op_ids().filter(|o| !self.is_host(*o)) {
            let op = self.clean.op(to);
            if let Some(from) = last[op.lane.index()].replace(to) {
                let written = |b| self.clean.op(from).writes.iter().any(|w| w.buffer() == b);
                if let Some(i) = op.reads.iter().position(|r| written(r.buffer()))
                    && i < 64
                    && op.reads.len().max(op.writes.len()) <= 64
                {
                    found.push((from, to, i));
                }
            }
        }
        let edge = |from, to, i: usize| {
            let before_wait = BeforeWait { reads: 1 << i, writes: 0 };
            Edge { from, to, kind: EdgeKind::Programmatic { before_wait } }
        };
        // Another lane's event may order the two all the same.
        found.retain(|(from, to, i)| {
            let mut plan = self.clean.clone();
            plan.edges.push(edge(*from, *to, *i));
            !Order::new(&plan).before(*from, *to, true)
        });
        let (from, to, i) = self.pick(&found)?;
        self.plan.edges.push(edge(from, to, i));
        Some(format!("{} reads the result of {} early", self.name(to), self.name(from)))
    }

    /// Takes a device op's writes of one buffer away from it, as if they had been forgotten; the
    /// buffer is read later.
    pub(super) fn row_not_written(&mut self) -> Option<String> {
        let mut found = Vec::new();
        for op in self.clean.op_ids().filter(|o| !self.is_host(*o)) {
            for (i, a) in self.clean.op(op).writes.iter().enumerate() {
                let Access::Static { span, rows } = *a else { continue };
                let b = span.buffer;
                let (mut writers, mut readers) = (0, 0);
                for o in self.clean.op_ids() {
                    writers += usize::from(self.clean.op(o).writes.iter().any(|w| w.buffer() == b));
                    readers += usize::from(
                        o > op && self.clean.op(o).reads.iter().any(|r| r.buffer() == b),
                    );
                }
                let row = rows.and(self.clean.buffer(b).rows).map_or(span.len, |(_, s)| s);
                if writers == 1
                    && readers > 0
                    && span.len > 0
                    && self.clean.buffer(b).kind.in_arena()
                {
                    found.push((op, i, row.clamp(1, span.len)));
                }
            }
        }
        let (op, i, row) = self.pick(&found)?;
        let Access::Static { span, .. } = &mut self.plan.ops[op.index()].writes[i] else {
            return None;
        };
        span.len -= row;
        let buffer = self.clean.buffer(span.buffer).name.clone();
        Some(format!("{} leaves out the last {row} bytes of {buffer}", self.name(op)))
    }

    /// Points a device op's read of a transient to another buffer of the same shape.
    pub(super) fn never_written(&mut self) -> Option<String> {
        let mut found = Vec::new();
        for op in self.clean.op_ids().filter(|o| !self.is_host(*o)) {
            for (i, a) in self.clean.op(op).reads.iter().enumerate() {
                let transient = self.clean.buffer(a.buffer()).kind == BufferKind::Transient;
                if let (Access::Static { span, .. }, true) = (a, transient)
                    && span.len > 0
                {
                    found.push((op, i));
                }
            }
        }
        let (op, i) = self.pick(&found)?;
        let meant = self.clean.op(op).reads[i].buffer();
        let mut buffer = self.clean.buffer(meant).clone();
        let spot = format!("{} reads {}.stale, not {}", self.name(op), buffer.name, buffer.name);
        buffer.name += ".stale";
        self.plan.buffers.push(buffer);
        let id = BufferId(self.plan.buffers.len() as u32 - 1);
        if let Access::Static { span, .. } = &mut self.plan.ops[op.index()].reads[i] {
            span.buffer = id;
        }
        Some(spot)
    }

    pub(super) fn deadlock(&mut self) -> Option<String> {
        let events: Vec<Edge> = self
            .clean
            .edges
            .iter()
            .copied()
            .filter(|e| e.kind == EdgeKind::Event && !self.is_host(e.from) && !self.is_host(e.to))
            .collect();
        let e = self.pick(&events)?;
        self.plan.edges.push(Edge { from: e.to, to: e.from, kind: EdgeKind::Event });
        Some(format!("{} and {}", self.name(e.from), self.name(e.to)))
    }
}
