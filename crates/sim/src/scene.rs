//! The real engine on a tiny model, one step at a time.

use crate::engine::{Keeper, assembled};
use crate::fault_device::FaultDevice;
use crate::rng::Rng;
use crate::strike::{Sabotage, StrikeLog};
use core::fmt;
use lockstep_device::{CpuDevice, DeviceError};
use lockstep_engine::{EngineError, Handle, Knobs, LoopTurn, StepLoop};
use lockstep_flow::{
    AuditPart, BucketKey, EventKind, Micros, Request, RequestId, SamplingParams, Seed, Token,
};
use lockstep_model::{Model, ModelError};
use lockstep_weights::{Checkpoint, SourceFile, WeightsError};
use std::sync::Arc;
use std::time::Duration;

/// A Llama of two layers with random weights, 256 tokens of vocabulary.
const TINY: &[u8] = include_bytes!("../../../fixtures/tiny/gguf/llama-F16.gguf");

/// Why a scene could not be set.
#[derive(Debug)]
pub enum SceneError {
    /// The built-in model.
    Weights(WeightsError),
    /// Its plans.
    Model(ModelError),
    /// The device.
    Device(DeviceError),
    /// The engine.
    Engine(EngineError),
}

impl fmt::Display for SceneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SceneError::Weights(e) => write!(f, "the built-in model: {e}"),
            SceneError::Model(e) => write!(f, "the built-in model: {e}"),
            SceneError::Device(e) => e.fmt(f),
            SceneError::Engine(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for SceneError {}

/// The tiny model that scenes run: `fixtures/tiny/gguf/llama-F16.gguf`, built in.
///
/// # Errors
/// None but for a bug: the file is part of the binary.
pub fn tiny_model() -> Result<Model, SceneError> {
    let file = SourceFile::in_memory("tiny llama", TINY.to_vec());
    let checkpoint = Checkpoint::from_gguf(file).map_err(SceneError::Weights)?;
    Model::new(Arc::new(checkpoint)).map_err(SceneError::Model)
}

/// What of the audit said something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which part.
    pub part: AuditPart,
    /// Its words.
    pub words: String,
    /// Replays from the first strike (1 is the struck one) to the finding.
    pub steps: u64,
    /// Time from the first strike.
    pub after: Duration,
}

/// What a scene came to.
#[derive(Clone, Default, Debug)]
pub struct Outcome {
    /// Strikes that hit.
    pub strikes: u64,
    /// Steps run.
    pub steps: u64,
    /// The first finding of every part of the audit that found something.
    pub findings: Vec<Finding>,
    /// Tokens and bits of their log-probabilities, by request; what clients saw.
    pub seen: Vec<Vec<(u32, u32)>>,
    /// Requests that ended in a failure, in words.
    pub failures: Vec<String>,
    /// Audited steps.
    pub audits: u64,
    /// Buckets, and how often each was replayed.
    pub buckets: Vec<(BucketKey, u64)>,
    /// From the first strike to the end.
    pub took: Duration,
}

/// A scene: which requests, on which device, how often audited.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Seeds prompts and sampling.
    pub seed: u64,
    /// One step in this many is audited; 0 is off.
    pub audit_rate: u32,
    /// What goes wrong.
    pub sabotage: Option<Sabotage>,
    /// Replays run on several lanes.
    pub lanes: bool,
    /// Those lanes are threads.
    pub threads: bool,
    /// Logits tie in pairs.
    pub ties: bool,
    /// Requests.
    pub requests: u32,
    /// So many run at once, now and then one more; the others come as places get free.
    pub at_once: u32,
    /// The first request asks for its prompt's log-probabilities too.
    pub echo: bool,
    /// Tokens of each.
    pub tokens: u32,
    /// Ends as soon as the audit has found something.
    pub until_found: bool,
    /// The only part of the audit that is on; all of them where none is named.
    pub parts: Option<AuditPart>,
}

impl Default for Scene {
    fn default() -> Scene {
        Scene {
            seed: 0,
            audit_rate: 1,
            sabotage: None,
            lanes: false,
            threads: false,
            ties: false,
            requests: 5,
            at_once: 3,
            echo: false,
            tokens: 24,
            until_found: true,
            parts: None,
        }
    }
}

impl Scene {
    /// The knobs that scenes run with.
    pub fn knobs(&self) -> Knobs {
        Knobs {
            graph_max_bs: 8,
            running_max: 8,
            queued_max: 64,
            chunk_tokens: 64,
            kv_bytes: 8 << 20,
            context_tokens: 1024,
            audit_rate: self.audit_rate,
            audit_parts: AuditPart::ALL.map(|p| self.parts.is_none_or(|only| only == p)),
            ..Knobs::default()
        }
    }

    /// Plays it.
    ///
    /// # Errors
    /// The engine could not be assembled.
    pub fn play(&self) -> Result<Outcome, SceneError> {
        self.play_on(tiny_model()?)
    }

    /// Plays it on a model of at least 256 tokens of vocabulary.
    ///
    /// # Errors
    /// As [`Scene::play`].
    pub fn play_on(&self, model: Model) -> Result<Outcome, SceneError> {
        let device = CpuDevice::new(1, "auto").map_err(SceneError::Device)?;
        let mut device = FaultDevice::new(device, self.sabotage.clone());
        if self.lanes {
            device = device.on_lanes();
        }
        if self.threads {
            device = device.on_threads();
        }
        if self.ties {
            device = device.with_ties();
        }
        let log = device.log();
        let (handle, steps) = assembled(device, model, self.knobs())?;
        Ok(self.turn(&handle, steps, &log))
    }

    fn request(&self, i: u32) -> Request {
        let mut rng = Rng::new(self.seed ^ u64::from(i) << 32);
        let prompt = (0..20 + rng.below(70)).map(|_| Token(3 + rng.below(250) as u32)).collect();
        let params = SamplingParams {
            temperature: if i.is_multiple_of(2) { 0.0 } else { 0.8 },
            seed: Seed(rng.bits()),
            logprobs: Some(0),
            prompt_logprobs: self.echo && i == 0,
            max_tokens: self.tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Request {
            id: RequestId(u64::from(i)),
            prompt,
            params,
            grammar: None,
            arrived: Micros(u64::from(i) + 1),
            deadline: None,
            adapter: 0,
            use_prefix_cache: true,
        }
    }

    fn turn(&self, handle: &Handle, mut steps: StepLoop, log: &StrikeLog) -> Outcome {
        let sinks: Vec<Keeper> = (0..self.requests).map(|_| Keeper::default()).collect();
        let mut outcome = Outcome::default();
        let mut submitted = 0;
        loop {
            let ended = sinks.iter().filter(|s| s.ended()).count() as u32;
            // A few at once, so that batches are smaller than their buckets and change.
            while submitted < self.requests && submitted - ended < self.at_once + (submitted & 1) {
                let sink = Box::new(sinks[submitted as usize].clone());
                if let Err(e) = handle.submit(self.request(submitted), sink) {
                    outcome.failures.push(e.to_string());
                }
                submitted += 1;
            }
            let turn = steps.turn();
            if self.note(handle, log, &mut outcome) && self.until_found {
                break;
            }
            let done = ended + outcome.failures.len() as u32 >= self.requests;
            if turn == LoopTurn::Stopped || done && turn == LoopTurn::Idle {
                break;
            }
        }
        outcome.took = log.at().map_or(Duration::ZERO, |at| at.elapsed());
        outcome.strikes = log.strikes();
        outcome.steps = log.steps();
        let status = handle.status();
        outcome.audits = status.counters.audits;
        outcome.buckets = status.buckets.iter().map(|b| (b.key, b.replays)).collect();
        for sink in &sinks {
            let mut seen = Vec::new();
            for event in sink.events().iter() {
                match &event.kind {
                    EventKind::Token { token, logprob, .. } => {
                        seen.push((token.0, logprob.as_ref().map_or(0, |l| l.logprob.to_bits())));
                    }
                    EventKind::Failed { failure, .. } => outcome.failures.push(failure.to_string()),
                    _ => {}
                }
            }
            outcome.seen.push(seen);
        }
        outcome
    }

    /// Notes the first finding of every part; true where there is one.
    fn note(&self, handle: &Handle, log: &StrikeLog, outcome: &mut Outcome) -> bool {
        let audit = handle.status().audit;
        for part in AuditPart::ALL {
            let known = outcome.findings.iter().any(|f| f.part == part);
            if known || audit.part(part).mismatches == 0 {
                continue;
            }
            let of_part = |w: &&String| w.starts_with(part.as_str());
            let words = audit.evidence.iter().find(of_part).cloned().unwrap_or_default();
            let steps = (log.replays() + 1).saturating_sub(log.first()).max(1);
            let after = log.at().map_or(Duration::ZERO, |at| at.elapsed());
            outcome.findings.push(Finding { part, words, steps, after });
        }
        !outcome.findings.is_empty()
    }
}
