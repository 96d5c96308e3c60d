//! `lockstep bench` on our own server with the default model, over real HTTP: what the bench counts is
//! what the server counted. No time is asserted.

mod common;

use common::serving::Serving;
use common::{lockstep, temp_dir};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(lockstep()).arg("bench").args(args).output().unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn serve(test: &str) -> Serving {
    Serving::start(test, &["--max-running-requests", "8"])
}

#[test]
fn counts_are_the_servers() {
    let server = serve("counts");
    let folder = temp_dir("counts-out");
    let (json, html) = (folder.join("a.jsonl"), folder.join("a.html"));
    let (json_arg, html_arg) = (json.to_str().unwrap(), html.to_str().unwrap());
    let counters = || server.status()["lockstep"]["engine"]["counters"].clone();
    let before = counters();
    let out = bench(&[
        server.url(),
        "-c",
        "1,4",
        "--input",
        "40",
        "--output",
        "12",
        "--requests",
        "8",
        "--min-repeats",
        "2",
        "--max-repeats",
        "2",
        "--ci",
        "99%",
        "--no-warmup",
        "--json",
        json_arg,
        "--html",
        html_arg,
    ]);
    let after = counters();
    let words = String::from_utf8_lossy(&out.stdout);
    // 2 where the interval of two runs is wide, which is for the machine to say.
    let code = out.status.code();
    assert!(matches!(code, Some(0 | 2)), "{words}{}", String::from_utf8_lossy(&out.stderr));
    assert!(words.contains("TTFT ms") && words.contains("client"), "{words}");
    let points = lines(&json);
    assert_eq!(points.len(), 2);
    for (point, c) in points.iter().zip([1, 4]) {
        assert_eq!(point["max_concurrency"], c);
        assert_eq!((&point["completed"], &point["lockstep"]["sent"]), (&16.into(), &16.into()));
        assert_eq!(point["total_input_tokens"], 16 * 40);
        assert_eq!(point["total_output_tokens"], 16 * 12);
        assert_eq!(point["lockstep"]["output_unlike"], 0);
        assert_eq!(point["lockstep"]["refused"], 0);
        assert_eq!(point["max_concurrent_requests"], c);
    }
    // What is beyond 32 requests of 12 tokens are the few short ones that found out what the
    // server takes.
    let made = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    let probes = made("finished") - 32;
    assert!((2..=4).contains(&probes), "{probes}");
    assert!((32 * 12 + 5..32 * 12 + 16).contains(&made("generated_tokens")));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));

    let shown = bench(&["show", json_arg, "--csv", "-"]);
    let csv = String::from_utf8_lossy(&shown.stdout);
    assert_eq!((shown.status.code(), csv.lines().count()), (Some(0), 3), "{csv}");
}

#[test]
fn conversations_prefixes_rates_and_two_servers() {
    let (server, other) = (serve("kinds"), serve("kinds-other"));
    let folder = temp_dir("kinds-out");
    let json = folder.join("a.jsonl");
    let run = |args: &[&str]| {
        let common = ["--output", "4", "--min-repeats", "2", "--max-repeats", "2", "--ci", "99%"];
        let mut all = vec![server.url()];
        all.extend(common);
        all.extend(["--json", json.to_str().unwrap()]);
        all.extend(args);
        let out = bench(&all);
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code().unwrap(), lines(&json), words)
    };
    let (code, points, words) = run(&[
        "-c",
        "2",
        "--dataset",
        "shared-prefix",
        "--input",
        "100",
        "--groups",
        "1",
        "--requests",
        "6",
    ]);
    assert!(code != 3, "{words}");
    assert_eq!(points[0]["completed"], 12);
    assert!(
        points[0]["lockstep"]["cached_tokens"].as_u64().unwrap() >= 64 * 8,
        "prefix was shared"
    );

    let rate = ["--rate", "50", "--dataset", "sharegpt-like", "--requests", "10"];
    let (code, points, words) = run(&rate);
    assert!(code != 3 && points[0]["request_rate"] == 50.0, "{words}");

    let compared = ["-c", "2", "--input", "20", "--requests", "6", "--compare", other.url()];
    let (code, points, words) = run(&compared);
    assert!(code != 3, "{words}");
    assert_eq!(points.len(), 3, "two servers and their ratio");
    assert_eq!(points[2]["lockstep_comparison"]["ratios"]["output_throughput"]["count"], 2);
    assert_eq!((&points[0]["completed"], &points[1]["completed"]), (&12.into(), &12.into()));
    let shown = bench(&["show", json.to_str().unwrap()]);
    let words = String::from_utf8_lossy(&shown.stdout);
    assert!(words.contains(&format!("{} over {}", other.url(), server.url())), "{words}");
    assert!(words.contains("A 2") && words.contains("B 2"), "{words}");
}

#[test]
fn what_cannot_run_says_why_and_ends_with_3() {
    let refused = |args: &[&str], words: &str| {
        let out = bench(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(3) && said.contains(words), "{args:?}: {said}");
    };
    refused(&["https://a:1"], "http://HOST:PORT");
    refused(&["http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1");
    refused(&["--ci", "7"], "3% or 0.03");
    refused(&["--dataset", "chat"], "sharegpt-like");
    // Each of these once ran as something else than was asked.
    refused(&["-c", "4", "--requests", "2"], "-c 4 is never reached with --requests 2");
    refused(&["--min-repeats", "5", "--max-repeats", "2"], "--min-repeats 5 is more than");
    let shared = ["--dataset", "shared-prefix", "--prefix", "100", "--input", "4"];
    refused(&shared, "at most 3 would work");
    refused(&["--prefix", "2"], "--dataset shared-prefix");
    refused(&["http://a:1/?x=1"], "'http://a:1/' would work");
    refused(&["show", "/nowhere.jsonl"], "/nowhere.jsonl");
    let folder = temp_dir("refused");
    std::fs::write(folder.join("x"), "{}\n").unwrap();
    refused(&["show", folder.join("x").to_str().unwrap()], "bench_serving");
}
