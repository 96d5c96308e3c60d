//! Sinkhorn's iteration: matrices of positive numbers become (nearly) doubly stochastic.
//!
//! Its definition stands in [`super::hyper`]. Each step divides, and divisions follow each other, so
//! that some matrices advance together; their bits are those of each alone.

use super::super::lanes::{LANES, Lanes};
use super::super::math::exp_lanes;

/// Matrices of `n` (up to 4) rows and columns, row after row.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn sinkhorn<V: Lanes>(m: &mut [[f32; LANES]], n: usize, iters: u32, eps: f32) {
    // SAFETY: the caller's contract.
    unsafe {
        if n < 4 {
            for m in m {
                alone::<V>(m, n, iters, eps);
            }
            return;
        }
        let (eights, rest) = m.as_chunks_mut::<8>();
        for eight in eights {
            of_four::<V, 8>(eight, iters, eps);
        }
        let (fours, rest) = rest.as_chunks_mut::<4>();
        for four in fours {
            of_four::<V, 4>(four, iters, eps);
        }
        let (twos, rest) = rest.as_chunks_mut::<2>();
        for two in twos {
            of_four::<V, 2>(two, iters, eps);
        }
        for one in rest {
            of_four::<V, 1>(core::array::from_mut(one), iters, eps);
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

/// `M` matrices of four rows, each in a vector.
#[inline(always)]
unsafe fn of_four<V: Lanes, const M: usize>(m: &mut [[f32; LANES]; M], iters: u32, eps: f32) {
    // SAFETY: the caller has the instruction set; a matrix is one vector.
    unsafe {
        let (zero, eps) = (V::splat(0.0), V::splat(eps));
        let mut v: [V; M] = core::array::from_fn(|i| V::load(m[i].as_ptr()));
        for v in &mut v {
            let mut most = v.entry_of_rows(0);
            for k in 0..4 {
                most = v.entry_of_rows(k).max(most);
            }
            let e = exp_lanes(v.sub(most));
            *v = e.div(sum(zero, |k| e.entry_of_rows(k))).add(eps);
        }
        for iter in 0..iters.max(1) {
            if iter > 0 {
                for v in &mut v {
                    *v = v.div(sum(zero, |k| v.entry_of_rows(k)).add(eps));
                }
            }
            for v in &mut v {
                *v = v.div(sum(zero, |k| v.row_of_four(k)).add(eps));
            }
        }
        for (v, m) in v.iter().zip(m) {
            v.store(m.as_mut_ptr());
        }
    }
}

/// The sum of four, in order, from zero.
#[inline(always)]
fn sum<V: Lanes>(zero: V, of: impl Fn(usize) -> V) -> V {
    zero.add(of(0)).add(of(1)).add(of(2)).add(of(3))
}

#[inline(always)]
fn columns(m: &mut [f32; LANES], n: usize, eps: f32) {
    for k in 0..n {
        let sum = (0..n).fold(0.0, |a, j| a + m[j * n + k]) + eps;
        (0..n).for_each(|j| m[j * n + k] /= sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::{isas, per_isa};
    use super::*;

    per_isa! {
        unsafe fn both(m: &mut [[f32; LANES]], alone: &mut [[f32; LANES]]) = both_body;
    }

    #[inline(always)]
    unsafe fn both_body<V: Lanes>(m: &mut [[f32; LANES]], one: &mut [[f32; LANES]]) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            sinkhorn::<V>(m, 4, 20, 1e-6);
            for one in one {
                alone::<V>(one, 4, 20, 1e-6);
            }
        }
    }

    #[test]
    fn matrices_in_vectors_have_the_bits_of_the_definition_one_by_one() {
        let entry = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 97.0;
        for count in [1, 2, 3, 4, 7, 11, 16] {
            let from: Vec<[f32; LANES]> =
                (0..count).map(|m| core::array::from_fn(|e| entry(m * LANES + e))).collect();
            for isa in isas() {
                let (mut m, mut one) = (from.clone(), from.clone());
                // SAFETY: the instruction set is there.
                unsafe { both(isa, &mut m, &mut one) };
                let bits = |m: &[[f32; LANES]]| -> Vec<u32> {
                    m.as_flattened().iter().map(|v| v.to_bits()).collect()
                };
                assert_eq!(bits(&m), bits(&one), "{count} matrices, {isa}");
                let column: f32 = m[0].iter().step_by(4).sum();
                assert!((column - 1.0).abs() < 1e-4, "a column adds up to {column}");
            }
        }
    }
}
