//! The draw: integer weights, the kept set by radix selection, and a walk to the drawn token.
//!
//! A weight is q = round(e^((x - m) / temperature) * 2^30), an integer. Sums of integers are exact
//! in any order, so everything after the exponentials is the same on every path by nature, and
//! thresholds are exact. A token less likely than 2^-31 of the most likely one has weight 0 and is
//! never drawn.
//!
//! Tokens are ordered by weight descending, then id ascending, and every filter keeps a prefix of
//! that order, so what is kept is always (all above a threshold, the first few at it).

use super::super::lanes::{LANES, Lanes};
use super::super::math::exp_lanes;
use super::params::SampleParams;
use super::scan::Row;

/// The weight of the most likely token.
pub const UNIT: u32 = 1 << 30;

/// Tokens whose weights are summed for the walk to skip over.
const SKIP_BLOCK: usize = 4096;
const SKIP_BLOCKS: usize = (lockstep_flow::limits::VOCAB_MAX as usize).div_ceil(SKIP_BLOCK);

/// Weights of a row, one a token, and their sums by blocks.
pub struct Weights<'a> {
    /// Whole vectors; 0 past the vocabulary.
    q: &'a [u32],
    blocks: [u64; SKIP_BLOCKS],
    total: u64,
}

/// A prefix of the order: weights above `threshold`, and the first `ties` at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    threshold: u32,
    ties: u64,
}

impl Kept {
    const ALL: Kept = Kept { threshold: 1, ties: u64::MAX };
}

/// When a prefix is long enough.
#[derive(Clone, Copy)]
enum Enough {
    Tokens(u64),
    Mass(u64),
}

#[derive(Clone, Copy, Default)]
struct Sum {
    tokens: u64,
    mass: u64,
}

impl Sum {
    fn add(&mut self, o: Sum) {
        self.tokens += o.tokens;
        self.mass += o.mass;
    }

    fn is(self, enough: Enough) -> bool {
        match enough {
            Enough::Tokens(n) => self.tokens >= n,
            Enough::Mass(n) => self.mass >= n,
        }
    }
}

impl<'a> Weights<'a> {
    /// Weighs a row. `q` has the vocabulary's size, rounded up to whole vectors, and may be the
    /// row's own memory.
    ///
    /// # Safety
    /// The instruction set of `V` is available, the row is readable, `m` is its greatest value and
    /// finite, and `q` is writable for `row.n` rounded up to 16.
    #[inline(always)]
    pub unsafe fn new<V: Lanes>(row: Row, m: f32, temperature: f32, q: *mut u32) -> Weights<'a> {
        let inverse = (1.0 / temperature).min(f32::MAX);
        let len = row.n.next_multiple_of(LANES);
        let (mut blocks, mut total) = ([0; SKIP_BLOCKS], 0);
        // SAFETY: the caller's contract; a vector is read before it is written.
        unsafe {
            let (m, inverse, unit) = (V::splat(m), V::splat(inverse), V::splat(UNIT as f32));
            for (block, start) in (0..len).step_by(SKIP_BLOCK).enumerate() {
                let end = len.min(start + SKIP_BLOCK);
                for i in (start..end).step_by(LANES) {
                    let x = row.lanes::<V>(i).sub(m).mul(inverse);
                    exp_lanes(x).mul(unit).store_rounded(q.add(i));
                }
                let part = core::slice::from_raw_parts(q.add(start), end - start);
                blocks[block] = part.iter().map(|&q| u64::from(q)).sum();
                total += blocks[block];
            }
            Weights { q: core::slice::from_raw_parts(q, len), blocks, total }
        }
    }

    /// What top-k, then top-p of what is left, then min-p keep, and its mass.
    #[inline(always)]
    pub fn keep(&self, p: &SampleParams) -> (Kept, u64) {
        let (mut kept, mut mass) = (Kept::ALL, self.total);
        if p.top_k > 0 && (p.top_k as usize) < self.q.len() {
            (kept, mass) = self.prefix(Enough::Tokens(u64::from(p.top_k)), mass);
        }
        if p.top_p < 1.0 {
            let need = (f64::from(p.top_p) * mass as f64).ceil() as u64;
            (kept, mass) = self.prefix(Enough::Mass(need.clamp(1, mass)), mass);
        }
        // The most likely token has weight UNIT, so at least it is kept.
        let least = (f64::from(p.min_p) * f64::from(UNIT)).ceil() as u32;
        if least > kept.threshold {
            kept = Kept { threshold: least.min(UNIT), ties: u64::MAX };
            mass = self.q.iter().filter(|&&q| q >= kept.threshold).map(|&q| u64::from(q)).sum();
        }
        (kept, mass)
    }

    /// The shortest prefix that is enough, and its mass; all tokens with a weight, of mass
    /// `all`, where none is.
    #[inline(always)]
    fn prefix(&self, enough: Enough, all: u64) -> (Kept, u64) {
        // Weights have 31 bits: eleven, ten and ten, from the top. Most weights are small, so the
        // lowest bin of a level is never counted: it is where the search ends by default.
        let mut above = Sum::default();
        let mut base = 0u32;
        for (shift, bins) in [(20, 2048usize), (10, 1024), (0, 1024)] {
            let mut histogram = [Sum::default(); 2048];
            let first = base + (1 << shift);
            let span = (bins as u32 - 1) << shift;
            for chunk in self.q.chunks_exact(LANES) {
                if chunk.iter().any(|q| q.wrapping_sub(first) < span) {
                    for &q in chunk.iter().filter(|q| q.wrapping_sub(first) < span) {
                        let sum = Sum { tokens: 1, mass: u64::from(q) };
                        histogram[(q.wrapping_sub(base) >> shift) as usize].add(sum);
                    }
                }
            }
            let mut bin = bins - 1;
            while bin > 0 {
                let mut with = above;
                with.add(histogram[bin]);
                if with.is(enough) {
                    break;
                }
                above = with;
                bin -= 1;
            }
            base += (bin as u32) << shift;
        }
        if base == 0 {
            return (Kept::ALL, all);
        }
        let ties = match enough {
            Enough::Tokens(n) => n - above.tokens,
            Enough::Mass(n) => (n - above.mass).div_ceil(u64::from(base)),
        };
        (Kept { threshold: base, ties }, above.mass + ties * u64::from(base))
    }

    /// The token at which the running sum of kept weights, by id, first exceeds
    /// `uniform / 2^64` of `mass`.
    #[inline(always)]
    pub fn draw(&self, (kept, mass): (Kept, u64), uniform: u64) -> u32 {
        let mut left = ((u128::from(uniform) * u128::from(mass)) >> 64) as u64;
        let mut start = 0;
        if kept == Kept::ALL {
            // Blocks are skipped whole; the sums are those that the walk below would make.
            for &block in &self.blocks[..self.q.len().div_ceil(SKIP_BLOCK)] {
                if left < block {
                    break;
                }
                left -= block;
                start += SKIP_BLOCK;
            }
        }
        let mut ties = kept.ties;
        let mut last = 0;
        for (i, chunk) in self.q[start.min(self.q.len())..].chunks_exact(LANES).enumerate() {
            if !chunk.iter().any(|&q| q >= kept.threshold) {
                continue;
            }
            for (j, &q) in chunk.iter().enumerate() {
                let tie = q == kept.threshold && ties > 0;
                if q > kept.threshold || tie {
                    ties -= u64::from(tie);
                    last = (start + i * LANES + j) as u32;
                    if left < u64::from(q) {
                        return last;
                    }
                    left -= u64::from(q);
                }
            }
        }
        // Not reached: `left` starts below the mass of what the walk passes.
        debug_assert!(false, "the draw went past the kept weights");
        last
    }
}
