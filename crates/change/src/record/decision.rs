//! `decision.md`: what, why, prediction, evidence, decision, how to undo.

use crate::clock::time;
use serde_json::Value;
use std::fmt::Write;

/// The facts of the last line of the journal with this word.
pub fn facts<'a>(whole: &'a Value, word: &str) -> &'a Value {
    let lines = whole["journal"].as_array().map_or(&[][..], Vec::as_slice);
    lines.iter().rev().find(|l| l["word"] == word).map_or(&Value::Null, |l| &l["facts"])
}

fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().into_iter().flatten()
}

/// A value without the quotes of a text.
fn plain(v: &Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), str::to_owned)
}

/// Bytes, for a person.
fn mib(v: &Value) -> String {
    let one = |b: u64| format!("{:.1} MiB", b as f64 / f64::from(1 << 20));
    v.as_u64().map_or_else(|| "unknown".into(), one)
}

/// The decision in one line.
pub fn verdict(whole: &Value) -> String {
    let closed = facts(whole, "closed");
    if !closed.is_null() {
        let reasons: Vec<String> = list(&closed["reasons"]).map(plain).collect();
        let was = plain(&closed["was"]);
        return format!("Closed by hand, {was}: {}.", reasons.join("; "));
    }
    let back = facts(whole, "rolled_back");
    if !back.is_null() {
        let reasons: Vec<String> = list(&back["reasons"]).map(plain).collect();
        return format!("Rolled back: {}.", reasons.join("; "));
    }
    if facts(whole, "kept").is_null() { "Not over.".into() } else { "Kept.".into() }
}

/// The page. Writing to a String cannot fail.
pub fn markdown(whole: &Value) -> String {
    let mut p = String::new();
    let proposed = facts(whole, "proposed");
    let number = &proposed["number"];
    let _ = writeln!(p, "# Change {number}: {}\n\n{}\n", plain(&proposed["title"]), verdict(whole));
    let why = plain(&proposed["why"]);
    let why = if why.is_empty() { "(not said)".into() } else { why };
    let (server, build) = (&proposed["server"], &proposed["build"]);
    let _ = writeln!(p, "| | |\n|---|---|\n| why | {} |", why.replace('|', "/"));
    let _ =
        writeln!(p, "| target | {} ({}) |", plain(&proposed["target"]), plain(&proposed["url"]));
    let role = server["role"].as_str().map_or(String::new(), |r| format!(", {r} worker"));
    let _ = writeln!(
        p,
        "| server | {} {}, {}{role} |",
        plain(&server["kind"]),
        plain(&server["version"]),
        plain(&server["model"])
    );
    let _ = writeln!(
        p,
        "| changed by | lockstep {}, program SHA-256 {}, tree {} |\n",
        plain(&build["version"]),
        plain(&build["sha256"]),
        plain(&build["tree"])
    );
    prediction(&mut p, &whole["prediction"]);
    evidence(&mut p, whole);
    let _ = writeln!(p, "## Decision\n\n{}\n", verdict(whole));
    let kept = facts(whole, "kept");
    if kept["config"]["written"] == false {
        let _ = writeln!(
            p,
            "It is not written to a settings file: {}. The next start has the old setting.\n",
            plain(&kept["config"]["why"])
        );
    }
    let _ = writeln!(p, "## Undo\n\n{}\n", undo(whole));
    let _ = writeln!(p, "## Journal\n\n| line | time | says |\n|---|---|---|");
    for l in list(&whole["journal"]) {
        let at = time(l["unix_ms"].as_u64().unwrap_or(0));
        let _ =
            writeln!(p, "| {} | {at} | {} {} |", l["seq"], plain(&l["kind"]), plain(&l["word"]));
    }
    p
}

fn undo(whole: &Value) -> String {
    let number = &facts(whole, "proposed")["number"];
    if !facts(whole, "closed").is_null() {
        return "Whether the old setting runs or the new one was not known when it was closed: \
                look at the server."
            .into();
    }
    if facts(whole, "kept").is_null() {
        return "There is nothing to undo: the old setting runs.".into();
    }
    format!(
        "`lockstep change undo {number}`: the old value as a change of its own, with its own gates."
    )
}

/// What each new bucket takes, where that is known, in the order of their sizes.
fn per_bucket(v: &Value) -> Option<String> {
    let mut all: Vec<(u32, &Value)> = v["memory"]["per_bucket_bytes"]
        .as_object()?
        .iter()
        .filter_map(|(n, b)| Some((n.parse().ok()?, b)))
        .collect();
    all.sort_unstable_by_key(|(n, _)| *n);
    let all: Vec<String> = all.iter().map(|(n, b)| format!("decode-{n} {}", mib(b))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn prediction(p: &mut String, v: &Value) {
    let _ = writeln!(p, "## Prediction\n\n| setting | before | after |\n|---|---|---|");
    for s in list(&v["settings"]) {
        let source = s["source"].as_str().map_or(String::new(), |s| format!(" ({s})"));
        let from = plain(&s["from"]);
        let _ = writeln!(p, "| `{}` | {from}{source} | {} |", plain(&s["name"]), plain(&s["to"]));
    }
    let (m, d) = (&v["memory"], &v["downtime"]);
    let fresh: Vec<String> = list(&v["buckets"]["new"]).map(plain).collect();
    let fresh = if fresh.is_empty() { "none".into() } else { fresh.join(", ") };
    let _ = writeln!(p, "\n- New buckets: {fresh}");
    if let Some(all) = per_bucket(v) {
        let _ = writeln!(p, "- Of the shared arena: {all}");
    }
    let _ = writeln!(
        p,
        "- Memory: {} while staged, {} more kept, {} free. Method: {}. Past error: {}.",
        mib(&m["staging_bytes"]),
        mib(&m["kept_bytes"]),
        mib(&m["free_bytes"]),
        plain(&m["method"]),
        plain(&m["past_error"])
    );
    let seconds = d["seconds"].as_f64().map_or("unknown".into(), |s| format!("{s:.1} s"));
    let _ = writeln!(p, "- Downtime: {seconds} ({})", plain(&d["method"]));
    for f in list(&v["findings"]) {
        let (id, words, source) = (plain(&f["id"]), plain(&f["words"]), plain(&f["source"]));
        let _ = writeln!(p, "- {id}: {words} (source: {source})");
    }
    p.push('\n');
}

fn evidence(p: &mut String, whole: &Value) {
    let _ = writeln!(p, "## Evidence\n");
    let proven = facts(whole, "proven");
    if let Some(e) = proven["evidence"].as_object() {
        let all: Vec<String> =
            e.iter().map(|(k, v)| format!("{} {v}", k.replace('_', " "))).collect();
        let _ = writeln!(
            p,
            "- Staged generation: {}; {}.",
            all.join(", "),
            mib(&proven["staging_bytes"])
        );
    }
    let flipped = facts(whole, "flipped");
    if let Some(gap) = flipped["gap"].as_object() {
        let all: Vec<String> =
            gap.iter().map(|(k, v)| format!("{} {v}", k.replace('_', " "))).collect();
        let _ = writeln!(p, "- Between two steps: {}.", all.join(", "));
    }
    if let Some(s) = flipped["downtime_seconds"].as_f64() {
        let _ = writeln!(p, "- Downtime: {s:.2} s.");
    }
    for c in list(&whole["verdict"]["criteria"]) {
        let sign = if c["passed"] == true { "passed" } else { "FAILED" };
        let _ = writeln!(p, "- {sign} {}: {}", plain(&c["criterion"]), plain(&c["words"]));
    }
    measured(p, whole);
    p.push('\n');
}

/// The load before and after, and where the records of gate and load lie.
fn measured(p: &mut String, whole: &Value) {
    if whole["check"].is_object() {
        let _ =
            writeln!(p, "- The corruption gate's finding: [check.html](check.html), check.json.");
    }
    let points = |v: &Value| list(&v["points"]).cloned().collect::<Vec<Value>>();
    let (before, after) = (points(&whole["baseline"]), points(&whole["after"]));
    if before.is_empty() {
        return;
    }
    let _ = writeln!(
        p,
        "- The same load before and after: [bench-before.html](bench-before.html){}.",
        if after.is_empty() {
            ", not measured after"
        } else {
            ", [bench-after.html](bench-after.html)"
        }
    );
    let head = "| concurrency | tokens/s before | after | p99 ms before | after |";
    let _ = writeln!(p, "\n{head}\n|---|---|---|---|---|");
    for b in &before {
        let a = after.iter().find(|a| a["max_concurrency"] == b["max_concurrency"]);
        let a = a.unwrap_or(&Value::Null);
        let number = |v: &Value| v.as_f64().map_or("-".into(), |n| format!("{n:.1}"));
        let rate = |v: &Value| {
            let half = v["lockstep"]["output_throughput"]["half_width"].as_f64();
            half.map_or(String::new(), |h| format!(" ± {h:.1}"))
        };
        let _ = writeln!(
            p,
            "| {} | {}{} | {}{} | {} | {} |",
            b["max_concurrency"],
            number(&b["output_throughput"]),
            rate(b),
            number(&a["output_throughput"]),
            rate(a),
            number(&b["p99_e2e_latency_ms"]),
            number(&a["p99_e2e_latency_ms"])
        );
    }
}
