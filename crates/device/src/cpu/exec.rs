//! A captured plan of the CPU device.

use super::call::Call;
use super::isa::Isa;
use super::memory::Memory;
use super::resolve::{Addresses, address, resolve};
use super::slab::Slab;
use crate::manifest::{Bound, Manifest};
use crate::port::{ArenaId, DeviceError};
use lockstep_plan::{BufferId, LIVE_COUNTS, OpId, Proven, StepPlan};
use std::sync::Arc;

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
    pub proven: Arc<Proven>,
    pub arena: ArenaId,
    pub addresses: Addresses,
    /// Device ops in program order, resolved.
    pub calls: Vec<(OpId, Call)>,
    pub live_counts: Option<BufferId>,
    pub manifest: Manifest,
    pub stage: Stage,
}

/// Resolves a proven plan in an arena.
///
/// # Errors
/// The arena is too small, something that the plan binds is not there, or a kernel refuses.
pub fn capture_in(
    proven: &Arc<Proven>,
    arena: ArenaId,
    slab: &Slab,
    memory: &Memory,
    isa: Isa,
) -> Result<Exec, DeviceError> {
    let plan = proven.plan();
    let (needed, found) = (proven.packing().arena_bytes(), slab.len() as u64);
    if needed > found {
        return Err(DeviceError::Binding {
            buffer: "arena".into(),
            found: format!("{found} bytes"),
            expected: format!("{needed} bytes"),
        });
    }
    let addresses = Addresses::new(proven, slab.base(), memory)?;
    let mut calls = Vec::with_capacity(plan.ops.len());
    for op in plan.op_ids() {
        if let Some(call) = resolve(proven, op, &addresses, memory, isa)? {
            calls.push((op, call));
        }
    }
    let manifest = manifest(plan, &addresses);
    let live_counts = plan.find(LIVE_COUNTS);
    let (proven, stage) = (proven.clone(), Stage::Captured);
    Ok(Exec { proven, arena, addresses, calls, live_counts, manifest, stage })
}

impl Exec {
    /// Compares the manifest with what is bound now. Takes no memory unless they differ.
    ///
    /// # Errors
    /// The first buffer that is somewhere else or something else.
    pub fn check_manifest(&self, base: *mut u8, memory: &Memory) -> Result<(), DeviceError> {
        let plan = self.proven.plan();
        for (id, was) in plan.buffer_ids().zip(&self.manifest.bound) {
            let buffer = plan.buffer(id);
            let at = address(&self.proven, id, base, memory)?;
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
