//! Clients that leave, queues that fill, servers that end.

mod common;

use common::{Server, ToyConfig, wait_until};
use lockstep_serve::Engine;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::Shutdown;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

fn endless(stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "go on"}],
        "ignore_eos": true, "max_tokens": 1800, "stream": stream,
    })
}

fn slow() -> ToyConfig {
    ToyConfig { step: Duration::from_millis(2), ..ToyConfig::default() }
}

fn used_pages(server: &Server) -> u32 {
    server.toy.status().pools[0].pages_used
}

#[test]
fn a_client_that_leaves_a_stream_frees_its_pages() {
    let server = Server::with(slow(), &[]);
    let mut client = server.client();
    client.send("POST", CHAT, &[], endless(true).to_string().as_bytes());
    client.head();
    client.chunk().unwrap();
    assert!(used_pages(&server) > 0);
    drop(client);
    wait_until("its pages are free", || used_pages(&server) == 0);
    let c = server.toy_counters();
    assert_eq!((c.admitted, c.cancelled, c.finished), (1, 1, 0));
}

#[test]
fn a_client_that_leaves_without_a_stream_frees_its_pages() {
    let server = Server::with(slow(), &[]);
    let mut client = server.client();
    let mut body = endless(false);
    body["n"] = json!(4);
    client.send("POST", CHAT, &[], body.to_string().as_bytes());
    wait_until("all four run", || server.toy.status().running == 4);
    drop(client);
    wait_until("their pages are free", || used_pages(&server) == 0);
    assert_eq!(server.toy_counters().cancelled, 4);
}

/// The engine is told within one step of the client's leaving: with the loop held, no step passes
/// between the cancellation and the first step after it, which ends the request.
#[test]
fn the_first_step_after_a_client_left_ends_its_request() {
    let server = Server::with(slow(), &[]);
    let mut client = server.client();
    client.send("POST", CHAT, &[], endless(true).to_string().as_bytes());
    client.head();
    client.chunk().unwrap();
    server.toy.pause();
    drop(client);
    wait_until("the engine was told", || server.toy.cancellations() == 1);
    let before = server.toy.steps();
    server.toy.resume();
    wait_until("its pages are free", || used_pages(&server) == 0);
    wait_until("it is counted", || server.toy_counters().cancelled == 1);
    assert!(server.toy.steps() <= before + 2, "one step, and the one that may have been running");
}

/// A client that ends its sending after its request was once taken for one that had left.
#[test]
fn a_client_that_only_sends_no_more_gets_its_answer() {
    let server = Server::with(slow(), &[]);
    for stream in [false, true] {
        let mut client = server.client();
        let mut body = endless(stream);
        body["max_tokens"] = json!(100);
        client.send("POST", CHAT, &[], body.to_string().as_bytes());
        client.stream.shutdown(Shutdown::Write).unwrap();
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        if stream {
            let finish = answer
                .events()
                .into_iter()
                .rev()
                .find_map(|e| e["choices"][0]["finish_reason"].as_str().map(str::to_owned));
            assert_eq!(finish.as_deref(), Some("length"));
        } else {
            assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
        }
        assert!(client.is_closed(), "nothing can follow");
    }
    // And of a request without a body.
    let mut client = server.client();
    client.send("GET", "/health_generate", &[], b"");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer().status, 200);
    assert_eq!(server.toy_counters().cancelled, 0);
}

#[test]
fn a_client_that_sends_no_more_and_then_leaves_frees_its_pages() {
    let server = Server::with(slow(), &[]);
    for stream in [false, true] {
        let mut client = server.client();
        client.send("POST", CHAT, &[], endless(stream).to_string().as_bytes());
        client.stream.shutdown(Shutdown::Write).unwrap();
        wait_until("it runs", || used_pages(&server) > 0);
        drop(client);
        wait_until("its pages are free", || used_pages(&server) == 0);
    }
    assert_eq!(server.toy_counters().cancelled, 2);
}

#[test]
fn a_body_that_ends_early_is_not_waited_for() {
    let server = Server::start();
    let mut client = server.client();
    client.send("POST", CHAT, &[("Content-Length", "1000")], b"{\"messages\": [");
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut left = 10_000;
    while !client.is_closed() {
        left -= 1;
        assert!(left > 0, "the server goes on talking");
    }
}

#[test]
fn a_full_queue_is_429_with_retry_after() {
    let config = ToyConfig { running_max: 1, queued_max: 2, ..slow() };
    let server = Server::with(config, &[]);
    server.toy.pause();
    let mut clients: Vec<common::Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("POST", CHAT, &[], endless(true).to_string().as_bytes());
    }
    wait_until("two wait", || server.toy.status().queued == 2);
    let answer = server.post(CHAT, &endless(false));
    assert_eq!(answer.header("retry-after"), Some("3"));
    let (status, code, param) = answer.error();
    assert_eq!((status, code.as_str(), param), (429, "queue_full", None));
    // Several choices are admitted together or not at all.
    drop(clients.pop());
    server.toy.resume();
    wait_until("one runs, none waits", || {
        let s = server.toy.status();
        s.running == 1 && s.queued == 0
    });
    server.toy.pause();
    let mut body = endless(false);
    body["n"] = json!(3);
    assert_eq!(server.post(CHAT, &body).status, 429);
    server.toy.resume();
    wait_until("the two that were admitted are gone", || server.toy.status().queued == 0);
    drop(clients);
}

#[test]
fn a_request_past_its_deadline_ends_with_504() {
    let server = Server::with(slow(), &[("server.request-timeout", "1")]);
    let (status, code, _) = server.post(CHAT, &endless(false)).error();
    assert_eq!((status, code.as_str()), (504, "deadline_exceeded"));
}

#[test]
fn an_operator_ends_a_request_by_name() {
    let server = Server::with(slow(), &[]);
    let mut client = server.client();
    let mut body = endless(true);
    body["rid"] = json!("mine");
    client.send("POST", CHAT, &[], body.to_string().as_bytes());
    client.head();
    client.chunk().unwrap();
    let (status, code, param) = server.post(CHAT, &body).error();
    assert_eq!((status, code.as_str(), param.as_deref()), (400, "invalid_value", Some("rid")));
    let json_type = [("Content-Type", "application/json")];
    let mut operator = server.client();
    operator.send("POST", "/abort_request", &json_type, b"{\"rid\": \"other\"}");
    assert_eq!(operator.answer().json()["aborted"], 0);
    operator.send("POST", "/abort_request", &json_type, b"{\"rid\": \"mine\"}");
    assert_eq!(operator.answer().json()["aborted"], 1);
    let mut rest = Vec::new();
    while let Some(chunk) = client.chunk() {
        rest.extend(chunk);
    }
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("\"code\":\"request_cancelled\""), "{rest}");
    assert!(rest.ends_with("data: [DONE]\n\n"));
    assert_eq!(server.toy.status().running, 0);
    let mut plain = server.client();
    plain.send("POST", "/abort_request", &[("Content-Type", "text/plain")], b"{}");
    assert_eq!(plain.answer().error().0, 415);
}

#[test]
fn a_drain_finishes_what_was_accepted_and_takes_nothing_new() {
    let mut server = Server::with(slow(), &[("server.drain-timeout", "240")]);
    let mut running = server.client();
    let mut body = endless(false);
    body["max_tokens"] = json!(300);
    running.send("POST", CHAT, &[], body.to_string().as_bytes());
    let mut idle = server.client();
    assert_eq!(idle.get("/health").status, 200);
    wait_until("it runs", || server.toy.status().running == 1);
    // It runs on when everything about the drain was looked at.
    server.toy.pause();
    server.signal();
    // A router or an operator that asks meanwhile once found a refused connection.
    wait_until("it says so", || server.get("/health").status == 503);
    assert!(server.get("/health").text().contains("drain"), "{}", server.get("/health").text());
    assert_eq!(server.post(CHAT, &endless(false)).error().0, 503);
    server.toy.resume();
    let answer = running.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["usage"]["completion_tokens"], 300);
    assert!(idle.is_closed(), "an idle connection is closed");
    let address = server.address;
    let drained = server.join();
    assert_eq!(drained.connections_cut, 0);
    assert!(std::net::TcpStream::connect(address).is_err());
}

/// The beginning of a request's head once held a server up for a minute after its SIGTERM.
#[test]
fn a_head_that_does_not_come_whole_does_not_hold_the_end_up() {
    let mut server = Server::with(slow(), &[("server.drain-timeout", "20")]);
    let mut half = server.client();
    assert_eq!(half.get("/health").status, 200);
    half.stream.write_all(b"GET /health HTTP/1.1\r\nHost: half").unwrap();
    let mut whole = server.client();
    assert_eq!(whole.get("/health").status, 200);
    server.signal();
    assert_eq!(server.join().connections_cut, 0, "it was not there at the drain's end");
}

#[test]
fn a_drain_that_takes_too_long_ends_with_an_error_for_each() {
    let mut server = Server::with(slow(), &[("server.drain-timeout", "1")]);
    let mut client = server.client();
    client.send("POST", CHAT, &[], endless(false).to_string().as_bytes());
    wait_until("it runs", || server.toy.status().running == 1);
    server.signal();
    let (status, code, _) = client.answer().error();
    assert_eq!((status, code.as_str()), (503, "shutting_down"));
    assert_eq!(server.join().connections_cut, 0);
}

#[test]
fn a_failed_engine_says_so_everywhere() {
    let server = Server::with(slow(), &[]);
    let mut client = server.client();
    client.send("POST", CHAT, &[], endless(false).to_string().as_bytes());
    wait_until("it runs", || server.toy.status().running == 1);
    server.toy.fail("a page was lost");
    let (status, code, _) = client.answer().error();
    assert_eq!((status, code.as_str()), (500, "engine_failed"));
    assert_eq!(server.post(CHAT, &endless(false)).error().0, 503);
    for path in ["/health", "/health_generate"] {
        let answer = server.get(path);
        assert!(answer.text().contains("a page was lost"), "{}", answer.text());
        assert_eq!(answer.error().0, 503);
    }
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let config = ToyConfig { running_max: 16, queued_max: 256, ..ToyConfig::default() };
    let server = Server::with(config, &[]);
    std::thread::scope(|scope| {
        for worker in 0..16 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..10 {
                    let words = format!("worker {worker} round {round}");
                    let body = json!({
                        "messages": [{"role": "user", "content": format!("[[{words}]]")}],
                        "temperature": 0,
                    });
                    let body = client.post(CHAT, &body).json();
                    assert_eq!(body["choices"][0]["message"]["content"], words);
                }
            });
        }
    });
    let c = server.toy_counters();
    assert_eq!((c.admitted, c.finished), (160, 160));
}
