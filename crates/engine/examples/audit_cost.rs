//! What the audit costs: one engine runs the same steps at one `audit.rate` after the other.
//!
//! ```text
//! cargo xtask bench audit [MODEL.gguf] [decode-1|decode-16|prefill] [ROUNDS]
//! ```
//!
//! A round is one chunk of steps at every rate, back to back in another order each time, so that a
//! slow moment meets them all; what is compared are chunks of the same round. It is one engine,
//! because two of them differ by some per cent in how their memory lies. `off` runs twice: the
//! distance between the two is the noise. `1000` is the default; its twin comes by too seldom to be
//! timed in passing, so the price of one twin is taken where there is one every second step.
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
    Scenario { name: "decode-16", rows: 16, prompt: 64, steps: 32, prefill: false },
    Scenario { name: "prefill", rows: 1, prompt: 512, steps: 1, prefill: true },
];

const RATES: [(&str, u32); 5] =
    [("off", 0), ("off again", 0), ("1000", 1000), ("every 2nd", 2), ("every step", 1)];

/// Rounds that requests last; then new ones begin, at their prompt's length.
const ROUNDS_OF_A_LOAD: usize = 10;

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
    fn new(path: &Path) -> Engine {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
        let model = Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"));
        let knobs = Knobs { running_max: 16, kv_bytes: 1 << 30, ..Knobs::default() };
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
            use_prefix_cache: true,
        };
        self.handle.submit(request, Box::new(Silent)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A load that lasts for [`ROUNDS_OF_A_LOAD`] rounds.
    fn begin(&mut self, scenario: &Scenario) {
        if scenario.prefill {
            self.submit(scenario.prompt, 1);
            return self.turns(1);
        }
        // Prefill, and some steps to warm up.
        let warm = 1 + scenario.rows as u32 + scenario.steps / 2;
        let steps = ROUNDS_OF_A_LOAD as u32 * RATES.len() as u32 * scenario.steps;
        for _ in 0..scenario.rows {
            self.submit(scenario.prompt, warm + steps + 1);
        }
        self.turns(warm);
    }

    fn turns(&mut self, n: u32) {
        for _ in 0..n {
            assert_eq!(self.steps.turn(), LoopTurn::Stepped, "the load lasts");
        }
    }

    fn twins(&self) -> u64 {
        self.handle.status().audit.part(AuditPart::Twin).audits
    }

    /// Milliseconds a step over one chunk at a rate, and whether a twin ran in it.
    fn chunk(&mut self, scenario: &Scenario, rate: u32) -> (f64, bool) {
        self.steps.audit_at(rate);
        if scenario.prefill {
            self.submit(scenario.prompt, 1);
        }
        let before = self.twins();
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

/// Another order in each round.
fn order(round: u64, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|i| (round * 5 + *i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
    order
}

fn measure(path: &Path, scenario: &Scenario, rounds: usize) {
    let mut engine = Engine::new(path);
    engine.begin(scenario);
    let mut counts = [[0; 3]; RATES.len()];
    let mut all = Vec::new();
    for round in 0..rounds {
        if round > 0 && round % ROUNDS_OF_A_LOAD == 0 {
            while engine.steps.turn() == LoopTurn::Stepped {}
            engine.begin(scenario);
        }
        let mut chunks = vec![(0.0, false); RATES.len()];
        for i in order(round as u64, RATES.len()) {
            let before = engine.handle.status().audit;
            chunks[i] = engine.chunk(scenario, RATES[i].1);
            let after = engine.handle.status().audit;
            let bytes =
                |a: &AuditUse| a.closed_bytes + a.parts.iter().map(|p| p.bytes).sum::<u64>();
            counts[i][0] += after.pages_closed - before.pages_closed;
            counts[i][1] += bytes(&after) - bytes(&before);
            let twins = |a: &AuditUse| a.part(AuditPart::Twin).audits;
            counts[i][2] += twins(&after) - twins(&before);
        }
        all.push(chunks);
    }
    report(scenario, &counts, &all);
}

fn report(scenario: &Scenario, counts: &[[u64; 3]], rounds: &[Vec<(f64, bool)>]) {
    let off = median(&mut rounds.iter().map(|r| r[0].0).collect::<Vec<_>>());
    println!("{}, {} rounds: {off:.3} ms a step with the audit off", scenario.name, rounds.len());
    let steps = rounds.len() as u64 * u64::from(scenario.steps);
    let tokens = steps * if scenario.prefill { u64::from(scenario.prompt) } else { scenario.rows };
    for (i, (name, _)) in RATES.iter().enumerate().skip(1) {
        let ratio = ratio(rounds, i, (*name == "1000").then_some(false));
        let [closed, bytes, twins] = counts[i];
        println!(
            "  {name:>10}: {:+.2}% a step; {twins} twins in {steps} steps, {closed} pages closed, \
             {:.1} KB hashed or compared a token",
            (ratio - 1.0) * 100.0,
            bytes as f64 / tokens as f64 / 1e3,
        );
    }
    // What the default costs: its steps without a twin, and a twin every 1000 steps or minute.
    let resting = (ratio(rounds, 2, Some(false)) - 1.0) * 100.0;
    // A chunk of one step has its twin at rate 1 only.
    let (with, share) = if scenario.prefill { (4, 1.0) } else { (3, 2.0) };
    let extra = ratio(rounds, with, Some(true)) - ratio(rounds, 2, Some(false));
    let twin_ms = extra * share * off;
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
