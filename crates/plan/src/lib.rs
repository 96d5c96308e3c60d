//! The step plan: what a step does, said in a form that can be proven before it runs.
//!
//! A builder in `model` emits ops over named buffers and lanes ([`PlanBuilder`]); [`pack()`] places
//! transients in an arena by the partial order; [`prove()`] checks contract 2 and returns the only
//! value from which a device captures anything, or the hazards. This room knows no model and no
//! backend, holds no pointer and runs nothing.
#![forbid(unsafe_code)]

mod access;
mod backend;
mod buffer;
mod build;
mod declare;
pub mod format;
mod lane;
mod op;
mod step_plan;

pub use access::{Access, Decision, DependsOn, Obligation, RowReach, RowView, Stride};
pub use backend::{Activation, Backend, Unsupported};
pub use buffer::{Axis, Buffer, BufferId, BufferKind, Elem, PaddingPolicy, Span, StateKind};
pub use build::{LIVE_COUNTS, LIVE_COUNTS_BYTES, PlanBuilder, conflict, derive_edges};
pub use declare::{Accesses, declare, row_axis};
pub use lane::{Edge, EdgeKind, LaneId};
pub use op::{
    Attention, AttnShape, Embed, Epilogue, GatherTokens, Gemm, GemmPart, KvDtype, Op, OpId, OpKind,
    QuantizeRows, RmsNorm, RopeKvWrite, RopePairing, Sample, SiluMul, TOKEN_FROM_LAST,
};
pub use step_plan::StepPlan;
