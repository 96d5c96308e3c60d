//! A device around another: every call goes on to the inner one, but for those that the outer one
//! takes for itself.

use crate::manifest::Manifest;
use crate::port::{ArenaId, Device, DeviceError, DeviceMemory, ExecId, PageBuffer};
use crate::workshop::{AwayArena, Remains, Workshop};
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, OpId, Proven, Relay, WeightData};
use std::sync::Arc;

/// Declares [`Wrap`] with a method for each of [`Device`]'s, and a device of whatever implements
/// it, from one list of them. A method that the list lacks is an error of the compiler where the
/// port demands it, and goes missing silently where the port has a default: those stand first, and
/// `launch`, which is no plain call of the inner one's, in the macro.
macro_rules! wrap {
    (
        ref { $(fn $look:ident($l:ident $(, $la:ident: $lt:ty)*) $(-> $lr:ty)?;)* }
        mut { $(fn $act:ident($a:ident $(, $aa:ident: $at:ty)*) $(-> $ar:ty)?;)* }
    ) => {
        /// A device around another, for tests, drills and measurements: it says which one is
        /// inside, and overrides those methods of the port, each of the same meaning as there,
        /// in which it differs from it.
        ///
        /// ```
        /// use lockstep_device::{CpuDevice, Device, DeviceError, ExecId, Wrap};
        /// use lockstep_flow::Lease;
        ///
        /// /// Counts its replays.
        /// struct Counted(CpuDevice, u64);
        ///
        /// impl Wrap for Counted {
        ///     type Inner = CpuDevice;
        ///     fn inner(&self) -> &CpuDevice {
        ///         &self.0
        ///     }
        ///     fn inner_mut(&mut self) -> &mut CpuDevice {
        ///         &mut self.0
        ///     }
        ///     fn replay(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        ///         self.1 += 1;
        ///         self.0.replay(exec, lease)
        ///     }
        /// }
        /// let device: Box<dyn Device> = Box::new(Counted(CpuDevice::new(1, "auto")?, 0));
        /// assert_eq!(device.memory().arenas, 0);
        /// # Ok::<(), DeviceError>(())
        /// ```
        pub trait Wrap: Send {
            /// The device inside.
            type Inner: Device;
            /// To look at.
            fn inner(&self) -> &Self::Inner;
            /// To ask something of.
            fn inner_mut(&mut self) -> &mut Self::Inner;
            $(fn $look(&$l $(, $la: $lt)*) $(-> $lr)? { $l.inner().$look($($la),*) })*
            /// A step of a device that runs it in the call is a replay, the outer one's own.
            fn launch(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
                match self.inner().relay() {
                    Some(_) => self.inner_mut().launch(exec, lease),
                    None => Wrap::replay(self, exec, lease),
                }
            }
            $(fn $act(&mut $a $(, $aa: $at)*) $(-> $ar)? { $a.inner_mut().$act($($aa),*) })*
        }

        impl<W: Wrap> Device for W {
            $(fn $look(&$l $(, $la: $lt)*) $(-> $lr)? { Wrap::$look($l $(, $la)*) })*
            fn launch(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
                Wrap::launch(self, exec, lease)
            }
            $(fn $act(&mut $a $(, $aa: $at)*) $(-> $ar)? { Wrap::$act($a $(, $aa)*) })*
        }
    };
}

wrap! {
    ref {
        fn relay(self) -> Option<Relay>;
        fn backend(self) -> Arc<dyn Backend + Send + Sync>;
        fn manifest(self, exec: ExecId) -> &Manifest;
        fn check_manifest(self, exec: ExecId) -> Result<(), DeviceError>;
        fn output(self, exec: ExecId, output: BufferId) -> &[u8];
        fn peek(self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]);
        fn first_difference(self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64>;
        fn read_state(self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;
        fn workshop(self) -> Arc<dyn Workshop>;
        fn memory(self) -> DeviceMemory;
    }
    mut {
        fn enter_step_thread(self);
        fn await_step(self, exec: ExecId) -> Result<(), DeviceError>;
        fn load_weight(self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError>;
        fn bind_state(self, name: &str, bytes: u64) -> Result<(), DeviceError>;
        fn arena(self, bytes: u64) -> Result<ArenaId, DeviceError>;
        fn free_arena(self, arena: ArenaId) -> Result<(), DeviceError>;
        fn capture(self, plan: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError>;
        fn seal(self, exec: ExecId) -> Result<(), DeviceError>;
        fn release(self, exec: ExecId) -> Result<(), DeviceError>;
        fn input_mut(self, exec: ExecId, input: BufferId) -> &mut [u8];
        fn inputs_mut(self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8];
        fn replay(self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError>;
        fn eager(self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError>;
        fn explore(
            self,
            exec: ExecId,
            lease: &dyn Lease,
            order: &[OpId],
            poison: Option<u8>
        ) -> Result<(), DeviceError>;
        fn copy_inputs(self, from: ExecId, to: ExecId);
        fn write_state(self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;
        fn replay_op(self, exec: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError>;
        fn digest_pages(
            self,
            buffers: &[PageBuffer],
            pages: &[u32],
            out: &mut [u64]
        ) -> Result<(), DeviceError>;
        fn digest_weight(
            self,
            name: &str,
            chunk_bytes: u64,
            first: u64,
            out: &mut [u64]
        ) -> Result<(), DeviceError>;
        fn install(self, arena: Box<dyn AwayArena>) -> Result<(ArenaId, Vec<ExecId>), DeviceError>;
        fn lend(self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError>;
        fn uninstall(self, arena: ArenaId) -> Remains;
    }
}
