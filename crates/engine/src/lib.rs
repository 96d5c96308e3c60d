//! The step loop: tickets become batches, batches fill the inputs of a proven plan, the plan is
//! replayed with sampling last, tokens come back.
//!
//! One thread owns device, scheduler and pool; everybody else has a [`Handle`]. A step is
//! `plan -> lease -> fill inputs -> replay -> collect -> complete -> events`
//! ([`core`](self) is that sentence as code). Nothing on that path allocates on this room's side.
//!
//! Absent: HTTP, files, text, and any second path from a batch to tokens.
#![forbid(unsafe_code)]

mod active;
mod audit;
mod blueprint;
mod canary;
mod canary_run;
mod clock;
mod core;
mod counters;
mod draft;
mod drain;
mod engine;
mod error;
mod first;
mod flight;
mod flip;
mod generation;
mod handle;
mod inputs;
mod knobs;
mod masks;
mod outcomes;
mod publish;
mod status;
mod step_loop;
mod tap;
mod yard;

pub use blueprint::Blueprint;
pub use clock::RealClock;
pub use draft::{Draft, Packed};
pub use engine::{
    EngineParts, Late, Started, assemble, load_weights, plan_shape, start, start_with,
};
pub use error::EngineError;
pub use generation::{Bucket, Generation, Io, ProvenBucket, capture_all, ladder, prove_all};
pub use handle::{Handle, Submission};
pub use knobs::{KnobChange, Knobs};
pub use step_loop::{LoopTurn, StepLoop};
pub use tap::LogitTap;
