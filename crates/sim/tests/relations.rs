//! The orders that DeepSeek-V4's lanes need (the happens-before relations of its overlap), each by
//! its number.
//!
//! Each relation inside a step is there in the plan as built. Then every path that realises it is
//! cut, and where it is about bytes that change hands, the two buffers are given the same bytes
//! first: `prove` refuses the plan and the two ops are named with the buffer and the missing edge;
//! and with the prover bypassed, the real kernels give other bits in some order in which the second
//! op comes first.
//!
//! Relations 17, 18 and 20 are the host's: between a step and the next one, and in leases. The
//! first two are cut here in plans of the same model; all three have drills of their own.
#![forbid(unsafe_code)]

use lockstep_device::cpu::CpuBackend;
use lockstep_device::lab::Raw;
use lockstep_flow::{BucketKey, Token};
use lockstep_model::{Model, PlanShape};
use lockstep_plan::explore::Extension;
use lockstep_plan::{
    Arenas, EdgeKind, Fault, Hazard, IndexDtype, KvDtype, LaneId, OpId, OpKind, Packing, Proven,
    StepPlan, hazards_between, pack, pack_beside, prove, prove_any_order,
};
use lockstep_plan::{BufferKind, InOutBytes};
use lockstep_sim::OneStep;
use lockstep_sim::drill::DRILLS;
use lockstep_weights::Checkpoint;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Orders tried for one relation.
const ORDERS: u64 = 400;

/// An order that the plan must have.
struct Relation {
    /// As the list of relations numbers it.
    number: u32,
    from: &'static str,
    to: &'static str,
    /// Buffers that share bytes, where the order is about reuse.
    reuse: Option<(&'static str, &'static str)>,
}

const fn data(number: u32, from: &'static str, to: &'static str) -> Relation {
    Relation { number, from, to, reuse: None }
}

const fn reuse(
    number: u32,
    (from, old): (&'static str, &'static str),
    (to, new): (&'static str, &'static str),
) -> Relation {
    Relation { number, from, to, reuse: Some((old, new)) }
}

const RELATIONS: [Relation; 29] = [
    data(1, "layers.2.attn_in", "layers.2.compress_kv_gate"),
    data(1, "layers.2.attn_in", "layers.2.index_compress_kv_gate"),
    data(1, "layers.2.attn_in", "layers.2.index_weights"),
    data(2, "layers.2.wkv", "layers.2.window_store"),
    data(3, "layers.2.q_norm", "layers.2.index_wq_b"),
    data(4, "layers.2.index_weights", "layers.2.index_scores"),
    data(5, "layers.2.index_q_rope", "layers.2.index_scores"),
    data(6, "layers.2.index_compress_rows", "layers.2.index_scores"),
    data(7, "layers.2.index_scores", "layers.2.index_topk"),
    data(8, "layers.2.index_topk", "layers.2.attention"),
    data(9, "layers.2.compress_rows", "layers.2.attention"),
    data(9, "layers.3.compress_rows", "layers.3.attention"),
    data(10, "layers.2.window_store", "layers.2.attention"),
    data(10, "layers.0.window_store", "layers.0.attention"),
    data(11, "host.block_table", "layers.0.attention"),
    data(11, "host.write_slots", "layers.0.window_store"),
    data(11, "host.positions", "layers.0.window_store"),
    data(12, "layers.2.compress_store", "layers.2.compress_rows"),
    data(12, "layers.2.index_compress_store", "layers.2.index_compress_rows"),
    reuse(
        13,
        ("layers.2.attention", "layers.2.selection"),
        ("layers.4.index_topk", "layers.4.selection"),
    ),
    reuse(
        14,
        ("layers.2.index_scores", "layers.2.index_wq_b.out"),
        ("layers.4.index_wq_b", "layers.4.index_wq_b.out"),
    ),
    reuse(
        14,
        ("layers.2.index_scores", "layers.2.index_weights.out"),
        ("layers.4.index_weights", "layers.4.index_weights.out"),
    ),
    reuse(
        15,
        ("layers.2.index_topk", "layers.2.index_scores.out"),
        ("layers.4.index_scores", "layers.4.index_scores.out"),
    ),
    reuse(
        16,
        ("layers.2.compress_kv_gate", "layers.2.attn_in.row"),
        ("layers.2.ffn_in", "layers.2.ffn_in.row"),
    ),
    reuse(
        16,
        ("layers.2.index_compress_kv_gate", "layers.2.attn_in.row"),
        ("layers.2.ffn_in", "layers.2.ffn_in.row"),
    ),
    reuse(
        16,
        ("layers.2.index_weights", "layers.2.attn_in.row"),
        ("layers.2.ffn_in", "layers.2.ffn_in.row"),
    ),
    reuse(
        16,
        ("layers.2.index_wq_b", "layers.2.q_norm.out"),
        ("layers.3.q_norm", "layers.3.q_norm.out"),
    ),
    reuse(16, ("layers.2.window_store", "layers.2.wkv.out"), ("layers.3.wkv", "layers.3.wkv.out")),
    reuse(
        19,
        ("layers.2.index_compress_store", "layers.2.index_compress_kv_gate.out"),
        ("layers.3.compress_kv_gate", "layers.3.compress_kv_gate.out"),
    ),
];

/// The lanes of a plan as the model makes it.
const LANES: u32 = 8;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
    Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"))
}

/// A prompt past one row of 128 tokens and past the rows that are selected.
fn prompt() -> Vec<Token> {
    (0..150).map(|i| Token(3 + i * 37 % 500)).collect()
}

fn op(plan: &StepPlan, name: &str) -> OpId {
    let found = plan.op_ids().find(|id| plan.op(*id).name == name);
    found.unwrap_or_else(|| panic!("the plan has no op {name}"))
}

/// Gives both buffers the same new bytes behind the arena.
fn share(plan: &StepPlan, packing: &Packing, old: &str, new: &str) -> Packing {
    let (old, new) = (plan.find(old).unwrap(), plan.find(new).unwrap());
    let at = packing.arena_bytes().next_multiple_of(64);
    let bytes = plan.buffer(old).bytes.max(plan.buffer(new).bytes);
    let mut offsets = packing.offsets().to_vec();
    offsets[old.index()] = Some(at);
    offsets[new.index()] = Some(at);
    Packing::from_offsets(offsets, at + bytes.next_multiple_of(64))
}

/// What an op is followed by: the next of its lane, and those that wait for it.
fn successors(plan: &StepPlan, id: OpId) -> Vec<OpId> {
    let lane = plan.op(id).lane;
    let next = plan.op_ids().find(|o| *o > id && plan.op(*o).lane == lane);
    let edges = plan.edges.iter().filter(|e| e.from == id && e.kind == EdgeKind::Event);
    next.into_iter().chain(edges.map(|e| e.to)).collect()
}

fn reach(plan: &StepPlan, from: OpId) -> BTreeSet<OpId> {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(id) = open.pop() {
        open.extend(successors(plan, id).into_iter().filter(|s| seen.insert(*s)));
    }
    seen
}

/// Cuts every path between the two ops: an op that shares a lane with the other gets its own, and
/// no edge of a path stays.
fn cut(plan: &mut StepPlan, from: OpId, to: OpId) {
    if plan.op(from).lane == plan.op(to).lane {
        plan.lanes.push("cut".into());
        plan.ops[to.index()].lane = LaneId(plan.lanes.len() as u8 - 1);
    }
    let after = reach(plan, from);
    let before: BTreeSet<OpId> =
        after.iter().copied().filter(|id| reach(plan, *id).contains(&to)).collect();
    plan.edges.retain(|e| {
        e.kind != EdgeKind::Event || !(before.contains(&e.from) && before.contains(&e.to))
    });
    assert!(!reach(plan, from).contains(&to), "a path is left");
}

/// Asserts that a hazard names the two ops, what they touch and the edge that is missing.
fn assert_named(r: &Relation, hazards: &[Hazard], what: &str) {
    let named = hazards.iter().find(|h| {
        let touches = h.touches();
        let ops: Vec<&str> = touches.iter().map(|t| t.op_name.as_str()).collect();
        let kind = match (&h.fault, r.reuse) {
            (Fault::Race { first, .. }, None) => !first.buffer_name.is_empty(),
            (Fault::Aliasing { first, second, .. }, Some((old, new))) => {
                (first.buffer_name.as_str(), second.buffer_name.as_str()) == (old, new)
            }
            _ => false,
        };
        kind && ops == [r.from, r.to] && h.missing.is_some()
    });
    let named = named.unwrap_or_else(|| panic!("{what}: not named in {hazards:?}"));
    let words = named.to_string();
    let fix = format!("record an event after {}", r.from);
    assert!(words.contains(&fix) && words.contains(&format!("before {}", r.to)), "{words}");
}

#[test]
fn every_relation_is_there_and_its_absence_is_named_and_seen() {
    let mut step = OneStep::new(&model(), &prompt(), LANES).unwrap_or_else(|e| panic!("{e}"));
    let whole = step.plan().clone();
    assert_eq!(whole.lanes.len(), 7, "the host, and six lanes: {:?}", whole.lanes);
    let packed = pack(&whole);
    let clean = Raw { plan: whole.clone(), packing: packed.clone(), kernels: None };
    let differs = step.first_difference(&clean, 0..40, |_| true).unwrap();
    assert_eq!(differs, None, "the plan as built gives the same bits in every order");
    let mut numbers = BTreeSet::new();
    for r in &RELATIONS {
        let what = format!("relation {}: {} before {}", r.number, r.from, r.to);
        let (from, to) = (op(&whole, r.from), op(&whole, r.to));
        assert!(reach(&whole, from).contains(&to), "{what}: not there");
        let packing = match r.reuse {
            Some((old, new)) => share(&whole, &packed, old, new),
            None => packed.clone(),
        };
        prove(whole.clone(), packing.clone()).unwrap_or_else(|h| panic!("{what}: {}", h[0]));
        assert_eq!(hazards_between(&whole, &packing, from, to), [], "{what}");
        let mut less = whole.clone();
        cut(&mut less, from, to);
        prove(less.clone(), packing.clone()).map(|_| ()).expect_err(&what);
        assert_named(r, &hazards_between(&less, &packing, from, to), &what);
        let raw = Raw { plan: less, packing, kernels: None };
        let place = |order: &Extension, op| order.order.iter().position(|o| o.op == op);
        let wanted = |order: &Extension| place(order, to) < place(order, from);
        let seed = step.first_difference(&raw, 0..ORDERS, wanted).unwrap();
        let seed = seed.unwrap_or_else(|| panic!("{what}: no order of {ORDERS} differs"));
        println!("{what}: seen in order {seed}");
        numbers.insert(r.number);
    }
    let inside: BTreeSet<u32> = (1..=16).chain([19]).collect();
    assert_eq!(numbers, inside);
}

/// With overlap off there is one lane beside the host, and no edge between device ops; and real
/// kernels give the bits of many lanes (`deepseek_v4_gives_the_same_bits_however_it_runs`).
#[test]
fn one_lane_has_every_relation_by_itself() {
    let step = OneStep::new(&model(), &prompt(), 1).unwrap_or_else(|e| panic!("{e}"));
    let plan = step.plan();
    assert_eq!(plan.lanes, ["host", "main"]);
    let device = |id: OpId| plan.op(id).lane != LaneId::HOST;
    assert!(!plan.edges.iter().any(|e| device(e.from) && device(e.to)));
    prove(plan.clone(), pack(plan)).unwrap_or_else(|h| panic!("{}", h[0]));
}

/// Two decode buckets of the model in one arena.
fn buckets() -> [StepPlan; 2] {
    let shape = PlanShape {
        pages: 65,
        slots: 9,
        context_tokens: 512,
        kv_dtype: KvDtype::F32,
        index_dtype: IndexDtype::F32,
        lanes: LANES,
        drafts: 0,
    };
    let model = model();
    [4, 8].map(|rows| model.plan(&CpuBackend, &shape, BucketKey::decode(rows)).unwrap())
}

/// Relation 17: all readers of a step's inputs before the host writes those of the next.
#[test]
fn the_next_step_s_inputs_wait_for_the_readers_of_this_one() {
    let [plan, _] = buckets();
    let packing = pack(&plan);
    let mut less = plan.clone();
    let host = |op: OpId| matches!(plan.op(op).kind, OpKind::HostWrite { .. });
    less.edges.retain(|e| e.kind != EdgeKind::NextStep || !host(e.to));
    prove(less.clone(), packing.clone()).map(|_| ()).expect_err("the host may overtake");
    let mut pairs = 0;
    for write in plan.op_ids().filter(|op| host(*op)) {
        let OpKind::HostWrite { input } = plan.op(write).kind else { continue };
        let reads = |op: &OpId| plan.op(*op).reads.iter().any(|a| a.buffer() == input);
        for reader in plan.op_ids().filter(reads) {
            assert_eq!(hazards_between(&plan, &packing, reader, write), []);
            let hazards = hazards_between(&less, &packing, reader, write);
            let (reader, write) = (&plan.op(reader).name, &plan.op(write).name);
            let words = hazards.first().map(ToString::to_string);
            let words = words.unwrap_or_else(|| panic!("{reader} and {write} are not named"));
            let fix = format!("wait for it before {write} of the next step");
            assert!(words.contains(reader.as_str()) && words.contains(&fix), "{words}");
            pairs += 1;
        }
    }
    assert!(pairs > 100, "{pairs} pairs of a reader and the next write");
    assert!(DRILLS.iter().any(|d| d.name == "input-written-during-replay" && d.plan.is_some()));
}

/// Relation 18: the last reader of one graph's bytes before the first op of another that shares
/// the arena. Device lanes end before others begin; what the host still reads has to be out of the
/// other's way.
#[test]
fn a_bucket_s_results_are_read_before_another_writes_their_bytes() {
    let plans = buckets();
    let room = plans.iter().map(InOutBytes::of).fold(InOutBytes::default(), InOutBytes::join);
    let proven = |plan: &StepPlan, room| {
        prove(plan.clone(), pack_beside(plan, room)).unwrap_or_else(|h| panic!("{}", h[0]))
    };
    let both: Vec<Proven> = plans.iter().map(|p| proven(p, room)).collect();
    let both: Vec<&Proven> = both.iter().collect();
    prove_any_order(&both, Arenas::Shared).unwrap_or_else(|h| panic!("{}", h[0]));
    // Each packed as if it were alone: the larger one's results lie on the smaller one's transients.
    let alone: Vec<Proven> = plans.iter().map(|p| proven(p, InOutBytes::of(p))).collect();
    let alone: Vec<&Proven> = alone.iter().collect();
    let hazards = prove_any_order(&alone, Arenas::Shared).expect_err("they share bytes");
    // One of a hazard's ops is the host's, and the two are of different buckets.
    let crossing = |h: &Hazard| {
        let touches = h.touches();
        let bucket = |i: usize| touches[i].op_name.split('/').next();
        touches.len() == 2
            && bucket(0) != bucket(1)
            && touches.iter().any(|t| t.op_name.contains("/host."))
    };
    assert!(hazards.iter().all(crossing), "{}", hazards[0]);
    // And in one bucket's own sequence of steps: a result's reader before the next replay.
    let plan = &plans[0];
    let output = |e: &lockstep_plan::Edge| {
        let reads = matches!(plan.op(e.from).kind, OpKind::HostRead { .. });
        e.kind == EdgeKind::NextStep && reads
    };
    let mut less = plan.clone();
    less.edges.retain(|e| !output(e));
    assert!(less.edges.len() < plan.edges.len(), "results are waited for");
    let hazards =
        prove(less, pack(plan)).map(|_| ()).expect_err("the next replay may overtake the reader");
    let of_output = |h: &Hazard| {
        let is = |b| matches!(plan.buffer(b).kind, BufferKind::Output { .. });
        h.touches().iter().any(|t| is(t.buffer))
    };
    assert!(hazards.iter().any(of_output), "{}", hazards[0]);
    assert!(DRILLS.iter().any(|d| d.name == "output-read-after-next-replay" && d.plan.is_some()));
}

/// Relation 20: a page is given away only after every step that may read it. It is the lease's:
/// see the drill, whose books free a page while a step is in flight.
#[test]
fn a_page_in_flight_has_its_drill() {
    let drill = DRILLS.iter().find(|d| d.name == "page-freed-in-flight").expect("it is there");
    assert!(drill.books.is_some() && drill.strike.is_some());
}
