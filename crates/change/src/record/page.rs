//! `index.html`: the decision with plots of before and after. One file; nothing is fetched.

use super::decision::{markdown, verdict};
use super::render::{self, escaped};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;color:#1c2330;background:#fff;overflow-wrap:anywhere}h1{font-size:1.5rem}h2{font-size:\
1.1rem;margin-top:2rem}a{color:#2563c9}.kept{color:#0a6b3d}.back{color:#b3261e}svg{width:100%;height:\
auto;max-width:44rem}table{border-collapse:collapse;width:100%}td{border-bottom:1px solid #8884;\
padding:.3rem .6rem .3rem 0;vertical-align:top}code{font-size:.9em}text{font:12px system-ui,\
sans-serif;fill:currentColor}.b{fill:#8a94a6}.a{fill:#2563c9}@media(prefers-color-scheme:dark){body\
{color:#dfe4ee;background:#12161f}.kept{color:#5fd39a}.back{color:#ff8a80}.a{fill:#6ea2ff}a{color:\
#8ab4ff}}";

/// The page. Writing to a String cannot fail.
pub fn html(whole: &Value) -> String {
    let text = markdown(whole);
    let title = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
    let verdict = verdict(whole);
    let class = if verdict.starts_with("Kept") { "kept" } else { "back" };
    let mut p = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(
        p,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>",
        escaped(&title)
    );
    let _ = write!(p, "<style>{STYLE}</style><h1>{}</h1>", escaped(&title));
    let _ = write!(p, "<p class=\"{class}\"><strong>{}</strong></p>", escaped(&verdict));
    for (name, label) in [
        ("output_throughput", "Output tokens a second, by concurrency"),
        ("median_e2e_latency_ms", "Median time of a request in ms, by concurrency"),
        ("p99_e2e_latency_ms", "99th percentile of a request's time in ms, by concurrency"),
    ] {
        p.push_str(&plot(whole, name, label));
    }
    // Title and verdict stand above the plots already.
    let rest = text.find("| | |").map_or("", |at| &text[at..]);
    let _ = write!(p, "{}{}</html>", links(whole), render::html(rest));
    p
}

/// The pages that lie beside this one.
fn links(whole: &Value) -> String {
    let all = [
        ("check", "check.html", "every answer of the corruption gate"),
        ("baseline", "bench-before.html", "the load before"),
        ("after", "bench-after.html", "the load after"),
    ];
    let there = all.iter().filter(|(name, ..)| whole[*name].is_object());
    let list: Vec<String> =
        there.map(|(_, file, words)| format!("<a href=\"{file}\">{words}</a>")).collect();
    if list.is_empty() {
        String::new()
    } else {
        format!("<p>Beside this page: {}.</p>", list.join(", "))
    }
}

/// Bars of before and after, by concurrency; nothing where nothing was measured.
fn plot(whole: &Value, name: &str, label: &str) -> String {
    let points = |v: &Value| v["points"].as_array().cloned().unwrap_or_default();
    let (before, after) = (points(&whole["baseline"]), points(&whole["after"]));
    if before.is_empty() {
        return String::new();
    }
    let value = |p: &Value| p[name].as_f64().unwrap_or(0.0);
    let all = before.iter().chain(&after).map(value);
    let most = all.fold(0.0, f64::max).max(1e-9);
    let (width, height, foot) = (700.0, 220.0, 40.0);
    let group = width / before.len() as f64;
    let bar = (group / 3.0).min(60.0);
    let total = height + foot;
    let mut p = format!(
        "<h2>{label}</h2><svg viewBox=\"0 -20 {width} {}\" role=\"img\" aria-label=\"{label}\">",
        total + 20.0
    );
    for (i, b) in before.iter().enumerate() {
        let middle = group * (i as f64 + 0.5);
        let a = after.iter().find(|a| a["max_concurrency"] == b["max_concurrency"]);
        for (class, v, x) in
            [("b", Some(value(b)), middle - bar - 2.0), ("a", a.map(value), middle + 2.0)]
        {
            let Some(v) = v else { continue };
            let h = height * v / most;
            let _ = write!(
                p,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{bar:.1}\" \
                 height=\"{h:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{v:.0}</text>",
                height - h,
                x + bar / 2.0,
                height - h - 4.0
            );
        }
        let _ = write!(
            p,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height + 16.0,
            b["max_concurrency"]
        );
    }
    let y = height + 34.0;
    let _ = write!(
        p,
        "<rect class=\"b\" x=\"0\" y=\"{:.0}\" width=\"10\" height=\"10\"/><text x=\"14\" y=\"{y}\">\
         before</text><rect class=\"a\" x=\"80\" y=\"{:.0}\" width=\"10\" height=\"10\"/><text \
         x=\"94\" y=\"{y}\">after</text></svg>",
        y - 9.0,
        y - 9.0
    );
    p
}
