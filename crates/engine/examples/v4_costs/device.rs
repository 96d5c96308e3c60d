//! A CPU device that runs its replays op by op and keeps how long each kind took.

use crate::work::{Step, Work, name, work};
use lockstep_device::{
    ArenaId, AwayArena, CpuDevice, Device, DeviceError, DeviceMemory, ExecId, Manifest, PageBuffer,
    Remains, WeightData, Workshop,
};
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, LIVE_COUNTS, OpId, Proven, StepPlan};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was measured since it was last taken.
#[derive(Default)]
pub struct Log {
    /// Steps are timed, and ops too where `by_op` is true.
    pub on: bool,
    pub by_op: bool,
    /// Each step's time.
    pub steps: Vec<Duration>,
    /// By kind of op.
    pub kinds: BTreeMap<String, Kind>,
}

/// Ops of a kind.
#[derive(Default)]
pub struct Kind {
    pub calls: u64,
    pub work: Work,
    /// Of each step, the time of all its ops of this kind.
    pub steps: Vec<Duration>,
}

impl Log {
    fn add(&mut self, step: BTreeMap<String, (u64, Work, Duration)>) {
        for (name, (calls, work, took)) in step {
            let kind = self.kinds.entry(name).or_default();
            kind.calls += calls;
            kind.work.bytes += work.bytes;
            kind.work.macs += work.macs;
            kind.work.others += work.others;
            kind.work.divs += work.divs;
            kind.steps.push(took);
        }
    }
}

/// The device.
pub struct Timed {
    inner: CpuDevice,
    plans: HashMap<ExecId, Arc<Proven>>,
    log: Arc<Mutex<Log>>,
}

impl Timed {
    /// With `threads` threads, and where its log goes.
    pub fn new(threads: u32) -> (Timed, Arc<Mutex<Log>>) {
        let inner = CpuDevice::new(threads, "auto").unwrap_or_else(|e| panic!("{e}"));
        let log = Arc::new(Mutex::new(Log::default()));
        (Timed { inner, plans: HashMap::new(), log: Arc::clone(&log) }, log)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Live rows of the step and their positions.
    fn step(&self, exec: ExecId, plan: &StepPlan) -> Step {
        let words = |name: &str| -> Vec<u32> {
            let id = plan.find(name).expect("every plan has it");
            let mut bytes = vec![0; plan.buffer(id).bytes as usize];
            self.inner.peek(exec, id, 0, &mut bytes);
            let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            bytes.chunks_exact(4).map(word).collect()
        };
        let live = words(LIVE_COUNTS);
        let mut positions = words("positions");
        positions.truncate(live[0] as usize);
        Step { positions, seqs: live[1], logit_rows: live[2] }
    }
}

impl Device for Timed {
    fn backend(&self) -> Arc<dyn Backend + Send + Sync> {
        self.inner.backend()
    }

    fn load_weight(&mut self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError> {
        self.inner.load_weight(name, data)
    }

    fn bind_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError> {
        self.inner.bind_state(name, bytes)
    }

    fn arena(&mut self, bytes: u64) -> Result<ArenaId, DeviceError> {
        self.inner.arena(bytes)
    }

    fn free_arena(&mut self, arena: ArenaId) -> Result<(), DeviceError> {
        self.inner.free_arena(arena)
    }

    fn capture(&mut self, plan: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError> {
        let exec = self.inner.capture(plan, arena)?;
        self.plans.insert(exec, Arc::clone(plan));
        Ok(exec)
    }

    fn seal(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.inner.seal(exec)
    }

    fn release(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.inner.release(exec)
    }

    fn manifest(&self, exec: ExecId) -> &Manifest {
        self.inner.manifest(exec)
    }

    fn check_manifest(&self, exec: ExecId) -> Result<(), DeviceError> {
        self.inner.check_manifest(exec)
    }

    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8] {
        self.inner.input_mut(exec, input)
    }

    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8] {
        self.inner.inputs_mut(exec, inputs)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        self.inner.output(exec, output)
    }

    fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        let (on, by_op) = {
            let log = self.log();
            (log.on, log.by_op)
        };
        let began = Instant::now();
        let Some(plan) = self.plans.get(&exec).cloned().filter(|_| on && by_op) else {
            self.inner.replay(exec, lease)?;
            if on {
                self.log().steps.push(began.elapsed());
            }
            return Ok(());
        };
        let step = self.step(exec, plan.plan());
        let mut kinds: BTreeMap<String, (u64, Work, Duration)> = BTreeMap::new();
        for op in plan.plan().op_ids() {
            let at = Instant::now();
            self.inner.replay_op(exec, lease, op)?;
            let took = at.elapsed();
            if !plan.plan().op(op).kind.is_host() {
                let work = work(plan.plan(), op, &step);
                let kind = kinds.entry(name(plan.plan(), op)).or_default();
                kind.0 += 1;
                kind.1.bytes += work.bytes;
                kind.1.macs += work.macs;
                kind.1.others += work.others;
                kind.1.divs += work.divs;
                kind.2 += took;
            }
        }
        let mut log = self.log();
        log.steps.push(kinds.values().map(|k| k.2).sum());
        log.add(kinds);
        Ok(())
    }

    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.inner.eager(exec, lease)
    }

    fn explore(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        order: &[OpId],
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        self.inner.explore(exec, lease, order, poison)
    }

    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]) {
        self.inner.peek(exec, buffer, offset, out);
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        self.inner.copy_inputs(from, to);
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        self.inner.first_difference(a, b, buffer, len)
    }

    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_state(name, offset, bytes)
    }

    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_state(name, offset, out)
    }

    fn replay_op(&mut self, exec: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError> {
        self.inner.replay_op(exec, lease, op)
    }

    fn digest_pages(
        &mut self,
        buffers: &[PageBuffer],
        pages: &[u32],
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        self.inner.digest_pages(buffers, pages, out)
    }

    fn digest_weight(
        &mut self,
        name: &str,
        chunk_bytes: u64,
        first: u64,
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        self.inner.digest_weight(name, chunk_bytes, first, out)
    }

    fn workshop(&self) -> Arc<dyn Workshop> {
        self.inner.workshop()
    }

    fn install(
        &mut self,
        arena: Box<dyn AwayArena>,
    ) -> Result<(ArenaId, Vec<ExecId>), DeviceError> {
        self.inner.install(arena)
    }

    fn lend(&mut self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError> {
        self.inner.lend(arena)
    }

    fn uninstall(&mut self, arena: ArenaId) -> Remains {
        self.inner.uninstall(arena)
    }

    fn memory(&self) -> DeviceMemory {
        self.inner.memory()
    }
}
