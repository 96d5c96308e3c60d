//! Faults put into a CPU device by hand, for tests and drills: each damages bytes or addresses
//! that no caller of the port can reach, and stays inside the device's memory.

use super::device::CpuDevice;
use super::pool::Program;
use super::resolve::resolve;
use super::source::Source;
use crate::port::{DeviceError, ExecId};
use lockstep_plan::{BufferId, OpId, Proven};
use std::sync::Arc;

impl CpuDevice {
    /// Has a kernel thread panic, as a broken kernel would: the next step fails, and so does every
    /// one after it. For tests of what happens then.
    #[doc(hidden)]
    pub fn break_threads(&mut self, what: &'static str) {
        // The panic comes back as an error here, and again from the next walk.
        let _ = self.pool.execute(&Broken(what));
    }

    /// What an executable was captured from, so that a fault can be put where the plan says that
    /// something lies.
    ///
    /// # Panics
    /// Where that was a plan without a proof.
    #[doc(hidden)]
    pub fn plan_of(&self, exec: ExecId) -> Arc<Proven> {
        match self.parts(exec).0 {
            Source::Proven(proven) => proven,
            #[cfg(feature = "lab")]
            Source::Raw(_) => panic!("a plan without a proof"),
        }
    }

    /// Flips one bit of a loaded weight, as failing memory would.
    ///
    /// # Panics
    /// Where there is no such weight or bit.
    #[doc(hidden)]
    pub fn flip_weight_bit(&mut self, name: &str, bit: u64) {
        let weight = self.memory.weight(name).unwrap_or_else(|| panic!("no weight {name}"));
        let at = (bit / 8) as usize;
        assert!(at < weight.bytes, "past the end of {name}");
        // SAFETY: in bounds by the assertion, and no step runs while `self` is borrowed mutably.
        unsafe { *weight.address.add(at) ^= 1 << (bit % 8) };
    }

    /// Resolves one op of a capture anew with `buffer` `by` bytes from where the plan has it: a
    /// capture that is bound to the wrong bytes of its arena. The manifest still tells what was
    /// meant.
    ///
    /// # Errors
    /// What resolving refuses.
    ///
    /// # Panics
    /// Where the bytes would lie outside the arena, or the buffer is not in it.
    #[doc(hidden)]
    pub fn misbind(
        &mut self,
        exec: ExecId,
        op: OpId,
        buffer: BufferId,
        by: i64,
    ) -> Result<(), DeviceError> {
        let (source, arena, at) = self.parts(exec);
        let offset = source.packing().offset(buffer).expect("a buffer of the arena");
        let moved = offset.checked_add_signed(by).expect("inside the arena");
        let end = moved + source.plan().buffer(buffer).bytes;
        assert!(end <= self.arena_len(arena), "inside the arena");
        // SAFETY: inside the arena by the assertion.
        let to = unsafe { at.at(buffer).offset(by as isize) };
        let at = at.moved(buffer, to);
        let call = resolve(&source, op, &at, &self.memory, self.isa)?;
        self.put_call(exec, op, call.expect("an op that runs on the device"));
        Ok(())
    }
}

/// One task, which panics.
struct Broken(&'static str);

impl Program for Broken {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        1
    }

    unsafe fn run(&self, _op: u32, _task: u32, _thread: u32) {
        panic!("{}", self.0);
    }
}
