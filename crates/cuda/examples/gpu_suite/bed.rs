//! An engine whose loop the suite turns itself, with every event and every row of logits kept.

use lockstep_cuda::{CudaDevice, KernelSource};
use lockstep_device::{CpuDevice, Device};
use lockstep_engine::{
    Draft, EngineError, EngineParts, Handle, Knobs, LogitTap, LoopTurn, StepLoop, assemble,
};
use lockstep_flow::{
    Event, EventKind, EventSink, Micros, Request, RequestId, SamplingParams, Token,
};
use lockstep_model::Model;
use lockstep_weights::Checkpoint;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Logits by request and position.
pub type Rows = Arc<Mutex<BTreeMap<(u64, u32), Vec<f32>>>>;

/// The first GPU.
pub fn gpu() -> CudaDevice {
    let folder = std::env::var_os("LOCKSTEP_CUDA_KERNELS").map(std::path::PathBuf::from);
    let built_in = KernelSource::BuiltIn { cache: None };
    gpu_with(&folder.map_or(built_in, KernelSource::Folder))
}

/// The first GPU, with kernels from somewhere else.
pub fn gpu_with(kernels: &KernelSource) -> CudaDevice {
    CudaDevice::new(0, kernels).unwrap_or_else(|e| panic!("{e}"))
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
    digests: RowDigests,
    next: u64,
    turns_ms: Vec<f64>,
}

/// What a bed keeps of logits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    Rows,
    Digests,
}

struct Keeper(Rows);

impl LogitTap for Keeper {
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let mut rows = self.0.lock().expect("nobody panics with it");
        rows.insert((request.0, position), logits.to_vec());
    }
}

/// Digests of rows of logits by request and position.
type RowDigests = Arc<Mutex<BTreeMap<(u64, u32), u64>>>;

struct Digester(RowDigests);

fn digest_step(h: u64, w: u32) -> u64 {
    (h ^ u64::from(w)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl LogitTap for Digester {
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let digest = logits.iter().fold(u64::from(position), |h, v| digest_step(h, v.to_bits()));
        self.0.lock().expect("nobody panics with it").insert((request.0, position), digest);
    }
}

/// What came of a request of a long run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// Digest of its tokens.
    pub tokens: u64,
    /// How many.
    pub count: u64,
    /// Digest of its rows of logits.
    pub rows: u64,
    ended: bool,
}

#[derive(Clone, Default)]
struct Tracer(Arc<Mutex<Trace>>);

impl EventSink for Tracer {
    fn emit(&mut self, event: Event) -> bool {
        let mut trace = self.0.lock().expect("nobody panics with it");
        match &event.kind {
            EventKind::Token { token, logprob, .. } => {
                trace.tokens = digest_step(trace.tokens, token.0);
                trace.count += 1;
                if let Some(l) = logprob {
                    trace.rows = digest_step(trace.rows, l.logprob.to_bits());
                    for (token, p) in &l.top {
                        trace.rows = digest_step(digest_step(trace.rows, token.0), p.to_bits());
                    }
                }
            }
            EventKind::Finished { .. } => trace.ended = true,
            EventKind::Started { .. } => {}
            other => panic!("a request ended otherwise: {other:?}"),
        }
        true
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
    /// It ran to its end.
    pub finished: bool,
}

/// A model of `path`; a folder without weights gives a dummy.
pub fn model(path: &Path, dummy: bool) -> Model {
    let checkpoint = if dummy { Checkpoint::dummy(path, 0) } else { Checkpoint::open(path) };
    let checkpoint = checkpoint.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Model::new(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Bed {
    /// An engine of `model` on `device`.
    pub fn new(device: Box<dyn Device>, model: Model, knobs: Knobs, keep: Keep) -> Bed {
        Bed::drafted((device, model), knobs, keep, None).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The same, with plans as `draft` makes them.
    pub fn drafted(
        (device, model): (Box<dyn Device>, Model),
        knobs: Knobs,
        keep: Keep,
        draft: Option<Arc<dyn Draft>>,
    ) -> Result<Bed, EngineError> {
        let (rows, digests) = (Rows::default(), RowDigests::default());
        let tap: Option<Box<dyn LogitTap>> = match keep {
            Keep::Nothing => None,
            Keep::Rows => Some(Box::new(Keeper(rows.clone()))),
            Keep::Digests => Some(Box::new(Digester(digests.clone()))),
        };
        let parts = EngineParts { tap, draft, ..EngineParts::of(device, model, knobs) };
        let (started, steps) = assemble(parts)?;
        Ok(Bed { handle: started.handle, steps, rows, digests, next: 0, turns_ms: Vec::new() })
    }

    /// Runs requests all at once and asks `probe` for a report of step `at`, then of the first
    /// step of another batch.
    pub fn run_probed(&mut self, asks: &[Ask], at: usize, probe: &lockstep_cuda::Probe) {
        probe.ask();
        self.turns(asks, at, || probe.ask());
    }

    /// Runs requests all at once, the second half some steps later.
    pub fn run(&mut self, asks: &[Ask], late: usize) -> Vec<Outcome> {
        let outcomes = self.run_any(asks, late);
        let open = outcomes.iter().position(|o| !o.finished);
        assert!(open.is_none(), "request {open:?} has not finished");
        outcomes
    }

    /// The same where a request may end otherwise.
    pub fn run_any(&mut self, asks: &[Ask], late: usize) -> Vec<Outcome> {
        let sinks: Vec<Recorder> = asks.iter().map(|_| Recorder::default()).collect();
        let first = self.next;
        let submit = |i: usize| {
            let request = request(&asks[i], first + i as u64);
            let sink = Box::new(sinks[i].clone());
            self.handle.submit(request, sink).unwrap_or_else(|e| panic!("refused: {e:?}"));
        };
        let early = if late == 0 { asks.len() } else { asks.len().div_ceil(2) };
        (0..early).for_each(submit);
        for _ in 0..late {
            self.steps.turn();
        }
        (early..asks.len()).for_each(submit);
        self.turns_ms.clear();
        let mut start = Instant::now();
        while self.steps.turn() == LoopTurn::Stepped {
            self.turns_ms.push(start.elapsed().as_secs_f64() * 1e3);
            start = Instant::now();
        }
        self.next += asks.len() as u64;
        let mut rows = self.rows.lock().expect("nobody panics with it");
        let outcome = |(i, sink): (usize, &Recorder)| {
            let events = sink.0.lock().expect("nobody panics with it");
            let finished = |e: &Event| matches!(e.kind, EventKind::Finished { .. });
            let token = |e: &Event| match &e.kind {
                EventKind::Token { token, .. } => Some(token.0),
                _ => None,
            };
            let id = first + i as u64;
            let mine: Vec<u32> = rows.range((id, 0)..=(id, u32::MAX)).map(|(k, _)| k.1).collect();
            let rows = mine.into_iter().map(|p| (p, rows.remove(&(id, p)).unwrap_or_default()));
            Outcome {
                tokens: events.iter().filter_map(token).collect(),
                rows: rows.collect(),
                finished: events.last().is_some_and(finished),
            }
        };
        sinks.iter().enumerate().map(outcome).collect()
    }

    fn turns(&mut self, asks: &[Ask], at: usize, then: impl FnOnce()) {
        for ask in asks {
            let request = request(ask, self.next);
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

    /// Runs requests with at most `live` of them at once and up to `burst` new ones a step.
    pub fn churn(&mut self, asks: &[Ask], live: usize, burst: usize) -> Vec<Trace> {
        let tracers: Vec<Tracer> = asks.iter().map(|_| Tracer::default()).collect();
        let first = self.next;
        self.next += asks.len() as u64;
        let (mut sent, mut open) = (0, Vec::new());
        let ended = |i: &usize| tracers[*i].0.lock().expect("nobody panics with it").ended;
        while sent < asks.len() || !open.is_empty() {
            for _ in 0..burst {
                if sent == asks.len() || open.len() >= live {
                    break;
                }
                let sink = Box::new(tracers[sent].clone());
                let request = request(&asks[sent], first + sent as u64);
                self.handle.submit(request, sink).unwrap_or_else(|e| panic!("refused: {e:?}"));
                open.push(sent);
                sent += 1;
            }
            self.steps.turn();
            open.retain(|i| !ended(i));
        }
        let mut rows = core::mem::take(&mut *self.digests.lock().expect("nobody panics with it"));
        let mut traces: Vec<Trace> =
            tracers.iter().map(|t| *t.0.lock().expect("nobody panics with it")).collect();
        while let Some(((id, _), digest)) = rows.pop_first() {
            let trace = &mut traces[(id - first) as usize];
            trace.rows = digest_step(digest_step(trace.rows, digest as u32), (digest >> 32) as u32);
        }
        traces
    }

    /// Milliseconds of each turn of the last run.
    pub fn turns_ms(&self) -> &[f64] {
        &self.turns_ms
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        self.steps.turn();
    }

    /// The engine's handle, for another thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The engine's own report.
    pub fn status(&self) -> lockstep_flow::status::EngineStatus {
        self.handle.status()
    }
}

fn request(ask: &Ask, id: u64) -> Request {
    Request {
        id: RequestId(id),
        prompt: ask.prompt.iter().map(|t| Token(*t)).collect(),
        params: ask.params.clone(),
        grammar: None,
        arrived: Micros(id + 1),
        deadline: None,
        adapter: 0,
        use_prefix_cache: false,
    }
}

/// xorshift64*: test data that is the same on every run.
pub struct Rng(pub u64);

impl Rng {
    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        ((self.top() * u64::from(n)) >> 32) as u32
    }

    /// Four bytes.
    pub fn word(&mut self) -> [u8; 4] {
        (self.top() as u32).to_le_bytes()
    }

    fn top(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
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

/// The greatest logit less the next one.
pub fn margin(row: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; 2];
    for v in row {
        if *v > best[0] {
            best = [*v, best[0]];
        } else if *v > best[1] {
            best[1] = *v;
        }
    }
    best[0] - best[1]
}
