//! Rotation of the last channels of a head, and the write of the shared key-value row.
//!
//! Definition: with r the head's (or weighted) RMS norm where there is one, as
//! [`super::super::norm`] defines it, `(x[i] * r)`, times the weight where there is one. Then, for
//! pair i of the last `rotary` channels with cosine c and sine s of the row's position: even
//! channel fma(x0, c, x1 * -s), odd channel fma(x1, c, x0 * s); back with -s. Rows are kept, and
//! heads that are asked for are rounded, as [`super::code`] says.

use core::mem::MaybeUninit;

use super::super::isa::{Isa, KernelKind, counters};
use super::super::lanes::{LANES, Lanes, expect_row, per_isa};
use super::super::norm::{norm_row, root};
use super::code::{CHANNELS_MAX, RowCodec};
use super::paged::PagedRows;
use lockstep_plan::RowCode;

/// Channels of a head, at most.
pub const HEAD_DIM_MAX: usize = CHANNELS_MAX;
/// Rotated channels, at most.
pub const ROTARY_MAX: usize = 128;

/// The rotation.
#[derive(Clone, Copy, Debug)]
pub struct TailRope {
    /// `[context][rotary / 2][cos, sin]`
    pub table: *const f32,
    /// Rotated channels.
    pub rotary: usize,
}

/// Heads rotated in place.
#[derive(Clone, Copy, Debug)]
pub struct HeadRope {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Heads.
    pub heads: usize,
    /// Channels of a head, a multiple of 16.
    pub dim: usize,
    /// Norm without a weight first.
    pub unit_norm: bool,
    /// Its epsilon.
    pub eps: f32,
    /// The rotation.
    pub rope: TailRope,
    /// How heads are rounded.
    pub code: RowCode,
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows][heads * dim]`
    pub x: *mut f32,
}

/// The key-value row, normed, rotated and written.
#[derive(Clone, Copy, Debug)]
pub struct WindowStore {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Channels, a multiple of 16.
    pub dim: usize,
    /// Epsilon of the norm.
    pub eps: f32,
    /// `[dim]`
    pub norm: *const f32,
    /// The rotation.
    pub rope: TailRope,
    /// `[rows]`
    pub positions: *const u32,
    /// `[rows]`
    pub write_slots: *const u32,
    /// `[rows][dim]`
    pub kv: *const f32,
    /// Where rows go.
    pub to: PagedRows,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for HeadRope {}
// SAFETY: as above.
unsafe impl Sync for HeadRope {}
// SAFETY: as above.
unsafe impl Send for WindowStore {}
// SAFETY: as above.
unsafe impl Sync for WindowStore {}

impl HeadRope {
    /// Rotates one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say, the position is inside the table,
    /// and nothing else touches the row.
    pub unsafe fn run(&self, row: usize) {
        if row == 0 {
            counters().count(KernelKind::Rope, self.isa);
        }
        // SAFETY: the caller's contract.
        unsafe { head_rope(self.isa, self, row) }
    }
}

impl WindowStore {
    /// Writes one row.
    ///
    /// # Safety
    /// As [`HeadRope::run`], and the row's write slot lies in the pages and is nobody else's.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { window_store(self.isa, self, row) }
    }
}

per_isa! {
    unsafe fn head_rope(a: &HeadRope, row: usize) = head_rope_body;
}
per_isa! {
    unsafe fn window_store(a: &WindowStore, row: usize) = window_store_body;
}

#[inline(always)]
unsafe fn head_rope_body<V: Lanes>(a: &HeadRope, row: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let turn = Turn::new(&a.rope, *a.positions.add(row) as usize, 1.0);
        for h in 0..a.heads {
            let x = a.x.add((row * a.heads + h) * a.dim);
            if a.unit_norm {
                let r = V::splat(root::<V>(x, a.dim, a.eps));
                for i in (0..a.dim).step_by(LANES) {
                    V::load(x.add(i)).mul(r).quiet().store(x.add(i));
                }
            }
            turn.apply::<V>(x.add(a.dim - a.rope.rotary));
            RowCodec { code: a.code, dim: a.dim }.round(x);
        }
    }
}

#[inline(always)]
unsafe fn window_store_body<V: Lanes>(a: &WindowStore, row: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let kept = a.to.of_slot(*a.write_slots.add(row) as usize);
        expect_row(kept, a.to.codec.row_bytes());
        let mut rounded = [const { MaybeUninit::<f32>::uninit() }; HEAD_DIM_MAX];
        let plain = a.to.codec.is_plain();
        let to = if plain { kept.cast::<f32>() } else { rounded.as_mut_ptr().cast() };
        norm_row::<V>(a.kv.add(row * a.dim), a.norm, to, a.dim, a.eps);
        let turn = Turn::new(&a.rope, *a.positions.add(row) as usize, 1.0);
        turn.apply::<V>(to.add(a.dim - a.rope.rotary));
        if !plain {
            a.to.codec.encode(core::slice::from_raw_parts_mut(to, a.dim), kept);
        }
    }
}

/// The rotation of a position.
pub(super) struct Turn {
    /// Its row of the table.
    row: *const f32,
    rotary: usize,
    /// What a pair's two sines are multiplied with.
    signs: [f32; LANES],
}

impl Turn {
    /// The rotation of `position`; `direction` is 1, or -1 to rotate back.
    ///
    /// # Safety
    /// The table has the position, and stays while the rotation is used.
    #[inline(always)]
    pub(super) unsafe fn new(rope: &TailRope, position: usize, direction: f32) -> Turn {
        let signs = core::array::from_fn(|l| if l % 2 == 0 { -direction } else { direction });
        // SAFETY: the caller's contract.
        let row = unsafe { rope.table.add(position * rope.rotary) };
        Turn { row, rotary: rope.rotary, signs }
    }

    /// Turns the channels at `x` in place.
    ///
    /// # Safety
    /// The instruction set of `V` is available; `x` is readable and writable for the rotary
    /// channels.
    #[inline(always)]
    pub(super) unsafe fn apply<V: Lanes>(&self, x: *mut f32) {
        let mut i = 0;
        while i < self.rotary {
            let n = (self.rotary - i).min(LANES);
            // SAFETY: the caller's contract; the table's row has as many values as channels turn.
            unsafe {
                let v = V::load_part(x.add(i), n);
                let turns = V::load_part(self.row.add(i), n);
                let sin = turns.odd_twice().mul(V::load(self.signs.as_ptr()));
                let cos = turns.even_twice();
                v.fma(cos, v.swap_pairs().mul(sin)).quiet().store_part(x.add(i), n);
            }
            i += LANES;
        }
    }
}
