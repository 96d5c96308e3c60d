//! One page that needs nothing beside itself.

use super::plot::{Bar, bars, escape, timeline};
use super::repeat::{command, date};
use super::summary::summary;
use crate::run::{Answer, Conclusion, Finding, Slice};
use std::fmt::Write as _;

/// Pieces of evidence that are shown, at most.
const EVIDENCE_MAX: usize = 100;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}pre{background:#f5f5f2;padding:1em;overflow-x:auto;white-space:pre-wrap}\
svg{width:100%;background:#fafaf8}svg text{font-size:11px;text-anchor:middle;fill:#555}svg .left{text-anchor:start}\
svg .right{text-anchor:end}.good{fill:#4a8f6a}.bad{fill:#c0392b}.ok{fill:#4a8f6a}.wrong{fill:#d9a441}.corrupted{fill:#c0392b}\
.error,.timeout{fill:#7d5ba6}.refused,.aborted{fill:#999}details{margin:.6em 0}\
@media(prefers-color-scheme:dark){body{background:#1c1c1a;color:#ddd}pre,svg{background:#262624}svg text{fill:#aaa}}";

/// The page.
pub fn html(f: &Finding) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>lockstep check: {0}</title>\
         <style>{STYLE}</style><h1>{0}: {1} ({2})</h1><p>{3}, seed {4}, lockstep {5}. The same \
         again: <code>{6}</code></p><pre>{7}</pre>",
        verdict(f),
        escape(&f.url),
        escape(&f.model),
        date(f.began_unix_s),
        f.options.seed,
        env!("CARGO_PKG_VERSION"),
        escape(&command(f)),
        escape(&summary(f))
    );
    let mut section = |title: &str, words: &str, plot: String| {
        // Writing to a String cannot fail.
        let _ = write!(page, "<h2>{title}</h2><p>{words}</p>{plot}");
    };
    section(
        "Every answer",
        "When it was asked for, and how many requests were in flight. Damage is red, what is wrong \
         but plausible yellow, errors and timeouts violet.",
        timeline(&f.answers),
    );
    section(
        "Right answers by order of arrival",
        "Tenths of the run. A server that goes bad once its pool is warm falls here.",
        slices(&f.by_order(), "answers by order of arrival"),
    );
    section(
        "Right answers by requests in flight",
        "",
        slices(&f.by_in_flight(), "requests in flight"),
    );
    let known = format!("Known: {}. Heights are logarithms.", f.coverage.source.name());
    section("Steps by batch size", &known, coverage(f));
    evidence(&mut page, f);
    page.push_str("</html>\n");
    page
}

fn verdict(f: &Finding) -> String {
    let conclusion = f.conclude();
    let is_partial = conclusion == Conclusion::Clean && f.accepted_gap().is_some();
    format!("{}{}", conclusion.name(), if is_partial { " (partial coverage)" } else { "" })
}

fn slices(slices: &[Slice], across: &str) -> String {
    let bar = |s: &Slice| Bar {
        label: s.label.clone(),
        share: s.right as f64 / s.judged.max(1) as f64,
        text: format!("{}/{}", s.right, s.judged),
        is_bad: s.corrupted > 0,
    };
    bars(&slices.iter().map(bar).collect::<Vec<_>>(), across, "right of judged answers")
}

fn coverage(f: &Finding) -> String {
    let most = f.coverage.buckets.iter().map(|b| b.seen).max().unwrap_or(0).max(1) as f64;
    let shown = f.coverage.buckets.iter().filter(|b| b.is_required || b.seen > 0);
    let bar = |b: &crate::coverage::Bucket| Bar {
        label: b.rows.to_string(),
        // A logarithm: a bucket that was seen once must be seen in the plot.
        share: (1.0 + b.seen as f64).ln() / (1.0 + most).ln(),
        text: b.seen.to_string(),
        is_bad: b.is_required && b.seen == 0,
    };
    bars(&shown.map(bar).collect::<Vec<_>>(), "rows of the step", "steps or samples (logarithm)")
}

fn evidence(page: &mut String, f: &Finding) {
    let corrupted = f.corrupted();
    if corrupted.is_empty() {
        return;
    }
    let _ = write!(page, "<h2>Evidence</h2>");
    for a in corrupted.iter().take(EVIDENCE_MAX) {
        let _ = write!(
            page,
            "<details><summary>session {}, request {}, wave {}, {} in flight: {}</summary>\
             <pre>{}</pre></details>",
            a.session,
            a.step + 1,
            a.wave,
            a.in_flight,
            escape(&a.verdict.to_string()),
            escape(&transcript(a))
        );
    }
    if corrupted.len() > EVIDENCE_MAX {
        let _ = write!(page, "<p>And {} more.</p>", corrupted.len() - EVIDENCE_MAX);
    }
    let _ = write!(
        page,
        "<p>The JSON report replays them: <code>lockstep check --replay FILE URL</code>.</p>"
    );
}

fn transcript(a: &Answer) -> String {
    a.reply.as_ref().map_or_else(String::new, |r| r.transcript())
}
