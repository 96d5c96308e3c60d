//! The corruption gate and the load generator: a client of any OpenAI-compatible server.
#![forbid(unsafe_code)]

pub mod bench;
pub mod calibration;
pub mod client;
pub mod coverage;
pub mod dialogue;
pub mod isolate;
pub mod judge;
pub mod report;
pub mod run;
pub mod stats;
mod stop;

pub use stop::Stop;
