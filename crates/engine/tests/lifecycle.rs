//! Every accepted request ends exactly once, whatever goes away first: its client, its time, the
//! server, the device, the step thread.
#![forbid(unsafe_code)]

mod common;

use common::fault::FaultDevice;
use common::models::tiny;
use common::outcome::assert_same;
use common::{Engine, Probe, Recorder, Rig};
use lockstep_device::CpuDevice;
use lockstep_engine::{Handle, LoopTurn};
use lockstep_flow::status::{Counters, Health};
use lockstep_flow::{
    Event, EventKind, EventSink, Failure, FinishReason, Micros, Refusal, Request, RequestId,
    SamplingParams, Token,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

fn probe(prompt: u32, max_tokens: u32) -> Probe {
    let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    Probe::new((0..prompt).map(|t| 3 + (t * 11 + prompt) % 250), params)
}

fn rig() -> Rig {
    Rig::default().with(|k| {
        k.running_max = 8;
        k.graph_max_bs = 8;
        k.chunk_tokens = 64;
        k.queued_max = 300;
        k.kv_bytes = 40 * (2 * 2 * 2 * 32 * 4 * 32 + 128);
        k.prefix_cache = true;
    })
}

fn cpu() -> Box<CpuDevice> {
    Box::new(CpuDevice::new(2, "auto").unwrap())
}

fn words(recorder: &Recorder) -> String {
    match recorder.0.lock().unwrap().last() {
        Some(Event { kind: EventKind::Failed { failure, .. }, .. }) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

/// An end-of-text token before `min_tokens` was once passed on as if it were text.
#[test]
fn no_token_that_ends_the_text_comes_before_min_tokens() {
    let (eos, stop) = (common::model(&tiny("llama")).eos()[0], Token(17));
    let wanting = |(token, min_tokens): (Token, u32)| {
        let mut probe = probe(9 + min_tokens, 20);
        probe.params = SamplingParams {
            temperature: 0.0,
            max_tokens: 20,
            min_tokens,
            logit_bias: vec![(token, 100.0)],
            stop_tokens: vec![stop],
            ..SamplingParams::default()
        };
        probe
    };
    let wants = [(eos, 0), (eos, 1), (eos, 5), (stop, 7), (eos, 20)];
    let probes: Vec<Probe> = wants.map(wanting).into();
    let mut engine = Rig::default().engine(&tiny("llama"));
    let alone = engine.alone(&probes);
    for (outcome, (_, min_tokens)) in alone.iter().zip(wants) {
        assert_eq!(outcome.tokens.len(), min_tokens as usize);
        assert!(!outcome.tokens.contains(&eos) && !outcome.tokens.contains(&stop));
        let ended = if min_tokens == 20 { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!(outcome.reason, ended);
    }
    assert_same(&alone, &engine.together(&probes, &[]), "in one batch");
    // Where end-of-text tokens are ignored they are text like any other.
    let mut ignoring = wanting((eos, 5));
    ignoring.params.ignore_eos = true;
    assert_eq!(engine.alone(&[ignoring])[0].tokens, [eos; 20]);
}

/// Waits for something that another thread is about to do.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..300_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen");
}

/// A client that goes away after so many events; it may not hear of anything after that.
#[derive(Clone)]
struct Leaving {
    log: Recorder,
    stays: usize,
    gone: Arc<AtomicBool>,
}

impl EventSink for Leaving {
    fn emit(&mut self, event: Event) -> bool {
        assert!(!self.gone.load(Ordering::SeqCst), "an event after the client had left");
        self.log.emit(event);
        let stays = self.log.0.lock().unwrap().len() < self.stays;
        self.gone.store(!stays, Ordering::SeqCst);
        stays
    }
}

fn client(stays: usize) -> Leaving {
    Leaving { log: Recorder::default(), stays, gone: Arc::default() }
}

/// A storm of requests with random ends; returns their clients.
fn storm(handle: &Handle, first: u64, count: u64) -> Vec<Leaving> {
    let mut state = 0x1234_5678_9abc_def1u64 ^ first;
    let mut random = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let mut clients = Vec::new();
    for id in first..first + count {
        let probe = probe(1 + random(200) as u32, 1 + random(60) as u32);
        let mut request = probe.request(id);
        request.arrived = handle.now();
        if random(4) == 0 {
            request.deadline = Some(Micros(handle.now().0 + 200 + random(30_000)));
        }
        let stays = if random(4) == 0 { 1 + random(20) as usize } else { usize::MAX };
        let client = client(stays);
        handle.submit(request, Box::new(client.clone())).unwrap();
        clients.push(client);
        if random(3) == 0 {
            handle.cancel(RequestId(first + random(id - first + 1)));
        }
        if random(8) == 0 {
            std::thread::sleep(Duration::from_micros(random(2000)));
        }
    }
    clients
}

/// One final event for each client that stayed, none after it.
fn assert_each_ended_once(clients: &[Leaving]) {
    for (i, client) in clients.iter().enumerate() {
        let events = client.log.0.lock().unwrap();
        let finals = events.iter().filter(|e| e.kind.is_final()).count();
        if client.gone.load(Ordering::SeqCst) {
            assert!(finals <= 1, "request {i}: {finals} final events");
        } else {
            assert_eq!(finals, 1, "request {i}: {:?}", events.last());
        }
        assert!(finals == 0 || events.last().unwrap().kind.is_final(), "request {i}");
    }
}

fn ended(clients: &[Leaving]) -> bool {
    clients.iter().all(|c| c.log.ended() || c.gone.load(Ordering::SeqCst))
}

fn count(clients: &[Leaving], is: impl Fn(&EventKind) -> bool) -> usize {
    let last = |c: &Leaving| c.log.0.lock().unwrap().last().is_some_and(|e| is(&e.kind));
    clients.iter().filter(|c| last(c)).count()
}

fn failed_with(expected: Failure) -> impl Fn(&EventKind) -> bool {
    move |kind| matches!(kind, EventKind::Failed { failure, .. } if *failure == expected)
}

#[test]
fn every_request_ends_once_and_leaves_nothing_behind() {
    let handle = rig().started(&tiny("qwen3"), cpu());
    let clients = storm(&handle, 0, 200);
    eventually("the end of every request", || ended(&clients));
    assert_each_ended_once(&clients);
    let finished = count(&clients, |k| matches!(k, EventKind::Finished { .. }));
    let cancelled = count(&clients, failed_with(Failure::Cancelled));
    let late = count(&clients, failed_with(Failure::DeadlineExceeded));
    let gone = clients.iter().filter(|c| c.gone.load(Ordering::SeqCst)).count();
    println!("{finished} finished, {cancelled} cancelled, {late} late, {gone} left");
    assert!(finished > 10 && cancelled > 10 && gone > 10);
    eventually("an idle engine", || {
        let s = handle.status();
        s.running == 0 && s.queued == 0 && s.pools[0].pages_used == 0
    });
    // Every place is free again: 308 requests are admitted, and one more is not.
    let clients: Vec<Leaving> = (0..308).map(|_| client(usize::MAX)).collect();
    let device_is_busy = |id: u64| probe(200, 800).request(10_000 + id);
    for (id, client) in clients.iter().enumerate() {
        handle.submit(device_is_busy(id as u64), Box::new(client.clone())).unwrap();
    }
    let refused = handle.submit(device_is_busy(308), Box::new(client(1))).unwrap_err();
    assert!(matches!(refused, Refusal::QueueFull { .. }), "{refused}");
    handle.shutdown();
    assert_each_ended_once(&clients);
    assert!(count(&clients, failed_with(Failure::ShuttingDown)) > 200);
}

#[test]
fn a_shutdown_in_the_middle_of_the_load_ends_every_request() {
    let handle = rig().started(&tiny("qwen3"), cpu());
    let mut clients = storm(&handle, 0, 80);
    // A quick engine has the storm behind it by now; these take it seconds.
    for id in 1000..1100 {
        let client = client(usize::MAX);
        handle.submit(probe(200, 800).request(id), Box::new(client.clone())).unwrap();
        clients.push(client);
    }
    handle.shutdown();
    assert_each_ended_once(&clients);
    assert!(count(&clients, failed_with(Failure::ShuttingDown)) > 0);
    let refused = handle.submit(probe(3, 3).request(900), Box::new(client(1))).unwrap_err();
    assert!(matches!(refused, Refusal::NotServing { .. }), "{refused}");
}

#[test]
fn a_drain_finishes_what_it_has_and_takes_nothing_new() {
    let handle = rig().started(&tiny("qwen3"), cpu());
    let clients: Vec<Leaving> = (0..20).map(|_| client(usize::MAX)).collect();
    for (id, client) in clients.iter().enumerate() {
        handle.submit(probe(30, 20).request(id as u64), Box::new(client.clone())).unwrap();
    }
    handle.drain();
    let refused = handle.submit(probe(3, 3).request(900), Box::new(client(1))).unwrap_err();
    assert!(matches!(refused, Refusal::NotServing { .. }), "{refused}");
    eventually("the end of every request", || ended(&clients));
    assert_each_ended_once(&clients);
    assert_eq!(count(&clients, |k| matches!(k, EventKind::Finished { .. })), 20);
    assert_eq!(handle.status().health, Health::Draining);
    handle.shutdown();
}

fn driven(before_step: common::fault::BeforeStep) -> Engine {
    let rig = rig().with(|k| k.prefix_cache = false);
    rig.engine_on(&tiny("qwen3"), Box::new(FaultDevice::new(before_step)), false)
}

#[test]
fn pages_of_a_client_that_left_are_free_after_one_step() {
    let mut engine = driven(Box::new(|_, _| {}));
    let (left, stays) = (client(4), client(usize::MAX));
    engine.handle.submit(probe(100, 500).request(0), Box::new(left.clone())).unwrap();
    engine.handle.submit(probe(40, 500).request(1), Box::new(stays.clone())).unwrap();
    while !left.gone.load(Ordering::SeqCst) {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
        if !left.gone.load(Ordering::SeqCst) && left.log.0.lock().unwrap().len() > 1 {
            assert!(engine.status().pools[0].pages_used > 4);
        }
    }
    assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    let status = engine.status();
    assert_eq!((status.running, status.pools[0].pages_used), (1, 2), "{status:?}");
    assert_eq!(status.counters.cancelled, 1);
    engine.handle.cancel(RequestId(1));
    assert_eq!(engine.steps.turn(), LoopTurn::Idle);
    assert!(stays.log.ended());
}

#[test]
fn a_failed_device_ends_every_request_and_closes_the_engine_with_words() {
    let at_step_five = |step, device: &mut CpuDevice| {
        if step == 5 {
            device.break_threads("a kernel read past its rows");
        }
    };
    let mut engine = driven(Box::new(at_step_five));
    let clients: Vec<Leaving> = (0..12).map(|_| client(usize::MAX)).collect();
    for (id, client) in clients.iter().enumerate() {
        let request = probe(30, 50).request(id as u64);
        engine.handle.submit(request, Box::new(client.clone())).unwrap();
    }
    for _ in 0..4 {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    }
    assert!(!ended(&clients));
    for _ in 0..3 {
        assert_eq!(engine.steps.turn(), LoopTurn::Stopped);
    }
    assert_each_ended_once(&clients);
    for client in &clients {
        assert!(
            words(&client.log).contains("a kernel read past its rows"),
            "{}",
            words(&client.log)
        );
    }
    let status = engine.status();
    let Health::Failed { why } = &status.health else { panic!("{:?}", status.health) };
    assert!(why.contains("a kernel read past its rows"), "{why}");
    assert_eq!((status.running, status.queued, status.pools[0].pages_used), (0, 0, 0));
    let refused = engine.handle.submit(probe(3, 3).request(99), Box::new(client(1))).unwrap_err();
    assert!(refused.to_string().contains("a kernel read past its rows"), "{refused}");
}

/// The step thread took its last command before these came; they had been admitted all the same.
#[test]
fn requests_admitted_while_the_device_fails_end_too() {
    let handle: Arc<OnceLock<Handle>> = Arc::default();
    let late = [client(usize::MAX), client(usize::MAX)];
    let (of_hook, clients) = (handle.clone(), late.clone());
    let hook = move |step: u64, device: &mut CpuDevice| {
        if step == 2 {
            for (i, client) in clients.iter().enumerate() {
                let request = probe(5, 5).request(50 + i as u64);
                of_hook.get().unwrap().submit(request, Box::new(client.clone())).unwrap();
            }
            device.break_threads("gone");
        }
    };
    let mut engine = driven(Box::new(hook));
    handle.set(engine.handle.clone()).unwrap();
    let first = client(usize::MAX);
    engine.handle.submit(probe(30, 50).request(0), Box::new(first.clone())).unwrap();
    while engine.steps.turn() != LoopTurn::Stopped {}
    assert_each_ended_once(&[first]);
    assert_each_ended_once(&late);
}

/// A client that looks at the engine's counters as its request ends.
struct Looking(Handle, Arc<Mutex<Vec<Counters>>>);

impl EventSink for Looking {
    fn emit(&mut self, event: Event) -> bool {
        if event.kind.is_final() {
            self.1.lock().unwrap().push(self.0.status().counters);
        }
        true
    }
}

/// Whoever asked for the status right after an answer may have found a request that had not ended.
#[test]
fn who_learns_of_a_request_s_end_finds_it_counted() {
    let mut engine = driven(Box::new(|_, _| ()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (id, tokens) in [(0, 1), (1, 4), (2, 4), (3, 500)] {
        let sink = Looking(engine.handle.clone(), seen.clone());
        engine.handle.submit(probe(9, tokens).request(id), Box::new(sink)).unwrap();
    }
    while seen.lock().unwrap().len() < 3 {
        engine.steps.turn();
    }
    engine.handle.cancel(RequestId(3));
    while seen.lock().unwrap().len() < 4 {
        engine.steps.turn();
    }
    let seen: Vec<_> = seen.lock().unwrap().iter().map(|c| (c.finished, c.cancelled)).collect();
    // Two end in one step.
    assert_eq!(seen, [(1, 0), (3, 0), (3, 0), (3, 1)]);
}

/// A client whose code panics on the step thread.
struct Panicking;

impl EventSink for Panicking {
    fn emit(&mut self, event: Event) -> bool {
        assert!(!matches!(event.kind, EventKind::Token { .. }), "this client cannot take tokens");
        true
    }
}

#[test]
fn a_panic_on_the_step_thread_ends_every_request_and_fails_the_engine() {
    let handle = rig().started(&tiny("qwen3"), cpu());
    let mut clients = Vec::new();
    for id in 0..40 {
        let client = client(usize::MAX);
        let admitted = handle.submit(probe(30, 900).request(id), Box::new(client.clone()));
        // From the panic on the door is closed.
        assert!(admitted.is_ok() || id > 5);
        clients.extend(admitted.is_ok().then_some(client));
        if id == 5 {
            // First in the queue.
            let request = Request { arrived: Micros(0), ..probe(2, 50).request(900) };
            handle.submit(request, Box::new(Panicking)).unwrap();
        }
    }
    eventually("the end of every request", || ended(&clients));
    handle.shutdown();
    assert_each_ended_once(&clients);
    assert!(words(&clients[0].log).contains("this client cannot take tokens"));
    let Health::Failed { why } = handle.status().health else { panic!("not failed") };
    assert!(why.contains("this client cannot take tokens"), "{why}");
    let refused = handle.submit(probe(3, 3).request(99), Box::new(client(1))).unwrap_err();
    assert!(matches!(refused, Refusal::NotServing { .. }), "{refused}");
}

/// A request whose deadline has passed ends in the queue as well as in a slot.
#[test]
fn deadlines_hold_in_the_queue_and_in_a_slot() {
    let mut engine = driven(Box::new(|_, _| {}));
    let log: Vec<Leaving> = (0..9).map(|_| client(usize::MAX)).collect();
    let soon = Micros(engine.handle.now().0 + 20_000);
    for (id, client) in log.iter().enumerate() {
        let request = Request { deadline: Some(soon), ..probe(10, 900).request(id as u64) };
        engine.handle.submit(request, Box::new(client.clone())).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    }
    assert_eq!((engine.status().running, engine.status().queued), (8, 1));
    while engine.handle.now() < soon {
        engine.steps.turn();
    }
    engine.steps.turn();
    assert_each_ended_once(&log);
    assert_eq!(count(&log, failed_with(Failure::DeadlineExceeded)), 9);
}
