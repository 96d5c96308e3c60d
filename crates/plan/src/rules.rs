//! The rules that look at one op at a time: indexed accesses, padding, stride, frozen decisions,
//! workspace; and the obligations that indexed accesses leave to a step's lease.

use crate::hazard::{Fault, Hazard, Touch};
use crate::uses::Findings;
use crate::{
    Access, Axis, BufferId, BufferKind, DependsOn, Obligation, Op, OpId, PaddingPolicy, RowReach,
    RowView, Span, StepPlan, Stride, declare,
};
use std::collections::BTreeSet;

/// Checks every op; returns what the lease must vouch for.
pub(crate) fn check(plan: &StepPlan, out: &mut Findings) -> Vec<Obligation> {
    let mut obligations = BTreeSet::new();
    for b in &plan.buffers {
        let needed =
            b.rows.map(|(axis, stride)| stride.saturating_mul(axis.rows(plan.bucket).into()));
        if let Some(needed) = needed.filter(|n| *n > b.bytes) {
            let (buffer, bytes) = (b.name.clone(), b.bytes);
            out.push(Hazard::new(Fault::ShortBuffer { buffer, bytes, needed }));
        }
    }
    for id in plan.op_ids() {
        let op = plan.op(id);
        for (list, write) in [(&op.reads, false), (&op.writes, true)] {
            for access in list {
                let ctx = Ctx { plan, id, op, write, access };
                match access {
                    Access::Static { span, rows } => ctx.rows(*span, *rows, out, &mut obligations),
                    Access::Indexed { buffer, via, reserved_for_padding } => {
                        ctx.indexed(*buffer, *via, *reserved_for_padding, out, &mut obligations);
                    }
                }
                if write && plan.buffer(access.buffer()).kind == BufferKind::Weight {
                    out.push(Hazard::new(Fault::WeightWritten { touch: ctx.touch() }));
                }
            }
        }
        decisions(op, out);
        declared(plan, id, out);
    }
    obligations.into_iter().collect()
}

struct Ctx<'a> {
    plan: &'a StepPlan,
    id: OpId,
    op: &'a Op,
    write: bool,
    access: &'a Access,
}

impl Ctx<'_> {
    fn touch(&self) -> Touch {
        Touch::new(self.plan, self.id, self.write, self.access)
    }

    /// Padding and stride of a static access.
    fn rows(
        &self,
        span: Span,
        view: Option<RowView>,
        out: &mut Findings,
        obligations: &mut BTreeSet<Obligation>,
    ) {
        let buffer = self.plan.buffer(span.buffer);
        let padded = buffer.rows.is_some_and(|(axis, _)| may_be_padded(self.plan, axis));
        let Some(view) = view else {
            if padded && span.len > 0 {
                out.push(Hazard::new(Fault::NoRowView { touch: self.touch() }));
            }
            return;
        };
        match (view.stride, buffer.rows) {
            (Stride::Live, _) => out.push(Hazard::new(Fault::LiveStride { touch: self.touch() })),
            (Stride::Capacity(stride), Some((_, buffer_stride))) if stride != buffer_stride => {
                let touch = self.touch();
                out.push(Hazard::new(Fault::OtherStride { touch, stride, buffer_stride }));
            }
            _ => {}
        }
        match view.reach {
            RowReach::Same if buffer.rows.is_some_and(|(axis, _)| axis != view.axis) => {
                out.push(Hazard::new(Fault::WrongAxis { touch: self.touch() }));
            }
            RowReach::Same => {}
            // A scatter of rows is an indexed write, and those go to state only.
            RowReach::Gather { .. } if self.write => {
                out.push(Hazard::new(Fault::ReachesPadding { touch: self.touch() }));
            }
            RowReach::Gather { via } => {
                self.table(via, out);
                obligations.insert(Obligation::LiveRowsOnly { table: via });
            }
            RowReach::All if padded => {
                out.push(Hazard::new(Fault::ReachesPadding { touch: self.touch() }));
            }
            RowReach::All => {}
        }
    }

    fn indexed(
        &self,
        state: BufferId,
        table: BufferId,
        reserved: bool,
        out: &mut Findings,
        obligations: &mut BTreeSet<Obligation>,
    ) {
        if !matches!(self.plan.buffer(state).kind, BufferKind::State(_)) {
            out.push(Hazard::new(Fault::IndexedNotState { touch: self.touch() }));
        }
        self.table(table, out);
        let buffer = self.plan.buffer(table);
        obligations.insert(Obligation::InRange { state, table });
        obligations.insert(Obligation::HeldUntilComplete { state, table });
        let padded = buffer.rows.is_some_and(|(axis, _)| may_be_padded(self.plan, axis));
        if padded {
            obligations.insert(Obligation::PaddedReserved { state, table });
        }
        if !self.write {
            return;
        }
        obligations.insert(Obligation::WritesExclusive { state, table });
        match buffer.kind {
            BufferKind::Input { padding, .. } => {
                if padded && padding != PaddingPolicy::Word(0) {
                    let (table, touch) = (buffer.name.clone(), self.touch());
                    out.push(Hazard::new(Fault::PaddedTable { table, touch }));
                }
            }
            _ => out.push(Hazard::new(Fault::TableNotInput { touch: self.touch() })),
        }
        if padded && !reserved {
            out.push(Hazard::new(Fault::PaddedWrite { touch: self.touch() }));
        }
    }

    /// The op has to read the table that it goes through.
    fn table(&self, via: BufferId, out: &mut Findings) {
        let reads = |a: &Access| a.buffer() == via && matches!(a, Access::Static { .. });
        if !self.op.reads.iter().any(reads) {
            out.push(Hazard::new(Fault::TableNotRead { touch: self.touch() }));
        }
    }
}

/// A step has at least one token of one sequence, so a single row of those is always live; a
/// step may compute no logits at all.
fn may_be_padded(plan: &StepPlan, axis: Axis) -> bool {
    let rows = axis.rows(plan.bucket);
    rows > 1 || (axis == Axis::R && rows == 1)
}

fn decisions(op: &Op, out: &mut Findings) {
    for d in op.decisions.iter().filter(|d| d.depends_on == DependsOn::LiveBatch) {
        let (op, decision) = (op.name.clone(), d.name.clone());
        out.push(Hazard::new(Fault::Frozen { op, decision }));
    }
}

/// An op declares at least what its kind declares, and writes something.
fn declared(plan: &StepPlan, id: OpId, out: &mut Findings) {
    let op = plan.op(id);
    let reads_out = matches!(op.kind, crate::OpKind::HostRead { .. });
    if op.writes.is_empty() && !reads_out {
        out.push(Hazard::new(Fault::NoWrites { op: op.name.clone() }));
    }
    let needed = declare(&op.kind, &plan.buffers);
    for (needed, have, write) in
        [(&needed.reads, &op.reads, false), (&needed.writes, &op.writes, true)]
    {
        for access in needed.iter().filter(|n| !have.iter().any(|h| covers(h, n))) {
            let touch = Touch::new(plan, id, write, access);
            out.push(Hazard::new(Fault::Undeclared { touch }));
        }
    }
}

/// True where declaring `have` declares all bytes of `need`.
fn covers(have: &Access, need: &Access) -> bool {
    match (have, need) {
        (Access::Static { span: h, .. }, Access::Static { span: n, .. }) => {
            h.buffer == n.buffer && h.offset <= n.offset && n.end() <= h.end()
        }
        (Access::Indexed { buffer: h, via: hv, .. }, Access::Indexed { buffer, via, .. }) => {
            h == buffer && hv == via
        }
        _ => false,
    }
}
