//! `lockstep check` against `lockstep serve` with the small trained model that comes with the
//! project, by way of a proxy that damages answers: a sound server is clean with coverage, and a
//! damaged answer is found, with the exit codes that scripts read.

mod common;
#[path = "../../check/tests/support/proxy.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod proxy;

use common::serving::{self, Serving};
use common::{lockstep, temp_dir};
use proxy::{Fault, Plan};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn serve(test: &str) -> Serving {
    let recall = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recall"));
    let flags = ["--graph-max-bs", "4", "--max-running-requests", "8"];
    let (child, ready) = serving::serve(test, recall, "256MiB", &flags);
    Serving { child, ready }
}

fn check(test: &str, args: &[&str]) -> Output {
    Command::new(lockstep())
        .arg("check")
        .args(args)
        .args(["--kinds", "report", "--max-tokens", "200"])
        .current_dir(temp_dir(test))
        .output()
        .unwrap()
}

fn report(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

#[test]
fn a_sound_server_is_clean_and_every_damaged_answer_is_found() {
    let server = serve("sound");
    let sizes = ["--sessions", "8", "--rounds", "2", "--json"];
    let out = check("clean", &[&[server.url()][..], &sizes].concat());
    let clean = report(&out);
    assert_eq!(out.status.code(), Some(0), "{clean:#}");
    assert_eq!(clean["conclusion"], "clean");
    assert_eq!(clean["deterministic"], true);
    assert_eq!(clean["coverage"]["source"], "exactly");
    assert!(clean["answers"]["judged"].as_u64().unwrap() >= 20, "{clean:#}");
    for bucket in clean["coverage"]["buckets"].as_array().unwrap() {
        assert!(bucket["required"] == false || bucket["seen"].as_u64() > Some(0), "{bucket}");
    }
    let calibrated = clean["calibration"]["requests"].as_u64().unwrap();
    let reliable = clean["calibration"]["reliable"].as_u64().unwrap();
    assert!(calibrated >= 20 && reliable + 2 >= calibrated, "{clean:#}");

    // The same sessions, with one symbol changed in one of four answers under load.
    let upstream = server.url().strip_prefix("http://").unwrap();
    let plan = Plan { fault: Fault::Alter, one_in: 4, after: calibrated, seed: 1 };
    let proxy = proxy::start(upstream, plan).unwrap();
    // A page that cannot be written once made every verdict 3.
    let full = ["--html", "/dev/full"];
    let out = check("altered", &[&[proxy.address.as_str()][..], &sizes, &full].concat());
    let altered = report(&out);
    assert_eq!(out.status.code(), Some(1), "{altered:#}");
    assert!(proxy.faults() > 0);
    assert!(altered["corrupted"]["sessions"].as_array().is_some_and(|s| !s.is_empty()));
    let classes = altered["corrupted"]["classes"].as_object().unwrap();
    let known = ["altered", "structural", "swapped", "divergent"];
    assert!(classes.keys().all(|c| known.contains(&c.as_str())), "{classes:?}");
    assert!(classes.contains_key("altered"), "{classes:?}");
}

/// Ctrl-C once lost everything that a long check had found.
#[test]
fn a_check_that_is_interrupted_says_and_saves_what_it_has() {
    let server = serve("interrupted");
    let folder = temp_dir("interrupted-out");
    let child = Command::new(lockstep())
        .args(["check", server.url(), "--kinds", "report", "--max-tokens", "200"])
        .args(["--sessions", "64", "--save", "report.json"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    common::wait_until("five answers", || {
        server.status()["lockstep"]["engine"]["counters"]["finished"].as_u64() > Some(4)
    });
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("INCONCLUSIVE") && said.contains("ended early"), "{said}");
    let saved: Value =
        serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!(
        (&saved["conclusion"], &saved["ended_early"]),
        (&"inconclusive".into(), &true.into())
    );
    assert!(saved["calibration"]["requests"].as_u64() > Some(0));
    assert_eq!(saved["options"]["sessions"], 64);
}

/// A report that could not be written at the end once took the verdict and the other report along.
#[test]
fn a_report_that_cannot_be_written_loses_neither_the_verdict_nor_the_other() {
    let server = serve("full-disk");
    let page = temp_dir("full-disk-page").join("check.html");
    let out = check(
        "full-disk-out",
        &[
            &[server.url(), "--sessions", "8", "--rounds", "2", "--save", "/dev/full"][..],
            &["--html", page.to_str().unwrap()],
        ]
        .concat(),
    );
    let (said, complaint) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(3), "{said}{complaint}");
    assert!(said.contains("CLEAN"), "{said}");
    assert!(complaint.contains("/dev/full cannot be written: "), "{complaint}");
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}

/// What was found: of a server that was killed while it was calibrated it was said that it answered no
/// request, or that it went away under a load that there had not been.
#[test]
fn a_server_that_is_killed_while_it_is_calibrated_is_said_to_have_gone() {
    let server = serve("killed");
    let child = Command::new(lockstep())
        .args(["check", server.url(), "--kinds", "report", "--max-tokens", "200", "--json"])
        .args(["--sessions", "64", "--rounds", "2"])
        .current_dir(temp_dir("killed-out"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    common::wait_until("five answers", || {
        server.status()["lockstep"]["engine"]["counters"]["finished"].as_u64() > Some(4)
    });
    server.signal("KILL");
    let out = child.wait_with_output().unwrap();
    let found = report(&out);
    assert_eq!(out.status.code(), Some(3), "{found:#}");
    assert_eq!(
        (&found["error"]["code"], &found["error"]["exit"]),
        (&"no_server".into(), &3.into())
    );
    let words = found["error"]["message"].as_str().unwrap();
    let asked =
        format!("{} went away while it was asked one request at a time, after ", server.url());
    assert!(words.contains(&asked) && words.contains("start it again"), "{words}");
}

/// What was found: of a server that was killed under load it was said that it tells nothing of its
/// batches, and that its metrics should be turned on.
#[test]
fn a_server_that_goes_away_under_load_is_said_to_have_gone() {
    let server = serve("gone");
    let child = Command::new(lockstep())
        .args(["check", server.url(), "--kinds", "report", "--max-tokens", "200", "--json"])
        .args(["--sessions", "8", "--rounds", "2", "--timeout", "20"])
        .current_dir(temp_dir("gone-out"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Alone there is one request at a time.
    common::wait_until("a load", || {
        server.status()["lockstep"]["engine"]["running"].as_u64() > Some(1)
    });
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-s", "KILL", &pid]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    let found = report(&out);
    assert_eq!(out.status.code(), Some(2), "{found:#}");
    let why = found["why"].to_string();
    assert!(why.contains("the server went away under load (no connection: "), "{why}");
    assert!(why.contains("s into the load, "), "{why}");
    assert!(!why.contains("turn its metrics on"), "{why}");
    assert_eq!(found["coverage"]["source"], "exactly", "{found:#}");
}

/// What was found: nothing was said for as long as an answer may take, five minutes by default.
#[test]
fn a_server_that_never_answers_is_named_by_check_and_bench() {
    // The system takes connections for it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for command in ["check", "bench"] {
        for more in [&[][..], &["--model", "m"]] {
            let mut run = Command::new(lockstep());
            run.args([command, &url, "--timeout", "1"]).args(more);
            let out = run.current_dir(temp_dir("silent")).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(3), "{command} {more:?}: {said}");
            let words = format!("the server at {url} does not answer within 1 s");
            assert!(said.contains(&words), "{command} {more:?}: {said}");
        }
    }
}

#[test]
fn what_cannot_run_is_3_and_says_why() {
    for (args, words) in [
        (&["--replay", "/dev/zero"][..], "/dev/zero has more than the 268435456 bytes"),
        (&["--decode-log", "/"], "the decode log / cannot be read: it is a folder"),
        (&["--decode-log", "journal:"], "a unit's name is missing"),
        (&["http://127.0.0.1:9"], "127.0.0.1:9"),
        (&["https://example.org"], "http://HOST:PORT"),
        (&["http://127.0.0.1:9/?x=1"], "'http://127.0.0.1:9/' would work"),
        (&["--sessions", "0"], "--sessions is 0"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--bound", "2"], "0.1%"),
        (&["--replay", "none.json"], "none.json cannot be read"),
    ] {
        let out = check("cannot", args);
        assert_eq!(out.status.code(), Some(3), "{args:?}: {out:?}");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
