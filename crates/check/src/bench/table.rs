//! Points for people: a short table, and what must be said beside it.

use super::point::{Extra, Point};
use super::stats::{Ratio, Summary};
use super::sweep::{Compared, Pair};
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

/// The servers, in the order in which they come.
pub(super) fn servers(points: &[Point]) -> Vec<&str> {
    let mut urls: Vec<&str> = Vec::new();
    for point in points {
        if !urls.contains(&point.url.as_str()) {
            urls.push(&point.url);
        }
    }
    urls
}

/// The letter of a server.
pub(super) fn letter(at: usize) -> String {
    match u8::try_from(at).ok().filter(|at| *at < 26) {
        Some(at) => char::from(b'A' + at).to_string(),
        None => format!("#{}", at + 1),
    }
}

/// How a point is named beside others: its load, with its server's letter where there are several.
pub(super) fn name(point: &Point, servers: &[&str]) -> String {
    match servers.iter().position(|url| *url == point.url).filter(|_| servers.len() > 1) {
        Some(at) => format!("{} {}", letter(at), point.load()),
        None => point.load(),
    }
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

/// Columns of [`HEAD`] that stand in the first block of the table; the times are the second's, so
/// that neither is wider than a terminal of 80 columns.
const RATES: [usize; 7] = [0, 1, 2, 3, 8, 9, 10];
const TIMES: [usize; 5] = [0, 4, 5, 6, 7];

/// The table, in two blocks of a line a point.
pub fn table(points: &[Point]) -> String {
    let servers = servers(points);
    let named = |p: &Point| {
        let mut cells = cells(p).map(|c| c.replace(" / ", "/"));
        cells[0] = name(p, &servers);
        cells
    };
    let rows: Vec<[String; 11]> = points.iter().map(named).collect();
    let mut text = String::new();
    for columns in [&RATES[..], &TIMES[..]] {
        block(&mut text, &rows, columns);
        text.push('\n');
    }
    if servers.len() > 1 {
        for (at, url) in servers.iter().enumerate() {
            let _ = writeln!(text, "{}: {url}", letter(at));
        }
    }
    text.push_str(
        "tok/s: output tokens a second over whole runs, with the 95% interval\n\
         steady: the same while the load was as asked; one request: 1000 / median TPOT\n\
         times: p50/p90/p99\n",
    );
    text
}

fn block(text: &mut String, rows: &[[String; 11]], columns: &[usize]) {
    let width = |at: &usize| {
        let cell = rows.iter().map(|r| r[*at].chars().count()).max().unwrap_or(0);
        cell.max(HEAD[*at].len())
    };
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let mut line = |cell: &dyn Fn(usize) -> String| {
        for (at, width) in columns.iter().zip(&widths) {
            let _ = write!(text, "{:>width$}  ", cell(*at));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(&|at| HEAD[at].to_owned());
    rows.iter().for_each(|row| line(&|at| row[at].clone()));
}

/// What a reader must know of points beside their figures. Whether an interval is narrow enough is
/// asked of the ratio of two that were measured in turns, not of each.
pub fn notes(points: &[Point], pairs: &[Pair]) -> Vec<String> {
    let servers = servers(points);
    let is_paired = |p: &Point| pairs.iter().any(|(both, _)| both.contains(p));
    points.iter().flat_map(|p| notes_of(p, &name(p, &servers), is_paired(p))).collect()
}

fn notes_of(point: &Point, load: &str, is_paired: bool) -> Vec<String> {
    let mut notes = Vec::new();
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
    if !e.is_conclusive && !is_paired {
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

/// The client's own cost, in a line a point.
pub fn overhead(points: &[Point]) -> Vec<String> {
    let servers = servers(points);
    points.iter().filter_map(|p| overhead_of(p, &name(p, &servers))).collect()
}

fn overhead_of(point: &Point, load: &str) -> Option<String> {
    let e = point.extra.as_ref()?;
    let cpu = e
        .client_cpu_us_per_token
        .map_or("unknown here".into(), |c| format!("{} us of processor a token", figure(c)));
    let lag = &e.client_lag_ms;
    Some(format!(
        "{load}: client {cpu}, event loop late by {} ms (p50), {} ms (p99); {} tokens a chunk",
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
    let doubt = if c.is_conclusive {
        String::new()
    } else {
        let found = match c.output_throughput.relative() {
            r if r.is_finite() => format!("is ±{:.1}%", 100.0 * r),
            _ => "has one pair or none behind it".to_owned(),
        };
        let asked = points[0].extra.as_ref().map_or(0.0, |e| e.ci_asked);
        format!(
            "  INCONCLUSIVE: the interval of the first ratio {found}, asked was ±{:.1}%\n",
            100.0 * asked
        )
    };
    format!(
        "{} over {}, load {}, {} pairs of runs in turns:\n{}{}{}{doubt}",
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
    use crate::bench::point::{Latencies, Totals};
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
        let notes = notes(&[point], &[]).join("\n");
        for words in ["INCONCLUSIVE", "not as long as asked", "2 were refused", "429"] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }
    fn of(url: &str, mean: f64) -> Point {
        let runs = [mean, 1.4 * mean];
        let extra = Extra { output_throughput: Interval::of(&runs), ..Extra::default() };
        let long = Summary::of(&mut [11_234.0, 45_678.0, 56_789.0]);
        let short = Summary::of(&mut [123.0, 456.0, 1234.0]);
        Point {
            url: url.into(),
            max_concurrency: Some(1000),
            totals: Totals { output_throughput: mean, completed: 99_999, ..Totals::default() },
            latencies: Latencies { ttft: long.clone(), tpot: short.clone(), itl: short, e2e: long },
            extra: Some(extra),
            ..Point::default()
        }
    }

    /// Rows of two servers once looked alike, and each was called inconclusive for itself.
    #[test]
    fn rows_of_two_servers_are_named_and_the_ratio_alone_is_judged() {
        let points = [of("http://a:1", 12_345.0), of("http://b:2", 99.0)];
        let ratio = Ratio::of(&[1.0, 1.5]);
        let compared_to = Compared {
            output_throughput: ratio,
            mean_ttft: ratio,
            mean_tpot: ratio,
            is_conclusive: false,
        };
        let pairs = [(points.clone(), compared_to)];
        let lines = table(&points);
        assert_eq!(lines.lines().filter(|l| l.contains("A 1000")).count(), 2, "{lines}");
        assert!(lines.contains("B 1000") && lines.contains("\nB: http://b:2\n"), "{lines}");
        assert!(lines.lines().all(|l| l.chars().count() <= 80), "{lines}");
        assert_eq!(notes(&points, &pairs), [""; 0]);
        let alone = notes(&points, &[]);
        assert!(alone[0].starts_with("A 1000: INCONCLUSIVE"), "{alone:?}");
        assert!(compared(&points, &compared_to).contains("INCONCLUSIVE"));
    }
}
