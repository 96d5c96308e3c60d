//! A CPU device that runs its replays op by op and keeps how long each kind took.

use crate::work::{Step, Work, name, work};
use lockstep_device::{ArenaId, CpuDevice, Device, DeviceError, ExecId, Wrap};
use lockstep_flow::Lease;
use lockstep_plan::{LIVE_COUNTS, Proven, StepPlan};
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

impl Wrap for Timed {
    type Inner = CpuDevice;

    fn inner(&self) -> &CpuDevice {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut CpuDevice {
        &mut self.inner
    }

    fn capture(&mut self, plan: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError> {
        let exec = self.inner.capture(plan, arena)?;
        self.plans.insert(exec, Arc::clone(plan));
        Ok(exec)
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
}
