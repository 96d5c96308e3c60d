//! A real engine on a device of this room, turned by hand, and clients that keep what they are
//! told.

use crate::fault_device::FaultDevice;
use crate::scene::SceneError;
use lockstep_engine::{EngineParts, Handle, Knobs, StepLoop, assemble};
use lockstep_flow::{Event, EventSink};
use lockstep_model::Model;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An engine whose steps the caller runs.
pub fn assembled(
    device: FaultDevice,
    model: Model,
    knobs: Knobs,
) -> Result<(Handle, StepLoop), SceneError> {
    let parts = EngineParts::of(Box::new(device), model, knobs);
    let (started, steps) = assemble(parts).map_err(SceneError::Engine)?;
    Ok((started.handle, steps))
}

/// The events of one request.
#[derive(Clone, Default)]
pub struct Keeper(Arc<Mutex<Vec<Event>>>);

impl EventSink for Keeper {
    fn emit(&mut self, event: Event) -> bool {
        self.events().push(event);
        true
    }
}

impl Keeper {
    /// So far, in order.
    pub fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once its final event has come.
    pub fn ended(&self) -> bool {
        self.events().last().is_some_and(|e| e.kind.is_final())
    }
}
