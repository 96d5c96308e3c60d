//! A device that does one thing wrong.

use crate::early;
use crate::hits;
use crate::rng::Rng;
use crate::spread::spread;
use crate::step::Step;
use crate::strike::{EVERY_STEP, Sabotage, Strike, StrikeLog};
use lockstep_device::lab::{LabDevice, Raw};
use lockstep_device::{ArenaId, CpuDevice, Device, DeviceError, ExecId, Remains, WeightData, Wrap};
use lockstep_flow::Lease;
use lockstep_plan::explore::{Extension, Poison, Threaded};
use lockstep_plan::mix::mix64;
use lockstep_plan::{
    Buffer, BufferId, BufferKind, Digest, LIVE_COUNTS, Packing, StepPlan, pack, prove,
};
use std::collections::HashMap;
use std::sync::Arc;

/// The longest delay around an edge where lanes are threads.
const DELAY_US: u32 = 20;

/// A CPU device with a saboteur inside. It keeps every promise of [`Device`] to its caller but the
/// one that it was told to break, at the replays that it was told, and says in its log when it did.
///
/// Only replays are struck; a plan's eager runs stay right, as in the field, where the fault is in
/// the captured graph ([`Strike::RowNotWrittenByKernel`] is the exception).
pub struct FaultDevice {
    lab: LabDevice,
    sabotage: Option<Sabotage>,
    /// True where replays run on several lanes, in random order.
    lanes: bool,
    /// True where those lanes are real threads.
    threads: bool,
    /// Of decode steps, one in this many, drawn, runs on lanes, and no other step does: what an
    /// overlap is in the field, where only decode is captured and lanes mostly keep their order.
    decode_odds: Option<u32>,
    log: Arc<StrikeLog>,
    /// Of plans on several lanes, by the proven executable.
    variants: HashMap<ExecId, Variant>,
    made: HashMap<Digest, Arc<Made>>,
    memory: hits::Memory,
    /// Results of the replay before, where the host is to see those.
    stale: Option<(BufferId, Vec<u8>)>,
    pairs: bool,
    /// True where replays leave the lanes alone while nothing is to be struck.
    sparse: bool,
    /// Which steps are to be hit.
    draws: Rng,
    /// The step that the host has written last is one of them.
    drawn: bool,
}

/// A plan on several lanes with its clean and its faulty form.
struct Made {
    clean: Raw,
    faulty: Option<Raw>,
}

struct Variant {
    clean: ExecId,
    faulty: Option<ExecId>,
    arenas: Vec<ArenaId>,
}

impl FaultDevice {
    /// Breaks `device` as `sabotage` says; without one, it is the clean twin.
    pub fn new(device: CpuDevice, sabotage: Option<Sabotage>) -> FaultDevice {
        let lanes = matches!(&sabotage, Some(s) if matches!(s.strike, Strike::Plan(_)));
        let draws = Rng::new(sabotage.as_ref().map_or(0, |s| s.seed.rotate_left(17)));
        FaultDevice {
            lab: LabDevice::new(device),
            sabotage,
            lanes,
            threads: false,
            decode_odds: None,
            log: Arc::default(),
            variants: HashMap::new(),
            made: HashMap::new(),
            memory: hits::Memory::default(),
            stale: None,
            pairs: false,
            sparse: false,
            draws,
            drawn: true,
        }
    }

    /// Runs replays on several lanes in a random order ([`spread`]), with dead bytes poisoned,
    /// sabotage or not.
    pub fn on_lanes(mut self) -> FaultDevice {
        self.lanes = true;
        self
    }

    /// Replays as it was captured wherever nothing is to be struck: for a server, whose undisturbed
    /// steps are to be as fast as ever.
    pub fn sparse(mut self) -> FaultDevice {
        self.sparse = true;
        self
    }

    /// As [`FaultDevice::on_lanes`], with every lane on a thread of its own and delays around
    /// edges. The plan on several lanes is proven first: real kernels run on threads in no other
    /// way, so there is nothing to sabotage in it.
    pub fn on_threads(mut self) -> FaultDevice {
        (self.lanes, self.threads) = (true, true);
        self
    }

    /// As [`FaultDevice::on_lanes`], for one in `odds` of the decode steps, and without poison: what
    /// is read wrongly is what another lane has really written there.
    pub fn on_lanes_at_decode(mut self, odds: u32) -> FaultDevice {
        (self.lanes, self.decode_odds) = (true, Some(odds));
        self
    }

    /// Gives every second output token the weights of the one before, so that logits tie in pairs.
    pub fn with_ties(mut self) -> FaultDevice {
        self.pairs = true;
        self
    }

    /// What the sabotage has come to.
    pub fn log(&self) -> Arc<StrikeLog> {
        self.log.clone()
    }

    fn seed(&self) -> u64 {
        self.sabotage.as_ref().map_or(0, |s| s.seed)
    }

    /// The strike of this replay, where it is due.
    fn due(&self, replay: u64) -> Option<Strike> {
        let s = self.sabotage.as_ref()?;
        let due = replay >= s.first && self.log.strikes() < s.times;
        (due && self.drawn && !self.log.is_resting()).then(|| s.strike.clone())
    }

    /// Decides whether the step that the host is writing is to be hit.
    fn draw(&mut self) {
        let often = self.sabotage.as_ref().map_or(EVERY_STEP, |s| s.per_million);
        self.drawn = self.draws.below(u64::from(EVERY_STEP)) < u64::from(often);
    }

    /// Captures the plan of an executable on several lanes, the first time that it is replayed.
    fn variant(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        if self.variants.contains_key(&exec) {
            return Ok(());
        }
        let proven = self.lab.plan(exec).clone();
        let fault = match &self.sabotage {
            Some(Sabotage { strike: Strike::Plan(fault), seed, .. }) => Some((*fault, *seed)),
            _ => None,
        };
        let made = self.made.entry(Digest::of(&proven)).or_insert_with(|| {
            // A plan that has lanes of its own is taken as it is.
            let plan = if proven.lanes.len() > 2 { proven.clone() } else { spread(&proven) };
            let faulty = fault.and_then(|(f, seed)| f.seed(&plan, seed)).map(|d| {
                // Kernels touch what they touch, whatever a faulty plan says of them.
                let lies = fault.is_some_and(|(f, _)| {
                    matches!(f, lockstep_plan::drill::PlanFault::UndeclaredScratch)
                });
                let kernels = lies.then(|| plan.clone());
                Raw { plan: d.plan, packing: d.packing, kernels }
            });
            let packing = pack(&plan);
            Arc::new(Made { clean: Raw { plan, packing, kernels: None }, faulty })
        });
        let made = made.clone();
        let mut arenas = Vec::new();
        let mut capture = |raw: &Raw| {
            let arena = self.lab.device_mut().arena(raw.packing.arena_bytes())?;
            arenas.push(arena);
            self.lab.capture_raw(raw.clone(), arena)
        };
        let faulty = made.faulty.as_ref().map(&mut capture).transpose()?;
        let clean = if self.threads {
            let Raw { plan, packing, .. } = made.clean.clone();
            let proven = prove(plan, packing).map_err(|hazards| DeviceError::Failed {
                op: "replay".into(),
                what: format!("the plan on lanes is not proven: {}", hazards[0]),
            })?;
            let device = self.lab.device_mut();
            let arena = device.arena(proven.packing().arena_bytes())?;
            arenas.push(arena);
            let exec = device.capture(&Arc::new(proven), arena)?;
            device.seal(exec)?;
            exec
        } else {
            capture(&made.clean)?
        };
        self.variants.insert(exec, Variant { clean, faulty, arenas });
        Ok(())
    }

    /// True where the lanes of this replay are out of program order.
    fn overlaps(&self, exec: ExecId, replay: u64) -> bool {
        let Some(odds) = self.decode_odds else { return true };
        let drawn = mix64(self.seed() ^ mix64(replay)).is_multiple_of(u64::from(odds.max(1)));
        drawn && self.lab.plan(exec).bucket.is_decode()
    }

    fn forget(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        let Some(variant) = self.variants.remove(&exec) else { return Ok(()) };
        for id in core::iter::once(variant.clean).chain(variant.faulty) {
            self.lab.device_mut().release(id)?;
        }
        for arena in variant.arenas {
            self.lab.device_mut().free_arena(arena)?;
        }
        Ok(())
    }

    /// Runs the step on lanes and brings back what others look at.
    fn replay_on_lanes(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        replay: u64,
        strike: bool,
    ) -> Result<(), DeviceError> {
        let variant = &self.variants[&exec];
        let (to, struck) = match variant.faulty {
            Some(faulty) if strike => (faulty, true),
            _ => (variant.clean, false),
        };
        self.lab.device_mut().copy_inputs(exec, to);
        self.log.overlap();
        let plan = self.lab.plan(to).clone();
        let seed = mix64(self.seed() ^ replay << 20);
        if self.threads {
            let threaded = Threaded::new(&plan, 1, seed, DELAY_US).expect("the plan is proven");
            self.lab.run_threads(to, Some(lease), &threaded, None)?;
            self.bring_back(to, exec);
            return Ok(());
        }
        let order = Extension::random(&plan, 1, seed);
        let Some(order) = order else {
            return Err(DeviceError::Failed {
                op: "replay".into(),
                what: "the lanes wait for each other; a device would hang here".into(),
            });
        };
        let packing = self.lab.packing(to);
        let poisons = match self.decode_odds {
            Some(_) => Vec::new(),
            None => transients_only(&plan, packing, order.poisons(&plan, packing)),
        };
        self.lab.explore_steps(to, Some(lease), &order, &poisons, None)?;
        self.bring_back(to, exec);
        if struck {
            self.log.struck(replay);
        }
        Ok(())
    }

    /// Puts what a step on lanes has given where the engine looks for it.
    fn bring_back(&mut self, from: ExecId, to: ExecId) {
        let looked_at = |b: &Buffer| matches!(b.kind, BufferKind::Output { .. });
        let plan = self.lab.plan(from);
        let all = plan.buffer_ids().map(|id| (id, plan.buffer(id)));
        let ids: Vec<(BufferId, u64)> =
            all.filter(|(_, b)| looked_at(b)).map(|(id, b)| (id, b.bytes)).collect();
        for (id, bytes) in ids {
            let mut out = vec![0; bytes as usize];
            self.lab.device().peek(from, id, 0, &mut out);
            self.lab.write_buffer(to, id, 0, &out);
        }
    }

    fn replay_struck(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        replay: u64,
        strike: &Strike,
    ) -> Result<(), DeviceError> {
        let mut rng = Rng::new(self.seed() ^ replay << 32);
        if *strike == Strike::EarlyRead {
            if early::replay(&mut self.lab, exec, lease, &mut rng)? {
                self.log.struck(replay);
            }
            return Ok(());
        }
        let mut step = Step { lab: &mut self.lab, exec };
        let undo = hits::before(&mut step, strike, &mut self.memory, &mut rng);
        self.lab.device_mut().replay(exec, lease)?;
        let mut step = Step { lab: &mut self.lab, exec };
        let mut hit = !undo.is_nothing();
        undo.apply(&mut step);
        hit |= hits::after(&mut step, strike, &mut rng);
        if *strike == Strike::OutputOfAnotherStep {
            self.stale = self.memory.results(exec, &step);
            hit |= self.stale.is_some();
        }
        if hit {
            self.log.struck(replay);
        }
        Ok(())
    }
}

/// Poison of transients alone: inputs were written before, outputs and the logits are looked at
/// after.
fn transients_only(plan: &StepPlan, packing: &Packing, poisons: Vec<Poison>) -> Vec<Poison> {
    let first = plan
        .buffer_ids()
        .filter(|id| !matches!(plan.buffer(*id).kind, BufferKind::Transient))
        .filter_map(|id| packing.offset(id).map(|o| o + plan.buffer(id).bytes))
        .max()
        .unwrap_or(0);
    let last = plan.ops.iter().filter(|op| !op.kind.is_host()).count();
    let clip = |p: Poison| {
        let arena = p.arena.start.max(first)..p.arena.end;
        (!arena.is_empty() && p.before < last).then_some(Poison { before: p.before, arena })
    };
    poisons.into_iter().filter_map(clip).collect()
}

impl Wrap for FaultDevice {
    type Inner = CpuDevice;

    fn inner(&self) -> &CpuDevice {
        self.lab.device()
    }

    fn inner_mut(&mut self) -> &mut CpuDevice {
        self.lab.device_mut()
    }

    fn load_weight(&mut self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError> {
        if let (true, "head", WeightData::Matrix { format, n, k, bytes }) = (self.pairs, name, data)
        {
            let mut bytes = bytes.to_vec();
            let row = bytes.len() / n as usize;
            for pair in bytes.chunks_exact_mut(2 * row) {
                let (first, second) = pair.split_at_mut(row);
                second.copy_from_slice(first);
            }
            let data = WeightData::Matrix { format, n, k, bytes: &bytes };
            return self.lab.device_mut().load_weight(name, data);
        }
        self.lab.device_mut().load_weight(name, data)
    }

    fn release(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.forget(exec)?;
        self.lab.device_mut().release(exec)
    }

    /// The engine writes live counts after the lease has been signed and before anything looks at
    /// the tables: the moment for what the host gets wrong.
    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8] {
        if self.lab.plan(exec).buffer(input).name == LIVE_COUNTS {
            self.memory.host_is_due = true;
            self.draw();
        }
        self.lab.device_mut().input_mut(exec, input)
    }

    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8] {
        if core::mem::take(&mut self.memory.host_is_due) {
            self.host_strikes(exec);
        }
        self.lab.device_mut().inputs_mut(exec, inputs)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        match &self.stale {
            Some((id, bytes)) if *id == output => bytes,
            _ => self.lab.device().output(exec, output),
        }
    }

    fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        if core::mem::take(&mut self.memory.host_is_due) {
            self.host_strikes(exec);
        }
        let replay = self.log.replay();
        let strike = self.due(replay);
        self.stale = None;
        let plan = matches!(strike, Some(Strike::Plan(_)));
        let overlaps = (plan || !self.sparse) && self.overlaps(exec, replay);
        let result = if self.lanes && overlaps {
            self.variant(exec)?;
            self.replay_on_lanes(exec, lease, replay, plan)
        } else if let Some(strike) = strike {
            self.replay_struck(exec, lease, replay, &strike)
        } else {
            self.lab.device_mut().replay(exec, lease)
        };
        self.memory.keep(&Step { lab: &mut self.lab, exec });
        result
    }

    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        if core::mem::take(&mut self.memory.host_is_due) {
            self.host_strikes(exec);
        }
        let strike = self.sabotage.as_ref().map(|s| s.strike.clone());
        let by_kernel = strike == Some(Strike::RowNotWrittenByKernel) && self.log.strikes() > 0;
        let struck = by_kernel && self.drawn && !self.log.is_resting();
        if !struck {
            return self.lab.device_mut().eager(exec, lease);
        }
        let mut rng = Rng::new(self.seed());
        let mut step = Step { lab: &mut self.lab, exec };
        let undo =
            hits::before(&mut step, &Strike::RowNotWrittenByKernel, &mut self.memory, &mut rng);
        self.lab.device_mut().eager(exec, lease)?;
        undo.apply(&mut Step { lab: &mut self.lab, exec });
        Ok(())
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        if core::mem::take(&mut self.memory.host_is_due) {
            self.host_strikes(from);
        }
        self.lab.device_mut().copy_inputs(from, to);
    }

    fn uninstall(&mut self, arena: ArenaId) -> Remains {
        // Numbers of executables are given out again.
        for exec in self.variants.keys().copied().collect::<Vec<_>>() {
            self.forget(exec).expect("its own executables and arenas");
        }
        self.lab.device_mut().uninstall(arena)
    }
}

impl FaultDevice {
    /// What the host gets wrong about the step that is about to run.
    fn host_strikes(&mut self, exec: ExecId) {
        let replay = self.log.replays() + 1;
        let Some(strike) = self.due(replay) else { return };
        let mut rng = Rng::new(self.seed() ^ replay << 40);
        let mut step = Step { lab: &mut self.lab, exec };
        let hit = hits::host(&mut step, &strike, &mut self.memory, &mut rng);
        if hit | hits::between(&mut step, &strike, &mut rng) {
            self.log.struck(replay);
        }
    }
}
