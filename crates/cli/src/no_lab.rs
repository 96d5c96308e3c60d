//! What takes the laboratory's place in an ordinary build: nothing.

use crate::args::KnobFlags;
use crate::exit::Failure;
use lockstep_device::Device;
use lockstep_engine::{Draft, Handle};
use lockstep_flow::Settings;
use lockstep_flow::status::DeviceFacts;
use lockstep_serve::Engine;
use std::sync::Arc;

/// This binary can do nothing wrong on purpose.
pub const BUILT: bool = false;

/// No flags.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct LabArgs {}

/// Nothing to do wrong.
pub struct Lab;

impl Lab {
    /// Goes on with the knobs as they are.
    pub fn of(_: &LabArgs, knobs: &KnobFlags) -> Result<Option<(Lab, KnobFlags)>, Failure> {
        Ok(Some((Lab, knobs.clone())))
    }

    /// The device that the settings ask for.
    pub fn open(&self, settings: &Settings) -> Result<(Box<dyn Device>, DeviceFacts), Failure> {
        crate::device::open(settings)
    }

    /// Plans as the model makes them.
    pub fn draft(&self) -> Option<Arc<dyn Draft>> {
        None
    }

    /// The engine itself.
    pub fn attend(&self, engine: Arc<Handle>) -> Arc<dyn Engine> {
        engine
    }

    /// Nothing.
    pub fn begin(&self) {}
}
