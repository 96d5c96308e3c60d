//! What follows a multiply, on its accumulators.

use core::slice;

use super::{ACC_STRIDE, Epilogue, GemmArgs, SwiGluOut, TASK_TILES};
use crate::cpu::lanes::{LANES, Lanes, per_isa};
use crate::cpu::math::silu_lanes;
use crate::cpu::quant::{BLOCK, QBlock, quantize_blocks};

/// Accumulators of some rows and the outputs that they belong to.
#[derive(Clone, Copy)]
pub(super) struct Finished {
    /// `rows` lines, [`ACC_STRIDE`] apart.
    pub acc: *const f32,
    /// First row of the batch.
    pub row: usize,
    pub rows: usize,
    /// First output column; the columns are at most two tiles.
    pub column: usize,
    pub columns: usize,
}

per_isa! {
    /// Applies the epilogue of `args` and writes the outputs.
    ///
    /// # Safety
    /// `isa` is available; the accumulators are there; outputs, bias and residual are as the
    /// arguments' caller vouches.
    pub(super) unsafe fn apply(args: &GemmArgs, done: Finished) = apply_lanes
}

#[inline(always)]
unsafe fn apply_lanes<V: Lanes>(args: &GemmArgs, done: Finished) {
    for r in 0..done.rows {
        // SAFETY: each row has a line of accumulators and its own place in the output.
        unsafe {
            let acc = done.acc.add(r * ACC_STRIDE);
            let (row, column, columns) = (done.row + r, done.column, done.columns);
            match args.epilogue {
                Epilogue::Store { out, row_stride } => {
                    plain::<V>(args, acc, out.add(row * row_stride + column), done, false);
                }
                Epilogue::Add { out, row_stride } => {
                    plain::<V>(args, acc, out.add(row * row_stride + column), done, true);
                }
                Epilogue::SwiGlu { out: SwiGluOut::F32 { values, row_stride }, .. } => {
                    swiglu::<V>(acc, values.add(row * row_stride + column), columns);
                }
                Epilogue::SwiGlu {
                    out: SwiGluOut::Quantised { blocks, row_stride_bytes }, ..
                } => {
                    let mut values = [0f32; BLOCK];
                    swiglu::<V>(acc, values.as_mut_ptr(), columns);
                    let block = blocks.byte_add(row * row_stride_bytes).add(column / BLOCK);
                    quantise(args, &values, block);
                }
            }
        }
    }
}

/// # Safety
/// `block` is this row's and writable; the arguments' instruction set is available.
#[inline(always)]
unsafe fn quantise(args: &GemmArgs, values: &[f32; BLOCK], block: *mut QBlock) {
    // SAFETY: the caller says so.
    unsafe {
        let out = slice::from_raw_parts_mut(block, 1);
        quantize_blocks(args.isa, slice::from_ref(values), out);
    }
}

/// # Safety
/// `acc` has the columns, `out` is writable for them (and readable where `add`), the bias covers
/// them.
#[inline(always)]
unsafe fn plain<V: Lanes>(
    args: &GemmArgs,
    acc: *const f32,
    out: *mut f32,
    done: Finished,
    add: bool,
) {
    let mut at = 0;
    while at < done.columns {
        let n = (done.columns - at).min(LANES);
        // SAFETY: accumulators are whole tiles; the rest is touched for `n` columns only.
        unsafe {
            let mut y = V::load(acc.add(at));
            if !args.bias.is_null() {
                y = y.add(load::<V>(args.bias.add(done.column + at), n));
            }
            if add {
                y = load::<V>(out.add(at), n).add(y);
            }
            store(y, out.add(at), n);
        }
        at += LANES;
    }
}

/// # Safety
/// `acc` has gate and up accumulators of the columns, `out` is writable for them.
#[inline(always)]
unsafe fn swiglu<V: Lanes>(acc: *const f32, out: *mut f32, columns: usize) {
    let mut at = 0;
    while at < columns {
        let n = (columns - at).min(LANES);
        // SAFETY: accumulators are whole tiles; `out` is touched for `n` columns only.
        unsafe {
            let gate = V::load(acc.add(at));
            let up = V::load(acc.add(TASK_TILES * LANES + at));
            store(silu_lanes(gate).mul(up), out.add(at), n);
        }
        at += LANES;
    }
}

/// # Safety
/// `p` is readable for `n <= 16` values.
#[inline(always)]
unsafe fn load<V: Lanes>(p: *const f32, n: usize) -> V {
    // SAFETY: the caller says so.
    unsafe { if n == LANES { V::load(p) } else { V::load_part(p, n) } }
}

/// Stores `n` lanes, each NaN as the one NaN of the definition.
///
/// # Safety
/// `p` is writable for `n <= 16` values.
#[inline(always)]
unsafe fn store<V: Lanes>(y: V, p: *mut f32, n: usize) {
    // SAFETY: the caller says so.
    unsafe {
        if n == LANES {
            y.store(p);
        } else {
            y.store_part(p, n);
        }
        let mut nans = y.nan_mask() & ((1 << n) - 1);
        while nans != 0 {
            *p.add(nans.trailing_zeros() as usize) = f32::NAN;
            nans &= nans - 1;
        }
    }
}
