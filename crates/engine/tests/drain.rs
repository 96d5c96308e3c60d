//! Drain, swap, verify: another generation takes the live one's place where memory does not hold
//! both, while requests wait, and the old one is built again where that fails.
#![forbid(unsafe_code)]

mod common;

use common::fault::FaultDevice;
use common::models::tiny;
use common::outcome::assert_same;
use common::stage::{
    arenas, change, graph_max_bs, one_fills_the_pool, outcomes, report, rig, settled, submit,
    submit_from, verified, wait,
};
use common::{Engine, Probe, Recorder};
use lockstep_device::{CpuDevice, Device};
use lockstep_engine::Handle;
use lockstep_flow::EngineStatus;
use lockstep_flow::generation::{GenerationError, StageMode};
use lockstep_flow::{GenerationState as State, Micros, SamplingParams, Seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn probes(n: u32, max_tokens: u32) -> Vec<Probe> {
    let one = |i: u32| {
        let params = SamplingParams {
            temperature: if i.is_multiple_of(3) { 0.0 } else { 0.9 },
            logprobs: Some(1),
            seed: Seed(u64::from(i)),
            max_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Probe::new((0..1 + i % 40).map(|t| 3 + (t * 7 + i) % 250), params)
    };
    (0..n).map(one).collect()
}

fn over(handle: &Handle, number: u64) -> State {
    let settled = |s: State| matches!(s, State::Live | State::Rejected);
    let status = wait(handle, "the swap's end", |s| settled(report(s, number).state));
    report(&status, number).state
}

/// Turns the loop until the status is as wanted.
fn turned(engine: &mut Engine, done: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
    let end = Instant::now() + Duration::from_secs(300);
    loop {
        engine.steps.turn();
        let status = engine.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < end, "it never came: {:#?}", status.generations);
        std::thread::yield_now();
    }
}

/// Two generations do not fit: beside is refused with the numbers and the mode that works, and in
/// that mode the new one takes the old one's place under running requests.
#[test]
fn a_generation_takes_the_live_ones_place_where_both_do_not_fit() {
    let rig = rig().with(|k| k.staging_bytes = 1 << 20);
    let handle = rig.started(&tiny("qwen3"), Box::new(CpuDevice::new(2, "auto").unwrap()));
    let number = handle.stage(&graph_max_bs(96)).unwrap();
    let refused = settled(&handle, number);
    assert_eq!(refused.state, State::Rejected);
    let why = refused.reason.unwrap();
    for words in ["beside the live generation's", "1048576", "\"mode\": \"drain\""] {
        assert!(why.contains(words), "no {words} in {why}");
    }
    let before = arenas(&handle);
    let probes = probes(24, 900);
    let sinks = submit(&handle, &probes[..20]);
    wait(&handle, "steps", |s| s.counters.decode_steps > 20);
    let number = handle.stage_as(&graph_max_bs(96), StageMode::Drain).unwrap();
    // In the pause or after it: these are taken, and run in the new one.
    let began = |s: &EngineStatus| s.held_for.is_some() || report(s, number).state == State::Live;
    wait(&handle, "the swap", began);
    let late = submit_from(&handle, &probes, 20);
    // Moves that are asked for meanwhile once took the live generation away.
    let is_over =
        || matches!(report(&handle.status(), number).state, State::Live | State::Rejected);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !is_over() {
                assert!(handle.flip(number, None).is_err() && handle.retire(1).is_err());
                std::thread::yield_now();
            }
        });
        assert_eq!(over(&handle, number), State::Live);
    });
    let status = wait(&handle, "the end", |s| s.counters.finished == 24);
    let (old, new) = (report(&status, 1), report(&status, number));
    assert_eq!((old.state, new.mode), (State::Retired, StageMode::Drain));
    assert!(new.buckets.iter().all(|b| b.is_verified()), "{:#?}", new.buckets);
    assert!(new.gap.longest > Micros(0) && status.held_for.is_none(), "{:?}", new.gap);
    assert!(new.steps > 0 && status.captured_decode_sizes().last() == Some(&96));
    assert_eq!(arenas(&handle).1, before.1, "one generation's arenas, as before");
    handle.shutdown();
    let sinks: Vec<Recorder> = sinks.into_iter().chain(late).collect();
    let mut engine =
        rig.engine_on(&tiny("qwen3"), Box::new(CpuDevice::new(2, "auto").unwrap()), false);
    assert_same(&engine.together(&probes, &[]), &outcomes(&sinks), "with a generation exchanged");
}

/// A new generation that fails its canary steps gives the place back, and what waited goes on.
#[test]
fn a_generation_that_fails_in_the_live_ones_place_gives_it_back() {
    let steps = Arc::new(AtomicU64::new(u64::MAX));
    let device = {
        let steps = steps.clone();
        FaultDevice::new(Box::new(move |_, device| {
            // Armed below; then the third step is the first bucket's last canary step.
            if steps.fetch_add(1, Ordering::Relaxed) == 2 {
                for page in 1..=80 {
                    let (at, mut byte) = (page * 2 * 32 * 4 * 32 + 2 * 32 * 4 * 32 - 1, [0]);
                    device.read_state("layers.0.k_pages", at, &mut byte).unwrap();
                    device.write_state("layers.0.k_pages", at, &[byte[0] ^ 1]).unwrap();
                }
            }
        }))
    };
    let handle = rig().started(&tiny("qwen3"), Box::new(device));
    let before = arenas(&handle);
    steps.store(0, Ordering::Relaxed);
    let number = handle.stage_as(&graph_max_bs(96), StageMode::Drain).unwrap();
    assert_eq!(over(&handle, number), State::Rejected);
    let status = handle.status();
    let why = report(&status, number).reason.clone().unwrap();
    assert!(why.contains("of a canary step") && why.contains("generation 1 serves again"), "{why}");
    assert_eq!((status.generation, status.held_for, arenas(&handle)), (1, None, before));
    let sinks = submit(&handle, &probes(6, 40));
    wait(&handle, "the end", |s| s.counters.finished == 6);
    assert!(sinks.iter().all(Recorder::ended));
    handle.shutdown();
}

/// A draining server took a generation on, and in the mode that drains held the steps of requests
/// that would have ended well before it did.
#[test]
fn a_draining_server_stages_nothing_and_what_runs_ends_well() {
    let handle = rig().started(&tiny("qwen3"), Box::new(CpuDevice::new(2, "auto").unwrap()));
    let ready = verified(&handle, &graph_max_bs(96));
    let probes = probes(12, 400);
    let sinks = submit(&handle, &probes);
    wait(&handle, "steps", |s| s.counters.decode_steps > 5);
    handle.drain();
    for mode in [StageMode::Beside, StageMode::Drain] {
        let e = handle.stage_as(&graph_max_bs(64), mode).unwrap_err();
        assert_eq!(e, GenerationError::Draining { asked: "staged" });
    }
    let e = handle.flip(ready, None).unwrap_err();
    assert_eq!(e, GenerationError::Draining { asked: "flipped to" });
    let status = wait(&handle, "the end", |s| s.counters.finished == 12);
    assert_eq!((status.generation, status.generations.len()), (1, 2), "nothing came");
    assert_eq!(report(&status, ready).state, State::Verified);
    assert!(status.held_for.is_none() && sinks.iter().all(Recorder::ended));
    handle.shutdown();
    let mut engine =
        rig().engine_on(&tiny("qwen3"), Box::new(CpuDevice::new(2, "auto").unwrap()), false);
    assert_same(&engine.together(&probes, &[]), &outcomes(&sinks), "while the server drained");
}

/// What is being built when the drain begins is given up, with its memory: while it is planned,
/// before it takes the live one's place, and before its canary steps.
#[test]
fn a_generation_that_a_drain_finds_half_built_is_given_up() {
    for (mode, reached) in [
        (StageMode::Beside, State::Planned),
        (StageMode::Drain, State::Proven),
        (StageMode::Beside, State::Sealed),
    ] {
        let rig = rig();
        let device = Box::new(CpuDevice::new(2, "auto").unwrap());
        let mut engine = rig.engine_on(&tiny("qwen3"), device, false);
        let before = arenas(&engine.handle);
        let number = engine.handle.stage_as(&graph_max_bs(96), mode).unwrap();
        // Without a turn of the loop it comes no further.
        let there = |s: &EngineStatus| report(s, number).moves.iter().any(|m| m.0 == reached);
        wait(&engine.handle, "its state", there);
        engine.handle.drain();
        let status = turned(&mut engine, |s| report(s, number).state == State::Rejected);
        let why = report(&status, number).reason.clone().unwrap();
        assert!(why.contains("began to drain"), "{why}");
        assert_eq!((status.generation, status.held_for), (1, None));
        assert_eq!(arenas(&engine.handle), before);
    }
}

/// Where steps are held already, the shortest way to more of them is forward.
#[test]
fn a_drain_that_finds_steps_held_lets_the_exchange_end() {
    let device = Box::new(CpuDevice::new(2, "auto").unwrap());
    let mut engine = rig().engine_on(&tiny("qwen3"), device, false);
    let sinks = submit(&engine.handle, &probes(4, 300));
    let number = engine.handle.stage_as(&graph_max_bs(96), StageMode::Drain).unwrap();
    wait(&engine.handle, "its proofs", |s| report(s, number).state != State::Planned);
    turned(&mut engine, |s| s.held_for == Some(number));
    engine.handle.drain();
    let status = turned(&mut engine, |s| s.counters.finished == 4 && s.held_for.is_none());
    assert_eq!((status.generation, report(&status, number).state), (number, State::Live));
    assert!(sinks.iter().all(Recorder::ended));
}

/// Canary rows found no page where running requests had all of them, and every exchange ended with
/// the old generation built again: a pause for nothing.
#[test]
fn a_full_token_pool_does_not_make_the_pause_be_for_nothing() {
    let rig = one_fills_the_pool();
    let mut engine =
        rig.engine_on(&tiny("llama"), Box::new(CpuDevice::new(2, "auto").unwrap()), false);
    let params = SamplingParams {
        temperature: 0.9,
        logprobs: Some(1),
        seed: Seed(5),
        max_tokens: 64,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let probe = [Probe::new((0..960).map(|t| 3 + (t * 7) % 250), params)];
    let sinks = submit(&engine.handle, &probe);
    let free = |s: &EngineStatus| s.pools[0].pages_total - s.pools[0].pages_used;
    while free(&engine.status()) > 0 {
        engine.steps.turn();
    }
    let number = engine.handle.stage_as(&[change("audit.rate", "7")], StageMode::Drain).unwrap();
    // The last page has some thirty tokens left, and a turn without the pause takes one of them: turns
    // are few, and far between for the builder, whose word the pause comes with.
    wait(&engine.handle, "its proofs", |s| report(s, number).state != State::Planned);
    while engine.status().held_for.is_none() {
        std::thread::sleep(Duration::from_millis(20));
        engine.steps.turn();
    }
    assert_eq!((free(&engine.status()), sinks[0].ended()), (0, false), "it is full as it begins");
    while engine.status().held_for.is_some() {
        engine.steps.turn();
    }
    let status = engine.status();
    let swapped = report(&status, number);
    assert_eq!(swapped.state, State::Live, "{:?}", swapped.reason);
    while !sinks[0].ended() {
        engine.steps.turn();
    }
    assert_eq!(engine.status().counters.preemptions, 1);
    let mut other =
        rig.engine_on(&tiny("llama"), Box::new(CpuDevice::new(2, "auto").unwrap()), false);
    assert_same(&other.alone(&probe), &outcomes(&sinks), "after an exchange in a full pool");
}
