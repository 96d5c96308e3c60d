//! HTTP: the OpenAI API, operator endpoints, admin, metrics.
//!
//! A request's way: [`listen`] takes the connection, [`router`] finds the route, `prepare` turns
//! the body into token ids on a blocking thread, [`run`] submits the sequences to the [`Engine`],
//! `choice` turns their events into deltas, `stream` sends them, whole or as events.
//!
//! Invariants:
//! - The step thread never waits for this room: a sink pushes into a channel that is as large as
//!   what its sequences may produce, and answers false where nobody listens any more.
//! - A dropped answer cancels its sequences; nothing else needs to notice that a client left.
//! - A streamed answer and a whole one are made of the same deltas.
//! - Everything a client can grow is bounded by `lockstep_flow::limits` or by a knob.
//!
//! Absent: tokenizing on a socket thread, engine internals, files.
#![forbid(unsafe_code)]

mod admin;
mod app;
mod auth;
mod body;
mod chat;
mod choice;
mod compile;
mod completions;
mod engine;
mod error;
mod fields;
mod format;
mod head;
mod ids;
mod info;
mod json;
mod listen;
mod live;
mod load;
mod messages;
mod metrics;
mod notices;
mod ops;
mod params;
mod peer;
mod plain;
mod prepare;
mod probe;
mod router;
mod run;
mod scores;
mod server;
mod socket;
mod state;
mod stream;
mod surface;
mod tokens;
mod tool_prompt;
mod tools;
mod ui;

pub use app::ServeConfig;
pub use engine::Engine;
pub use error::ApiError;
pub use listen::Drained;
pub use server::{Bound, ServeError};
