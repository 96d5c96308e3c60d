//! Records that cannot be read, and changes that nobody can settle any more: each is named and can be
//! closed, and none is in another server's way.

use super::{Site, read, run};
use lockstep_change::journal::{Entry, FILE, Journal, State};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const SET: &str = "decode.graph-max-bs=8";

/// A change of the server at `url` that was staged, with the third line of its journal damaged.
fn damaged(site: &Site, name: &str, number: u64, url: &str) -> PathBuf {
    let folder = site.records().join(name);
    std::fs::create_dir_all(folder.join("backup")).unwrap();
    let mut journal = Journal::create(&folder).unwrap();
    let facts = json!({"number": number, "title": "parallel=16", "url": url, "why": "wider"});
    journal.reach(State::Proposed, facts).unwrap();
    journal.reach(State::Checked, json!({})).unwrap();
    journal.reach(State::BackedUp, json!({"files": []})).unwrap();
    journal.append(&Entry::Note("drained"), json!({})).unwrap();
    let text = read(&folder.join(FILE));
    std::fs::write(folder.join(FILE), text.replace("backed_up", "bAcked_up")).unwrap();
    folder
}

fn dry(site: &Site) -> (i32, Value, String) {
    run(&mut site.set(SET, &["--dry-run"]))
}

/// What was found: one damaged line in a record of whichever server ended every change and `change
/// log` with 1; a record whose journal was gone was not mentioned by anything.
#[test]
fn a_damaged_journal_is_in_no_other_server_s_way() {
    let site = Site::new("damaged-journal", &[]);
    let theirs = damaged(&site, "2026-01-01T00-00-00Z-theirs", 3, "http://192.0.2.1:1");
    let (code, done, said) = dry(&site);
    assert_eq!(code, 0, "{done} {said}");
    let gone = site.records().join("2026-01-02T00-00-00Z-gone");
    std::fs::create_dir(&gone).unwrap();
    std::fs::write(gone.join("baseline.json"), "{}").unwrap();
    // A folder of somebody else's is none of ours.
    std::fs::create_dir(site.records().join("notes")).unwrap();
    let (code, done, said) = dry(&site);
    assert_eq!(code, 0, "{done} {said}");
    assert!(said.contains("2026-01-02T00-00-00Z-gone does not tell"), "{said}");
    let log = site.log();
    let states: Vec<&str> = log.iter().map(|r| r["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["damaged", "damaged"], "{log:?}");
    assert_eq!((&log[0]["number"], &log[1]["number"]), (&json!(3), &Value::Null));
    let words = log[0]["reasons"].to_string();
    assert!(words.contains("line 3 of its journal.jsonl"), "{words}");
    let (_, shown, _) = run(&mut site.change(&["show", "3"]));
    assert!(shown.to_string().contains("lockstep change close"), "{shown}");

    // Of this server, it has to be looked at first.
    damaged(&site, "2026-01-03T00-00-00Z-ours", 4, &site.url);
    let (code, done, _) = run(&mut site.set(SET, &[]));
    let words = done["error"]["message"].to_string();
    assert!(code == 12 && words.contains("change close 2026-01-03T00-00-00Z-ours"), "{done}");
    let (code, done, _) = run(&mut site.change(&["resume", "4"]));
    assert!(code == 12 && done.to_string().contains("change close"), "{code} {done}");
    let (code, done, said) = run(&mut site.change(&["close", "4", "--why", "it runs as before"]));
    assert_eq!((code, &done["state"]), (0, &json!("closed")), "{done} {said}");
    assert_eq!(dry(&site).0, 0);
    let name = theirs.file_name().unwrap().to_str().unwrap();
    let (code, done, said) = run(&mut site.change(&["close", name, "--why", "gone"]));
    assert_eq!((code, &done["number"]), (0, &json!(3)), "{done} {said}");
    let page = read(&theirs.join("decision.md"));
    assert!(page.contains("Closed by hand") && page.contains("gone"), "{page}");
    assert!(read(&theirs.join("journal.damaged.jsonl")).contains("bAcked_up"));
    // A new change has a number of its own.
    let (code, done, said) = run(&mut site.set(SET, &[]));
    assert_eq!((code, &done["number"]), (0, &json!(5)), "{done} {said}");
    // Damaged once more, by a link to nothing: closed too, and the first one is still there.
    let journal = theirs.join("journal.jsonl");
    std::fs::remove_file(&journal).unwrap();
    std::os::unix::fs::symlink("nowhere", &journal).unwrap();
    let (code, done, said) = run(&mut site.change(&["close", name, "--why", "a link"]));
    assert_eq!((code, &done["state"]), (0, &json!("closed")), "{done} {said}");
    assert!(theirs.join("journal.damaged-2.jsonl").is_symlink() && !journal.is_symlink());
    assert!(read(&theirs.join("journal.damaged.jsonl")).contains("bAcked_up"));
    assert!(!theirs.join("journal.anew").exists());
}

/// A change killed while it is watched, its server gone.
fn gone(test: &str) -> Site {
    let mut site = Site::new(test, &[]);
    let out = site.set(SET, &[]).env("LOCKSTEP_TEST_CHANGE_DIES", "after-8").output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    site.stop();
    site
}

/// What was found: `resume` and `rollback` of a live change failed for ever where its server was
/// gone for good, and nothing else ended it.
#[test]
fn a_change_whose_server_is_gone_is_closed() {
    let mut site = gone("closed");
    let pending = site.dir.join("lockstep.toml.change-pending");
    assert!(pending.exists());
    for way in ["resume", "rollback"] {
        let (code, done, said) = run(&mut site.change(&[way]));
        assert!(code == 8 && done.to_string().contains("change close"), "{way}: {done} {said}");
    }
    for why in [&[][..], &["--why", " "]] {
        let (code, done, _) = run(&mut site.change(&[&["close"], why].concat()));
        assert!(code == 2 && done.to_string().contains("--why TEXT"), "{code} {done}");
    }
    let (code, done, _) = run(&mut site.change(&["close", "7", "--why", "x"]));
    assert_eq!(code, 12, "{done}");
    let (code, done, said) = run(&mut site.change(&["close", "1", "--why", "the disk died"]));
    assert_eq!((code, &done["state"]), (0, &json!("closed")), "{done} {said}");
    assert!(said.contains("lockstep.toml is as it was before the change"), "{said}");
    assert!(!pending.exists());
    let log = site.log();
    assert_eq!(
        (&log[0]["state"], &log[0]["reasons"]),
        (&json!("closed"), &json!(["the disk died"]))
    );
    let (code, done, _) = run(&mut site.change(&["undo", "1"]));
    assert!(code == 12 && done.to_string().contains("closed"), "{code} {done}");
    site.again();
    assert_eq!(run(&mut site.set(SET, &[])).0, 0);
}

fn serve_at(url: &str, answer: &'static [u8]) {
    let listener = TcpListener::bind(url.strip_prefix("http://").unwrap()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
}

/// What was found: `resume` ended with 2, a wrong command line, where another kind of server was at
/// the address, and with 8, no server, where something else than HTTP was.
#[test]
fn what_answers_in_the_server_s_place_is_unwell() {
    const LLAMA: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\nConnection: close\r\n\r\n\
                           {\"data\": [{\"id\": \"m.gguf\", \"owned_by\": \"llamacpp\", \"a\": 1}]}";
    for (test, answer, words) in [
        ("another-kind", LLAMA, "and no Lockstep server"),
        ("no-http", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP"),
    ] {
        let site = gone(test);
        serve_at(&site.url, answer);
        let (code, done, said) = run(&mut site.change(&["resume"]));
        assert!(code == 9 && done.to_string().contains(words), "{test}: {code} {done} {said}");
        assert_eq!(site.log()[0]["state"], "flipped", "{test}");
    }
}

/// What was found: a target that is not there ended with 1, a bug.
#[test]
fn a_target_that_is_not_there_is_a_wrong_command_line() {
    let dir = super::temp_dir("no-target");
    let change = |dir: &Path| {
        let mut command = Command::new(super::lockstep());
        let arguments = ["change", "--target", "nope", "--set", SET, "--json"];
        run(command.args(arguments).current_dir(dir))
    };
    let (code, done, _) = change(&dir);
    assert!(code == 2 && done.to_string().contains("change init"), "{code} {done}");
    std::fs::create_dir(dir.join("targets")).unwrap();
    std::fs::write(dir.join("targets/ours.toml"), "url = \"a:1\"\n").unwrap();
    let (code, done, _) = change(&dir);
    assert!(code == 2 && done.to_string().contains("targets/ has ours"), "{code} {done}");
}
