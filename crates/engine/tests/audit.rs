//! What the audit must catch, put into the real engine by hand: a fault that production meets as a
//! wrong answer and nothing else. And what it must not do: alarm where nothing is wrong.
//!
//! Each fault is told by the part that can see it; what a client gets is either the bits of an
//! undisturbed run or an error that says why.
#![forbid(unsafe_code)]

mod common;

use common::fault::{FaultDevice, Moment};
use common::models::tiny;
use common::outcome::Outcome;
use common::{Engine, Probe, Recorder, Rig};
use lockstep_device::{CpuDevice, Device, ExecId};
use lockstep_engine::LoopTurn;
use lockstep_flow::status::{BucketMode, EngineStatus, Health};
use lockstep_flow::{
    AuditPart, EventKind, Failure, Micros, OnMismatch, RequestId, SamplingParams, Seed, Token,
};
use lockstep_plan::{BufferKind, OpId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a page in one buffer: 2 heads of 32 channels, f32.
const BUFFER_BYTES: u64 = 2 * 32 * 4 * 32;
/// Bytes of a page: 2 layers of keys and values, and the token ids.
const PAGE_BYTES: u64 = 2 * 2 * BUFFER_BYTES + 128;

fn rig(rate: u32) -> Rig {
    Rig::default().with(|k| {
        k.running_max = 8;
        k.graph_max_bs = 8;
        k.chunk_tokens = 64;
        k.kv_bytes = 60 * PAGE_BYTES;
        k.audit_rate = rate;
    })
}

fn probe(seed: u32, prompt: u32, max_tokens: u32) -> Probe {
    let params = SamplingParams {
        max_tokens,
        ignore_eos: true,
        temperature: 0.7,
        seed: Seed(u64::from(seed)),
        ..SamplingParams::default()
    };
    Probe::new((0..prompt).map(|t| 3 + (t * 11 + seed * 7) % 250), params)
}

/// Tokens of each probe, run alone and undisturbed.
fn undisturbed(probes: &[Probe]) -> Vec<Vec<Token>> {
    let mut engine = rig(0).engine(&tiny("qwen3"));
    engine.alone(probes).into_iter().map(|o: Outcome| o.tokens).collect()
}

fn engine(rig: &Rig, hook: impl FnMut(Moment, &mut CpuDevice) + Send + 'static) -> Engine {
    rig.engine_on(&tiny("qwen3"), Box::new(FaultDevice::hooked(hook)), false)
}

fn submit(engine: &Engine, first: u64, probes: &[Probe]) -> Vec<Recorder> {
    let one = |(i, probe): (usize, &Probe)| {
        let sink = Recorder::default();
        let request = probe.request(first + i as u64);
        engine.handle.submit(request, Box::new(sink.clone())).unwrap();
        sink
    };
    probes.iter().enumerate().map(one).collect()
}

fn run(engine: &mut Engine) -> EngineStatus {
    while engine.steps.turn() == LoopTurn::Stepped {}
    engine.status()
}

/// Tokens that a client got, and how it ended: well, or with the audit's words.
fn answer(sink: &Recorder) -> (Vec<Token>, Option<(AuditPart, String)>) {
    let events = sink.0.lock().unwrap();
    let token = |e: &lockstep_flow::Event| match e.kind {
        EventKind::Token { token, .. } => Some(token),
        _ => None,
    };
    let tokens = events.iter().filter_map(token).collect();
    match &events.last().expect("it has ended").kind {
        EventKind::Finished { .. } => (tokens, None),
        EventKind::Failed { failure: Failure::Audit { part, what }, .. } => {
            (tokens, Some((*part, what.clone())))
        }
        other => panic!("{other:?}"),
    }
}

/// Every client that ended well has the tokens of an undisturbed run, and every other one has
/// those before its end. Returns how many the audit ended.
fn assert_nothing_corrupt(sinks: &[Recorder], expected: &[Vec<Token>], part: AuditPart) -> usize {
    let mut ended = 0;
    for (i, (sink, expected)) in sinks.iter().zip(expected).enumerate() {
        let (tokens, failure) = answer(sink);
        match failure {
            None => assert_eq!(&tokens, expected, "request {i}"),
            Some((by, what)) => {
                assert_eq!(by, part, "request {i}: {what}");
                assert_eq!(tokens, expected[..tokens.len()], "request {i} before its end");
                ended += 1;
            }
        }
    }
    ended
}

fn mismatches(status: &EngineStatus) -> [u64; 4] {
    AuditPart::ALL.map(|part| status.audit.part(part).mismatches)
}

fn quarantined(status: &EngineStatus) -> Vec<String> {
    let out = |b: &&lockstep_flow::status::BucketUse| b.mode == BucketMode::Quarantined;
    status.buckets.iter().filter(out).map(|b| b.key.to_string()).collect()
}

/// The replay of one step sees the positions of the step before; the inputs are as they were again
/// when anybody looks.
#[test]
fn a_replay_that_reads_a_stale_input_is_caught_and_named() {
    let probes = [probe(1, 20, 30), probe(2, 30, 30)];
    let expected = undisturbed(&probes);
    let mut before: Vec<u8> = Vec::new();
    let mut kept: Vec<u8> = Vec::new();
    let hook = move |moment: Moment, device: &mut CpuDevice| {
        let (exec, replay) = match moment {
            Moment::Replay { exec, .. } => (exec, true),
            Moment::Replayed { exec, .. } => (exec, false),
            _ => return,
        };
        let proven = device.plan_of(exec);
        let positions = proven.plan().find("positions").unwrap();
        let (Moment::Replay { step, .. } | Moment::Replayed { step, .. }) = moment else { return };
        let bytes = device.input_mut(exec, positions);
        match (step, replay) {
            (11, true) => before = bytes.to_vec(),
            (12, true) => {
                kept = bytes.to_vec();
                bytes.copy_from_slice(&before);
            }
            (12, false) => bytes.copy_from_slice(&kept),
            _ => {}
        }
    };
    let mut engine = engine(&rig(1), hook);
    let sinks = submit(&engine, 0, &probes);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [0, 1, 0, 0], "{:?}", status.audit);
    assert_eq!(quarantined(&status), ["decode-2"]);
    let words = &status.audit.evidence[0];
    assert!(words.starts_with("twin: step 12 of bucket decode-2"), "{words}");
    assert!(words.contains("op by op, layers.0."), "{words}");
    assert!(words.ends_with("2 requests ended for it"), "{words}");
    assert_eq!(status.audit.mismatches[0].layer, Some(0));
    assert_eq!(assert_nothing_corrupt(&sinks, &expected, AuditPart::Twin), 2);
    // The bucket goes on eagerly, and its tables are compared at every step.
    let tables = status.audit.part(AuditPart::Tables).audits;
    let sinks = submit(&engine, 10, &probes);
    let status = run(&mut engine);
    assert_eq!(assert_nothing_corrupt(&sinks, &expected, AuditPart::Twin), 0);
    assert!(status.audit.part(AuditPart::Tables).audits > tables + 25);
    assert_eq!(mismatches(&status), [0, 1, 0, 0]);
}

/// The ops of a plan that have a transient input of their own, as candidates for a wrong binding.
fn transient_reads(device: &CpuDevice, exec: ExecId) -> Vec<(OpId, usize)> {
    let proven = device.plan_of(exec);
    let plan = proven.plan();
    let of = |op: &OpId| {
        let reads = plan.op(*op).reads.iter().enumerate();
        let transient =
            |a: &lockstep_plan::Access| plan.buffer(a.buffer()).kind == BufferKind::Transient;
        let mut reads = reads.filter(|(_, a)| transient(a));
        reads.next().map(|(i, _)| (*op, i))
    };
    plan.op_ids().filter_map(|op| of(&op)).collect()
}

/// The capture of one op reads its input some bytes from where the plan has it, as a capture that
/// is bound to the bytes of another buffer would. The manifest knows nothing of it; the twin does,
/// and names that op, for an early, a middle and the last op.
#[test]
fn a_capture_bound_to_the_wrong_bytes_is_caught_and_its_op_named() {
    let probes = [probe(1, 9, 12)];
    let expected = undisturbed(&probes);
    let found = Arc::new(std::sync::Mutex::new(0));
    let count = {
        let to = found.clone();
        let mut engine = engine(&rig(1), move |moment, device| {
            if let Moment::Replay { exec, .. } = moment {
                *to.lock().unwrap() = transient_reads(device, exec).len();
            }
        });
        submit(&engine, 0, &probes);
        run(&mut engine);
        *found.lock().unwrap()
    };
    for nth in [1, count / 2, count - 1] {
        let name = Arc::new(std::sync::Mutex::new(String::new()));
        let (to, mut done) = (name.clone(), false);
        let hook = move |moment: Moment, device: &mut CpuDevice| {
            let Moment::Replay { step: 5, exec } = moment else { return };
            if core::mem::replace(&mut done, true) {
                return;
            }
            let (op, read) = transient_reads(device, exec)[nth];
            let proven = device.plan_of(exec);
            let op_of = proven.plan().op(op);
            let buffer = op_of.reads[read].buffer();
            let place = proven.packing().offset(buffer).unwrap();
            let by = if place >= 256 { -256 } else { 256 };
            device.misbind(exec, op, buffer, by).unwrap();
            device.check_manifest(exec).unwrap();
            *to.lock().unwrap() = op_of.name.clone();
        };
        let mut engine = engine(&rig(1), hook);
        let sinks = submit(&engine, 0, &probes);
        let status = run(&mut engine);
        let (name, words) = (name.lock().unwrap().clone(), status.audit.evidence[0].clone());
        println!("{name}: {words}");
        assert_eq!(mismatches(&status), [0, 1, 0, 0], "{name}: {words}");
        assert!(words.contains(&format!("op by op, {name} differs first")), "{name}: {words}");
        assert_eq!(quarantined(&status), ["decode-1"]);
        assert_eq!(assert_nothing_corrupt(&sinks, &expected, AuditPart::Twin), 1);
    }
}

/// A step writes outside its slots, into a page that another request has filled: both runs of the
/// twin read the same wrong bytes, so only the page's digest can tell.
#[test]
fn a_stray_write_into_another_requests_closed_page_is_caught() {
    let probes = [probe(1, 100, 40), probe(2, 10, 40)];
    let expected = undisturbed(&probes);
    let hook = |moment: Moment, device: &mut CpuDevice| {
        if let Moment::Replay { step: 15, .. } = moment {
            // The first request was the first to be given pages: 1, 2, 3, ...
            let at = 2 * BUFFER_BYTES + 640;
            device.write_state("layers.1.k_pages", at, &[7; 128]).unwrap();
        }
    };
    let mut engine = engine(&rig(1), hook);
    let sinks = submit(&engine, 0, &probes);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [0, 0, 1, 0], "{:?}", status.audit);
    let words = &status.audit.evidence[0];
    assert!(words.contains("page 2 was") && words.contains("layers.1.k_pages"), "{words}");
    assert_eq!((status.audit.mismatches[0].layer, status.audit.pages_set_aside), (Some(1), 1));
    assert_eq!(assert_nothing_corrupt(&sinks[1..], &expected[1..], AuditPart::Pages), 0);
    // The step that wrote may have read the page itself: its one token is the only one in doubt.
    let (tokens, failure) = answer(&sinks[0]);
    let (part, what) = failure.expect("its page is not what it was");
    assert_eq!(part, AuditPart::Pages, "{what}");
    let sound = tokens.len().saturating_sub(1);
    assert_eq!(tokens[..sound], expected[0][..sound]);
    assert!(status.health.is_serving() && quarantined(&status).is_empty());
}

/// A bit flips in a page that only the prefix cache holds. The next request with that prefix gets
/// the bits of an undisturbed run: the page is compared before it reads it, leaves the cache, and
/// the prefix is computed again.
#[test]
fn a_flipped_bit_in_a_cached_prefix_page_is_caught_before_it_is_reused() {
    let probes = [probe(1, 100, 20)];
    let expected = undisturbed(&probes);
    let armed = Arc::new(AtomicBool::new(false));
    let of_hook = armed.clone();
    let hook = move |moment: Moment, device: &mut CpuDevice| {
        if moment == Moment::Digest && of_hook.swap(false, Ordering::SeqCst) {
            let (at, mut byte) = (2 * BUFFER_BYTES + 4321, [0]);
            device.read_state("layers.0.v_pages", at, &mut byte).unwrap();
            device.write_state("layers.0.v_pages", at, &[byte[0] ^ 16]).unwrap();
        }
    };
    // Not every step: what is read is compared by age, what comes from the cache is looked at.
    let rig = rig(1 << 20).with(|k| {
        k.prefix_cache = true;
        k.audit_proof_age = Micros(1);
    });
    let mut engine = engine(&rig, hook);
    let first = submit(&engine, 0, &probes);
    run(&mut engine);
    assert_eq!(assert_nothing_corrupt(&first, &expected, AuditPart::Pages), 0);
    // From here on the first digests are those of the pages that the next request takes.
    armed.store(true, Ordering::SeqCst);
    let second = submit(&engine, 1, &probes);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [0, 0, 1, 0], "{:?}", status.audit);
    let words = &status.audit.evidence[0];
    assert!(words.contains("taken from the prefix cache"), "{words}");
    assert!(words.contains("layers.0.v_pages"), "{words}");
    assert_eq!(assert_nothing_corrupt(&second, &expected, AuditPart::Pages), 0);
    assert_eq!((status.counters.preemptions, status.audit.pages_set_aside), (1, 1));
    // And what was computed again is in the cache.
    let third = submit(&engine, 2, &probes);
    let status = run(&mut engine);
    assert_eq!(assert_nothing_corrupt(&third, &expected, AuditPart::Pages), 0);
    let events = third[0].0.lock().unwrap();
    assert!(matches!(events[0].kind, EventKind::Started { cached_tokens: 96 }), "{events:?}");
    assert_eq!(mismatches(&status), [0, 0, 1, 0]);
}

/// A long prefix from the cache is compared in slices: its row waits, the stream beside it goes on,
/// and a bit that flips in the last page meanwhile is still caught before the row reads it.
#[test]
fn a_long_cached_prefix_is_compared_in_slices_before_its_row_reads_it() {
    let probes = [probe(1, 900, 4), probe(2, 20, 60)];
    let expected = undisturbed(&probes);
    let armed = Arc::new(AtomicBool::new(false));
    let of_hook = armed.clone();
    let hook = move |moment: Moment, device: &mut CpuDevice| {
        if moment == Moment::Digest && of_hook.swap(false, Ordering::SeqCst) {
            let (at, mut byte) = (28 * BUFFER_BYTES + 4321, [0]);
            device.read_state("layers.1.k_pages", at, &mut byte).unwrap();
            device.write_state("layers.1.k_pages", at, &[byte[0] ^ 2]).unwrap();
        }
    };
    let rig = rig(1 << 20).with(|k| {
        k.prefix_cache = true;
        k.audit_proof_age = Micros(1);
        k.audit_hit_bytes = PAGE_BYTES;
    });
    let mut engine = engine(&rig, hook);
    submit(&engine, 0, &probes[..1]);
    let status = run(&mut engine);
    assert_eq!((status.audit.pages_closed, status.audit.waits), (28, 0));
    let stream = submit(&engine, 1, &probes[1..]);
    for _ in 0..5 {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    }
    let before = engine.status().counters;
    armed.store(true, Ordering::SeqCst);
    let again = submit(&engine, 2, &probes[..1]);
    while engine.status().audit.mismatches.is_empty() {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped, "the page is compared");
    }
    let status = engine.status();
    assert!(status.audit.waits > 0, "{:?}", status.audit);
    assert!(status.counters.decode_steps > before.decode_steps, "the stream goes on");
    assert_eq!(status.counters.prefill_steps, before.prefill_steps, "the row has not run");
    run(&mut engine);
    assert_eq!(assert_nothing_corrupt(&stream, &expected[1..], AuditPart::Pages), 0);
    assert_eq!(assert_nothing_corrupt(&again, &expected[..1], AuditPart::Pages), 0);
    assert_eq!(mismatches(&engine.status()), [0, 0, 1, 0]);
    // A row that waits alone has no step run for it meanwhile.
    let before = engine.status();
    let alone = submit(&engine, 3, &probes[..1]);
    let status = run(&mut engine);
    assert!(status.audit.waits > before.audit.waits);
    assert_eq!(status.counters.steps, before.counters.steps + 4, "one a token");
    assert_eq!(assert_nothing_corrupt(&alone, &expected[..1], AuditPart::Pages), 0);
}

/// A block table entry changes between the pool and the device. The twin would follow it
/// faithfully; the tables do not, and are put right before the step reads them.
#[test]
fn a_wrong_block_table_entry_is_caught_before_the_step_reads_it() {
    let probes = [probe(1, 70, 30), probe(2, 70, 30)];
    let expected = undisturbed(&probes);
    let mut steps = 0;
    let hook = move |moment: Moment, device: &mut CpuDevice| {
        let Moment::Tables { call: 2, exec, blocks } = moment else { return };
        steps += 1;
        if steps == 14 {
            // The first row's second page becomes the other request's.
            let bytes = device.input_mut(exec, blocks);
            let other = bytes[4] + 3;
            bytes[4] = other;
        }
    };
    let mut engine = engine(&rig(1), hook);
    let sinks = submit(&engine, 0, &probes);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [1, 0, 0, 0], "{:?}", status.audit);
    let words = &status.audit.evidence[0];
    assert!(words.contains("block_tables") && words.starts_with("tables: step"), "{words}");
    assert_eq!(quarantined(&status).len(), 1);
    assert_eq!(assert_nothing_corrupt(&sinks, &expected, AuditPart::Tables), 0);
}

/// A bit of a weight flips. Every run reads it, captured or eager, so the twin agrees with the
/// replay; the digest of the weights does not, and nothing is served with it.
#[test]
fn a_flipped_weight_bit_stops_the_engine_with_words() {
    let mut done = false;
    let hook = move |moment: Moment, device: &mut CpuDevice| {
        let Moment::Replay { exec, .. } = moment else { return };
        if core::mem::replace(&mut done, true) {
            return;
        }
        let proven = device.plan_of(exec);
        let weights = proven.plan().buffers.iter().filter(|b| b.kind == BufferKind::Weight);
        let last = weights.max_by_key(|b| b.name.as_str()).unwrap();
        device.flip_weight_bit(&last.name, last.bytes * 8 - 3);
    };
    let mut engine = engine(&rig(1), hook);
    let sinks = submit(&engine, 0, &[probe(1, 10, 900), probe(2, 10, 900)]);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [0, 0, 0, 1], "{:?}", status.audit);
    assert!(status.audit.part(AuditPart::Twin).audits > 0);
    for sink in &sinks {
        let (part, what) = answer(sink).1.expect("the weights are not what was loaded");
        assert_eq!(part, AuditPart::Weights);
        assert!(what.contains("is not what was loaded"), "{what}");
    }
    let Health::Failed { why } = &status.health else { panic!("{:?}", status.health) };
    assert!(why.contains("is not what was loaded"), "{why}");
    let refused = engine.handle.submit(probe(3, 3, 3).request(9), Box::new(Recorder::default()));
    assert!(refused.unwrap_err().to_string().contains("is not what was loaded"));
}

/// With `audit.on-mismatch = stop` nothing new is taken after a mismatch, for all to see, and what
/// runs and is not in doubt goes on.
#[test]
fn the_policy_stop_closes_the_door() {
    let probes = [probe(1, 100, 60), probe(2, 10, 60)];
    let expected = undisturbed(&probes);
    let hook = |moment: Moment, device: &mut CpuDevice| {
        if let Moment::Replay { step: 15, .. } = moment {
            device.write_state("layers.0.v_pages", BUFFER_BYTES, &[1; 64]).unwrap();
        }
    };
    let mut engine = engine(&rig(1).with(|k| k.on_mismatch = OnMismatch::Stop), hook);
    let sinks = submit(&engine, 0, &probes);
    let status = run(&mut engine);
    assert_eq!(mismatches(&status), [0, 0, 1, 0], "{:?}", status.audit);
    assert_eq!(answer(&sinks[0]).1.map(|(part, _)| part), Some(AuditPart::Pages));
    assert_eq!(assert_nothing_corrupt(&sinks[1..], &expected[1..], AuditPart::Pages), 0);
    assert!(matches!(&status.health, Health::Failed { why } if why.contains("page 1")));
    let refused = engine.handle.submit(probe(3, 3, 3).request(9), Box::new(Recorder::default()));
    assert!(refused.unwrap_err().to_string().contains("page 1"));
}

/// Every part at every step, over a load that hits the prefix cache, fills the pool, is preempted
/// and goes away in the middle: no alarm, and every check ran.
#[test]
fn a_clean_run_never_alarms() {
    let mut total = [0; 4];
    let (mut steps, mut hits, mut preemptions, mut cancelled) = (0, 0, 0, 0);
    for seed in 0..8u32 {
        let rig = rig(1).with(|k| {
            k.prefix_cache = true;
            k.kv_bytes = 14 * PAGE_BYTES;
        });
        let mut engine = engine(&rig, |_, _| {});
        let mut state = 0x9e37_79b9 ^ u64::from(seed);
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let mut sinks = Vec::new();
        for id in 0..40 {
            // Five prompts, of which many are asked for again.
            let which = random(5) as u32;
            let probe = probe(which, 20 + 37 * which, 1 + random(120) as u32);
            sinks.extend(submit(&engine, id, &[probe]));
            for _ in 0..random(12) {
                engine.steps.turn();
            }
            if random(5) == 0 {
                engine.handle.cancel(RequestId(random(id + 1)));
            }
        }
        let status = run(&mut engine);
        assert_eq!(mismatches(&status), [0; 4], "seed {seed}: {:?}", status.audit.evidence);
        assert!(sinks.iter().all(Recorder::ended));
        for (total, part) in total.iter_mut().zip(status.audit.parts) {
            *total += part.audits;
            assert!(part.bytes > 0, "seed {seed}");
        }
        let c = status.counters;
        assert_eq!(status.audit.part(AuditPart::Twin).audits, c.steps, "every step");
        let (closed, covered) = (status.audit.pages_closed, status.audit.pages_covered);
        assert!(closed > 15 && covered > 0, "{closed} pages closed, {covered} covered");
        (steps, hits) = (steps + c.steps, hits + c.cached_tokens);
        (preemptions, cancelled) = (preemptions + c.preemptions, cancelled + c.cancelled);
    }
    println!(
        "{steps} steps, {hits} cached tokens, {preemptions} preemptions, {cancelled} cancelled: \
         no alarm in {total:?} checks of tables, twin, pages, weights"
    );
    assert!(hits > 1000 && preemptions > 0 && cancelled > 5 && total.iter().all(|n| *n > 100));
}
