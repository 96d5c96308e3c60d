//! An engine that a bench turns by hand.

use crate::device::{Log, Timed};
use lockstep_engine::{EngineParts, Handle, Knobs, LoopTurn, StepLoop, assemble};
use lockstep_flow::status::Counters;
use lockstep_flow::{Event, EventSink, Micros, Request, RequestId, SamplingParams, Token};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tokens of a prompt: two whole chunks.
pub const PROMPT: usize = 1024;
/// Tokens that may follow it: what is measured, and what the first rows decode beside the prompts of
/// the last.
pub const TOKENS_MORE: u32 = 320;

struct Silent;

impl EventSink for Silent {
    fn emit(&mut self, _: Event) -> bool {
        true
    }
}

/// What an engine is made for.
#[derive(Clone, Copy)]
pub struct Setting {
    /// Requests at once.
    pub running: u32,
    /// Longest sequence.
    pub context: u32,
    /// Drafts a step.
    pub drafts: u32,
    /// Keep prefixes of what has run.
    pub prefix_cache: bool,
}

impl Setting {
    /// Of a pool that has room for what runs and nothing more, so that every load takes the same
    /// pages.
    pub fn costs(running: u32) -> Setting {
        let context = PROMPT as u32 + TOKENS_MORE;
        Setting { running, context, drafts: 0, prefix_cache: false }
    }
}

/// A stretch of steps.
pub struct Phase {
    /// Tokens that it computed or made.
    pub tokens: u64,
    pub took: Duration,
    /// What the counters say that was in it.
    pub held: String,
}

/// The engine and its log.
pub struct Bench {
    pub handle: Handle,
    pub setting: Setting,
    steps: StepLoop,
    log: Arc<Mutex<Log>>,
    prompts: Vec<Vec<Token>>,
    next: u64,
}

impl Bench {
    pub fn new(folder: &Path, threads: u32, setting: Setting) -> Bench {
        let checkpoint = Checkpoint::open(folder).unwrap_or_else(|e| panic!("{e}"));
        let model = Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"));
        let (device, log) = Timed::new(threads);
        let knobs = Knobs {
            graph_max_bs: setting.running,
            running_max: setting.running,
            kv_bytes: 8 << 30,
            context_tokens: setting.context,
            prefix_cache: setting.prefix_cache,
            drafts: setting.drafts,
            audit_rate: 0,
            ..Knobs::default()
        };
        let parts = EngineParts::of(Box::new(device), model, knobs);
        let (started, steps) = assemble(parts).unwrap_or_else(|e| panic!("{e}"));
        let prompts = sessions(folder).into_iter().filter(|s| s.ids.len() >= PROMPT);
        let prompts = prompts.map(|s| s.ids[..PROMPT].to_vec()).collect();
        Bench { handle: started.handle, setting, steps, log, prompts, next: 0 }
    }

    pub fn counters(&self) -> Counters {
        self.handle.status().counters
    }

    pub fn submit(&mut self, prompt: Vec<Token>, max_tokens: u32, ignore_eos: bool) {
        self.next += 1;
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens,
            ignore_eos,
            ..SamplingParams::default()
        };
        let request = Request {
            id: RequestId(self.next),
            prompt: prompt.into(),
            params,
            grammar: None,
            arrived: Micros(self.next),
            deadline: None,
            adapter: 0,
            use_prefix_cache: self.setting.prefix_cache,
        };
        self.handle.submit(request, Box::new(Silent)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// As many requests as run at once.
    pub fn submit_all(&mut self, max_tokens: u32) {
        for i in 0..self.setting.running as usize {
            let prompt = self.prompts[i % self.prompts.len()].clone();
            self.submit(prompt, max_tokens, true);
        }
    }

    /// Ends what runs.
    pub fn cancel_all(&mut self) {
        for id in 1..=self.next {
            self.handle.cancel(RequestId(id));
        }
        self.until_idle();
    }

    pub fn turn(&mut self) -> LoopTurn {
        self.steps.turn()
    }

    pub fn until_idle(&mut self) {
        while self.turn() == LoopTurn::Stepped {}
    }

    pub fn steps(&mut self, n: u64) {
        for _ in 0..n {
            assert_eq!(self.turn(), LoopTurn::Stepped, "the load lasts");
        }
    }

    /// Steps until every prompt is computed and has its first token.
    pub fn past_prefill(&mut self) {
        let begun = self.counters();
        let rows = u64::from(self.setting.running);
        loop {
            self.steps(1);
            let c = self.counters();
            let prefilled = c.prefill_tokens - begun.prefill_tokens;
            if prefilled == rows * PROMPT as u64
                && c.generated_tokens - begun.generated_tokens >= rows
            {
                return;
            }
        }
    }

    /// Steps of nothing but one decode row a request.
    pub fn decode(&mut self, steps: u64) -> Phase {
        let (before, began) = (self.counters(), Instant::now());
        self.steps(steps);
        let (took, after) = (began.elapsed(), self.counters());
        let tokens = after.generated_tokens - before.generated_tokens;
        assert_eq!(after.decode_steps - before.decode_steps, steps, "steps of decode rows alone");
        assert_eq!(tokens, steps * u64::from(self.setting.running), "a token a row and step");
        assert_eq!((after.prefill_tokens, after.preemptions), (before.prefill_tokens, 0));
        let held = format!("{steps} steps of {} decode rows", self.setting.running);
        Phase { tokens, took, held }
    }

    /// All prompts from their submission to their first tokens, which end them.
    pub fn prefill(&mut self) -> Phase {
        self.submit_all(1);
        let (before, began) = (self.counters(), Instant::now());
        self.until_idle();
        let (took, after) = (began.elapsed(), self.counters());
        let tokens = after.prefill_tokens - before.prefill_tokens;
        assert_eq!(tokens, u64::from(self.setting.running) * PROMPT as u64, "every token once");
        assert_eq!((after.decode_steps, after.preemptions), (before.decode_steps, 0));
        let steps = after.steps - before.steps;
        Phase { tokens, took, held: format!("{steps} steps of {tokens} prompt tokens") }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times steps from now on, and their ops too where `by_op` is true; returns what was timed
    /// before.
    pub fn time(&self, by_op: bool) -> Log {
        core::mem::replace(&mut *self.log(), Log { on: true, by_op, ..Log::default() })
    }

    /// What was timed; nothing is from now on.
    pub fn take_log(&self) -> Log {
        core::mem::take(&mut *self.log())
    }
}

/// A session of the model's.
pub struct Session {
    pub ids: Vec<Token>,
    /// Where the assistant's turns begin and end.
    pub turns: Vec<(usize, usize)>,
}

/// The sessions in a model's folder.
pub fn sessions(folder: &Path) -> Vec<Session> {
    let path = folder.join("cases.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let of = |line: &str| -> Session {
        let value: serde_json::Value = serde_json::from_str(line).expect("a session a line");
        let number = |v: &serde_json::Value| v.as_u64().expect("a number") as usize;
        let list = |name: &str| value[name].as_array().cloned().expect("a list");
        Session {
            ids: list("ids").iter().map(|v| Token(number(v) as u32)).collect(),
            turns: list("turns").iter().map(|t| (number(&t["start"]), number(&t["end"]))).collect(),
        }
    };
    text.lines().map(of).collect()
}
