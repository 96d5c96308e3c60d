//! A CPU device that can be told to fail in the middle of the load.

use lockstep_device::{
    ArenaId, AwayArena, CpuDevice, Device, DeviceError, DeviceMemory, ExecId, Manifest, PageBuffer,
    Remains, WeightData, Workshop,
};
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, BufferKind, OpId, Proven};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What happens before a step: the number of the step, and the device that will run it.
pub type BeforeStep = Box<dyn FnMut(u64, &mut CpuDevice) + Send>;

/// A moment at which a test can reach into the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A replay of this step, whole or of one op, is about to run.
    Replay { step: u64, exec: ExecId },
    /// It has run.
    Replayed { step: u64, exec: ExecId },
    /// The step's tables are about to be filled (1) or verified (2).
    Tables { call: u32, exec: ExecId, blocks: BufferId },
    /// Pages are about to be digested.
    Digest,
}

/// What happens at a moment.
pub type Hook = Box<dyn FnMut(Moment, &mut CpuDevice) + Send>;

/// Buffers that were looked at, by name.
pub type Looks = Arc<Mutex<BTreeMap<String, BufferKind>>>;

/// A CPU device with hooks.
pub struct FaultDevice {
    pub inner: CpuDevice,
    pub before_step: BeforeStep,
    pub hook: Hook,
    /// Every buffer of an executable whose bytes were read from outside its steps.
    pub looks: Looks,
    tables: u32,
}

impl FaultDevice {
    pub fn new(before_step: BeforeStep) -> FaultDevice {
        let inner = CpuDevice::new(2, "auto").unwrap();
        let looks = Looks::default();
        FaultDevice { inner, before_step, hook: Box::new(|_, _| {}), looks, tables: 0 }
    }

    fn look(&self, exec: ExecId, buffer: BufferId) {
        let proven = self.inner.plan_of(exec);
        let buffer = proven.plan().buffer(buffer);
        let mut looks = self.looks.lock().unwrap();
        if !looks.contains_key(&buffer.name) {
            looks.insert(buffer.name.clone(), buffer.kind);
        }
    }

    /// A device with a hook at every moment.
    pub fn hooked(hook: impl FnMut(Moment, &mut CpuDevice) + Send + 'static) -> FaultDevice {
        FaultDevice { hook: Box::new(hook), ..FaultDevice::new(Box::new(|_, _| {})) }
    }
}

impl Device for FaultDevice {
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
        self.inner.capture(plan, arena)
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
        self.tables += 1;
        let moment = Moment::Tables { call: self.tables, exec, blocks: inputs[0] };
        (self.hook)(moment, &mut self.inner);
        self.inner.inputs_mut(exec, inputs)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        self.look(exec, output);
        self.inner.output(exec, output)
    }

    fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        (self.before_step)(lease.step(), &mut self.inner);
        let step = lease.step();
        self.tables = 0;
        (self.hook)(Moment::Replay { step, exec }, &mut self.inner);
        self.inner.replay(exec, lease)?;
        (self.hook)(Moment::Replayed { step, exec }, &mut self.inner);
        Ok(())
    }

    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        (self.before_step)(lease.step(), &mut self.inner);
        self.tables = 0;
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
        self.look(exec, buffer);
        self.inner.peek(exec, buffer, offset, out);
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        self.inner.copy_inputs(from, to);
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        self.look(a, buffer);
        self.inner.first_difference(a, b, buffer, len)
    }

    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_state(name, offset, bytes)
    }

    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_state(name, offset, out)
    }

    fn replay_op(&mut self, exec: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError> {
        let step = lease.step();
        (self.hook)(Moment::Replay { step, exec }, &mut self.inner);
        self.inner.replay_op(exec, lease, op)?;
        (self.hook)(Moment::Replayed { step, exec }, &mut self.inner);
        Ok(())
    }

    fn digest_pages(
        &mut self,
        buffers: &[PageBuffer],
        pages: &[u32],
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        (self.hook)(Moment::Digest, &mut self.inner);
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
