//! The device port, its capture state machine, and the CPU device with its kernels.
//!
//! A device takes [`lockstep_plan::Proven`] plans only, resolves them to addresses and calls
//! ([`Device::capture`]), checks what they are bound to ([`Manifest`]) and runs a step with a
//! lease. After [`Device::seal`] a step allocates nothing.
//!
//! `unsafe` lives here (SIMD, threads, raw memory) and nowhere above.

pub mod cpu;
mod digest;
mod held;
mod manifest;
mod port;
mod workshop;
mod wrap;

pub use cpu::CpuDevice;
#[cfg(feature = "lab")]
pub use cpu::lab;
pub use cpu::sample;
pub use digest::digest;
pub use held::{ArenaBytes, Held, InArena};
pub use lockstep_plan::WeightData;
pub use manifest::{Bound, Manifest, layout_digest};
pub use port::{ArenaId, Device, DeviceError, DeviceMemory, ExecId, Mode, PageBuffer};
pub use workshop::{AwayArena, Remains, Workshop};
pub use wrap::Wrap;
