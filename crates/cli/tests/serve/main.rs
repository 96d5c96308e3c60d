//! The whole binary with the real model: ready, asked, looked at, stopped.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod grammars;

use common::serving::Serving;
use common::{lockstep, model, temp_dir, tiny, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

fn long() -> Value {
    json!({"prompt": "Once", "max_tokens": 600, "ignore_eos": true})
}

#[test]
fn it_answers_shows_its_state_and_drains() {
    let mut serving = Serving::start("answers", &["--graph-max-bs", "8", "--drain-timeout", "600"]);
    assert_eq!(serving.ready["model"], "SmolLM2-135M-Instruct.Q4_1");
    let body = json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4});
    let (head, answer) = serving.post("/v1/completions", &body);
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    assert!(answer["choices"][0]["text"].as_str().unwrap().starts_with(" Paris"), "{answer}");
    let info = serving.status();
    assert_eq!(info["internal_states"][0]["decode_cuda_graph_bs"], json!([1, 2, 4, 8]));
    assert_eq!(info["lockstep"]["engine"]["counters"]["finished"], 1);
    let out = Command::new(lockstep()).args(["status", serving.url()]).output().unwrap();
    let page = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && page.contains("decode-1 "), "{page}");
    let mut running = serving.send("/v1/completions", &long());
    wait_until("it runs", || serving.status()["lockstep"]["engine"]["running"] == 1);
    serving.signal("TERM");
    let mut text = String::new();
    running.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"completion_tokens\":600"), "{text}");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = temp_dir("second");
    let (mut serving, _) = Serving::logged(&dir, &model(), &["--drain-timeout", "600"]);
    let mut body = long();
    body["max_tokens"] = json!(2500);
    let _running = serving.send("/v1/completions", &body);
    wait_until("it runs", || serving.status()["lockstep"]["engine"]["running"] == 1);
    serving.signal("INT");
    // That nobody listens any more is the drain's end; this once waited for that.
    wait_until("it drains", || serving.get("/health").contains("drain"));
    assert!(serving.child.try_wait().unwrap().is_none(), "it still drains");
    serving.signal("INT");
    assert_eq!(serving.child.wait().unwrap().code(), Some(130));
    // What was found: its log ended with "draining".
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.contains("WARN") && log.contains("a second signal ends it at once"), "{log}");
}

/// What was found: a load of a few seconds left no decode line where the server was ended before the
/// next one was due.
#[test]
fn a_load_shorter_than_the_log_s_interval_has_its_line() {
    let dir = temp_dir("last-line");
    let flags = ["--log-interval", "3600"];
    let (mut serving, _) = Serving::logged(&dir, &model(), &flags);
    serving.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 5, "ignore_eos": true}));
    serving.signal("TERM");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("Decode batch, ")).collect();
    assert!(lines.len() == 1 && lines[0].contains("#running-req: 1, "), "{log}");
    // The prompt is one token.
    assert!(lines[0].contains("#decode-step: 5, "), "{log}");
}

#[test]
fn a_drain_has_an_end() {
    let mut serving = Serving::start("cut", &["--drain-timeout", "0"]);
    let mut body = long();
    body["max_tokens"] = json!(2500);
    let mut running = serving.send("/v1/completions", &body);
    wait_until("it runs", || serving.status()["lockstep"]["engine"]["running"] == 1);
    serving.signal("TERM");
    let mut text = String::new();
    running.read_to_string(&mut text).unwrap();
    assert!(text.contains("503") && text.contains("shutting_down"), "{text}");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

/// A model whose chat template does not parse once started without a word.
#[test]
fn a_chat_template_that_does_not_parse_is_said_at_start_and_to_chats() {
    let dir = temp_dir("template");
    let mut bytes = std::fs::read(model()).unwrap();
    let at = bytes.windows(7).position(|w| w == b"{% for ").expect("the template has a loop");
    bytes[at..at + 7].copy_from_slice(b"{% fro ");
    let path = dir.join("broken.gguf");
    std::fs::write(&path, bytes).unwrap();
    let (server, log) = Serving::logged(&dir, &path, &[]);
    assert!(log.contains("WARN") && log.contains("chat template is of no use"), "{log}");
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    let (head, answer) = server.post("/v1/chat/completions", &chat);
    assert!(head.starts_with("HTTP/1.0 422"), "{head}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("template"), "{answer}");
    let (head, _) = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2}));
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
}

/// The default limits leave a gap on purpose; a default start once warned of it.
#[test]
fn a_start_warns_of_the_gap_that_somebody_chose() {
    for (flags, level) in [(&[][..], "INFO"), (&["--graph-max-bs", "4"][..], "WARN")] {
        let (_server, log) = Serving::logged(&temp_dir("gap"), &tiny("llama"), flags);
        let said =
            log.lines().find(|l| l.contains("run eagerly")).unwrap_or_else(|| panic!("{log}"));
        assert!(said.contains(level), "{flags:?}: {said}");
    }
}

/// `lockstep serve 2>&1 | head -1` once ended the server with the reader of its log.
#[test]
fn a_server_whose_output_and_log_nobody_reads_goes_on() {
    let mut child = Command::new(lockstep())
        .args(["serve", "--json", "--port", "0", "--kv-memory", "64MiB", "--log-interval", "1"])
        .arg("--model")
        .arg(model())
        .current_dir(temp_dir("no-readers"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let server = Serving { child, ready };
    for _ in 0..2 {
        let (head, answer) =
            server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 4}));
        assert!(head.contains("200"), "{head}\n{answer}");
    }
}
