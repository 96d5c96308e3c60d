//! A captured plan of the CPU device.

use super::call::Call;
use super::isa::Isa;
use super::memory::Memory;
use super::resolve::{Addresses, address, resolve};
use super::slab::Slab;
use super::source::Source;
use crate::held::InArena;
use crate::manifest::{Bound, Manifest};
use crate::port::{ArenaId, DeviceError};
use lockstep_plan::{BufferId, LIVE_COUNTS, OpId, StepPlan};

/// Where an executable stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Resolved.
    Captured,
    /// Checked, and free to run.
    Sealed,
}

/// A captured plan.
pub struct Exec {
    pub source: Source,
    pub arena: ArenaId,
    pub addresses: Addresses,
    /// Device ops in program order, resolved.
    pub calls: Vec<(OpId, Call)>,
    pub live_counts: Option<BufferId>,
    pub manifest: Manifest,
    pub stage: Stage,
}

impl InArena for Exec {
    fn arena(&self) -> ArenaId {
        self.arena
    }

    fn house_in(&mut self, arena: ArenaId) {
        self.arena = arena;
    }
}

/// Resolves a plan in an arena.
///
/// # Errors
/// The arena is too small, something that the plan binds is not there, or a kernel refuses.
pub fn capture_in(
    source: Source,
    arena: ArenaId,
    slab: &Slab,
    memory: &Memory,
    isa: Isa,
) -> Result<Exec, DeviceError> {
    let plan = source.plan();
    let (needed, found) = (source.packing().arena_bytes(), slab.len() as u64);
    if needed > found {
        return Err(DeviceError::Binding {
            buffer: "arena".into(),
            found: format!("{found} bytes"),
            expected: format!("{needed} bytes"),
        });
    }
    let addresses = Addresses::new(&source, slab.base(), memory)?;
    let mut calls = Vec::with_capacity(plan.ops.len());
    for op in plan.op_ids() {
        if let Some(call) = resolve(&source, op, &addresses, memory, isa)? {
            calls.push((op, call));
        }
    }
    let manifest = manifest(plan, &addresses);
    let live_counts = plan.find(LIVE_COUNTS);
    let stage = Stage::Captured;
    Ok(Exec { source, arena, addresses, calls, live_counts, manifest, stage })
}

impl Exec {
    /// Compares the manifest with what is bound now. Takes no memory unless they differ.
    ///
    /// # Errors
    /// The first buffer that is somewhere else or something else.
    pub fn check_manifest(&self, base: *mut u8, memory: &Memory) -> Result<(), DeviceError> {
        let plan = self.source.plan();
        for (id, was) in plan.buffer_ids().zip(&self.manifest.bound) {
            let buffer = plan.buffer(id);
            let at = address(&self.source, id, base, memory)?;
            if !was.is(buffer, at as u64) || self.addresses.at(id) != at {
                let now = Bound::new(buffer, self.addresses.at(id) as u64);
                return Err(DeviceError::Manifest {
                    buffer: was.name.clone(),
                    found: now.describe(),
                    expected: was.describe(),
                });
            }
        }
        Ok(())
    }

    /// Makes it runnable.
    pub fn seal(&mut self) {
        self.stage = Stage::Sealed;
    }
}

/// Describes what every buffer of `plan` is bound to.
fn manifest(plan: &StepPlan, addresses: &Addresses) -> Manifest {
    let bound =
        plan.buffer_ids().map(|id| Bound::new(plan.buffer(id), addresses.at(id) as u64)).collect();
    Manifest { bound }
}
