//! `lockstep drill` as people and machines call it.

mod common;

use common::{lockstep, temp_dir};
use serde_json::Value;
use std::process::{Command, Output};

fn drill(args: &[&str]) -> Output {
    Command::new(lockstep()).arg("drill").args(args).output().unwrap()
}

#[test]
fn a_drill_reports_what_saw_it() {
    let out = drill(&["--only", "dropped-edge", "--runs", "2", "--seed", "3", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let [drill] = &report.as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&drill["name"], &drill["runs"]), (&"dropped-edge".into(), &2.into()));
    assert_eq!((&drill["detected"], &drill["clean_twin_alarms"]), (&2.into(), &0.into()));
    let caught = drill["caught_by"].as_array().unwrap();
    assert!(caught.contains(&"prover".into()), "{report}");
    assert!(drill["clean_twin_runs"].as_u64().unwrap() >= 2);
    let prover = &drill["layers"][0];
    assert_eq!((&prover["layer"], &prover["rate"]), (&"prover".into(), &1.0.into()));
}

/// `--markdown` once named `--runs 16` whatever was run, and the table dropped steps of zero.
#[test]
fn the_page_and_the_table_say_what_was_run() {
    let asked = ["--only", "dropped-edge", "--runs", "2", "--seed", "3"];
    let page = drill(&[&asked[..], &["--markdown"]].concat());
    let page = String::from_utf8(page.stdout).unwrap();
    let command = "`lockstep drill --runs 2 --seed 3 --only dropped-edge --markdown` (2 seeds";
    assert!(page.contains(command), "{page}");
    let row = page.lines().rfind(|l| l.starts_with("| `dropped-edge` |")).unwrap();
    let steps = row.split(" | ").nth(4).unwrap();
    let table = String::from_utf8(drill(&asked).stdout).unwrap();
    let row = table.lines().nth(1).unwrap();
    assert_eq!(row.split_whitespace().rev().nth(1), Some(steps), "{table}{page}");
}

#[test]
fn drills_are_listed_drawn_and_known_by_name() {
    let out = drill(&["--list", "--json"]);
    let list: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(list.as_array().unwrap().len() >= 20);
    assert_eq!(list.as_array().unwrap().last().unwrap()["name"], "overlap-race");
    let out = drill(&["--only", "no-such"]);
    assert_eq!(out.status.code(), Some(2));
    let words = String::from_utf8(out.stderr).unwrap();
    assert!(words.contains("no drill is called 'no-such'; there are: arena"), "{words}");
    let words = String::from_utf8(drill(&["overlap-rac"]).stderr).unwrap();
    assert!(words.contains("; did you mean 'overlap-race'? there are"), "{words}");
    let folder = temp_dir("drill");
    let only = "arena-reuse-by-issue-order";
    let out = drill(&["--only", only, "--svg", folder.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0));
    let picture = std::fs::read_to_string(folder.join(format!("{only}.svg"))).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("hazard"), "no hazard is drawn");
}

/// A small form of the demonstration: two sessions of the recall model at once.
#[test]
fn overlap_race_alters_answers_and_is_closed_as_shipped() {
    let out = drill(&["overlap-race", "--sessions", "2", "--one-in", "8", "--seed", "5", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let (bad, shipped) = (&report["packed_by_issue_order"], &report["as_shipped"]);
    let number = |v: &Value, key: &str| v[key].as_u64().unwrap_or_else(|| panic!("{key}: {v}"));
    assert!(number(bad, "altered") > 0 && number(bad, "overlapped_steps") > 0, "{report}");
    assert_ne!(bad["example"]["right"], bad["example"]["came"]);
    assert_eq!((number(shipped, "altered"), number(shipped, "failed")), (0, 0), "{report}");
    assert_eq!(number(shipped, "answers"), number(bad, "answers"));
    assert!(number(shipped, "overlapped_steps") > 0, "the shipped plan overlaps as well");
    let most = report["as_shipped_rate_below"].as_f64().unwrap();
    assert!((1.0 - most).powf(number(shipped, "answers") as f64) - 0.05 < 1e-9, "{most}");
    let first = report["prover"]["first"][0].as_str().unwrap();
    assert!(first.starts_with("aliasing: ") && first.contains(".index_"), "{first}");
    let words = drill(&["overlap-race", "--only", "dropped-edge"]);
    assert_eq!(words.status.code(), Some(2));
}

#[test]
fn the_published_page_has_the_demonstration() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/drills.md");
    let page = std::fs::read_to_string(path).unwrap();
    let remedy = "lockstep drill overlap-race --sessions 24 --markdown >> docs/drills.md";
    assert!(page.contains("`lockstep drill overlap-race --sessions "), "{remedy}");
    assert!(page.contains("| as shipped |"), "{remedy}");
}

/// `--markdown --svg` once drew the pictures and dropped the page.
#[test]
fn what_excludes_each_other_is_refused_and_pictures_are_json_too() {
    for flags in [["--markdown", "--svg"], ["--list", "--svg"]] {
        let out = drill(&[flags[0], flags[1], "folder"]);
        assert_eq!(out.status.code(), Some(2), "{flags:?}");
        assert!(String::from_utf8(out.stderr).unwrap().contains("cannot be used with"));
    }
    let folder = temp_dir("pictures");
    let out = drill(&["--only", "dropped-edge", "--json", "--svg", folder.to_str().unwrap()]);
    let list: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(list[0]["name"], "dropped-edge");
    assert!(std::fs::exists(list[0]["path"].as_str().unwrap()).unwrap());
}
