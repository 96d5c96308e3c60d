//! The Grafana dashboard against a running server: every name that it asks for is exported, and
//! every name that is exported is on it.

mod common;

use common::serving::Serving;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Metrics that are exported and on no panel, with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[];

const DASHBOARD: &str = include_str!("../../../deploy/grafana/lockstep.json");

/// A name of an expression with the labels that are matched on it.
#[derive(Debug, PartialEq, Eq)]
struct Used {
    name: String,
    labels: Vec<String>,
}

/// Words of the language that are no metrics where no parenthesis follows them.
const WORDS: &[&str] = &["and", "or", "unless", "bool", "offset", "inf", "nan"];
/// Words that are followed by a list of labels in parentheses.
const LISTS: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// True where a list of labels follows: what stands before it is an aggregation.
fn is_list(text: &str) -> bool {
    let after = LISTS[..2].iter().find_map(|word| text.strip_prefix(word));
    after.is_some_and(|after| after.trim_start().starts_with('('))
}

/// The metrics of a PromQL expression: identifiers that are no function, no keyword and no label.
fn metrics(expr: &str) -> Vec<Used> {
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let end = rest[1..].find('"').expect("a string ends");
            rest = &rest[end + 2..];
        } else if c == '[' {
            rest = &rest[rest.find(']').expect("a range ends")..];
        } else if c.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| is_name(c) || c == '.');
        } else if is_name(c) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after.trim_start();
            if LISTS.contains(&word) {
                rest = &rest[rest.find(')').expect("a list ends")..];
            } else if !rest.starts_with('(') && !is_list(rest) && !WORDS.contains(&word) {
                let (labels, after) = selector(rest);
                found.push(Used { name: word.into(), labels });
                rest = after;
            }
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    found
}

/// The labels of a selector at the start of `text`, and what follows it.
fn selector(text: &str) -> (Vec<String>, &str) {
    let Some(inside) = text.strip_prefix('{') else { return (Vec::new(), text) };
    let (mut labels, mut rest) = (Vec::new(), inside);
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return (labels, after);
        }
        let end = rest.find(|c| !is_name(c)).expect("a matcher");
        labels.push(rest[..end].into());
        let value = &rest[rest.find('"').expect("a value") + 1..];
        rest = &value[value.find('"').expect("the value's end") + 1..];
    }
}

/// Every expression of the dashboard, with where it stands.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for panel in list(&dashboard["panels"]) {
        for target in list(&panel["targets"]) {
            found.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    for note in list(&dashboard["annotations"]["list"]) {
        found.push((text(&note["name"]), text(&note["expr"])));
    }
    for variable in list(&dashboard["templating"]["list"]) {
        // label_values(METRIC, LABEL): the second one is no metric.
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        if let Some(inside) = query.strip_prefix("label_values(") {
            let metric = inside.rsplit_once(',').expect("two arguments").0;
            found.push((text(&variable["name"]), metric.to_owned()));
        }
    }
    found
}

/// `{name of a series: the labels that it has}`.
fn exported(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap().to_owned();
        let labels = selector(&line[name.len()..]).0;
        found.entry(name).or_default().extend(labels);
    }
    found
}

#[test]
fn names_are_told_from_functions_labels_and_words() {
    let names =
        |expr: &str| -> Vec<String> { metrics(expr).into_iter().map(|used| used.name).collect() };
    let ratio = "sum by (le, kind) (rate(a_bucket{x=\"b c\",y=~\"$d\"}[$__rate_interval])) / 2.5e3";
    assert_eq!(names(ratio), ["a_bucket"]);
    assert_eq!(metrics(ratio)[0].labels, ["x", "y"]);
    assert_eq!(names("a > 0 and on (instance) b:c unless (d offset 5m)"), ["a", "b:c", "d"]);
    assert_eq!(names("histogram_quantile(0.99, sum(x) without (le))"), ["x"]);
}

#[test]
fn the_dashboard_and_the_server_name_the_same_metrics() {
    let flags = ["--graph-max-bs", "1", "--max-running-requests", "2", "--audit-rate", "1"];
    let server = Serving::start("dashboard", &flags);
    let body = json!({"prompt": "The capital of France is", "n": 2, "max_tokens": 3});
    assert!(server.post("/v1/completions", &body).0.starts_with("HTTP/1.0 200"));
    let exported = exported(&server.get("/metrics"));
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut shown = BTreeSet::new();
    for (place, expr) in expressions(&dashboard) {
        let used = metrics(&expr);
        assert!(!used.is_empty(), "'{place}' asks for nothing: {expr}");
        for Used { name, labels } in used {
            let has = exported.get(&name).unwrap_or_else(|| panic!("'{place}': no {name}"));
            for label in labels.iter().filter(|l| *l != "instance") {
                assert!(has.contains(label), "'{place}': {name} has no label {label}");
            }
            shown.insert(name);
        }
    }
    let ours = exported.keys().filter(|name| name.starts_with("lockstep_"));
    let family = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let shown_families: BTreeSet<String> = shown.iter().map(|name| family(name)).collect();
    let left_out: BTreeSet<&str> = NOT_SHOWN.iter().map(|(name, _)| *name).collect();
    let missing: Vec<&String> = ours
        .filter(|name| !shown_families.contains(&family(name)))
        .filter(|name| !left_out.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "exported and on no panel: {missing:?}");
    for name in left_out {
        assert!(exported.contains_key(name), "{name} is left out and not exported");
        assert!(!shown.contains(name), "{name} is left out and shown");
    }
}

#[test]
fn panels_have_their_own_place_and_use_the_chosen_data_source() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let mut refs = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(refs.insert(target["refId"].as_str().unwrap()), "{title}: refId twice");
            for used in metrics(target["expr"].as_str().unwrap()) {
                assert_eq!(used.labels[..2], ["model_name", "instance"], "{title}");
            }
        }
    }
    assert!(dashboard["id"].is_null(), "an id of one Grafana means nothing to another");
}
