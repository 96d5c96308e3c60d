//! Records that cannot be read, and changes that nobody can settle any more: each is named and can be
//! closed, and none is in another server's way.

use super::{Site, read, run};
use crate::common::{lockstep, temp_dir};
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

/// `lockstep change` in a folder without a server, with its exit code and its words.
fn without_server(dir: &Path, words: &[&str]) -> (i32, String) {
    let out = Command::new(lockstep()).arg("change").args(words).current_dir(dir).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

/// What was found: `--records FILE` was an unexpected failure, "Not a directory".
#[test]
fn a_file_in_the_place_of_the_folder_of_records_is_a_wrong_command_line() {
    let dir = temp_dir("records-file");
    std::fs::write(dir.join("file"), "x").unwrap();
    for records in ["file", "file/below"] {
        for command in [
            &["log"][..],
            &["show"],
            &["show", "1"],
            &["undo", "1"],
            &["resume"],
            &["rollback"],
            &["close"],
            &["--url", "http://127.0.0.1:9", "--set", SET],
        ] {
            let (code, said) = without_server(&dir, &[command, &["--records", records]].concat());
            assert_eq!(code, 2, "{command:?}: {said}");
            let words = format!("{records} is a file, where --records takes the folder");
            assert!(said.contains(&words), "{command:?}: {said}");
        }
    }
}

/// What was found: where there was nothing to close, `change close` asked for `--why` first.
#[test]
fn nothing_to_close_is_said_before_a_why_is_asked_for() {
    let dir = temp_dir("nothing-to-close");
    let (code, said) = without_server(&dir, &["close"]);
    assert!(code == 12 && said.contains("there is nothing to close"), "{code} {said}");
    let (code, said) = without_server(&dir, &["close", "4"]);
    assert!(code == 12 && said.contains("there is no change 4 that is not over"), "{code} {said}");
    let gone = dir.join("records/2026-01-02T00-00-00Z-gone");
    std::fs::create_dir_all(&gone).unwrap();
    std::fs::write(gone.join("baseline.json"), "{}").unwrap();
    let (code, said) = without_server(&dir, &["close"]);
    assert!(code == 2 && said.contains("say --why TEXT"), "{code} {said}");
}

/// What was found: a record that its reader may not look into was no record, and `change log` said
/// that there was none.
#[test]
fn a_record_that_may_not_be_read_is_said_to_be_there() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    // Where any user may come, as below cargo's folder they may not.
    let dir = std::env::temp_dir().join(format!("lockstep-closed-{}", std::process::id()));
    let records = dir.join("records");
    let name = "2026-01-02T00-00-00Z-theirs";
    for folder in [name, "lost+found"] {
        std::fs::create_dir_all(records.join(folder)).unwrap();
        std::fs::set_permissions(records.join(folder), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let shut = records.join("2026-01-03T00-00-00Z-shut");
    std::fs::create_dir(&shut).unwrap();
    std::fs::write(shut.join(FILE), "{}\n").unwrap();
    std::fs::set_permissions(shut.join(FILE), PermissionsExt::from_mode(0o000)).unwrap();
    // The program may lie where only its owner comes; root may read everything.
    let program = dir.join("lockstep");
    std::fs::copy(lockstep(), &program).unwrap();
    let is_root = std::fs::read_dir(records.join(name)).is_ok();
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("change").args(words).current_dir(&dir);
        if is_root {
            command.uid(65_534);
        }
        let out = command.output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = run(&["log"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("unreadable") && said.contains(name), "{said}");
    assert!(said.contains("Permission denied") && !said.contains("lost+found"), "{said}");
    let (_, said) = run(&["log", "--json"]);
    let listed: Value = serde_json::from_str(&said).unwrap();
    let states: Vec<&Value> = listed.as_array().unwrap().iter().map(|r| &r["state"]).collect();
    assert_eq!(states, ["unreadable", "unreadable"], "{said}");
    for words in [&["resume"][..], &["close"], &["show", "1"], &["show"], &["undo", "1"]] {
        let (code, said) = run(words);
        assert_eq!(code, Some(12), "{words:?}: {said}");
        assert!(said.contains(&format!("may not look into {name}")), "{words:?}: {said}");
    }
    let (code, said) = run(&["close", name, "--why", "x"]);
    assert!(code == Some(1) && said.contains("Permission denied"), "{code:?} {said}");
    std::fs::set_permissions(records.join(name), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
