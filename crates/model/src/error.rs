//! Why no plan could be built.

use core::fmt;
use lockstep_plan::Unsupported;
use lockstep_weights::Role;

/// A model that cannot be put on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelError {
    /// The checkpoint lacks a matrix that the architecture needs.
    MissingWeight { role: Role },
    /// No plan builder has the checkpoint's architecture.
    Architecture,
    /// Drafts are asked for, and the checkpoint has no prediction block.
    NoDrafts { asked: u32 },
    /// The device lacks a kernel.
    Unsupported(Unsupported),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::MissingWeight { role } => {
                write!(f, "the checkpoint has no weight for {role}")
            }
            ModelError::Architecture => {
                write!(f, "no plan builder has this architecture; the Llama family has one")
            }
            ModelError::NoDrafts { asked } => write!(
                f,
                "{asked} drafts a step are asked for, and this model has no prediction block to \
                 make them: leave decode.mtp-drafts at 0"
            ),
            ModelError::Unsupported(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for ModelError {}

impl From<Unsupported> for ModelError {
    fn from(e: Unsupported) -> Self {
        ModelError::Unsupported(e)
    }
}
