//! Where a generation is staged: planned, proven, prepared, captured and sealed on a builder thread
//! of its own, then verified by canary steps that the step thread runs between two of its own.
//!
//! The builder owns the staged arena for as long as it writes it, and sends it to the step thread
//! for the steps in it; so nothing is written where something may run.

use crate::EngineError;
use crate::Knobs;
use crate::blueprint::Blueprint;
use crate::canary::{Canary, CanaryAnswer};
use crate::draft::Draft;
use crate::generation::{ladder, prove_drafts};
use crate::handle::Command;
use crate::knobs::KnobChange;
use crate::publish::Shared;
use lockstep_device::{AwayArena, DeviceError, Mode, Workshop};
use lockstep_flow::generation::{
    BucketEvidence, GENERATIONS_KEPT, Gap, GenerationDigests, GenerationError, GenerationReport,
    GenerationState, StageMode,
};
use lockstep_flow::status::Health;
use lockstep_flow::{Clock, Micros};
use lockstep_model::{Model, PlanShape};
use lockstep_plan::{Backend, prove_between};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Address space of a builder's stack.
const BUILDER_STACK_BYTES: usize = 16 << 20;

/// What an arena holds before a poisoned canary step. As a float it is tiny and odd, as an index
/// it is out of every range, and no byte of it is 0.
pub const POISON: u8 = 0xA5;

/// Everything that staging needs and no step changes.
pub struct Yard {
    /// The model.
    pub model: Model,
    /// The side of the device that shapes plans.
    pub backend: Arc<dyn Backend + Send + Sync>,
    /// The side of the device that makes arenas.
    pub workshop: Arc<dyn Workshop>,
    /// Makes of the model's plans what is to be proven.
    pub draft: Arc<dyn Draft>,
    /// The knobs that the engine began with.
    pub start: Knobs,
    /// The live generation, as of the last flip.
    pub live: Mutex<Arc<Blueprint>>,
    /// The engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Reports, and what else other threads see.
    pub shared: Arc<Shared>,
}

/// Why a staged generation is rejected.
pub(crate) enum Rejection {
    /// It could not be made.
    Engine(EngineError),
    /// Words of the step thread, or of the builder.
    Because(String),
}

impl From<EngineError> for Rejection {
    fn from(e: EngineError) -> Rejection {
        Rejection::Engine(e)
    }
}

impl From<DeviceError> for Rejection {
    fn from(e: DeviceError) -> Rejection {
        Rejection::Engine(EngineError::Device(e))
    }
}

impl core::fmt::Display for Rejection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Rejection::Engine(e) => e.fmt(f),
            Rejection::Because(what) => f.write_str(what),
        }
    }
}

/// The staged generation's arenas, on their way to the device.
pub struct Arrival {
    /// What it is.
    pub blueprint: Arc<Blueprint>,
    /// Buckets in the order in which they were captured in `main`.
    pub order: Vec<usize>,
    /// The arena with every bucket.
    pub main: Box<dyn AwayArena>,
    /// The arena with the twins of the captured ones, in the same order.
    pub shadow: Option<Box<dyn AwayArena>>,
}

/// The step loop does not answer any more.
pub(crate) fn gone<E>(_: E) -> Rejection {
    Rejection::Because("the step loop stopped meanwhile".into())
}

impl Yard {
    pub(crate) fn live(&self) -> Arc<Blueprint> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes which generation is live now.
    pub fn set_live(&self, blueprint: Arc<Blueprint>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = blueprint;
    }

    fn report(&self, number: u64, change: impl FnOnce(&mut GenerationReport)) {
        self.shared.report(number, change);
    }

    /// Gives up what is built for a server that drains, but where steps are held for it: there
    /// the shortest way to more steps is forward.
    pub(crate) fn go_on(&self, number: u64) -> Result<(), Rejection> {
        let mut on = true;
        self.shared.update(|s| on = s.health != Health::Draining || s.held_for == Some(number));
        if on { Ok(()) } else { Err(Rejection::Because(DRAINING.into())) }
    }

    /// Moves the report on; the builder's moves are the state machine's own.
    fn advance(&self, number: u64, to: GenerationState) -> Result<(), Rejection> {
        self.go_on(number)?;
        let now = self.clock.now();
        let mut moved = Ok(());
        self.report(number, |r| moved = r.advance(to, now));
        moved.map_err(|e| Rejection::Because(e.to_string()))
    }

    /// Takes a generation on: checks its knobs, gives it a number, and starts its builder.
    ///
    /// # Errors
    /// A knob that a live flip cannot change, another generation beside the live one, or a server
    /// that drains.
    pub fn stage(
        self: &Arc<Self>,
        changes: &[KnobChange],
        mode: StageMode,
        commands: Sender<Command>,
    ) -> Result<u64, GenerationError> {
        let live = self.live();
        let knobs = live.knobs.with(&self.start, changes)?;
        let number = self.enter(&live, &knobs, mode)?;
        let yard = Arc::clone(self);
        let builder = std::thread::Builder::new()
            .name("builder".into())
            .stack_size(BUILDER_STACK_BYTES)
            .spawn(move || match mode {
                StageMode::Beside => yard.build(number, knobs, &commands),
                StageMode::Drain => yard.replace(number, knobs, &commands),
            });
        if let Err(e) = builder {
            let why = format!("the builder thread did not start: {}", e.kind());
            self.reject(number, &why);
            return Err(GenerationError::Stopped { why });
        }
        Ok(number)
    }

    /// Opens the report of a new generation, where there is none beside the live one.
    fn enter(
        &self,
        live: &Blueprint,
        knobs: &Knobs,
        mode: StageMode,
    ) -> Result<u64, GenerationError> {
        if let Some(why) = self.shared.failure() {
            return Err(GenerationError::Stopped { why });
        }
        let now = self.clock.now();
        let mut entered = Ok(0);
        self.shared.update(|status| {
            // Under the lock that [`crate::Handle::drain`] takes: what enters is there before.
            if status.health == Health::Draining {
                entered = Err(GenerationError::Draining { asked: "staged" });
                return;
            }
            let reports = &mut status.generations;
            let other =
                reports.iter().find(|r| !r.state.is_over() && r.number != status.generation);
            if let Some(GenerationReport { number, state, .. }) = other {
                entered = Err(GenerationError::Busy { number: *number, state: *state });
                return;
            }
            let number = reports.last().map_or(1, |r| r.number) + 1;
            if reports.len() >= GENERATIONS_KEPT
                && let Some(oldest) = reports.iter().position(|r| r.state.is_over())
            {
                reports.remove(oldest);
            }
            reports.push(GenerationReport { mode, ..planned(number, live, knobs, now) });
            status.counters.generations_staged += 1;
            entered = Ok(number);
        });
        entered
    }

    pub(crate) fn reject(&self, number: u64, why: &str) {
        let now = self.clock.now();
        self.shared.update(|status| {
            let Some(report) = status.generations.iter_mut().find(|r| r.number == number) else {
                return;
            };
            if !report.state.is_over() {
                report.reject(why, now);
                self.shared.rejected.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// The builder's whole life.
    fn build(&self, number: u64, knobs: Knobs, commands: &Sender<Command>) {
        lockstep_device::cpu::stand_back();
        let Err(why) = in_words(|| self.build_up(number, knobs, commands)) else { return };
        let (reply, remains) = mpsc::channel();
        if commands.send(Command::Discard { number, reply }).is_ok() {
            // What is left of it is dropped here, where that costs no step.
            drop(remains.recv());
        }
        self.reject(number, &why);
    }

    fn build_up(
        &self,
        number: u64,
        knobs: Knobs,
        commands: &Sender<Command>,
    ) -> Result<(), Rejection> {
        let blueprint = self.planned_out(number, knobs)?;
        self.room_beside(&blueprint)?;
        self.bring_up(&blueprint, commands)
    }

    /// Plans and proofs, and what the report says of them.
    pub(crate) fn planned_out(
        &self,
        number: u64,
        knobs: Knobs,
    ) -> Result<Arc<Blueprint>, Rejection> {
        let blueprint = Arc::new(self.prove(number, knobs)?);
        let evidence = blueprint.evidence();
        self.report(number, |r| {
            r.buckets = evidence.as_slice().into();
            r.arena_bytes = blueprint.arena_bytes();
            r.shadow_bytes = blueprint.shadow_bytes();
            r.digests = blueprint.digests.clone();
        });
        self.advance(number, GenerationState::Proven)?;
        Ok(blueprint)
    }

    /// Arenas, captures, seals, canary steps.
    pub(crate) fn bring_up(
        &self,
        blueprint: &Arc<Blueprint>,
        commands: &Sender<Command>,
    ) -> Result<(), Rejection> {
        let number = blueprint.number;
        let unsent = self.make(blueprint, |to| self.advance(number, to))?;
        let evidence = self.sealed(blueprint, blueprint.evidence(), &unsent);
        self.advance(number, GenerationState::Sealed)?;
        self.verify(blueprint, unsent, evidence, commands)
    }

    /// Refuses what `generations.memory` does not hold beside the live generation.
    fn room_beside(&self, blueprint: &Blueprint) -> Result<(), Rejection> {
        let (asked, max) = (bytes_of(blueprint), self.start.staging_bytes);
        if max == 0 || asked <= max {
            return Ok(());
        }
        let live = bytes_of(&self.live());
        let why = format!(
            "its arenas take {asked} bytes beside the live generation's {live} and \
             generations.memory is {max}: ask for fewer or smaller buckets, stage it with \
             {DRAIN}, which stops steps and gives the live one's bytes back first, or restart with \
             --generation-memory {asked}"
        );
        Err(Rejection::Because(why))
    }

    /// An arena, or the numbers of what there is no room for.
    fn arena(&self, blueprint: &Blueprint, bytes: u64) -> Result<Box<dyn AwayArena>, Rejection> {
        self.workshop.arena(bytes).map_err(|e| match e {
            DeviceError::OutOfMemory { .. } => Rejection::Because(format!(
                "{e}; its arenas take {} bytes in all, and the live generation's {}: where both \
                 do not fit, stage it with {DRAIN}",
                bytes_of(blueprint),
                bytes_of(&self.live()),
            )),
            e => e.into(),
        })
    }

    /// Plans and proofs: of each bucket, of any order among them, and of any order of them and the
    /// live generation's.
    fn prove(&self, number: u64, knobs: Knobs) -> Result<Blueprint, Rejection> {
        let live = self.live();
        let shape = PlanShape { lanes: knobs.lanes, ..live.shape };
        let keys = ladder(&knobs);
        let proven = prove_drafts(
            &self.model,
            self.backend.as_ref(),
            &shape,
            &keys,
            (self.draft.as_ref(), number),
        )?;
        let blueprint = Blueprint::new(number, knobs, shape, proven, &live.digests.weights);
        let differs = |what| {
            let why = format!(
                "its {what} is not the live generation's: running sequences cannot go on in it; \
                 drain the server and restart it"
            );
            Err(Rejection::Because(why))
        };
        if blueprint.digests.state_layout != live.digests.state_layout {
            return differs("state layout");
        }
        if blueprint.digests.numerics != live.digests.numerics {
            return differs("numerics");
        }
        let (old, new) = (live.plans(), blueprint.plans());
        let pairs = 2 * (old.len() * new.len()) as u64;
        prove_between(&old, &new).map_err(|hazards| {
            let bucket = blueprint.proven[0].key;
            Rejection::Engine(EngineError::Refused { bucket, hazards })
        })?;
        self.report(number, |r| r.order_proofs = pairs);
        Ok(blueprint)
    }

    /// Arenas, captures, seals; `reached` is told of each state.
    pub(crate) fn make(
        &self,
        blueprint: &Arc<Blueprint>,
        reached: impl Fn(GenerationState) -> Result<(), Rejection>,
    ) -> Result<Unsent, Rejection> {
        let shadow_bytes = blueprint.shadow_bytes();
        let mut main = self.arena(blueprint, blueprint.arena_bytes())?;
        let mut shadow =
            if shadow_bytes > 0 { Some(self.arena(blueprint, shadow_bytes)?) } else { None };
        reached(GenerationState::Prepared)?;
        let order = blueprint.capture_order();
        for &i in &order {
            let bucket = &blueprint.proven[i];
            main.capture(&bucket.proven)?;
            if let (Some(shadow), Mode::Captured) = (&mut shadow, bucket.mode) {
                shadow.capture(&bucket.proven)?;
            }
        }
        reached(GenerationState::Captured)?;
        main.seal()?;
        if let Some(shadow) = &mut shadow {
            shadow.seal()?;
        }
        Ok(Unsent { order, main, shadow })
    }

    /// Notes that every manifest was compared, and of the captured ones the twin's too.
    fn sealed(
        &self,
        blueprint: &Blueprint,
        mut evidence: Vec<BucketEvidence>,
        unsent: &Unsent,
    ) -> Vec<BucketEvidence> {
        let mut checks = 0;
        for e in &mut evidence {
            e.manifest_checks = 1 + u32::from(unsent.shadow.is_some() && e.captured);
            checks += u64::from(e.manifest_checks);
        }
        self.report(blueprint.number, |r| r.buckets = evidence.as_slice().into());
        self.shared.manifest_checks.fetch_add(checks, Ordering::Relaxed);
        evidence
    }

    /// Hands the generation over and has each bucket show what it does: the arena is filled with
    /// a pattern here, and the step thread runs the bucket's canary steps in it.
    fn verify(
        &self,
        blueprint: &Arc<Blueprint>,
        unsent: Unsent,
        mut evidence: Vec<BucketEvidence>,
        commands: &Sender<Command>,
    ) -> Result<(), Rejection> {
        let number = blueprint.number;
        let (reply, lent) = mpsc::channel();
        let arrival = Box::new(unsent.arrival(blueprint));
        commands.send(Command::Install { arrival, reply }).map_err(gone)?;
        let mut arena = lent.recv().map_err(gone)?.map_err(Rejection::Because)?;
        for bucket in 0..blueprint.proven.len() {
            self.go_on(number)?;
            arena.fill(evidence[bucket].arena_bytes, POISON);
            let (reply, answer) = mpsc::channel();
            let canary = Canary { number, bucket, before: evidence[bucket], arena, reply };
            commands.send(Command::Canary(Box::new(canary))).map_err(gone)?;
            let CanaryAnswer { arena: back, evidence: found, failure } =
                answer.recv().map_err(gone)?;
            arena = back;
            evidence[bucket] = found;
            self.report(number, |r| r.buckets = evidence.as_slice().into());
            if let Some(why) = failure {
                return Err(Rejection::Because(why));
            }
        }
        // It begins as every arena does.
        arena.fill(arena.bytes(), 0);
        let (reply, done) = mpsc::channel();
        commands.send(Command::Finish { number, arena, reply }).map_err(gone)?;
        done.recv().map_err(gone)?.map_err(Rejection::Because)
    }
}

/// Arenas with sealed executables that no device has yet.
pub(crate) struct Unsent {
    order: Vec<usize>,
    main: Box<dyn AwayArena>,
    shadow: Option<Box<dyn AwayArena>>,
}

impl Unsent {
    /// On their way to the device.
    pub(crate) fn arrival(self, blueprint: &Arc<Blueprint>) -> Arrival {
        let Unsent { order, main, shadow } = self;
        Arrival { blueprint: blueprint.clone(), order, main, shadow }
    }
}

/// Why nothing is built any more.
const DRAINING: &str = "the server began to drain: what runs ends first";

/// How the request body names the mode for which there is room.
const DRAIN: &str = "\"mode\": \"drain\"";

/// Bytes of its arenas.
fn bytes_of(blueprint: &Blueprint) -> u64 {
    blueprint.arena_bytes() + blueprint.shadow_bytes()
}

/// What a builder does, with its failure or its panic in words.
pub(crate) fn in_words<T>(build: impl FnOnce() -> Result<T, Rejection>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(built) => built.map_err(|rejection| rejection.to_string()),
        Err(_) => Err("the builder thread panicked; its words are on standard error".into()),
    }
}

/// The report of a generation that has just been asked for.
fn planned(number: u64, live: &Blueprint, knobs: &Knobs, now: Micros) -> GenerationReport {
    GenerationReport {
        number,
        state: GenerationState::Planned,
        mode: StageMode::Beside,
        knobs: knobs.in_force(&live.knobs),
        buckets: Arc::new([]),
        arena_bytes: 0,
        shadow_bytes: 0,
        digests: GenerationDigests::default(),
        order_proofs: 0,
        moves: vec![(GenerationState::Planned, now)],
        steps: 0,
        captured_steps: 0,
        gap: Gap::default(),
        watched_until: None,
        verified_at: None,
        reason: None,
    }
}

/// The report of the generation that an engine starts with: made before there was anything to
/// stage it beside, and sealed.
pub fn first(blueprint: &Blueprint, now: Micros) -> GenerationReport {
    let mut evidence = blueprint.evidence();
    for e in &mut evidence {
        e.manifest_checks = 1 + u32::from(blueprint.shadow_bytes() > 0 && e.captured);
    }
    GenerationReport {
        state: GenerationState::Live,
        buckets: evidence.into(),
        arena_bytes: blueprint.arena_bytes(),
        shadow_bytes: blueprint.shadow_bytes(),
        digests: blueprint.digests.clone(),
        moves: vec![(GenerationState::Sealed, now), (GenerationState::Live, now)],
        ..planned(blueprint.number, blueprint, &blueprint.knobs, now)
    }
}
