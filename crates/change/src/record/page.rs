//! `index.html`: the decision with plots of before and after. One file; nothing is fetched.

use super::decision::{markdown, verdict};
use super::render::{self, escaped};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;color:#1c2330;background:#fff;overflow-wrap:anywhere}h1{font-size:1.5rem}h2{font-size:\
1.1rem;margin-top:2rem}a{color:#2563c9}.kept{color:#0a6b3d}.back{color:#b3261e}table{border-collapse:\
collapse;width:100%}th,td{border-bottom:1px solid #8884;padding:.3rem .8rem .3rem 0;text-align:left;\
vertical-align:top;overflow-wrap:normal}td:nth-child(2):last-child{overflow-wrap:anywhere}code{\
font-size:.9em}li{margin:.2rem 0}.plots{display:grid;\
grid-template-columns:repeat(auto-fit,minmax(17rem,1fr));gap:1.5rem}figure{margin:0}\
figcaption{font-weight:600;font-size:.95rem}svg{width:100%;height:auto}text{font:13px system-ui,\
sans-serif;fill:currentColor}.b{fill:#8a94a6;background:#8a94a6}.a{fill:#2563c9;background:#2563c9}\
line{stroke:currentColor}.key{display:inline-block;width:.7em;height:.7em;margin:0 .4em 0 1em}.key:\
first-child{margin-left:0}@media(prefers-color-scheme:dark){body{color:#dfe4ee;background:#12161f}\
.kept{color:#5fd39a}.back{color:#ff8a80}.a{fill:#6ea2ff;background:#6ea2ff}a{color:#8ab4ff}}\
@media(max-width:40rem){th,td{font-size:.85em;padding-right:.4rem}}";

/// Sizes of a plot, in the units of its view.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;

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
    p.push_str(&plots(whole));
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

/// The plots beside each other; nothing where nothing was measured.
fn plots(whole: &Value) -> String {
    let points = |v: &Value| v["points"].as_array().cloned().unwrap_or_default();
    let (before, after) = (points(&whole["baseline"]), points(&whole["after"]));
    if before.is_empty() {
        return String::new();
    }
    let mut p = String::from(
        "<p><span class=\"key b\"></span>before<span class=\"key a\"></span>after; by requests at \
         once</p><div class=\"plots\">",
    );
    for (name, label) in [
        ("output_throughput", "Output tokens a second"),
        ("median_e2e_latency_ms", "Median time of a request, ms"),
        ("p99_e2e_latency_ms", "99th percentile of it, ms"),
    ] {
        p.push_str(&plot(&before, &after, name, label));
    }
    p + "</div>"
}

/// Bars of before and after, by concurrency.
fn plot(before: &[Value], after: &[Value], name: &str, label: &str) -> String {
    let value = |p: &Value| p[name].as_f64().unwrap_or(0.0);
    let all = before.iter().chain(after).map(value);
    let most = all.fold(0.0, f64::max).max(1e-9);
    let group = WIDTH / before.len() as f64;
    let bar = (group / 3.0).min(44.0);
    let mut p = format!(
        "<figure><figcaption>{label}</figcaption><svg viewBox=\"0 -20 {WIDTH} {}\" role=\"img\" \
         aria-label=\"{label}\"><line x1=\"0\" x2=\"{WIDTH}\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>",
        HEIGHT + 40.0
    );
    for (i, b) in before.iter().enumerate() {
        let middle = group * (i as f64 + 0.5);
        let a = after.iter().find(|a| a["max_concurrency"] == b["max_concurrency"]);
        for (class, v, x) in
            [("b", Some(value(b)), middle - bar - 2.0), ("a", a.map(value), middle + 2.0)]
        {
            let Some(v) = v else { continue };
            let h = HEIGHT * v / most;
            let _ = write!(
                p,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{bar:.1}\" \
                 height=\"{h:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{v:.0}</text>",
                HEIGHT - h,
                x + bar / 2.0,
                HEIGHT - h - 4.0
            );
        }
        let _ = write!(
            p,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT + 16.0,
            b["max_concurrency"]
        );
    }
    p + "</svg></figure>"
}
