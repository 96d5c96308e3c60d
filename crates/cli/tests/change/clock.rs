//! A clock that jumps: every reading of the time of day is days away from the one before, forwards
//! and backwards, for the change and for the server that it starts. Only the system's call is
//! replaced, by a library that is loaded before any other.

use super::restart::{SET, by_script, end, running};
use super::{Site, read, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static unsigned calls;
    static const long days[] = {0, 400, -3, 30, -300};
    int r = (int)syscall(SYS_clock_gettime, id, t);
    if (r == 0 && id == CLOCK_REALTIME)
        t->tv_sec += 86400 * days[__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) % 5];
    return r;
}
";

fn jumping(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("jump.c"), dir.join("jump.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// Times of a journal's lines, in the order of the lines.
fn times(site: &Site, done: &Value) -> Vec<u64> {
    let record = site.dir.join(done["record"].as_str().unwrap());
    let journal = read(&record.join("journal.jsonl"));
    let line = |l: &str| serde_json::from_str::<Value>(l).unwrap()["unix_ms"].as_u64().unwrap();
    journal.lines().map(line).collect()
}

fn assert_jumped(times: &[u64]) {
    assert!(times.windows(2).any(|w| w[1] < w[0]), "the clock never went back: {times:?}");
    let day = 86_400_000;
    assert!(times.windows(2).any(|w| w[1] > w[0] + day), "nor forwards: {times:?}");
}

#[test]
fn a_live_change_is_kept_whatever_the_clock_says() {
    let site = Site::new("clock", &[]);
    let library = jumping(&site.dir);
    let mut change = site.set("decode.graph-max-bs=8", &[]);
    change.env("LD_PRELOAD", &library).env("LOCKSTEP_TEST_CHANGE_DIES", "after-8");
    let out = change.output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    let mut resume = site.change(&["resume"]);
    let (code, done, said) = run(resume.env("LD_PRELOAD", &library));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_jumped(&times(&site, &done));
    let mut change = site.set("decode.graph-max-bs=4", &[]);
    let (code, done, said) = run(change.env("LD_PRELOAD", &library));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    // Changes are told apart and ordered by their numbers.
    let log = site.log();
    let numbers: Vec<&Value> = log.iter().map(|r| &r["number"]).collect();
    assert_eq!(numbers, [&json!(1), &json!(2)]);
    assert_eq!(site.buckets(), json!([1, 2, 4]));
}

#[test]
fn a_restart_is_kept_whatever_the_clock_says() {
    let site = by_script("clock-restart", "", |_, _| ":".into());
    let library = jumping(&site.dir);
    let mut change = site.change(&SET);
    let (code, done, said) = run(change.env("LD_PRELOAD", &library));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_jumped(&times(&site, &done));
    assert_eq!(running(&site), 8);
    end(site);
}
