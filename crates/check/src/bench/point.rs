//! What was measured at one load: the field names are those of SGLang's `bench_serving` where
//! they mean the same.

use super::probe::Server;
use super::run::{Arrivals, Run};
use super::sample::{Class, Sample};
use super::stats::{Interval, Summary};
use super::workload::Workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Limits that a good request keeps, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// To the first output.
    pub ttft_ms: Option<f64>,
    /// An output token after the first.
    pub tpot_ms: Option<f64>,
    /// End to end.
    pub e2e_ms: Option<f64>,
}

/// Goodput, as SGLang names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The limits: `ttft`, `tpot`, `e2el`.
    pub goodput_slos_ms: BTreeMap<String, f64>,
    /// Requests a second that kept all of them.
    pub request_goodput: f64,
    /// Their share of all requests that were sent, refused ones included.
    pub slo_attainment: f64,
    /// The same for each limit alone.
    pub slo_attainment_by_metric: BTreeMap<String, f64>,
}

/// Counts and rates over all runs at this load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Seconds, all runs together.
    pub duration: f64,
    /// Requests whose whole answer came.
    pub completed: u64,
    /// Their prompt tokens.
    pub total_input_tokens: u64,
    /// Their output tokens.
    pub total_output_tokens: u64,
    /// Completed requests a second.
    pub request_throughput: f64,
    /// Prompt tokens a second.
    pub input_throughput: f64,
    /// Output tokens a second.
    pub output_throughput: f64,
    /// Both.
    pub total_throughput: f64,
    /// Requests under way, averaged over time.
    pub concurrency: f64,
    /// The most output tokens in one second.
    pub max_output_tokens_per_s: f64,
    /// The most requests under way.
    pub max_concurrent_requests: u64,
}

/// The four times of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// To the first output.
    pub ttft: Summary,
    /// An output token after the first, of one request.
    pub tpot: Summary,
    /// Between chunks.
    pub itl: Summary,
    /// End to end.
    pub e2e: Summary,
}

/// What SGLang has no name for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extra {
    /// Output tokens a second of each run.
    pub runs_output_throughput: Vec<f64>,
    /// Their mean and interval.
    pub output_throughput: Interval,
    /// The interval's half width was to be this share of the mean, or less.
    pub ci_asked: f64,
    /// Whether it is.
    pub is_conclusive: bool,
    /// Output tokens a second while the load was as asked, mean and interval over runs.
    pub steady_output_throughput: Option<Interval>,
    /// Share of the time that was steady.
    pub steady_share: f64,
    /// Output tokens a second of one request after its first: 1,000 over TPOT, the median.
    pub request_tokens_per_s: f64,
    /// The same as the server itself measured it, where it tells (llama.cpp's `timings`): all
    /// requests' output tokens after their first over their milliseconds.
    pub server_request_tokens_per_s: Option<f64>,
    /// The client's figure in that form.
    pub client_request_tokens_per_s: f64,
    /// Requests that were sent.
    pub sent: u64,
    /// 429 or 503.
    pub refused: u64,
    /// Too long.
    pub timeouts: u64,
    /// Everything else.
    pub errors: u64,
    /// The words of the first few that failed, each once.
    pub failures: Vec<String>,
    /// The asked mean prompt length of completed requests, and what the server counted.
    pub input_asked_mean: f64,
    /// Counted by the server.
    pub input_mean: f64,
    /// The asked mean output length.
    pub output_asked_mean: f64,
    /// Counted by the server.
    pub output_mean: f64,
    /// Completed answers of another length than asked.
    pub output_unlike: u64,
    /// Prompt tokens from the server's prefix cache.
    pub cached_tokens: u64,
    /// Output tokens a chunk.
    pub tokens_per_chunk: f64,
    /// Processor time of this client, microseconds an output token.
    pub client_cpu_us_per_token: Option<f64>,
    /// How late the client's event loop was, milliseconds (a timer's grain of 1 ms included).
    pub client_lag_ms: Summary,
    /// How late requests of an open load were sent, 99th percentile, milliseconds.
    pub late_p99_ms: f64,
    /// Requests of the warm-up, which is in no other figure, and its seconds.
    pub warmup_requests: u64,
    /// Seconds.
    pub warmup_s: f64,
    /// Output tokens in each second of the last run.
    pub timeline_tokens: Vec<u64>,
    /// Requests under way at the middle of each second of the last run.
    pub timeline_live: Vec<u64>,
    /// The steady part of the last run.
    pub timeline_steady_s: Option<(f64, f64)>,
}

/// A load and what was measured at it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// The server's address.
    pub url: String,
    /// The model.
    pub model: String,
    /// Name of the dataset.
    pub dataset: String,
    /// Workers of a closed load, or the most at once of an open one.
    pub max_concurrency: Option<u64>,
    /// Requests a second; `None` is a closed load.
    pub request_rate: Option<f64>,
    /// The asked lengths.
    pub input_len: u64,
    /// Output.
    pub output_len: u64,
    /// Counts and rates.
    pub totals: Totals,
    /// Times.
    pub latencies: Latencies,
    /// Where limits were given.
    pub goodput: Option<Goodput>,
    /// Of files that this program wrote.
    pub extra: Option<Extra>,
}

/// Words of failures that are kept.
const FAILURES_MAX: usize = 5;
/// Seconds of a timeline, at most.
const TIMELINE_MAX: usize = 3600;

impl Point {
    /// Sums up the runs at one load.
    pub fn of(
        server: &Server,
        workload: &Workload,
        arrivals: Arrivals,
        runs: &[Run],
        slo: Slo,
        ci_asked: f64,
    ) -> Point {
        let samples = || runs.iter().flat_map(|r| &r.samples);
        let done = || samples().filter(|s| s.class == Class::Done);
        let duration = runs.iter().map(|r| r.duration_s).sum::<f64>();
        let (max_concurrency, request_rate) = match arrivals {
            Arrivals::Closed { concurrency } => (Some(u64::from(concurrency)), None),
            Arrivals::Open { rate, concurrency_max } => {
                (Some(u64::from(concurrency_max)), Some(rate))
            }
        };
        let sent: Vec<&Sample> = samples().collect();
        Point {
            url: server.client.target().to_string(),
            model: server.client.target().model.clone().unwrap_or_default(),
            dataset: workload.dataset.to_string(),
            max_concurrency,
            request_rate,
            input_len: workload.input_tokens.into(),
            output_len: workload.output_tokens.into(),
            totals: totals(runs, duration),
            latencies: latencies(&done().collect::<Vec<_>>()),
            goodput: goodput(&sent, slo, duration),
            extra: Some(extra(runs, &sent, ci_asked)),
        }
    }

    /// How the load is named in tables.
    pub fn load(&self) -> String {
        match (self.request_rate, self.max_concurrency) {
            (Some(rate), _) => format!("{rate}/s"),
            (None, Some(concurrency)) => concurrency.to_string(),
            (None, None) => "all".to_owned(),
        }
    }
}

fn rate(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

/// Output tokens of a run's completed requests a second.
pub(super) fn throughput(run: &Run) -> f64 {
    let done = run.samples.iter().filter(|s| s.class == Class::Done);
    rate(done.map(|s| s.output_tokens as f64).sum(), run.duration_s)
}

fn totals(runs: &[Run], duration: f64) -> Totals {
    let done = || runs.iter().flat_map(|r| &r.samples).filter(|s| s.class == Class::Done);
    let completed = done().count() as u64;
    let input: u64 = done().map(|s| s.input_tokens).sum();
    let output: u64 = done().map(|s| s.output_tokens).sum();
    let most = |f: fn(&Run) -> u64| runs.iter().map(f).max().unwrap_or(0);
    Totals {
        duration,
        completed,
        total_input_tokens: input,
        total_output_tokens: output,
        request_throughput: rate(completed as f64, duration),
        input_throughput: rate(input as f64, duration),
        output_throughput: rate(output as f64, duration),
        total_throughput: rate((input + output) as f64, duration),
        concurrency: rate(done().map(|s| s.ended_s - s.began_s).sum(), duration),
        max_output_tokens_per_s: most(|r| timeline(r).iter().copied().max().unwrap_or(0)) as f64,
        max_concurrent_requests: most(most_at_once),
    }
}

fn most_at_once(run: &Run) -> u64 {
    let mut turns: Vec<(f64, i64)> =
        run.samples.iter().flat_map(|s| [(s.began_s, 1), (s.ended_s, -1)]).collect();
    // An end at the same instant comes before a beginning.
    turns.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut live, mut most) = (0, 0);
    for (_, by) in turns {
        live += by;
        most = most.max(live);
    }
    most as u64
}

fn seconds(run: &Run) -> usize {
    (run.duration_s.ceil() as usize).min(TIMELINE_MAX)
}

fn timeline(run: &Run) -> Vec<u64> {
    let mut tokens = vec![0; seconds(run)];
    for (at, count) in run.samples.iter().flat_map(|s| &s.chunks) {
        if let Some(second) = tokens.get_mut(*at as usize) {
            *second += u64::from(*count);
        }
    }
    tokens
}

fn live(run: &Run) -> Vec<u64> {
    let at = |second: usize| {
        let middle = second as f64 + 0.5;
        run.samples.iter().filter(|s| s.began_s <= middle && middle < s.ended_s).count() as u64
    };
    (0..seconds(run)).map(at).collect()
}

fn latencies(done: &[&Sample]) -> Latencies {
    let of = |f: fn(&Sample) -> Option<f64>| {
        Summary::of(&mut done.iter().filter_map(|s| f(s)).collect::<Vec<f64>>())
    };
    let gaps = |s: &&Sample| -> Vec<f64> {
        s.chunks.windows(2).map(|w| (w[1].0 - w[0].0) * 1e3).collect()
    };
    Latencies {
        ttft: of(Sample::ttft_ms),
        tpot: of(Sample::tpot_ms),
        itl: Summary::of(&mut done.iter().flat_map(gaps).collect::<Vec<f64>>()),
        e2e: of(|s| Some(s.e2e_ms())),
    }
}

fn goodput(sent: &[&Sample], slo: Slo, duration: f64) -> Option<Goodput> {
    type Limited = (&'static str, Option<f64>, fn(&Sample) -> f64);
    // A one-token answer has no second token: its TPOT counts as 0, as in SGLang.
    let metrics: [Limited; 3] = [
        ("ttft", slo.ttft_ms, |s| s.ttft_ms().unwrap_or(f64::INFINITY)),
        ("tpot", slo.tpot_ms, |s| s.tpot_ms().unwrap_or(0.0)),
        ("e2el", slo.e2e_ms, Sample::e2e_ms),
    ];
    let asked: Vec<_> =
        metrics.into_iter().filter_map(|(name, limit, of)| Some((name, limit?, of))).collect();
    if asked.is_empty() {
        return None;
    }
    let share = |n: usize| n as f64 / sent.len().max(1) as f64;
    let count = |keeps: &dyn Fn(&Sample) -> bool| {
        sent.iter().filter(|s| s.class == Class::Done && keeps(s)).count()
    };
    let good = count(&|s| asked.iter().all(|(_, limit, of)| of(s) <= *limit));
    Some(Goodput {
        goodput_slos_ms: asked.iter().map(|(n, l, _)| ((*n).to_owned(), *l)).collect(),
        request_goodput: rate(good as f64, duration),
        slo_attainment: share(good),
        slo_attainment_by_metric: asked
            .iter()
            .map(|(name, limit, of)| ((*name).to_owned(), share(count(&|s| of(s) <= *limit))))
            .collect(),
    })
}

/// Output tokens a second in the steady part of a run, refused and cut answers' tokens included:
/// they took the server's time too.
fn steady_throughput(run: &Run) -> Option<f64> {
    let (from, to) = run.steady_s?;
    // Chunks do not say how many tokens they hold; the answer's count is spread over them.
    let weigh = |s: &Sample| {
        let chunks: u64 = s.chunks.iter().map(|c| u64::from(c.1)).sum();
        let weight = if s.class == Class::Done {
            s.output_tokens as f64 / chunks.max(1) as f64
        } else {
            1.0
        };
        let inside = s.chunks.iter().filter(|c| c.0 > from && c.0 <= to);
        weight * inside.map(|c| f64::from(c.1)).sum::<f64>()
    };
    Some(rate(run.samples.iter().map(weigh).sum(), to - from))
}

fn extra(runs: &[Run], sent: &[&Sample], ci_asked: f64) -> Extra {
    let done: Vec<&&Sample> = sent.iter().filter(|s| s.class == Class::Done).collect();
    let count = |class| sent.iter().filter(|s| s.class == class).count() as u64;
    let mean = |f: fn(&Sample) -> u64| {
        done.iter().map(|s| f(s) as f64).sum::<f64>() / done.len().max(1) as f64
    };
    let throughputs: Vec<f64> = runs.iter().map(throughput).collect();
    let steady: Vec<f64> = runs.iter().filter_map(steady_throughput).collect();
    let steady_s: f64 = runs.iter().filter_map(|r| r.steady_s).map(|(a, b)| b - a).sum();
    let duration: f64 = runs.iter().map(|r| r.duration_s).sum();
    let interval = Interval::of(&throughputs);
    let tokens: u64 = done.iter().map(|s| s.output_tokens).sum();
    let chunks: usize = done.iter().map(|s| s.chunks.len()).sum();
    let received: u64 = sent.iter().map(|s| s.output_tokens).sum();
    let cpu: Option<f64> = runs.iter().map(|r| r.metered.cpu.map(|c| c.as_secs_f64() * 1e6)).sum();
    let mut lags: Vec<f64> = runs.iter().flat_map(|r| r.metered.lags_ms.clone()).collect();
    let mut late: Vec<f64> = sent.iter().map(|s| (s.began_s - s.due_s) * 1e3).collect();
    let tpots = &mut done.iter().filter_map(|s| s.tpot_ms()).collect::<Vec<f64>>();
    let tpot = Summary::of(tpots).p50;
    let after_first = |of: fn(&Sample) -> Option<(f64, f64)>| {
        let pairs: Option<Vec<(f64, f64)>> = done.iter().map(|s| of(s)).collect();
        let pairs = pairs.filter(|p| !p.is_empty())?;
        let tokens: f64 = pairs.iter().map(|(n, _)| (n - 1.0).max(0.0)).sum();
        Some(rate(tokens * 1e3, pairs.iter().map(|(_, ms)| ms).sum()))
    };
    let by_client = |s: &Sample| {
        let ms = (s.ended_s - s.first_s?) * 1e3;
        Some((s.output_tokens as f64, ms))
    };
    let mut failures: Vec<String> = Vec::new();
    for words in sent.iter().filter_map(|s| s.words.as_ref()) {
        if failures.len() < FAILURES_MAX && !failures.contains(words) {
            failures.push(words.clone());
        }
    }
    let last = runs.last();
    Extra {
        runs_output_throughput: throughputs,
        output_throughput: interval,
        ci_asked,
        is_conclusive: interval.relative() <= ci_asked,
        steady_output_throughput: (!steady.is_empty()).then(|| Interval::of(&steady)),
        steady_share: rate(steady_s, duration),
        request_tokens_per_s: rate(1e3, tpot),
        server_request_tokens_per_s: after_first(|s| s.server_decode),
        client_request_tokens_per_s: after_first(by_client).unwrap_or(0.0),
        sent: sent.len() as u64,
        refused: count(Class::Refused),
        timeouts: count(Class::Timeout),
        errors: count(Class::Error),
        failures,
        input_asked_mean: mean(|s| s.input_asked),
        input_mean: mean(|s| s.input_tokens),
        output_asked_mean: mean(|s| s.output_asked),
        output_mean: mean(|s| s.output_tokens),
        output_unlike: done.iter().filter(|s| s.output_tokens != s.output_asked).count() as u64,
        cached_tokens: done.iter().map(|s| s.cached_tokens).sum(),
        tokens_per_chunk: tokens as f64 / chunks.max(1) as f64,
        client_cpu_us_per_token: cpu.map(|us| us / received.max(1) as f64),
        client_lag_ms: Summary { quantiles: Vec::new(), ..Summary::of(&mut lags) },
        late_p99_ms: Summary::of(&mut late).p99,
        warmup_requests: 0,
        warmup_s: 0.0,
        timeline_tokens: last.map(timeline).unwrap_or_default(),
        timeline_live: last.map(live).unwrap_or_default(),
        timeline_steady_s: last.and_then(|r| r.steady_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::meter::Metered;

    fn sample(class: Class, began_s: f64, chunk_s: &[f64]) -> Sample {
        Sample {
            class,
            words: (class != Class::Done).then(|| "full".to_owned()),
            due_s: began_s,
            began_s,
            first_s: chunk_s.first().copied(),
            ended_s: chunk_s.last().copied().unwrap_or(began_s),
            input_tokens: 10,
            output_tokens: chunk_s.len() as u64,
            input_asked: 10,
            output_asked: 3,
            cached_tokens: 0,
            chunks: chunk_s.iter().map(|&t| (t, 1)).collect(),
            server_decode: Some((chunk_s.len() as f64, 1e3)),
        }
    }

    fn one_run() -> Run {
        let samples = vec![
            sample(Class::Done, 0.0, &[0.5, 1.5, 2.5]),
            sample(Class::Done, 0.0, &[1.0, 2.0]),
            sample(Class::Refused, 1.0, &[]),
        ];
        let steady_s = Some((1.0, 2.0));
        let metered = Metered::default();
        Run { samples, duration_s: 2.5, steady_s, metered, is_partial: false }
    }

    #[test]
    fn figures_are_what_their_names_say() {
        let run = one_run();
        let t = totals(core::slice::from_ref(&run), 2.5);
        assert_eq!((t.completed, t.total_output_tokens, t.total_input_tokens), (2, 5, 20));
        assert_eq!((t.output_throughput, t.request_throughput), (2.0, 0.8));
        assert_eq!((t.concurrency, t.max_concurrent_requests), (1.8, 2));
        assert_eq!(t.max_output_tokens_per_s, 2.0);
        let done: Vec<&Sample> = run.samples[..2].iter().collect();
        let l = latencies(&done);
        assert_eq!((l.ttft.mean, l.tpot.mean, l.itl.count), (750.0, 1000.0, 3));
        assert_eq!(steady_throughput(&run), Some(2.0), "1.5 and 2.0, not 1.0");
        assert_eq!((timeline(&run), live(&run)), (vec![1, 2, 2], vec![2, 2, 0]));
    }

    #[test]
    fn what_was_refused_counts_against_goodput_and_is_no_error() {
        let run = one_run();
        let sent: Vec<&Sample> = run.samples.iter().collect();
        let slo = Slo { ttft_ms: Some(600.0), ..Slo::default() };
        let g = goodput(&sent, slo, 2.5).unwrap();
        assert_eq!((g.request_goodput, g.slo_attainment), (0.4, 1.0 / 3.0));
        assert_eq!(goodput(&sent, Slo::default(), 2.5), None);
        let e = extra(core::slice::from_ref(&run), &sent, 0.05);
        assert_eq!((e.sent, e.refused, e.errors, e.timeouts, e.output_unlike), (3, 1, 0, 0, 1));
        assert_eq!(e.failures, ["full"]);
        assert_eq!(e.server_request_tokens_per_s, Some(1.5), "2 and 1 tokens in two seconds");
        assert_eq!(e.client_request_tokens_per_s, 1.0, "2 and 1 tokens in three");
        assert!(!e.is_conclusive, "one run has no interval");
    }
}
