//! A block of rows, added to the running results of some heads.
//!
//! Each of the two passes takes as many accumulators as there are registers: sums of a few rows with
//! all heads in the first, some channels of all heads in the second, while the block's rows pass by.
//! A block is more than a core's nearest cache holds, so that each pass reads it once from the next
//! one; queries and results, which are read again and again, lie side by side in the nearest.

use super::super::super::lanes::{LANES, Lanes};
use super::super::super::math::exp_lanes;
use super::super::rope::HEAD_DIM_MAX;
use super::BLOCK;
use super::ahead::Ahead;

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
struct Weights<const H: usize>([[f32; H]; BLOCK + LANES]);

/// Running results of `H` heads.
pub struct Head<const H: usize> {
    q: *const f32,
    o: *mut f32,
    dim: usize,
    scale: f32,
    /// Greatest scores.
    m: [f32; H],
    /// Sums of weights, in the first lanes.
    l: [f32; LANES],
}

impl<const H: usize> Head<H> {
    /// Nothing but the sinks of `heads` heads, whose queries are at `q`.
    ///
    /// # Safety
    /// The instruction set is there, and so are the heads' queries and sinks; `near` is writable and
    /// outlives the value.
    #[inline(always)]
    pub unsafe fn start<V: Lanes>(
        near: *mut Near<H>,
        (q, dim): (*const f32, usize),
        sinks: *const f32,
        heads: usize,
    ) -> Head<H> {
        // SAFETY: the caller's contract; heads have no more channels than there is room for.
        unsafe {
            let to = (&raw mut (*near).q).cast::<f32>();
            let o = (&raw mut (*near).o).cast::<f32>();
            let mut m = [0f32; H];
            for (h, m) in m.iter_mut().enumerate() {
                // Past the last head the first stands in, and its results are not used.
                let head = if h < heads { h } else { 0 };
                *m = *sinks.add(head);
                for d in (0..dim).step_by(LANES) {
                    V::load(q.add(head * dim + d)).store(to.add(d * H + h * LANES));
                    V::splat(0.0).store(o.add(d * H + h * LANES));
                }
            }
            let scale = (1.0 / (dim as f64).sqrt()) as f32;
            Head { q: to, o, dim, scale, m, l: [1.0; LANES] }
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

/// Adds a block of rows, `N` rows and `N` vectors of channels at a time.
///
/// # Safety
/// The instruction set is there; rows have the heads' channels.
#[inline(always)]
pub unsafe fn add_rows_of_block<V: Lanes, const H: usize, const N: usize>(
    head: &mut Head<H>,
    rows: &[*const f32],
    mut ahead: Ahead<'_>,
) {
    let mut p = Weights([[f32::NEG_INFINITY; H]; BLOCK + LANES]);
    let n = rows.len();
    // SAFETY: the caller's contract.
    unsafe {
        for i in (0..n / N * N).step_by(N) {
            scores::<V, H, N>(head, rows, i, &mut p, &mut ahead);
        }
        for i in n / N * N..n {
            scores::<V, H, 1>(head, rows, i, &mut p, &mut ahead);
        }
        let keep = weigh::<V, H>(&mut p, n, head);
        let whole = head.dim / (N * LANES) * (N * LANES);
        for d in (0..whole).step_by(N * LANES) {
            add_channels::<V, H, N>(head.o.add(d * H), d, rows, &p, &keep, &mut ahead);
        }
        for d in (whole..head.dim).step_by(LANES) {
            add_channels::<V, H, 1>(head.o.add(d * H), d, rows, &p, &keep, &mut ahead);
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
    const { assert!(H * N <= LANES) };
    // SAFETY: the caller's contract.
    unsafe {
        let rows: [*const f32; N] = core::array::from_fn(|i| rows[first + i]);
        let mut acc = [V::splat(0.0); LANES];
        let mut q = head.q;
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
            for (i, acc) in acc[..H * N].iter().enumerate() {
                *to.add(i) = acc.sum() * head.scale;
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

/// Adds weighted rows to `N` vectors of channels from `d` on, whose results are at `o`.
#[inline(always)]
unsafe fn add_channels<V: Lanes, const H: usize, const N: usize>(
    o: *mut f32,
    d: usize,
    rows: &[*const f32],
    p: &Weights<H>,
    keep: &[f32; LANES],
    ahead: &mut Ahead<'_>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; H];
        for (h, acc) in acc.iter_mut().enumerate() {
            let keep = V::splat(keep[h]);
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(o.add((c * H + h) * LANES)).mul(keep);
            }
        }
        let asked = ahead.call::<V>(rows.len());
        for (step, (row, p)) in rows.iter().zip(&p.0).enumerate() {
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
