//! Arenas of the CUDA device away from it: graphs are built node by node, on any thread.

use crate::CudaError;
use crate::driver::{DeviceBytes, Driver};
use crate::exec::{Exec, Stage, Style};
use crate::fuse::Step;
use crate::kernels::Kernels;
use crate::memory::Memory;
use crate::resolve::{Addresses, Resolver};
use core::any::Any;
use lockstep_device::{ArenaId, AwayArena, DeviceError, Workshop};
use lockstep_plan::Proven;
use std::sync::Arc;

/// What captures are made over; it does not change while a workshop lives.
pub struct Base {
    /// Weights and state.
    pub memory: Memory,
    /// Kernels.
    pub kernels: Kernels,
    /// The GPU.
    pub driver: Arc<Driver>,
}

impl Base {
    /// Reserves a zeroed arena.
    pub fn arena(&self, bytes: u64) -> Result<DeviceBytes, DeviceError> {
        let arena = DeviceBytes::new(&self.driver, bytes).map_err(|e| match e {
            CudaError::Driver { name, .. } if name == "CUDA_ERROR_OUT_OF_MEMORY" => {
                DeviceError::OutOfMemory { what: "an arena".into(), bytes }
            }
            other => other.into(),
        })?;
        // SAFETY: exactly the new bytes, which nobody knows yet.
        unsafe { self.driver.fill_aside(arena.address, 0, bytes as usize)? };
        Ok(arena)
    }

    /// Resolves a proven plan in an arena and builds its graph.
    ///
    /// # Errors
    /// The arena is too small, something that the plan binds is not there, or a kernel refuses.
    pub fn capture(
        &self,
        proven: &Arc<Proven>,
        (id, arena): (ArenaId, &DeviceBytes),
        style: Style,
    ) -> Result<Exec, DeviceError> {
        self.driver.bind()?;
        let plan = proven.plan();
        let laid = style.laid.filter(|_| id == ArenaId(0)).map(|lay| lay(plan));
        let packing = laid.as_ref().unwrap_or_else(|| proven.packing());
        let needed = packing.arena_bytes();
        if needed > arena.len {
            return Err(DeviceError::Binding {
                buffer: "arena".into(),
                found: format!("{} bytes", arena.len),
                expected: format!("{needed} bytes"),
            });
        }
        let addresses = Addresses::new((plan, packing), arena.address, &self.memory)?;
        let resolver = Resolver::new(plan, &addresses, &self.memory, &self.kernels)?;
        let mut launches = Vec::with_capacity(plan.ops.len());
        let mut steps: Vec<Step> = Vec::with_capacity(plan.ops.len());
        for op in plan.op_ids() {
            let Some(launch) = resolver.op(op)? else { continue };
            launches.push((op, launch.clone()));
            if steps.last().is_some_and(|s| op <= s.last) {
                continue;
            }
            let fused = if style.fused { resolver.fused(op)? } else { None };
            steps.push(fused.unwrap_or(Step::new((op, op), launch)));
        }
        let (source, place) = ((proven.clone(), laid), (id, addresses));
        Ok(Exec::new(&self.driver, source, place, (launches, steps), style)?)
    }
}

/// Makes arenas over the device's memory.
pub struct CudaWorkshop {
    pub base: Arc<Base>,
    pub style: Style,
}

/// An arena with what was captured in it, or an arena that the device has lent.
pub struct CudaAway {
    pub execs: Vec<Exec>,
    pub arena: DeviceBytes,
    /// Where the device had it; none where it has never been there.
    pub home: Option<ArenaId>,
    pub base: Arc<Base>,
    pub style: Style,
}

impl Workshop for CudaWorkshop {
    fn arena(&self, bytes: u64) -> Result<Box<dyn AwayArena>, DeviceError> {
        let arena = self.base.arena(bytes)?;
        let (base, style) = (self.base.clone(), self.style);
        Ok(Box::new(CudaAway { execs: Vec::new(), arena, home: None, base, style }))
    }
}

impl AwayArena for CudaAway {
    fn bytes(&self) -> u64 {
        self.arena.len
    }

    fn fill(&mut self, bytes: u64, byte: u8) {
        assert!(bytes <= self.arena.len, "past the end of the arena");
        // SAFETY: inside the arena, in which nothing runs while it is away. An error here means a
        // lost context, which the next step reports.
        let _ = unsafe { self.base.driver.fill_aside(self.arena.address, byte, bytes as usize) };
    }

    fn capture(&mut self, plan: &Arc<Proven>) -> Result<(), DeviceError> {
        let id = self.home.unwrap_or(ArenaId(u32::MAX));
        self.execs.push(self.base.capture(plan, (id, &self.arena), self.style)?);
        Ok(())
    }

    fn seal(&mut self) -> Result<u32, DeviceError> {
        for exec in &mut self.execs {
            exec.check_manifest(self.arena.address, &self.base.memory)?;
            exec.stage = Stage::Sealed;
        }
        Ok(self.execs.len() as u32)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
