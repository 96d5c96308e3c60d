//! A change whose process is killed at every line of its journal, before and after it: what is
//! left is the old state or the new one, and a record of which.

use super::{SETTINGS, Site, run};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Lines of a live change's journal: eight states and the intents of staging (4), flipping (7) and
/// keeping (10).
const LINES: u64 = 11;
/// Lines that say what was done just before: a crash in between leaves it done and not said.
const AFTER_THE_DEED: [u64; 3] = [5, 8, 11];

fn counters(site: &Site) -> Value {
    site.status()["lockstep"]["engine"]["counters"].clone()
}

/// Kills a change at a line, and settles it.
fn killed(site: &Site, value: u32, death: &str, settle: &str) -> (Value, String) {
    let set = format!("decode.graph-max-bs={value}");
    let mut change = site.set(&set, &[]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
    assert_eq!(out.status.code(), None, "{death}: killed, not ended: {out:?}");
    let last = site.log().pop();
    if last.as_ref().is_none_or(|r| r["state"] == "kept" || r["state"] == "rolled_back") {
        return (last.unwrap_or_default(), String::new());
    }
    // Another change is refused while this one is not over.
    let (code, refused, _) = run(&mut site.set("decode.lanes=1", &[]));
    assert_eq!(code, 12, "{death}: {refused}");
    let (code, done, said) = run(&mut site.change(&[settle]));
    assert_eq!(code, 0, "{death}, {settle}: {done} {said}");
    (done, said)
}

#[test]
fn a_change_killed_at_any_line_is_resumed() {
    let site = Site::new("resumed", &[]);
    let mut value = 4;
    let after = (1..=LINES).map(|seq| format!("after-{seq}"));
    let before = AFTER_THE_DEED.iter().map(|seq| format!("before-{seq}"));
    for death in after.chain(before) {
        let wanted = if value == 4 { 8 } else { 4 };
        let (done, said) = killed(&site, wanted, &death, "resume");
        assert_eq!(done["state"], "kept", "{death}: {said}");
        value = wanted;
        let text = format!("= {value} #");
        assert!(site.settings().contains(&text), "{death}: {}", site.settings());
        let largest = site.buckets().as_array().unwrap().last().cloned();
        assert_eq!(largest, Some(json!(value)), "{death}");
    }
}

#[test]
fn a_change_killed_at_any_line_is_rolled_back() {
    let site = Site::new("rolled-back", &[]);
    // The last line says that it is kept: nothing is left to be rolled back.
    for seq in 2..LINES {
        let death = format!("after-{seq}");
        let (done, said) = killed(&site, 8, &death, "rollback");
        assert_eq!(done["state"], "rolled_back", "{death}: {said}");
        assert_eq!(site.settings(), SETTINGS, "{death}");
        assert_eq!(site.buckets(), json!([1, 2, 4]), "{death}");
        assert!(!site.dir.join("lockstep.toml.change-pending").exists(), "{death}");
    }
    let counters = counters(&site);
    assert_eq!(counters["generations_rejected"], 0, "{counters}");
}

/// What was found: "decode.graph-max-bs is 8 already; nothing was touched", and no word of the
/// change that was still to be settled.
#[test]
fn a_change_killed_while_it_was_flipped_is_named_before_anything_else() {
    let mut site = Site::new("named-first", &[]);
    let mut change = site.set("decode.graph-max-bs=8", &[]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", "after-8").output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    let words = |done: &Value| {
        let said = done.to_string();
        said.contains("ended while it was flipped") && said.contains("lockstep change resume 1")
    };
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert!(code == 12 && words(&done) && !done.to_string().contains("already"), "{code} {done}");
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &["--dry-run"]));
    assert!(code == 12 && words(&done["findings"][0]), "{code} {done}");
    site.stop();
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert!(code == 12 && words(&done), "where no server answers: {code} {done}");
}

/// What was found: nothing was said for two to three minutes. The system still takes connections of
/// a server that was stopped.
#[test]
fn a_server_that_never_answers_is_named_by_resume_and_rollback() {
    let site = Site::new("mute", &[]);
    let mut change = site.set("decode.graph-max-bs=8", &[]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", "after-8").output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    site.signal("STOP");
    for settle in ["resume", "rollback"] {
        let (code, done, said) = run(&mut site.change(&[settle]));
        let wanted = format!("the server at {} does not answer within 15 s", site.url);
        assert!(code == 8 && said.contains(&wanted), "{settle}: {code} {done} {said}");
    }
    site.signal("CONT");
    let (code, done, said) = run(&mut site.change(&["rollback"]));
    assert!(code == 0 && done["state"] == "rolled_back", "{code} {done} {said}");
    assert_eq!(site.buckets(), json!([1, 2, 4]));
}

/// Answers a request with 500.
fn fail(mut stream: std::net::TcpStream) {
    stream.set_nonblocking(false).unwrap();
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => asked.extend(byte),
            _ => return,
        }
    }
    let answer = b"HTTP/1.1 500 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(answer);
}

/// A single answer of 500 once noted for good that a change which had passed is rolled back.
#[test]
fn a_resumed_change_is_not_taken_back_for_an_answer_that_fails() {
    let mut site = Site::new("failing-answer", &[]);
    let mut change = site.set("decode.graph-max-bs=8", &[]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", "after-8").output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    let record = site.dir.join(site.log()[0]["record"].as_str().unwrap());
    let journal = || std::fs::read_to_string(record.join("journal.jsonl")).unwrap();
    let before = journal();
    site.stop();
    let address = site.url.strip_prefix("http://").unwrap();
    let failing = std::net::TcpListener::bind(address).unwrap();
    failing.set_nonblocking(true).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                match failing.accept() {
                    Ok((stream, _)) => fail(stream),
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
                }
            }
        });
        let ended = run(&mut site.change(&["resume"]));
        is_over.store(true, Relaxed);
        ended
    });
    assert!(ended.0 == 8 || ended.0 == 9, "{ended:?}");
    assert_eq!(journal(), before, "{ended:?}");
    drop(failing);
    // With the server, which came up with the old setting, it is settled.
    site.again();
    let (code, done, said) = run(&mut site.change(&["resume"]));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
}

/// A change that does not pass is killed on its way back: the way back announced (9), done and not
/// said (10).
#[test]
fn a_way_back_killed_at_any_line_is_finished() {
    let site = Site::new("way-back", &[]);
    for death in ["after-9", "before-10", "after-10"] {
        let mut change = site.set("decode.graph-max-bs=8", &["--tolerance=-4900"]);
        let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
        assert_eq!(out.status.code(), None, "{death}: {out:?}");
        if site.log().pop().unwrap()["state"] != "rolled_back" {
            let (code, done, said) = run(&mut site.change(&["resume"]));
            let ended = (code, &done["state"]);
            assert_eq!(ended, (11, &json!("rolled_back")), "{death}: {done} {said}");
            assert!(done["reasons"].to_string().contains("throughput: at"), "{death}: {done}");
        }
        assert_eq!(site.buckets(), json!([1, 2, 4]), "{death}");
        assert_eq!(site.settings(), SETTINGS, "{death}");
    }
}

/// The server ends in the watch window: it comes up with the old setting and says so; the change
/// is rolled back when it is resumed.
#[test]
fn a_restart_in_the_watch_window_has_the_old_setting() {
    let mut site = Site::new("restart-in-watch", &[]);
    let mut change = site.set("decode.graph-max-bs=8", &[]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", "after-8").output().unwrap();
    assert_eq!(out.status.code(), None);
    assert_eq!(site.log()[0]["state"], "flipped");
    assert_eq!(site.buckets(), json!([1, 2, 4, 8]));
    site.again();
    assert_eq!(site.buckets(), json!([1, 2, 4]));
    let log = super::read(&site.dir.join("server.log"));
    assert!(log.contains("so this start has the old setting"), "{log}");
    let (code, done, said) = run(&mut site.change(&["resume"]));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
    assert!(done["reasons"].to_string().contains("was restarted"), "{done}");
    assert_eq!(site.settings(), SETTINGS);
}

/// The lock is the system's: it is held while another change runs, and goes with its holder.
#[test]
fn two_at_once_are_refused() {
    let site = Site::new("two-at-once", &[]);
    std::fs::create_dir_all(site.records()).unwrap();
    let held = std::fs::File::create(site.records().join(".lock")).unwrap();
    held.lock().unwrap();
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert_eq!(code, 12);
    assert!(done["error"]["message"].to_string().contains("another change is going on"), "{done}");
    drop(held);
    assert_eq!(run(&mut site.set("decode.graph-max-bs=8", &[])).0, 0);
}

/// A server that was restarted before the flip has generations of its own with the same numbers:
/// they are somebody else's, and are left alone.
#[test]
fn a_restart_before_the_flip_is_noticed() {
    // The generation is asked for, it is there, it is proven.
    for death in ["after-4", "after-5", "after-6"] {
        let mut site = Site::new(&format!("restart-{death}"), &[]);
        let mut change = site.set("decode.graph-max-bs=8", &[]);
        let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
        assert_eq!(out.status.code(), None, "{out:?}");
        // Starts are told apart by their second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        site.again();
        let knobs = r#"{"knobs": {"decode.graph-max-bs": 8}, "wait": true}"#;
        assert_eq!(site.post("/admin/generations", knobs)["state"], "verified");
        let (code, done, said) = run(&mut site.change(&["resume"]));
        assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{death}: {done} {said}");
        assert!(done["reasons"].to_string().contains("was restarted"), "{death}: {done}");
        assert_eq!(site.generations(), ["1 live", "2 verified"], "{death}");
        assert_eq!(site.settings(), SETTINGS);
    }
}
