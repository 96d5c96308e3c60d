//! The corruption gate and the load generator: a client of any OpenAI-compatible server.
#![forbid(unsafe_code)]

pub mod bench;
pub mod client;
