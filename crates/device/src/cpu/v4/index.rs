//! The lightning indexer: scores of compressed rows, and the rows with the greatest.
//!
//! Definition of a score: for each head, dot = fma over the channels in order from 0 of key and
//! query; relu; times 1 / sqrt(dim); lane l of the total sums heads l, l + 16, ... by
//! fma(weight / sqrt(heads), ., total) from 0, heads past the last adding +0 times 0; lanes are
//! added by the tree. Selection: score descending, row ascending, a NaN below everything and both
//! zeros equal; where no more than `topk` rows are closed, all of them. The list is by row.

use core::mem::MaybeUninit;

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, Part, per_isa};
use super::code::CHANNELS_MAX;
use super::paged::{PagedRows, Tables};

/// Heads, at most.
pub const HEADS_MAX: usize = 64;
/// Channels of all heads, at most, with heads rounded up to whole vectors.
pub const WIDTH_MAX: usize = 8192;
/// Keys of a task where few tokens would leave threads idle otherwise, where there are many, and at
/// least; all shape speed, not bits.
const KEYS_FEW: usize = 128;
const KEYS_MANY: usize = 1024;
const KEYS_LEAST: usize = 64;
/// Tokens that are many.
const ROWS_MANY: u32 = 8;

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
    /// Instruction set.
    pub isa: Isa,
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
    /// Tasks of a token, an even number where threads would be idle.
    fn chunks(&self) -> u32 {
        let of_task = if self.rows < ROWS_MANY { KEYS_FEW } else { KEYS_MANY };
        self.rows_max.div_ceil(of_task).max(1).next_power_of_two() as u32
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
            let of_task = closed.div_ceil(self.chunks() as usize);
            let of_task = of_task.next_multiple_of(4).max(KEYS_LEAST);
            let from = chunk * of_task;
            let to = closed.min(from + of_task);
            if closed > self.topk && from < to {
                scores(self.isa, self, row, from, to);
            }
        }
    }
}

per_isa! {
    unsafe fn scores(a: &IndexScores, row: usize, from: usize, to: usize) = scores_body;
}

/// Queries turned round: for each tile of heads and each channel, the tile's heads; then all heads'
/// weights.
#[repr(align(64))]
struct Turned {
    q: [MaybeUninit<f32>; WIDTH_MAX],
    weights: [f32; HEADS_MAX],
}

/// Lanes of the totals of some keys.
#[repr(align(64))]
struct Totals([[f32; LANES]; LANES]);

#[inline(always)]
unsafe fn scores_body<V: Lanes>(a: &IndexScores, row: usize, from: usize, to: usize) {
    let vectors = a.heads.div_ceil(LANES);
    // SAFETY: the caller's contract.
    unsafe {
        match (V::ISA, vectors) {
            (Isa::Avx512, 1) => scores_of::<V, 1, 1, 8>(a, row, from, to),
            (Isa::Avx512, 2) => scores_of::<V, 2, 2, 8>(a, row, from, to),
            (Isa::Avx512, 3) => scores_of::<V, 3, 3, 4>(a, row, from, to),
            (Isa::Avx512, _) => scores_of::<V, 4, 4, 4>(a, row, from, to),
            (_, 1) => scores_of::<V, 1, 2, 6>(a, row, from, to),
            (_, 2) => scores_of::<V, 2, 2, 6>(a, row, from, to),
            (_, 3) => scores_of::<V, 3, 2, 6>(a, row, from, to),
            _ => scores_of::<V, 4, 2, 6>(a, row, from, to),
        }
    }
}

/// `N` vectors of heads, of which `T` parts are a tile; its queries stay near while keys pass by, and
/// `K` keys, whose chains overlap, share their loads.
#[inline(always)]
unsafe fn scores_of<V: Lanes, const N: usize, const T: usize, const K: usize>(
    a: &IndexScores,
    row: usize,
    from: usize,
    to: usize,
) {
    let parts = N * (LANES / V::Part::WIDTH);
    let mut turned =
        Turned { q: [const { MaybeUninit::uninit() }; WIDTH_MAX], weights: [0.0; HEADS_MAX] };
    let head_scale = (1.0 / (a.heads as f64).sqrt()) as f32;
    // SAFETY: the caller's contract; `lanes * dim` is at most WIDTH_MAX.
    unsafe {
        turn::<V, N, T>(a, row, turned.q.as_mut_ptr().cast::<f32>());
        for h in 0..a.heads {
            turned.weights[h] = *a.weights.add(row * a.heads + h) * head_scale;
        }
        let (_, table) = a.tables.of(row);
        let out = a.scores.add(row * a.rows_max);
        let plain = a.keys.codec.is_plain();
        let mut decoded = [const { MaybeUninit::<f32>::uninit() }; LANES * CHANNELS_MAX];
        let decoded = decoded.as_mut_ptr().cast::<f32>();
        let place = |i: usize| a.keys.at(table, i.min(to - 1)).cast::<f32>();
        let mut next: [*const f32; LANES] = core::array::from_fn(|k| place(from + k));
        for i in (from..to).step_by(LANES) {
            let n = (to - i).min(LANES);
            let mut keys = next;
            next = core::array::from_fn(|k| place(i + LANES + k));
            if !plain {
                // The last group may take keys past the end, whose totals are not used.
                for (k, key) in keys[..(n + K - 1).min(LANES)].iter_mut().enumerate() {
                    let to = decoded.add(k * a.dim);
                    // Written before it is read, so that reading it as f32 is sound.
                    core::ptr::write_bytes(to, 0, a.dim);
                    a.keys.codec.decode(key.cast(), to);
                    *key = to;
                }
            }
            let mut totals = Totals([[0.0; LANES]; LANES]);
            for first in (0..parts).step_by(T) {
                let tile = Tile {
                    first,
                    dim: a.dim,
                    q: turned.q.as_ptr().cast::<f32>().add(first * V::Part::WIDTH * a.dim),
                    weights: turned.weights.as_ptr().add(first * V::Part::WIDTH),
                };
                let mut j = 0;
                while j < n {
                    // Six, six and four are a vector of keys.
                    let of = if K == 6 && n - j <= 4 { 4 } else { K };
                    let (keys, next) = (&keys[j..j + of], &next[j..j + of]);
                    let totals = &mut totals.0[j..j + of];
                    match (of, parts - first) {
                        (4, 1) if T > 1 => tile.add::<V, 1, 4>(keys, next, totals),
                        (4, _) if K == 6 => tile.add::<V, T, 4>(keys, next, totals),
                        (_, 1) if T > 1 => tile.add::<V, 1, K>(keys, next, totals),
                        _ => tile.add::<V, T, K>(keys, next, totals),
                    }
                    j += of;
                }
            }
            let mut all = [V::splat(0.0); LANES];
            for (all, total) in all.iter_mut().zip(&totals.0) {
                *all = V::load(total.as_ptr());
            }
            let sums = V::sum_each(&all);
            if n == LANES {
                sums.store(out.add(i));
            } else {
                sums.store_part(out.add(i), n);
            }
        }
    }
}

/// Turns a token's queries round, with zeros for the heads that fill the last vector.
#[inline(always)]
unsafe fn turn<V: Lanes, const N: usize, const T: usize>(
    a: &IndexScores,
    row: usize,
    to: *mut f32,
) {
    let width = V::Part::WIDTH;
    let parts = N * (LANES / width);
    // SAFETY: the caller's contract; channels are whole vectors.
    unsafe {
        let q = a.q.add(row * a.heads * a.dim);
        for v in 0..N {
            for c in (0..a.dim).step_by(LANES) {
                let mut block = [V::splat(0.0); LANES];
                for (l, block) in block.iter_mut().enumerate() {
                    let head = v * LANES + l;
                    if head < a.heads {
                        *block = V::load(q.add(head * a.dim + c));
                    }
                }
                for (l, heads) in V::transpose(&block).into_iter().enumerate() {
                    let mut lanes = [0f32; LANES];
                    heads.store(lanes.as_mut_ptr());
                    for (p, lanes) in lanes.chunks_exact(width).enumerate() {
                        let part = v * (LANES / width) + p;
                        let first = part / T * T;
                        let of_tile = (parts - first).min(T);
                        let at = first * a.dim + (c + l) * of_tile + part - first;
                        V::Part::load(lanes.as_ptr()).store(to.add(at * width));
                    }
                }
            }
        }
    }
}

/// Some heads.
struct Tile {
    /// Their first part.
    first: usize,
    /// Channels of a head.
    dim: usize,
    /// `[dim]`, then the tile's heads.
    q: *const f32,
    /// Their weights.
    weights: *const f32,
}

impl Tile {
    /// Adds these heads' share to the lanes of `K` totals; the next keys are fetched meanwhile.
    #[inline(always)]
    unsafe fn add<V: Lanes, const T: usize, const K: usize>(
        &self,
        keys: &[*const f32],
        next: &[*const f32],
        totals: &mut [[f32; LANES]],
    ) {
        let width = V::Part::WIDTH;
        let dot_scale = (1.0 / (self.dim as f64).sqrt()) as f32;
        // SAFETY: the caller's contract.
        unsafe {
            let (zero, scale) = (V::Part::splat(0.0), V::Part::splat(dot_scale));
            let keys: [*const f32; K] = core::array::from_fn(|k| keys[k]);
            let mut dots = [[zero; T]; K];
            for block in (0..self.dim).step_by(LANES) {
                if self.first == 0 {
                    for next in next {
                        V::prefetch(next.wrapping_add(block));
                    }
                }
                for c in block..block + LANES {
                    let mut heads = [zero; T];
                    for (t, heads) in heads.iter_mut().enumerate() {
                        *heads = V::Part::load(self.q.add((c * T + t) * width));
                    }
                    for (key, dots) in keys.iter().zip(&mut dots) {
                        let k = V::Part::splat(*key.add(c));
                        for (heads, dot) in heads.iter().zip(dots) {
                            *dot = k.fma(*heads, *dot);
                        }
                    }
                }
            }
            for (dots, total) in dots.iter().zip(totals) {
                for (t, dot) in dots.iter().enumerate() {
                    let lanes = total[(self.first + t) * width % LANES..].as_mut_ptr();
                    let weight = V::Part::load(self.weights.add(t * width));
                    let share = dot.max(zero).mul(scale);
                    weight.fma(share, V::Part::load(lanes)).store(lanes);
                }
            }
        }
    }
}

/// A score as an integer of the same order: NaN lowest, both zeros equal. No branch, so that a vector
/// of scores becomes a vector of keys.
#[inline(always)]
fn key(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let key = bits ^ (((bits as i32) >> 31) as u32 | 1 << 31);
    if score.is_nan() { 0 } else { key }
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
            select(self.isa, scores, out);
        }
    }
}

per_isa! {
    /// The indices of the `out.len()` greatest scores, ascending. There are more scores than that.
    unsafe fn select(scores: &[f32], out: &mut [u32]) = select_body;
}

// Plain integers, of which each instruction set makes its own vectors.
#[allow(clippy::extra_unused_type_parameters)]
#[inline(always)]
unsafe fn select_body<V: Lanes>(scores: &[f32], out: &mut [u32]) {
    let threshold = threshold(scores, out.len());
    // Of those with the threshold's own key, the first that are wanted.
    let above = count(scores, |k| k > threshold);
    let mut ties = out.len() - above;
    let mut at = 0;
    for (i, &s) in scores.iter().enumerate() {
        let k = key(s);
        let tied = k == threshold && ties > 0;
        if k > threshold || tied {
            ties -= usize::from(tied);
            out[at] = i as u32;
            at += 1;
        }
    }
    assert_eq!(at, out.len(), "as many rows are selected as were asked for");
}

/// The key of the last of the `wanted` greatest scores (or one that divides them from the others as
/// well), bit by bit from the greatest: each costs one count, which compares a vector at a time.
#[inline(always)]
fn threshold(scores: &[f32], wanted: usize) -> u32 {
    let mut threshold = 0;
    for bit in (0..32).rev() {
        let higher = threshold | 1 << bit;
        let reach = count(scores, |k| k >= higher);
        if reach >= wanted {
            threshold = higher;
        }
        if reach == wanted {
            break;
        }
    }
    threshold
}

#[inline(always)]
fn count(scores: &[f32], of: impl Fn(u32) -> bool) -> usize {
    scores.iter().map(|s| u32::from(of(key(*s)))).sum::<u32>() as usize
}

#[cfg(test)]
mod tests;
