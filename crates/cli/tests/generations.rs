//! Generations over HTTP, on the whole binary with the real model: staged, flipped, retired and
//! refused while a request streams, which notices nothing.

mod common;

use common::serving::serve;
use common::{model, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;

const ALL: &str = "/admin/generations";

struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(test: &str, flags: &[&str]) -> Serving {
        let mut all = vec!["--graph-max-bs", "4", "--max-running-requests", "16"];
        all.extend(["--generation-watch", "0"]);
        all.extend(flags);
        let (child, ready) = serve(test, &model(), "64MiB", &all);
        let address = ready["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Serving { child, address }
    }

    /// Sends a request and leaves the answer to be read.
    fn send(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let key = key.map(|k| format!("Authorization: Bearer {k}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\n{key}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, Value) {
        let mut text = String::new();
        self.send(method, path, key, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}")))
    }

    /// As the operator, with the key.
    fn admin(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.ask(method, path, Some("ad"), &body.to_string())
    }

    fn error(&self, path: &str, body: &Value) -> (u16, String, String) {
        let (status, answer) = self.admin("POST", path, body);
        let e = &answer["error"];
        let text = |v: &Value| v.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert!(e["type"].is_string() && !e["param"].is_number(), "{answer}");
        (status, text(&e["code"]), text(&e["message"]))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn story(max_tokens: u32) -> String {
    json!({"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": true, "seed": 7,
           "temperature": 0.8})
    .to_string()
}

/// The words of an answer to [`story`].
fn words(mut stream: TcpStream) -> Value {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"));
    answer["choices"].clone()
}

#[test]
fn a_generation_is_staged_flipped_and_retired_under_a_request() {
    let serving = Serving::start("life", &["--admin-key", "ad"]);
    let undisturbed = words(serving.send("POST", "/v1/completions", None, &story(400)));
    let running = serving.send("POST", "/v1/completions", None, &story(400));
    let stage = json!({"knobs": {"decode.graph-max-bs": 8, "audit.rate": 10}, "wait": true});
    let (status, staged) = serving.admin("POST", ALL, &stage);
    assert_eq!((status, &staged["state"]), (200, &json!("verified")), "{staged}");
    assert_eq!(staged["generation"], 2);
    assert_eq!(staged["changed"]["decode.graph-max-bs"], json!({"from": 4, "to": 8}));
    let evidence = &staged["evidence"];
    assert_eq!(evidence["differing_bits"], 0);
    assert!(evidence["compared_bits"].as_u64().unwrap() > 1 << 20, "{evidence}");
    let buckets = staged["buckets"].as_array().unwrap();
    assert_eq!(buckets.len() as u64, evidence["buckets"]);
    let of = |name: &str| buckets.iter().find(|b| b["bucket"] == name).unwrap();
    assert_eq!(
        (&of("decode-8")["captured"], &of("decode-8")["replays"]),
        (&json!(true), &json!(3))
    );
    for bucket in buckets {
        assert_eq!(bucket["verified"], true, "{bucket}");
        assert!(bucket["canary_rows_max"].as_u64().unwrap() >= 1, "{bucket}");
    }
    assert_eq!(of("decode-8")["canary_padding_max"], 7);
    assert_eq!(of("decode-16")["captured"], false);

    let (status, live) = serving.admin("POST", "/admin/generations/2/flip", &json!({}));
    assert_eq!((status, &live["state"]), (200, &json!("live")), "{live}");
    let (_, info) = serving.ask("GET", "/server_info", None, "");
    assert_eq!(info["internal_states"][0]["decode_cuda_graph_bs"], json!([1, 2, 4, 8]));
    assert_eq!(info["lockstep"]["engine"]["generation"], 2);
    let knobs = info["lockstep"]["knobs"].as_array().unwrap();
    let knob = knobs.iter().find(|k| k["name"] == "decode.graph-max-bs").unwrap();
    assert_eq!((&knob["value"], &knob["source"]), (&json!(8), &json!("change")));
    let (status, retired) = serving.admin("POST", "/admin/generations/1/retire", &json!({}));
    assert_eq!((status, &retired["state"]), (200, &json!("retired")), "{retired}");
    assert_eq!(words(running), undisturbed, "the request under which it happened");
    assert_eq!(words(serving.send("POST", "/v1/completions", None, &story(400))), undisturbed);
    let (_, all) = serving.admin("GET", ALL, &json!({}));
    let states: Vec<&str> =
        all["data"].as_array().unwrap().iter().map(|g| g["state"].as_str().unwrap()).collect();
    assert_eq!((states, &all["live"]), (vec!["retired", "live"], &json!(2)));

    // In place of the live one, while a request runs.
    let running = serving.send("POST", "/v1/completions", None, &story(400));
    let drain = json!({"knobs": {"decode.graph-max-bs": 4}, "mode": "drain", "wait": true});
    let (status, live) = serving.admin("POST", ALL, &drain);
    assert_eq!((status, &live["state"], &live["mode"]), (200, &json!("live"), &json!("drain")));
    assert_eq!(live["evidence"]["verified_buckets"], live["evidence"]["buckets"], "{live}");
    assert!(live["gap"]["longest_ms"].as_f64().unwrap() > 0.0, "{live}");
    assert_eq!(words(running), undisturbed);
    let (_, old) = serving.admin("GET", "/admin/generations/2", &json!({}));
    assert_eq!(old["state"], "retired");
    assert_eq!(serving.error(ALL, &json!({"mode": "besides"})).0, 400);

    // A client that goes away while it waits changes nothing.
    let waiting = serving.send("POST", ALL, Some("ad"), &json!({"wait": true}).to_string());
    wait_until("it is staged", || {
        serving.admin("GET", "/admin/generations/4", &json!({})).0 == 200
    });
    drop(waiting);
    wait_until("it is verified all the same", || {
        serving.admin("GET", "/admin/generations/4", &json!({})).1["state"] == "verified"
    });
}

#[test]
fn what_cannot_be_done_to_a_generation_says_what_would_work() {
    let flags = ["--admin-key", "ad", "--generation-memory", "4MiB", "--audit-rate", "0"];
    let serving = Serving::start("refused", &flags);
    for (method, path) in [("GET", ALL), ("POST", ALL), ("POST", "/admin/generations/1/flip")] {
        let (status, answer) = serving.ask(method, path, None, "{}");
        assert_eq!((status, &answer["error"]["code"]), (401, &json!("invalid_api_key")), "{path}");
        assert_eq!(serving.ask(method, path, Some("da"), "{}").0, 401);
    }
    let (status, code, message) = serving.error(ALL, &json!({"knobs": {"decode.graph": 8}}));
    assert_eq!((status, code.as_str()), (400, "invalid_value"), "{message}");
    let (status, _, message) = serving.error(ALL, &json!({"knob": {}}));
    assert_eq!(status, 400);
    assert_eq!(message, "'knob' is no field of this route, which takes knobs, mode and wait");
    let (status, code, message) = serving.error(ALL, &json!({"knobs": {"pool.kv-dtype": "f32"}}));
    assert_eq!((status, code.as_str()), (422, "knob_not_live"));
    assert!(message.contains("restart it with --kv-dtype"), "{message}");
    let flip = |n: &str| serving.error(&format!("/admin/generations/{n}/flip"), &json!({}));
    assert_eq!((flip("9").0, flip("9").1.as_str()), (404, "generation_not_found"));
    assert_eq!((flip("x").0, flip("x").1.as_str()), (400, "invalid_value"));
    assert_eq!((flip("1").0, flip("1").1.as_str()), (409, "generation_state"));
    let (status, code, message) = serving.error("/admin/generations/1/retire", &json!({}));
    assert_eq!((status, code.as_str()), (409, "generation_state"));
    assert!(message.contains("flip to another one first"), "{message}");
    let wide = json!({"knobs": {"decode.graph-max-bs": 16}, "wait": true});
    let (status, code, message) = serving.error(ALL, &wide);
    assert_eq!((status, code.as_str()), (422, "generation_rejected"));
    assert!(message.contains("generations.memory is 4194304"), "{message}");
    let (_, all) = serving.admin("GET", ALL, &json!({}));
    assert_eq!((&all["live"], &all["data"][1]["state"]), (&json!(1), &json!("rejected")));
    assert_eq!(serving.ask("GET", "/admin/generations/7", Some("ad"), "").0, 404);
}
