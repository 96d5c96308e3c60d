//! The step path takes no memory in the steady state, and nothing runs on it that is not sealed or
//! whose lease is another bucket's; a device that has failed stays so.
#![forbid(unsafe_code)]

mod common;

use common::models::tiny;
use common::{Probe, Rig};
use lockstep_device::{CpuDevice, Device, DeviceError, ExecId, Mode};
use lockstep_engine::{EngineError, LoopTurn, ProvenBucket, plan_shape, prove_all};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{
    AuditPart, BucketKey, Event, EventSink, RequestId, SamplingParams, Seed, SlotId, Token,
};
use lockstep_model::PlanShape;
use lockstep_plan::Proven;
use lockstep_pool::{OwnTables, Pool, PoolConfig, RowPlan, StepLease};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts tokens and ends; takes no memory.
#[derive(Clone, Default)]
struct Quiet(Arc<[AtomicU64; 2]>);

impl EventSink for Quiet {
    fn emit(&mut self, event: Event) -> bool {
        self.0[usize::from(event.kind.is_final())].fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Sixteen requests of every kind of sampling, some longer than the chunk.
fn load() -> Vec<Probe> {
    let probe = |i: u32| {
        let bias = (0..i * 3).map(|t| (Token(t), 0.5)).collect();
        let params = SamplingParams {
            temperature: if i.is_multiple_of(3) { 0.0 } else { 0.8 },
            top_p: if i.is_multiple_of(2) { 0.9 } else { 1.0 },
            top_k: if i.is_multiple_of(5) { 20 } else { 0 },
            repetition_penalty: if i.is_multiple_of(4) { 1.2 } else { 1.0 },
            presence_penalty: if i.is_multiple_of(7) { 0.4 } else { 0.0 },
            logit_bias: bias,
            seed: Seed(u64::from(i)),
            max_tokens: 20 + 9 * i,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let forced = (i == 5).then(|| (0..30).map(Token).collect());
        let prompt = (0..1 + 41 * i).map(|t| 3 + (t * 7 + i) % 250);
        Probe { forced, ..Probe::new(prompt, params) }
    };
    (0..16).map(probe).collect()
}

/// Allocations on the step thread from the first step after the load was taken over to the last.
fn allocations(rig: &Rig, load: &[Probe]) -> (u64, lockstep_flow::status::Counters) {
    let (count, status) = measured(rig, load);
    (count, status.counters)
}

fn measured(rig: &Rig, load: &[Probe]) -> (u64, lockstep_flow::EngineStatus) {
    let device = CpuDevice::new(rig.threads, rig.isa).unwrap();
    let mut engine = rig.engine_on(&tiny("qwen3"), Box::new(device), false);
    let sink = Quiet::default();
    for (i, probe) in load.iter().enumerate() {
        engine.handle.submit(probe.request(i as u64), Box::new(sink.clone())).unwrap();
    }
    // The first turn takes the requests over, which is allowed to take memory.
    assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    let before = engine.handle.status().counters;
    let info = allocation_counter::measure(|| while engine.steps.turn() == LoopTurn::Stepped {});
    let mut status = engine.handle.status();
    let counters = &mut status.counters;
    assert_eq!(sink.0[1].load(Ordering::Relaxed), load.len() as u64, "every request ended");
    assert_eq!(counters.finished, load.len() as u64);
    counters.steps -= before.steps;
    (info.count_total, status)
}

#[test]
fn a_step_takes_no_memory() {
    for threads in [1, 2] {
        let rig = Rig { threads, ..Rig::default().with(|k| k.chunk_tokens = 64) };
        let (count, c) = allocations(&rig, &load());
        assert!(c.steps > 200 && c.prefill_steps_captured > 50, "{c:?}");
        assert_eq!(c.decode_steps, c.decode_steps_captured, "{c:?}");
        assert!(c.decode_steps > 100, "{c:?}");
        assert_eq!(count, 0, "allocations in {} steps on {threads} threads", c.steps);
    }
}

/// Nor where the prefix index is filled, and pages are evicted and requests preempted.
#[test]
fn a_step_takes_no_memory_in_a_full_pool() {
    let rig = Rig::default().with(|k| {
        k.chunk_tokens = 64;
        k.prefix_cache = true;
        k.kv_bytes = 26 * (2 * 2 * 2 * 32 * 4 * 32 + 128);
    });
    let growing = |mut probe: Probe| {
        probe.prompt = probe.prompt.iter().take(20).copied().collect();
        probe.params.max_tokens = 160;
        probe
    };
    let load: Vec<Probe> = load().into_iter().map(growing).collect();
    let (count, c) = allocations(&rig, &load);
    assert!(c.preemptions > 0 && c.evicted_pages > 0, "{c:?}");
    assert_eq!(count, 0, "allocations in {} steps", c.steps);
}

/// Nor where the audit takes the digests of pages that close, compares every page that a step
/// reads and sweeps pages and weights. (A twin is an eager step, which takes memory: one step in a
/// thousand by default.)
#[test]
fn a_step_takes_no_memory_for_the_audit_of_pages_weights_and_tables() {
    let rig = Rig::default().with(|k| {
        k.chunk_tokens = 64;
        k.prefix_cache = true;
        k.audit_rate = 1 << 30;
        k.audit_proof_age = lockstep_flow::Micros(0);
    });
    let (count, status) = measured(&rig, &load());
    let (audit, c) = (&status.audit, &status.counters);
    assert!(c.steps > 200 && audit.pages_closed > 100, "{c:?} {audit:?}");
    assert!(audit.part(AuditPart::Pages).audits > 1000, "{audit:?}");
    assert!(audit.part(AuditPart::Weights).audits > 0, "{audit:?}");
    assert_eq!(audit.part(AuditPart::Twin).audits, 0, "{audit:?}");
    assert_eq!(count, 0, "allocations in {} steps", c.steps);
}

/// An eager step resolves every op anew, which takes memory: the counter sees the device.
#[test]
fn the_counter_counts_the_device() {
    let (count, c) = allocations(&Rig::default().with(|k| k.eager = true), &load());
    assert!(count >= c.steps, "{count} allocations in {} steps", c.steps);
}

/// A device with one plan captured and not sealed, and a pool that signs for it.
struct Bench {
    device: CpuDevice,
    exec: ExecId,
    proven: Arc<Proven>,
    pool: Pool,
    shape: PlanShape,
    slot: SlotId,
    next: u32,
}

const ONE: BucketKey = BucketKey::decode(1);
const TWO: BucketKey = BucketKey::decode(2);

impl Bench {
    fn new() -> Bench {
        let (model, knobs) = (common::model(&tiny("llama")), Rig::default().knobs);
        let mut device = CpuDevice::new(1, "auto").unwrap();
        let backend = device.backend();
        let shape = plan_shape(&knobs, &model, backend.as_ref()).unwrap();
        let keys = [(ONE, Mode::Captured), (TWO, Mode::Captured)];
        let proven = prove_all(&model, backend.as_ref(), &shape, &keys).unwrap();
        let bytes = proven.iter().map(|b| b.proven.packing().arena_bytes()).max().unwrap();
        let arena = device.arena(bytes).unwrap();

        // What the plan binds has to be there before it can be captured.
        let unbound = device.capture(&proven[0].proven, arena).unwrap_err();
        assert!(matches!(unbound, DeviceError::Unbound { .. }), "{unbound}");
        let load = |name: &str, data: lockstep_plan::WeightData<'_>, _| {
            device.load_weight(name, data).map_err(EngineError::from)
        };
        model.load(&shape, load).unwrap();
        for (name, bytes) in model.sub_pools(backend.as_ref(), &shape).unwrap().remove(0).buffers {
            device.bind_state(&name, bytes * u64::from(shape.pages)).unwrap();
        }
        for (name, bytes) in model.slot_states() {
            device.bind_state(&name, bytes * u64::from(shape.slots)).unwrap();
        }
        let small = device.arena(64).unwrap();
        let refused = device.capture(&proven[0].proven, small).unwrap_err();
        assert!(matches!(refused, DeviceError::Binding { .. }), "{refused}");

        let ProvenBucket { proven, .. } = proven[0].clone();
        let exec = device.capture(&proven, arena).unwrap();
        let mut pool = Pool::new(PoolConfig {
            id: 1,
            pages: shape.pages,
            slots: 4,
            pages_per_seq_max: shape.pages_per_seq_max(),
            rows_max: 4,
            steps_in_flight_max: 1,
            sub_pools: Vec::new(),
            slot_snapshots: false,
        })
        .unwrap();
        let slot = pool.begin(RequestId(1), 0, &[]).unwrap().slot;
        pool.extend(slot, RequestId(1), PAGE_TOKENS).unwrap();
        Bench { device, exec, proven, pool, shape, slot, next: 0 }
    }

    /// A lease of one row in `bucket`; its tables are written to the device where it is the
    /// plan's own bucket.
    fn lease(&mut self, bucket: BucketKey) -> StepLease {
        let mut tables = OwnTables::new(bucket, self.shape.pages_per_seq_max());
        let row = RowPlan::drawing(RequestId(1), self.slot, self.next, 1);
        self.next += 1;
        self.pool.lease([row].into_iter(), bucket, &mut tables.view()).unwrap()
    }
}

#[test]
fn a_replay_before_seal_is_refused() {
    let mut bench = Bench::new();
    let lease = bench.lease(ONE);
    for run in [CpuDevice::replay, CpuDevice::eager] {
        let refused = run(&mut bench.device, bench.exec, &lease).unwrap_err();
        let expected = DeviceError::State { asked: "a replay", state: "not sealed" };
        assert_eq!(refused, expected);
    }
    bench.device.seal(bench.exec).unwrap();
    bench.device.replay(bench.exec, &lease).unwrap();
    bench.device.eager(bench.exec, &lease).unwrap();
    bench.pool.complete(lease).unwrap();
}

#[test]
fn a_lease_of_another_bucket_is_refused() {
    let mut bench = Bench::new();
    bench.device.seal(bench.exec).unwrap();
    let lease = bench.lease(TWO);
    for run in [CpuDevice::replay, CpuDevice::eager] {
        let refused = run(&mut bench.device, bench.exec, &lease).unwrap_err();
        let words = "executable decode-1 was given a lease for decode-2";
        assert_eq!(refused.to_string(), words);
    }
    bench.pool.complete(lease).unwrap();
    // The refusal was the lease's fault: the device goes on.
    let lease = bench.lease(ONE);
    bench.device.replay(bench.exec, &lease).unwrap();
    bench.pool.complete(lease).unwrap();
}

#[test]
fn a_failed_device_refuses_every_later_step() {
    let mut bench = Bench::new();
    bench.device.seal(bench.exec).unwrap();
    let lease = bench.lease(ONE);
    bench.device.replay(bench.exec, &lease).unwrap();
    bench.device.break_threads("a kernel read past its rows");
    let failed = bench.device.replay(bench.exec, &lease).unwrap_err();
    assert!(failed.to_string().contains("a kernel read past its rows"), "{failed}");
    for run in [CpuDevice::replay, CpuDevice::eager] {
        assert_eq!(run(&mut bench.device, bench.exec, &lease).unwrap_err(), failed);
    }
    bench.pool.abandon(lease).unwrap();
}

/// An arena that was made, filled and captured in on another thread runs like one that was not;
/// lent, it does not run; and what is uninstalled is gone from the accounts.
#[test]
fn an_arena_made_away_runs_and_goes() {
    let mut bench = Bench::new();
    bench.device.seal(bench.exec).unwrap();
    let before = bench.device.memory();
    let (workshop, proven) = (bench.device.workshop(), bench.proven.clone());
    let bytes = proven.packing().arena_bytes();
    let away = std::thread::spawn(move || {
        let mut away = workshop.arena(bytes).unwrap();
        away.capture(&proven).unwrap();
        assert_eq!(away.seal().unwrap(), 1);
        away.fill(bytes, 0xA5);
        away
    });
    let (arena, execs) = bench.device.install(away.join().unwrap()).unwrap();
    assert_eq!(bench.device.memory().arena_bytes, before.arena_bytes + bytes);
    let lease = bench.lease(ONE);
    let counts = bench.proven.plan().find(lockstep_plan::LIVE_COUNTS).unwrap();
    for word in bench.device.input_mut(bench.exec, counts).chunks_mut(4) {
        word[0] = 1;
    }
    bench.device.copy_inputs(bench.exec, execs[0]);
    bench.device.replay(bench.exec, &lease).unwrap();
    bench.device.replay(execs[0], &lease).unwrap();
    let logits = bench.proven.plan().find("logits").unwrap();
    let len = bench.proven.plan().buffer(logits).bytes;
    assert_eq!(bench.device.first_difference(bench.exec, execs[0], logits, len), None);

    let lent = bench.device.lend(arena).unwrap();
    let refused = bench.device.replay(execs[0], &lease).unwrap_err();
    let expected = DeviceError::State { asked: "a step", state: "without its arena" };
    assert_eq!(refused, expected);
    assert_eq!(bench.device.memory().arenas, before.arenas + 1, "a lent arena counts");
    assert_eq!(bench.device.install(lent).unwrap(), (arena, Vec::new()));
    bench.device.check_manifest(execs[0]).unwrap();
    bench.device.replay(execs[0], &lease).unwrap();
    bench.pool.complete(lease).unwrap();

    let late = bench.device.load_weight("late", lockstep_plan::WeightData::F32(&[1.0]));
    assert_eq!(late, Ok(()), "no arena is being made");
    let _workshop = bench.device.workshop();
    let late = bench.device.load_weight("later", lockstep_plan::WeightData::F32(&[1.0]));
    assert!(matches!(late, Err(DeviceError::State { .. })), "{late:?}");
    drop(bench.device.uninstall(arena));
    let after = bench.device.memory();
    assert_eq!((after.arena_bytes, after.arenas), (before.arena_bytes, before.arenas));
    assert_eq!(after.executables, before.executables);
}
