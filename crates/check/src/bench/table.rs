//! Points for people: a short table, and what must be said beside it.

use super::point::{Extra, Point};
use super::stats::{Ratio, Summary};
use super::sweep::Compared;
use std::fmt::Write as _;

/// A rate or a time with three digits that mean something.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn three(s: &Summary) -> String {
    format!("{} / {} / {}", figure(s.p50), figure(s.p90), figure(s.p99))
}

/// Output tokens a second with the interval, where there is one.
pub(super) fn throughput(point: &Point) -> String {
    let mean = figure(point.totals.output_throughput);
    let interval = point.extra.as_ref().map(|e| e.output_throughput);
    match interval.filter(|i| i.half_width.is_some()) {
        Some(i) => format!("{mean} ±{:.1}%", 100.0 * i.relative()),
        None => mean,
    }
}

/// The columns of the table.
pub(super) const HEAD: [&str; 11] = [
    "load",
    "tok/s",
    "steady",
    "one request",
    "TTFT ms",
    "ITL ms",
    "TPOT ms",
    "e2e ms",
    "done",
    "refused",
    "errors",
];

/// A point's cells under [`HEAD`].
pub(super) fn cells(point: &Point) -> [String; 11] {
    let own = point.extra.as_ref();
    let steady = own.and_then(|e| e.steady_output_throughput);
    let count = |f: fn(&Extra) -> u64| own.map_or("-".into(), |e| f(e).to_string());
    let l = &point.latencies;
    [
        point.load(),
        throughput(point),
        steady.map_or("-".into(), |s| figure(s.mean)),
        own.map_or("-".into(), |e| figure(e.request_tokens_per_s)),
        three(&l.ttft),
        three(&l.itl),
        three(&l.tpot),
        three(&l.e2e),
        point.totals.completed.to_string(),
        count(|e| e.refused),
        count(|e| e.errors + e.timeouts),
    ]
}

/// The table, a line a point.
pub fn table(points: &[Point]) -> String {
    let rows: Vec<[String; 11]> = points.iter().map(cells).collect();
    let width = |at: usize| {
        let cell = rows.iter().map(|r| r[at].chars().count()).max().unwrap_or(0);
        cell.max(HEAD[at].len())
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    let mut row = |cells: &[String]| {
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "{cell:>width$}  ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    row(&HEAD.map(str::to_owned));
    rows.iter().for_each(|r| row(r));
    text.push_str("tok/s: output tokens a second, whole runs, 95% interval; steady: while the load was as asked\n");
    text.push_str("one request: 1000 / median TPOT; times: p50 / p90 / p99\n");
    text
}

/// What a reader must know of a point beside its figures.
pub fn notes(point: &Point) -> Vec<String> {
    let mut notes = Vec::new();
    let load = point.load();
    if let Some(g) = &point.goodput {
        let limits: Vec<String> =
            g.goodput_slos_ms.iter().map(|(name, ms)| format!("{name} <= {ms} ms")).collect();
        notes.push(format!(
            "{load}: goodput {} requests/s, {:.1}% of all sent kept {}",
            figure(g.request_goodput),
            100.0 * g.slo_attainment,
            limits.join(", "),
        ));
    }
    let Some(e) = &point.extra else { return notes };
    if !e.is_conclusive {
        let found = match e.output_throughput.half_width {
            Some(_) => format!("is ±{:.1}%", 100.0 * e.output_throughput.relative()),
            None => "has one run or none behind it".to_owned(),
        };
        notes.push(format!(
            "{load}: INCONCLUSIVE: the interval of tok/s {found} after {} runs, asked was ±{:.1}%; \
             a quieter machine, --requests or --max-repeats would narrow it",
            e.output_throughput.count,
            100.0 * e.ci_asked,
        ));
    }
    if e.output_unlike > 0 {
        notes.push(format!(
            "{load}: {} of {} answers are not as long as asked (mean {} tokens, asked {}): the \
             server ends them on its own",
            e.output_unlike,
            point.totals.completed,
            figure(e.output_mean),
            figure(e.output_asked_mean),
        ));
    }
    if e.input_asked_mean > 0.0 && (e.input_mean / e.input_asked_mean - 1.0).abs() > 0.005 {
        notes.push(format!(
            "{load}: prompts came out at {} tokens, asked were {}",
            figure(e.input_mean),
            figure(e.input_asked_mean),
        ));
    }
    if e.refused + e.errors + e.timeouts > 0 {
        notes.push(format!(
            "{load}: of {} requests {} were refused, {} timed out, {} failed: {}",
            e.sent,
            e.refused,
            e.timeouts,
            e.errors,
            e.failures.join("; "),
        ));
    }
    if e.late_p99_ms > 100.0 || e.client_lag_ms.p99 > 20.0 {
        notes.push(format!(
            "{load}: this client was late (requests by {} ms, its event loop by {} ms at p99), so \
             times are too long by as much; give it a core of its own",
            figure(e.late_p99_ms),
            figure(e.client_lag_ms.p99),
        ));
    }
    notes
}

/// The client's own cost, in a line.
pub fn overhead(point: &Point) -> Option<String> {
    let e = point.extra.as_ref()?;
    let cpu = e
        .client_cpu_us_per_token
        .map_or("unknown here".into(), |c| format!("{} us of processor a token", figure(c)));
    let lag = &e.client_lag_ms;
    Some(format!(
        "{}: client {cpu}, event loop late by {} ms (p50), {} ms (p99); {} tokens a chunk",
        point.load(),
        figure(lag.p50),
        figure(lag.p99),
        figure(e.tokens_per_chunk),
    ))
}

/// Two servers at one load, in a line a figure.
pub fn compared(points: &[Point; 2], c: &Compared) -> String {
    let row = |name: &str, r: &Ratio| {
        let ends = match (r.low, r.high) {
            (Some(low), Some(high)) => format!(" (95%: {low:.3} to {high:.3})"),
            _ => String::new(),
        };
        format!("  {name} {:.3}{ends}\n", r.ratio)
    };
    format!(
        "{} over {}, load {}, {} pairs of runs in turns:\n{}{}{}",
        points[1].url,
        points[0].url,
        points[0].load(),
        c.output_throughput.count,
        row("tok/s    ", &c.output_throughput),
        row("mean TTFT", &c.mean_ttft),
        row("mean TPOT", &c.mean_tpot),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Interval;

    #[test]
    fn the_table_names_what_it_shows_and_the_notes_what_is_wrong() {
        let extra = Extra {
            output_throughput: Interval::of(&[90.0, 110.0]),
            ci_asked: 0.03,
            sent: 9,
            refused: 2,
            failures: vec!["refused (429): full".into()],
            output_unlike: 1,
            ..Extra::default()
        };
        let point = Point { max_concurrency: Some(8), extra: Some(extra), ..Point::default() };
        let lines = table(core::slice::from_ref(&point));
        assert!(lines.lines().next().unwrap().contains("tok/s") && lines.contains("±127.1%"));
        let notes = notes(&point).join("\n");
        for words in ["INCONCLUSIVE", "not as long as asked", "2 were refused", "429"] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }
}
