//! A plan of many ops: a residual stream on the main lane, branches of random lengths on the
//! others, joined again and again.

use lockstep_flow::BucketKey;
use lockstep_plan::{
    Access, Axis, BufferId, BufferKind, Elem, LaneId, OpKind, PaddingPolicy, PlanBuilder, StepPlan,
};

/// `ops` device ops on `lanes` device lanes; the host's come on top.
pub fn plan(ops: usize, lanes: u32) -> StepPlan {
    let mut b = PlanBuilder::new(BucketKey::decode(1), lanes);
    let kind = BufferKind::Input { padding: PaddingPolicy::NoRows, late: false };
    let input = b.rows("in", kind, Axis::T, 256, Elem::F32);
    let output = b.rows("out", BufferKind::Output { fetched: true }, Axis::T, 256, Elem::F32);
    let h = b.scratch("h", 4096);
    let names: Vec<String> = (1..lanes).map(|l| format!("side{l}")).collect();
    let side: Vec<LaneId> = names.iter().map(|n| b.lane(n)).collect();
    let mut state = 7u64;
    let mut below = move |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let whole = |b: BufferId, bytes: u64| Access::whole(b, bytes);
    let mut count = 0;
    let mut op = |b: &mut PlanBuilder, lane, reads: Vec<Access>, writes: Vec<Access>| {
        b.op_with(format!("op{count}"), lane, OpKind::Mix { seed: count }, reads, writes);
        count += 1;
        count as usize
    };
    let mut done = op(&mut b, LaneId::MAIN, vec![whole(input, 256)], vec![whole(h, 4096)]);
    while done + 2 * side.len() + 2 < ops {
        let mut join = vec![whole(h, 4096)];
        for &lane in &side {
            let mut last = whole(h, 4096);
            for _ in 0..1 + below(2) {
                let bytes = 64 * (1 + below(64));
                let t = b.scratch(format!("t{done}"), bytes);
                done = op(&mut b, lane, vec![last], vec![whole(t, bytes)]);
                last = whole(t, bytes);
            }
            join.push(last);
        }
        done = op(&mut b, LaneId::MAIN, join, vec![whole(h, 4096)]);
    }
    while done + 1 < ops {
        done = op(&mut b, LaneId::MAIN, vec![whole(h, 4096)], vec![whole(h, 4096)]);
    }
    op(&mut b, LaneId::MAIN, vec![whole(h, 4096)], vec![whole(output, 256)]);
    b.finish()
}
