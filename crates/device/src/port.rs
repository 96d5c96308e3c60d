//! The port: what the engine asks of a device.
//!
//! Life of a plan on a device: [`Device::arena`] reserves memory, [`Device::capture`] resolves a
//! proven plan to addresses and calls, [`Device::seal`] checks the manifest and ends allocation,
//! and only then [`Device::replay`] and [`Device::eager`] run it, each step with a lease.

use crate::cpu::isa::IsaError;
use crate::cpu::pool::PoolError;
use crate::manifest::Manifest;
use crate::workshop::{AwayArena, Remains, Workshop};
use core::fmt;
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, OpId, Proven, Relay, Unsupported, WeightData};
use std::sync::Arc;

/// A captured plan on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExecId(pub u32);

/// An arena on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ArenaId(pub u32);

/// A buffer of every page group: one block of `page_bytes` a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageBuffer {
    /// The state's name.
    pub name: String,
    /// Bytes of one page of it.
    pub page_bytes: u64,
}

/// How a step ran.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// As one captured replay.
    Captured,
    /// Op by op at the same padded shape.
    Eager,
}

/// What a device refuses or fails at.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceError {
    /// No kernel for it.
    Unsupported(Unsupported),
    /// Memory was asked for and not to be had.
    OutOfMemory { what: String, bytes: u64 },
    /// A weight or state buffer was bound twice, or with another size.
    Binding { buffer: String, found: String, expected: String },
    /// A plan names a weight or state buffer that was never bound.
    Unbound { buffer: String },
    /// Something that only happens before `seal` was asked for after it, or the other way round.
    State { asked: &'static str, state: &'static str },
    /// The lease is for another bucket than the executable.
    WrongLease { exec: String, lease: String },
    /// The manifest no longer describes what is bound.
    Manifest { buffer: String, found: String, expected: String },
    /// A kernel failed; the device takes no further work (failures latch).
    Failed { op: String, what: String },
    /// The instruction set that was asked for is not there.
    Isa(IsaError),
    /// The compute threads could not be started.
    Threads(PoolError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Unsupported(e) => e.fmt(f),
            DeviceError::OutOfMemory { what, bytes } => {
                write!(f, "no memory for {what} ({bytes} bytes)")
            }
            DeviceError::Binding { buffer, found, expected } => {
                write!(f, "buffer {buffer}: found {found}, expected {expected}")
            }
            DeviceError::Unbound { buffer } => {
                write!(f, "the plan binds {buffer}, which was never loaded")
            }
            DeviceError::State { asked, state } => {
                write!(f, "{asked} was asked of a device that is {state}")
            }
            DeviceError::WrongLease { exec, lease } => {
                write!(f, "executable {exec} was given a lease for {lease}")
            }
            DeviceError::Manifest { buffer, found, expected } => {
                write!(f, "manifest: {buffer} is {found}, was captured as {expected}")
            }
            DeviceError::Failed { op, what } => write!(f, "op {op} failed: {what}"),
            DeviceError::Isa(e) => e.fmt(f),
            DeviceError::Threads(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<Unsupported> for DeviceError {
    fn from(e: Unsupported) -> Self {
        DeviceError::Unsupported(e)
    }
}

/// A device. One thread, the step thread, owns it.
///
/// Nothing executes without a proof and a lease, by type: [`Device::capture`] takes a [`Proven`],
/// which only `prove` makes, and a step takes a [`Lease`], which the token pool signs.
///
/// ```
/// use lockstep_device::{ArenaId, Device, DeviceError, ExecId};
/// use lockstep_flow::Lease;
/// use lockstep_plan::Proven;
/// use std::sync::Arc;
///
/// fn capture(d: &mut dyn Device, plan: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError> {
///     d.capture(plan, arena)
/// }
/// fn step(d: &mut dyn Device, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
///     d.replay(exec, lease)
/// }
/// ```
///
/// A plan without its proof:
/// ```compile_fail,E0308
/// use lockstep_device::{ArenaId, Device, DeviceError, ExecId};
/// use lockstep_plan::StepPlan;
/// use std::sync::Arc;
///
/// fn capture(d: &mut dyn Device, plan: &Arc<StepPlan>, arena: ArenaId) -> Result<ExecId, DeviceError> {
///     d.capture(plan, arena)
/// }
/// ```
///
/// A step without a lease, as captured and op by op:
/// ```compile_fail,E0061
/// use lockstep_device::{Device, DeviceError, ExecId};
///
/// fn step(d: &mut dyn Device, exec: ExecId) -> Result<(), DeviceError> {
///     d.replay(exec)
/// }
/// ```
/// ```compile_fail,E0061
/// use lockstep_device::{Device, DeviceError, ExecId};
///
/// fn step(d: &mut dyn Device, exec: ExecId) -> Result<(), DeviceError> {
///     d.eager(exec)
/// }
/// ```
pub trait Device: Send {
    /// The side that shapes plans, usable from any thread.
    fn backend(&self) -> Arc<dyn Backend + Send + Sync>;

    /// Called once on the thread that will run the steps, before the first one.
    fn enter_step_thread(&mut self) {}

    /// Packs a weight under `name`. Weights are immutable once loaded.
    fn load_weight(&mut self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError>;

    /// Binds `bytes` of zeroed state under `name`; a second bind of the same size is the same
    /// state.
    fn bind_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError>;

    /// Reserves an arena.
    fn arena(&mut self, bytes: u64) -> Result<ArenaId, DeviceError>;

    /// Gives an arena back. Every executable in it must have been released.
    fn free_arena(&mut self, arena: ArenaId) -> Result<(), DeviceError>;

    /// Resolves a proven plan to addresses and calls in `arena`.
    fn capture(&mut self, plan: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError>;

    /// Checks the manifest and makes the executable runnable. Nothing is allocated for it after.
    fn seal(&mut self, exec: ExecId) -> Result<(), DeviceError>;

    /// Forgets an executable.
    fn release(&mut self, exec: ExecId) -> Result<(), DeviceError>;

    /// What the executable is bound to.
    fn manifest(&self, exec: ExecId) -> &Manifest;

    /// Compares the manifest with what is bound now.
    fn check_manifest(&self, exec: ExecId) -> Result<(), DeviceError>;

    /// The bytes of an input, for the host lane to fill before a step.
    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8];

    /// Several inputs at once; the ids are distinct.
    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8];

    /// The bytes of an output that is fetched, after a step.
    fn output(&self, exec: ExecId, output: BufferId) -> &[u8];

    /// Runs one step as captured.
    fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError>;

    /// How inputs and outputs pass between host and device while one step is in flight and another
    /// is launched behind it; none where a step runs in the call that launches it.
    fn relay(&self) -> Option<Relay> {
        None
    }

    /// Starts one step as captured, behind at most one that was launched before. Its inputs may be
    /// written again when this returns, and it has ended when [`Device::await_step`] returns. Until
    /// then only this may be asked of the device: a launch, the inputs of any executable, the
    /// outputs of a step that was awaited, digests of pages and weights that no launched step
    /// writes, and manifests.
    fn launch(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.replay(exec, lease)
    }

    /// Waits for the oldest launched step, which is one of `exec`: [`Device::output`] gives what
    /// that step left from here until the next step of the same parity is launched.
    fn await_step(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        let _ = exec;
        Ok(())
    }

    /// Runs one step op by op at the same padded shape.
    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError>;

    /// Runs one step op by op in another linear extension of the plan's partial order, poisoning
    /// dead transients where `poison` says so (the explorer).
    fn explore(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        order: &[OpId],
        poison: Option<u8>,
    ) -> Result<(), DeviceError>;

    /// Copies bytes of any buffer of the plan out as the last step left them (the audit, tests).
    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]);

    /// Copies every input of `from` to `to`, an executable of the same plan in another arena.
    fn copy_inputs(&mut self, from: ExecId, to: ExecId);

    /// The first byte below `len` at which `buffer` differs between two executables of the same
    /// plan, as their last steps left it.
    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64>;

    /// Overwrites bytes of a named state buffer (the audit puts back what a twin wrote).
    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes of a named state buffer out (the audit).
    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Runs one op of a step as it was captured (the audit, to find the op at which a replay and
    /// its twin part ways). Ops of the host lane do nothing.
    fn replay_op(&mut self, exec: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError>;

    /// Digests pages: word `i * buffers.len() + j` of `out` becomes the digest of page `pages[i]`
    /// in `buffers[j]`. The same bytes give the same digest on this device; [`crate::digest`] says
    /// what a digest has to see. Takes no memory; done when it returns.
    fn digest_pages(
        &mut self,
        buffers: &[PageBuffer],
        pages: &[u32],
        out: &mut [u64],
    ) -> Result<(), DeviceError>;

    /// Digests chunks of a weight as it lies on the device: `out[i]` becomes the digest of chunk
    /// `first + i` of `chunk_bytes` each (the last one of a weight is shorter). Takes no memory.
    fn digest_weight(
        &mut self,
        name: &str,
        chunk_bytes: u64,
        first: u64,
        out: &mut [u64],
    ) -> Result<(), DeviceError>;

    /// Makes arenas away from the step thread, over the weights and state that are there now: no
    /// more of those can be added while it lives.
    fn workshop(&self) -> Arc<dyn Workshop>;

    /// Takes an arena over: a new one with the executables that were captured in it, numbered in
    /// that order, or one that was lent (no new executables then). Takes microseconds.
    ///
    /// # Errors
    /// An arena of another device.
    fn install(&mut self, arena: Box<dyn AwayArena>)
    -> Result<(ArenaId, Vec<ExecId>), DeviceError>;

    /// Lends an arena: its executables do not run until it is installed again.
    ///
    /// # Errors
    /// The device does not lend.
    fn lend(&mut self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError>;

    /// Forgets an arena and every executable in it. What is returned is to be dropped where that
    /// costs no step.
    fn uninstall(&mut self, arena: ArenaId) -> Remains;

    /// Bytes held, by what.
    fn memory(&self) -> DeviceMemory;
}

/// Bytes that a device holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceMemory {
    /// Packed weights.
    pub weight_bytes: u64,
    /// State: KV pages and slots, reserved (touched on use).
    pub state_bytes: u64,
    /// Arenas, lent ones too.
    pub arena_bytes: u64,
    /// How many arenas that are.
    pub arenas: u32,
    /// Captured plans.
    pub executables: u32,
}
