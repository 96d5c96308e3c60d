//! Random small plans: some right, most nearly right, some nonsense.

use super::Rng;
use lockstep_flow::BucketKey;
use lockstep_plan::{
    Access, BeforeWait, Buffer, BufferId, BufferKind, Edge, EdgeKind, Elem, LaneId, Op, OpId,
    OpKind, Packing, PaddingPolicy, Span, StateKind, StepPlan, derive_edges, pack,
    pack_by_issue_order,
};

/// Sizes of what is generated.
#[derive(Clone, Copy)]
pub struct Size {
    pub lanes: u64,
    pub ops: u64,
    pub buffers: u64,
    pub bytes: u64,
}

pub const SMALL: Size = Size { lanes: 3, ops: 5, buffers: 5, bytes: 4 };

fn buffer(name: String, bytes: u64, kind: BufferKind) -> Buffer {
    Buffer { name, bytes, align: 1, kind, rows: None, elem: Elem::Opaque }
}

fn span(rng: &mut Rng, id: u32, bytes: u64) -> Access {
    let (a, b) = (rng.below(bytes), rng.below(bytes));
    let (lo, hi) = if rng.one_in(2) { (0, bytes) } else { (a.min(b), a.max(b) + 1) };
    let span = Span { buffer: BufferId(id), offset: lo, len: hi - lo };
    Access::Static { span, rows: None }
}

/// Buffers 0 and 1 are an input and an output, 2 is state of 4 blocks, the others transients.
pub fn plan(rng: &mut Rng, size: Size) -> StepPlan {
    let lanes = 1 + rng.below(size.lanes);
    let late = rng.one_in(4);
    let mut buffers = vec![
        buffer(
            "in".into(),
            1 + rng.below(size.bytes),
            BufferKind::Input { padding: PaddingPolicy::NoRows, late },
        ),
        buffer("out".into(), 1 + rng.below(size.bytes), BufferKind::Output { fetched: true }),
        buffer("state".into(), 4, BufferKind::State(StateKind::Pages { page_bytes: 1 })),
    ];
    for i in 0..1 + rng.below(size.buffers) {
        buffers.push(buffer(format!("t{i}"), 1 + rng.below(size.bytes), BufferKind::Transient));
    }
    let n = buffers.len() as u64;
    let mut ops = Vec::new();
    // What program order has defined so far; reads mostly stay inside it.
    let mut defined = vec![0u32, 2];
    let whole =
        |id: u32, buffers: &[Buffer]| Access::whole(BufferId(id), buffers[id as usize].bytes);
    let host = |name: &str, kind, reads, writes| Op {
        name: name.into(),
        kind,
        reads,
        writes,
        lane: LaneId::HOST,
        decisions: Vec::new(),
    };
    let write =
        host("host.in", OpKind::HostWrite { input: BufferId(0) }, vec![], vec![whole(0, &buffers)]);
    ops.push(write);
    let count = 1 + rng.below(size.ops);
    for i in 0..count {
        let mut reads = Vec::new();
        for _ in 0..rng.below(3) {
            let id = if rng.one_in(12) {
                rng.below(n) as u32
            } else {
                defined[rng.below(defined.len() as u64) as usize]
            };
            reads.push(if id == 2 { indexed() } else { span(rng, id, buffers[id as usize].bytes) });
        }
        if reads.iter().any(|a| matches!(a, Access::Indexed { .. })) || rng.one_in(5) {
            reads.push(whole(0, &buffers));
        }
        let mut writes = Vec::new();
        for _ in 0..1 + rng.below(2) {
            let last = i + 1 == count;
            let id = if last { 1 } else { 1 + rng.below(n - 1) as u32 };
            if id == 2 {
                reads.push(whole(0, &buffers));
                writes.push(indexed());
            } else if rng.one_in(4) {
                writes.push(span(rng, id, buffers[id as usize].bytes));
            } else {
                writes.push(whole(id, &buffers));
                defined.push(id);
            }
        }
        let lane = LaneId(1 + rng.below(lanes) as u8);
        let (name, kind) = (format!("op{i}"), OpKind::Mix { seed: rng.next() });
        ops.push(Op { name, kind, reads, writes, lane, decisions: Vec::new() });
    }
    ops.push(host(
        "host.out",
        OpKind::HostRead { output: BufferId(1) },
        vec![whole(1, &buffers)],
        vec![],
    ));
    let names = (0..=lanes).map(|l| if l == 0 { "host".into() } else { format!("lane{l}") });
    let bucket = BucketKey::decode(1);
    StepPlan { bucket, buffers, ops, lanes: names.collect(), edges: Vec::new() }
}

fn indexed() -> Access {
    Access::Indexed { buffer: BufferId(2), via: BufferId(0), reserved_for_padding: true }
}

/// Derived edges, with some lost, some added and some made programmatic; or random ones.
pub fn edges(rng: &mut Rng, plan: &mut StepPlan) {
    derive_edges(plan);
    if rng.one_in(3) {
        return;
    }
    if rng.one_in(2) && !plan.edges.is_empty() {
        let i = rng.below(plan.edges.len() as u64) as usize;
        plan.edges.remove(i);
    }
    let n = plan.ops.len() as u64;
    for _ in 0..rng.below(3) {
        let (a, b) = (rng.below(n) as u32, rng.below(n) as u32);
        let (from, to) = (OpId(a.min(b)), OpId(a.max(b)));
        if rng.one_in(4) {
            let (from, to) = if rng.one_in(2) { (from, to) } else { (to, from) };
            plan.edges.push(Edge { from, to, kind: EdgeKind::NextStep });
        } else if from != to {
            plan.edges.push(Edge { from, to, kind: EdgeKind::Event });
        }
    }
    if rng.one_in(2) {
        programmatic(rng, plan);
    }
}

/// Launches an op programmatically behind its neighbour or another op.
fn programmatic(rng: &mut Rng, plan: &mut StepPlan) {
    let device: Vec<u32> =
        (0..plan.ops.len() as u32).filter(|o| plan.ops[*o as usize].lane != LaneId::HOST).collect();
    let to = device[rng.below(device.len() as u64) as usize];
    let lane = plan.ops[to as usize].lane;
    let neighbour = device.iter().rev().find(|o| **o < to && plan.ops[**o as usize].lane == lane);
    let earlier: Vec<u32> = device.iter().copied().filter(|o| *o < to).collect();
    let from = match neighbour {
        Some(o) if !rng.one_in(3) => *o,
        _ if earlier.is_empty() => return,
        _ => earlier[rng.below(earlier.len() as u64) as usize],
    };
    let before_wait =
        BeforeWait { reads: rng.next() & rng.next(), writes: rng.next() & rng.next() };
    let kind = EdgeKind::Programmatic { before_wait };
    plan.edges.push(Edge { from: OpId(from), to: OpId(to), kind });
}

/// By the partial order, by issue order, or with one buffer put somewhere else.
pub fn packing(rng: &mut Rng, plan: &StepPlan) -> Packing {
    match rng.below(4) {
        0 | 1 => pack(plan),
        2 => pack_by_issue_order(plan),
        _ => {
            let good = pack(plan);
            let mut offsets = good.offsets().to_vec();
            let i = rng.below(offsets.len() as u64 - 3) as usize + 3;
            let room = good.arena_bytes() - plan.buffers[i].bytes;
            let first = good.report().input_bytes + good.report().output_bytes;
            offsets[i] = Some(first + rng.below(room.saturating_sub(first) + 1));
            Packing::from_offsets(offsets, good.arena_bytes())
        }
    }
}
