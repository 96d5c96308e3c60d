//! An engine whose loop the suite turns itself, with every event and every row of logits kept.

use lockstep_cuda::CudaDevice;
use lockstep_device::{CpuDevice, Device};
use lockstep_engine::{EngineParts, Handle, Knobs, LogitTap, LoopTurn, StepLoop, assemble};
use lockstep_flow::{
    Event, EventKind, EventSink, Micros, Request, RequestId, SamplingParams, Token,
};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Logits by request and position.
pub type Rows = Arc<Mutex<BTreeMap<(u64, u32), Vec<f32>>>>;

/// The first GPU.
pub fn gpu() -> CudaDevice {
    let kernels = std::env::var_os("LOCKSTEP_CUDA_KERNELS").map(std::path::PathBuf::from);
    CudaDevice::new(0, kernels.as_deref()).unwrap_or_else(|e| panic!("{e}"))
}

/// The CPU.
pub fn cpu() -> CpuDevice {
    CpuDevice::new(0, "auto").unwrap_or_else(|e| panic!("{e}"))
}

/// An engine under test.
pub struct Bed {
    handle: Handle,
    steps: StepLoop,
    rows: Rows,
    next: u64,
}

struct Keeper(Rows);

impl LogitTap for Keeper {
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let mut rows = self.0.lock().expect("nobody panics with it");
        rows.insert((request.0, position), logits.to_vec());
    }
}

/// Keeps events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl EventSink for Recorder {
    fn emit(&mut self, event: Event) -> bool {
        self.0.lock().expect("nobody panics with it").push(event);
        true
    }
}

/// A request before it has a number.
#[derive(Clone)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
}

/// What came of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    /// By position.
    pub rows: BTreeMap<u32, Vec<f32>>,
}

/// A model of `path`; a folder without weights gives a dummy.
pub fn model(path: &Path, dummy: bool) -> Model {
    let checkpoint = if dummy { Checkpoint::dummy(path, 0) } else { Checkpoint::open(path) };
    let checkpoint = checkpoint.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Bed {
    /// An engine of `model` on `device`; `tapped` keeps all logits.
    pub fn new(device: Box<dyn Device>, model: Model, knobs: Knobs, tapped: bool) -> Bed {
        let rows = Rows::default();
        let tap = tapped.then(|| Box::new(Keeper(rows.clone())) as Box<dyn LogitTap>);
        let parts = EngineParts {
            device,
            model,
            eos: &[],
            knobs,
            model_facts: Default::default(),
            device_facts: Default::default(),
            progress: &mut |_, _| {},
            tap,
            draft: None,
        };
        let (started, steps) = assemble(parts).unwrap_or_else(|e| panic!("{e}"));
        Bed { handle: started.handle, steps, rows, next: 0 }
    }

    /// Runs requests all at once and asks `probe` for a report of step `at`, then of the first
    /// step of another batch.
    pub fn run_probed(&mut self, asks: &[Ask], at: usize, probe: &lockstep_cuda::Probe) {
        probe.ask();
        self.turns(asks, at, || probe.ask());
    }

    /// Runs requests all at once, the second half some steps later.
    pub fn run(&mut self, asks: &[Ask], late: usize) -> Vec<Outcome> {
        let sinks: Vec<Recorder> = asks.iter().map(|_| Recorder::default()).collect();
        let first = self.next;
        let submit = |i: usize| {
            let request = Request {
                id: RequestId(first + i as u64),
                prompt: asks[i].prompt.iter().map(|t| Token(*t)).collect(),
                params: asks[i].params.clone(),
                grammar: None,
                arrived: Micros(first + i as u64 + 1),
                deadline: None,
                adapter: 0,
                use_prefix_cache: false,
            };
            let sink = Box::new(sinks[i].clone());
            self.handle.submit(request, sink).unwrap_or_else(|e| panic!("refused: {e:?}"));
        };
        let early = if late == 0 { asks.len() } else { asks.len().div_ceil(2) };
        (0..early).for_each(submit);
        for _ in 0..late {
            self.steps.turn();
        }
        (early..asks.len()).for_each(submit);
        while self.steps.turn() == LoopTurn::Stepped {}
        self.next += asks.len() as u64;
        let mut rows = self.rows.lock().expect("nobody panics with it");
        let outcome = |(i, sink): (usize, &Recorder)| {
            let events = sink.0.lock().expect("nobody panics with it");
            let last = events.last().unwrap_or_else(|| panic!("request {i} has no event"));
            assert!(matches!(last.kind, EventKind::Finished { .. }), "request {i}: {last:?}");
            let token = |e: &Event| match &e.kind {
                EventKind::Token { token, .. } => Some(token.0),
                _ => None,
            };
            let id = first + i as u64;
            let mine: Vec<u32> = rows.range((id, 0)..=(id, u32::MAX)).map(|(k, _)| k.1).collect();
            let rows = mine.into_iter().map(|p| (p, rows.remove(&(id, p)).unwrap_or_default()));
            Outcome { tokens: events.iter().filter_map(token).collect(), rows: rows.collect() }
        };
        sinks.iter().enumerate().map(outcome).collect()
    }

    fn turns(&mut self, asks: &[Ask], at: usize, then: impl FnOnce()) {
        for ask in asks {
            let request = Request {
                id: RequestId(self.next),
                prompt: ask.prompt.iter().map(|t| Token(*t)).collect(),
                params: ask.params.clone(),
                grammar: None,
                arrived: Micros(self.next + 1),
                deadline: None,
                adapter: 0,
                use_prefix_cache: false,
            };
            self.next += 1;
            let submitted = self.handle.submit(request, Box::new(Recorder::default()));
            submitted.unwrap_or_else(|e| panic!("refused: {e:?}"));
        }
        for _ in 0..at {
            self.steps.turn();
        }
        then();
        while self.steps.turn() == LoopTurn::Stepped {}
    }

    /// The engine's own report.
    pub fn status(&self) -> lockstep_flow::status::EngineStatus {
        self.handle.status()
    }
}

/// xorshift64*: test data that is the same on every run.
pub struct Rng(pub u64);

impl Rng {
    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let top = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((top * u64::from(n)) >> 32) as u32
    }

    /// A prompt.
    pub fn prompt(&mut self, len: usize, vocab: u32) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab)).collect()
    }
}

/// Greedy, to the end.
pub fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() }
}
