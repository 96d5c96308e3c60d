//! An op of DeepSeek-V4 as one type: its kernel's name and the axis of its rows.

use crate::Axis;
use crate::v4::{
    CompressRows, ExpertDown, ExpertSum, ExpertUp, GroupedGemm, HeadRope, HyperIn, HyperOut,
    HyperStart, IndexScores, IndexTopK, LimitedSiluMul, Route, SinkAttention, StateStore,
    WindowStore,
};
use crate::v4_mtp::{DraftPick, DraftStart, ShiftPositions, StreamNorm};

/// What an op of DeepSeek-V4 computes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum V4Op {
    /// See [`HyperStart`].
    HyperStart(HyperStart),
    /// See [`HyperIn`].
    HyperIn(HyperIn),
    /// See [`HyperOut`].
    HyperOut(HyperOut),
    /// See [`HeadRope`].
    HeadRope(HeadRope),
    /// See [`WindowStore`].
    WindowStore(WindowStore),
    /// See [`StateStore`].
    StateStore(StateStore),
    /// See [`CompressRows`].
    CompressRows(CompressRows),
    /// See [`IndexScores`].
    IndexScores(IndexScores),
    /// See [`IndexTopK`].
    IndexTopK(IndexTopK),
    /// See [`SinkAttention`].
    SinkAttention(SinkAttention),
    /// See [`GroupedGemm`].
    GroupedGemm(GroupedGemm),
    /// See [`Route`].
    Route(Route),
    /// See [`ExpertUp`].
    ExpertUp(ExpertUp),
    /// See [`ExpertDown`].
    ExpertDown(ExpertDown),
    /// See [`LimitedSiluMul`].
    LimitedSiluMul(LimitedSiluMul),
    /// See [`ExpertSum`].
    ExpertSum(ExpertSum),
    /// See [`StreamNorm`].
    StreamNorm(StreamNorm),
    /// See [`ShiftPositions`].
    ShiftPositions(ShiftPositions),
    /// See [`DraftStart`].
    DraftStart(DraftStart),
    /// See [`DraftPick`].
    DraftPick(DraftPick),
}

impl V4Op {
    /// The kernel's name, a row of `KERNELS.md`.
    pub const fn kernel(&self) -> &'static str {
        match self {
            V4Op::HyperStart(_) => "hyper_start",
            V4Op::HyperIn(_) => "hyper_in",
            V4Op::HyperOut(_) => "hyper_out",
            V4Op::HeadRope(_) => "head_rope",
            V4Op::WindowStore(_) => "window_store",
            V4Op::StateStore(_) => "state_store",
            V4Op::CompressRows(_) => "compress_rows",
            V4Op::IndexScores(_) => "index_scores",
            V4Op::IndexTopK(_) => "index_topk",
            V4Op::SinkAttention(_) => "sink_attention",
            V4Op::GroupedGemm(_) => "grouped_gemm",
            V4Op::Route(_) => "route",
            V4Op::ExpertUp(_) => "expert_up",
            V4Op::ExpertDown(_) => "expert_down",
            V4Op::LimitedSiluMul(_) => "limited_silu_mul",
            V4Op::ExpertSum(_) => "expert_sum",
            V4Op::StreamNorm(_) => "stream_norm",
            V4Op::ShiftPositions(_) => "shift_positions",
            V4Op::DraftStart(_) => "draft_start",
            V4Op::DraftPick(_) => "draft_pick",
        }
    }

    /// The axis of its rows.
    pub const fn row_axis(&self) -> Axis {
        match self {
            V4Op::HyperStart(h) => h.axis,
            V4Op::HyperIn(h) => h.axis,
            V4Op::HyperOut(h) => h.axis,
            V4Op::HeadRope(h) => h.axis,
            V4Op::SinkAttention(a) => a.axis,
            V4Op::GroupedGemm(g) => g.axis,
            V4Op::Route(r) => r.axis,
            V4Op::ExpertUp(e) => e.axis,
            V4Op::ExpertDown(e) => e.axis,
            V4Op::LimitedSiluMul(s) => s.axis,
            V4Op::ExpertSum(s) => s.axis,
            V4Op::StreamNorm(s) => s.axis,
            V4Op::ShiftPositions(s) => s.axis,
            V4Op::DraftStart(_) | V4Op::DraftPick(_) => Axis::R,
            V4Op::WindowStore(_)
            | V4Op::StateStore(_)
            | V4Op::CompressRows(_)
            | V4Op::IndexScores(_)
            | V4Op::IndexTopK(_) => Axis::T,
        }
    }
}
