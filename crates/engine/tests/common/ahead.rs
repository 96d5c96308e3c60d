//! A CPU device with a step in flight. The host writes inputs and reads outputs in memory of its
//! own, as beside a GPU, and a launched step runs when its time comes: at once, or only when it is
//! waited for, so that everything which the host does meanwhile comes before the step.

use lockstep_device::{ArenaId, AwayArena, CpuDevice, Device, DeviceError, ExecId, Remains, Wrap};
use lockstep_flow::{BucketKey, Lease};
use lockstep_plan::mix::mix64;
use lockstep_plan::{BufferId, BufferKind, OpId, Relay};
use std::collections::{HashMap, VecDeque};

/// What the pool has signed for, kept until the step runs.
#[derive(Clone, Copy, Debug)]
struct Signed {
    bucket: BucketKey,
    step: u64,
}

impl Lease for Signed {
    fn bucket(&self) -> BucketKey {
        self.bucket
    }

    fn step(&self) -> u64 {
        self.step
    }
}

/// Bytes by buffer; empty where it is no input (no output).
type Side = Vec<Vec<u8>>;

struct Flight {
    exec: ExecId,
    signed: Signed,
    inputs: Side,
    ran: bool,
}

pub struct AheadDevice {
    inner: CpuDevice,
    /// What it says of itself.
    pub relay: Relay,
    /// Copies of outputs that it really keeps.
    pub kept: u64,
    /// Of a launched step, one in so many runs at once; the others when they are waited for.
    pub hurry: u64,
    /// Waiting for this step fails, and so does everything after it.
    pub fails_at: u64,
    flights: VecDeque<Flight>,
    staged: HashMap<ExecId, Side>,
    fetched: HashMap<(ExecId, u64), Side>,
    shown: HashMap<ExecId, u64>,
}

impl AheadDevice {
    pub fn new() -> AheadDevice {
        AheadDevice {
            inner: CpuDevice::new(2, "auto").unwrap(),
            relay: Relay { waits_for_sent: true, fetched: 2 },
            kept: 2,
            hurry: 3,
            fails_at: u64::MAX,
            flights: VecDeque::new(),
            staged: HashMap::new(),
            fetched: HashMap::new(),
            shown: HashMap::new(),
        }
    }

    fn at_rest(&self, what: &str) {
        let left = self.flights.len();
        assert_eq!(left, 0, "{what} while a step is in flight");
    }

    fn staged(&mut self, exec: ExecId) -> &mut Side {
        let AheadDevice { inner, staged, .. } = self;
        staged.entry(exec).or_insert_with(|| {
            let proven = inner.plan_of(exec);
            let plan = proven.plan();
            let bytes = |id: BufferId| match plan.buffer(id).kind {
                BufferKind::Input { .. } => inner.input_mut(exec, id).to_vec(),
                _ => Vec::new(),
            };
            plan.buffer_ids().map(bytes).collect()
        })
    }

    /// What a stream does before a step.
    fn send(&mut self, exec: ExecId, inputs: &Side) {
        for (i, bytes) in inputs.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            self.inner.input_mut(exec, BufferId(i as u32)).copy_from_slice(bytes);
        }
    }

    /// And after it.
    fn fetch(&mut self, exec: ExecId, step: u64) {
        let proven = self.inner.plan_of(exec);
        let plan = proven.plan();
        let bytes = |id: BufferId| match plan.buffer(id).kind {
            BufferKind::Output { fetched: true } => self.inner.output(exec, id).to_vec(),
            _ => Vec::new(),
        };
        let side = plan.buffer_ids().map(bytes).collect();
        self.fetched.insert((exec, step % self.kept), side);
    }

    fn show(&mut self, exec: ExecId, step: u64) {
        self.shown.insert(exec, step % self.kept);
    }

    /// Runs launched steps, in order, up to the `n`th.
    fn run_first(&mut self, n: usize) -> Result<(), DeviceError> {
        for i in 0..n {
            let Flight { exec, signed, ref mut inputs, ran } = self.flights[i];
            if ran {
                continue;
            }
            let inputs = core::mem::take(inputs);
            self.send(exec, &inputs);
            self.inner.replay(exec, &signed)?;
            self.fetch(exec, signed.step);
            self.flights[i].ran = true;
        }
        Ok(())
    }

    fn alone(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        run: impl FnOnce(&mut CpuDevice) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.at_rest("a step of its own");
        let inputs = self.staged(exec).clone();
        self.send(exec, &inputs);
        run(&mut self.inner)?;
        self.fetch(exec, lease.step());
        self.show(exec, lease.step());
        Ok(())
    }
}

impl Wrap for AheadDevice {
    type Inner = CpuDevice;

    fn inner(&self) -> &CpuDevice {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut CpuDevice {
        &mut self.inner
    }

    fn relay(&self) -> Option<Relay> {
        Some(self.relay)
    }

    fn launch(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        assert!(self.flights.len() < 2, "two steps are in flight");
        let signed = Signed { bucket: lease.bucket(), step: lease.step() };
        let inputs = self.staged(exec).clone();
        self.flights.push_back(Flight { exec, signed, inputs, ran: false });
        if mix64(signed.step).is_multiple_of(self.hurry) {
            self.run_first(self.flights.len())?;
        }
        Ok(())
    }

    fn await_step(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        let step = self.flights.front().expect("a step was launched").signed.step;
        if step >= self.fails_at {
            self.flights.pop_front();
            return Err(DeviceError::Failed { op: "head".into(), what: "it is gone".into() });
        }
        self.run_first(1)?;
        let Flight { exec: of, signed, .. } = self.flights.pop_front().expect("just looked at");
        assert_eq!(of, exec, "the oldest step is waited for first");
        self.show(exec, signed.step);
        Ok(())
    }

    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8] {
        &mut self.staged(exec)[input.0 as usize]
    }

    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8] {
        let all = self.staged(exec);
        let sides = all.get_disjoint_mut(inputs.map(|id| id.0 as usize));
        sides.expect("inputs are distinct").map(Vec::as_mut_slice)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        &self.fetched[&(exec, self.shown[&exec])][output.0 as usize]
    }

    fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.alone(exec, lease, |inner| inner.replay(exec, lease))
    }

    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.alone(exec, lease, |inner| inner.eager(exec, lease))
    }

    fn explore(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        order: &[OpId],
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        self.alone(exec, lease, |inner| inner.explore(exec, lease, order, poison))
    }

    fn replay_op(&mut self, exec: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError> {
        self.alone(exec, lease, |inner| inner.replay_op(exec, lease, op))
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        self.at_rest("a copy of inputs");
        let inputs = self.staged(from).clone();
        self.send(from, &inputs);
        self.inner.copy_inputs(from, to);
        self.staged.remove(&to);
    }

    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]) {
        self.at_rest("a look");
        self.inner.peek(exec, buffer, offset, out);
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        self.at_rest("a comparison");
        self.inner.first_difference(a, b, buffer, len)
    }

    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.at_rest("a write of state");
        self.inner.write_state(name, offset, bytes)
    }

    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.at_rest("a look at state");
        self.inner.read_state(name, offset, out)
    }

    fn lend(&mut self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError> {
        self.at_rest("a loan");
        self.inner.lend(arena)
    }

    fn install(
        &mut self,
        arena: Box<dyn AwayArena>,
    ) -> Result<(ArenaId, Vec<ExecId>), DeviceError> {
        self.at_rest("an arena's arrival");
        self.inner.install(arena)
    }

    fn uninstall(&mut self, arena: ArenaId) -> Remains {
        self.at_rest("an arena's end");
        // Numbers of executables are given again.
        self.staged.clear();
        self.inner.uninstall(arena)
    }
}
