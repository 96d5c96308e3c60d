//! Putting an engine together, and the step thread.

use crate::audit::Audit;
use crate::blueprint::Blueprint;
use crate::canary::CANARY_SEQS_MAX;
use crate::core::Core;
use crate::draft::{Draft, Packed};
use crate::generation::{Generation, capture_all, ladder, prove_drafts};
use crate::handle::Handle;
use crate::publish::Shared;
use crate::status;
use crate::step_loop::StepLoop;
use crate::tap::{LogitTap, Tap};
use crate::yard::Yard;
use crate::{EngineError, Knobs, RealClock};
use lockstep_device::Device;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::status::{DeviceFacts, ModelFacts, WaitReason};
use lockstep_flow::{Clock, Token};
use lockstep_model::{Model, PlanShape, SubPool};
use lockstep_plan::{Backend, KvDtype, pack, prove};
use lockstep_pool::{Pool, PoolConfig};
use lockstep_sched::{Ladder, SchedConfig, Scheduler};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

/// What an engine is started with.
pub struct EngineParts<'a> {
    /// The device.
    pub device: Box<dyn Device>,
    /// The model.
    pub model: Model,
    /// Tokens that end a text, beside those that the model's files name.
    pub eos: &'a [Token],
    /// The knobs.
    pub knobs: Knobs,
    /// Facts for the status that the engine does not know itself.
    pub model_facts: ModelFacts,
    /// Facts about the device.
    pub device_facts: DeviceFacts,
    /// Told after each weight: how many of how many bytes have been loaded.
    pub progress: Box<dyn FnMut(u64, u64) + 'a>,
    /// Sees every row of logits; costs nothing where there is none.
    pub tap: Option<Box<dyn LogitTap>>,
    /// Makes of the model's plans what is to be proven; without one, they are packed as they are.
    pub draft: Option<Arc<dyn Draft>>,
}

impl EngineParts<'_> {
    /// What an engine cannot be made without, and nobody who watches it.
    pub fn of(device: Box<dyn Device>, model: Model, knobs: Knobs) -> EngineParts<'static> {
        EngineParts {
            device,
            model,
            eos: &[],
            knobs,
            model_facts: ModelFacts::default(),
            device_facts: DeviceFacts::default(),
            progress: Box::new(|_, _| {}),
            tap: None,
            draft: None,
        }
    }
}

/// Sizes that were chosen at start, for people.
#[derive(Clone, Debug)]
pub struct Started {
    /// The handle.
    pub handle: Handle,
    /// Tokens that the pool holds.
    pub capacity_tokens: u64,
    /// Bytes of one page of the pool.
    pub page_bytes: u64,
    /// Longest sequence.
    pub context_tokens: u32,
    /// Element type of KV rows.
    pub kv_dtype: KvDtype,
}

/// Loads the weights, proves and captures the plans, and starts the step thread.
///
/// # Errors
/// What does not fit, is not supported or is refused by the prover.
pub fn start(parts: EngineParts<'_>) -> Result<Started, EngineError> {
    start_with(parts, || Some(Late::default()))
}

/// What an engine needs to know only once its weights are loaded, so that whoever finds it out
/// can do so meanwhile.
#[derive(Clone, Default, Debug)]
pub struct Late {
    /// More tokens that end a text.
    pub eos: Vec<Token>,
    /// Hex digest of the weights, for the status.
    pub weights_digest: Option<String>,
}

/// As [`start`]; `late` is asked after the weights are loaded and the plans captured. `None` gives
/// the start up: the caller knows why.
///
/// # Errors
/// As [`start`], and [`EngineError::GivenUp`].
pub fn start_with(
    parts: EngineParts<'_>,
    late: impl FnOnce() -> Option<Late>,
) -> Result<Started, EngineError> {
    let (started, steps) = assemble_with(parts, late)?;
    let thread = std::thread::Builder::new()
        .name("step".into())
        .spawn(move || steps.run())
        .map_err(|e| EngineError::Thread { kind: e.kind() })?;
    started.handle.attend(thread);
    Ok(started)
}

/// As [`start`], without the thread: whoever calls this turns the loop.
///
/// # Errors
/// As [`start`].
pub fn assemble(parts: EngineParts<'_>) -> Result<(Started, StepLoop), EngineError> {
    assemble_with(parts, || Some(Late::default()))
}

fn assemble_with(
    mut parts: EngineParts<'_>,
    late: impl FnOnce() -> Option<Late>,
) -> Result<(Started, StepLoop), EngineError> {
    let EngineParts { mut device, model, knobs, eos, .. } = parts;
    let backend = device.backend();
    let shape = plan_shape(&knobs, &model, backend.as_ref())?;
    let sub_pools = model.sub_pools(backend.as_ref(), &shape)?;
    let page_bytes: u64 = sub_pools.iter().map(SubPool::page_bytes).sum();
    let keys = ladder(&knobs);
    let draft = parts.draft.unwrap_or_else(|| Arc::new(Packed));

    // Plans need sizes only, so they are proven while the weights are packed.
    let proven = std::thread::scope(|scope| {
        let proving = scope
            .spawn(|| prove_drafts(&model, backend.as_ref(), &shape, &keys, (draft.as_ref(), 1)));
        load_weights(device.as_mut(), &model, &shape, &mut parts.progress)?;
        proving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    for pool in &sub_pools {
        for (name, bytes) in &pool.buffers {
            device.bind_state(name, bytes * u64::from(shape.pages))?;
        }
    }
    for (name, bytes) in model.slot_states() {
        device.bind_state(&name, bytes * u64::from(shape.slots))?;
    }
    let blueprint = Blueprint::new(1, knobs.clone(), shape, proven, "");
    let mut generation = capture_all(device.as_mut(), Arc::new(blueprint))?;
    let mut audit = Audit::new(&knobs, &generation);
    audit.take_weights(device.as_mut(), &generation)?;
    let late = late().ok_or(EngineError::GivenUp)?;
    if let Some(digest) = late.weights_digest {
        parts.model_facts.weights_digest = digest;
    }
    let blueprint = Arc::get_mut(&mut generation.blueprint).expect("nobody else has it yet");
    blueprint.digests.weights.clone_from(&parts.model_facts.weights_digest);
    let eos = [eos, &late.eos].concat();
    let depth = steps_on_their_way(&knobs, device.as_ref())?;
    let mut sched = scheduler((&knobs, depth), &shape, &generation, &model, &eos, &sub_pools)?;

    sched.pool_mut().keep_digests(audit.page_digest_words());
    let clock: Arc<dyn Clock> = Arc::new(RealClock::start());
    let facts = (&parts.model_facts, &parts.device_facts);
    let mut status = status::initial(facts, &knobs, &generation, clock.now());
    if depth > 1 {
        status.waited_steps = WaitReason::ALL.iter().map(|r| (*r, 0)).collect();
    }
    let live_max = knobs.running_max + knobs.queued_max;
    let shared = Arc::new(Shared::new(sched.limits(), live_max, status));
    let tap = parts.tap.map(|tap| Tap::new(tap, model.vocab()));
    let (workshop, live) = (device.workshop(), Mutex::new(generation.blueprint.clone()));
    let start = knobs.clone();
    let yard = Arc::new(Yard { model, backend, workshop, draft, start, live, clock, shared });
    let (sender, commands) = mpsc::channel();
    let how = (knobs.eager, audit);
    let mut core = Core::new(device, sched, generation, yard.clone(), how, sender.clone());
    core.tap = tap;
    let steps = StepLoop::new(core, commands);
    let handle = Handle::new(yard, sender);
    let capacity_tokens = u64::from(shape.pages - 1) * u64::from(PAGE_TOKENS);
    let (context_tokens, kv_dtype) = (shape.context_tokens, shape.kv_dtype);
    Ok((Started { handle, capacity_tokens, page_bytes, context_tokens, kv_dtype }, steps))
}

/// Shapes that follow from knobs and model.
///
/// # Errors
/// A context that the model does not have, or a memory budget that holds no sequence.
pub fn plan_shape(
    knobs: &Knobs,
    model: &Model,
    backend: &dyn Backend,
) -> Result<PlanShape, EngineError> {
    let model_max = model.context_max();
    let context_tokens = match knobs.context_tokens {
        0 => model_max,
        // A prompt token and one that is made of it.
        n if (2..=model_max).contains(&n) => n,
        n => {
            return Err(EngineError::Knob {
                name: "model.context-length",
                found: n.to_string(),
                expected: format!("0 for the model's own, or 2 to {model_max}"),
            });
        }
    };
    let auto = || if model.keeps_f32() { KvDtype::F32 } else { KvDtype::F16 };
    let shape = PlanShape {
        pages: 0,
        slots: knobs.running_max + canary_slots(knobs) + 1,
        context_tokens,
        kv_dtype: knobs.kv_dtype.unwrap_or_else(auto),
        index_dtype: knobs.index_dtype,
        lanes: knobs.lanes,
        drafts: knobs.drafts,
    };
    let page_bytes = model.sub_pools(backend, &shape)?.iter().map(SubPool::page_bytes).sum();
    with_pages(shape, knobs, page_bytes)
}

/// Slots of the canary steps that verify a staged generation.
fn canary_slots(knobs: &Knobs) -> u32 {
    knobs.running_max.min(CANARY_SEQS_MAX)
}

/// Pages that the budget buys, but no more than every sequence at its longest could use.
fn with_pages(shape: PlanShape, knobs: &Knobs, page_bytes: u64) -> Result<PlanShape, EngineError> {
    let useful = u64::from(knobs.running_max) * u64::from(shape.pages_per_seq_max()) + 1;
    let useful = u32::try_from(useful).unwrap_or(u32::MAX).min(u32::MAX / PAGE_TOKENS);
    let pages = PoolConfig::pages_for(knobs.kv_bytes, page_bytes, useful);
    // The reserved page, and two for a sequence.
    let pages_min = 3;
    if pages < pages_min {
        let kv_bytes = knobs.kv_bytes;
        return Err(EngineError::KvMemory { kv_bytes, page_bytes, pages_min });
    }
    Ok(PlanShape { pages, ..shape })
}

/// Packs every weight of a model on a device; `progress` is told after each of them how many of how
/// many bytes that are.
///
/// # Errors
/// A weight that the model's file lacks or that the device has no room for.
pub fn load_weights(
    device: &mut dyn Device,
    model: &Model,
    shape: &PlanShape,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), EngineError> {
    let (mut done, total) = (0, model.checkpoint_bytes());
    model.load(shape, |name, data, bytes| {
        device.load_weight(name, data)?;
        done += bytes;
        progress(done, total);
        Ok(())
    })
}

/// Steps that may be on their way at once: two where the device can and what then passes between
/// it and the host is proven. Drafts need steps one at a time.
fn steps_on_their_way(knobs: &Knobs, device: &dyn Device) -> Result<u32, EngineError> {
    let Some(relay) = device.relay().filter(|_| knobs.pipelined && knobs.drafts == 0) else {
        return Ok(1);
    };
    let plan = relay.plan();
    let (bucket, packing) = (plan.bucket, pack(&plan));
    prove(plan, packing).map_err(|hazards| EngineError::Refused { bucket, hazards })?;
    Ok(2)
}

fn scheduler(
    (knobs, depth): (&Knobs, u32),
    shape: &PlanShape,
    generation: &Generation,
    model: &Model,
    eos: &[Token],
    sub_pools: &[SubPool],
) -> Result<Scheduler, EngineError> {
    let running = knobs.running_max;
    let pool = Pool::new(PoolConfig {
        id: 1,
        pages: shape.pages,
        slots: running + canary_slots(knobs),
        pages_per_seq_max: shape.pages_per_seq_max(),
        rows_max: running,
        steps_in_flight_max: depth,
        sub_pools: sub_pools
            .iter()
            .map(|p| lockstep_pool::SubPool {
                name: p.name.clone(),
                bytes_per_page: p.page_bytes(),
            })
            .collect(),
        slot_snapshots: false,
    })?;
    let keys = generation.buckets.iter().map(|b| b.key).collect();
    let ladder = Ladder::new(keys, running)?;
    let mut eos_tokens = [model.eos(), eos].concat();
    eos_tokens.sort_unstable();
    eos_tokens.dedup();
    let config = SchedConfig {
        running_requests_max: running,
        queued_requests_max: knobs.queued_max,
        chunked_prefill_tokens: knobs.chunk_tokens,
        context_tokens_max: shape.context_tokens,
        vocab: model.vocab(),
        eos_tokens,
        prefix_cache: knobs.prefix_cache,
        drafts: knobs.drafts,
        depth,
        // Rows past the live ones cost nothing on a device that skips them.
        padding_max_percent: 100,
    };
    Ok(Scheduler::new(config, ladder, pool)?)
}
