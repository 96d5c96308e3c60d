//! Ops of DeepSeek-V4's prediction blocks beside those that they share with the layers.

use crate::v4::Tables;
use crate::{Axis, BufferId};

/// Where the streams come from that a prediction block reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamSource {
    /// Of the position before the row's own: `[streams * dim]` f32 a position; zeros before the
    /// first one.
    Before { pages: BufferId, tables: Tables },
    /// Row `row_index` of `[..][streams * dim]` f32; the same row where absent.
    Rows { x: BufferId, row_index: Option<BufferId> },
}

/// Norms every residual stream by itself, all with one weight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamNorm {
    /// Row axis of the output.
    pub axis: Axis,
    /// The streams.
    pub source: StreamSource,
    /// Channels of a stream.
    pub dim: u32,
    /// `[dim]` f32.
    pub norm: BufferId,
    /// Bits of the f32 epsilon.
    pub eps_bits: u32,
    /// `[rows of axis][dim]` f32, one a stream.
    pub outs: Vec<BufferId>,
}

/// Positions moved by some steps, kept within `0..limit`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShiftPositions {
    /// Row axis.
    pub axis: Axis,
    /// `[rows]` u32.
    pub positions: BufferId,
    /// Steps.
    pub by: i32,
    /// Positions that there are.
    pub limit: u32,
    /// `[rows]` u32.
    pub out: BufferId,
}

/// What a prediction block starts from: for every logit row its token (the one just sampled, or
/// the one whose log-probability was reported), position and sequence.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DraftStart {
    /// `[R]`, as the sampling op wrote it.
    pub results: BufferId,
    /// `[R]` u32: token row of a logit row.
    pub logit_rows: BufferId,
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T]` u32.
    pub token_seq: BufferId,
    /// Tokens that there are; a row without a token takes token 0.
    pub vocab: u32,
    /// `[R]` u32.
    pub tokens_out: BufferId,
    /// `[R]` u32.
    pub positions_out: BufferId,
    /// `[R]` u32.
    pub seqs_out: BufferId,
}

/// The token with the greatest logit, the lowest of equals; 0 where there is none (NaN).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DraftPick {
    /// `[R][vocab]` f32.
    pub logits: BufferId,
    /// Tokens that there are.
    pub vocab: u32,
    /// `[R]` u32.
    pub out: BufferId,
}
