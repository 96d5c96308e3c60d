//! The step plan: what a step does, said in a form that can be proven before it runs.
//!
//! A builder in `model` emits ops over named buffers and lanes ([`PlanBuilder`]); [`pack`] places
//! transients in an arena by the partial order; [`prove`] checks contract 2 and returns the only
//! value from which a device captures anything, or the hazards. This room knows no model and no
//! backend, holds no pointer and runs nothing.
#![forbid(unsafe_code)]

mod access;
mod alias;
mod backend;
mod between;
mod buffer;
mod build;
mod declare;
mod declare_v4;
mod defined;
mod digest;
pub mod drill;
pub mod explore;
mod fault_text;
mod fit;
pub mod format;
mod hazard;
mod lane;
pub mod mix;
mod op;
mod order;
mod pack;
mod prove;
mod race;
mod relay;
mod row_code;
mod rules;
mod seeded;
mod sequence;
mod step_plan;
mod structure;
mod summary;
mod svg;
mod uses;
pub mod v4;
mod v4_mtp;
mod v4_op;

pub use access::{Access, Decision, DependsOn, Obligation, RowReach, RowView, Stride};
pub use backend::{Activation, Backend, Unsupported, WeightData};
pub use between::hazards_between;
pub use buffer::{Axis, Buffer, BufferId, BufferKind, Elem, PaddingPolicy, Span, StateKind};
pub use build::{LIVE_COUNTS, LIVE_COUNTS_BYTES, PlanBuilder, conflict, derive_edges};
pub use declare::{Accesses, declare, row_axis};
pub use digest::Digest;
pub use hazard::{Fault, Hazard, Rule, Touch, When};
pub use lane::{BeforeWait, Edge, EdgeKind, LaneId};
pub use op::{
    Attention, AttnShape, Embed, Epilogue, GatherTokens, Gemm, GemmPart, KvDtype, Op, OpId, OpKind,
    QuantizeRows, RmsNorm, RopeKvWrite, RopePairing, Sample, SiluMul, TOKEN_FROM_LAST,
};
pub use pack::{InOutBytes, PackReport, Packing, pack, pack_beside, pack_by_issue_order};
pub use prove::{ProofCounts, Proven, prove};
pub use relay::Relay;
pub use row_code::{FP4_ROW_BLOCK, FP8_ROW_BLOCK, IndexDtype, RowCode};
pub use seeded::{seed_of, seeded, unit_scale};
pub use sequence::{AnyOrder, Arenas, prove_any_order, prove_between, prove_sequence};
pub use step_plan::StepPlan;
pub use summary::{ArenaLine, OpLine, Summary, render_text};
pub use svg::svg;
