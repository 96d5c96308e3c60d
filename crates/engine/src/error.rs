//! Why an engine could not be started, or a generation not made.

use core::fmt;
use lockstep_device::DeviceError;
use lockstep_flow::BucketKey;
use lockstep_model::ModelError;
use lockstep_plan::Hazard;
use lockstep_pool::PoolError;
use lockstep_sched::SchedError;

/// Everything that can go wrong before the first step.
#[derive(Clone, Debug)]
pub enum EngineError {
    /// The model cannot be planned for this device.
    Model(ModelError),
    /// The device refuses.
    Device(DeviceError),
    /// The prover refuses a plan.
    Refused { bucket: BucketKey, hazards: Vec<Hazard> },
    /// The token pool's sizes do not work.
    Pool(PoolError),
    /// The scheduler's knobs do not work.
    Sched(SchedError),
    /// The budget holds fewer pages than the pool needs at least.
    KvMemory { kv_bytes: u64, page_bytes: u64, pages_min: u32 },
    /// A knob that cannot be served.
    Knob { name: &'static str, found: String, expected: String },
    /// Whoever starts the engine found meanwhile that there is nothing to start it for.
    GivenUp,
    /// The step thread could not be started.
    Thread { kind: std::io::ErrorKind },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Model(e) => e.fmt(f),
            EngineError::Device(e) => e.fmt(f),
            EngineError::Refused { bucket, hazards } => {
                writeln!(f, "the plan of bucket {bucket} is refused:")?;
                for hazard in hazards.iter().take(8) {
                    writeln!(f, "  {hazard}")?;
                }
                write!(f, "{} hazards in all", hazards.len())
            }
            EngineError::Pool(e) => e.fmt(f),
            EngineError::Sched(e) => e.fmt(f),
            EngineError::KvMemory { kv_bytes, page_bytes, pages_min } => write!(
                f,
                "--kv-memory of {kv_bytes} bytes holds {} pages of {page_bytes} bytes; at least \
                 {pages_min} are needed",
                kv_bytes / page_bytes.max(&1)
            ),
            EngineError::Knob { name, found, expected } => {
                write!(f, "{name} is {found}; it must be {expected}")
            }
            EngineError::GivenUp => write!(f, "the start was given up"),
            EngineError::Thread { kind } => write!(f, "the step thread did not start: {kind}"),
        }
    }
}

impl core::error::Error for EngineError {}

macro_rules! from {
    ($($source:ty => $variant:ident),* $(,)?) => {$(
        impl From<$source> for EngineError {
            fn from(e: $source) -> EngineError {
                EngineError::$variant(e)
            }
        }
    )*};
}

from! {
    ModelError => Model,
    DeviceError => Device,
    PoolError => Pool,
    SchedError => Sched,
}
