//! A model's plan on more lanes than it asks for.
//!
//! The plans of the Llama family are chains on one lane, and a chain has nothing to get out of
//! order. [`spread`] puts attention on a lane of its own and, beside every norm of a layer, two
//! side ops on lanes of their own that work on the norm's result, as an indexer or a compressor
//! would. The model's own ops stay what they are, so every bit that a client sees stays the same;
//! what changes is what may go wrong.

use lockstep_plan::{
    Access, Axis, Buffer, BufferId, BufferKind, Elem, LaneId, Op, OpKind, RowReach, RowView, Span,
    StepPlan, Stride, derive_edges,
};

/// The plan on four device lanes, its edges derived anew.
pub fn spread(plan: &StepPlan) -> StepPlan {
    let mut out = plan.clone();
    out.edges.clear();
    let lane = |out: &mut StepPlan, name: &str| {
        out.lanes.push(name.into());
        LaneId(out.lanes.len() as u8 - 1)
    };
    let attention = lane(&mut out, "attention");
    let sides = [lane(&mut out, "side"), lane(&mut out, "fold")];
    let ops = core::mem::take(&mut out.ops);
    for mut op in ops {
        let on_attention = matches!(
            op.kind,
            OpKind::RopeKvWrite(_) | OpKind::AttentionPartial(_) | OpKind::AttentionCombine(_)
        );
        if on_attention {
            op.lane = attention;
        }
        let of_layer = op.name.starts_with("layers.");
        let norm = match &op.kind {
            OpKind::RmsNorm(n) if n.axis == Axis::T && of_layer => n.out.or(n.out_q),
            _ => None,
        };
        let name = op.name.clone();
        out.ops.push(op);
        if let Some(from) = norm {
            side_ops(&mut out, &name, from, sides);
        }
    }
    derive_edges(&mut out);
    out
}

/// Two ops in a row on two lanes: a hash of each row, and a hash of that.
fn side_ops(out: &mut StepPlan, name: &str, from: BufferId, lanes: [LaneId; 2]) {
    let Some((axis, row_bytes)) = out.buffer(from).rows else { return };
    let mut source = from;
    for (step, lane) in lanes.into_iter().enumerate() {
        let to = BufferId(out.buffers.len() as u32);
        let bytes = out.buffer(from).bytes;
        out.buffers.push(Buffer {
            name: format!("{name}.side{step}"),
            bytes,
            align: 64,
            kind: BufferKind::Transient,
            rows: Some((axis, row_bytes)),
            elem: Elem::Opaque,
        });
        let access = |buffer| {
            let stride = Stride::Capacity(row_bytes);
            let rows = Some(RowView { axis, stride, reach: RowReach::Same });
            Access::Static { span: Span { buffer, offset: 0, len: bytes }, rows }
        };
        let mut writes = vec![access(to)];
        if step == 0 {
            // Scratch that the op alone uses, as an indexer's is.
            let scratch = BufferId(out.buffers.len() as u32);
            out.buffers.push(Buffer {
                name: format!("{name}.scratch"),
                bytes,
                align: 64,
                kind: BufferKind::Transient,
                rows: None,
                elem: Elem::Opaque,
            });
            writes.push(Access::whole(scratch, bytes));
        }
        out.ops.push(Op {
            name: format!("{name}.side{step}"),
            kind: OpKind::Mix { seed: u64::from(to.0) },
            reads: vec![access(source)],
            writes,
            lane,
            decisions: Vec::new(),
        });
        source = to;
    }
}
