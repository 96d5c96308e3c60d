//! Points as JSON lines, one a load, and CSV: the fields of SGLang's `bench_serving` and, under
//! `lockstep`, what it has no name for.

use super::point::{Goodput, Latencies, Point, Totals};
use super::stats::Summary;
use super::sweep::{Compared, Pair};
use core::fmt;
use serde_json::{Map, Value, json};

/// Bytes of a file that is shown, at most.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Lines of it.
const POINTS_MAX: usize = 10_000;

/// SGLang's names of the four times.
const TIMES: [&str; 4] = ["ttft", "tpot", "itl", "e2e_latency"];

/// Why a file is no benchmark's.
#[derive(Debug)]
pub enum ReadError {
    /// Not JSON.
    Json { line: usize, why: serde_json::Error },
    /// JSON, without a benchmark's fields.
    Fields { line: usize },
    /// A comparison that does not follow the two loads that it compares.
    Comparison { line: usize },
    /// Nothing in it, or far too much.
    Count { points: usize },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Json { line, why } => write!(f, "line {line} is not JSON: {why}"),
            ReadError::Fields { line } => write!(
                f,
                "line {line} has none of a benchmark's fields (output_throughput, completed, \
                 mean_ttft_ms); a file of `bench --json` or of SGLang's bench_serving would work"
            ),
            ReadError::Comparison { line } => write!(
                f,
                "line {line} compares two results that do not stand right before it, as \
                 `bench --compare --json` writes them"
            ),
            ReadError::Count { points } => {
                write!(f, "{points} results; between 1 and {POINTS_MAX} can be shown")
            }
        }
    }
}

impl core::error::Error for ReadError {}

fn merge(to: &mut Map<String, Value>, from: Value) {
    if let Value::Object(fields) = from {
        to.extend(fields);
    }
}

/// A struct of numbers and strings as JSON; what is none is null, which cannot be here.
fn plain(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// One line of the file.
pub fn line(point: &Point) -> Value {
    let mut fields = Map::new();
    let has_rate = point.request_rate.map_or(json!("inf"), |r| json!(r));
    merge(
        &mut fields,
        json!({
            "tag": null,
            "backend": "lockstep-bench",
            "dataset_name": point.dataset,
            "request_rate": has_rate,
            "max_concurrency": point.max_concurrency,
            "random_input_len": point.input_len,
            "random_output_len": point.output_len,
            "base_url": point.url,
            "model": point.model,
        }),
    );
    merge(&mut fields, plain(&point.totals));
    let l = &point.latencies;
    for (name, s) in TIMES.iter().zip([&l.ttft, &l.tpot, &l.itl, &l.e2e]) {
        merge(
            &mut fields,
            json!({
                format!("mean_{name}_ms"): s.mean,
                format!("median_{name}_ms"): s.p50,
                format!("std_{name}_ms"): s.std,
                format!("p90_{name}_ms"): s.p90,
                format!("p95_{name}_ms"): s.p95,
                format!("p99_{name}_ms"): s.p99,
                format!("max_{name}_ms"): s.max,
            }),
        );
    }
    if let Some(goodput) = &point.goodput {
        merge(&mut fields, plain(goodput));
    }
    if let Some(extra) = &point.extra {
        let mut own = plain(extra);
        let curves = [&l.ttft, &l.tpot, &l.itl, &l.e2e].map(|s| json!(s.quantiles));
        own["quantiles"] = TIMES.iter().map(|t| (*t).to_owned()).zip(curves).collect();
        fields.insert("lockstep".to_owned(), own);
    }
    Value::Object(fields)
}

/// The whole file: a line a point, and after two points that were measured in turns their ratios.
pub fn lines(points: &[Point], pairs: &[Pair]) -> String {
    let mut text = String::new();
    let mut add = |value: Value| {
        text.push_str(&value.to_string());
        text.push('\n');
    };
    let mut pairs = pairs.iter().peekable();
    for (at, point) in points.iter().enumerate() {
        add(line(point));
        let ends_here = |pair: &&Pair| at > 0 && pair.0[0] == points[at - 1] && pair.0[1] == *point;
        if let Some((both, ratios)) = pairs.next_if(ends_here) {
            add(comparison(both, ratios));
        }
    }
    text
}

/// The line that follows two points which were measured in turns.
fn comparison(points: &[Point; 2], compared: &Compared) -> Value {
    json!({"lockstep_comparison": {
        "base_urls": [points[0].url, points[1].url],
        "load": points[0].load(),
        "ratios": compared,
    }})
}

/// A line with the numbers that Python writes and JSON does not have (`Infinity`, `NaN`) as null.
fn without_python_numbers(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut rest, mut in_string, mut is_escaped) = (line, false, false);
    while let Some(c) = rest.chars().next() {
        let odd = ["-Infinity", "Infinity", "NaN"].into_iter().find(|n| rest.starts_with(n));
        if let Some(odd) = odd.filter(|_| !in_string) {
            out.push_str("null");
            rest = &rest[odd.len()..];
            continue;
        }
        if c == '"' && !is_escaped {
            in_string = !in_string;
        }
        is_escaped = c == '\\' && !is_escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// Reads a file of lines, ours or SGLang's: its points, and those of them that were measured in
/// turns with their ratios.
pub fn read(text: &str) -> Result<(Vec<Point>, Vec<Pair>), ReadError> {
    let (mut points, mut pairs) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let value: Value = serde_json::from_str(&without_python_numbers(line))
            .map_err(|why| ReadError::Json { line: at + 1, why })?;
        if let Some(compared) = value.get("lockstep_comparison") {
            let pair = pair(&points, compared).ok_or(ReadError::Comparison { line: at + 1 })?;
            pairs.push(pair);
            continue;
        }
        points.push(point(&value).ok_or(ReadError::Fields { line: at + 1 })?);
        if points.len() > POINTS_MAX {
            break;
        }
    }
    match points.len() {
        1..=POINTS_MAX => Ok((points, pairs)),
        points => Err(ReadError::Count { points }),
    }
}

/// The last two points with what a line after them says of both.
fn pair(points: &[Point], compared: &Value) -> Option<Pair> {
    let [.., a, b] = points else { return None };
    let urls = [&compared["base_urls"][0], &compared["base_urls"][1]];
    let is_theirs = urls[0] == a.url.as_str() && urls[1] == b.url.as_str();
    let ratios = serde_json::from_value(compared["ratios"].clone()).ok()?;
    (is_theirs && compared["load"] == a.load()).then(|| ([a.clone(), b.clone()], ratios))
}

fn point(value: &Value) -> Option<Point> {
    let fields = value.as_object()?;
    let known = ["output_throughput", "completed", "mean_ttft_ms"];
    if !known.iter().any(|k| fields.get(*k).is_some_and(Value::is_number)) {
        return None;
    }
    let text = |name: &str| {
        let text: String = value[name].as_str().unwrap_or("").chars().take(200).collect();
        text.replace(char::is_control, " ")
    };
    let own = &value["lockstep"];
    let time = |name: &str| {
        let of = |stat: &str| value[format!("{stat}_{name}_ms")].as_f64().unwrap_or(0.0);
        let curve = own["quantiles"][name].as_array();
        Summary {
            count: 0,
            mean: of("mean"),
            std: of("std"),
            p50: of("median"),
            p90: of("p90"),
            p95: of("p95"),
            p99: of("p99"),
            max: of("max"),
            quantiles: curve.into_iter().flatten().filter_map(Value::as_f64).collect(),
        }
    };
    Some(Point {
        url: text("base_url"),
        model: text("model"),
        dataset: text("dataset_name"),
        max_concurrency: value["max_concurrency"].as_u64(),
        request_rate: value["request_rate"].as_f64(),
        input_len: value["random_input_len"].as_u64().unwrap_or(0),
        output_len: value["random_output_len"].as_u64().unwrap_or(0),
        totals: totals(value),
        latencies: Latencies {
            ttft: time(TIMES[0]),
            tpot: time(TIMES[1]),
            itl: time(TIMES[2]),
            e2e: time(TIMES[3]),
        },
        goodput: Goodput::deserialize_from(value),
        extra: serde_json::from_value(own.clone()).ok(),
    })
}

fn totals(value: &Value) -> Totals {
    let number = |name: &str| value[name].as_f64().unwrap_or(0.0);
    let count = |name: &str| number(name) as u64;
    Totals {
        duration: number("duration"),
        completed: count("completed"),
        total_input_tokens: count("total_input_tokens"),
        total_output_tokens: count("total_output_tokens"),
        request_throughput: number("request_throughput"),
        input_throughput: number("input_throughput"),
        output_throughput: number("output_throughput"),
        total_throughput: number("total_throughput"),
        concurrency: number("concurrency"),
        max_output_tokens_per_s: number("max_output_tokens_per_s"),
        max_concurrent_requests: count("max_concurrent_requests"),
    }
}

impl Goodput {
    fn deserialize_from(value: &Value) -> Option<Goodput> {
        value.get("goodput_slos_ms")?;
        serde_json::from_value(value.clone()).ok()
    }
}

/// Columns of the CSV file: a JSON field, or a path of two.
const COLUMNS: [&str; 36] = [
    "base_url",
    "model",
    "dataset_name",
    "max_concurrency",
    "request_rate",
    "random_input_len",
    "random_output_len",
    "duration",
    "completed",
    "lockstep.sent",
    "lockstep.refused",
    "lockstep.timeouts",
    "lockstep.errors",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "concurrency",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p90_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p90_tpot_ms",
    "p99_tpot_ms",
    "median_itl_ms",
    "p90_itl_ms",
    "p99_itl_ms",
    "median_e2e_latency_ms",
    "p90_e2e_latency_ms",
    "p99_e2e_latency_ms",
    "request_goodput",
    "lockstep.is_conclusive",
    "lockstep.client_cpu_us_per_token",
];

/// All points as CSV with a head line.
pub fn csv(points: &[Point]) -> String {
    let mut text = COLUMNS.join(",").replace("lockstep.", "");
    text.push('\n');
    for point in points {
        let line = line(point);
        let cell = |name: &&str| {
            let value = name.split('.').try_fold(&line, |v, part| v.get(part));
            match value.unwrap_or(&Value::Null) {
                Value::Null => String::new(),
                Value::String(s) if s.contains([',', '"', '\n', '\r']) => {
                    format!("\"{}\"", s.replace('"', "\"\""))
                }
                Value::String(s) => s.clone(),
                other => other.to_string(),
            }
        };
        text.push_str(&COLUMNS.iter().map(cell).collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::Extra;
    use crate::bench::stats::Ratio;
    use proptest::prelude::*;

    fn a_point() -> Point {
        let summary = |x: f64| Summary {
            mean: x,
            p50: x,
            p90: x,
            quantiles: vec![x, x + 1.0],
            ..Summary::default()
        };
        Point {
            url: "http://a:1".into(),
            model: "m,\"1\"".into(),
            dataset: "fixed".into(),
            max_concurrency: Some(8),
            totals: Totals { completed: 3, output_throughput: 12.5, ..Totals::default() },
            latencies: Latencies { ttft: summary(5.0), e2e: summary(9.0), ..Latencies::default() },
            goodput: Some(Goodput { slo_attainment: 0.5, ..Goodput::default() }),
            extra: Some(Extra {
                refused: 2,
                timeline_steady_s: Some((1.0, 2.0)),
                ..Extra::default()
            }),
            ..Point::default()
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let point = a_point();
        let text = format!("{}\n\n{}\n", line(&point), line(&point));
        assert_eq!(read(&text).unwrap(), (vec![point.clone(), point], vec![]));
    }

    /// Ratios were once left out when a file was shown.
    #[test]
    fn comparisons_are_written_and_read_back_with_their_points() {
        let both = ["http://a:1", "http://b:2"].map(|url| Point { url: url.into(), ..a_point() });
        let ratio = Ratio { ratio: 1.5, count: 3, low: Some(1.25), high: None };
        let compared = Compared {
            output_throughput: ratio,
            mean_ttft: ratio,
            mean_tpot: ratio,
            is_conclusive: true,
        };
        let points = both.to_vec();
        let pairs = vec![(both, compared)];
        let text = lines(&points, &pairs);
        assert_eq!(read(&text).unwrap(), (points, pairs));
        let alone = text.lines().last().unwrap();
        assert!(read(alone).unwrap_err().to_string().contains("line 1 compares"));
    }

    #[test]
    fn a_line_of_bench_serving_is_shown() {
        // Fields as SGLang 0.5.23 writes them.
        let text = r#"{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": 16,
            "duration": 10.0, "completed": 40, "total_input_tokens": 100, "total_output_tokens": 200,
            "request_throughput": 4.0, "output_throughput": 20.0, "mean_ttft_ms": 7.5, "p99_itl_ms": 3.0, "accept_length": NaN,
            "generated_texts": ["to \"Infinity\", NaN"]}"#
            .replace('\n', " ");
        let points = read(&text).unwrap().0;
        assert_eq!((points[0].totals.completed, points[0].latencies.itl.p99), (40, 3.0));
        assert_eq!((points[0].load(), points[0].extra.is_none()), ("16".into(), true));
    }

    #[test]
    fn other_files_are_refused_with_words() {
        let words = |text: &str| read(text).unwrap_err().to_string();
        assert!(words("{}").contains("bench_serving") && words("").contains("0 results"));
        assert!(words("[1]").contains("line 1") && words("\n{").contains("line 2"));
    }

    #[test]
    fn csv_quotes_what_it_must() {
        let text = csv(&[a_point()]);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].starts_with("http://a:1,\"m,\"\"1\"\"\",fixed,8,inf,"), "{}", rows[1]);
        assert_eq!(rows[0].split(',').count(), COLUMNS.len());
        assert_eq!(rows[1].replace("m,", "m").split(',').count(), COLUMNS.len());
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(text in "[{}\\[\\],:\"a-z0-9\\n]{0,60}", n in any::<f64>()) {
            let _ = read(&text);
            let odd = json!({"completed": n, "lockstep": text, "max_concurrency": n}).to_string();
            if let Ok((points, _)) = read(&odd) {
                let _ = (csv(&points), points[0].load());
            }
        }
    }
}
