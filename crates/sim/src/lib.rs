//! Faults on purpose, and who sees them.
//!
//! [`FaultDevice`] is a device that does one thing wrong at a chosen step; [`Scene`] runs the real
//! engine on it, step by step, on a tiny model; [`spread`] puts a model's plan on several lanes, so
//! that there is an order to get wrong.
//!
//! This is the only room that may open the device's laboratory. Absent: a copy of production
//! logic, a verdict that was not measured, and any way for a server to come here, but in a build of
//! the binary with its feature `lab`.
#![forbid(unsafe_code)]

pub mod books;
pub mod drill;
mod early;
mod engine;
pub mod explorer;
mod fault_device;
mod hits;
mod one_step;
pub mod race;
mod rng;
mod scene;
mod spread;
mod step;
mod strike;

pub use fault_device::FaultDevice;
pub use one_step::OneStep;
pub use rng::Rng;
pub use scene::{Finding, Outcome, Scene, SceneError, tiny_model};
pub use spread::spread;
pub use strike::{EVERY_STEP, Sabotage, Strike, StrikeLog};
