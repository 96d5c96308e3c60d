//! Where a step of the recall model goes: decode and prefill of 1, 8 and 32 rows, by kind of op.
//!
//! ```text
//! cargo xtask bench v4 [FOLDER] [THREADS]
//! ```
//!
//! The engine runs the model's own sessions; a chunk of steps is run whole first, then op by op with
//! every op timed. Bytes and multiply-adds are those that an op cannot do without (`work.rs`).
#![forbid(unsafe_code)]

mod device;
mod work;

use device::{Log, Timed};
use lockstep_engine::{EngineParts, Handle, Knobs, StepLoop, assemble};
use lockstep_flow::{Event, EventSink, Micros, Request, RequestId, SamplingParams, Token};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tokens of each prompt.
const PROMPT: usize = 900;
/// Steps that are timed.
const STEPS: u32 = 24;

struct Silent;

impl EventSink for Silent {
    fn emit(&mut self, _: Event) -> bool {
        true
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let recall = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
    let folder = args.next().map_or_else(recall, PathBuf::from);
    let threads = args.next().map_or(2, |n| n.parse().expect("a number of threads"));
    let prompts = prompts(&folder);
    for rows in [1, 8, 32] {
        let mut bench = Bench::new(&folder, threads, rows);
        bench.run(&prompts);
    }
}

/// The first tokens of the model's sessions.
fn prompts(folder: &Path) -> Vec<Vec<Token>> {
    let path = folder.join("cases.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let of = |line: &str| -> Vec<Token> {
        let value: serde_json::Value = serde_json::from_str(line).expect("a session a line");
        let ids = value["ids"].as_array().expect("a session has ids").iter();
        ids.filter_map(|v| Some(Token(v.as_u64()? as u32))).take(PROMPT).collect()
    };
    text.lines().map(of).filter(|ids| ids.len() == PROMPT).collect()
}

struct Bench {
    handle: Handle,
    steps: StepLoop,
    log: Arc<Mutex<Log>>,
    rows: u32,
}

impl Bench {
    fn new(folder: &Path, threads: u32, rows: u32) -> Bench {
        let checkpoint = Checkpoint::open(folder).unwrap_or_else(|e| panic!("{e}"));
        let model = Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"));
        let (device, log) = Timed::new(threads);
        let knobs = Knobs {
            graph_max_bs: rows,
            running_max: rows,
            kv_bytes: 1 << 30,
            context_tokens: 2048,
            prefix_cache: false,
            audit_rate: 0,
            ..Knobs::default()
        };
        let parts = EngineParts {
            device: Box::new(device),
            model,
            eos: &[],
            knobs,
            model_facts: Default::default(),
            device_facts: Default::default(),
            progress: &mut |_, _| {},
            tap: None,
            draft: None,
        };
        let (started, steps) = assemble(parts).unwrap_or_else(|e| panic!("{e}"));
        Bench { handle: started.handle, steps, log, rows }
    }

    fn run(&mut self, prompts: &[Vec<Token>]) {
        for i in 0..self.rows as usize {
            let params = SamplingParams {
                temperature: 0.0,
                max_tokens: 1000,
                ignore_eos: true,
                ..SamplingParams::default()
            };
            let request = Request {
                id: RequestId(i as u64),
                prompt: prompts[i % prompts.len()].clone().into(),
                params,
                grammar: None,
                arrived: Micros(i as u64 + 1),
                deadline: None,
                adapter: 0,
                use_prefix_cache: false,
            };
            self.handle.submit(request, Box::new(Silent)).unwrap_or_else(|e| panic!("{e}"));
        }
        // Half of the prompts as they are, half op by op; then decode likewise.
        let total = self.rows as usize * PROMPT;
        let prefilled = |b: &Bench| b.handle.status().counters.prefill_tokens as usize;
        let whole = self.turns(|b| prefilled(b) < total / 2);
        let before = prefilled(self);
        self.log().on = true;
        self.turns(|b| prefilled(b) < total);
        let tokens = prefilled(self) - before;
        self.print("prefill", whole, before as f64, tokens as f64);
        let mut left = STEPS;
        let whole = self.turns(|_| {
            left = left.saturating_sub(1);
            left > 0
        });
        self.log().on = true;
        let mut left = STEPS;
        self.turns(|_| {
            left = left.saturating_sub(1);
            left > 0
        });
        let tokens = f64::from(self.rows * STEPS);
        self.print("decode", whole, tokens, tokens);
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns the loop until told otherwise, and how long it took.
    fn turns(&mut self, mut more: impl FnMut(&Bench) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            self.steps.turn();
            if !more(self) {
                return began.elapsed();
            }
        }
    }

    fn print(&mut self, what: &str, whole: Duration, tokens: f64, timed_tokens: f64) {
        let log = core::mem::take(&mut *self.log());
        let rate = tokens / whole.as_secs_f64();
        println!("\n{what}, {} rows: {rate:.0} tok/s whole\n", self.rows);
        println!("| op | calls | us a call | of the time | GB/s | GMAC/s |");
        println!("|---|---|---|---|---|---|");
        let all: Duration = log.kinds.values().map(|k| k.2).sum();
        let mut kinds: Vec<_> = log.kinds.into_iter().collect();
        kinds.sort_by_key(|(_, k)| core::cmp::Reverse(k.2));
        for (name, (calls, work, took)) in kinds {
            let s = took.as_secs_f64();
            println!(
                "| {name} | {calls} | {:.1} | {:.1}% | {:.2} | {:.2} |",
                1e6 * s / calls as f64,
                100.0 * s / all.as_secs_f64(),
                work.bytes / s / 1e9,
                work.macs / s / 1e9
            );
        }
        let step = log.took.as_secs_f64() / log.steps.max(1) as f64;
        let timed = timed_tokens / log.took.as_secs_f64();
        println!("\n{} steps op by op, {:.2} ms each, {timed:.0} tok/s", log.steps, 1e3 * step);
    }
}
