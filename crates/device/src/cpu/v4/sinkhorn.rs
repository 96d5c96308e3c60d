//! Sinkhorn's iteration: matrices of positive numbers become (nearly) doubly stochastic.
//!
//! Its definition stands in [`super::hyper`]. Each step divides, and divisions follow each other, so
//! that many matrices take a lane each and advance together; their bits are those of each alone.

use super::super::lanes::{LANES, Lanes};
use super::super::math::exp_lanes;

/// So many matrices are worth vectors of which most lanes may be idle.
const TOGETHER: usize = 6;

/// `count` matrices (up to 16) of `n` (up to 4) rows and columns; `m` has an entry of all of them
/// next to each other.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn sinkhorn<V: Lanes>(
    m: &mut [[f32; LANES]; LANES],
    (n, count): (usize, usize),
    iters: u32,
    eps: f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if count >= TOGETHER {
            return together::<V>(m, n, iters, eps);
        }
        for i in 0..count {
            let mut one = [0f32; LANES];
            for (one, m) in one.iter_mut().zip(m.iter()) {
                *one = m[i];
            }
            alone::<V>(&mut one, n, iters, eps);
            for (m, one) in m.iter_mut().zip(one) {
                m[i] = one;
            }
        }
    }
}

/// One matrix.
#[inline(always)]
unsafe fn alone<V: Lanes>(m: &mut [f32; LANES], n: usize, iters: u32, eps: f32) {
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

/// A lane each.
#[inline(always)]
unsafe fn together<V: Lanes>(m: &mut [[f32; LANES]; LANES], n: usize, iters: u32, eps: f32) {
    // SAFETY: the caller has the instruction set; an entry is one vector.
    unsafe {
        let (zero, eps) = (V::splat(0.0), V::splat(eps));
        let mut v = [zero; LANES];
        for (v, m) in v.iter_mut().zip(m.iter()) {
            *v = V::load(m.as_ptr());
        }
        for row in v[..n * n].chunks_exact_mut(n) {
            let (mut most, mut sum) = (row[0], zero);
            for v in row.iter() {
                most = v.max(most);
            }
            for v in row.iter_mut() {
                *v = exp_lanes(v.sub(most));
                sum = sum.add(*v);
            }
            for v in row.iter_mut() {
                *v = v.div(sum).add(eps);
            }
        }
        for iter in 0..iters.max(1) {
            if iter > 0 {
                for j in 0..n {
                    normalize(&mut v, j * n, 1, n, eps);
                }
            }
            for k in 0..n {
                normalize(&mut v, k, n, n, eps);
            }
        }
        for (v, m) in v.iter().zip(m) {
            v.store(m.as_mut_ptr());
        }
    }
}

/// `n` entries from `first` on, `step` apart, divided by (their sum + eps).
#[inline(always)]
fn normalize<V: Lanes>(v: &mut [V; LANES], first: usize, step: usize, n: usize, eps: V) {
    // SAFETY: `eps` exists, so its instruction set does.
    let mut sum = unsafe { V::splat(0.0) };
    for i in 0..n {
        sum = sum.add(v[first + i * step]);
    }
    let sum = sum.add(eps);
    for i in 0..n {
        v[first + i * step] = v[first + i * step].div(sum);
    }
}

#[inline(always)]
fn columns(m: &mut [f32; LANES], n: usize, eps: f32) {
    for k in 0..n {
        let sum = (0..n).fold(0.0, |a, j| a + m[j * n + k]) + eps;
        (0..n).for_each(|j| m[j * n + k] /= sum);
    }
}
