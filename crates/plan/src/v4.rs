//! Ops of DeepSeek-V4: parallel residual streams, window attention with compressed rows, the
//! indexer, and the mixture of experts.
//!
//! Every kind of row is paged by the same block table. A position's row of a window, or of a
//! compressor's state, lies at its write slot; a compressed row lies in the page of the token that
//! closes it.

use crate::format::Format;
pub use crate::v4_mtp::{DraftPick, DraftStart, ShiftPositions, StreamNorm, StreamSource};
pub use crate::v4_op::V4Op;
use crate::{Axis, BufferId, RowCode};

/// Streams to one normed row, with the weights that [`HyperOut`] needs to put the sublayer's
/// result back. Without `mix` it is the head: one weight a stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HyperIn {
    /// Row axis of the output.
    pub axis: Axis,
    /// `[T][streams * dim]` f32.
    pub x: BufferId,
    /// `[rows of axis]` u32: which row of `x` an output row takes; the same row where absent.
    pub row_index: Option<BufferId>,
    /// `[outputs][streams * dim]` f32, outputs `2 * streams + streams^2`, or `streams` for a head.
    pub projection: BufferId,
    /// `[outputs]` f32.
    pub base: BufferId,
    /// f32: 3 values, or 1 for a head.
    pub scale: BufferId,
    /// `[dim]` f32: the norm that follows.
    pub norm: BufferId,
    /// Residual streams.
    pub streams: u32,
    /// Channels of a stream.
    pub dim: u32,
    /// Rounds of Sinkhorn's iteration.
    pub sinkhorn_iters: u32,
    /// Bits of the f32 epsilon of the weights.
    pub hyper_eps_bits: u32,
    /// Bits of the f32 epsilon of both norms.
    pub norm_eps_bits: u32,
    /// `[rows][dim]` f32.
    pub out: BufferId,
    /// `[T][streams + streams^2]` f32: post, then the matrix by rows.
    pub mix: Option<BufferId>,
}

/// Copies a row into every stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HyperStart {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][dim]` f32.
    pub x: BufferId,
    /// Residual streams.
    pub streams: u32,
    /// Channels of a stream.
    pub dim: u32,
    /// `[T][streams * dim]` f32.
    pub out: BufferId,
}

/// Puts a sublayer's result into the streams: `x[k] = post[k] * y + sum_j mix[j][k] * x[j]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HyperOut {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][dim]` f32.
    pub y: BufferId,
    /// As [`HyperIn`] wrote it.
    pub mix: BufferId,
    /// `[T][streams * dim]` f32, updated in place.
    pub x: BufferId,
    /// Residual streams.
    pub streams: u32,
    /// Channels of a stream.
    pub dim: u32,
}

/// Rotation of the last channels of a head, adjacent channels in pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TailRope {
    /// `[context][rotary_dim / 2][cos, sin]` f32.
    pub table: BufferId,
    /// Rotated channels, at the end of a head.
    pub rotary_dim: u32,
}

/// Rotates heads in place, each normed by its own mean square first where `unit_norm` says so.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HeadRope {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][heads * dim]` f32.
    pub x: BufferId,
    /// Heads.
    pub heads: u32,
    /// Channels of a head.
    pub dim: u32,
    /// Norm without a weight, before the rotation.
    pub unit_norm: bool,
    /// Bits of the f32 epsilon of the norm.
    pub eps_bits: u32,
    /// The rotation.
    pub rope: TailRope,
    /// Heads are rounded as rows that are kept like this, and stay as they are there.
    pub code: RowCode,
    /// `[T]` u32.
    pub positions: BufferId,
}

/// Norms and rotates the shared key-value row and writes it into the window's pages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WindowStore {
    /// `[T][dim]` f32.
    pub kv: BufferId,
    /// `[dim]` f32.
    pub norm: BufferId,
    /// Channels.
    pub dim: u32,
    /// Bits of the f32 epsilon.
    pub eps_bits: u32,
    /// The rotation.
    pub rope: TailRope,
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T]` u32.
    pub write_slots: BufferId,
    /// `[dim]` a position.
    pub pages: BufferId,
    /// How rows are kept.
    pub code: RowCode,
}

/// Keeps a compressor's values and gates of each token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StateStore {
    /// `[T][cols]` f32.
    pub x: BufferId,
    /// Values, then gates.
    pub cols: u32,
    /// `[T]` u32.
    pub write_slots: BufferId,
    /// `[cols]` f32 a position.
    pub pages: BufferId,
}

/// Where the tokens of a step and the pages of their sequences are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tables {
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T]` u32: the row's sequence, an index into the block table.
    pub token_seq: BufferId,
    /// `[S][pages_per_seq_max]` u32.
    pub block_table: BufferId,
    /// Columns of the block table.
    pub pages_per_seq_max: u32,
}

/// For each token that closes a window: pools the window's values by a softmax over its gates,
/// norms and rotates the row, and writes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CompressRows {
    /// As [`StateStore`] wrote it: `2 * channels` f32 a position.
    pub state: BufferId,
    /// Tokens of a window.
    pub ratio: u32,
    /// Windows overlap: the first half of the channels pools the window before.
    pub overlap: bool,
    /// Channels of a row.
    pub dim: u32,
    /// `[ratio][channels]` f32, added to the gates.
    pub ape: BufferId,
    /// `[dim]` f32.
    pub norm: BufferId,
    /// Bits of the f32 epsilon.
    pub eps_bits: u32,
    /// The rotation, at the window's first position.
    pub rope: TailRope,
    /// Where everything is.
    pub tables: Tables,
    /// `[T]` u32.
    pub write_slots: BufferId,
    /// `[dim]` a compressed row.
    pub rows: BufferId,
    /// How rows are kept.
    pub code: RowCode,
}

/// Scores of the closed compressed rows, where there are more than will be selected.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexScores {
    /// `[T][heads * dim]` f32, rotated.
    pub q: BufferId,
    /// `[T][heads]` f32.
    pub weights: BufferId,
    /// Heads.
    pub heads: u32,
    /// Channels of a head.
    pub dim: u32,
    /// Rows that will be selected.
    pub topk: u32,
    /// Tokens of a row.
    pub ratio: u32,
    /// `[dim]` a compressed row.
    pub keys: BufferId,
    /// How keys are kept.
    pub code: RowCode,
    /// Where everything is.
    pub tables: Tables,
    /// `[T][rows_max]` f32.
    pub scores: BufferId,
    /// Compressed rows of the longest sequence.
    pub rows_max: u32,
}

/// The rows with the greatest scores (score descending, row ascending), listed by row; all closed
/// rows where they are no more than `topk`. Unused places are `u32::MAX`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexTopK {
    /// `[T][rows_max]` f32.
    pub scores: BufferId,
    /// Compressed rows of the longest sequence.
    pub rows_max: u32,
    /// Tokens of a row.
    pub ratio: u32,
    /// Rows to select.
    pub topk: u32,
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T][topk]` u32.
    pub out: BufferId,
}

/// The compressed rows that an attention sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompressedRows {
    /// `[dim]` a compressed row.
    pub rows: BufferId,
    /// Tokens of a row.
    pub ratio: u32,
    /// `[T][topk]` u32 and its `topk`; all closed rows where absent.
    pub selection: Option<(BufferId, u32)>,
}

/// Attention of query heads over one shared key-value head: the window, then compressed rows, with
/// a sink logit for each head; the result is rotated back.
///
/// With a `tail` it is that of a prediction block: the rows of the row's own position and of those
/// right before it are `tail`'s, earlier ones lie in the slot after their position.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SinkAttention {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][heads * dim]` f32, rotated.
    pub q: BufferId,
    /// Heads.
    pub heads: u32,
    /// Channels of a head.
    pub dim: u32,
    /// `[heads]` f32.
    pub sinks: BufferId,
    /// `[dim]` a position.
    pub window_rows: BufferId,
    /// How the rows of the window and those beyond it are kept.
    pub code: RowCode,
    /// Positions seen, the row's own included.
    pub window: u32,
    /// Rows beyond it.
    pub compressed: Option<CompressedRows>,
    /// `[T][dim]` f32 each: rows of the last positions, the row's own last.
    pub tail: Vec<BufferId>,
    /// The rotation.
    pub rope: TailRope,
    /// Where everything is.
    pub tables: Tables,
    /// `[T][heads * dim]` f32.
    pub out: BufferId,
}

/// One matrix a group of columns: `out[.., g n..] = x[.., g k..] * w[g n..]^T`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupedGemm {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][groups * k]` f32.
    pub x: BufferId,
    /// Groups.
    pub groups: u32,
    /// Input features of a group.
    pub k: u32,
    /// Output features of a group.
    pub n: u32,
    /// Packed, `groups * n` rows by `k` columns, of a float format.
    pub w: BufferId,
    /// Its format.
    pub format: Format,
    /// `[T][groups * n]` f32.
    pub out: BufferId,
}

/// How experts are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// The greatest scores plus `bias` (`[experts]` f32), which weighs nothing.
    Scored { bias: BufferId },
    /// By `[vocab][per_token]` u32 and the token `[T]` u32.
    Table { table: BufferId, tokens: BufferId },
}

/// Chooses experts and weighs them: `sqrt(softplus(logit))`, made to add up to `scaling`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][experts]` f32.
    pub logits: BufferId,
    /// How.
    pub choice: Choice,
    /// Experts.
    pub experts: u32,
    /// Experts of a token.
    pub per_token: u32,
    /// Bits of the f32 sum of a token's weights.
    pub scaling_bits: u32,
    /// `[T][per_token]` u32.
    pub chosen: BufferId,
    /// `[T][per_token]` f32.
    pub weights: BufferId,
}

/// First half of the chosen experts: `silu(min(gate x, limit)) * clamp(up x, limit)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ExpertUp {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][k]` f32.
    pub x: BufferId,
    /// `[T][per_token]` u32.
    pub chosen: BufferId,
    /// Experts of a token.
    pub per_token: u32,
    /// Experts.
    pub experts: u32,
    /// Packed, `experts * n` rows by `k` columns, of a float format.
    pub gate: BufferId,
    /// The same.
    pub up: BufferId,
    /// Their format.
    pub format: Format,
    /// Input features.
    pub k: u32,
    /// Output features of an expert.
    pub n: u32,
    /// Bits of the f32 limit.
    pub limit_bits: u32,
    /// `[T][per_token * n]` f32.
    pub out: BufferId,
}

/// Second half of the chosen experts, each result apart.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ExpertDown {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][per_token * k]` f32.
    pub x: BufferId,
    /// `[T][per_token]` u32.
    pub chosen: BufferId,
    /// Experts of a token.
    pub per_token: u32,
    /// Experts.
    pub experts: u32,
    /// Packed, `experts * n` rows by `k` columns, of a float format.
    pub w: BufferId,
    /// Its format.
    pub format: Format,
    /// Input features.
    pub k: u32,
    /// Output features.
    pub n: u32,
    /// `[T][per_token * n]` f32.
    pub out: BufferId,
}

/// `silu(min(gate, limit)) * clamp(up, limit)` of the shared expert.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LimitedSiluMul {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][2 * dim]` f32: gate, then up.
    pub x: BufferId,
    /// Channels of the output.
    pub dim: u32,
    /// Bits of the f32 limit.
    pub limit_bits: u32,
    /// `[T][dim]` f32.
    pub out: BufferId,
}

/// Adds the experts' results to the shared expert's, in the order in which they were chosen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ExpertSum {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T][dim]` f32.
    pub shared: BufferId,
    /// `[T][per_token * dim]` f32.
    pub routed: BufferId,
    /// `[T][per_token]` f32.
    pub weights: BufferId,
    /// Experts of a token.
    pub per_token: u32,
    /// Channels.
    pub dim: u32,
    /// `[T][dim]` f32.
    pub out: BufferId,
}

/// Shapes that a device's kernels have to take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct V4Shape {
    /// Residual streams.
    pub streams: u32,
    /// Channels of a stream.
    pub hidden: u32,
    /// Channels of a head.
    pub head_dim: u32,
    /// Rotated channels.
    pub rotary_dim: u32,
    /// Heads of the indexer.
    pub index_heads: u32,
    /// Channels of those.
    pub index_head_dim: u32,
    /// Width of a group's low-rank row.
    pub o_lora: u32,
    /// Experts.
    pub experts: u32,
    /// Width of an expert.
    pub ffn: u32,
    /// Experts of a token.
    pub experts_per_token: u32,
}
