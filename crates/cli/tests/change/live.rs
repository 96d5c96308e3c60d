//! A Lockstep server changed live.

use super::proxy::{self, Fault, Plan};
use super::{SETTINGS, Site, read, run};
use serde_json::json;
use std::path::Path;
use std::process::Command;

#[test]
fn a_change_is_kept_written_and_undone() {
    let mut site = Site::new("kept", &[]);
    let (code, prediction, _) = run(&mut site.set("decode.graph-max-bs=8", &["--dry-run"]));
    assert_eq!((code, &prediction["buckets"]["new"]), (0, &json!([8])), "{prediction}");
    assert_eq!(prediction["downtime"]["seconds"], 0.0);
    assert!(prediction["memory"]["per_bucket_bytes"]["8"].as_u64().unwrap() > 0, "{prediction}");
    assert!(!site.records().exists(), "a dry run writes nothing");

    let (code, done, said) = run(&mut site.set("decode.graph-max-bs=8", &["--why", "the story"]));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(site.buckets(), json!([1, 2, 4, 8]));
    let status = site.status();
    let states: Vec<&str> = status["lockstep"]["engine"]["generations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["retired", "live"]);
    assert_eq!(site.settings(), SETTINGS.replace("= 4", "= 8"), "its comments stay");
    assert!(!site.dir.join("lockstep.toml.change-pending").exists());

    let record = Path::new(done["record"].as_str().unwrap());
    let record = site.dir.join(record);
    let decision = read(&record.join("decision.md"));
    for words in
        ["Kept.", "the story", "passed coverage", "passed check", "check.html", "change undo 1"]
    {
        assert!(decision.contains(words), "{words} is not in {decision}");
    }
    assert!(read(&record.join("index.html")).contains("<svg"));
    for kept in ["check.json", "check.html", "bench-before.jsonl", "bench-after.jsonl"] {
        assert!(record.join(kept).is_file(), "{kept}");
    }
    let gate: serde_json::Value = serde_json::from_str(&read(&record.join("check.json"))).unwrap();
    assert_eq!((&gate["conclusion"], &gate["corrupted"]["rate"]), (&json!("clean"), &json!(0.0)));
    let eight = gate["coverage"]["buckets"].as_array().unwrap().iter().find(|b| b["rows"] == 8);
    assert!(eight.unwrap()["seen"].as_u64().unwrap() > 0, "{gate}");
    assert_eq!(read(&record.join("backup/lockstep.toml")), SETTINGS, "byte for byte");
    let log = site.log();
    assert_eq!((&log[0]["number"], &log[0]["state"]), (&json!(1), &json!("kept")));

    site.again();
    assert_eq!(site.buckets(), json!([1, 2, 4, 8]), "the next start has it too");
    // `--dry-run` was once no flag of `undo`, and the tip was to pass it as a number.
    let (code, prediction, said) = run(&mut site.change(&["undo", "1", "--dry-run"]));
    let setting = &prediction["settings"][0];
    assert_eq!((code, &setting["from"], &setting["to"]), (0, &json!("8"), &json!("4")), "{said}");
    let undo = ["undo", "1", "--yes"];
    let (code, done, said) = run(&mut site.change(&undo));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(site.buckets(), json!([1, 2, 4]));
    assert_eq!(site.settings(), SETTINGS);
}

#[test]
fn what_does_not_pass_is_rolled_back() {
    let site = Site::new("back", &["--generation-memory", "64KiB"]);
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done}");
    let reasons = done["reasons"].to_string();
    assert!(reasons.contains("generations.memory is 65536"), "for memory: {reasons}");

    drop(site);
    let site = Site::new("back2", &[]);
    // Fifty times as fast as before is asked for, which no bucket gives.
    let gain = ["--tolerance=-4900"];
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &gain));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done}");
    assert!(done["reasons"].to_string().contains("throughput: at"), "{done}");
    assert_eq!(site.buckets(), json!([1, 2, 4]), "the old generation serves");
    assert_eq!(site.settings(), SETTINGS);
    assert_eq!(site.status()["lockstep"]["engine"]["counters"]["rollbacks"], 1);
    let shown = site.change(&["show", "1"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert!(shown["baseline"]["points"].as_array().unwrap().len() == 1, "{shown}");
}

#[test]
fn what_cannot_work_is_not_begun() {
    let site = Site::new("not-begun", &[]);
    for (set, said) in [
        ("decode.graph-max-sb=8", "did you mean 'decode.graph-max-bs'"),
        ("decode.graph-max-bs=4", "is 4 already"),
        ("decode.graph-max-bs=0", "a whole number from 1 to 4096"),
        ("pool.kv-memory=2GiB", "needs a restart"),
        ("server.port=1", "needs a restart"),
    ] {
        let (code, done, _) = run(&mut site.set(set, &[]));
        assert!(code == 12 || code == 2, "{set}: {code}");
        assert!(done["error"]["message"].as_str().unwrap().contains(said), "{set}: {done}");
    }
    // Of a value that cannot be, a dry run once showed what it would take in memory and downtime.
    let dry = ["--url", &site.url, "--set", "decode.graph-max-bs=0", "--dry-run"];
    let (code, done, _) = run(&mut site.change(&dry));
    let words = done["error"]["message"].to_string();
    assert!(code == 2 && words.contains("is '0'; it takes a whole number from 1"), "{done}");
    let unconfirmed = ["--url", &site.url, "--set", "decode.graph-max-bs=8"];
    let (code, done, _) = run(&mut site.change(&unconfirmed));
    assert!(code == 12 && done["error"]["message"].to_string().contains("--yes"), "{done}");
    assert!(site.log().is_empty());
    let (code, done, _) = run(&mut site.change(&["--url", "http://127.0.0.1:1", "--set", "a.b=1"]));
    assert_eq!((code, &done["error"]["code"]), (8, &json!("no_server")));
    // Nobody is there to be asked about an address that cannot be asked.
    for command in [&["--set", "a.b=1"][..], &["init"]] {
        let https = [&["--url", "https://example.org"], command].concat();
        let (code, done, _) = run(&mut site.change(&https));
        let words = done["error"]["message"].to_string();
        assert!(code == 2 && words.contains("http://HOST:PORT"), "{code} {done}");
    }
}

/// What was found: nothing was said for two minutes and more.
#[test]
fn a_server_that_never_answers_is_named() {
    let dir = super::temp_dir("silent");
    // The system takes connections for it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let started = [&["--set", "decode.lanes=1"][..], &["init"]].map(|command| {
        let mut change = Command::new(super::lockstep());
        change.args(["change", "--url", &url]).args(command).current_dir(&dir);
        change.stderr(std::process::Stdio::piped()).spawn().unwrap()
    });
    for change in started {
        let out = change.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(8), "{said}");
        let wanted = format!("the server at {url} does not answer within 15 s");
        assert!(said.contains(&wanted), "{said}");
    }
}

/// That the settings file cannot be replaced was once found out after everything had passed.
#[test]
fn a_settings_file_that_cannot_be_replaced_is_known_before_anything_is_touched() {
    let site = Site::new("read-only", &[]);
    // Nothing can be made there, whoever asks.
    let config = ["--config", "/proc/lockstep.toml"];
    for more in [&[][..], &["--dry-run"]] {
        let (code, done, said) =
            run(&mut site.set("decode.graph-max-bs=8", &[&config, more].concat()));
        let words = "/proc/lockstep.toml cannot be replaced";
        assert!(code == 12 && done.to_string().contains(words), "{code} {done} {said}");
    }
    assert!(site.log().is_empty());
    assert_eq!(site.status()["lockstep"]["engine"]["counters"]["generations_staged"], 0);
}

/// Answers that are damaged under load, and whole one at a time: nothing else than the corruption
/// gate sees them.
#[test]
fn damage_that_the_gate_sees_is_rolled_back() {
    let site = Site::new("damage", &[]);
    let plan = Plan { fault: Fault::Duplicate, one_in: 2, after: 24, seed: 1 };
    let proxy = proxy::start(site.url.strip_prefix("http://").unwrap(), plan).unwrap();
    site.write_target(&proxy.address);
    let (code, done, said) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
    assert!(proxy.faults() > 0);
    assert!(done["reasons"][0].as_str().unwrap().starts_with("check: "), "{done}");
    assert_eq!(site.buckets(), json!([1, 2, 4]), "the old generation serves");
    assert_eq!(site.settings(), SETTINGS);
    let record = site.dir.join(done["record"].as_str().unwrap());
    let gate: serde_json::Value = serde_json::from_str(&read(&record.join("check.json"))).unwrap();
    assert_eq!(gate["conclusion"], "corrupted", "{gate}");
    assert!(!record.join("after.json").exists(), "nothing is measured once it has failed");
}

/// The settings file is edited by somebody else while a change of it is watched: the way back
/// leaves that alone, and so does keeping.
#[test]
fn somebody_else_s_edit_of_the_settings_file_stays() {
    let theirs = "# theirs\n";
    for (death, way, value) in
        [("after-8", "rollback", 4), ("after-10", "rollback", 4), ("after-9", "resume", 8)]
    {
        let site = Site::new(&format!("theirs-{death}"), &[]);
        let mut change = site.set("decode.graph-max-bs=8", &[]);
        let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
        assert_eq!(out.status.code(), None, "{out:?}");
        std::fs::write(site.dir.join("lockstep.toml"), format!("{SETTINGS}{theirs}")).unwrap();
        let (code, done, said) = run(&mut site.change(&[way]));
        assert_eq!(code, 0, "{death}: {done} {said}");
        let wanted = SETTINGS.replace("= 4", &format!("= {value}"));
        assert_eq!(site.settings(), format!("{wanted}{theirs}"), "{death}");
        assert_eq!(said.contains("left as it is"), way == "rollback", "{death}: {said}");
    }
}

/// A disk that is full while the settings file is copied: the change ends, nothing was touched.
#[test]
fn a_full_disk_while_backing_up_touches_nothing() {
    let site = Site::new("disk-full", &[]);
    // Larger than what this process may write to one file; the journal and the answers are not.
    let padded = format!("{SETTINGS}{}", "# a line of this file\n".repeat(40_000));
    std::fs::write(site.dir.join("lockstep.toml"), &padded).unwrap();
    let change = site.set("decode.graph-max-bs=8", &[]);
    let words: Vec<String> = std::iter::once(change.get_program())
        .chain(change.get_args())
        .map(|w| format!("'{}'", w.to_str().unwrap()))
        .collect();
    let script = format!("trap '' XFSZ; ulimit -f 400; exec {}", words.join(" "));
    let (code, done, said) = run(Command::new("sh").args(["-c", &script]).current_dir(&site.dir));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
    assert!(done["reasons"].to_string().contains("cannot be copied"), "{done}");
    assert_eq!(site.settings(), padded);
    assert_eq!(site.status()["lockstep"]["engine"]["counters"]["generations_staged"], 0);
}
