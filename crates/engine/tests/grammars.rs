//! Grammars run beside the steps, and requests of many sequences come in as a whole.
#![forbid(unsafe_code)]

mod common;

use common::models::tiny;
use common::{Engine, Probe, Recorder, Rig};
use lockstep_engine::{LoopTurn, Submission};
use lockstep_flow::{
    EventKind, Failure, FinishReason, MaskError, Refusal, Request, RequestId, SamplingParams,
    Token, TokenMask,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};

fn rig() -> Rig {
    Rig::default().with(|k| {
        k.running_max = 4;
        k.queued_max = 8;
        k.graph_max_bs = 4;
        k.chunk_tokens = 64;
        k.kv_bytes = 8 << 20;
        k.context_tokens = 256;
    })
}

fn engine() -> Engine {
    rig().engine(&tiny("qwen3"))
}

fn request(id: u64, max_tokens: u32, grammar: Option<Box<dyn TokenMask>>) -> Request {
    let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    Request { grammar, ..Probe::new((0..9).map(|t| 3 + t * 11), params).request(id) }
}

/// Whether only the end may follow a token, or what is wrong with it.
type Said = Result<bool, MaskError>;

/// Allows every token, says what it is told to say of each, and waits for that.
#[derive(Debug)]
struct Told {
    says: Receiver<Said>,
    complete: bool,
}

fn told() -> (Sender<Said>, Option<Box<dyn TokenMask>>) {
    let (say, says) = channel();
    (say, Some(Box::new(Told { says, complete: false })))
}

impl TokenMask for Told {
    fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError> {
        words.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _: Token) -> Result<(), MaskError> {
        self.complete = self.says.recv().expect("the test says something")?;
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.complete
    }
}

fn last(log: &Recorder) -> EventKind {
    log.0.lock().unwrap().last().expect("an event").kind.clone()
}

fn tokens(log: &Recorder) -> usize {
    let events = log.0.lock().unwrap();
    events.iter().filter(|e| matches!(e.kind, EventKind::Token { .. })).count()
}

/// The mask of one request once held the step of all: a grammar made for it stopped the server.
#[test]
fn a_grammar_that_does_not_come_back_holds_its_own_request_only() {
    let mut engine = engine();
    let (held, free) = (Recorder::default(), Recorder::default());
    let (say, grammar) = told();
    engine.handle.submit(request(1, 3, grammar), Box::new(held.clone())).unwrap();
    engine.handle.submit(request(2, 40, None), Box::new(free.clone())).unwrap();
    while !free.ended() {
        assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    }
    // Its first token was sampled and sent, and it is still thought about.
    assert_eq!((tokens(&free), tokens(&held), held.ended()), (40, 1, false));
    for verdict in [false, false, false] {
        say.send(Ok(verdict)).unwrap();
    }
    while engine.steps.turn() == LoopTurn::Stepped {}
    assert!(matches!(last(&held), EventKind::Finished { reason: FinishReason::Length, .. }));
    assert_eq!(tokens(&held), 3);
}

#[test]
fn what_the_grammar_says_decides_how_a_request_ends() {
    let (mut engine, mut id) = (engine(), 0);
    let mut end = |says: &[Said]| {
        let (log, (say, grammar)) = (Recorder::default(), told());
        says.iter().for_each(|s| say.send(s.clone()).unwrap());
        id += 1;
        engine.handle.submit(request(id, 3, grammar), Box::new(log.clone())).unwrap();
        while engine.steps.turn() == LoopTurn::Stepped {}
        assert_eq!(log.finals(), 1);
        (tokens(&log), last(&log))
    };
    let stop =
        |kind: &EventKind| matches!(kind, EventKind::Finished { reason: FinishReason::Stop, .. });
    let (n, kind) = end(&[Ok(false), Ok(true)]);
    assert!(n == 2 && stop(&kind), "{kind:?}");
    // Complete with the last token that it may have: not cut, but done.
    let (n, kind) = end(&[Ok(false), Ok(false), Ok(true)]);
    assert!(n == 3 && stop(&kind), "{kind:?}");
    let slow = MaskError::TooSlow { limit_ms: 9 };
    let (n, kind) = end(&[Ok(false), Err(slow.clone())]);
    assert_eq!(n, 2);
    assert!(matches!(&kind, EventKind::Failed { failure: Failure::Grammar(e), .. } if *e == slow));
    let ours = MaskError::Rejected { token: Token(3), at_output_index: 0 };
    let (_, kind) = end(&[Err(ours)]);
    assert!(matches!(&kind, EventKind::Failed { failure: Failure::Grammar(_), .. }));
    let counters = engine.status().counters;
    assert_eq!(counters.grammar_stopped, 1, "a bug of ours is not the grammar's");
    assert_eq!(counters.failed, 1, "a client's own grammar is no failure of the server");
}

/// A client that leaves while its grammar is away; the grammar comes back to nobody.
#[test]
fn a_request_can_end_while_its_grammar_is_away() {
    let mut engine = engine();
    let (log, (say, grammar)) = (Recorder::default(), told());
    engine.handle.submit(request(1, 9, grammar), Box::new(log.clone())).unwrap();
    assert_eq!(engine.steps.turn(), LoopTurn::Stepped);
    engine.handle.cancel(RequestId(1));
    say.send(Ok(false)).unwrap();
    while engine.steps.turn() == LoopTurn::Stepped {}
    assert!(matches!(last(&log), EventKind::Failed { failure: Failure::Cancelled, .. }));
    engine.handle.submit(request(2, 2, None), Box::new(log.clone())).unwrap();
    while engine.steps.turn() == LoopTurn::Stepped {}
    assert_eq!((log.finals(), engine.status().pools[0].pages_used), (2, 0));
}

fn many(first: u64, count: u64, log: &Recorder) -> Vec<Submission> {
    let one = |i| (request(first + i, 3, None), Box::new(log.clone()) as _);
    (0..count).map(one).collect()
}

/// Two requests once took half of the places each, and both were refused.
#[test]
fn many_clients_of_many_sequences_get_all_places_or_none() {
    let mut engine = engine();
    let (log, handle) = (Recorder::default(), engine.handle.clone());
    let (clients, count) = (16, 5);
    let (start, admitted) = (Barrier::new(clients), Mutex::new(0));
    std::thread::scope(|scope| {
        for client in 0..clients as u64 {
            let (start, admitted, log, handle) = (&start, &admitted, &log, &handle);
            scope.spawn(move || {
                let all = many(client * count, count, log);
                start.wait();
                match handle.submit_all(all) {
                    Ok(tickets) => {
                        assert_eq!(tickets.len() as u64, count);
                        *admitted.lock().unwrap() += count;
                    }
                    Err(Refusal::QueueFull { limit: 8, .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            });
        }
    });
    let admitted = *admitted.lock().unwrap();
    assert_eq!(admitted, 10, "of twelve places two requests of five fill ten");
    // A smaller one still fits beside them.
    handle.submit_all(many(900, 2, &log)).unwrap();
    while engine.steps.turn() == LoopTurn::Stepped {}
    let counters = engine.status().counters;
    assert_eq!((counters.admitted, counters.finished), (12, 12));
    assert_eq!(counters.refused_queue_full, clients as u64 * count - 10);
    assert_eq!(log.finals(), 12);
}

#[test]
fn more_than_all_places_is_refused_for_good_and_a_bad_one_refuses_all() {
    let mut engine = engine();
    let log = Recorder::default();
    let refusal = engine.handle.submit_all(many(0, 13, &log)).unwrap_err();
    assert_eq!(refusal, Refusal::TooManySequences { sequences: 13, limit: 12 });
    let mut all = many(20, 3, &log);
    all[2].0.prompt = [].into();
    assert_eq!(engine.handle.submit_all(all).unwrap_err(), Refusal::EmptyPrompt);
    assert_eq!(engine.steps.turn(), LoopTurn::Idle);
    engine.handle.submit_all(many(40, 12, &log)).unwrap();
    while engine.steps.turn() == LoopTurn::Stepped {}
    let counters = engine.status().counters;
    assert_eq!((counters.admitted, counters.refused_other, log.finals()), (12, 16, 12));
}
