//! HTTP: the OpenAI API, operator endpoints, admin, metrics.
#![forbid(unsafe_code)]

mod engine;

pub use engine::Engine;
