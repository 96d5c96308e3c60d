//! Loads one after the other, each repeated until its interval is narrow enough; and two servers
//! in turns.

use super::point::{Point, Slo, throughput};
use super::probe::Server;
use super::progress::Progress;
use super::run::{Arrivals, Run, run};
use super::sample::Class;
use super::stats::{Interval, Ratio};
use super::workload::Workload;
use serde::{Deserialize, Serialize};

/// Output tokens of a warm-up request, at most.
const WARMUP_OUTPUT: u32 = 16;
/// The number of a warm-up's run: its prompts are nobody else's.
const WARMUP_RUN: u64 = 1 << 20;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The loads.
    pub loads: Vec<Arrivals>,
    /// The requests.
    pub workload: Workload,
    /// Requests a run; `None` is what [`requests_of`] says.
    pub requests: Option<u32>,
    /// The seed of everything.
    pub seed: u64,
    /// Half the interval's width, as a share of the mean, that ends the repeats.
    pub ci: f64,
    /// Runs a load, at least.
    pub repeats_min: u32,
    /// At most.
    pub repeats_max: u32,
    /// What a good request keeps.
    pub slo: Slo,
    /// Whether a warm-up goes before each load.
    pub has_warmup: bool,
}

/// Requests a run where none are named: two rounds, four at least; of a rate, half a minute.
pub fn requests_of(arrivals: Arrivals) -> u32 {
    match arrivals {
        Arrivals::Closed { concurrency } => (2 * concurrency).max(4),
        Arrivals::Open { rate, .. } => (rate * 30.0).clamp(10.0, 100_000.0) as u32,
    }
}

/// Two servers at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Output tokens a second, the second server's over the first's.
    pub output_throughput: Ratio,
    /// Mean time to the first token, likewise.
    pub mean_ttft: Ratio,
    /// Mean time an output token, likewise.
    pub mean_tpot: Ratio,
    /// Whether the first interval is as narrow as asked.
    pub is_conclusive: bool,
}

/// Two points that were measured in turns, and their ratios.
pub type Pair = ([Point; 2], Compared);

/// A load's place among all, and what was done.
fn words(server: &Server, arrivals: Arrivals, what: &str) -> String {
    let load = match arrivals {
        Arrivals::Closed { concurrency } => format!("{concurrency} at once"),
        Arrivals::Open { rate, .. } => format!("{rate} requests/s"),
    };
    format!("{}, {load}, {what}", server.client.target())
}

struct Load<'a> {
    server: &'a Server,
    settings: &'a Settings,
    arrivals: Arrivals,
    progress: &'a Progress,
    runs: Vec<Run>,
    warmup: (u64, f64),
}

impl<'a> Load<'a> {
    fn new(
        server: &'a Server,
        settings: &'a Settings,
        arrivals: Arrivals,
        progress: &'a Progress,
    ) -> Load<'a> {
        Load { server, settings, arrivals, progress, runs: Vec::new(), warmup: (0, 0.0) }
    }

    async fn warm_up(&mut self) {
        if !self.settings.has_warmup {
            return;
        }
        let (arrivals, requests) = match self.arrivals {
            Arrivals::Closed { concurrency } => (self.arrivals, concurrency),
            Arrivals::Open { .. } => (Arrivals::Closed { concurrency: 1 }, 4),
        };
        let mut workload = self.settings.workload;
        workload.output_tokens = workload.output_tokens.min(WARMUP_OUTPUT);
        let mut plan = workload.plan(requests, self.settings.seed, WARMUP_RUN);
        for planned in plan.iter_mut().flatten() {
            planned.output_tokens = planned.output_tokens.min(WARMUP_OUTPUT);
        }
        let what = words(self.server, self.arrivals, "warm-up");
        self.progress.begin(what, plan.iter().flatten().count() as u64);
        let seed = self.settings.seed;
        let warmed = run(self.server, &plan, arrivals, seed, self.progress).await;
        self.warmup = (warmed.samples.len() as u64, warmed.duration_s);
    }

    async fn once(&mut self) {
        let number = self.runs.len() as u64 + 1;
        let requests = self.settings.requests.unwrap_or_else(|| requests_of(self.arrivals));
        let plan = self.settings.workload.plan(requests, self.settings.seed, number);
        let what = words(self.server, self.arrivals, &format!("run {number}"));
        self.progress.begin(what, plan.iter().flatten().count() as u64);
        let seed = self.settings.seed;
        let done = run(self.server, &plan, self.arrivals, seed, self.progress).await;
        // Of a load that was ended in its first run, what was answered is better than nothing.
        let is_all = self.runs.is_empty() && done.samples.iter().any(|s| s.class == Class::Done);
        if !done.is_partial || is_all {
            self.runs.push(done);
        }
    }

    fn point(&self) -> Option<Point> {
        if self.runs.is_empty() {
            return None;
        }
        let s = self.settings;
        let mut point = Point::of(self.server, &s.workload, self.arrivals, &self.runs, s.slo, s.ci);
        if let Some(extra) = &mut point.extra {
            (extra.warmup_requests, extra.warmup_s) = self.warmup;
        }
        Some(point)
    }

    /// Whether nothing at all comes back, so that more runs would show no more.
    fn is_hopeless(&self) -> bool {
        self.runs.last().is_some_and(|r| throughput(r) == 0.0)
    }
}

/// Measures every load; `take` gets each point as it is there.
pub async fn sweep(
    server: &Server,
    settings: &Settings,
    progress: &Progress,
    mut take: impl FnMut(Point),
) {
    for &arrivals in &settings.loads {
        if progress.is_stopped() {
            break;
        }
        let mut load = Load::new(server, settings, arrivals, progress);
        load.warm_up().await;
        for done in 1..=settings.repeats_max {
            if progress.is_stopped() || load.is_hopeless() {
                break;
            }
            load.once().await;
            let figures: Vec<f64> = load.runs.iter().map(throughput).collect();
            if done >= settings.repeats_min && Interval::of(&figures).relative() <= settings.ci {
                break;
            }
        }
        if let Some(point) = load.point() {
            take(point);
        }
    }
}

/// Measures every load on both servers in the order A B B A; `take` gets the two points and their
/// ratios.
pub async fn compare(
    servers: [&Server; 2],
    settings: &Settings,
    progress: &Progress,
    mut take: impl FnMut([Point; 2], Compared),
) {
    for &arrivals in &settings.loads {
        if progress.is_stopped() {
            break;
        }
        let mut loads = servers.map(|s| Load::new(s, settings, arrivals, progress));
        for load in &mut loads {
            load.warm_up().await;
        }
        let mut ratio = Ratio::of(&[]);
        for pair in 1..=settings.repeats_max {
            let order = if pair % 2 == 1 { [0, 1] } else { [1, 0] };
            for at in order {
                if !progress.is_stopped() {
                    loads[at].once().await;
                }
            }
            if progress.is_stopped() || loads.iter().any(Load::is_hopeless) {
                break;
            }
            ratio = ratios(&loads, throughput);
            if pair >= settings.repeats_min && ratio.relative() <= settings.ci {
                break;
            }
        }
        let compared = Compared {
            output_throughput: ratio,
            mean_ttft: ratios(&loads, |r| mean(r, super::sample::Sample::ttft_ms)),
            mean_tpot: ratios(&loads, |r| mean(r, super::sample::Sample::tpot_ms)),
            is_conclusive: ratio.relative() <= settings.ci,
        };
        if let [Some(a), Some(b)] = [loads[0].point(), loads[1].point()] {
            take([a, b], compared);
        }
    }
}

fn mean(run: &Run, of: fn(&super::sample::Sample) -> Option<f64>) -> f64 {
    let done = run.samples.iter().filter(|s| s.class == super::sample::Class::Done);
    let values: Vec<f64> = done.filter_map(of).collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The second server's figure over the first's, pair by pair.
fn ratios(loads: &[Load<'_>; 2], of: impl Fn(&Run) -> f64) -> Ratio {
    let pairs = loads[0].runs.iter().zip(&loads[1].runs);
    let ratios: Vec<f64> =
        pairs.map(|(a, b)| of(b) / of(a)).filter(|r| r.is_finite() && *r > 0.0).collect();
    Ratio::of(&ratios)
}
