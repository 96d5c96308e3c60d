//! The nouns of Lockstep: what passes between rooms, with its units and its limits.
//!
//! A request becomes a [`Request`], is admitted as a [`Ticket`], joins a batch whose shape is a
//! [`BucketKey`], and comes back as a series of [`Event`]s of which exactly one is final.
//!
//! This room does no IO, reads no clock and depends on nothing. The three seams through which the
//! outside reaches the core are traits here: [`Clock`], [`EventSink`] and [`TokenMask`].
#![forbid(unsafe_code)]

pub mod alarms;
mod audit;
mod bucket;
mod clock;
mod durations;
mod event;
pub mod generation;
mod ids;
pub mod knobs;
mod lease;
pub mod limits;
mod mask;
pub mod metrics;
mod request;
mod sampling;
pub mod settings;
pub mod status;

pub use audit::{AuditMismatch, AuditPart, AuditPartUse, AuditUse, BucketAudit, OnMismatch};
pub use bucket::{BucketKey, decode_ladder, next_in_ladder};
pub use clock::{Clock, Micros};
pub use durations::Durations;
pub use event::{Event, EventKind, EventSink, Failure, FinishReason, TokenLogprob, Usage};
pub use generation::{GenerationError, GenerationReport, GenerationState};
pub use ids::{PageId, Position, RequestId, Row, Seed, SlotId, Token};
pub use lease::Lease;
pub use mask::{MaskError, TokenMask};
pub use request::{Refusal, Request, Ticket};
pub use sampling::{SamplingError, SamplingParams};
pub use settings::Settings;
pub use status::EngineStatus;
