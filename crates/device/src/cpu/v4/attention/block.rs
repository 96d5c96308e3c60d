//! A block of rows, added to the running results of some heads.
//!
//! Each of the two passes takes as many accumulators as there are registers: sums of a few rows with
//! all heads in the first, some channels of all heads in the second, while the block's rows pass by.
//! A block is more than a core's nearest cache holds, so that each pass reads it once from the next
//! one; queries and results, which are read again and again, lie side by side in the nearest. Groups
//! of heads that registers do not hold together take rows in turn, while they are near. Where a vector
//! is two registers, [`parts`] has both passes.

use super::super::super::isa::Isa;
use super::super::super::lanes::{LANES, Lanes};
use super::super::super::math::exp_lanes;
use super::super::rope::HEAD_DIM_MAX;
use super::BLOCK;
use super::ahead::Ahead;
use super::parts;

/// Queries and running results, `[dim / 16][H][16]` each: a step's vectors of all heads follow each
/// other. At a page's start, as rows are at a multiple of a page or of its half.
#[repr(C, align(4096))]
pub struct Near<const H: usize> {
    q: [[f32; HEAD_DIM_MAX]; H],
    o: [[f32; HEAD_DIM_MAX]; H],
}

/// Scores, then weights, of a block: `H` heads a row, row after row; and a vector more, since a row
/// is read as one.
#[repr(align(64))]
pub struct Weights<const H: usize>(pub [[f32; H]; BLOCK + LANES]);

/// Running results of `H` heads.
pub struct Head<const H: usize> {
    /// Queries, as in [`Near`].
    pub q: *mut f32,
    /// Running results, as in [`Near`].
    pub o: *mut f32,
    /// Channels.
    pub dim: usize,
    /// Of scores.
    pub scale: f32,
    /// Greatest scores.
    m: [f32; H],
    /// Sums of weights, in the first lanes.
    l: [f32; LANES],
}

impl<const H: usize> Head<H> {
    /// No heads yet.
    ///
    /// # Safety
    /// `near` is writable and outlives the value.
    pub unsafe fn new(near: *mut Near<H>, dim: usize) -> Head<H> {
        let scale = (1.0 / (dim as f64).sqrt()) as f32;
        // SAFETY: the caller's contract.
        let (q, o) = unsafe { (&raw mut (*near).q, &raw mut (*near).o) };
        Head { q: q.cast(), o: o.cast(), dim, scale, m: [0.0; H], l: [1.0; LANES] }
    }

    /// Nothing but the sinks of `heads` heads, whose queries are at `q`.
    ///
    /// # Safety
    /// The instruction set is there, and so are the heads' queries and sinks.
    #[inline(always)]
    pub unsafe fn start<V: Lanes>(&mut self, q: *const f32, sinks: *const f32, heads: usize) {
        // SAFETY: the caller's contract; heads have no more channels than there is room for.
        unsafe {
            for (h, m) in self.m.iter_mut().enumerate() {
                // Past the last head the first stands in, and its results are not used.
                let head = if h < heads { h } else { 0 };
                *m = *sinks.add(head);
                for d in (0..self.dim).step_by(LANES) {
                    let to = d * H + h * LANES;
                    V::load(q.add(head * self.dim + d)).store(self.q.add(to));
                    V::splat(0.0).store(self.o.add(to));
                }
            }
        }
    }

    /// Writes head `h`'s result, not yet turned back.
    ///
    /// # Safety
    /// `out` is writable for a head's channels.
    #[inline(always)]
    pub unsafe fn finish<V: Lanes>(&self, h: usize, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            let inverse = V::splat(1.0 / self.l[h]);
            for d in (0..self.dim).step_by(LANES) {
                let o = V::load(self.o.add(d * H + h * LANES));
                o.mul(inverse).quiet().store(out.add(d));
            }
        }
    }
}

/// Rows of which a core's nearest cache holds a line each while one group of heads after the other
/// reads them: rows are at a multiple of half a page, so that such lines share two of its sets.
const NEAR_ROWS: usize = 16;

/// Rows that one of `groups` groups reads before the next one does.
pub const fn rows_in_turn(groups: usize) -> usize {
    if groups == 1 { BLOCK } else { NEAR_ROWS }
}

/// True where tiles are of registers and not of vectors.
const fn in_parts<V: Lanes>() -> bool {
    matches!(V::ISA, Isa::Avx2)
}

/// Calls of a block's two passes over `n` rows, for each of `G` groups.
pub const fn calls<V: Lanes, const G: usize, const N: usize>(n: usize, dim: usize) -> usize {
    if in_parts::<V>() {
        return parts::calls::<V, G>(n, dim);
    }
    let vectors = dim / LANES;
    n / N + n % N + n.div_ceil(rows_in_turn(G)) * (vectors / N + vectors % N)
}

/// Adds a block of rows to at most `G` groups of heads, `N` rows and `N` vectors of channels at a
/// time.
///
/// # Safety
/// The instruction set is there; rows have the heads' channels.
#[inline(always)]
pub unsafe fn add_rows_of_block<V: Lanes, const H: usize, const G: usize, const N: usize>(
    groups: &mut [Head<H>],
    rows: &[*const f32],
    mut ahead: Ahead<'_>,
) {
    let mut p = [const { Weights([[f32::NEG_INFINITY; H]; BLOCK + LANES]) }; G];
    let mut keep = [[0f32; LANES]; G];
    let (n, dim) = (rows.len(), groups[0].dim);
    // SAFETY: the caller's contract.
    unsafe {
        if in_parts::<V>() {
            parts::all_scores::<V, H>(groups, rows, &mut p, &mut ahead);
            for ((head, p), keep) in groups.iter_mut().zip(&mut p).zip(&mut keep) {
                *keep = weigh::<V, H>(p, n, head);
            }
            return parts::add_all::<V, H, G>(groups, rows, &p, &keep, &mut ahead);
        }
        for i in (0..n / N * N).step_by(N) {
            for (head, p) in groups.iter().zip(&mut p) {
                scores::<V, H, N>(head, rows, i, p, &mut ahead);
            }
        }
        for i in n / N * N..n {
            for (head, p) in groups.iter().zip(&mut p) {
                scores::<V, H, 1>(head, rows, i, p, &mut ahead);
            }
        }
        for ((head, p), keep) in groups.iter_mut().zip(&mut p).zip(&mut keep) {
            *keep = weigh::<V, H>(p, n, head);
        }
        let whole = dim / (N * LANES) * (N * LANES);
        let mut d = 0;
        while d < dim {
            for start in (0..n).step_by(rows_in_turn(G)) {
                let of = start..n.min(start + rows_in_turn(G));
                for ((head, p), keep) in groups.iter().zip(&p).zip(&keep) {
                    let (o, p) = (head.o.add(d * H), &p.0[of.clone()]);
                    let (rows, keep) = (&rows[of.clone()], (start == 0).then_some(keep));
                    if d < whole {
                        add_channels::<V, H, N>(o, d, rows, p, keep, &mut ahead);
                    } else {
                        add_channels::<V, H, 1>(o, d, rows, p, keep, &mut ahead);
                    }
                }
            }
            d += if d < whole { N * LANES } else { LANES };
        }
    }
}

/// Scores of the `N` rows from `first` on.
#[inline(always)]
unsafe fn scores<V: Lanes, const H: usize, const N: usize>(
    head: &Head<H>,
    rows: &[*const f32],
    first: usize,
    p: &mut Weights<H>,
    ahead: &mut Ahead<'_>,
) {
    const { assert!(H * N <= LANES && H.is_multiple_of(4)) };
    // SAFETY: the caller's contract.
    unsafe {
        let rows: [*const f32; N] = core::array::from_fn(|i| rows[first + i]);
        let mut acc = [V::splat(0.0); LANES];
        let mut q = head.q.cast_const();
        let asked = ahead.call::<V>(head.dim / LANES);
        for step in 0..head.dim / LANES {
            asked.step::<V>(step);
            let d = step * LANES;
            let k: [V; N] = core::array::from_fn(|i| V::load(rows[i].add(d)));
            for h in 0..H {
                let q = V::load(q.add(h * LANES));
                for i in 0..N {
                    acc[i * H + h] = q.fma(k[i], acc[i * H + h]);
                }
            }
            q = q.add(H * LANES);
        }
        let to = p.0[first..].as_mut_ptr().cast::<f32>();
        if H * N == LANES {
            V::sum_each(&acc).mul(V::splat(head.scale)).store(to);
        } else {
            for (i, acc) in acc[..H * N].chunks_exact(4).enumerate() {
                let sums = V::sum_four([acc[0], acc[1], acc[2], acc[3]]);
                for (j, sum) in sums.into_iter().enumerate() {
                    *to.add(4 * i + j) = sum * head.scale;
                }
            }
        }
    }
}

/// Scores of `n` rows become weights; what is left of the results before them is returned, in the
/// first lanes.
#[inline(always)]
unsafe fn weigh<V: Lanes, const H: usize>(
    p: &mut Weights<H>,
    n: usize,
    head: &mut Head<H>,
) -> [f32; LANES] {
    let p = p.0.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's contract; heads fill vectors evenly, and there is a vector more than rows.
    unsafe {
        let before: [f32; LANES] = core::array::from_fn(|l| head.m[l % H]);
        let before = V::load(before.as_ptr());
        // Each lane its head's greatest of some rows.
        let mut most = before;
        for at in (0..n * H).step_by(LANES) {
            most = V::load(p.add(at)).max(most);
        }
        let mut all = [0f32; LANES];
        most.store(all.as_mut_ptr());
        for l in H..LANES {
            all[l % H] = if all[l] > all[l % H] { all[l] } else { all[l % H] };
        }
        head.m.copy_from_slice(&all[..H]);
        let most: [f32; LANES] = core::array::from_fn(|l| all[l % H]);
        let most = V::load(most.as_ptr());
        for at in (0..n * H).step_by(LANES) {
            exp_lanes(V::load(p.add(at)).sub(most)).store(p.add(at));
        }
        let keep = exp_lanes(before.sub(most));
        let mut sum = V::load(head.l.as_ptr()).mul(keep);
        for i in 0..n {
            sum = sum.add(V::load(p.add(i * H)));
        }
        sum.store(head.l.as_mut_ptr());
        let mut kept = [0f32; LANES];
        keep.store(kept.as_mut_ptr());
        kept
    }
}

/// Adds weighted rows to `N` vectors of channels from `d` on, of whose results, at `o`, `keep` is kept
/// where these are a block's first rows.
#[inline(always)]
unsafe fn add_channels<V: Lanes, const H: usize, const N: usize>(
    o: *mut f32,
    d: usize,
    rows: &[*const f32],
    p: &[[f32; H]],
    keep: Option<&[f32; LANES]>,
    ahead: &mut Ahead<'_>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; H];
        for (h, acc) in acc.iter_mut().enumerate() {
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(o.add((c * H + h) * LANES));
                if let Some(keep) = keep {
                    *acc = acc.mul(V::splat(keep[h]));
                }
            }
        }
        let asked = ahead.call::<V>(rows.len());
        for (step, (row, p)) in rows.iter().zip(p).enumerate() {
            asked.step::<V>(step);
            let v: [V; N] = core::array::from_fn(|c| V::load(row.add(d + c * LANES)));
            for (acc, p) in acc.iter_mut().zip(p) {
                let p = V::splat(*p);
                for (acc, v) in acc.iter_mut().zip(v) {
                    *acc = p.fma(v, *acc);
                }
            }
        }
        for (h, acc) in acc.into_iter().enumerate() {
            for (c, acc) in acc.into_iter().enumerate() {
                acc.store(o.add((c * H + h) * LANES));
            }
        }
    }
}
