//! The guarded change: targets, journal, gates, rollback, records.
#![forbid(unsafe_code)]

pub mod address;
pub mod backup;
pub mod clock;
pub mod deployment;
pub mod discover;
pub mod edit;
pub mod fault;
pub mod gate;
pub mod journal;
pub mod lock;
pub mod predict;
pub mod process;
pub mod readback;
pub mod record;
pub mod router;
pub mod rules;
pub mod target;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod web;

pub use fault::ChangeError;
