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
use super::super::norm::{norm_row, root};

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
    /// Computes one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say, `row_index` names a row of `x`,
    /// and nothing else touches the row of `out` and `mix`.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { hyper_in(self.isa, self, row) }
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
    unsafe fn hyper_in(a: &HyperIn, row: usize) = hyper_in_body;
}
per_isa! {
    unsafe fn hyper_out(a: &HyperOut, row: usize) = hyper_out_body;
}

#[inline(always)]
unsafe fn hyper_in_body<V: Lanes>(a: &HyperIn, row: usize) {
    let (n, d) = (a.streams, a.dim);
    let outputs = if a.mix.is_null() { n } else { 2 * n + n * n };
    // SAFETY: the caller's contract; `z` has room for the outputs of 4 streams.
    unsafe {
        let from = if a.row_index.is_null() { row } else { *a.row_index.add(row) as usize };
        let x = a.x.add(from * n * d);
        let mut z = [0f32; OUTPUTS_MAX];
        project::<V>(a, x, outputs, &mut z);
        let weigh = |o: usize, s: usize| z[o] * *a.scale.add(s) + *a.base.add(o);
        let mut gates = [0f32; LANES];
        let gated = if a.mix.is_null() { n } else { 2 * n };
        for (o, gate) in gates.iter_mut().enumerate().take(gated) {
            *gate = weigh(o, usize::from(o >= n));
        }
        sigmoid::<V>(&mut gates);
        let out = a.out.add(row * d);
        collapse::<V>(&gates, a.hyper_eps, x, n, d, out);
        norm_row::<V>(out, a.norm, out, d, a.norm_eps);
        if a.mix.is_null() {
            return;
        }
        let mix = a.mix.add(row * (n + n * n));
        for k in 0..n {
            *mix.add(k) = 2.0 * gates[n + k];
        }
        let mut m = [0f32; LANES];
        for (i, v) in m.iter_mut().enumerate().take(n * n) {
            *v = weigh(2 * n + i, 2);
        }
        sinkhorn::<V>(&mut m, n, a.iters, a.hyper_eps);
        core::ptr::copy_nonoverlapping(m.as_ptr(), mix.add(n), n * n);
    }
}

/// Dots of the projection's rows with `x`, times the root of the mean square.
#[inline(always)]
unsafe fn project<V: Lanes>(
    a: &HyperIn,
    x: *const f32,
    outputs: usize,
    z: &mut [f32; OUTPUTS_MAX],
) {
    let width = a.streams * a.dim;
    // SAFETY: the caller's contract; widths are whole vectors.
    unsafe {
        let r = root::<V>(x, width, a.norm_eps);
        let mut o = 0;
        while o < outputs {
            // Four rows at once, so that their chains overlap; each row's own sum is unchanged.
            let many = (outputs - o).min(4);
            let mut acc = [V::splat(0.0); 4];
            for i in (0..width).step_by(LANES) {
                let v = V::load(x.add(i));
                for (j, acc) in acc.iter_mut().enumerate().take(many) {
                    *acc = V::load(a.projection.add((o + j) * width + i)).fma(v, *acc);
                }
            }
            for (j, acc) in acc.iter().enumerate().take(many) {
                z[o + j] = acc.sum() * r;
            }
            o += many;
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

/// The weighted sum of the streams.
#[inline(always)]
unsafe fn collapse<V: Lanes>(
    pre: &[f32; LANES],
    eps: f32,
    x: *const f32,
    n: usize,
    d: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for i in (0..d).step_by(LANES) {
            let mut acc = V::splat(0.0);
            for (k, p) in pre.iter().enumerate().take(n) {
                acc = V::splat(*p + eps).fma(V::load(x.add(k * d + i)), acc);
            }
            acc.store(out.add(i));
        }
    }
}

/// `m` becomes (nearly) doubly stochastic.
#[inline(always)]
unsafe fn sinkhorn<V: Lanes>(m: &mut [f32; LANES], n: usize, iters: u32, eps: f32) {
    for row in m[..n * n].chunks_exact_mut(n) {
        let most = row.iter().fold(row[0], |a, &b| if b > a { b } else { a });
        row.iter_mut().for_each(|v| *v -= most);
    }
    // SAFETY: the caller has the instruction set; `m` is one vector.
    unsafe { exp_lanes(V::load(m.as_ptr())).store(m.as_mut_ptr()) };
    for row in m[..n * n].chunks_exact_mut(n) {
        let sum = row.iter().fold(0.0, |a, b| a + b);
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    columns(m, n, eps);
    for _ in 1..iters {
        for row in m[..n * n].chunks_exact_mut(n) {
            let sum = row.iter().fold(0.0, |a, b| a + b) + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        columns(m, n, eps);
    }
}

#[inline(always)]
fn columns(m: &mut [f32; LANES], n: usize, eps: f32) {
    for k in 0..n {
        let sum = (0..n).fold(0.0, |a, j| a + m[j * n + k]) + eps;
        (0..n).for_each(|j| m[j * n + k] /= sum);
    }
}

#[inline(always)]
unsafe fn hyper_out_body<V: Lanes>(a: &HyperOut, row: usize) {
    let (n, d) = (a.streams, a.dim);
    // SAFETY: the caller's contract; there are at most 4 streams.
    unsafe {
        let (y, x) = (a.y.add(row * d), a.x.add(row * n * d));
        let post = a.mix.add(row * (n + n * n));
        let m = post.add(n);
        for i in (0..d).step_by(LANES) {
            let yv = V::load(y.add(i));
            let mut old = [yv; 4];
            for (j, v) in old.iter_mut().enumerate().take(n) {
                *v = V::load(x.add(j * d + i));
            }
            for k in 0..n {
                let mut acc = V::splat(*post.add(k)).mul(yv);
                for (j, v) in old.iter().enumerate().take(n) {
                    acc = V::splat(*m.add(j * n + k)).fma(*v, acc);
                }
                acc.quiet().store(x.add(k * d + i));
            }
        }
    }
}
