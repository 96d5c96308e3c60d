//! A lab build over real HTTP: what is done wrong on purpose is seen, leaves service, and comes
//! back only through a new generation; what nobody audits reaches the client.
//!
//! Needs the feature `lab`: `cargo test --release -p lockstep-cli --features lab --test lab`.

mod common;

use common::serving::{self, Serving};
use common::{lockstep, temp_dir, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

const ALL: &str = "/admin/generations";

/// A text that needs a second page of KV, which is what [`FROZEN`] takes away.
fn long() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": true, "temperature": 0})
}

/// Attention sees the first page of a sequence alone.
const FROZEN: &str = "frozen-shortcut";

fn words(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn engine(server: &Serving) -> Value {
    server.status()["lockstep"]["engine"].clone()
}

/// `decode-1` as the server shows it.
fn bucket(engine: &Value) -> &Value {
    let buckets = engine["buckets"].as_array().unwrap();
    buckets.iter().find(|b| b["bucket"] == "decode-1").unwrap()
}

/// A sample of the metrics' page.
fn metric(server: &Serving, name: &str, label: &str) -> f64 {
    let page = server.get("/metrics");
    let line = page.lines().find(|l| l.starts_with(name) && l.contains(label));
    let value = line.and_then(|l| l.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} with {label} is not in\n{page}"))
}

#[test]
fn a_bucket_that_fails_leaves_service_and_comes_back_in_a_new_generation() {
    let flags = ["--lab-drill", FROZEN, "--lab-times", "1", "--audit-rate", "1"];
    let server = Serving::start("quarantine", &[&flags[..], &["--generation-watch", "0"]].concat());
    assert_eq!(server.ready["lab"], FROZEN);
    let health: Value = serde_json::from_str(&server.get("/health")).unwrap();
    assert_eq!((&health["status"], &health["lab"]["drill"]), (&json!("serving"), &json!(FROZEN)));
    let before = engine(&server);
    assert_eq!(
        (&bucket(&before)["mode"], &before["lab"]["strikes"]),
        (&json!("captured"), &json!(0))
    );

    // The request under which it happens ends with words.
    let (head, answer) = server.post("/v1/completions", &long());
    assert!(head.starts_with("HTTP/1.0 500"), "{head}\n{answer}");
    assert_eq!(answer["error"]["code"], "audit_mismatch", "{answer}");
    wait_until("decode-1 is out of service", || bucket(&engine(&server))["mode"] == "quarantined");
    let e = engine(&server);
    assert_eq!(e["lab"]["strikes"], 1);
    assert_eq!(bucket(&e)["audit_mismatches"], 1, "{e}");
    assert!(metric(&server, "lockstep_audit_mismatches_total", "bucket=\"decode-1\"") >= 1.0);
    assert_eq!(metric(&server, "lockstep_alarm", "alarm=\"bucket_quarantined\""), 1.0);
    assert_eq!(metric(&server, "lockstep_alarm", "alarm=\"lab_fault\""), 1.0);

    // Those after it run op by op at its shape, counted, and get their whole answer.
    let replays = bucket(&e)["replays"].clone();
    let (head, eager) = server.post("/v1/completions", &long());
    assert!(head.starts_with("HTTP/1.0 200"), "{head}\n{eager}");
    let e = engine(&server);
    assert_eq!(bucket(&e)["replays"], replays, "no step of it was replayed");
    assert!(e["eager_steps"]["quarantined"].as_u64().unwrap() >= 63, "{}", e["eager_steps"]);

    // Only a generation that was verified brings it back.
    let (head, staged) = server.post(ALL, &json!({"wait": true}));
    assert!(head.starts_with("HTTP/1.0 200") && staged["state"] == "verified", "{staged}");
    assert_eq!(bucket(&engine(&server))["mode"], "quarantined", "staging alone changes nothing");
    let (_, live) = server.post("/admin/generations/2/flip", &json!({}));
    assert_eq!(live["state"], "live", "{live}");
    let (_, again) = server.post("/v1/completions", &long());
    let e = engine(&server);
    assert_eq!(bucket(&e)["mode"], "captured");
    assert!(bucket(&e)["replays"].as_u64().unwrap() >= 63, "{}", bucket(&e));
    let twin = e["audit"]["parts"].as_array().unwrap().iter().find(|p| p["part"] == "twin");
    assert_eq!(twin.unwrap()["mismatches"], 1, "{}", e["audit"]);
    assert_eq!(words(&again), words(&eager), "the same bits, op by op and captured");
    assert_eq!(metric(&server, "lockstep_alarm", "alarm=\"bucket_quarantined\""), 0.0);
}

#[test]
fn what_nobody_audits_reaches_the_client() {
    let clean = Serving::start("clean", &[]);
    let (_, right) = clean.post("/v1/completions", &long());
    assert_eq!(
        engine(&clean)["lab"],
        Value::Null,
        "a lab build without a drill does nothing wrong"
    );
    drop(clean);
    let server = Serving::start("unaudited", &["--lab-drill", FROZEN, "--lab-audit", "off"]);
    let (head, wrong) = server.post("/v1/completions", &long());
    assert!(head.starts_with("HTTP/1.0 200"), "{head}\n{wrong}");
    assert_ne!(words(&wrong), words(&right));
    let e = engine(&server);
    assert!(e["lab"]["strikes"].as_u64().unwrap() > 10, "{}", e["lab"]);
    assert_eq!((&e["audit"]["rate"], &bucket(&e)["mode"]), (&json!(0), &json!("captured")));
}

/// A fault that is still there fails the canary of whatever is staged, and nothing of that serves.
#[test]
fn a_generation_on_a_device_that_is_still_wrong_is_rejected() {
    let drill = ["--lab-drill", "index-row-not-written", "--audit-rate", "0"];
    let server = Serving::start("rejected", &drill);
    let (head, answer) = server.post(ALL, &json!({"wait": true}));
    assert!(head.starts_with("HTTP/1.0 422"), "{head}");
    assert_eq!(answer["error"]["code"], "generation_rejected");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("bits of a canary step of"), "{message}");
    assert_eq!(engine(&server)["generation"], 1);
}

/// The prover is asked for every staged generation, and its hazards are the answer.
#[test]
fn a_generation_that_the_prover_refuses_leaves_the_live_one_alone() {
    let server = Serving::start("unprovable", &["--lab-draft", "arena-reuse-by-issue-order"]);
    let (_, before) = server.post("/v1/completions", &long());
    let (head, answer) = server.post(ALL, &json!({"wait": true}));
    assert!(head.starts_with("HTTP/1.0 422"), "{head}\n{answer}");
    assert_eq!(answer["error"]["code"], "generation_rejected");
    let message = answer["error"]["message"].as_str().unwrap();
    for part in [
        "what serves is as it was",
        "the plan of bucket",
        "aliasing: arena[",
        "Fix:",
        "hazards in all",
    ] {
        assert!(message.contains(part), "no '{part}' in {message}");
    }
    let (_, report) = server.post("/admin/generations/2/flip", &json!({}));
    assert_eq!(report["error"]["code"], "generation_state", "{report}");
    let all: Value = serde_json::from_str(&server.get(ALL)).unwrap();
    assert_eq!((&all["live"], &all["data"][1]["state"]), (&json!(1), &json!("rejected")));
    let states: Vec<&Value> =
        all["data"][1]["moves"].as_array().unwrap().iter().map(|m| &m["state"]).collect();
    assert_eq!(states, ["planned", "rejected"], "before there was anything to capture");
    let (_, after) = server.post("/v1/completions", &long());
    assert_eq!(words(&after), words(&before));
}

/// Gates that take seconds. Times are noise here, and not judged.
const GATES: &str = "[gates]\nconcurrency = [4]\nrounds = 1\nrepeats = 1\ninput = 8\ntokens = 8\n\
                     tolerance-percent = 99\np99-factor-max = 1000\n[check]\nsessions = 16\n\
                     rounds = 1\ncontext = 16\ntokens = 32\nkinds = [\"echo\"]\n[watch]\nseconds = 0\n";

/// A fault that begins with the flip, when every canary step has passed, and that nobody audits: one
/// at a time all answers are right, and the corruption gate alone sees those of a crowd.
#[test]
fn a_change_that_goes_wrong_under_load_fails_its_gate() {
    let drill = ["--lab-drill", "sampler-reads-another-row", "--lab-from-generation", "2"];
    let limits = ["--lab-audit", "off", "--graph-max-bs", "4", "--max-running-requests", "16"];
    let server = Serving::start("change-drill", &[&drill[..], &limits].concat());
    let (_, right) = server.post("/v1/completions", &long());
    let dir = temp_dir("change-drill-records");
    std::fs::create_dir(dir.join("targets")).unwrap();
    let target = format!(
        "kind = \"lockstep\"\nurl = \"{}\"\n[launch]\nmethod = \"live\"\n{GATES}",
        server.url()
    );
    std::fs::write(dir.join("targets/ours.toml"), target).unwrap();
    let change = ["change", "--set", "decode.graph-max-bs=16", "--yes", "--json"];
    let out = Command::new(lockstep()).args(change).current_dir(&dir).output().unwrap();
    let done: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!((out.status.code(), &done["state"]), (Some(11), &json!("rolled_back")), "{out:?}");
    assert!(done["reasons"].to_string().contains("\"check: "), "{done}");
    let record = dir.join(done["record"].as_str().unwrap());
    let gate = std::fs::read_to_string(record.join("check.json")).unwrap();
    let gate: Value = serde_json::from_str(&gate).unwrap();
    assert_eq!(gate["conclusion"], "corrupted", "{gate}");
    let decision = std::fs::read_to_string(record.join("decision.md")).unwrap();
    assert!(decision.contains("Rolled back: ") && decision.contains("FAILED check"), "{decision}");
    let journal = std::fs::read_to_string(record.join("journal.jsonl")).unwrap();
    for reached in ["proven", "flipped", "roll_back", "rolled_back"] {
        assert!(journal.contains(&format!("\"word\":\"{reached}\"")), "{reached}: {journal}");
    }
    // The old generation serves, and was never wrong.
    let e = engine(&server);
    assert_eq!((&e["generation"], &e["counters"]["rollbacks"]), (&json!(1), &json!(1)));
    assert!(e["lab"]["strikes"].as_u64().unwrap() > 0, "{}", e["lab"]);
    let strikes = e["lab"]["strikes"].clone();
    let (_, after) = server.post("/v1/completions", &long());
    assert_eq!(words(&after), words(&right));
    assert_eq!(engine(&server)["lab"]["strikes"], strikes, "it ended with the flip back");
}

/// The gate's ladder on a server of ours: what a stride of the live batch does goes with the crowd, and
/// with nothing else; a type of index keys is no knob of a running server.
#[test]
fn the_gate_says_which_change_removes_what_a_crowd_alone_meets() {
    let recall = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recall"));
    let flags = [
        ["--lab-drill", "live-stride-in-replay", "--lab-audit", "off"],
        ["--graph-max-bs", "8", "--max-running-requests", "8"],
    ];
    let (child, ready) = serving::serve("ladder", recall, "256MiB", &flags.concat());
    let server = Serving { child, ready };
    let out = Command::new(lockstep())
        .args(["check", server.url(), "--json", "--isolate", "--accept-partial-coverage"])
        .args(["--kinds", "report", "--sessions", "6", "--rounds", "1", "--context", "160"])
        .args(["--max-tokens", "160"])
        .current_dir(temp_dir("ladder-out"))
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(out.status.code(), Some(1), "{report:#}");
    let ladder = report["ladder"].as_array().unwrap();
    let rung = |change: &str| {
        let of = |r: &&Value| r["change"].as_str().unwrap().starts_with(change);
        ladder.iter().find(of).unwrap_or_else(|| panic!("no {change} in {ladder:#?}"))
    };
    for (change, removes) in [
        ("nothing", false),
        ("one session at a time", true),
        ("no prefix from the cache", false),
        ("no streams", false),
        ("/v1/completions", false),
    ] {
        let rung = rung(change);
        assert_eq!(rung["removes"], removes, "{rung}");
        assert!(rung["judged"].as_u64() > Some(0), "{rung}");
    }
    // A device that is wrong under canary steps too has no other generation pass them.
    let words = rung("every step op by op")["words"].as_str().unwrap();
    assert!(words.contains("not tried") && words.contains("was rejected"), "{words}");
    assert!(rung("/v1/completions")["change"].as_str().unwrap().contains("as token ids"));
    let words = rung("another type of index keys")["words"].as_str().unwrap();
    assert!(words.contains("changes bits") && words.contains("--index-dtype bf16"), "{words}");
    assert_eq!(engine(&server)["generation"], 1, "the server is as it was");
    let evidence = report["evidence"].as_array().unwrap();
    assert!(!evidence.is_empty(), "{report:#}");
}

/// Tokens change and no rule of an answer's form is broken: what tells is that the server said
/// something else alone, and from which of its own tokens on.
#[test]
fn an_answer_that_only_differs_is_told_by_its_first_token() {
    let recall = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recall"));
    let flags = [
        ["--lab-drill", "arena-reuse-by-issue-order", "--lab-audit", "off"],
        ["--graph-max-bs", "4", "--max-running-requests", "4"],
    ];
    let (child, ready) = serving::serve("divergent", recall, "256MiB", &flags.concat());
    let server = Serving { child, ready };
    let out = Command::new(lockstep())
        .args(["check", server.url(), "--json", "--accept-partial-coverage", "--kinds", "report"])
        .args(["--sessions", "4", "--rounds", "1", "--context", "160", "--max-tokens", "60"])
        .current_dir(temp_dir("divergent-out"))
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(out.status.code(), Some(1), "{report:#}");
    let evidence = report["evidence"].as_array().unwrap();
    let divergent: Vec<&Value> = evidence.iter().filter(|e| e["class"] == "divergent").collect();
    assert!(divergent.len() >= 4, "{report:#}");
    for answer in divergent {
        let token = &answer["first_token"];
        assert!(token["at"].is_u64() && token["alone"] != token["found"], "{answer}");
        let words = answer["verdict"].as_str().unwrap();
        for id in [&token["alone"], &token["found"]].into_iter().filter_map(Value::as_u64) {
            assert!(words.contains(&format!("{id}")), "{words}: {token}");
        }
    }
}

fn serve(flags: &[&str]) -> Output {
    let run =
        Command::new(lockstep()).arg("serve").args(flags).current_dir(temp_dir("flags")).output();
    run.unwrap()
}

#[test]
fn flags_of_the_laboratory_say_what_would_work() {
    let list = String::from_utf8(serve(&["--lab-drill", "list"]).stdout).unwrap();
    assert!(list.lines().count() >= 24 && list.contains("live-stride-in-replay"), "{list}");
    assert!(list.contains("not in a server: it has no form in a running engine"), "{list}");
    for (flags, words) in [
        (&["--lab-drill", "no-such"][..], "no drill is called 'no-such'; there are: arena"),
        (&["--lab-drill", "undefined-read"], "no form in a running engine: the prover refuses"),
        (&["--lab-drill", "top-k-tie-order"], "it needs a model whose logits tie"),
        (&["--lab-draft", "page-bit-flip"], "the prover is given no form of it"),
        (&["--lab-drill", FROZEN, "--lab-rate", "2"], "no probability"),
        (&["--lab-audit", "off", "--audit-rate", "5"], "exclude each other"),
    ] {
        let out = serve(flags);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(words), "{flags:?}: {said}");
    }
    let out = serve(&["--lab-drill", FROZEN, "--lab-rate", "0.01", "--model", "nowhere.gguf"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("LAB BUILD: NOT FOR USERS") && said.contains("10000 steps of a million"));
    let version = Command::new(lockstep()).arg("version").output().unwrap();
    assert!(String::from_utf8(version.stdout).unwrap().contains("(lab build)"));
}
