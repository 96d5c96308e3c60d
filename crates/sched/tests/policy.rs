//! What the scheduler chooses, case by case.
#![forbid(unsafe_code)]

mod common;

use common::{EOS, Host, request};
use lockstep_flow::{
    BucketKey, Failure, FinishReason, Micros, Refusal, Request, RequestId, SamplingParams, Token,
};
use lockstep_sched::{Logits, Outcome, SchedConfig, Update};
use std::sync::Arc;

fn ids(updates: &[Update], keep: fn(&Update) -> bool) -> Vec<u64> {
    updates.iter().filter(|u| keep(u)).map(|u| u.request().0).collect()
}

fn started(u: &Update) -> bool {
    matches!(u, Update::Started { .. })
}

#[test]
fn service_is_by_arrival_even_where_submission_is_not() {
    let mut host = Host::new(2, 10, 100, 1);
    for (id, arrived) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        let r = Request { arrived: Micros(arrived), ..request(id, 5, 3) };
        host.sched.submit(&r, Micros(40)).unwrap();
    }
    let updates = host.run_to_idle(|_| Token(1));
    assert_eq!(ids(&updates, started), [2, 4, 3, 1]);
}

#[test]
fn the_queue_holds_what_it_says_and_refuses_the_rest_with_a_time() {
    let mut host = Host::new(2, 3, 100, 1);
    for id in 0..5 {
        let ticket = host.submit(&request(id, 5, 3)).unwrap();
        assert_eq!(u64::from(ticket.queued_before), id);
    }
    let refusal = host.submit(&request(9, 5, 3)).unwrap_err();
    assert_eq!(refusal, Refusal::QueueFull { queued: 5, limit: 3, retry_after_s: 1 });
    host.step(|_| Token(1));
    let refusal = host.submit(&request(9, 5, 3)).unwrap_err();
    assert!(matches!(refusal, Refusal::QueueFull { queued: 3, limit: 3, .. }));
    host.run_to_idle(|_| Token(1));
    // Five ends in a minute and a half: a place every 18 seconds or so.
    for id in 10..15 {
        host.submit(&request(id, 5, 3)).unwrap();
    }
    let end = host.sched.steps_in_flight();
    assert_eq!(end, 0);
    host.now = Micros(90_000_000);
    let refusal = host.submit(&request(19, 5, 3)).unwrap_err();
    assert!(matches!(refusal, Refusal::QueueFull { retry_after_s: 18, .. }), "{refusal}");
    assert_eq!(host.sched.counters().refused.queue_full, 3);
}

#[test]
fn what_can_never_run_is_refused_at_the_door_with_the_reason() {
    let mut host = Host::new(2, 3, 5, 1);
    let mut refuse = |r: Request| host.submit(&r).unwrap_err().to_string();
    assert_eq!(refuse(request(1, 0, 1)), "the prompt has no tokens; it needs at least one");
    assert_eq!(
        refuse(request(1, 100, 30)),
        "the request needs 129 tokens of KV and the pool holds 128: shorten it, or start the \
         server with a larger --kv-memory"
    );
    assert!(refuse(request(1, 4000, 200)).contains("exceed the context of 4096 tokens"));
    let bad = Request { prompt: Arc::from(vec![Token(3), Token(777)]), ..request(1, 1, 1) };
    assert_eq!(refuse(bad), "token 777 at index 1 is outside the vocabulary of 100");
    let params = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
    assert!(refuse(Request { params, ..request(1, 1, 1) }).starts_with("top_p is 0"));
    host.sched.close("draining");
    let refusal = host.submit(&request(1, 1, 1)).unwrap_err();
    assert_eq!(refusal.to_string(), "the server takes no new requests: draining");
    let refused = host.sched.counters().refused;
    assert_eq!((refused.bad_input, refused.pool_too_small, refused.not_serving), (3, 1, 1));
    host.sched.open();
    host.submit(&request(1, 100, 29)).unwrap();
    let updates = host.run_to_idle(|_| Token(1));
    assert!(matches!(
        updates.last(),
        Some(Update::Finished { reason: FinishReason::Length, usage, .. })
            if usage.completion_tokens == 29
    ));
}

#[test]
fn decode_rows_come_first_and_prefill_takes_its_chunk_beside_them() {
    let mut host = Host::new(4, 3, 100, 1);
    for id in 1..=2 {
        host.submit(&request(id, 10, 50)).unwrap();
    }
    let batch = host.step(|_| Token(1)).unwrap();
    assert_eq!(batch.live, BucketKey { tokens: 20, seqs: 2, logit_rows: 2 });
    host.submit(&request(3, 200, 5)).unwrap();
    let batch = host.step(|_| Token(1)).unwrap();
    assert_eq!(batch.decode_rows, 2);
    assert_eq!(batch.rows[2].plan.n_tokens, 62, "64 a step, cut to fill the bucket of 64");
    assert_eq!(batch.rows[2].plan.logits, Logits::None);
    assert_eq!(batch.bucket, BucketKey { tokens: 64, seqs: 4, logit_rows: 4 });
    let chunks: Vec<u32> =
        (0..4).map(|_| host.step(|_| Token(1)).unwrap().rows[2].plan.n_tokens).collect();
    assert_eq!(chunks, [62, 62, 14, 1]);
    let batch = host.step(|_| Token(1)).unwrap();
    assert!(batch.bucket.is_decode() && batch.decode_rows == 3);
}

/// Eight choices of one prompt, which one step could take many of: the prompt is computed once, its pages are held once.
#[test]
fn choices_of_one_prompt_share_its_pages() {
    let mut host = Host::new(8, 8, 200, 1);
    for id in 0..8 {
        host.submit(&request(id, 49, 40)).unwrap();
    }
    let updates = host.run_to_idle(|row| Token(row.plan.request.0 as u32));
    let counters = host.sched.counters();
    assert_eq!(ids(&updates, started), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(counters.prefix_waits, 7);
    assert_eq!(host.sched.pool().counters().prefix_hit_tokens, 7 * 32);
    let cached = updates.iter().filter_map(|u| match u {
        Update::Finished { usage, .. } => Some(usage.cached_tokens),
        _ => None,
    });
    assert_eq!(cached.collect::<Vec<_>>(), [0, 32, 32, 32, 32, 32, 32, 32]);
    assert_eq!((counters.prefill_tokens, counters.decode_rows), (49 + 7 * 17, 8 * 39));
}

#[test]
fn another_prompt_does_not_wait_for_the_one_in_front_that_waits() {
    let mut host = Host::new(8, 8, 200, 1);
    host.submit(&request(1, 300, 4)).unwrap();
    host.submit(&request(2, 300, 4)).unwrap();
    let other: Vec<Token> = (0..20).map(|i| Token(90 - i)).collect();
    host.submit(&Request { prompt: Arc::from(other), ..request(3, 1, 4) }).unwrap();
    let updates = host.run_to_idle(|_| Token(1));
    assert_eq!(ids(&updates, started), [1, 3, 2]);
}

#[test]
fn the_youngest_is_preempted_and_resumes_before_anything_newer() {
    // Nine pages: three requests of one page each that grow to four.
    let mut host = Host::new(3, 3, 10, 1);
    for id in 1..=4 {
        let prompt: Vec<Token> = (0..20).map(|i| Token(i + 20 * (id as u32 - 1))).collect();
        let r = Request { prompt: Arc::from(prompt), ..request(id, 1, 105) };
        host.submit(&r).unwrap();
    }
    let updates = host.run_to_idle(|row| Token(row.output_index * 7 % 50));
    assert_eq!(ids(&updates, |u| matches!(u, Update::Preempted { .. })), [3]);
    assert_eq!(ids(&updates, Update::is_final), [1, 2, 3, 4]);
    for id in 1..=4 {
        let tokens = updates.iter().filter_map(|u| match u {
            Update::Token { request, token, index, .. } if request.0 == id => {
                Some((*index, token.0))
            }
            _ => None,
        });
        let expected: Vec<_> = (0..105).map(|i| (i, i * 7 % 50)).collect();
        assert_eq!(tokens.collect::<Vec<_>>(), expected, "request {id}");
    }
    let usage = updates.iter().find_map(|u| match u {
        Update::Finished { request: RequestId(3), usage, .. } => Some(*usage),
        _ => None,
    });
    assert_eq!(usage.map(|u| (u.preemptions, u.completion_tokens)), Some((1, 105)));
}

#[test]
fn stopping_rules() {
    let run = |edit: fn(&mut SamplingParams), token: fn(u32) -> Token| {
        let mut host = Host::new(1, 3, 20, 2);
        let mut r = request(1, 3, 10);
        edit(&mut r.params);
        host.submit(&r).unwrap();
        let updates = host.run_to_idle(|row| token(row.output_index));
        let tokens = updates.iter().filter(|u| matches!(u, Update::Token { .. })).count();
        match updates.last() {
            Some(Update::Finished { reason, usage, .. }) => {
                (*reason, tokens, usage.completion_tokens)
            }
            other => panic!("{other:?}"),
        }
    };
    let at_4 = |i| if i == 4 { EOS } else { Token(1) };
    assert_eq!(run(|_| (), |_| Token(1)), (FinishReason::Length, 10, 10));
    assert_eq!(run(|_| (), at_4), (FinishReason::Stop, 4, 5));
    assert_eq!(run(|p| p.ignore_eos = true, at_4), (FinishReason::Length, 10, 10));
    assert_eq!(run(|p| p.min_tokens = 4, at_4), (FinishReason::Stop, 4, 5));
    assert_eq!(run(|p| p.min_tokens = 5, at_4), (FinishReason::Length, 10, 10));
    let stop = |p: &mut SamplingParams| p.stop_tokens = vec![Token(8)];
    assert_eq!(run(stop, |i| Token(6 + i)), (FinishReason::Stop, 2, 3));
}

#[test]
fn a_held_request_takes_no_row_until_its_grammar_has_spoken() {
    let mut host = Host::new(2, 3, 20, 1);
    host.submit(&request(1, 3, 2)).unwrap();
    host.submit(&request(2, 3, 9)).unwrap();
    host.launch().unwrap();
    host.finish(&[Outcome::SampledHeld(Token(7)), Outcome::Sampled(Token(7))]);
    let whose = |host: &mut Host| {
        let batch = host.launch().unwrap();
        batch.rows.iter().map(|r| r.plan.request.0).collect::<Vec<_>>()
    };
    assert_eq!(whose(&mut host), [2], "the other one goes on");
    host.finish(&[Outcome::Sampled(Token(7))]);
    assert!(host.sched.settle(RequestId(1), false, Micros(9)));
    assert_eq!(whose(&mut host), [1, 2]);
    // Its last token: why it ends is for the grammar to say.
    host.finish(&[Outcome::SampledHeld(Token(8)), Outcome::Sampled(Token(7))]);
    assert_eq!(whose(&mut host), [2]);
    host.finish(&[Outcome::Sampled(Token(7))]);
    let ended = |u: &Update| matches!(u, Update::Finished { .. });
    assert!(!host.sched.drain_updates().any(|u| ended(&u)));
    assert!(host.sched.settle(RequestId(1), true, Micros(9)));
    let updates: Vec<_> = host.sched.drain_updates().collect();
    assert!(matches!(&updates[..], [Update::Finished { reason: FinishReason::Stop, .. }]));
    assert!(!host.sched.settle(RequestId(1), true, Micros(9)), "it is not live any more");
}

#[test]
fn a_held_request_at_its_limit_ends_for_its_length_where_the_grammar_would_go_on() {
    let mut host = Host::new(1, 3, 20, 1);
    host.submit(&request(1, 3, 1)).unwrap();
    host.launch().unwrap();
    host.finish(&[Outcome::SampledHeld(Token(7))]);
    assert!(host.launch().is_none() && host.sched.running() == 1);
    assert!(host.sched.settle(RequestId(1), false, Micros(9)));
    let updates: Vec<_> = host.sched.drain_updates().collect();
    assert!(matches!(updates.last(), Some(Update::Finished { reason: FinishReason::Length, .. })));
    assert!(host.sched.is_idle());
}

#[test]
fn a_cancelled_request_gives_its_pages_back_within_one_step() {
    let mut host = Host::new(2, 3, 20, 2);
    host.submit(&request(1, 100, 50)).unwrap();
    host.launch().unwrap();
    host.finish(&[Outcome::Computed]);
    host.launch().unwrap();
    host.launch();
    assert!(host.sched.cancel(RequestId(1)));
    assert!(!host.sched.cancel(RequestId(1)));
    let used = |h: &Host| 19 - h.sched.pool().free_pages() - h.sched.pool().cached_pages();
    assert!(used(&host) > 0, "the step in flight still has them");
    while host.sched.steps_in_flight() > 0 {
        let rows = host.sched.oldest_step().unwrap().rows.len();
        host.finish(&vec![Outcome::Computed; rows]);
    }
    assert_eq!(used(&host), 0);
    let updates: Vec<_> = host.sched.drain_updates().collect();
    assert_eq!(ids(&updates, Update::is_final), [1]);
}

#[test]
fn a_stop_string_ends_a_request_well() {
    let mut host = Host::new(2, 3, 20, 2);
    host.submit(&request(1, 10, 50)).unwrap();
    for _ in 0..4 {
        host.step(|_| Token(1)).unwrap();
    }
    assert!(host.sched.stop(RequestId(1)));
    assert!(!host.sched.stop(RequestId(1)) && !host.sched.cancel(RequestId(1)));
    let updates = host.run_to_idle(|_| Token(2));
    let tokens = updates.iter().filter(|u| matches!(u, Update::Token { .. })).count();
    let reason = FinishReason::Stop;
    assert!(matches!(
        updates.last(),
        Some(Update::Finished { reason: r, usage, .. })
            if *r == reason && usage.completion_tokens as usize == tokens && tokens > 0
    ));
}

/// A row of a request that is cancelled between `plan` and `lease` leaves the step.
#[test]
fn a_cancellation_between_plan_and_lease_takes_the_row_out() {
    let mut host = Host::new(2, 3, 20, 1);
    host.submit(&request(1, 5, 50)).unwrap();
    host.submit(&Request { prompt: Arc::from(vec![Token(9); 7]), ..request(2, 1, 5) }).unwrap();
    assert_eq!(host.sched.plan(host.now).unwrap().rows.len(), 2);
    host.sched.cancel(RequestId(1));
    host.lease();
    let batch = host.sched.oldest_step().unwrap();
    assert_eq!(batch.rows.len(), 1);
    assert_eq!(batch.live, BucketKey { tokens: 7, seqs: 1, logit_rows: 1 });
    assert_eq!((batch.rows[0].token_row, batch.rows[0].logit_row), (0, 0));
    host.finish(&[Outcome::Sampled(Token(1))]);
    host.run_to_idle(|_| Token(1));
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let mut host = Host::new(1, 3, 20, 1);
    for id in 1..=2 {
        let deadline = Some(Micros(1000));
        host.submit(&Request { deadline, ..request(id, 5, 50) }).unwrap();
    }
    host.step(|_| Token(1));
    host.now = Micros(999);
    host.step(|_| Token(1));
    host.now = Micros(1000);
    assert!(host.step(|_| Token(1)).is_none());
    let updates: Vec<_> = host.sched.drain_updates().collect();
    let failed = updates
        .iter()
        .filter(|u| matches!(u, Update::Failed { failure: Failure::DeadlineExceeded, .. }));
    assert_eq!(failed.count(), 2);
    assert!(host.sched.is_idle());
}

#[test]
fn prompt_logprobs_come_in_chunks_whose_every_token_has_logits() {
    let mut host = Host::new(2, 3, 40, 1);
    host.submit(&request(1, 100, 3)).unwrap();
    host.run_to_idle(|_| Token(1));
    let mut r = request(2, 100, 3);
    r.params.prompt_logprobs = true;
    host.submit(&r).unwrap();
    let mut chunks = Vec::new();
    while let Some(batch) = host.step(|_| Token(1)) {
        assert!(batch.bucket.logit_rows >= batch.live.logit_rows);
        chunks.push((batch.rows[0].plan.n_tokens, batch.rows[0].plan.logits));
    }
    use Logits::{All, Last};
    assert_eq!(chunks, [(32, All), (32, All), (32, All), (4, All), (1, Last), (1, Last)]);
    let reported: Vec<_> = host
        .sched
        .drain_updates()
        .filter_map(|u| match u {
            Update::PromptLogits { from, rows, .. } => Some((from, rows)),
            _ => None,
        })
        .collect();
    assert_eq!(reported, [(0, 32), (32, 32), (64, 32), (96, 3)]);
}

#[test]
fn everything_can_be_ended_at_once() {
    let mut host = Host::new(2, 5, 40, 2);
    for id in 0..6 {
        host.submit(&request(id, 9, 9)).unwrap();
    }
    host.launch().unwrap();
    host.sched.abort_all(&Failure::ShuttingDown);
    let rows = host.sched.oldest_step().unwrap().rows.len();
    host.finish(&vec![Outcome::Sampled(Token(1)); rows]);
    let updates: Vec<_> = host.sched.drain_updates().collect();
    assert_eq!(updates.iter().filter(|u| u.is_final()).count(), 6);
    assert!(host.sched.is_idle());
    assert_eq!(host.sched.counters().discarded_rows, rows as u64);
}

/// A change of generation with fewer places: the youngest wait again and lose nothing, and a step
/// in flight puts the change off.
#[test]
fn fewer_places_send_the_youngest_back_to_the_queue() {
    let mut host = Host::new(8, 10, 200, 1);
    for id in 1..=6 {
        host.submit(&request(id, 5, 40)).unwrap();
    }
    host.step(|_| Token(1));
    assert_eq!(host.sched.running(), 6);
    host.launch().unwrap();
    let asked = |host: &mut Host, running| {
        let buckets = lockstep_sched::standard_buckets(running, 32, 32);
        host.sched.set_ladder(buckets, running, 32).map_err(|e| e.to_string())
    };
    let words = "1 steps are in flight; it takes the time between two steps";
    assert_eq!(asked(&mut host, 4), Err(words.into()));
    let outcomes: Vec<Outcome> = (0..6).map(|_| Outcome::Sampled(Token(1))).collect();
    host.finish(&outcomes);
    assert_eq!(asked(&mut host, 9).unwrap_err(), "running_requests_max is 9; it takes 1 to 8");
    asked(&mut host, 4).unwrap();
    assert_eq!((host.sched.running(), host.sched.queued()), (4, 2));
    let updates = host.run_to_idle(|_| Token(1));
    let preempted = |u: &Update| matches!(u, Update::Preempted { .. });
    let finished = |u: &Update| matches!(u, Update::Finished { .. });
    assert_eq!(ids(&updates, preempted), [6, 5]);
    assert_eq!(ids(&updates, finished), [1, 2, 3, 4, 5, 6]);
}

/// What a sequence takes from the prefix cache can be more than is compared before one step: its
/// row goes out of the step, and it keeps its place, its slot and its pages.
#[test]
fn a_row_that_has_not_run_waits_for_a_later_step() {
    let mut host = Host::new(4, 4, 100, 1);
    host.submit(&request(1, 70, 10)).unwrap();
    host.step(|_| Token(1));
    host.submit(&request(2, 65, 3)).unwrap();
    host.step(|_| Token(1));
    let before = *host.sched.counters();
    host.submit(&request(3, 65, 3)).unwrap();
    for round in 1..=2 {
        let batch = host.sched.plan(host.now).unwrap().clone();
        let row = *batch.rows.iter().find(|r| r.plan.request == RequestId(3)).unwrap();
        assert_eq!((batch.rows.len(), row.plan.first_position.0), (3, 64), "round {round}");
        host.sched.postpone(row.plan.slot);
        let left = host.sched.planned_step().unwrap().clone();
        assert_eq!((left.rows.len(), left.step), (2, batch.step));
        assert!(left.bucket.is_decode(), "{}", left.bucket);
        assert!(!host.sched.withdraw_empty_step());
        host.lease();
        host.finish(&[Outcome::Sampled(Token(1)), Outcome::Sampled(Token(1))]);
    }
    let after = *host.sched.counters();
    assert_eq!(after.postponed_rows, 2);
    assert_eq!(
        after.prefill_rows + after.decode_rows,
        before.prefill_rows + before.decode_rows + 4
    );
    assert_eq!((after.preemptions, after.recomputed_tokens), (0, 0));
    let updates = host.run_to_idle(|_| Token(1));
    assert_eq!(ids(&updates, started), [1, 2, 3]);
    assert_eq!(ids(&updates, |u| matches!(u, Update::Finished { .. })), [2, 3, 1]);

    // Alone, it leaves no step.
    host.submit(&request(4, 65, 1)).unwrap();
    let batch = host.sched.plan(host.now).unwrap().clone();
    host.sched.postpone(batch.rows[0].plan.slot);
    assert!(host.sched.withdraw_empty_step());
    assert!(host.sched.planned_step().is_none() && !host.sched.is_idle());
    let again = host.sched.plan(host.now).unwrap();
    assert_eq!((again.step, again.rows.len()), (batch.step, 1));
    host.lease();
    host.finish(&[Outcome::Sampled(Token(1))]);
    assert!(host.sched.is_idle());
}

/// What a resumed request computes again was counted once for each time that its row had to wait.
#[test]
fn a_row_that_waits_counts_what_it_computes_again_once() {
    let mut host = Host::new(2, 4, 100, 1);
    host.submit(&request(1, 40, 30)).unwrap();
    host.submit(&Request { use_prefix_cache: false, ..request(2, 40, 30) }).unwrap();
    for _ in 0..4 {
        host.step(|_| Token(1));
    }
    assert!(host.sched.preempt_youngest().unwrap());
    let mut waited = 0;
    while host.sched.counters().recomputed_tokens == 0 || waited < 2 {
        let batch = host.sched.plan(host.now).unwrap().clone();
        let row = batch.rows.iter().find(|r| r.plan.request == RequestId(2)).copied();
        if let (Some(row), true) = (row, waited < 2) {
            host.sched.postpone(row.plan.slot);
            assert_eq!(host.sched.counters().recomputed_tokens, 0, "it has not run");
            waited += 1;
        }
        host.lease();
        let rows = host.sched.oldest_step().unwrap().rows.len();
        host.finish(&vec![Outcome::Sampled(Token(1)); rows]);
    }
    host.run_to_idle(|_| Token(1));
    // 40 of the prompt, and two of the three tokens that it had sampled: the last was not read yet.
    assert_eq!(host.sched.counters().recomputed_tokens, 42);
}

/// Decode rows with drafts have several tokens, and a step of nothing else was cut to the bucket
/// below as if each had one: whole rows of running requests were taken out.
#[test]
fn a_step_of_decode_rows_with_drafts_is_not_cut() {
    let mixed = |tokens| BucketKey { tokens, seqs: 10, logit_rows: tokens };
    let buckets = [16, 32, 64].map(mixed).into_iter().chain([BucketKey::decode(10)]).collect();
    let change = |c: &mut SchedConfig| (c.drafts, c.padding_max_percent) = (3, 20);
    let mut host = Host::with(buckets, change, 10, 100);
    for id in 0..10 {
        host.submit(&request(id, 1, 40)).unwrap();
    }
    let run = |n: u32| (0..n).map(|i| Token(2 + i)).collect();
    for tokens in [10, 40] {
        let batch = host.launch().unwrap();
        assert_eq!((batch.live.tokens, batch.rows.len(), batch.decode_rows), (tokens, 10, 10));
        let outcome = Outcome::Verified { sampled: run(1), drafts: run(3) };
        host.finish(&vec![outcome; 10]);
    }
}

/// Canary steps take numbers of steps and leave nothing behind.
#[test]
fn a_canary_step_goes_between_two_steps_and_leaves_nothing() {
    let mut host = Host::new(2, 3, 100, 1);
    host.submit(&request(1, 5, 10)).unwrap();
    host.step(|_| Token(1));
    let free = host.sched.pool().free_pages();
    let canary = RequestId(u64::MAX);
    let slot = host.sched.pool_mut().begin(canary, 0, &[]).unwrap().slot;
    host.sched.pool_mut().extend(slot, canary, 40).unwrap();
    let row = lockstep_sched::RowPlan::drawing(canary, slot, 0, 33);
    // Twice the same positions, over the end of a page: nothing that a canary wrote closes one.
    for _ in 0..2 {
        host.canary(&[row]);
        host.sched.pool_mut().rewind(slot, canary, 0).unwrap();
    }
    host.step(|_| Token(1));
    host.sched.pool_mut().release(slot, canary).unwrap();
    assert_eq!(host.sched.pool().free_pages(), free);
    assert_eq!(host.sched.pool().audit().violation, None);
    assert_eq!(host.sched.counters().steps, 2, "canary steps are not the scheduler's");
    host.run_to_idle(|_| Token(1));
}
