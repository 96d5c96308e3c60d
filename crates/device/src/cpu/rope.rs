//! Rotary position embedding of q and k, and the write of K and V rows into pages.

use super::isa::{Isa, KernelKind, counters};
use super::kv::{HEAD_DIM_MAX, KvElem, PAGE, write_k, write_v};
use super::lanes::{LANES, Lanes, per_isa};
use super::norm::norm_row;
use half::f16;
use lockstep_plan::{AttnShape, KvDtype, RopePairing};

/// Rows that one task takes, at most; shapes speed, not bits.
const ROWS_PER_TASK: u32 = 8;

/// RoPE on q and k, with a norm of each head before it where the model has one, and the write of
/// K and V into pages.
///
/// Definition, of a pair (a, b) with cos c and sin s out of the table:
/// a' = fma(a, c, -(b * s)), b' = fma(b, c, a * s). Pairs are channels (2i, 2i + 1) or
/// (i, i + rotary / 2); channels from `rotary_dim` on pass. The norm is that of
/// [`super::norm::RmsNorm`]. Elements are rounded to the pages' type to nearest even.
#[derive(Clone, Copy, Debug)]
pub struct RopeKvWrite {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Heads, as checked by [`super::kv::check_shape`].
    pub shape: AttnShape,
    /// Rotated channels, even and at most `head_dim`.
    pub rotary_dim: u32,
    /// Which channels turn together.
    pub pairing: RopePairing,
    /// `[rows]` of q heads, k heads, v heads; q is rotated in place, k and v are only read.
    pub qkv: *mut f32,
    /// Floats from one row to the next.
    pub qkv_stride: usize,
    /// `[context][rotary_dim / 2][cos, sin]`
    pub table: *const f32,
    /// `[rows]`: positions, below the table's context.
    pub positions: *const u32,
    /// `[rows]`: page * PAGE_TOKENS + offset.
    pub write_slots: *const u32,
    /// `[head_dim]` weights of the norms of q and k; null: none.
    pub q_norm: *const f32,
    /// See `q_norm`.
    pub k_norm: *const f32,
    /// Epsilon of those norms.
    pub eps: f32,
    /// K pages, `[page][kv_head][head_dim][PAGE_TOKENS]` of the shape's element type.
    pub k_pages: *mut u8,
    /// V pages, `[page][kv_head][PAGE_TOKENS][head_dim]`.
    pub v_pages: *mut u8,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for RopeKvWrite {}
// SAFETY: as above.
unsafe impl Sync for RopeKvWrite {}

impl RopeKvWrite {
    /// Tasks that cover all rows.
    pub fn tasks(&self) -> u32 {
        self.rows.div_ceil(ROWS_PER_TASK)
    }

    /// Rotates and writes the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available; `shape` passes [`super::kv::check_shape`]; `rotary_dim` is even and at
    /// most `head_dim`. For the first `live_rows` rows: `qkv` is readable and writable for
    /// `(heads + 2 kv_heads) * head_dim` floats a row; `positions` and `write_slots` are readable;
    /// every position is below the table's context; every write slot lies in a page that
    /// `k_pages` and `v_pages` hold, no two are equal, and nothing else touches them or `qkv`
    /// meanwhile. The norm weights, where not null, are readable for `head_dim` floats.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Rope, self.isa);
        }
        let first = task * ROWS_PER_TASK;
        let end = (first + ROWS_PER_TASK).min(self.rows).min(live_rows);
        // SAFETY: the caller's contract.
        unsafe {
            match self.shape.kv_dtype {
                KvDtype::F32 => rows_f32(self.isa, self, first, end),
                KvDtype::F16 => rows_f16(self.isa, self, first, end),
                KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("refused with the model"),
            }
        }
    }
}

per_isa! {
    unsafe fn rows_f32(a: &RopeKvWrite, first: u32, end: u32) = rows_f32_body;
}
per_isa! {
    unsafe fn rows_f16(a: &RopeKvWrite, first: u32, end: u32) = rows_f16_body;
}

#[inline(always)]
unsafe fn rows_f32_body<V: Lanes>(a: &RopeKvWrite, first: u32, end: u32) {
    // SAFETY: the caller's contract.
    unsafe { rows_body::<V, f32>(a, first, end) }
}

#[inline(always)]
unsafe fn rows_f16_body<V: Lanes>(a: &RopeKvWrite, first: u32, end: u32) {
    // SAFETY: the caller's contract.
    unsafe { rows_body::<V, f16>(a, first, end) }
}

#[inline(always)]
unsafe fn rows_body<V: Lanes, E: KvElem>(a: &RopeKvWrite, first: u32, end: u32) {
    let dim = a.shape.head_dim as usize;
    let (heads, kv_heads) = (a.shape.heads as usize, a.shape.kv_heads as usize);
    let mut turned = [0f32; HEAD_DIM_MAX];
    for row in first as usize..end as usize {
        // SAFETY: the caller of `run` vouches for rows, tables and pages.
        unsafe {
            let x = a.qkv.add(row * a.qkv_stride);
            let position = *a.positions.add(row) as usize;
            let turn = Turn::new(a, a.table.add(position * a.rotary_dim as usize));
            for h in 0..heads {
                let q = x.add(h * dim);
                norm_and_turn::<V>(a, a.q_norm, &turn, q, q);
            }
            let slot = *a.write_slots.add(row) as usize;
            let (page, offset) = (slot / PAGE, slot % PAGE);
            for h in 0..kv_heads {
                let part = (page * kv_heads + h) * PAGE * dim;
                let k = x.add((heads + h) * dim);
                norm_and_turn::<V>(a, a.k_norm, &turn, k, turned.as_mut_ptr());
                write_k::<V, E>(turned.as_ptr(), dim, a.k_pages.cast::<E>().add(part), offset);
                let v = x.add((heads + kv_heads + h) * dim);
                write_v::<V, E>(v, dim, a.v_pages.cast::<E>().add(part), offset);
            }
        }
    }
}

/// A table row spread over the channels: channel i becomes `fma(x[i], cos[i], x[partner] * sin[i])`
/// with the sign of the sine in `sin`.
struct Turn {
    cos: [f32; HEAD_DIM_MAX],
    sin: [f32; HEAD_DIM_MAX],
}

impl Turn {
    /// # Safety
    /// `table` is readable for `rotary_dim` floats.
    #[inline(always)]
    unsafe fn new(a: &RopeKvWrite, table: *const f32) -> Turn {
        let half = a.rotary_dim as usize / 2;
        let mut turn = Turn { cos: [0.0; HEAD_DIM_MAX], sin: [0.0; HEAD_DIM_MAX] };
        for i in 0..half {
            // SAFETY: i < rotary_dim / 2.
            let (c, s) = unsafe { (*table.add(2 * i), *table.add(2 * i + 1)) };
            let (low, high) = match a.pairing {
                RopePairing::Half => (i, i + half),
                RopePairing::Adjacent => (2 * i, 2 * i + 1),
            };
            (turn.cos[low], turn.sin[low]) = (c, -s);
            (turn.cos[high], turn.sin[high]) = (c, s);
        }
        turn
    }
}

/// One head: `out = rope(norm(x))`; `out` may be `x`.
#[inline(always)]
unsafe fn norm_and_turn<V: Lanes>(
    a: &RopeKvWrite,
    weight: *const f32,
    turn: &Turn,
    x: *const f32,
    out: *mut f32,
) {
    let dim = a.shape.head_dim as usize;
    let mut head = [0f32; HEAD_DIM_MAX];
    let from = head.as_mut_ptr();
    // SAFETY: a head has `dim` channels, at most HEAD_DIM_MAX and a multiple of 16.
    unsafe {
        if weight.is_null() {
            core::ptr::copy_nonoverlapping(x, from, dim);
        } else {
            norm_row::<V>(x, weight, from, dim, a.eps);
        }
        let rotary = a.rotary_dim as usize;
        let half = rotary / 2;
        let (cos, sin) = (turn.cos.as_ptr(), turn.sin.as_ptr());
        // How many channels go in whole vectors: all or none.
        let vectors = match a.pairing {
            RopePairing::Half => half.is_multiple_of(LANES),
            RopePairing::Adjacent => rotary.is_multiple_of(LANES),
        };
        if vectors {
            for i in (0..rotary).step_by(LANES) {
                let v = V::load(from.add(i));
                let partner = match a.pairing {
                    RopePairing::Half => {
                        V::load(from.add(if i < half { i + half } else { i - half }))
                    }
                    RopePairing::Adjacent => v.swap_pairs(),
                };
                let sine = partner.mul(V::load(sin.add(i)));
                v.fma(V::load(cos.add(i)), sine).quiet().store(out.add(i));
            }
        } else {
            for i in 0..rotary {
                let partner = match a.pairing {
                    RopePairing::Half => (i + half) % rotary,
                    RopePairing::Adjacent => i ^ 1,
                };
                let sine = *from.add(partner) * *sin.add(i);
                let turned = (*from.add(i)).mul_add(*cos.add(i), sine);
                *out.add(i) = if turned.is_nan() { f32::NAN } else { turned };
            }
        }
        core::ptr::copy_nonoverlapping(from.add(rotary), out.add(rotary), dim - rotary);
    }
}
