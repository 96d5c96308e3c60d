//! A Lockstep server changed live.

use super::{SETTINGS, Site, read, run};
use serde_json::json;
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "takes minutes where the machine is busy; run by name with --ignored"]
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
    for words in ["Kept.", "the story", "passed coverage", "passed divergence", "change undo 1"] {
        assert!(decision.contains(words), "{words} is not in {decision}");
    }
    assert!(read(&record.join("index.html")).contains("<svg"));
    assert_eq!(read(&record.join("backup/lockstep.toml")), SETTINGS, "byte for byte");
    let log = site.log();
    assert_eq!((&log[0]["number"], &log[0]["state"]), (&json!(1), &json!("kept")));

    site.again();
    assert_eq!(site.buckets(), json!([1, 2, 4, 8]), "the next start has it too");
    let undo = ["undo", "1", "--yes", "--watch", "0", "--tolerance", "95"];
    let (code, done, said) = run(&mut site.change(&undo));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(site.buckets(), json!([1, 2, 4]));
    assert_eq!(site.settings(), SETTINGS);
}

#[test]
#[ignore = "takes minutes where the machine is busy; run by name with --ignored"]
fn what_does_not_pass_is_rolled_back() {
    let site = Site::new("back", &["--generation-memory", "4MiB"]);
    let (code, done, _) = run(&mut site.set("decode.graph-max-bs=8", &[]));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done}");
    let reasons = done["reasons"].to_string();
    assert!(reasons.contains("generations.memory is 4194304"), "for memory: {reasons}");

    drop(site);
    let site = Site::new("back2", &[]);
    // Half as fast again as before is asked for, which no bucket gives.
    let gain = ["--tolerance=-50"];
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
    let unconfirmed = ["--url", &site.url, "--set", "decode.graph-max-bs=8"];
    let (code, done, _) = run(&mut site.change(&unconfirmed));
    assert!(code == 12 && done["error"]["message"].to_string().contains("--yes"), "{done}");
    assert!(site.log().is_empty());
    let (code, done, _) = run(&mut site.change(&["--url", "http://127.0.0.1:1", "--set", "a.b=1"]));
    assert_eq!((code, &done["error"]["code"]), (8, &json!("noserver")));
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
