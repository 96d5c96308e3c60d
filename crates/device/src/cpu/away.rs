//! Arenas of the CPU device away from it.

use super::exec::{Exec, capture_in};
use super::isa::Isa;
use super::memory::Memory;
use super::room;
use super::slab::Slab;
use super::source::Source;
use crate::port::{ArenaId, DeviceError};
use crate::workshop::{AwayArena, Workshop};
use core::any::Any;
use lockstep_plan::Proven;
use std::sync::Arc;

/// Makes arenas over the device's memory.
pub struct CpuWorkshop {
    pub(super) memory: Arc<Memory>,
    pub(super) isa: Isa,
}

/// An arena with what was captured in it, or an arena that the device has lent.
pub struct CpuAway {
    pub(super) slab: Slab,
    /// Where the device had it; none where it has never been there.
    pub(super) home: Option<ArenaId>,
    pub(super) execs: Vec<Exec>,
    memory: Arc<Memory>,
    isa: Isa,
}

impl CpuAway {
    /// Takes an arena from the device.
    pub(super) fn lent(slab: Slab, home: ArenaId, memory: Arc<Memory>, isa: Isa) -> CpuAway {
        CpuAway { slab, home: Some(home), execs: Vec::new(), memory, isa }
    }
}

impl Workshop for CpuWorkshop {
    fn arena(&self, bytes: u64) -> Result<Box<dyn AwayArena>, DeviceError> {
        room::check(bytes, "an arena")?;
        let slab = Slab::new(bytes as usize, "an arena")?;
        let (memory, isa) = (self.memory.clone(), self.isa);
        let mut away = CpuAway { slab, home: None, execs: Vec::new(), memory, isa };
        away.fill(bytes, 0);
        Ok(Box::new(away))
    }
}

impl AwayArena for CpuAway {
    fn bytes(&self) -> u64 {
        self.slab.len() as u64
    }

    fn fill(&mut self, bytes: u64, byte: u8) {
        self.slab.fill(bytes as usize, byte);
    }

    fn capture(&mut self, plan: &Arc<Proven>) -> Result<(), DeviceError> {
        let arena = self.home.unwrap_or(ArenaId(u32::MAX));
        let source = Source::Proven(plan.clone());
        self.execs.push(capture_in(source, arena, &self.slab, &self.memory, self.isa)?);
        Ok(())
    }

    fn seal(&mut self) -> Result<u32, DeviceError> {
        for exec in &mut self.execs {
            exec.check_manifest(self.slab.base(), &self.memory)?;
            exec.seal();
        }
        Ok(self.execs.len() as u32)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
