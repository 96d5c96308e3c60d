//! What can be wrong with how the scheduler is set up or driven. A request that is not admitted is
//! a [`lockstep_flow::Refusal`] instead.

use core::fmt;
use lockstep_pool::PoolError;

/// A setting that cannot work, or a call out of order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedError {
    /// A knob out of its bounds.
    Config { what: &'static str, found: u32, min: u32, max: u32 },
    /// No bucket is wide enough for what may run at once.
    LadderTooSmall { what: &'static str, needed: u32, found: u32 },
    /// The pool refused.
    Pool(PoolError),
    /// Outcomes for another number of rows than the step had.
    OutcomeCount { expected: usize, found: usize },
    /// No step is planned or in flight.
    NoStep,
    /// Something that happens between two steps was asked for during one.
    InFlight { steps: u32 },
}

impl fmt::Display for SchedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedError::Config { what, found, min, max } => {
                write!(f, "{what} is {found}; it takes {min} to {max}")
            }
            SchedError::LadderTooSmall { what, needed, found } => write!(
                f,
                "the widest bucket for {what} has {found} rows and {needed} can be needed: add a \
                 wider bucket or lower max_running_requests"
            ),
            SchedError::Pool(e) => e.fmt(f),
            SchedError::OutcomeCount { expected, found } => {
                write!(f, "the step had {expected} rows and {found} outcomes came back")
            }
            SchedError::NoStep => write!(f, "no step is planned or in flight"),
            SchedError::InFlight { steps } => {
                write!(f, "{steps} steps are in flight; it takes the time between two steps")
            }
        }
    }
}

impl core::error::Error for SchedError {}

impl From<PoolError> for SchedError {
    fn from(e: PoolError) -> SchedError {
        SchedError::Pool(e)
    }
}
