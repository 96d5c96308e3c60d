//! Hyper-connections: parallel residual streams, mixed by a doubly stochastic matrix.
//!
//! Definition, for the n streams X of a token, d channels each, w = n d:
//! - r = 1 / sqrt(mean of squares + eps), squares summed as [`super::super::norm`] sums them;
//! - z[o] = (dot of projection row o and X) * r; lane l of the dot is the chain of fused
//!   multiply-adds over l, l + 16, ... from 0, lanes added by the tree;
//! - pre = sigmoid(z * s0 + b) + eps', post = 2 sigmoid(z * s1 + b), product and sum rounded apart,
//!   sigmoid(v) = 1 / (1 + exp(-v));
//! - M: rows of exp(z * s2 + b - greatest of the row), divided by their sum, plus eps'; then
//!   divided by (column sum + eps'); then, iters - 1 times, by (row sum + eps') and by (column
//!   sum + eps'). Sums go from the left and from the top;
//! - x[i] = fma(pre[k], X[k][i], x[i]) over k from 0; then the norm with its weight.
//! - Back: X'[k][i] = post[k] y[i], then fma(M[j][k], X[j][i], .) over j.

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::exp_lanes;
use super::super::norm::norm_row;
use super::SharedRows;
use super::sinkhorn::sinkhorn;
use near::project_near;

mod near;

/// Streams to a normed row.
#[derive(Clone, Copy, Debug)]
pub struct HyperIn {
    /// Instruction set.
    pub isa: Isa,
    /// Output rows, live and padded.
    pub rows: u32,
    /// Residual streams.
    pub streams: usize,
    /// Channels of a stream, a multiple of 16.
    pub dim: usize,
    /// Rounds of Sinkhorn's iteration.
    pub iters: u32,
    /// Added to weights and sums.
    pub hyper_eps: f32,
    /// Added to the mean of squares.
    pub norm_eps: f32,
    /// `[rows][streams * dim]`
    pub x: *const f32,
    /// Which row of `x` a row takes; null: the same.
    pub row_index: *const u32,
    /// `[outputs][streams * dim]`
    pub projection: *const f32,
    /// `[outputs]`
    pub base: *const f32,
    /// 3 values, or 1 where `mix` is null.
    pub scale: *const f32,
    /// `[dim]`
    pub norm: *const f32,
    /// `[rows][dim]`
    pub out: *mut f32,
    /// `[rows][streams + streams^2]`, or null for a head.
    pub mix: *mut f32,
}

/// Copies a row into every stream.
#[derive(Clone, Copy, Debug)]
pub struct HyperStart {
    /// Rows, live and padded.
    pub rows: u32,
    /// Residual streams.
    pub streams: usize,
    /// Channels of a stream.
    pub dim: usize,
    /// `[rows][dim]`
    pub x: *const f32,
    /// `[rows][streams * dim]`
    pub out: *mut f32,
}

/// A sublayer's result back into the streams.
#[derive(Clone, Copy, Debug)]
pub struct HyperOut {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Residual streams.
    pub streams: usize,
    /// Channels of a stream, a multiple of 16.
    pub dim: usize,
    /// `[rows][dim]`
    pub y: *const f32,
    /// `[rows][streams + streams^2]`
    pub mix: *const f32,
    /// `[rows][streams * dim]`, in place.
    pub x: *mut f32,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for HyperIn {}
// SAFETY: as above.
unsafe impl Sync for HyperIn {}
// SAFETY: as above.
unsafe impl Send for HyperStart {}
// SAFETY: as above.
unsafe impl Sync for HyperStart {}
// SAFETY: as above.
unsafe impl Send for HyperOut {}
// SAFETY: as above.
unsafe impl Sync for HyperOut {}

/// Most outputs of a projection: 4 streams have 24.
const OUTPUTS_MAX: usize = 32;
/// Rows of a task, at most, which share the loads of the projection; shapes speed, not bits.
const ROWS_MAX: usize = LANES;

impl HyperStart {
    /// Copies one row.
    ///
    /// # Safety
    /// The row of `x` is readable and that of `out` writable.
    pub unsafe fn run(&self, row: usize) {
        for k in 0..self.streams {
            // SAFETY: the caller's contract.
            unsafe {
                let to = self.out.add((row * self.streams + k) * self.dim);
                core::ptr::copy_nonoverlapping(self.x.add(row * self.dim), to, self.dim);
            }
        }
    }
}

impl HyperIn {
    fn shared(&self) -> SharedRows {
        SharedRows { rows: self.rows, most: ROWS_MAX as u32 }
    }

    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.shared().tasks()
    }

    /// Computes the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say, `row_index` names rows of `x`,
    /// and nothing else touches the rows of `out` and `mix`.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        let rows = self.shared().of(task, live_rows);
        if !rows.is_empty() {
            // SAFETY: the caller's contract.
            unsafe { hyper_in(self.isa, self, rows.start, rows.end) }
        }
    }
}

impl HyperOut {
    /// Updates one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say, and nothing else touches the row.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { hyper_out(self.isa, self, row) }
    }
}

per_isa! {
    unsafe fn hyper_in(a: &HyperIn, first: usize, end: usize) = hyper_in_body;
}
per_isa! {
    unsafe fn hyper_out(a: &HyperOut, row: usize) = hyper_out_body;
}

#[inline(always)]
unsafe fn hyper_in_body<V: Lanes>(a: &HyperIn, first: usize, end: usize) {
    let (n, d) = (a.streams, a.dim);
    let outputs = if a.mix.is_null() { n } else { 2 * n + n * n };
    let count = end - first;
    let mut x = [core::ptr::null::<f32>(); ROWS_MAX];
    let mut z = [[0f32; OUTPUTS_MAX]; ROWS_MAX];
    let mut m = [[0f32; LANES]; ROWS_MAX];
    // SAFETY: the caller's contract; `z` has room for the outputs of 4 streams.
    unsafe {
        for (row, x) in (first..end).zip(&mut x) {
            let from = if a.row_index.is_null() { row } else { *a.row_index.add(row) as usize };
            *x = a.x.add(from * n * d);
        }
        project::<V>(a, &x[..count], outputs, &mut z[..count]);
        // Step by step for all rows: what a row does in a step waits for what it did before.
        let mut gates = [[0f32; LANES]; ROWS_MAX];
        let gated = if a.mix.is_null() { n } else { 2 * n };
        for (z, gates) in z[..count].iter().zip(&mut gates) {
            for (o, gate) in gates.iter_mut().enumerate().take(gated) {
                *gate = z[o] * *a.scale.add(usize::from(o >= n)) + *a.base.add(o);
            }
            sigmoid::<V>(gates);
        }
        for ((row, x), gates) in (first..end).zip(x).zip(&gates) {
            let out = a.out.add(row * d);
            match n {
                1 => collapse::<V, 1>(gates, a.hyper_eps, x, d, out),
                2 => collapse::<V, 2>(gates, a.hyper_eps, x, d, out),
                3 => collapse::<V, 3>(gates, a.hyper_eps, x, d, out),
                _ => collapse::<V, 4>(gates, a.hyper_eps, x, d, out),
            }
        }
        for row in first..end {
            let out = a.out.add(row * d);
            norm_row::<V>(out, a.norm, out, d, a.norm_eps);
        }
        if a.mix.is_null() {
            return;
        }
        for (i, row) in (first..end).enumerate() {
            let mix = a.mix.add(row * (n + n * n));
            for k in 0..n {
                *mix.add(k) = 2.0 * gates[i][n + k];
            }
            for (e, m) in m[i].iter_mut().enumerate().take(n * n) {
                *m = z[i][2 * n + e] * *a.scale.add(2) + *a.base.add(2 * n + e);
            }
        }
        sinkhorn::<V>(&mut m[..count], n, a.iters, a.hyper_eps);
        for (m, row) in m.iter().zip(first..end) {
            let mix = a.mix.add(row * (n + n * n) + n);
            core::ptr::copy_nonoverlapping(m.as_ptr(), mix, n * n);
        }
    }
}

/// Dots of the projection's rows with each `x`, times the root of its mean square.
#[inline(always)]
unsafe fn project<V: Lanes>(
    a: &HyperIn,
    x: &[*const f32],
    outputs: usize,
    z: &mut [[f32; OUTPUTS_MAX]],
) {
    if V::ISA == Isa::Avx2 && x.len() > 1 {
        // SAFETY: the caller's contract.
        return unsafe { project_near::<V>(a, x, outputs, z) };
    }
    let mut row = 0;
    while row < x.len() {
        let (x, z) = (&x[row..], &mut z[row..]);
        // SAFETY: the caller's contract.
        unsafe {
            row += match (V::ISA, x.len()) {
                (Isa::Avx512, 8..) => project_rows::<V, 8, 2>(a, x, outputs, z),
                (Isa::Avx512, 4..) => project_rows::<V, 4, 4>(a, x, outputs, z),
                (Isa::Avx512, 2..) => project_rows::<V, 2, 8>(a, x, outputs, z),
                (Isa::Avx512, _) => project_rows::<V, 1, 8>(a, x, outputs, z),
                _ => project_rows::<V, 1, 4>(a, x, outputs, z),
            }
        }
    }
}

/// The first `R` rows of `x`, `O` outputs at once, so that their chains overlap; each one's own sum
/// is unchanged. Returns `R`.
#[inline(always)]
unsafe fn project_rows<V: Lanes, const R: usize, const O: usize>(
    a: &HyperIn,
    x: &[*const f32],
    outputs: usize,
    z: &mut [[f32; OUTPUTS_MAX]],
) -> usize {
    let width = a.streams * a.dim;
    let mut squares = [0f32; R];
    // SAFETY: the caller's contract.
    unsafe {
        let whole = outputs / O * O;
        for o in (0..whole).step_by(O) {
            match o {
                0 => dots::<V, R, O, true>(a, x, o, z, &mut squares),
                _ => dots::<V, R, O, false>(a, x, o, z, &mut squares),
            }
        }
        for o in whole..outputs {
            match o {
                0 => dots::<V, R, 1, true>(a, x, o, z, &mut squares),
                _ => dots::<V, R, 1, false>(a, x, o, z, &mut squares),
            }
        }
        for (squares, z) in squares.into_iter().zip(z) {
            let r = 1.0 / (squares / width as f32 + a.norm_eps).sqrt();
            z[..outputs].iter_mut().for_each(|z| *z *= r);
        }
    }
    R
}

/// `O` outputs of `R` rows, and with `SQUARES` the rows' sums of squares.
#[inline(always)]
unsafe fn dots<V: Lanes, const R: usize, const O: usize, const SQUARES: bool>(
    a: &HyperIn,
    x: &[*const f32],
    first: usize,
    z: &mut [[f32; OUTPUTS_MAX]],
    squares: &mut [f32; R],
) {
    const { assert!(R * O <= LANES) };
    let width = a.streams * a.dim;
    // SAFETY: the caller's contract; widths are whole vectors, and there are `R` rows.
    unsafe {
        let x: [*const f32; R] = core::array::from_fn(|r| x[r]);
        let projection = a.projection.add(first * width);
        let mut acc = [V::splat(0.0); LANES];
        let mut square = [V::splat(0.0); R];
        for i in (0..width).step_by(LANES) {
            let mut p = [V::splat(0.0); O];
            for (o, p) in p.iter_mut().enumerate() {
                let line = projection.add(o * width + i);
                if R < 8 {
                    // Few rows are over before the machine has seen that the next outputs follow.
                    V::fetch(line.wrapping_add(O * width));
                }
                *p = V::load(line);
            }
            for r in 0..R {
                let v = V::load(x[r].add(i));
                if SQUARES {
                    square[r] = v.fma(v, square[r]);
                }
                for (o, p) in p.iter().enumerate() {
                    acc[r * O + o] = p.fma(v, acc[r * O + o]);
                }
            }
        }
        let mut sums = [0f32; LANES];
        if R * O == LANES {
            V::sum_each(&acc).store(sums.as_mut_ptr());
        } else {
            for (sum, acc) in sums.iter_mut().zip(&acc[..R * O]) {
                *sum = acc.sum();
            }
        }
        for (r, z) in z[..R].iter_mut().enumerate() {
            z[first..first + O].copy_from_slice(&sums[r * O..r * O + O]);
        }
        if SQUARES {
            *squares = square.map(V::sum);
        }
    }
}

#[inline(always)]
unsafe fn sigmoid<V: Lanes>(v: &mut [f32; LANES]) {
    // SAFETY: the caller has the instruction set; `v` holds one vector.
    unsafe {
        let one = V::splat(1.0);
        let e = exp_lanes(V::splat(0.0).sub(V::load(v.as_ptr())));
        one.div(one.add(e)).store(v.as_mut_ptr());
    }
}

/// The weighted sum of `N` streams.
#[inline(always)]
unsafe fn collapse<V: Lanes, const N: usize>(
    pre: &[f32; LANES],
    eps: f32,
    x: *const f32,
    d: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let pre: [V; N] = core::array::from_fn(|k| V::splat(pre[k] + eps));
        for i in (0..d).step_by(LANES) {
            let mut acc = V::splat(0.0);
            for (k, p) in pre.iter().enumerate() {
                acc = p.fma(V::load(x.add(k * d + i)), acc);
            }
            acc.store(out.add(i));
        }
    }
}

#[inline(always)]
unsafe fn hyper_out_body<V: Lanes>(a: &HyperOut, row: usize) {
    // SAFETY: the caller's contract; there are at most 4 streams.
    unsafe {
        match a.streams {
            1 => spread::<V, 1>(a, row),
            2 => spread::<V, 2>(a, row),
            3 => spread::<V, 3>(a, row),
            _ => spread::<V, 4>(a, row),
        }
    }
}

/// One row back into `N` streams, whose weights stay in registers while the channels pass by.
#[inline(always)]
unsafe fn spread<V: Lanes, const N: usize>(a: &HyperOut, row: usize) {
    let d = a.dim;
    // SAFETY: the caller's contract.
    unsafe {
        let (y, x) = (a.y.add(row * d), a.x.add(row * N * d));
        let mix = a.mix.add(row * (N + N * N));
        let post: [V; N] = core::array::from_fn(|k| V::splat(*mix.add(k)));
        let m: [[V; N]; N] =
            core::array::from_fn(|j| core::array::from_fn(|k| V::splat(*mix.add(N + j * N + k))));
        for i in (0..d).step_by(LANES) {
            let y = V::load(y.add(i));
            let old: [V; N] = core::array::from_fn(|j| V::load(x.add(j * d + i)));
            for k in 0..N {
                let mut acc = post[k].mul(y);
                for (j, old) in old.iter().enumerate() {
                    acc = m[j][k].fma(*old, acc);
                }
                acc.quiet().store(x.add(k * d + i));
            }
        }
    }
}

#[cfg(test)]
mod tests;
