//! What every step goes through: admission, inputs, kernels, outputs; and failures that stay.

use crate::CudaDevice;
use crate::away::Base;
use crate::exec::Stage;
use crate::resolve::{Addresses, Resolver};
use lockstep_device::{DeviceError, ExecId};
use lockstep_flow::Lease;
use lockstep_plan::{BufferKind, OpId, Proven};
use std::time::Duration;

impl CudaDevice {
    /// Checks that `exec` may run a step under `lease`.
    pub(crate) fn admit(&self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let exec = self.exec(exec);
        if exec.stage != Stage::Sealed {
            return Err(DeviceError::State { asked: "a replay", state: "not sealed" });
        }
        if !self.held.has(exec.arena) {
            return Err(DeviceError::State { asked: "a step", state: "without its arena" });
        }
        let bucket = exec.proven.plan().bucket;
        if lease.bucket() != bucket {
            return Err(DeviceError::WrongLease {
                exec: bucket.to_string(),
                lease: lease.bucket().to_string(),
            });
        }
        Ok(())
    }

    /// Failures latch: after one the context's memory is not to be trusted.
    pub(crate) fn latch<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(e @ DeviceError::Failed { .. }) = &result {
            self.failed = Some(e.clone());
        }
        result
    }

    /// A step by itself: nothing was launched before it, and it is over when this returns.
    pub(crate) fn step(
        &mut self,
        id: ExecId,
        run: impl FnOnce(&CudaDevice) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.ahead.at_rest("a step by itself")?;
        self.base.driver.bind()?;
        let driver = self.base.driver.clone();
        self.exec_mut(id).send_inputs(&driver)?;
        run(self)?;
        self.exec_mut(id).fetch_outputs(&driver, 0)?;
        driver.synchronize()?;
        self.exec_mut(id).show(0);
        Ok(())
    }

    /// Has the probe look at a step that was just launched, where it was asked to.
    pub(crate) fn probe_step(&self, id: ExecId) -> Result<(), DeviceError> {
        let Some(probe) = &self.probe else { return Ok(()) };
        Ok(probe.see(&self.base.driver, &self.timer, self.exec(id))?)
    }

    /// Tells the probe what a decode step took.
    pub(crate) fn probe_time(&self, id: ExecId, time: Duration) {
        let decode = self.exec(id).proven.plan().bucket.is_decode();
        if let Some(probe) = self.probe.as_ref().filter(|_| decode) {
            probe.replayed(time);
        }
    }

    /// Runs ops one by one, each resolved anew from the plan: the eager twin shares no captured
    /// address with a replay.
    pub(crate) fn run_ops(
        &self,
        id: ExecId,
        order: impl Iterator<Item = OpId>,
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        let exec = self.exec(id);
        let plan = exec.proven.plan();
        let Base { memory, kernels, .. } = &*self.base;
        let placed = (plan, exec.packing());
        let addresses = Addresses::new(placed, self.held.arena(exec.arena).address, memory)?;
        let resolver = Resolver::new(plan, &addresses, memory, kernels)?;
        for op in order {
            if let Some(byte) = poison {
                self.poison(&exec.proven, &addresses, op, byte)?;
            }
            if let Some(launch) = resolver.op(op)? {
                // SAFETY: addresses were resolved from a plan whose proof orders all accesses, the
                // lease vouches for table entries, and the stream keeps ops in order.
                unsafe { self.base.driver.launch(&launch.shape, &launch.args)? };
            }
        }
        Ok(())
    }

    /// Fills transients that `op` is the first to write, so that a read of something that this
    /// step has not written shows.
    fn poison(
        &self,
        proven: &Proven,
        addresses: &Addresses,
        op: OpId,
        byte: u8,
    ) -> Result<(), DeviceError> {
        let plan = proven.plan();
        for access in &plan.op(op).writes {
            let buffer = access.buffer();
            let touches = |o: &OpId| {
                let op = plan.op(*o);
                op.reads.iter().chain(&op.writes).any(|a| a.buffer() == buffer)
            };
            let first = plan.op_ids().find(touches);
            let b = plan.buffer(buffer);
            if b.kind == BufferKind::Transient && first == Some(op) {
                // SAFETY: a transient's bytes belong to the arena; in stream order.
                unsafe { self.base.driver.fill(addresses.at(buffer), byte, b.bytes as usize)? };
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.base.driver.bind()?;
        // SAFETY: callers pass ranges inside a live buffer; the stream is waited for.
        unsafe { self.base.driver.download(out, address)? };
        self.base.driver.synchronize()?;
        Ok(())
    }
}
