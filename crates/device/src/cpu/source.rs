//! What an executable was captured from.

use lockstep_plan::{Packing, Proven, StepPlan};
use std::sync::Arc;

/// A proven plan; under the feature `lab`, also one that nobody has proven.
#[derive(Clone)]
pub enum Source {
    /// From [`crate::Device::capture`].
    Proven(Arc<Proven>),
    /// From the laboratory.
    #[cfg(feature = "lab")]
    Raw(Arc<super::lab::Raw>),
}

impl Source {
    /// The plan.
    pub fn plan(&self) -> &StepPlan {
        match self {
            Source::Proven(p) => p.plan(),
            #[cfg(feature = "lab")]
            Source::Raw(r) => &r.plan,
        }
    }

    /// The plan that says what the kernels really touch.
    pub fn kernels(&self) -> &StepPlan {
        match self {
            Source::Proven(p) => p.plan(),
            #[cfg(feature = "lab")]
            Source::Raw(r) => r.kernels.as_ref().unwrap_or(&r.plan),
        }
    }

    /// Where its buffers lie.
    pub fn packing(&self) -> &Packing {
        match self {
            Source::Proven(p) => p.packing(),
            #[cfg(feature = "lab")]
            Source::Raw(r) => &r.packing,
        }
    }
}
