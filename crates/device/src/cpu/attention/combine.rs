//! The fold of partial results, in the order of the splits.

use super::super::kv::HEAD_DIM_MAX;
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::exp_lanes;
use super::Attention;

/// Rows of one task of the combining op.
pub const ROWS_PER_TASK: u32 = 4;

/// Folds the partial result at `other` into the one at `into`; each is `o[dim]`, m, l.
///
/// # Safety
/// The instruction set of `V` is available; `into` is readable and writable and `other` readable
/// for `dim + 2` floats, `dim` a multiple of 16; they do not overlap.
#[inline(always)]
pub unsafe fn fold<V: Lanes>(into: *mut f32, other: *const f32, dim: usize) {
    // SAFETY: m is float `dim` and l float `dim + 1`.
    unsafe {
        let (m0, m1) = (*into.add(dim), *other.add(dim));
        let m = if m0 > m1 { m0 } else { m1 };
        let a = exp_lanes(V::splat(m0 - m));
        let b = exp_lanes(V::splat(m1 - m));
        let l = V::splat(*into.add(dim + 1)).mul(a);
        *into.add(dim) = m;
        V::splat(*other.add(dim + 1)).fma(b, l).store_part(into.add(dim + 1), 1);
        for d in (0..dim).step_by(LANES) {
            let o = V::load(into.add(d)).mul(a);
            V::load(other.add(d)).fma(b, o).store(into.add(d));
        }
    }
}

per_isa! {
    pub unsafe fn run(a: &Attention, first: usize, end: usize) = run_body;
}

#[inline(always)]
unsafe fn run_body<V: Lanes>(a: &Attention, first: usize, end: usize) {
    let dim = a.shape.head_dim as usize;
    let mut folded = [0f32; HEAD_DIM_MAX + 2];
    let folded = folded.as_mut_ptr();
    for row in first..end {
        // SAFETY: the caller of `run_combine` vouches for rows and scratch.
        unsafe {
            let (low, high) = match a.layout.parts {
                // The partial op has folded everything into part 0.
                1 => (0, 0),
                _ => a.splits(*a.positions.add(row) as usize),
            };
            for head in 0..a.shape.heads as usize {
                core::ptr::copy_nonoverlapping(a.part(row, head, low), folded, dim + 2);
                for split in low + 1..=high {
                    fold::<V>(folded, a.part(row, head, split), dim);
                }
                let r = V::splat(1.0 / *folded.add(dim + 1));
                let out = a.out.add(row * a.out_stride + head * dim);
                for d in (0..dim).step_by(LANES) {
                    V::load(folded.add(d)).mul(r).quiet().store(out.add(d));
                }
            }
        }
    }
}
