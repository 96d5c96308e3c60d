//! RMS norm of rows, with the quantising that may follow.

use super::isa::{Isa, KernelKind, counters};
use super::lanes::{LANES, Lanes, per_isa};
use super::quant::{BLOCK, QBlock, quantize_blocks};

/// Channels that are normed and then quantised while they are close at hand.
const CHUNK: usize = 16 * BLOCK;

/// Rows that one task takes, at most; shapes speed, not bits.
const ROWS_PER_TASK: u32 = 8;

/// RMS norm of f32 rows, optionally gathered through a row table.
///
/// Definition: lane l sums x[i]^2 over i = l, l + 16, ... by `fma(x, x, acc)`; the lanes are added
/// by the tree of [`Lanes::sum`]; r = 1 / sqrt(sum / dim + eps), each step rounded to f32; then
/// out[i] = (x[i] * r) * weight[i]. A NaN is stored as [`f32::NAN`].
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
    /// Output rows; may be the input rows themselves where `row_index` is null. Null: none.
    pub out: *mut f32,
    /// Floats from one output row to the next.
    pub out_stride: usize,
    /// The same rows quantised, `dim / 32` blocks each; `dim` is then whole blocks. Null: none.
    pub out_q: *mut QBlock,
    /// Bytes from one quantised row to the next.
    pub out_q_stride_bytes: usize,
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
    /// floats; the first `live_rows` rows of `out` and `out_q`, where not null, are writable for
    /// `dim` floats and `dim / 32` blocks, and nothing else touches them meanwhile.
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
            let out = if a.out.is_null() { a.out } else { a.out.add(row * a.out_stride) };
            if a.out_q.is_null() {
                norm_row::<V>(x, a.weight, out, a.dim as usize, a.eps);
            } else {
                let blocks = a.out_q.byte_add(row * a.out_q_stride_bytes);
                norm_and_quantise::<V>(a, x, out, blocks);
            }
        }
    }
}

/// One row into blocks, and into `out` where that is not null.
#[inline(always)]
unsafe fn norm_and_quantise<V: Lanes>(
    a: &RmsNorm,
    x: *const f32,
    out: *mut f32,
    blocks: *mut QBlock,
) {
    let mut near = [0f32; CHUNK];
    let dim = a.dim as usize;
    debug_assert!(dim.is_multiple_of(BLOCK));
    // SAFETY: chunks are whole blocks inside the row.
    unsafe {
        let r = root::<V>(x, dim, a.eps);
        for start in (0..dim).step_by(CHUNK) {
            let len = CHUNK.min(dim - start);
            let to = if out.is_null() { near.as_mut_ptr() } else { out.add(start) };
            scale::<V>(x.add(start), a.weight.add(start), to, len, r);
            let values = core::slice::from_raw_parts(to.cast::<[f32; BLOCK]>(), len / BLOCK);
            let blocks = blocks.add(start / BLOCK);
            let blocks = core::slice::from_raw_parts_mut(blocks, len / BLOCK);
            quantize_blocks(V::ISA, values, blocks);
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
    // SAFETY: the caller's contract.
    unsafe {
        let r = root::<V>(x, dim, eps);
        scale::<V>(x, weight, out, dim, r);
    }
}

/// 1 / sqrt(mean of squares + eps)
///
/// # Safety
/// The instruction set of `V` is available; `x` is readable for `dim` floats.
#[inline(always)]
pub unsafe fn root<V: Lanes>(x: *const f32, dim: usize, eps: f32) -> f32 {
    let whole = dim / LANES * LANES;
    // SAFETY: all offsets stay below `dim`.
    let squares = unsafe {
        let mut squares = V::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            let v = V::load(x.add(i));
            squares = v.fma(v, squares);
        }
        if whole < dim {
            // The lanes past the end are zeros, which add nothing.
            let v = V::load_part(x.add(whole), dim - whole);
            squares = v.fma(v, squares);
        }
        squares.sum()
    };
    1.0 / (squares / dim as f32 + eps).sqrt()
}

/// out = (x * r) * weight
#[inline(always)]
unsafe fn scale<V: Lanes>(x: *const f32, weight: *const f32, out: *mut f32, len: usize, r: f32) {
    let whole = len / LANES * LANES;
    let tail = len - whole;
    // SAFETY: all offsets stay below `len`.
    unsafe {
        let r = V::splat(r);
        for i in (0..whole).step_by(LANES) {
            V::load(x.add(i)).mul(r).mul(V::load(weight.add(i))).quiet().store(out.add(i));
        }
        if tail > 0 {
            let w = V::load_part(weight.add(whole), tail);
            V::load_part(x.add(whole), tail).mul(r).mul(w).quiet().store_part(out.add(whole), tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::isas;
    use super::super::quant::{quantize_row, row_bytes};
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
            out_q: core::ptr::null_mut(),
            out_q_stride_bytes: 0,
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

    /// Quantising where the row is still near is the same as quantising it later.
    #[test]
    fn fused_quantising_gives_the_bits_of_the_two_ops() {
        for (dim, isa) in [32, 64, 512, 576, 1536]
            .into_iter()
            .flat_map(|d| isas().into_iter().map(move |i| (d, i)))
        {
            let x: Vec<f32> = (0..3 * dim).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
            let w: Vec<f32> = (0..dim).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
            let plain = norm(isa, &x, dim, &w, None);
            let stride = row_bytes(dim);
            let mut out = vec![0f32; 3 * dim];
            for keep in [false, true] {
                let mut q = vec![QBlock::ZERO; 3 * stride / size_of::<QBlock>() + 1];
                let op = RmsNorm {
                    isa,
                    rows: 3,
                    dim: dim as u32,
                    eps: 1e-5,
                    x: x.as_ptr(),
                    x_stride: dim,
                    row_index: core::ptr::null(),
                    weight: w.as_ptr(),
                    out: if keep { out.as_mut_ptr() } else { core::ptr::null_mut() },
                    out_stride: dim,
                    out_q: q.as_mut_ptr(),
                    out_q_stride_bytes: stride,
                };
                // SAFETY: all rows are there; one task takes them.
                unsafe { op.run(0, 3) };
                for row in 0..3 {
                    let mut want = vec![QBlock::ZERO; dim / BLOCK];
                    quantize_row(isa, &plain[row * dim..][..dim], &mut want);
                    // SAFETY: the row lies inside `q`.
                    let got = unsafe {
                        let at = q.as_ptr().byte_add(row * stride);
                        core::slice::from_raw_parts(at, dim / BLOCK)
                    };
                    assert_eq!(got, &want[..]);
                }
                assert!(!keep || out == plain);
            }
        }
    }

    /// Which of two NaNs an operation passes on differs between instruction sets.
    #[test]
    fn a_nan_of_any_payload_comes_out_as_the_one_quiet_nan() {
        let mut x = vec![1f32; 3 * 20];
        x[3] = f32::from_bits(0xffc1_2345);
        x[20] = f32::INFINITY;
        for isa in isas() {
            let out = norm(isa, &x, 20, &[f32::from_bits(0x7fd0_0001); 20], None);
            assert!(out.iter().all(|v| v.to_bits() == f32::NAN.to_bits()), "{isa:?}");
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
            out_q: core::ptr::null_mut(),
            out_q_stride_bytes: 0,
        };
        for task in 0..op.tasks() {
            // SAFETY: the arrays have ten rows of four.
            unsafe { op.run(task, 9) };
        }
        assert_eq!(out[..36], [1.0; 36]);
        assert_eq!(out[36..], [7.0; 4]);
    }
}
