//! A step launched before the host has seen the last one's tokens changes nothing that a client
//! sees: mixed loads give the same tokens and log-probabilities with a step in flight and without,
//! on a device that runs a launched step as late as it may.
#![forbid(unsafe_code)]

mod common;

use common::ahead::AheadDevice;
use common::models::tiny;
use common::stage::{graph_max_bs, outcomes, submit_from, verified, wait};
use common::{Probe, Recorder, Rig};
use lockstep_engine::{EngineError, LoopTurn};
use lockstep_flow::status::{EngineStatus, WaitReason};
use lockstep_flow::{
    AuditPart, EventKind, Failure, FinishReason, Micros, RequestId, SamplingParams, Seed, Token,
};
use lockstep_plan::Relay;
use lockstep_plan::mix::mix64;

/// Bytes of a page: 2 layers of keys and values of 2 heads of 32 channels in f32, and the ids.
const PAGE_BYTES: u64 = 2 * 2 * (2 * 32 * 4 * 32) + 128;

fn rig(pipelined: bool) -> Rig {
    Rig::default().with(|k| {
        (k.running_max, k.graph_max_bs, k.chunk_tokens) = (9, 8, 32);
        (k.kv_bytes, k.context_tokens) = (13 * PAGE_BYTES, 256);
        (k.prefix_cache, k.pipelined, k.watch_s) = (true, pipelined, 0);
    })
}

/// Random numbers of a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = mix64(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        (self.0 >> 32) as u32 % n
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// A request of a load: when it comes, and after how many turns it is given up, if it is.
struct Call {
    probe: Probe,
    comes: u32,
    leaves: Option<u32>,
}

/// Requests of every kind that share nothing but their company: greedy and drawn, penalised,
/// biased, ending by a token, by length or by their clients, some made to say one text.
fn load(seed: u64, calls: u32) -> Vec<Call> {
    let mut draw = Draw(seed);
    // Long answers outgrow the pool, and the youngest go back to the queue.
    let long = seed % 2 == 1;
    let mut comes = 0;
    let one = |i: u32| {
        let shared = draw.one_in(3);
        let longest = if draw.one_in(4) { 90 } else { 20 };
        let prompt = 1 + draw.below(longest);
        let first = if shared { 0 } else { draw.below(200) };
        let drawn = draw.one_in(2);
        let params = SamplingParams {
            temperature: if drawn { 0.9 } else { 0.0 },
            top_k: draw.below(2) * 20,
            repetition_penalty: if draw.one_in(3) { 1.3 } else { 1.0 },
            frequency_penalty: if draw.one_in(3) { 0.4 } else { 0.0 },
            logit_bias: if draw.one_in(4) { vec![(Token(9), 3.0)] } else { Vec::new() },
            seed: Seed(u64::from(i)),
            logprobs: (!draw.one_in(4)).then_some(3),
            prompt_logprobs: draw.one_in(6),
            max_tokens: 1 + draw.below(40) + if long { 60 } else { 0 },
            min_tokens: draw.below(3),
            ignore_eos: long || draw.one_in(2),
            stop_tokens: (0..if long { 1 } else { draw.below(40) })
                .map(|t| Token(6 * t + 1))
                .collect(),
            ..SamplingParams::default()
        };
        let forced = draw.one_in(12).then(|| (0..5).map(|t| Token(5 + t)).collect());
        comes += draw.below(4) * draw.below(4);
        let leaves = draw.one_in(7).then(|| 1 + draw.below(25));
        let tokens = (0..prompt).map(|t| 3 + (t * 7 + first) % 200);
        Call { probe: Probe { forced, ..Probe::new(tokens, params) }, comes, leaves }
    };
    (0..calls).map(one).collect()
}

/// What a client has seen: token, bits of its log-probability and of its alternatives; and the end.
type Told = (Vec<(Token, Vec<u32>)>, Result<FinishReason, Failure>);

fn told(sink: &Recorder) -> Told {
    let events = sink.0.lock().unwrap();
    assert_eq!(events.iter().filter(|e| e.kind.is_final()).count(), 1, "one end");
    let (mut tokens, mut end) = (Vec::new(), None);
    for event in &*events {
        match &event.kind {
            EventKind::Token { token, index, logprob } => {
                assert_eq!(*index as usize, tokens.len());
                let bits = logprob.iter().flat_map(|l| {
                    let top = l.top.iter().flat_map(|(t, p)| [t.0, p.to_bits()]);
                    core::iter::once(l.logprob.to_bits()).chain(top).collect::<Vec<u32>>()
                });
                tokens.push((*token, bits.collect()));
            }
            EventKind::Finished { reason, .. } => end = Some(Ok(*reason)),
            EventKind::Failed { failure, .. } => end = Some(Err(failure.clone())),
            EventKind::Started { .. } | EventKind::Prompt { .. } => {}
        }
    }
    (tokens, end.expect("it has ended"))
}

fn play(rig: &Rig, device: AheadDevice, calls: &[Call]) -> (Vec<Told>, EngineStatus) {
    let mut engine = rig.engine_on(&tiny("qwen3"), Box::new(device), false);
    let sinks: Vec<Recorder> = calls.iter().map(|_| Recorder::default()).collect();
    let mut turn = 0;
    while sinks.iter().any(|s| !s.ended()) {
        for (i, call) in calls.iter().enumerate() {
            if call.comes == turn {
                let request = call.probe.request(i as u64);
                engine.handle.submit(request, Box::new(sinks[i].clone())).unwrap();
            } else if call.leaves.is_some_and(|after| call.comes + after == turn) {
                engine.handle.cancel(RequestId(i as u64));
            }
        }
        assert_ne!(engine.steps.turn(), LoopTurn::Stopped);
        turn += 1;
        assert!(turn < 20_000, "it never ends");
    }
    // The status is that of the last step: one more, after the last client has left.
    let last = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
    let request = Probe::new([3], last).request(1 << 20);
    engine.handle.submit(request, Box::new(Recorder::default())).unwrap();
    while engine.steps.turn() == LoopTurn::Stepped {}
    let told = sinks.iter().map(told).collect();
    (told, engine.status())
}

/// Where both ended by themselves all is the same; where a client left, one saw the other's start.
fn first_unlike(plain: &[Told], ahead: &[Told]) -> Option<usize> {
    let unlike = |(a, b): (&Told, &Told)| {
        let n = a.0.len().min(b.0.len());
        let left = a.1 == Err(Failure::Cancelled) || b.1 == Err(Failure::Cancelled);
        if left { a.0[..n] != b.0[..n] } else { a != b }
    };
    plain.iter().zip(ahead).position(unlike)
}

fn waits(status: &EngineStatus, reason: WaitReason) -> u64 {
    let found = status.waited_steps.iter().find(|(r, _)| *r == reason);
    found.expect("every reason is there").1
}

#[test]
fn mixed_loads_give_the_same_with_a_step_in_flight() {
    let (mut pipelined, mut preempted, mut reasons) = (0, 0, [0; WaitReason::ALL.len()]);
    for seed in 0..5 {
        let calls = load(seed, 45);
        let rig = |pipelined| {
            rig(pipelined).with(|k| {
                k.prefix_cache = seed % 2 == 0;
                k.graph_max_bs = if seed == 2 { 2 } else { 8 };
            })
        };
        let (plain, status) = play(&rig(false), AheadDevice::new(), &calls);
        assert_eq!((status.counters.pipelined_steps, status.waited_steps.len()), (0, 0));
        let (ahead, status) = play(&rig(true), AheadDevice::new(), &calls);
        if let Some(i) = first_unlike(&plain, &ahead) {
            panic!("seed {seed}, request {i}:\n{:?}\n{:?}", plain[i], ahead[i]);
        }
        pipelined += status.counters.pipelined_steps;
        preempted += status.counters.preemptions;
        for (to, (_, n)) in reasons.iter_mut().zip(&status.waited_steps) {
            *to += n;
        }
        let c = &status.counters;
        let ended = c.finished + c.failed + c.cancelled;
        assert_eq!((ended, status.running, status.queued), (46, 0, 0), "{c:?}");
    }
    assert!(pipelined > 300 && preempted > 0, "{pipelined} steps, {preempted} preemptions");
    for reason in [
        WaitReason::Prefill,
        WaitReason::Grammar,
        WaitReason::Admission,
        WaitReason::Pages,
        WaitReason::Eager,
    ] {
        assert!(reasons[reason as usize] > 0, "{}: {reasons:?}", reason.as_str());
    }
}

#[test]
fn audits_go_on_beside_a_step_in_flight() {
    for (rate, age) in [(1, 30_000), (4, 0), (9, 30_000)] {
        let calls = load(77, 40);
        let audited = |pipelined| {
            rig(pipelined).with(|k| {
                (k.audit_rate, k.audit_proof_age) = (rate, Micros::from_millis(age));
            })
        };
        let (plain, _) = play(&audited(false), AheadDevice::new(), &calls);
        let (ahead, status) = play(&audited(true), AheadDevice::new(), &calls);
        assert_eq!(first_unlike(&plain, &ahead), None, "rate {rate}");
        for part in AuditPart::ALL {
            assert_eq!(status.audit.part(part).mismatches, 0, "rate {rate}, {part:?}");
        }
        let [twins, pages] =
            [AuditPart::Twin, AuditPart::Pages].map(|part| status.audit.part(part).audits);
        assert!(twins > 10 && (pages > 0 || age > 0), "{twins} twins, {pages} pages");
        let (ahead, waited) = (status.counters.pipelined_steps, waits(&status, WaitReason::Audit));
        // A step beside its twin runs alone: of two in a row, neither is launched ahead.
        assert_eq!((ahead > 0, waited > 0), (rate > 1, rate > 1), "{ahead} ahead, {waited} waited");
    }
}

#[test]
fn generations_are_flipped_between_steps_in_flight() {
    let rig = |pipelined| {
        rig(pipelined).with(|k| {
            (k.kv_bytes, k.audit_rate) = (200 * PAGE_BYTES, 20);
            (k.running_max, k.graph_max_bs) = (8, 8);
        })
    };
    let probes: Vec<Probe> = (0..24)
        .map(|i| {
            let params = SamplingParams {
                max_tokens: 150,
                ignore_eos: true,
                temperature: 0.8,
                seed: Seed(i),
                logprobs: Some(2),
                ..SamplingParams::default()
            };
            Probe::new((0..10 + i as u32).map(|t| 3 + (t * 5 + i as u32) % 200), params)
        })
        .collect();
    // The same requests again and again for as long as generations change: however slow that is,
    // there is always something in flight.
    let run = |pipelined: bool, flips: u32| {
        let handle = rig(pipelined).started(&tiny("qwen3"), Box::new(AheadDevice::new()));
        let mut rounds = Vec::new();
        let status = std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for i in 0..flips {
                    let before = handle.status().generation;
                    let number = verified(&handle, &graph_max_bs(8 + i));
                    handle.flip(number, None).unwrap();
                    handle.retire(before).unwrap();
                }
            });
            loop {
                let is_last = changes.is_finished();
                let sinks = submit_from(&handle, &probes, 0);
                let status = wait(&handle, "the end", |_| sinks.iter().all(Recorder::ended));
                rounds.push(outcomes(&sinks));
                if is_last {
                    changes.join().unwrap();
                    return status;
                }
            }
        });
        (rounds, status)
    };
    let (plain, _) = run(false, 0);
    let (ahead, status) = run(true, 3);
    for round in &ahead {
        common::outcome::assert_same(&plain[0], round, "with a step in flight and flips");
    }
    let waited = (waits(&status, WaitReason::Generation), waits(&status, WaitReason::Canary));
    assert!(status.counters.flips == 3 && status.counters.canary_steps > 0, "{status:#?}");
    assert!(status.counters.pipelined_steps > 50 && waited.1 > 0, "{waited:?}");
}

/// The drill, on an engine: the next step's results are fetched over the ones that the host is
/// about to read. A device that says so is refused, with the reads and writes named; one that lies
/// gives clients other tokens, which is what the tests above would see.
#[test]
fn results_fetched_over_those_that_the_host_reads_are_refused_and_would_show() {
    let mut honest = AheadDevice::new();
    honest.relay = Relay { waits_for_sent: true, fetched: 1 };
    let refused = rig(true).refused(&tiny("qwen3"), Box::new(honest));
    let EngineError::Refused { hazards, .. } = &refused else { panic!("{refused}") };
    let words = refused.to_string();
    assert!(!hazards.is_empty() && words.contains("fetch.1"), "{words}");
    assert!(words.contains("read_of_0_behind.1"), "{words}");

    let calls = load(5, 30);
    let (plain, _) = play(&rig(false), AheadDevice::new(), &calls);
    let mut liar = AheadDevice::new();
    (liar.kept, liar.hurry) = (1, 1);
    let (ahead, _) = play(&rig(true), liar, &calls);
    assert!(first_unlike(&plain, &ahead).is_some(), "nothing shows");
}

#[test]
fn a_device_that_fails_with_two_steps_in_flight_ends_every_request_once() {
    for fails_at in [3, 14, 25] {
        let mut device = AheadDevice::new();
        device.fails_at = fails_at;
        let mut engine = rig(true).engine_on(&tiny("qwen3"), Box::new(device), false);
        let sinks: Vec<Recorder> = (0..12).map(|_| Recorder::default()).collect();
        for (i, sink) in sinks.iter().enumerate() {
            let params =
                SamplingParams { max_tokens: 60, ignore_eos: true, ..SamplingParams::default() };
            let probe = Probe::new((0..5).map(|t| 3 + t), params);
            engine.handle.submit(probe.request(i as u64), Box::new(sink.clone())).unwrap();
        }
        while engine.steps.turn() == LoopTurn::Stepped {}
        assert_eq!(engine.steps.turn(), LoopTurn::Stopped);
        for sink in &sinks {
            assert!(matches!(told(sink).1, Err(Failure::Engine { .. })));
        }
        let status = engine.status();
        assert_eq!((status.running, status.queued), (0, 0));
        assert_eq!(status.pools[0].pages_used, 0, "no page is lost");
    }
}
