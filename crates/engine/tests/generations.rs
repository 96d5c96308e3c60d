//! Generations under load: buckets go up and down while requests run, and no request notices.
#![forbid(unsafe_code)]

mod common;

use common::fault::FaultDevice;
use common::models::tiny;
use common::outcome::{Outcome, assert_same};
use common::stage::{
    arenas, change, graph_max_bs, one_fills_the_pool, outcomes, report, rig, settled, submit,
    verified, wait,
};
use common::{Probe, Recorder};
use lockstep_device::{CpuDevice, Device};
use lockstep_engine::Handle;
use lockstep_flow::EngineStatus;
use lockstep_flow::generation::GenerationError;
use lockstep_flow::status::BucketMode;
use lockstep_flow::{GenerationState as State, Micros, SamplingParams, Seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

fn cpu() -> CpuDevice {
    CpuDevice::new(2, "auto").unwrap()
}

/// A stream of some kind of sampling.
fn stream(i: u32, max_tokens: u32) -> Probe {
    let params = SamplingParams {
        temperature: if i.is_multiple_of(3) { 0.0 } else { 0.9 },
        top_k: if i.is_multiple_of(5) { 30 } else { 0 },
        presence_penalty: if i.is_multiple_of(7) { 0.3 } else { 0.0 },
        logprobs: Some(2),
        seed: Seed(u64::from(i)),
        max_tokens,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Probe::new((0..1 + i % 40).map(|t| 3 + (t * 7 + i) % 250), params)
}

fn streams(n: u32, max_tokens: u32) -> Vec<Probe> {
    (0..n).map(|i| stream(i, max_tokens)).collect()
}

/// Clients that stream one request after the other until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Probe, Recorder)>>,
}

impl Load {
    /// So many clients; a client's `j`th request is a probe of its own.
    fn start(handle: &Handle, clients: u32) -> Load {
        let (stop, handle) = (Arc::new(AtomicBool::new(false)), handle.clone());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut sent: Vec<(Probe, Recorder)> = Vec::new();
            let mut current: Vec<Option<usize>> = vec![None; clients as usize];
            loop {
                let stopping = stopped.load(Ordering::Relaxed);
                let ended = |at: usize| sent[at].1.ended();
                if stopping && current.iter().flatten().all(|at| ended(*at)) {
                    return sent;
                }
                for (i, at) in current.iter_mut().enumerate() {
                    if stopping || at.is_some_and(|at| !sent[at].1.ended()) {
                        continue;
                    }
                    let id = sent.len() as u32;
                    let probe = stream(id, 500 + (i as u32 * 7) % 400);
                    let sink = Recorder::default();
                    handle.submit(probe.request(u64::from(id)), Box::new(sink.clone())).unwrap();
                    *at = Some(sent.len());
                    sent.push((probe, sink));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Load { stop, thread }
    }

    /// Waits for what was sent, and sends nothing more.
    fn stop(self) -> (Vec<Probe>, Vec<Outcome>) {
        self.stop.store(true, Ordering::Relaxed);
        let (probes, sinks): (Vec<_>, Vec<_>) = self.thread.join().unwrap().into_iter().unzip();
        (probes, outcomes(&sinks))
    }
}

/// 64 clients stream; buckets go 32 -> 96 -> 16 -> 96, each serves at least 1,000 steps, and tokens
/// and log-probabilities are the bits of a run in which nothing was changed.
#[test]
fn buckets_change_under_64_streams_and_no_request_notices() {
    let handle = rig().started(&tiny("qwen3"), Box::new(cpu()));
    let load = Load::start(&handle, 64);
    wait(&handle, "eager steps", |s| s.counters.decode_steps > 100);
    for (n, ceiling) in [(2, 96), (3, 16), (4, 96)] {
        let before = handle.status().counters.decode_steps;
        let number = verified(&handle, &graph_max_bs(ceiling));
        assert_eq!(number, n);
        assert!(handle.status().counters.decode_steps > before, "steps go on while it is staged");
        // Now and then some have ended and are not there again yet.
        let status = wait(&handle, "most of 64 streams", |s| s.running > 48);
        assert_eq!(status.generation, n - 1, "staging changes nothing that serves");
        handle.flip(number, Some(Micros(0))).unwrap();
        let status = wait(&handle, "1,000 steps", |s| report(s, number).steps >= 1000);
        assert_eq!(status.captured_decode_sizes().last(), Some(&ceiling));
        handle.retire(number - 1).unwrap();
    }
    let (probes, found) = load.stop();
    let status = handle.status();
    for g in &status.generations {
        println!("{}: {} steps, {} captured, {:?}", g.number, g.steps, g.captured_steps, g.gap);
    }
    // Decode of 64 rows ran op by op where the ceiling was below, and as replays where it was not;
    // steps with prompt tokens are captured in each.
    let eager = |n| report(&status, n).steps - report(&status, n).captured_steps;
    assert_eq!((eager(2), eager(4)), (0, 0));
    assert!(eager(1) > 50 && eager(3) > 800, "{} and {}", eager(1), eager(3));
    let c = status.counters;
    assert_eq!((c.flips, c.rollbacks, c.failed, c.cancelled), (3, 0, 0, 0));
    assert_eq!((c.generations_staged, c.generations_retired, c.generations_rejected), (3, 3, 0));
    assert_eq!((c.audit_mismatches, c.manifest_mismatches, c.preemptions), (0, 0, 0));
    assert_eq!(c.finished, probes.len() as u64, "every request ended well");
    assert!(c.audits > 20, "{c:?}");
    handle.shutdown();
    let mut engine = rig().engine_on(&tiny("qwen3"), Box::new(cpu()), false);
    for (few, found) in probes.chunks(96).zip(found.chunks(96)) {
        assert_same(&engine.together(few, &[]), found, "with generations flipped under it");
    }
}

/// What a verified generation has shown, bucket by bucket.
#[test]
fn the_evidence_of_a_staged_generation_is_counted() {
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    let number = verified(&handle, &graph_max_bs(96));
    let status = handle.status();
    let (first, r) = (report(&status, 1), report(&status, number));
    let states: Vec<State> = r.moves.iter().map(|(s, _)| *s).collect();
    let expected = [
        State::Planned,
        State::Proven,
        State::Prepared,
        State::Captured,
        State::Sealed,
        State::Verified,
    ];
    assert_eq!(states, expected);
    assert!(r.moves.windows(2).all(|w| w[0].1 <= w[1].1), "{:?}", r.moves);
    let differing: Vec<_> = r.knobs.iter().filter(|k| k.was.is_some()).collect();
    assert_eq!((differing.len(), differing[0].value.as_str()), (1, "96"));
    assert_eq!(differing[0].was.as_deref(), Some("32"));
    assert_eq!(r.digests.state_layout, first.digests.state_layout);
    assert_eq!(r.digests.numerics, first.digests.numerics);
    assert_eq!(r.digests.plans, first.digests.plans, "the same plans, captured further up");
    assert_eq!(r.order_proofs, 2 * (r.buckets.len() * first.buckets.len()) as u64);
    assert!(r.arena_bytes > 0 && r.shadow_bytes == r.arena_bytes);
    for b in r.buckets.iter() {
        // A bucket of one row has no set but the full one.
        let one = u32::from(b.key.tokens > 1);
        let (replays, eager) = if b.captured { (2 + one, 1 + one) } else { (0, 2 + 2 * one) };
        assert_eq!((b.replays, b.eager_steps, b.poisoned_steps), (replays, eager, 1), "{}", b.key);
        assert!(b.is_verified(), "{b:?}");
        assert_eq!((b.canaries, b.canary_rows), (1 + one, b.canary_rows_max + one), "{b:?}");
        assert!(b.canary_rows_max > 0 && b.canary_rows_max <= b.key.tokens, "{b:?}");
        assert_eq!(b.canary_padding_max, b.key.tokens - 1, "{b:?}");
        if b.captured && b.key.is_decode() {
            assert_eq!(b.canary_rows_max, b.key.tokens.min(64), "{b:?}");
        }
        // Logits of a row alone are 256 floats, compared with each further step.
        let compared = u64::from(replays + eager - 1) * 256 * 32;
        assert!(b.compared_bits >= compared && b.differing_bits == 0, "{b:?}");
        assert_eq!(b.manifest_checks, if b.captured { 3 } else { 2 });
        assert!(b.ops > 20 && b.arena_bytes > 0, "{b:?}");
    }
    assert_eq!(r.buckets.iter().filter(|b| b.captured && b.key.is_decode()).count(), 16);
    assert_eq!(status.pools[0].pages_used, 0, "the canary's pages are back");
    handle.shutdown();
}

/// The generation that an engine starts with once served for good without a canary step.
#[test]
fn the_first_generation_is_verified_while_it_serves() {
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    let first = report(&handle.status(), 1).clone();
    assert_eq!((first.verified_at, first.verified_buckets()), (None, 0), "not before it serves");
    // Before it begins, two seconds after the start: with nothing to serve it takes a moment only.
    let load = Load::start(&handle, 5);
    // Beside requests they are few, and have few rows; the rest comes when nothing runs.
    let status = wait(&handle, "a bucket", |s| report(s, 1).verified_buckets() > 0);
    assert!(report(&status, 1).verified_at.is_none());
    let (probes, found) = load.stop();
    let status = wait(&handle, "its verification", |s| report(s, 1).verified_at.is_some());
    let r = report(&status, 1);
    assert_eq!((r.state, &r.reason), (State::Live, &None));
    for b in r.buckets.iter() {
        assert!(b.is_verified() && b.replays + b.eager_steps >= 2, "{b:?}");
        assert_eq!(b.canaries, if b.key.tokens > 1 { 2 } else { 1 }, "{b:?}");
        let least = b.key.tokens.min(2);
        assert!(b.canary_rows_max >= least && b.canary_padding_max == b.key.tokens - 1, "{b:?}");
    }
    assert!(r.buckets.iter().any(|b| b.poisoned_steps > 0));
    wait(&handle, "its pages", |s| s.pools[0].pages_used == 0);
    handle.shutdown();
    let mut engine = rig().engine_on(&tiny("llama"), Box::new(cpu()), false);
    for (few, found) in probes.chunks(96).zip(found.chunks(96)) {
        assert_same(&engine.together(few, &[]), found, "with canary steps between");
    }
}

/// The end of a server that had just started once waited for canary steps.
#[test]
fn a_draining_engine_verifies_its_first_generation_no_more() {
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    handle.drain();
    let status = wait(&handle, "its time", |s| s.uptime >= Micros::from_millis(3_000));
    assert_eq!(status.counters.canary_steps, 0);
    handle.shutdown();
}

/// What a first generation's capture computes wrong leaves service before many requests meet it.
#[test]
fn a_bucket_of_the_first_generation_that_fails_its_canary_leaves_service() {
    let device = FaultDevice::new(Box::new(|_, device| flip_bits(device)));
    let handle = rig().started(&tiny("qwen3"), Box::new(device));
    let out =
        |s: &EngineStatus| s.buckets.iter().filter(|b| b.mode == BucketMode::Quarantined).count();
    let status = wait(&handle, "a bucket out of service", |s| out(s) > 0);
    let reason = report(&status, 1).reason.clone().unwrap_or_default();
    assert!(reason.contains("bits of a canary step"), "{reason}");
    assert_eq!(report(&status, 1).verified_at, None);
    handle.shutdown();
}

#[test]
fn moves_out_of_order_are_refused_with_what_would_work() {
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    let said = |r: Result<(), GenerationError>| r.unwrap_err().to_string();
    assert_eq!(said(handle.flip(9, None)), "there is no generation 9; the newest is 1");
    assert_eq!(
        said(handle.flip(1, None)),
        "generation 1 is live and cannot be flipped to: it serves already"
    );
    assert_eq!(
        said(handle.retire(1)),
        "generation 1 is live and cannot be retired: flip to another one first"
    );
    let staged = handle.stage(&graph_max_bs(96)).unwrap();
    let busy = handle.stage(&graph_max_bs(16)).unwrap_err();
    assert!(matches!(busy, GenerationError::Busy { number: 2, .. }), "{busy}");
    settled(&handle, staged);
    let busy = handle.stage(&graph_max_bs(16)).unwrap_err();
    assert!(busy.to_string().contains("flip to it or retire it first"), "{busy}");
    // The window is open for an hour: the old one stays, and can be flipped back to.
    handle.flip(staged, Some(Micros::from_millis(3_600_000))).unwrap();
    let watched = handle.retire(1).unwrap_err();
    assert!(matches!(watched, GenerationError::Watched { number: 1, .. }), "{watched}");
    assert!(report(&handle.status(), staged).watched_until.is_some());
    handle.flip(1, None).unwrap();
    let status = handle.status();
    assert_eq!((status.generation, status.counters.rollbacks), (1, 1));
    assert_eq!(report(&status, staged).state, State::Draining);
    // Flipped back, the other way round is legal again, and then out.
    handle.retire(staged).unwrap();
    let gone = said(handle.flip(staged, None));
    assert!(gone.contains("is retired and cannot be flipped to"), "{gone}");
    // One that never served can be retired.
    let next = verified(&handle, &graph_max_bs(8));
    handle.retire(next).unwrap();
    assert_eq!(arenas(&handle).1, 2);
    handle.shutdown();
    let stopped = handle.flip(1, None).unwrap_err();
    assert!(matches!(stopped, GenerationError::Stopped { .. }), "{stopped}");
}

/// A flip forward to the draining generation was counted as a rollback and not watched, whatever
/// was asked; and a window closed only with a step, so that an idle server kept it open.
#[test]
fn a_flip_forward_again_is_watched_and_the_window_closes_without_a_step() {
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    let staged = verified(&handle, &graph_max_bs(16));
    handle.flip(staged, Some(Micros::from_millis(3_600_000))).unwrap();
    handle.flip(1, None).unwrap();
    assert_eq!(report(&handle.status(), 1).watched_until, None);
    handle.flip(staged, Some(Micros::from_millis(3_600_000))).unwrap();
    let status = handle.status();
    assert_eq!((status.counters.flips, status.counters.rollbacks), (2, 1));
    assert!(report(&status, staged).watched_until.is_some());
    let watched = handle.retire(1).unwrap_err();
    assert!(matches!(watched, GenerationError::Watched { number: 1, .. }), "{watched}");
    // Back with a window of its own, which nothing but time closes.
    handle.flip(1, Some(Micros::from_millis(1))).unwrap();
    while report(&handle.status(), 1).watched_until.is_some() {
        std::thread::yield_now();
    }
    assert_eq!(handle.status().counters.steps, status.counters.steps);
    handle.retire(staged).unwrap();
    handle.shutdown();
}

/// What cannot be staged is rejected with a reason, and what serves does not change.
#[test]
fn a_rejected_generation_leaves_the_live_one_as_it_was() {
    let small = rig().with(|k| k.staging_bytes = 1 << 20);
    let handle = small.started(&tiny("llama"), Box::new(cpu()));
    let before = arenas(&handle);
    let number = handle.stage(&graph_max_bs(96)).unwrap();
    let r = settled(&handle, number);
    assert_eq!(r.state, State::Rejected);
    let reason = r.reason.unwrap();
    assert!(reason.contains("generations.memory is 1048576"), "{reason}");
    assert_eq!(arenas(&handle), before);
    assert_eq!(handle.status().generation, 1);
    let refused = handle.stage(&[change("pool.kv-memory", "2GiB")]).unwrap_err();
    assert!(matches!(refused, GenerationError::Knob { name: "pool.kv-memory", .. }), "{refused}");
    assert_eq!(handle.status().counters.generations_rejected, 1);
    let sinks = submit(&handle, &streams(4, 20));
    wait(&handle, "the end", |s| s.counters.finished == 4);
    assert!(sinks.iter().all(Recorder::ended));
    handle.shutdown();
}

/// Flips one bit of the last position in each of the first 80 pages, as a stray write would. A page of
/// this model has 2 heads of 32 channels as f32 for 32 tokens.
fn flip_bits(device: &mut CpuDevice) {
    for page in 1..=80 {
        let (at, mut byte) = (page * 2 * 32 * 4 * 32 + 2 * 32 * 4 * 32 - 1, [0]);
        device.read_state("layers.0.k_pages", at, &mut byte).unwrap();
        device.write_state("layers.0.k_pages", at, &[byte[0] ^ 1]).unwrap();
    }
}

/// A device whose staged replays write a wrong bit into a page: canary steps see it before a
/// single request does.
#[test]
fn a_capture_that_computes_something_else_is_rejected_by_its_canary_steps() {
    let steps = Arc::new(AtomicU64::new(0));
    let device = {
        let steps = steps.clone();
        FaultDevice::new(Box::new(move |_, device| {
            // The third step of the process is the replay of the first bucket's last phase: the
            // engine is idle, and only canary steps run.
            if steps.fetch_add(1, Ordering::Relaxed) == 2 {
                flip_bits(device);
            }
        }))
    };
    let handle = rig().started(&tiny("qwen3"), Box::new(device));
    let before = arenas(&handle);
    let number = handle.stage(&graph_max_bs(96)).unwrap();
    let r = settled(&handle, number);
    assert_eq!(r.state, State::Rejected, "{r:#?}");
    let reason = r.reason.unwrap();
    assert!(reason.contains("bits of a canary step of"), "{reason}");
    assert!(r.buckets.iter().any(|b| b.differing_bits > 0));
    assert_eq!((arenas(&handle), handle.status().pools[0].pages_used), (before, 0));
    // What serves goes on, and a sound one can be staged.
    verified(&handle, &graph_max_bs(96));
    handle.shutdown();
}

/// An audit that finds something in the watch window flips back by itself.
#[test]
fn a_finding_in_the_watch_window_flips_back() {
    let armed = Arc::new(AtomicU64::new(0));
    let device = {
        let armed = armed.clone();
        FaultDevice::new(Box::new(move |_, device| {
            if armed.load(Ordering::Relaxed) == 1 {
                flip_bits(device);
            }
        }))
    };
    let every = rig().with(|k| k.audit_rate = 1);
    let handle = every.started(&tiny("qwen3"), Box::new(device));
    let before = arenas(&handle);
    let number = verified(&handle, &graph_max_bs(96));
    handle.flip(number, Some(Micros::from_millis(3_600_000))).unwrap();
    armed.store(1, Ordering::Relaxed);
    let _sinks = submit(&handle, &streams(3, 400));
    // Counted after the flip was shown.
    let status = wait(&handle, "a flip back", |s| s.counters.rollbacks_by_audit == 1);
    armed.store(0, Ordering::Relaxed);
    assert_eq!(status.generation, 1);
    let r = report(&status, number);
    assert_eq!(r.state, State::Rejected);
    let reason = r.reason.clone().unwrap();
    assert!(reason.contains("flipped back to generation 1"), "{reason}");
    assert_eq!(arenas(&handle), before, "its memory is given up");
    handle.shutdown();
}

/// The rows of canary steps kept their pages from one bucket to the next, and a request that needed
/// them stood still until the whole generation was verified.
#[test]
fn a_request_gets_the_pages_that_canaries_hold() {
    let rig = one_fills_the_pool().with(|k| k.chunk_tokens = 1024);
    let mut engine = rig.engine_on(&tiny("llama"), Box::new(cpu()), false);
    let number = engine.handle.stage(&[change("audit.rate", "7")]).unwrap();
    let canaries_have_pages = |s: &EngineStatus| s.pools[0].pages_canary > 0;
    while !canaries_have_pages(&engine.status()) {
        engine.steps.turn();
    }
    // Nobody waits for them, so that they do not fill the pool for the alarm.
    let status = engine.status();
    assert_eq!(status.pools[0].pages_canary, status.pools[0].pages_used);
    assert_eq!(status.requests_usage(), 0.0);
    let params = SamplingParams { max_tokens: 4, ignore_eos: true, ..SamplingParams::default() };
    let sinks = submit(&engine.handle, &[Probe::new((0..1020).map(|t| 3 + t % 250), params)]);
    while !sinks[0].ended() {
        engine.steps.turn();
    }
    let status = engine.status();
    assert_eq!((status.counters.finished, status.pools[0].pages_total), (1, 32));
    assert!(report(&status, number).state.is_on_its_way(), "it did not wait for the canaries");
    while report(&engine.status(), number).state.is_on_its_way() {
        engine.steps.turn();
    }
    assert_eq!(report(&engine.status(), number).state, State::Verified);
}

/// Limits of a step go with the generation: fewer may run, and the youngest wait again.
#[test]
fn a_lower_running_limit_sends_the_youngest_back_and_changes_no_bit() {
    // Long ones: all of them run when the limit changes, however long this thread is away.
    let probes = streams(48, 900);
    let undisturbed = {
        let handle = rig().started(&tiny("llama"), Box::new(cpu()));
        let sinks = submit(&handle, &probes);
        wait(&handle, "the end", |s| s.counters.finished == 48);
        handle.shutdown();
        outcomes(&sinks)
    };
    let handle = rig().started(&tiny("llama"), Box::new(cpu()));
    let number = verified(
        &handle,
        &[change("sched.max-running-requests", "16"), change("sched.chunked-prefill-size", "32")],
    );
    let sinks = submit(&handle, &probes);
    wait(&handle, "48 streams", |s| s.running == 48);
    handle.flip(number, Some(Micros(0))).unwrap();
    let status = handle.status();
    assert_eq!((status.running_max, status.chunked_prefill_tokens), (16, 32));
    assert_eq!((status.running, status.queued), (16, 32));
    wait(&handle, "the end", |s| s.counters.finished == 48);
    handle.shutdown();
    assert_same(&undisturbed, &outcomes(&sinks), "with fewer running");
}
