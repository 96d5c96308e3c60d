//! Clean plans never differ, in whatever order: synthetic ones on up to eight lanes, and every
//! bucket of the tiny models under the real engine.

use lockstep_device::lab::Raw;
use lockstep_flow::BucketKey;
use lockstep_model::Model;
use lockstep_plan::drill::{PlanFault, overlapped};
use lockstep_plan::{
    Access, Axis, BufferId, BufferKind, Elem, LaneId, OpKind, PlanBuilder, StateKind, StepPlan,
    pack, prove,
};
use lockstep_sim::explorer::Explorer;
use lockstep_sim::{Rng, Scene};
use lockstep_weights::Checkpoint;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Ops on random lanes, each reading some transients written before and writing one, some of them
/// through pages.
fn random_plan(lanes: u32, seed: u64) -> StepPlan {
    let mut rng = Rng::new(seed);
    let mut b = PlanBuilder::new(BucketKey::decode(1), lanes);
    let ids = b.table("ids", Axis::T, 4, 0);
    let out = b.rows("out", BufferKind::Output { fetched: true }, Axis::T, 16, Elem::U32);
    let pages = b.state("pages", StateKind::Pages { page_bytes: 8 }, 4, Elem::U32);
    let names: Vec<LaneId> = (1..=lanes)
        .map(|l| if l == 1 { LaneId::MAIN } else { b.lane(&format!("lane{l}")) })
        .collect();
    let mut written: Vec<(BufferId, u64)> = vec![(ids, 16)];
    let whole = |(id, bytes): (BufferId, u64)| Access::whole(id, bytes);
    let through = Access::Indexed { buffer: pages, via: ids, reserved_for_padding: true };
    for i in 0..12 + 4 * lanes {
        let mut reads: Vec<Access> =
            (0..1 + rng.below(3)).filter_map(|_| rng.pick(&written)).map(whole).collect();
        let bytes = 8 + rng.below(24);
        let to = (b.scratch(format!("t{i}"), bytes), bytes);
        let mut writes = vec![whole(to)];
        if rng.below(4) == 0 {
            reads.push(whole((ids, 16)));
            if rng.below(2) == 0 { reads.push(through) } else { writes.push(through) }
        }
        let lane = rng.pick(&names).unwrap();
        b.op_with(format!("op{i}"), lane, OpKind::Mix { seed: rng.bits() }, reads, writes);
        written.push(to);
    }
    let reads = written.iter().rev().take(4).map(|w| whole(*w)).collect();
    let writes = vec![whole((out, 16))];
    b.op_with("last", LaneId::MAIN, OpKind::Mix { seed: 1 }, reads, writes);
    b.finish()
}

fn explorer(plan: &StepPlan) -> Explorer {
    let packing = pack(plan);
    prove(plan.clone(), packing.clone()).unwrap_or_else(|h| panic!("{}", h[0]));
    Explorer::new(Raw { plan: plan.clone(), packing, kernels: None }).unwrap()
}

#[test]
fn clean_plans_on_two_to_eight_lanes_never_differ() {
    for lanes in 2..=8 {
        for seed in 0..6 {
            let plan = random_plan(lanes, seed);
            assert_eq!(plan.lanes.len() as u32, lanes + 1, "with the host's");
            let mut explorer = explorer(&plan);
            for order in 0..25 {
                assert_eq!(explorer.differs(order).unwrap(), Some(false), "{lanes} {seed} {order}");
            }
            for order in 0..3 {
                let differs = explorer.threads_differ(order, 20).unwrap();
                assert_eq!(differs, Some(false), "{lanes} {seed} {order}, on threads");
            }
        }
    }
}

/// The same seed gives the same verdict, and so brings a failure back.
#[test]
fn a_seed_replays_a_failure() {
    let plan = overlapped(3, 4, 8);
    let faulty = PlanFault::ArenaByIssueOrder.seed(&plan, 0).unwrap();
    let verdicts = || {
        let raw = Raw { plan: faulty.plan.clone(), packing: faulty.packing.clone(), kernels: None };
        let mut explorer = Explorer::new(raw).unwrap();
        (0..40).map(|seed| explorer.differs(seed).unwrap().unwrap()).collect::<Vec<bool>>()
    };
    let first = verdicts();
    assert!(first.contains(&true) && first.contains(&false), "{first:?}");
    assert_eq!(first, verdicts());
}

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny").join(name);
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
    Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"))
}

/// Every bucket of every tiny model, replayed on four lanes in random orders with dead bytes
/// poisoned, gives clients the bits of the ordinary engine.
#[test]
fn every_bucket_of_the_tiny_models_gives_the_same_bits_in_any_order() {
    let names = [
        "llama",
        "llama3-rope",
        "mistral",
        "mistral-window",
        "qwen2",
        "qwen3",
        "gguf/wide-Q4_1.gguf",
        "gguf/wide-Q6_K.gguf",
        "gguf/wide-Q8_0.gguf",
    ];
    for name in names {
        let mut replays: BTreeMap<BucketKey, u64> = BTreeMap::new();
        for (seed, at_once) in [(1, 1), (2, 2), (3, 6)] {
            let scene = Scene {
                seed,
                at_once,
                requests: at_once + 2,
                tokens: 8,
                echo: at_once == 1,
                audit_rate: 0,
                ..Scene::default()
            };
            let plain = scene.play_on(model(name)).unwrap();
            let lanes = Scene { lanes: true, ..scene.clone() }.play_on(model(name)).unwrap();
            assert!(plain.failures.is_empty(), "{name}: {:?}", plain.failures);
            assert_eq!(plain.seen, lanes.seen, "{name}, scene {seed}");
            if name == "llama" {
                let threads = Scene { threads: true, ..scene.clone() };
                let threads = threads.play_on(model(name)).unwrap();
                assert_eq!(plain.seen, threads.seen, "{name} on threads, scene {seed}");
            }
            for (key, n) in lanes.buckets {
                *replays.entry(key).or_default() += n;
            }
        }
        let idle: Vec<_> = replays.iter().filter(|(_, n)| **n == 0).collect();
        assert!(idle.is_empty() && replays.len() >= 6, "{name}: never replayed: {idle:?}");
    }
}
