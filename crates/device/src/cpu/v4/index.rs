//! The lightning indexer: scores of compressed rows, and the rows with the greatest.
//!
//! Definition of a score: for each head, dot = fma over the channels in order from 0 of key and
//! query; relu; times 1 / sqrt(dim); lane l of the total sums heads l, l + 16, ... by
//! fma(weight / sqrt(heads), ., total) from 0, heads past the last adding +0 times 0; lanes are
//! added by the tree. Selection: score descending, row ascending, a NaN below everything and both
//! zeros equal; where no more than `topk` rows are closed, all of them. The list is by row.

use core::mem::MaybeUninit;

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, per_isa};
use super::code::CHANNELS_MAX;
use super::paged::{PagedRows, Tables};

/// Heads, at most.
pub const HEADS_MAX: usize = 64;
/// Channels of all heads, at most, with heads rounded up to whole vectors.
pub const WIDTH_MAX: usize = 8192;
/// Compressed rows of one task, and where one token leaves threads idle otherwise; both shape
/// speed, not bits.
const ROWS_PER_TASK: usize = 256;
const ROWS_PER_TASK_ALONE: usize = 128;
/// Scores whose keys a thread keeps while it selects.
const PARTITION_MAX: usize = 2048;

/// Scores of closed rows.
#[derive(Clone, Copy, Debug)]
pub struct IndexScores {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// Rows that will be selected.
    pub topk: usize,
    /// `[rows][heads * dim]`
    pub q: *const f32,
    /// `[rows][heads]`
    pub weights: *const f32,
    /// Keys; their ratio is the window.
    pub keys: PagedRows,
    /// Where everything is.
    pub tables: Tables,
    /// `[rows][rows_max]`
    pub scores: *mut f32,
    /// Rows of the longest sequence.
    pub rows_max: usize,
}

/// The rows with the greatest scores.
#[derive(Clone, Copy, Debug)]
pub struct IndexTopK {
    /// Token rows, live and padded.
    pub rows: u32,
    /// Tokens of a compressed row.
    pub ratio: usize,
    /// Rows to select.
    pub topk: usize,
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows][rows_max]`
    pub scores: *const f32,
    /// Rows of the longest sequence.
    pub rows_max: usize,
    /// `[rows][topk]`
    pub out: *mut u32,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for IndexScores {}
// SAFETY: as above.
unsafe impl Sync for IndexScores {}
// SAFETY: as above.
unsafe impl Send for IndexTopK {}
// SAFETY: as above.
unsafe impl Sync for IndexTopK {}

impl IndexScores {
    fn rows_of_task(&self) -> usize {
        if self.rows == 1 { ROWS_PER_TASK_ALONE } else { ROWS_PER_TASK }
    }

    fn chunks(&self) -> u32 {
        self.rows_max.div_ceil(self.rows_of_task()).max(1) as u32
    }

    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.rows * self.chunks()
    }

    /// Scores some rows for one token.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; every closed key of the token's
    /// sequence has been written; nothing else touches the token's scores of these rows.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        let (row, chunk) = ((task / self.chunks()) as usize, (task % self.chunks()) as usize);
        if row >= live_rows as usize {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            let (position, _) = self.tables.of(row);
            let closed = ((position + 1) / self.keys.ratio).min(self.rows_max);
            let from = chunk * self.rows_of_task();
            let to = closed.min(from + self.rows_of_task());
            if closed > self.topk && from < to {
                scores(self.isa, self, row, from, to);
            }
        }
    }
}

per_isa! {
    unsafe fn scores(a: &IndexScores, row: usize, from: usize, to: usize) = scores_body;
}

/// Queries turned round: for each channel, all heads; then the heads' weights.
#[repr(align(64))]
struct Turned {
    q: [MaybeUninit<f32>; WIDTH_MAX],
    weights: [f32; HEADS_MAX],
}

#[inline(always)]
unsafe fn scores_body<V: Lanes>(a: &IndexScores, row: usize, from: usize, to: usize) {
    let vectors = a.heads.div_ceil(LANES);
    // SAFETY: the caller's contract.
    unsafe {
        match vectors {
            1 => scores_of::<V, 1>(a, row, from, to),
            2 => scores_of::<V, 2>(a, row, from, to),
            3 => scores_of::<V, 3>(a, row, from, to),
            _ => scores_of::<V, 4>(a, row, from, to),
        }
    }
}

#[inline(always)]
unsafe fn scores_of<V: Lanes, const N: usize>(a: &IndexScores, row: usize, from: usize, to: usize) {
    let lanes = N * LANES;
    let mut turned =
        Turned { q: [const { MaybeUninit::uninit() }; WIDTH_MAX], weights: [0.0; HEADS_MAX] };
    let head_scale = (1.0 / (a.heads as f64).sqrt()) as f32;
    let dot_scale = (1.0 / (a.dim as f64).sqrt()) as f32;
    // SAFETY: the caller's contract; `lanes * dim` is at most WIDTH_MAX.
    unsafe {
        let q = a.q.add(row * a.heads * a.dim);
        let t = turned.q.as_mut_ptr().cast::<f32>();
        for c in 0..a.dim {
            for h in 0..lanes {
                let v = if h < a.heads { *q.add(h * a.dim + c) } else { 0.0 };
                *t.add(c * lanes + h) = v;
            }
        }
        for h in 0..a.heads {
            turned.weights[h] = *a.weights.add(row * a.heads + h) * head_scale;
        }
        let (_, table) = a.tables.of(row);
        let out = a.scores.add(row * a.rows_max);
        let (zero, scale) = (V::splat(0.0), V::splat(dot_scale));
        let mut decoded = [0f32; CHANNELS_MAX];
        for i in from..to {
            let mut key = a.keys.at(table, i).cast::<f32>();
            if !a.keys.codec.is_plain() {
                a.keys.codec.decode(key.cast(), decoded.as_mut_ptr());
                key = decoded.as_ptr();
            }
            let mut dots = [zero; N];
            for c in 0..a.dim {
                let k = V::splat(*key.add(c));
                for (v, dot) in dots.iter_mut().enumerate() {
                    *dot = k.fma(V::load(t.add(c * lanes + v * LANES)), *dot);
                }
            }
            let mut total = zero;
            for (v, dot) in dots.iter().enumerate() {
                let weight = V::load(turned.weights.as_ptr().add(v * LANES));
                total = weight.fma(dot.max(zero).mul(scale), total);
            }
            *out.add(i) = total.sum();
        }
    }
}

/// A score as an integer of the same order: NaN lowest, both zeros equal.
fn key(score: f32) -> u32 {
    if score.is_nan() {
        return 0;
    }
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

impl IndexTopK {
    /// Selects the rows of one token.
    ///
    /// # Safety
    /// Addresses hold what their fields say; where more rows are closed than will be selected,
    /// their scores have been written.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract; the slices lie in the row's own part of the buffers.
        unsafe {
            let position = *self.positions.add(row) as usize;
            let closed = ((position + 1) / self.ratio).min(self.rows_max);
            let out = core::slice::from_raw_parts_mut(self.out.add(row * self.topk), self.topk);
            if closed <= self.topk {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = if i < closed { i as u32 } else { u32::MAX };
                }
                return;
            }
            let scores = core::slice::from_raw_parts(self.scores.add(row * self.rows_max), closed);
            select(scores, out);
        }
    }
}

/// The indices of the `out.len()` greatest scores, ascending. There are more scores than that.
fn select(scores: &[f32], out: &mut [u32]) {
    let (threshold, mut wanted) = match scores.len() {
        ..=PARTITION_MAX => by_partition(scores, out.len()),
        _ => by_digits(scores, out.len()),
    };
    // `wanted` of those with the threshold's own key are left: the first ones.
    let mut at = 0;
    for (i, &s) in scores.iter().enumerate() {
        let k = key(s);
        let tied = k == threshold && wanted > 0;
        if k > threshold || tied {
            wanted -= usize::from(tied);
            out[at] = i as u32;
            at += 1;
        }
    }
    assert_eq!(at, out.len(), "as many rows are selected as were asked for");
}

/// The key of the last of the `wanted` greatest scores, and how many of that key are wanted.
fn by_partition(scores: &[f32], wanted: usize) -> (u32, usize) {
    let mut keys = [0u32; PARTITION_MAX];
    let keys = &mut keys[..scores.len()];
    for (k, s) in keys.iter_mut().zip(scores) {
        *k = key(*s);
    }
    let (greater, &mut threshold, _) = keys.select_nth_unstable_by(wanted - 1, |a, b| b.cmp(a));
    let greater = greater.iter().filter(|k| **k > threshold).count();
    (threshold, wanted - greater)
}

/// As [`by_partition`] without memory for keys: eight bits of the key at a time.
fn by_digits(scores: &[f32], mut wanted: usize) -> (u32, usize) {
    let mut threshold = 0u32;
    for shift in [24, 16, 8, 0] {
        let mut counts = [0usize; 256];
        let known = threshold.checked_shr(shift + 8).unwrap_or(0);
        for &s in scores {
            let k = key(s);
            if k.checked_shr(shift + 8).unwrap_or(0) == known {
                counts[(k >> shift & 255) as usize] += 1;
            }
        }
        let mut digit = 255;
        while counts[digit] < wanted {
            wanted -= counts[digit];
            digit -= 1;
        }
        threshold |= (digit as u32) << shift;
    }
    (threshold, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(scores: &[f32], k: usize) -> Vec<u32> {
        let mut out = vec![0; k];
        select(scores, &mut out);
        out
    }

    #[test]
    fn ties_go_to_the_lowest_rows_and_nan_to_none() {
        assert_eq!(selected(&[0.0, 1.0, 1.0, 1.0, 0.5], 2), [1, 2]);
        assert_eq!(selected(&[-0.0, 0.0, -1.0, 0.0], 2), [0, 1]);
        assert_eq!(selected(&[f32::NAN, -5.0, f32::NEG_INFINITY, f32::NAN], 2), [1, 2]);
        assert_eq!(selected(&[f32::NAN, f32::NAN, f32::NAN], 2), [0, 1]);
    }

    #[test]
    fn selection_is_that_of_a_stable_sort() {
        let mut state = 9u64;
        // Few and many scores, on both sides of what is selected from keys that are kept.
        let sizes = (50..250).chain([PARTITION_MAX - 1, PARTITION_MAX, PARTITION_MAX + 1, 9000]);
        for size in sizes {
            let scores: Vec<f32> = (0..size)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Few distinct values, so that there are ties.
                    ((state >> 33) % 23) as f32 - 11.0
                })
                .collect();
            let mut order: Vec<u32> = (0..scores.len() as u32).collect();
            order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
            let mut want = order[..17].to_vec();
            want.sort_unstable();
            assert_eq!(selected(&scores, 17), want);
        }
    }
}
