//! What the audit costs: engines that differ in `audit.rate` alone run the same steps in turns.
//!
//! ```text
//! cargo xtask bench audit [MODEL.gguf] [decode-1|decode-16|prefill] [ROUNDS]
//! ```
//!
//! A round is one chunk of every engine, back to back, so that a slow moment meets them all; what
//! is compared are chunks of the same round. `off` runs twice: the distance between the two is the
//! noise. `1000` is the default; its twin comes by too seldom to be timed in passing, so the price
//! of one twin is taken from an engine that has one every second step.
#![forbid(unsafe_code)]

use lockstep_device::CpuDevice;
use lockstep_engine::{EngineParts, Handle, Knobs, LoopTurn, StepLoop, assemble};
use lockstep_flow::{
    AuditPart, Event, EventSink, Micros, Request, RequestId, SamplingParams, Token,
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
    Scenario { name: "decode-16", rows: 16, prompt: 64, steps: 32, prefill: false },
    Scenario { name: "prefill", rows: 1, prompt: 512, steps: 1, prefill: true },
];

const RATES: [(&str, u32); 5] =
    [("off", 0), ("off again", 0), ("1000", 1000), ("every 2nd", 2), ("every step", 1)];

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
}

impl Engine {
    fn new(path: &Path, rate: u32) -> Engine {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
        let model = Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"));
        let knobs = Knobs {
            running_max: 16,
            kv_bytes: 512 << 20,
            prefix_cache: false,
            audit_rate: rate,
            ..Knobs::default()
        };
        let parts = EngineParts {
            device: Box::new(CpuDevice::new(0, "auto").unwrap_or_else(|e| panic!("{e}"))),
            model,
            eos: &[],
            knobs,
            model_facts: Default::default(),
            device_facts: Default::default(),
            progress: &mut |_, _| {},
            tap: None,
        };
        let (started, steps) = assemble(parts).unwrap_or_else(|e| panic!("{e}"));
        Engine { handle: started.handle, steps, next: 0 }
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
            use_prefix_cache: false,
        };
        self.handle.submit(request, Box::new(Silent)).unwrap_or_else(|e| panic!("{e}"));
    }

    fn turns(&mut self, n: u32) {
        for _ in 0..n {
            assert_eq!(self.steps.turn(), LoopTurn::Stepped, "the load lasts");
        }
    }

    fn twins(&self) -> u64 {
        self.handle.status().audit.part(AuditPart::Twin).audits
    }

    /// Milliseconds a step over one chunk, and whether a twin ran in it.
    fn chunk(&mut self, scenario: &Scenario) -> (f64, bool) {
        let before = self.twins();
        if scenario.prefill {
            self.submit(scenario.prompt, 1);
        }
        let start = Instant::now();
        self.turns(scenario.steps);
        let ms = start.elapsed().as_secs_f64() * 1e3 / f64::from(scenario.steps);
        (ms, self.twins() > before)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

/// An engine's chunks over the first engine's, round by round; those with a twin alone, those
/// without, or all.
fn ratio(rounds: &[Vec<(f64, bool)>], engine: usize, twins: Option<bool>) -> f64 {
    let of = rounds.iter().filter(|r| twins.is_none_or(|t| r[engine].1 == t));
    median(&mut of.map(|r| r[engine].0 / r[0].0).collect::<Vec<_>>())
}

fn measure(path: &Path, scenario: &Scenario, rounds: usize) {
    let mut engines: Vec<Engine> = RATES.iter().map(|(_, rate)| Engine::new(path, *rate)).collect();
    let tokens = scenario.steps * (rounds as u32 + 4);
    for engine in &mut engines {
        if !scenario.prefill {
            for _ in 0..scenario.rows {
                engine.submit(scenario.prompt, tokens);
            }
            // Prefill, and one chunk to warm up.
            engine.turns(1 + scenario.rows as u32 + scenario.steps / 2);
        } else {
            engine.submit(scenario.prompt, 1);
            engine.turns(1);
        }
    }
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut chunks = vec![(0.0, false); engines.len()];
        for i in 0..engines.len() {
            // Another engine goes first each time.
            let i = (i + round) % engines.len();
            chunks[i] = engines[i].chunk(scenario);
        }
        all.push(chunks);
    }
    report(scenario, &engines, &all);
}

fn report(scenario: &Scenario, engines: &[Engine], rounds: &[Vec<(f64, bool)>]) {
    let off = median(&mut rounds.iter().map(|r| r[0].0).collect::<Vec<_>>());
    println!("{}, {} rounds: {off:.3} ms a step with the audit off", scenario.name, rounds.len());
    for (i, (name, _)) in RATES.iter().enumerate().skip(1) {
        let (ratio, a) = (
            ratio(rounds, i, (*name == "1000").then_some(false)),
            engines[i].handle.status().audit,
        );
        let c = engines[i].handle.status().counters;
        let tokens = (c.generated_tokens + c.prefill_tokens) as f64;
        let hashed = (a.closed_bytes + a.parts.iter().map(|p| p.bytes).sum::<u64>()) as f64;
        println!(
            "  {name:>10}: {:+.2}% a step; {} twins in {} steps, {} pages closed, {} compared, {:.1} \
             KB hashed or compared a token",
            (ratio - 1.0) * 100.0,
            a.part(AuditPart::Twin).audits,
            c.steps,
            a.pages_closed,
            a.part(AuditPart::Pages).audits,
            hashed / tokens / 1e3,
        );
    }
    // What the default costs: its steps without a twin, and a twin every 1000 steps or minute.
    let resting = (ratio(rounds, 2, Some(false)) - 1.0) * 100.0;
    let every_second = ratio(rounds, 3, Some(true)) - ratio(rounds, 2, Some(false));
    let share = if scenario.prefill { 1.0 } else { 2.0 };
    let twin_ms = every_second * share * off;
    let between_ms = (1000.0 * off).min(60_000.0);
    let twins = twin_ms / between_ms * 100.0;
    println!(
        "  the default: {resting:+.2}% for pages, weights and sweeps, {twins:.2}% for a twin of \
         {twin_ms:.2} ms every {:.1} s: {:+.2}% in all",
        between_ms / 1e3,
        resting + twins
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let model = args.iter().find(|a| a.ends_with(".gguf") || a.contains('/')).map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let known = ".cache/lockstep/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = model.unwrap_or_else(|| home().join(known));
    let rounds = args.iter().find_map(|a| a.parse().ok()).unwrap_or(11);
    for scenario in &SCENARIOS {
        let named = args.iter().any(|a| SCENARIOS.iter().any(|s| s.name == a));
        if !named || args.iter().any(|a| a == scenario.name) {
            measure(&path, scenario, rounds);
        }
    }
}
