//! The routes of operators: health, server_info, loads, metrics, keys.

mod common;

use common::{Server, ToyConfig, wait_until};
use lockstep_serve::Engine;
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

fn ask(server: &Server, words: &str) {
    let body = json!({"messages": [{"role": "user", "content": words}], "temperature": 0});
    assert_eq!(server.post(CHAT, &body).status, 200);
}

#[test]
fn health_generate_makes_a_token() {
    let server = Server::start();
    assert_eq!(server.get("/health").json()["status"], "serving");
    assert_eq!(server.toy_counters().generated_tokens, 0);
    let body = server.get("/health_generate").json();
    assert_eq!((&body["status"], &body["seen"]), (&json!("generating"), &json!("own")));
    assert!(server.toy_counters().generated_tokens > 0);
}

#[test]
fn health_generate_sees_others_tokens_where_the_queue_is_full() {
    let config = ToyConfig {
        running_max: 1,
        queued_max: 1,
        step: Duration::from_millis(2),
        ..ToyConfig::default()
    };
    let server = Server::with(config, &[]);
    let body = json!({"prompt": "x", "max_tokens": 1800, "ignore_eos": true, "stream": true});
    let mut clients = [server.client(), server.client()];
    clients[0].send("POST", "/v1/completions", &[], body.to_string().as_bytes());
    wait_until("one runs", || server.toy.status().running == 1);
    clients[1].send("POST", "/v1/completions", &[], body.to_string().as_bytes());
    wait_until("one waits", || server.toy.status().queued == 1);
    assert_eq!(server.get("/health_generate").json()["seen"], "others");
}

#[test]
fn server_info_has_the_fields_that_routers_read() {
    let server = Server::with(
        ToyConfig::default(),
        &[("server.api-key", "secret"), ("decode.graph-max-bs", "96")],
    );
    let mut client = server.client();
    client.send("GET", "/server_info", &[("Authorization", "Bearer secret")], b"");
    let answer = client.answer();
    assert!(!answer.text().contains("secret"), "keys are not shown");
    let info = answer.json();
    for field in ["model_path", "served_model_name", "version", "launch_command", "tokenizer_path"]
    {
        assert!(info[field].is_string(), "{field}");
    }
    for field in ["max_total_num_tokens", "max_running_requests", "context_length", "tp_size"] {
        assert!(info[field].is_u64(), "{field}");
    }
    let state = &info["internal_states"][0];
    assert_eq!(state["decode_cuda_graph_bs"], json!([8]));
    assert_eq!(state["memory_usage"]["token_capacity"], 256 * 32);
    let knobs = info["lockstep"]["knobs"].as_array().unwrap();
    assert_eq!(knobs.len(), lockstep_flow::knobs::KNOBS.len());
    let knob = |name: &str| knobs.iter().find(|k| k["name"] == name).unwrap().clone();
    assert_eq!(knob("decode.graph-max-bs")["value"], 96);
    assert_eq!(knob("decode.graph-max-bs")["source"], "flag");
    assert_eq!(knob("server.port")["source"], "default");
    assert_eq!(knob("server.api-key")["value"], "(set)");
    assert_eq!(info["lockstep"]["engine"]["health"], "serving");
}

#[test]
fn loads_come_as_json_and_as_text() {
    let server = Server::start();
    ask(&server, "[[x]]");
    let body = server.get("/v1/loads").json();
    let load = &body["loads"][0];
    assert_eq!((&load["num_running_reqs"], &load["max_running_requests"]), (&json!(0), &json!(8)));
    assert!(load.get("memory").is_none());
    let body = server.get("/v1/loads?include=core,memory,queues&format=json").json();
    assert_eq!(body["loads"][0]["memory"]["token_capacity"], 256 * 32);
    assert_eq!(body["loads"][0]["queues"]["waiting"], 0);
    let text = server.get("/v1/loads?include=all&format=prometheus").text();
    assert!(text.contains("lockstep_load_num_running_reqs{dp_rank=\"0\"} 0"), "{text}");
    assert!(text.contains("lockstep_load_memory_token_capacity{dp_rank=\"0\"} 8192"), "{text}");
    for (query, field) in [("include=everything", "include"), ("format=xml", "format")] {
        let (status, _, param) = server.get(&format!("/v1/loads?{query}")).error();
        assert_eq!((status, param.as_deref()), (400, Some(field)));
    }
}

/// Every line of the page as `(name with labels, value)`.
fn samples(page: &str) -> Vec<(String, f64)> {
    page.lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .map(|l| {
            let (name, value) = l.rsplit_once(' ').unwrap_or_else(|| panic!("{l}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{l}")))
        })
        .collect()
}

#[test]
fn metrics_have_both_families_of_names() {
    let server = Server::start();
    ask(&server, "[[abc]]");
    let answer = server.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = answer.text();
    let all = samples(&page);
    let value = |name: &str| {
        let found = all.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("no {name} in\n{page}")).1
    };
    assert_eq!(value("lockstep_generated_tokens_total{model_name=\"toy\"}"), 4.0);
    assert_eq!(value("sglang:generation_tokens_total{model_name=\"toy\"}"), 4.0);
    assert_eq!(value("sglang:num_running_reqs{model_name=\"toy\"}"), 0.0);
    assert_eq!(value("sglang:max_total_num_tokens{model_name=\"toy\"}"), 8192.0);
    assert_eq!(value("lockstep_time_to_first_token_seconds_count{model_name=\"toy\"}"), 1.0);
    assert_eq!(value("sglang:time_to_first_token_seconds_count{model_name=\"toy\"}"), 1.0);
    assert_eq!(value("lockstep_inter_token_latency_seconds_count{model_name=\"toy\"}"), 2.0);
    let passes = "sglang:cuda_graph_passes_total{model_name=\"toy\",mode=\"decode_cuda_graph\"}";
    assert_eq!(value(passes), 4.0);
    let responses = "lockstep_http_responses_total{model_name=\"toy\",\
                     route=\"/v1/chat/completions\",status=\"200\"}";
    assert_eq!(value(responses), 1.0);
    // Each metric is declared once, before its samples, under the name of its samples.
    let types: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
    let mut names: Vec<&str> = types.iter().map(|t| t.split(' ').next().unwrap()).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a metric is declared twice");
    for (name, _) in &all {
        let bare = name.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end));
        assert!(names.contains(&bare) || base.is_some_and(|b| names.contains(&b)), "{name}");
    }
    // Nothing that nothing sets: no eager step has happened, so its series is not there.
    assert!(!page.contains("lockstep_eager_steps"), "{page}");
}

/// The labels of a sample, beside the one that all have.
fn labels(sample: &str) -> Vec<&str> {
    let inside = sample.split_once('{').map_or("", |(_, rest)| rest.trim_end_matches('}'));
    let names = inside.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(name, _)| name);
    names.filter(|name| !["model_name", "le"].contains(name)).collect()
}

#[test]
fn every_exported_metric_is_declared_as_it_is_exported() {
    use lockstep_flow::metrics::METRICS;
    let server = Server::start();
    ask(&server, "[[abc]]");
    let page = server.get("/metrics").text();
    let mut seen = 0;
    for line in page.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let bare = name.strip_suffix("_total").unwrap_or(name);
        let declared = METRICS.iter().find(|m| m.name == bare || m.aliases.contains(&bare));
        let declared = declared.unwrap_or_else(|| panic!("{name} is not declared"));
        assert_eq!(kind, declared.kind.as_str(), "{name}");
        for (sample, _) in
            samples(&page).iter().filter(|(s, _)| s.starts_with(&format!("{name}{{")))
        {
            assert_eq!(labels(sample), declared.labels, "{sample}");
        }
        seen += 1;
    }
    assert!(seen > 60, "only {seen} metrics on\n{page}");
    // What is not there says when it would be, or has no member in this engine.
    let absent: Vec<&str> = METRICS
        .iter()
        .filter(|m| m.when.is_empty())
        .filter(|m| !m.series_names().iter().all(|n| page.contains(&format!("\n{n}{{"))))
        .map(|m| m.name)
        .collect();
    assert_eq!(absent, ["lockstep_eager_steps"], "this engine has no reasons to run eagerly");
}

#[test]
fn an_alarm_shows_in_metrics_and_in_server_info() {
    let config = ToyConfig { running_max: 1, queued_max: 1, ..ToyConfig::default() };
    let server = Server::with(config, &[]);
    let value = |page: &str| {
        let line = "lockstep_alarm{model_name=\"toy\",alarm=\"queue_full\",level=\"act\"} ";
        page.lines().find_map(|l| l.strip_prefix(line)).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value(&server.get("/metrics").text()), 0.0);
    server.toy.pause();
    let body = json!({"prompt": "x", "max_tokens": 9, "stream": true}).to_string();
    let mut clients = [server.client(), server.client(), server.client()];
    for client in &mut clients {
        client.send(
            "POST",
            "/v1/completions",
            &[("Content-Type", "application/json")],
            body.as_bytes(),
        );
    }
    wait_until("one was refused", || server.toy_counters().refused_queue_full > 0);
    assert_eq!(value(&server.get("/metrics").text()), 1.0);
    let info = server.get("/server_info").json();
    let alarm = &info["lockstep"]["alarms"][0];
    assert_eq!((&alarm["alarm"], &alarm["level"]), (&json!("queue_full"), &json!("act")));
    server.toy.resume();
}

#[test]
fn keys_are_asked_for() {
    let server = Server::with(ToyConfig::default(), &[("server.api-key", "k1")]);
    let answer = server.get("/v1/models");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let (status, code, _) = answer.error();
    assert_eq!((status, code.as_str()), (401, "invalid_api_key"));
    for (key, status) in [("Bearer k1", 200), ("Bearer k2", 401), ("Basic k1", 401)] {
        let mut client = server.client();
        client.send("GET", "/v1/models", &[("Authorization", key)], b"");
        assert_eq!(client.answer().status, status, "{key}");
    }
    for path in ["/health", "/metrics"] {
        assert_eq!(server.get(path).status, 200);
    }
}

#[test]
fn admin_routes_are_closed_beyond_loopback() {
    let knobs = [("server.host", "0.0.0.0")];
    let server = Server::with(ToyConfig::default(), &knobs);
    let body = json!({"abort_all": true});
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    let (status, code, _) = common::Client::connect(local).post("/abort_request", &body).error();
    assert_eq!((status, code.as_str()), (403, "admin_key_required"));
    drop(server);
    let knobs = [("server.host", "0.0.0.0"), ("server.admin-key", "adm")];
    let server = Server::with(ToyConfig::default(), &knobs);
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    let mut client = common::Client::connect(local);
    let headers = [("Authorization", "Bearer adm"), ("Content-Type", "application/json")];
    client.send("POST", "/abort_request", &headers, body.to_string().as_bytes());
    assert_eq!(client.answer().json(), json!({"aborted": 0}));
}

/// `/admin/generations/+1` was once generation 1.
#[test]
fn a_generation_is_named_in_digits_alone() {
    let server = Server::start();
    for number in ["+1", "01", "-1", "1x", "%2B1"] {
        let answer = server.get(&format!("/admin/generations/{number}"));
        let (status, _, param) = answer.error();
        assert_eq!((status, param.as_deref()), (400, Some("generation")), "{number}");
        for action in ["flip", "retire"] {
            let path = format!("/admin/generations/{number}/{action}");
            assert_eq!(server.post(&path, &json!({})).status, 400, "{path}");
        }
    }
    assert_eq!(server.get("/admin/generations/1").status, 404, "the toy has none");
}

#[test]
fn tokens_go_both_ways() {
    let server = Server::start();
    let text = "hello, wörld 😀\n";
    let there = server.post("/tokenize", &json!({"content": text})).json();
    let tokens = there["tokens"].as_array().unwrap();
    assert_eq!(there["count"], tokens.len());
    let back = server.post("/detokenize", &json!({"tokens": tokens})).json();
    assert_eq!((&back["content"], &back["prompt"]), (&json!(text), &json!(text)));
    let strings = json!({"prompt": "hello", "return_token_strs": true});
    let strings = server.post("/tokenize", &strings).json();
    let joined: String =
        strings["token_strs"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    assert_eq!(joined, "hello");
    let answer = server.post("/detokenize", &json!({"tokens": [9999]}));
    let (status, _, param) = answer.error();
    assert_eq!((status, param.as_deref()), (400, Some("tokens")));
    // It once spoke of a prompt, which nobody had sent.
    let words = answer.json()["error"]["message"].to_string();
    assert!(words.contains("token 9999 at index 0") && !words.contains("prompt"), "{words}");
    let missing: Value = json!({});
    assert_eq!(server.post("/tokenize", &missing).error().2.as_deref(), Some("prompt"));
}
