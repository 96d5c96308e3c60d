//! RMS norm of rows.

use super::isa::{Isa, KernelKind, counters};
use super::lanes::{LANES, Lanes, per_isa};

/// Rows that one task takes, at most; shapes speed, not bits.
const ROWS_PER_TASK: u32 = 8;

/// RMS norm of f32 rows, optionally gathered through a row table.
///
/// Definition: lane l sums x[i]^2 over i = l, l + 16, ... by `fma(x, x, acc)`; the lanes are added
/// by the tree of [`Lanes::sum`]; r = 1 / sqrt(sum / dim + eps), each step rounded to f32; then
/// out[i] = (x[i] * r) * weight[i].
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Instruction set.
    pub isa: Isa,
    /// Output rows, live and padded.
    pub rows: u32,
    /// Channels.
    pub dim: u32,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Input rows.
    pub x: *const f32,
    /// Floats from one input row to the next.
    pub x_stride: usize,
    /// Which input row an output row takes; null: the same row.
    pub row_index: *const u32,
    /// `[dim]`
    pub weight: *const f32,
    /// Output rows; may be the input rows themselves where `row_index` is null.
    pub out: *mut f32,
    /// Floats from one output row to the next.
    pub out_stride: usize,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for RmsNorm {}
// SAFETY: as above.
unsafe impl Sync for RmsNorm {}

impl RmsNorm {
    /// Tasks that cover all rows.
    pub fn tasks(&self) -> u32 {
        self.rows.div_ceil(ROWS_PER_TASK)
    }

    /// Norms the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available. `weight` is readable for `dim` floats; `row_index`, where not null, for
    /// `live_rows` entries, each naming a row of `x`; every named row of `x` is readable for `dim`
    /// floats; the first `live_rows` rows of `out` are writable for `dim` floats and nothing else
    /// touches them meanwhile.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Norm, self.isa);
        }
        let first = task * ROWS_PER_TASK;
        let end = (first + ROWS_PER_TASK).min(self.rows).min(live_rows);
        // SAFETY: the caller's contract.
        unsafe { norm_rows(self.isa, self, first, end) }
    }
}

per_isa! {
    unsafe fn norm_rows(a: &RmsNorm, first: u32, end: u32) = norm_rows_body;
}

#[inline(always)]
unsafe fn norm_rows_body<V: Lanes>(a: &RmsNorm, first: u32, end: u32) {
    for row in first as usize..end as usize {
        // SAFETY: the caller of `run` vouches for rows and table.
        unsafe {
            let from = if a.row_index.is_null() { row } else { *a.row_index.add(row) as usize };
            let x = a.x.add(from * a.x_stride);
            norm_row::<V>(x, a.weight, a.out.add(row * a.out_stride), a.dim as usize, a.eps);
        }
    }
}

/// One row; `out` may be `x`.
///
/// # Safety
/// The instruction set of `V` is available; `x` and `weight` are readable and `out` is writable
/// for `dim` floats.
#[inline(always)]
pub unsafe fn norm_row<V: Lanes>(
    x: *const f32,
    weight: *const f32,
    out: *mut f32,
    dim: usize,
    eps: f32,
) {
    let whole = dim / LANES * LANES;
    let tail = dim - whole;
    // SAFETY: all offsets stay below `dim`.
    unsafe {
        let mut squares = V::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            let v = V::load(x.add(i));
            squares = v.fma(v, squares);
        }
        if tail > 0 {
            // The lanes past the end are zeros, which add nothing.
            let v = V::load_part(x.add(whole), tail);
            squares = v.fma(v, squares);
        }
        let mean = squares.sum() / dim as f32;
        let r = V::splat(1.0 / (mean + eps).sqrt());
        for i in (0..whole).step_by(LANES) {
            V::load(x.add(i)).mul(r).mul(V::load(weight.add(i))).store(out.add(i));
        }
        if tail > 0 {
            let w = V::load_part(weight.add(whole), tail);
            V::load_part(x.add(whole), tail).mul(r).mul(w).store_part(out.add(whole), tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::isas;
    use super::*;
    use proptest::prelude::*;

    fn norm(isa: Isa, x: &[f32], dim: usize, w: &[f32], index: Option<&[u32]>) -> Vec<f32> {
        let rows = index.map_or(x.len() / dim, <[u32]>::len);
        let mut out = vec![f32::NAN; rows * dim];
        let op = RmsNorm {
            isa,
            rows: rows as u32,
            dim: dim as u32,
            eps: 1e-5,
            x: x.as_ptr(),
            x_stride: dim,
            row_index: index.map_or(core::ptr::null(), <[u32]>::as_ptr),
            weight: w.as_ptr(),
            out: out.as_mut_ptr(),
            out_stride: dim,
        };
        for task in 0..op.tasks() {
            // SAFETY: the slices have the rows that the struct names.
            unsafe { op.run(task, rows as u32) };
        }
        out
    }

    /// The definition in scalar code that shares nothing with the kernel.
    fn scalar(x: &[f32], w: &[f32]) -> Vec<f32> {
        let mut lanes = [0f32; 16];
        for (i, v) in x.iter().enumerate() {
            lanes[i % 16] = v.mul_add(*v, lanes[i % 16]);
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        let r = 1.0 / (lanes[0] / x.len() as f32 + 1e-5).sqrt();
        x.iter().zip(w).map(|(v, w)| v * r * w).collect()
    }

    proptest! {
        #[test]
        fn all_instruction_sets_follow_the_definition(
            dim in 1usize..200,
            rows in 1usize..20,
            x in proptest::collection::vec(-50f32..50.0, 4000),
            w in proptest::collection::vec(-2f32..2.0, 200),
        ) {
            let (x, w) = (&x[..rows * dim], &w[..dim]);
            for isa in isas() {
                let out = norm(isa, x, dim, w, None);
                for row in 0..rows {
                    let want = scalar(&x[row * dim..][..dim], w);
                    prop_assert_eq!(&out[row * dim..][..dim], &want[..]);
                }
                // A gathered row has the bits of the row it comes from.
                let index: Vec<u32> = (0..rows as u32).rev().collect();
                let gathered = norm(isa, x, dim, w, Some(&index));
                for row in 0..rows {
                    let from = rows - 1 - row;
                    prop_assert_eq!(&gathered[row * dim..][..dim], &out[from * dim..][..dim]);
                }
            }
        }
    }

    #[test]
    fn rows_past_the_live_ones_are_left_alone() {
        let (x, w) = ([1f32; 40], [1f32; 4]);
        let mut out = [7f32; 40];
        let op = RmsNorm {
            isa: Isa::detect(),
            rows: 10,
            dim: 4,
            eps: 0.0,
            x: x.as_ptr(),
            x_stride: 4,
            row_index: core::ptr::null(),
            weight: w.as_ptr(),
            out: out.as_mut_ptr(),
            out_stride: 4,
        };
        for task in 0..op.tasks() {
            // SAFETY: the arrays have ten rows of four.
            unsafe { op.run(task, 9) };
        }
        assert_eq!(out[..36], [1.0; 36]);
        assert_eq!(out[36..], [7.0; 4]);
    }
}
