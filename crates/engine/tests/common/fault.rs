//! A CPU device that can be told to fail in the middle of the load.

use lockstep_device::{CpuDevice, Device, DeviceError, ExecId, PageBuffer, Wrap};
use lockstep_flow::Lease;
use lockstep_plan::{BufferId, BufferKind, OpId};
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

impl Wrap for FaultDevice {
    type Inner = CpuDevice;

    fn inner(&self) -> &CpuDevice {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut CpuDevice {
        &mut self.inner
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

    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]) {
        self.look(exec, buffer);
        self.inner.peek(exec, buffer, offset, out);
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        self.look(a, buffer);
        self.inner.first_difference(a, b, buffer, len)
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
}
