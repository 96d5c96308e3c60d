//! An engine whose loop the test turns itself, with every event and every row of logits kept.
#![allow(dead_code)]

pub mod ahead;
pub mod emulation;
pub mod fault;
pub mod models;
pub mod one_step;
pub mod outcome;
pub mod reference;
pub mod stage;

use lockstep_device::{CpuDevice, Device};
use lockstep_engine::{
    EngineError, EngineParts, Handle, Knobs, LogitTap, LoopTurn, StepLoop, assemble, start,
};
use lockstep_flow::status::EngineStatus;
use lockstep_flow::{
    Event, EventSink, Micros, Request, RequestId, SamplingParams, Token, TokenMask,
};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use outcome::{Outcome, Rows};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Requests with a number from here on are company: what comes of them is not kept.
pub const COMPANY: u64 = 1 << 32;

/// What an engine of a test is made of.
#[derive(Clone, Debug)]
pub struct Rig {
    pub knobs: Knobs,
    pub threads: u32,
    pub isa: &'static str,
}

impl Default for Rig {
    fn default() -> Rig {
        let knobs = Knobs {
            graph_max_bs: 32,
            running_max: 40,
            queued_max: 64,
            kv_bytes: 256 << 20,
            context_tokens: 1024,
            prefix_cache: false,
            audit_rate: 0,
            ..Knobs::default()
        };
        Rig { knobs, threads: 2, isa: "auto" }
    }
}

impl Rig {
    /// This rig with other knobs.
    pub fn with(&self, change: impl FnOnce(&mut Knobs)) -> Rig {
        let mut rig = self.clone();
        change(&mut rig.knobs);
        rig
    }

    /// Loads `path` and captures its plans on a CPU device.
    pub fn engine(&self, path: &Path) -> Engine {
        let device = CpuDevice::new(self.threads, self.isa).unwrap_or_else(|e| panic!("{e}"));
        self.engine_on(path, Box::new(device), true)
    }

    /// As [`Rig::engine`], on a device of the test's own; `tapped` keeps the logits.
    pub fn engine_on(&self, path: &Path, device: Box<dyn Device>, tapped: bool) -> Engine {
        let rows = Arc::new(Mutex::new(Rows::default()));
        let tap = tapped.then(|| Box::new(Keeper(rows.clone())) as Box<dyn LogitTap>);
        let assembled = self.parts(path, device, tap, assemble);
        let (started, steps) = assembled.unwrap_or_else(|e| panic!("{e}"));
        Engine { handle: started.handle, steps, rows, next: 0 }
    }

    /// Starts the engine with a step thread of its own.
    pub fn started(&self, path: &Path, device: Box<dyn Device>) -> Handle {
        let started = self.parts(path, device, None, start);
        started.unwrap_or_else(|e| panic!("{e}")).handle
    }

    /// Why no engine comes of it.
    pub fn refused(&self, path: &Path, device: Box<dyn Device>) -> EngineError {
        match self.parts(path, device, None, assemble) {
            Ok(_) => panic!("it was not refused"),
            Err(e) => e,
        }
    }

    fn parts<T>(
        &self,
        path: &Path,
        device: Box<dyn Device>,
        tap: Option<Box<dyn LogitTap>>,
        use_them: impl FnOnce(EngineParts<'_>) -> T,
    ) -> T {
        let parts = EngineParts::of(device, model(path), self.knobs.clone());
        use_them(EngineParts { tap, ..parts })
    }
}

/// Opens a model.
pub fn model(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
    Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{e}"))
}

struct Keeper(Arc<Mutex<Rows>>);

impl LogitTap for Keeper {
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        if request.0 < COMPANY {
            self.0.lock().unwrap().keep(request, position, logits);
        }
    }

    fn draft(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        if request.0 < COMPANY {
            self.0.lock().unwrap().keep_draft(request, position, logits);
        }
    }
}

/// Keeps events for the test to look at.
#[derive(Clone, Default)]
pub struct Recorder(pub Arc<Mutex<Vec<Event>>>);

impl EventSink for Recorder {
    fn emit(&mut self, event: Event) -> bool {
        self.0.lock().unwrap().push(event);
        true
    }
}

impl Recorder {
    pub fn ended(&self) -> bool {
        self.finals() > 0
    }

    pub fn finals(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|e| e.kind.is_final()).count()
    }
}

/// A request before it has a number.
#[derive(Clone, Debug)]
pub struct Probe {
    pub prompt: Arc<[Token]>,
    pub params: SamplingParams,
    /// Tokens that it is made to produce, whatever the logits say; then one of its own choice.
    pub forced: Option<Vec<Token>>,
}

impl Probe {
    pub fn new(prompt: impl IntoIterator<Item = u32>, params: SamplingParams) -> Probe {
        Probe { prompt: prompt.into_iter().map(Token).collect(), params, forced: None }
    }

    /// Echoes a text, so that every position has logits.
    pub fn echo(ids: &[u32]) -> Probe {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: 1,
            ignore_eos: true,
            prompt_logprobs: true,
            logprobs: Some(0),
            ..SamplingParams::default()
        };
        Probe::new(ids.iter().copied(), params)
    }

    pub fn request(&self, id: u64) -> Request {
        let forced = |tokens: Vec<Token>| Box::new(Forced { tokens, next: 0 }) as Box<_>;
        Request {
            id: RequestId(id),
            prompt: self.prompt.clone(),
            params: self.params.clone(),
            grammar: self.forced.clone().map(forced),
            arrived: Micros(id + 1),
            deadline: None,
            adapter: 0,
            use_prefix_cache: true,
        }
    }
}

/// A grammar that allows one text only, and then anything.
#[derive(Debug)]
struct Forced {
    tokens: Vec<Token>,
    next: usize,
}

impl TokenMask for Forced {
    fn fill(&mut self, words: &mut [u32]) -> Result<(), lockstep_flow::MaskError> {
        match self.tokens.get(self.next) {
            None => words.fill(u32::MAX),
            Some(token) => {
                words.fill(0);
                words[token.index() / 32] = 1 << (token.0 % 32);
            }
        }
        Ok(())
    }

    fn accept(&mut self, _: Token) -> Result<(), lockstep_flow::MaskError> {
        self.next += 1;
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.next > self.tokens.len()
    }
}

/// A running engine.
pub struct Engine {
    pub handle: Handle,
    pub steps: StepLoop,
    rows: Arc<Mutex<Rows>>,
    next: u64,
}

impl Engine {
    /// Runs probes all at once beside `company`, half of them some steps later than the others, so
    /// that prefill and decode share steps.
    pub fn together(&mut self, probes: &[Probe], company: &[Probe]) -> Vec<Outcome> {
        let first = self.next;
        let sinks: Vec<_> = (0..probes.len()).map(|_| Recorder::default()).collect();
        let (early, late): (Vec<usize>, Vec<usize>) = (0..probes.len()).partition(|i| i % 2 == 0);
        let others = Recorder::default();
        for (i, probe) in company.iter().enumerate() {
            let id = COMPANY + first + i as u64;
            // Older than the probes: where a batch cannot stay, it is probes that go.
            let request = Request { arrived: Micros(0), ..probe.request(id) };
            self.handle.submit(request, Box::new(others.clone())).unwrap();
        }
        for (wave, steps) in [(early, 2), (late, usize::MAX)] {
            for i in wave {
                let request = probes[i].request(first + i as u64);
                self.handle.submit(request, Box::new(sinks[i].clone())).unwrap();
            }
            for _ in 0..steps {
                let done = sinks.iter().all(Recorder::ended) && others.finals() == company.len();
                if done || self.steps.turn() == LoopTurn::Idle {
                    break;
                }
            }
        }
        self.next += probes.len().max(company.len()) as u64;
        assert_eq!(others.finals(), company.len(), "company has ended");
        let mut rows = self.rows.lock().unwrap();
        let outcome = |(i, sink): (usize, &Recorder)| {
            let id = RequestId(first + i as u64);
            let (rows, drafts) = rows.take(id);
            Outcome { drafts, ..Outcome::of(&sink.0.lock().unwrap(), rows) }
        };
        sinks.iter().enumerate().map(outcome).collect()
    }

    /// Runs probes one after the other, each alone.
    pub fn alone(&mut self, probes: &[Probe]) -> Vec<Outcome> {
        probes.iter().flat_map(|p| self.together(core::slice::from_ref(p), &[])).collect()
    }

    pub fn status(&mut self) -> EngineStatus {
        self.handle.status()
    }

    /// Sizes of the decode buckets that steps were replayed in, and of those that ran eagerly.
    pub fn decode_buckets_used(&mut self) -> (Vec<u32>, Vec<u32>) {
        let status = self.status();
        let decode = || status.buckets.iter().filter(|b| b.key.is_decode());
        (
            decode().filter(|b| b.replays > 0).map(|b| b.key.seqs).collect(),
            decode().filter(|b| b.eager_steps > 0).map(|b| b.key.seqs).collect(),
        )
    }
}
