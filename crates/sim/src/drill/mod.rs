//! Drills: one fault each, put in on purpose, and which layer sees it, measured.
//!
//! Every layer is asked alone, over the same seeds: the prover judges the faulty plan; the explorer
//! and real threads run it without a proof; the pool is asked to sign with its books falsified; the
//! engine serves a tiny model on a [`crate::FaultDevice`], whose plans were proven without the
//! fault. Each run has a clean twin: the same path without the fault, which must never alarm.

mod layer;
mod list;
mod measure;
mod report;
mod serving;

pub use layer::Layer;
pub use list::{DRILLS, Drill};
pub use measure::{DrillError, LayerResult, Measured, measure};
pub use report::{markdown, picture, table};
pub use serving::{FaultyDraft, Often};
