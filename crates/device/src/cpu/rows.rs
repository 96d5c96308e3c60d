//! Row kernels that need no file of their own: quantising, and the gate that one GEMM could not
//! fuse.

use super::isa::{Isa, KernelKind, counters};
use super::lanes::{LANES, Lanes, per_isa};
use super::math::silu_lanes;
use super::quant::{BLOCK, QBlock, quantize_blocks};

/// Rows of one task; shapes speed, not bits.
const ROWS_PER_TASK: u32 = 8;

/// Quantises rows for quantised matrices ([`super::quant`] has the definition).
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Channels, a multiple of 32.
    pub dim: u32,
    /// `[rows][dim]`
    pub x: *const f32,
    /// Quantised rows.
    pub out: *mut QBlock,
    /// Bytes from one of them to the next.
    pub out_stride_bytes: usize,
}

/// `out = silu(x[..dim]) * x[dim..2 * dim]` by rows.
#[derive(Clone, Copy, Debug)]
pub struct SiluMul {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Channels of the output.
    pub dim: u32,
    /// `[rows][2 * dim]`: gate, then up.
    pub x: *const f32,
    /// `[rows][dim]`
    pub out: *mut f32,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for QuantizeRows {}
// SAFETY: as above.
unsafe impl Sync for QuantizeRows {}
// SAFETY: as above.
unsafe impl Send for SiluMul {}
// SAFETY: as above.
unsafe impl Sync for SiluMul {}

/// The rows of a task.
fn rows_of(task: u32, rows: u32, live_rows: u32) -> core::ops::Range<usize> {
    let first = task * ROWS_PER_TASK;
    let end = (first + ROWS_PER_TASK).min(rows).min(live_rows);
    first as usize..end.max(first) as usize
}

impl QuantizeRows {
    /// Tasks that cover all rows.
    pub fn tasks(&self) -> u32 {
        self.rows.div_ceil(ROWS_PER_TASK)
    }

    /// Quantises the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available; the first `live_rows` rows of `x` are readable and of `out` writable,
    /// and nothing else touches them meanwhile.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Quantise, self.isa);
        }
        let blocks = self.dim as usize / BLOCK;
        for row in rows_of(task, self.rows, live_rows) {
            // SAFETY: the caller's contract; an array of 32 floats has a float's alignment.
            unsafe {
                let x = self.x.add(row * self.dim as usize).cast::<[f32; BLOCK]>();
                let out = self.out.byte_add(row * self.out_stride_bytes);
                quantize_blocks(
                    self.isa,
                    core::slice::from_raw_parts(x, blocks),
                    core::slice::from_raw_parts_mut(out, blocks),
                );
            }
        }
    }
}

impl SiluMul {
    /// Tasks that cover all rows.
    pub fn tasks(&self) -> u32 {
        self.rows.div_ceil(ROWS_PER_TASK)
    }

    /// Gates the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// As [`QuantizeRows::run`].
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        for row in rows_of(task, self.rows, live_rows) {
            let dim = self.dim as usize;
            // SAFETY: the caller's contract.
            unsafe {
                gate(self.isa, self.x.add(row * 2 * dim), self.out.add(row * dim), dim);
            }
        }
    }
}

per_isa! {
    unsafe fn gate(x: *const f32, out: *mut f32, dim: usize) = gate_body;
}

#[inline(always)]
unsafe fn gate_body<V: Lanes>(x: *const f32, out: *mut f32, dim: usize) {
    for i in (0..dim).step_by(LANES) {
        let n = LANES.min(dim - i);
        // SAFETY: `x` has 2 * dim floats and `out` dim.
        unsafe {
            let gate = silu_lanes(V::load_part(x.add(i), n));
            gate.mul(V::load_part(x.add(dim + i), n)).store_part(out.add(i), n);
        }
    }
}
