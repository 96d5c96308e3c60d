//! Paged causal grouped-query attention in two ops: partial results, then their combination.
//!
//! **Definition**, of one row at position t and one query head over its KV head. The row sees the
//! positions lo..=t with lo = 0, or max(0, t + 1 - window).
//! - q'[d] = q[d] * scale, scale = 1 / sqrt(head_dim) rounded to f32.
//! - A score is the chain s = fma(q'[d], k[d], s) over d = 0, 1, ... from s = 0.
//! - Positions are cut at multiples of [`KV_SPLIT_TOKENS`], never elsewhere. Of each split that has
//!   a seen position: m = greatest score; p = exp(score - m); l = the sum of p in sixteen lanes
//!   (lane = position mod 16) added by the tree of [`super::lanes::Lanes::sum`];
//!   o[d] = fma(p, v[d], o[d]) over the seen positions in order, from 0.
//! - Splits are folded from the left, the first as it is: m' = greater of m and m_i,
//!   a = exp(m - m'), b = exp(m_i - m'), l = fma(l_i, b, l * a), o[d] = fma(o_i[d], b, o[d] * a).
//! - out[d] = o[d] * (1 / l); a NaN is stored as [`f32::NAN`].
//!
//! Nothing here depends on other rows. Rows of the same sequence share loads of K and V, and the
//! fold happens either where the partials are made or in the combining op; both change no bits. A
//! position that a row does not see is never part of its arithmetic, so stale or poisoned bytes of
//! a page's tail cannot reach a result.

mod combine;
mod partial;
mod tile;

use super::isa::{Isa, KernelKind, counters};
use super::kv;
use super::lanes::LANES;
use lockstep_flow::BucketKey;
use lockstep_flow::limits::KV_SPLIT_TOKENS;
use lockstep_plan::{AttnShape, Unsupported};

/// Tokens of a split as an index type.
pub const SPLIT: usize = KV_SPLIT_TOKENS as usize;

/// Rows times KV heads from which on a step has work for every thread without cutting KV.
const UNITS_ENOUGH: u32 = 48;
/// Threads that may share one row and KV head, where KV is cut.
const SPLIT_WAYS_MAX: u32 = 16;
/// Rows of one task, at most.
const ROWS_PER_TASK_MAX: u32 = 16;
/// Scratch beyond which KV is not cut.
const SCRATCH_BYTES_MAX: u64 = 256 << 20;

/// How one bucket's rows are spread over tasks: a function of shapes, and of no consequence for
/// bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Partial results kept for a row and head: one for each split, or 1 where a task folds them.
    pub parts: u32,
    /// Consecutive rows that one task takes.
    pub rows_per_task: u32,
    /// Tasks that share the splits of one group of rows and KV head.
    pub ways: u32,
}

impl Layout {
    /// The layout of `tokens` rows in sequences of up to `context_tokens`.
    pub fn of(shape: &AttnShape, tokens: u32, context_tokens: u32) -> Layout {
        let splits = context_tokens.div_ceil(KV_SPLIT_TOKENS).max(1);
        let units = tokens * shape.kv_heads;
        let cut = Layout { parts: splits, rows_per_task: 1, ways: splits.min(SPLIT_WAYS_MAX) };
        if units < UNITS_ENOUGH && cut.scratch_bytes(shape, tokens) <= SCRATCH_BYTES_MAX {
            return cut;
        }
        let rows_per_task = (units / UNITS_ENOUGH).clamp(1, ROWS_PER_TASK_MAX);
        Layout { parts: 1, rows_per_task, ways: 1 }
    }

    fn scratch_bytes(&self, shape: &AttnShape, tokens: u32) -> u64 {
        let floats = u64::from(shape.heads) * u64::from(self.parts) * part_floats(shape) as u64;
        u64::from(tokens) * floats * 4
    }
}

/// Floats of one partial result: o, then m and l, padded to whole cache lines.
const fn part_floats(shape: &AttnShape) -> usize {
    shape.head_dim as usize + LANES
}

/// Bytes of the partial results of a bucket.
pub fn scratch_bytes(shape: &AttnShape, bucket: BucketKey, context_tokens: u32) -> u64 {
    Layout::of(shape, bucket.tokens, context_tokens).scratch_bytes(shape, bucket.tokens)
}

/// Attention of token rows; both ops take the same struct.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Heads, as checked by [`kv::check_shape`].
    pub shape: AttnShape,
    /// How rows are spread over tasks.
    pub layout: Layout,
    /// `[rows]`, the first `heads * head_dim` floats of a row: rotated q.
    pub q: *const f32,
    /// Floats from one row of q to the next.
    pub q_stride: usize,
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows]`: the row's sequence, a row of the block table.
    pub token_seq: *const u32,
    /// Rows of page ids.
    pub block_table: *const u32,
    /// Entries from one sequence's row of the table to the next: its capacity.
    pub table_stride: usize,
    /// K pages, as [`kv`] lays them out.
    pub k_pages: *const u8,
    /// V pages.
    pub v_pages: *const u8,
    /// `[rows][heads][parts]` partial results, [`scratch_bytes`] in all.
    pub scratch: *mut f32,
    /// `[rows]` of `heads * head_dim` floats.
    pub out: *mut f32,
    /// Floats from one row of `out` to the next.
    pub out_stride: usize,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for Attention {}
// SAFETY: as above.
unsafe impl Sync for Attention {}

/// The row range of one task.
#[derive(Clone, Copy)]
struct TaskRange {
    first: usize,
    end: usize,
    kv_head: usize,
    way: usize,
}

impl Attention {
    /// Checks the shape.
    ///
    /// # Errors
    /// Where no kernel takes it.
    pub fn check(&self) -> Result<(), Unsupported> {
        kv::check_shape(&self.shape)
    }

    /// 1 / sqrt(head_dim), rounded once.
    fn scale(&self) -> f32 {
        (1.0 / f64::from(self.shape.head_dim).sqrt()) as f32
    }

    /// The splits that a row at `position` sees, first and last.
    fn splits(&self, position: usize) -> (usize, usize) {
        (self.lowest(position) / SPLIT, position / SPLIT)
    }

    /// The lowest position that a row at `position` sees.
    fn lowest(&self, position: usize) -> usize {
        match self.shape.window as usize {
            0 => 0,
            window => (position + 1).saturating_sub(window),
        }
    }

    /// The partial result of a row, head and part.
    fn part(&self, row: usize, head: usize, part: usize) -> *mut f32 {
        let parts = self.layout.parts as usize;
        let index = (row * self.shape.heads as usize + head) * parts + part;
        self.scratch.wrapping_add(index * part_floats(&self.shape))
    }

    /// Tasks of the partial op.
    pub fn partial_tasks(&self) -> u32 {
        self.rows.div_ceil(self.layout.rows_per_task) * self.shape.kv_heads * self.layout.ways
    }

    /// Computes the partial results of one task's rows, but for rows from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available; `layout` is [`Layout::of`] the shape, `rows` and a context that no
    /// position reaches beyond. For the first `live_rows` rows: q is readable for
    /// `heads * head_dim` floats, `positions` and `token_seq` are readable, the table row of the
    /// sequence is readable up to the page of the position and names pages that `k_pages` and
    /// `v_pages` hold, and all positions that the row sees have been written there. `scratch` is
    /// writable for [`scratch_bytes`], and nothing else touches it meanwhile.
    pub unsafe fn run_partial(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Attention, self.isa);
        }
        let ways = self.layout.ways;
        let (unit, way) = (task / ways, task % ways);
        let (group, kv_head) = (unit / self.shape.kv_heads, unit % self.shape.kv_heads);
        // Late rows of a prompt see most: they go first, so that the last task is a short one.
        let groups = self.rows.div_ceil(self.layout.rows_per_task);
        let first = (groups - 1 - group) * self.layout.rows_per_task;
        let end = (first + self.layout.rows_per_task).min(self.rows).min(live_rows);
        if first >= end {
            return;
        }
        let (first, end) = (first as usize, end as usize);
        let range = TaskRange { first, end, kv_head: kv_head as usize, way: way as usize };
        // SAFETY: the caller's contract.
        unsafe { partial::run(self, range) }
    }

    /// Tasks of the combining op.
    pub fn combine_tasks(&self) -> u32 {
        self.rows.div_ceil(combine::ROWS_PER_TASK)
    }

    /// Combines one task's rows, but for rows from `live_rows` on.
    ///
    /// # Safety
    /// As [`Attention::run_partial`], all tasks of which have completed; the first `live_rows` rows
    /// of `out` are writable for `heads * head_dim` floats and nothing else touches them meanwhile.
    pub unsafe fn run_combine(&self, task: u32, live_rows: u32) {
        let first = task * combine::ROWS_PER_TASK;
        let end = (first + combine::ROWS_PER_TASK).min(self.rows).min(live_rows);
        // SAFETY: the caller's contract.
        unsafe { combine::run(self.isa, self, first as usize, end as usize) }
    }
}
