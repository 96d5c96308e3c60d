//! What a prediction block starts from, and what comes out of it.
//!
//! Definitions: a stream's norm is the RMS norm with a weight, as [`super::super::norm`] defines
//! it, of zeros where there is no position before. A pick is the token with the greatest logit, the
//! lowest of equals; a NaN is below everything.

use super::super::isa::Isa;
use super::super::lanes::{Lanes, per_isa};
use super::super::norm::norm_row;
use super::super::sample::{SampleResult, SampleStatus};
use super::paged::{PagedRows, Tables};

/// Residual streams, at most.
pub const STREAMS_MAX: usize = 4;

/// Where the streams come from.
#[derive(Clone, Copy, Debug)]
pub enum StreamSource {
    /// Of the position before the row's own.
    Before {
        /// One row a position.
        pages: PagedRows,
        /// Where everything is.
        tables: Tables,
    },
    /// Rows of a buffer.
    Rows {
        /// `[..][streams * dim]`
        x: *const f32,
        /// Which row of `x` a row takes; null: the same.
        row_index: *const u32,
    },
}

/// Each stream normed by itself.
#[derive(Clone, Copy, Debug)]
pub struct StreamNorm {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Channels of a stream, a multiple of 16.
    pub dim: usize,
    /// Epsilon of the norm.
    pub eps: f32,
    /// The streams.
    pub source: StreamSource,
    /// `[dim]`
    pub norm: *const f32,
    /// Residual streams.
    pub streams: usize,
    /// `[rows][dim]` each
    pub outs: [*mut f32; STREAMS_MAX],
}

/// Positions moved by some steps.
#[derive(Clone, Copy, Debug)]
pub struct ShiftPositions {
    /// Rows, live and padded.
    pub rows: u32,
    /// Steps.
    pub by: i32,
    /// Positions that there are.
    pub limit: u32,
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows]`
    pub out: *mut u32,
}

/// Tokens, positions and sequences of logit rows.
#[derive(Clone, Copy, Debug)]
pub struct DraftStart {
    /// Logit rows, live and padded.
    pub rows: u32,
    /// Tokens that there are.
    pub vocab: u32,
    /// `[rows]`
    pub results: *const SampleResult,
    /// `[rows]`: the token row of a logit row.
    pub logit_rows: *const u32,
    /// `[token rows]`
    pub positions: *const u32,
    /// `[token rows]`
    pub token_seq: *const u32,
    /// `[rows]`
    pub tokens_out: *mut u32,
    /// `[rows]`
    pub positions_out: *mut u32,
    /// `[rows]`
    pub seqs_out: *mut u32,
}

/// The greatest logit's token.
#[derive(Clone, Copy, Debug)]
pub struct DraftPick {
    /// Rows, live and padded.
    pub rows: u32,
    /// Tokens that there are.
    pub vocab: usize,
    /// `[rows][vocab]`
    pub logits: *const f32,
    /// `[rows]`
    pub out: *mut u32,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for StreamNorm {}
// SAFETY: as above.
unsafe impl Sync for StreamNorm {}
// SAFETY: as above.
unsafe impl Send for ShiftPositions {}
// SAFETY: as above.
unsafe impl Sync for ShiftPositions {}
// SAFETY: as above.
unsafe impl Send for DraftStart {}
// SAFETY: as above.
unsafe impl Sync for DraftStart {}
// SAFETY: as above.
unsafe impl Send for DraftPick {}
// SAFETY: as above.
unsafe impl Sync for DraftPick {}

impl StreamNorm {
    /// Norms the streams of one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say, the streams have been written,
    /// and nothing else touches the row of the outputs.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { stream_norm(self.isa, self, row) }
    }
}

per_isa! {
    unsafe fn stream_norm(a: &StreamNorm, row: usize) = stream_norm_body;
}

#[inline(always)]
unsafe fn stream_norm_body<V: Lanes>(a: &StreamNorm, row: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let width = a.streams * a.dim;
        let x = match a.source {
            StreamSource::Before { pages, tables } => match tables.of(row) {
                (0, _) => core::ptr::null(),
                (position, table) => pages.at(table, position - 1).cast::<f32>(),
            },
            StreamSource::Rows { x, row_index } => {
                let from = if row_index.is_null() { row } else { *row_index.add(row) as usize };
                x.add(from * width)
            }
        };
        for (k, out) in a.outs.iter().enumerate().take(a.streams) {
            let out = out.add(row * a.dim);
            if x.is_null() {
                core::ptr::write_bytes(out, 0, a.dim);
            } else {
                norm_row::<V>(x.add(k * a.dim), a.norm, out, a.dim, a.eps);
            }
        }
    }
}

impl ShiftPositions {
    /// Moves one position.
    ///
    /// # Safety
    /// Addresses hold what their fields say.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let moved = (*self.positions.add(row)).saturating_add_signed(self.by);
            *self.out.add(row) = moved.min(self.limit - 1);
        }
    }
}

impl DraftStart {
    /// Looks one logit row up.
    ///
    /// # Safety
    /// Addresses hold what their fields say; the row's result has been written.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let result = &*self.results.add(row);
            let sound = result.status == SampleStatus::Ok as u32 && result.token < self.vocab;
            *self.tokens_out.add(row) = if sound { result.token } else { 0 };
            let from = *self.logit_rows.add(row) as usize;
            *self.positions_out.add(row) = *self.positions.add(from);
            *self.seqs_out.add(row) = *self.token_seq.add(from);
        }
    }
}

impl DraftPick {
    /// Picks one row's token.
    ///
    /// # Safety
    /// Addresses hold what their fields say.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let logits = core::slice::from_raw_parts(self.logits.add(row * self.vocab), self.vocab);
            *self.out.add(row) = greatest(logits);
        }
    }
}

fn greatest(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (token, &v) in logits.iter().enumerate() {
        if v > best.0 {
            best = (v, token as u32);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pick_is_the_lowest_of_the_greatest_and_never_a_nan() {
        assert_eq!(greatest(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(greatest(&[f32::NAN, -2.0, f32::NAN]), 1);
        assert_eq!(greatest(&[f32::NAN; 3]), 0);
    }

    #[test]
    fn positions_stay_within_the_context() {
        let moved = |by: i32, from: u32| {
            let (positions, mut out) = ([from], [77]);
            let op = ShiftPositions {
                rows: 1,
                by,
                limit: 10,
                positions: positions.as_ptr(),
                out: out.as_mut_ptr(),
            };
            // SAFETY: both arrays have one row.
            unsafe { op.run(0) };
            out[0]
        };
        assert_eq!((moved(-1, 0), moved(-1, 5), moved(1, 8), moved(1, 9)), (0, 4, 9, 9));
    }
}
