//! What of a device's work can be done away from the step thread: making an arena, touching its
//! bytes, resolving plans to addresses and calls, checking manifests.

use crate::DeviceError;
use core::any::Any;
use lockstep_plan::Proven;
use std::sync::Arc;

/// Makes arenas on any thread, over the weights and the state that were bound when it was asked
/// for ([`crate::Device::workshop`]).
pub trait Workshop: Send + Sync {
    /// Reserves an arena of `bytes` and touches every byte of it, so that no step pays for that.
    ///
    /// # Errors
    /// The memory is not to be had.
    fn arena(&self, bytes: u64) -> Result<Box<dyn AwayArena>, DeviceError>;
}

/// An arena that is not on the device: on its way there with what was captured in it, or lent by
/// it ([`crate::Device::lend`]). Nothing can run in it meanwhile, so any thread may write it.
pub trait AwayArena: Send {
    /// Its size.
    fn bytes(&self) -> u64;

    /// Overwrites its first `bytes`.
    fn fill(&mut self, bytes: u64, byte: u8);

    /// Resolves a plan to addresses and calls in it. The device numbers them in this order.
    ///
    /// # Errors
    /// As [`crate::Device::capture`].
    fn capture(&mut self, plan: &Arc<Proven>) -> Result<(), DeviceError>;

    /// Compares the manifest of everything that was captured with what is bound, and makes it
    /// runnable. Returns how many manifests were compared.
    ///
    /// # Errors
    /// The first buffer that is not where it was captured.
    fn seal(&mut self) -> Result<u32, DeviceError>;

    /// For the device that it comes from.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// What is left of an arena and its executables: dropping it takes time, which no step has.
pub type Remains = Box<dyn Any + Send>;
