//! What the audit costs: one engine runs the same steps at one `audit.rate` after the other.
//!
//! ```text
//! cargo xtask bench audit [MODEL.gguf] [decode-1|decode-16|prefill] [cpu] [paired] [ROUNDS]
//! ```
//!
//! A round is one chunk of steps at every rate, back to back in another order each time, so that a
//! slow moment meets them all; what is compared are chunks of the same round, and what is printed
//! is the median of those ratios with the interval that holds the true median in 19 of 20 such
//! runs, by order statistics. It is one engine, because two of them differ by some per cent in how
//! their memory lies. `off` runs twice: the distance between the two is the noise. `1000` is the
//! default; its twin comes by too seldom to be timed in passing.
//!
//! With `cpu`, one thread computes and its time on the CPU is what is compared, so that jobs of
//! others on the same machine are in the figures only as far as they slow memory and caches.
//!
//! With `paired`, only `off`, `off again` and the default take turns, in chunks in which each row
//! fills a page of 32 tokens: more rounds in the same time, and in each of them all that the default
//! does but its twins. Sweeps may make up for the time in which they were off, so that it is the
//! dearer of the two readings.
//!
//! What is smaller than that noise is counted: the engine takes the time of its step thread in
//! each part of the audit (`lockstep_audit_seconds_total`). Some seconds at the default rate give
//! the share of pages, weights and tables, with bytes and throughput; the rounds give the price of
//! a twin, which comes once in 1,000 steps or a minute.
#![forbid(unsafe_code)]

use lockstep_device::CpuDevice;
use lockstep_engine::{EngineParts, Handle, Knobs, LoopTurn, StepLoop, assemble};
use lockstep_flow::{
    AuditPart, AuditUse, Event, EventSink, Micros, Request, RequestId, SamplingParams, Token,
};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What is run: rows, prompt tokens of each, steps of a chunk.
struct Scenario {
    name: &'static str,
    rows: u64,
    prompt: u32,
    steps: u32,
    prefill: bool,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario { name: "decode-1", rows: 1, prompt: 64, steps: 32, prefill: false },
    Scenario { name: "decode-16", rows: 16, prompt: 64, steps: 16, prefill: false },
    Scenario { name: "prefill", rows: 1, prompt: 512, steps: 1, prefill: true },
];

const RATES: [(&str, u32); 5] =
    [("off", 0), ("off again", 0), ("1000", 1000), ("every 2nd", 2), ("every step", 1)];

/// Rounds that requests last; then new ones begin, at their prompt's length.
const ROUNDS_OF_A_LOAD: usize = 10;

/// Tokens of a page.
const PAGE_TOKENS: u32 = 32;

/// How long the default rate is looked at.
const STEADY_S: f64 = 8.0;

impl Scenario {
    fn tokens_of_a_step(&self) -> u64 {
        if self.prefill { u64::from(self.prompt) } else { self.rows }
    }
}

struct Silent;

impl EventSink for Silent {
    fn emit(&mut self, _: Event) -> bool {
        true
    }
}

struct Engine {
    handle: Handle,
    steps: StepLoop,
    next: u64,
    begun: Instant,
    threads: u32,
}

impl Engine {
    /// On one thread, or on all there are (0).
    fn new(path: &Path, threads: u32) -> Engine {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
        let model = Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"));
        let knobs = Knobs { running_max: 16, kv_bytes: 1 << 30, ..Knobs::default() };
        let device = CpuDevice::new(threads, "auto").unwrap_or_else(|e| panic!("{e}"));
        let parts = EngineParts::of(Box::new(device), model, knobs);
        let (started, steps) = assemble(parts).unwrap_or_else(|e| panic!("{e}"));
        Engine { handle: started.handle, steps, next: 0, begun: Instant::now(), threads }
    }

    /// Submits a request of random tokens.
    fn submit(&mut self, prompt: u32, max_tokens: u32) {
        self.next += 1;
        let mut state = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let token = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Token(100 + (state >> 33) as u32 % 40_000)
        };
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        let request = Request {
            id: RequestId(self.next),
            prompt: (0..prompt).map(token).collect(),
            params,
            grammar: None,
            arrived: Micros(self.next),
            deadline: None,
            adapter: 0,
            use_prefix_cache: true,
        };
        self.handle.submit(request, Box::new(Silent)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A load that lasts for [`ROUNDS_OF_A_LOAD`] rounds of all rates.
    fn begin(&mut self, scenario: &Scenario, rates: usize) {
        if scenario.prefill {
            self.submit(scenario.prompt, 1);
            return self.turns(1);
        }
        // Prefill, and some steps to warm up.
        let warm = 1 + scenario.rows as u32 + scenario.steps / 2;
        let steps = (ROUNDS_OF_A_LOAD * rates) as u32 * scenario.steps;
        for _ in 0..scenario.rows {
            self.submit(scenario.prompt, warm + steps + 1);
        }
        self.turns(warm);
    }

    /// Lets the load end.
    fn end(&mut self) {
        while self.steps.turn() == LoopTurn::Stepped {}
    }

    fn turns(&mut self, n: u32) {
        for _ in 0..n {
            assert_eq!(self.steps.turn(), LoopTurn::Stepped, "the load lasts");
        }
    }

    fn twins(&self) -> u64 {
        self.handle.status().audit.part(AuditPart::Twin).audits
    }

    /// Seconds since some moment: on the CPU where one thread computes, else on the clock.
    fn now(&self) -> f64 {
        let on_clock = self.begun.elapsed().as_secs_f64();
        if self.threads == 1 { on_cpu().unwrap_or(on_clock) } else { on_clock }
    }

    /// Milliseconds a step over one chunk at a rate, and whether a twin ran in it.
    fn chunk(&mut self, scenario: &Scenario, rate: u32) -> (f64, bool) {
        self.steps.audit_at(rate);
        if scenario.prefill {
            self.submit(scenario.prompt, 1);
        }
        let before = self.twins();
        let start = self.now();
        self.turns(scenario.steps);
        let ms = (self.now() - start) * 1e3 / f64::from(scenario.steps);
        (ms, self.twins() > before)
    }
}

/// Seconds that this thread has been on a CPU, where the system says so.
fn on_cpu() -> Option<f64> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(line.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

/// The median of some values, and between which of them the true one lies in 19 of 20 cases: so
/// many that it is unlikelier than that for more of as many fair coins to fall one way.
struct Estimate {
    median: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    fn of(mut values: Vec<f64>) -> Estimate {
        let median = median(&mut values);
        let n = values.len();
        // The chance of at most k heads of n, summed up from 2^-n.
        let (mut k, mut chance, mut sum) = (0, 0.5f64.powi(n as i32), 0.0);
        while k < n / 2 && 2.0 * (sum + chance) <= 0.05 {
            sum += chance;
            chance *= (n - k) as f64 / (k + 1) as f64;
            k += 1;
        }
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        // With k values left out at each end; with none where there are too few to say anything.
        Estimate { median, low: at(k.saturating_sub(1)), high: at(n.saturating_sub(k.max(1))) }
    }
}

impl core::fmt::Display for Estimate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let [median, low, high] = [self.median, self.low, self.high].map(percent);
        write!(f, "{median:+.2}% ({low:+.2} to {high:+.2})")
    }
}

/// Chunks at a rate over those without an audit, round by round; those with a twin are left out
/// where there is one by chance.
fn ratio(rounds: &[Vec<(f64, bool)>], rate: usize) -> Estimate {
    let by_chance = RATES[rate].0 == "1000";
    let of = rounds.iter().filter(|r| !(by_chance && r[rate].1));
    let base = |r: &[(f64, bool)]| if rate == 1 { r[0].0 } else { (r[0].0 + r[1].0) / 2.0 };
    Estimate::of(of.map(|r| r[rate].0 / base(r)).collect())
}

/// Another order in each round.
fn order(round: u64, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|i| (round * 5 + *i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
    order
}

/// What the audit has counted in chunks at one rate.
#[derive(Clone, Copy, Default)]
struct Counts {
    closed: u64,
    bytes: u64,
    twins: u64,
    twin_s: f64,
}

impl Counts {
    fn add(&mut self, before: &AuditUse, after: &AuditUse) {
        let bytes = |a: &AuditUse| a.closed_bytes + a.parts.iter().map(|p| p.bytes).sum::<u64>();
        let twin = [before, after].map(|a| a.part(AuditPart::Twin));
        self.closed += after.pages_closed - before.pages_closed;
        self.bytes += bytes(after) - bytes(before);
        self.twins += twin[1].audits - twin[0].audits;
        self.twin_s += twin[1].time.since(twin[0].time).as_secs_f64();
    }
}

fn measure(path: &Path, scenario: &Scenario, rounds: usize, threads: u32, paired: bool) {
    let rates = if paired { &RATES[..3] } else { &RATES[..] };
    let mut engine = Engine::new(path, threads);
    engine.begin(scenario, rates.len());
    let mut counts = [Counts::default(); RATES.len()];
    let mut all = Vec::new();
    for round in 0..rounds {
        if round > 0 && round % ROUNDS_OF_A_LOAD == 0 {
            engine.end();
            engine.begin(scenario, rates.len());
        }
        let mut chunks = vec![(0.0, false); rates.len()];
        for i in order(round as u64, rates.len()) {
            let before = engine.handle.status().audit;
            chunks[i] = engine.chunk(scenario, rates[i].1);
            counts[i].add(&before, &engine.handle.status().audit);
        }
        all.push(chunks);
    }
    let off = compare(scenario, &counts, &all);
    if paired {
        return;
    }
    let [_, _, _, every_2nd, every] = counts;
    let twin_ms = (every_2nd.twin_s + every.twin_s) / (every_2nd.twins + every.twins) as f64 * 1e3;
    engine.end();
    steady(&mut engine, scenario, off, twin_ms);
}

/// Prints what the rounds say; returns the milliseconds of a step without the audit.
fn compare(scenario: &Scenario, counts: &[Counts], rounds: &[Vec<(f64, bool)>]) -> f64 {
    let off = median(&mut rounds.iter().map(|r| r[0].0).collect::<Vec<_>>());
    println!("{}, {} rounds: {off:.3} ms a step with the audit off", scenario.name, rounds.len());
    let steps = rounds.len() as u64 * u64::from(scenario.steps);
    let rates = rounds.first().map_or(0, Vec::len);
    for (i, (name, _)) in RATES[..rates].iter().enumerate().skip(1) {
        let Counts { closed, bytes, twins, .. } = counts[i];
        println!(
            "  {name:>10}: {} a step; {twins} twins in {steps} steps, {closed} pages closed, \
             {:.1} KB hashed or compared a token",
            ratio(rounds, i),
            bytes as f64 / (steps * scenario.tokens_of_a_step()) as f64 / 1e3,
        );
    }
    off
}

/// Some seconds at the default rate: what the engine says that it spent.
fn steady(engine: &mut Engine, scenario: &Scenario, off: f64, twin_ms: f64) {
    engine.begin(scenario, RATES.len());
    engine.steps.audit_at(RATES[2].1);
    let before = engine.handle.status().audit;
    let (start, mut steps) = (Instant::now(), 0u32);
    let last = ROUNDS_OF_A_LOAD as u32 * RATES.len() as u32 * scenario.steps;
    while start.elapsed().as_secs_f64() < STEADY_S && (scenario.prefill || steps < last) {
        if scenario.prefill {
            engine.submit(scenario.prompt, 1);
        }
        engine.turns(1);
        steps += 1;
    }
    let served = start.elapsed().as_secs_f64();
    let after = engine.handle.status().audit;
    println!("  counted over {served:.1} s and {steps} steps at the default rate:");
    let mut all = 0.0;
    for part in [AuditPart::Pages, AuditPart::Weights, AuditPart::Tables] {
        let (a, b) = (before.part(part), after.part(part));
        let seconds = b.time.since(a.time).as_secs_f64();
        let mut bytes = b.bytes - a.bytes;
        if part == AuditPart::Pages {
            bytes += after.closed_bytes - before.closed_bytes;
        }
        let share = seconds / served * 100.0;
        all += share;
        if bytes == 0 {
            continue;
        }
        println!(
            "    {part}: {share:.3}% of the time, {:.1} MB a second of serving at {:.1} GB/s",
            bytes as f64 / served / 1e6,
            bytes as f64 / seconds / 1e9,
        );
    }
    // One in 1,000 steps, or one a minute for the bucket, which takes half a per cent at most.
    let every_ms = (1000.0 * off).min((200.0 * twin_ms).max(60_000.0));
    let twins = twin_ms / every_ms * 100.0;
    println!(
        "    twin: {twin_ms:.2} ms each, every {:.1} s: {twins:.3}%\n    in all: {:.2}%",
        every_ms / 1e3,
        all + twins
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let model = args.iter().find(|a| a.ends_with(".gguf") || a.contains('/')).map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let known = ".cache/lockstep/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = model.unwrap_or_else(|| home().join(known));
    let threads = u32::from(args.iter().any(|a| a == "cpu"));
    let rounds = args.iter().find_map(|a| a.parse().ok()).unwrap_or(25);
    let paired = args.iter().any(|a| a == "paired");
    for scenario in SCENARIOS {
        let steps = if paired && !scenario.prefill { PAGE_TOKENS } else { scenario.steps };
        let scenario = &Scenario { steps, ..scenario };
        let named = args.iter().any(|a| SCENARIOS.iter().any(|s| s.name == a));
        if !named || args.iter().any(|a| a == scenario.name) {
            measure(&path, scenario, rounds, threads, paired);
        }
    }
}
