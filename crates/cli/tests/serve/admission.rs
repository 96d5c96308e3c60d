//! Requests of many sequences: admitted as a whole, refused as a whole, and told when no waiting
//! would help.

use crate::common::serving::Serving;
use crate::common::wait_until;
use serde_json::{Value, json};
use std::sync::Barrier;

const COMPLETIONS: &str = "/v1/completions";

fn counters(server: &Serving) -> Value {
    server.status()["lockstep"]["engine"]["counters"].clone()
}

/// Two requests that did not fit together once took half of the queue each, and both were refused:
/// again and again, although either would have fitted.
#[test]
fn of_requests_that_do_not_fit_together_some_are_whole_and_the_others_take_nothing() {
    let flags = ["--max-running-requests", "4", "--max-queued-requests", "8"];
    let server = Serving::start("together", &flags);
    let (clients, n) = (12, 7);
    let start = Barrier::new(clients);
    let ask = |i: usize| {
        let body = match i % 3 {
            0 => json!({"prompt": "a", "max_tokens": 30, "ignore_eos": true, "n": n}),
            1 => json!({"prompt": vec!["a"; n], "max_tokens": 30, "ignore_eos": true}),
            _ => json!({"prompt": "a", "max_tokens": 30, "ignore_eos": true, "best_of": n}),
        };
        start.wait();
        let (head, answer) = server.post(COMPLETIONS, &body);
        let shown = if i % 3 == 2 { 1 } else { n };
        match answer["choices"].as_array() {
            Some(choices) => assert_eq!(choices.len(), shown, "{head}"),
            None => {
                assert!(head.contains(" 429 "), "{head}\n{answer}");
                assert!(head.to_ascii_lowercase().contains("retry-after: "), "{head}");
                assert_eq!(answer["error"]["code"], "queue_full", "{answer}");
            }
        }
        answer.get("choices").is_some()
    };
    let whole = std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = (0..clients).map(|i| scope.spawn(move || ask(i))).collect();
        asked.into_iter().map(|a| u64::from(a.join().unwrap())).sum::<u64>()
    });
    assert!(whole >= 1, "what fits alone is not kept out by what does not fit with it");
    wait_until("all have ended", || counters(&server)["finished"] == whole * n as u64);
    let counters = counters(&server);
    let sent = (clients * n) as u64;
    assert_eq!(counters["admitted"], whole * n as u64, "{counters}");
    assert_eq!(counters["refused_queue_full"], sent - whole * n as u64, "{counters}");
    assert_eq!((&counters["cancelled"], &counters["failed"]), (&json!(0), &json!(0)));
}

/// More sequences than could ever be live once got 429 with Retry-After, forever.
#[test]
fn what_no_waiting_would_admit_is_400_with_the_bound() {
    let flags = ["--max-running-requests", "4", "--max-queued-requests", "8"];
    let server = Serving::start("never", &flags);
    let prompts = |n: usize| vec!["a"; n];
    for (field, body) in [
        ("n", json!({"prompt": "a", "max_tokens": 1, "n": 13})),
        ("best_of", json!({"prompt": "a", "max_tokens": 1, "best_of": 13})),
        ("prompt", json!({"prompt": prompts(13), "max_tokens": 1})),
        ("prompt", json!({"prompt": prompts(2048), "max_tokens": 1})),
        ("prompt", json!({"prompt": [[1, 2], [3]], "max_tokens": 1, "n": 7})),
    ] {
        let (head, answer) = server.post(COMPLETIONS, &body);
        assert!(head.contains(" 400 "), "{field}: {head}\n{answer}");
        let error = &answer["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(field), &json!("too_many_sequences"))
        );
        assert!(error["message"].as_str().unwrap().contains("at most 12 "), "{answer}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "n": 13});
    let (head, answer) = server.post("/v1/chat/completions", &chat);
    assert!(head.contains(" 400 ") && answer["error"]["param"] == "n", "{head}\n{answer}");
    // The bound itself is served by an idle server.
    let (head, answer) =
        server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1, "n": 12}));
    assert!(head.contains(" 200 "), "{head}\n{answer}");
    assert_eq!(counters(&server)["refused_queue_full"], 0);
}
