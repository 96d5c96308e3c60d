//! A step in the shape of the one that started this project: layers whose indexer, compressor and
//! KV store run on lanes of their own beside the main one. Ops are `Mix`.

use crate::{
    Access, Axis, BufferId, BufferKind, Elem, LaneId, OpKind, PaddingPolicy, PlanBuilder, RowReach,
    RowView, Span, StateKind, StepPlan, Stride,
};
use lockstep_flow::BucketKey;

const ROW: u64 = 16;

struct Step {
    b: PlanBuilder,
    rows: u64,
    ops: u64,
}

impl Step {
    fn row(&self, buffer: BufferId, row_bytes: u64) -> Access {
        let view =
            RowView { axis: Axis::T, stride: Stride::Capacity(row_bytes), reach: RowReach::Same };
        let span = Span { buffer, offset: 0, len: self.rows * row_bytes };
        Access::Static { span, rows: Some(view) }
    }

    fn x(&self, buffer: BufferId) -> Access {
        self.row(buffer, ROW)
    }

    fn op(&mut self, name: String, lane: LaneId, reads: Vec<Access>, writes: Vec<Access>) {
        self.ops += 1;
        let seed = self.ops;
        self.b.op_with(name, lane, OpKind::Mix { seed }, reads, writes);
    }
}

/// `layers` layers for `rows` rows on up to `lanes` device lanes; lanes beyond the fourth stay
/// unused. It is right: the clean twin of every drill on plans.
pub fn overlapped(layers: usize, rows: u32, lanes: u32) -> StepPlan {
    let mut s =
        Step { b: PlanBuilder::new(BucketKey::decode(rows), lanes), rows: rows.into(), ops: 0 };
    let ids = s.b.table("ids", Axis::T, 1, 0);
    let slots = s.b.table("slots", Axis::T, 1, 0);
    let late = BufferKind::Input { padding: PaddingPolicy::Word(0), late: true };
    let mask = s.b.rows("mask", late, Axis::T, 4, Elem::U32);
    let tokens = s.b.rows("tokens", BufferKind::Output { fetched: true }, Axis::T, ROW, Elem::U32);
    let [side_k, side_c, side_i] = ["kv", "compress", "index"].map(|n| s.b.lane(n));
    let h = s.b.transient("h", Axis::T, ROW, Elem::F32);
    let (id_rows, slot_rows) = (s.row(ids, 4), s.row(slots, 4));
    let first = vec![id_rows];
    let out = vec![s.x(h)];
    s.op("embed".into(), LaneId::MAIN, first, out);
    for l in 0..layers {
        let n = |what: &str| format!("layer{l}.{what}");
        let pages = StateKind::Pages { page_bytes: ROW };
        let [kv, ckv] = ["pages", "cpages"].map(|p| s.b.state(n(p), pages, rows + 3, Elem::F32));
        let through = |buffer| Access::Indexed { buffer, via: slots, reserved_for_padding: true };
        let w = s.b.weight(n("w"), ROW, Elem::F32);
        let w = Access::whole(w, ROW);
        let [x, k, c, q, o] =
            ["x", "k", "c", "q", "o"].map(|t| s.b.transient(n(t), Axis::T, ROW, Elem::F32));
        let [logits, sel] =
            ["logits", "sel"].map(|t| s.b.transient(n(t), Axis::T, 2 * ROW, Elem::F32));
        let scratch = s.b.scratch(n("scratch"), 3 * ROW);
        let scratch = Access::whole(scratch, 3 * ROW);
        let [x, k, c, q, o, h] = [x, k, c, q, o, h].map(|b| s.x(b));
        let [logits, sel] = [logits, sel].map(|b| s.row(b, 2 * ROW));
        s.op(n("norm"), LaneId::MAIN, vec![h, w], vec![x]);
        s.op(n("k"), side_k, vec![x], vec![k]);
        s.op(n("store"), side_k, vec![k, slot_rows], vec![through(kv)]);
        s.op(n("compress"), side_c, vec![x], vec![c]);
        s.op(n("ring"), side_c, vec![c, slot_rows], vec![through(ckv)]);
        s.op(n("q"), LaneId::MAIN, vec![x], vec![q]);
        s.op(n("logits"), side_i, vec![q, slot_rows, through(ckv)], vec![logits, scratch]);
        s.op(n("select"), side_i, vec![logits], vec![sel]);
        let reads = vec![q, sel, slot_rows, through(kv)];
        s.op(n("attention"), LaneId::MAIN, reads, vec![o]);
        s.op(n("out"), LaneId::MAIN, vec![o, h], vec![h]);
    }
    let reads = vec![s.x(h), s.row(mask, 4)];
    let out = vec![s.x(tokens)];
    s.op("sample".into(), LaneId::MAIN, reads, out);
    s.b.finish()
}
