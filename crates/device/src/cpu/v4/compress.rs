//! Compressed rows: a window's values pooled by a softmax over its gates, channel by channel.
//!
//! Definition, for the token that closes window i of m tokens: the slots are the window's tokens in
//! order, with value k[c] and gate g[c] + ape[j][c]; where windows overlap, the tokens of window
//! i - 1 come first (none for i = 0) with the first half of the channels, and those of window i
//! take the second. For each channel: top = greatest gate; p = exp(gate - top), s = s + p,
//! a = fma(p, k, a) over the slots in order from 0; row = a / s. Then the RMS norm with its weight,
//! and the rotation of position m i; the row is kept as [`super::code`] says.

use core::mem::MaybeUninit;

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, expect_row, per_isa};
use super::super::math::exp_lanes;
use super::super::norm::norm_row;
use super::code::CHANNELS_MAX;
use super::paged::{PagedRows, Tables};
use super::rope::{TailRope, Turn};
use lockstep_flow::limits::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// Slots of a window, at most: 128 tokens.
const SLOTS_MAX: usize = 128;

/// Values and gates of each token, kept.
#[derive(Clone, Copy, Debug)]
pub struct StateStore {
    /// Rows, live and padded.
    pub rows: u32,
    /// `[rows][to.row]`
    pub x: *const f32,
    /// `[rows]`
    pub write_slots: *const u32,
    /// Where rows go.
    pub to: PagedRows,
}

/// Rows of the windows that close.
#[derive(Clone, Copy, Debug)]
pub struct CompressRows {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Windows overlap.
    pub overlap: bool,
    /// Channels of a row, a multiple of 16.
    pub dim: usize,
    /// `[ratio][channels]`
    pub ape: *const f32,
    /// `[dim]`
    pub norm: *const f32,
    /// Epsilon of the norm.
    pub eps: f32,
    /// The rotation.
    pub rope: TailRope,
    /// Where everything is.
    pub tables: Tables,
    /// `[rows]`
    pub write_slots: *const u32,
    /// Values, then gates, a position.
    pub state: PagedRows,
    /// Where rows go; its ratio is the window.
    pub to: PagedRows,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for StateStore {}
// SAFETY: as above.
unsafe impl Sync for StateStore {}
// SAFETY: as above.
unsafe impl Send for CompressRows {}
// SAFETY: as above.
unsafe impl Sync for CompressRows {}

impl StateStore {
    /// Keeps one row.
    ///
    /// # Safety
    /// The row's write slot lies in the pages and is nobody else's; the row of `x` is readable.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let to = self.to.of_slot(*self.write_slots.add(row) as usize);
            expect_row(to, self.to.codec.row_bytes());
            let (to, cols) = (to.cast::<f32>(), self.to.codec.dim);
            core::ptr::copy_nonoverlapping(self.x.add(row * cols), to, cols);
        }
    }
}

impl CompressRows {
    /// Writes the row that token row `row` closes, if it closes one. Where windows are longer than
    /// pages, most pages have no row: a zero one is written when such a page is full, so that the
    /// bytes of a page follow from its tokens alone and not from who had it before (the audit
    /// compares the pages of two sequences that computed the same tokens).
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; the state of every position of
    /// the window (and of the one before it, where they overlap) has been written; the write slot
    /// is nobody else's.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let (position, _) = self.tables.of(row);
            if (position + 1).is_multiple_of(self.to.ratio) {
                compress(self.isa, self, row);
            } else if self.to.ratio > PAGE && (position + 1).is_multiple_of(PAGE) {
                let to = self.to.of_slot(*self.write_slots.add(row) as usize);
                core::ptr::write_bytes(to, 0, self.to.codec.row_bytes());
            }
        }
    }
}

per_isa! {
    unsafe fn compress(a: &CompressRows, row: usize) = compress_body;
}

/// One slot: where its values and gates start, and the addition to its gates.
#[derive(Clone, Copy)]
struct Slot {
    values: *const f32,
    gates: *const f32,
    ape: *const f32,
}

#[inline(always)]
unsafe fn compress_body<V: Lanes>(a: &CompressRows, row: usize) {
    let (dim, ratio) = (a.dim, a.to.ratio);
    let channels = if a.overlap { 2 * dim } else { dim };
    let null = core::ptr::null();
    let mut slots = [Slot { values: null, gates: null, ape: null }; SLOTS_MAX];
    let mut n = 0;
    // SAFETY: the caller's contract; overlapping windows have 4 tokens, others at most 128.
    unsafe {
        let (position, table) = a.tables.of(row);
        let window = position / ratio;
        let first = window * ratio;
        let before = if a.overlap && window > 0 { ratio } else { 0 };
        for i in 0..before + ratio {
            let state = a.state.at(table, first + i - before).cast::<f32>();
            let j = if i < before { i } else { i - before };
            let half = if a.overlap && i >= before { dim } else { 0 };
            slots[n] = Slot {
                values: state.add(half),
                gates: state.add(channels + half),
                ape: a.ape.add(j * channels + half),
            };
            n += 1;
        }
        let kept = a.to.of_slot(*a.write_slots.add(row) as usize);
        expect_row(kept, a.to.codec.row_bytes());
        // The slots lie apart: read a few channels of each at a time, they would come line by line.
        for slot in &slots[..n] {
            for c in (0..dim).step_by(LANES) {
                V::fetch(slot.gates.add(c));
                V::fetch(slot.values.add(c));
            }
        }
        let mut rounded = [const { MaybeUninit::<f32>::uninit() }; CHANNELS_MAX];
        let plain = a.to.codec.is_plain();
        let to = if plain { kept.cast::<f32>() } else { rounded.as_mut_ptr().cast() };
        let whole = dim / (4 * LANES) * (4 * LANES);
        for c in (0..whole).step_by(4 * LANES) {
            pool::<V, 4>(&slots[..n], c, to);
        }
        for c in (whole..dim).step_by(LANES) {
            pool::<V, 1>(&slots[..n], c, to);
        }
        norm_row::<V>(to, a.norm, to, dim, a.eps);
        let turn = Turn::new(&a.rope, first, 1.0);
        turn.apply::<V>(to.add(dim - a.rope.rotary));
        if !plain {
            a.to.codec.encode(core::slice::from_raw_parts_mut(to, dim), kept);
        }
    }
}

/// `N` vectors of channels from `c` on, so that the lines of a slot are read in runs.
#[inline(always)]
unsafe fn pool<V: Lanes, const N: usize>(slots: &[Slot], c: usize, to: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let gate = |s: &Slot, v: usize| {
            let at = c + v * LANES;
            V::load(s.gates.add(at)).add(V::load(s.ape.add(at)))
        };
        let mut top: [V; N] = core::array::from_fn(|v| gate(&slots[0], v));
        for s in &slots[1..] {
            for (v, top) in top.iter_mut().enumerate() {
                *top = gate(s, v).max(*top);
            }
        }
        let (mut sum, mut acc) = ([V::splat(0.0); N], [V::splat(0.0); N]);
        for s in slots {
            for v in 0..N {
                let p = exp_lanes(gate(s, v).sub(top[v]));
                sum[v] = sum[v].add(p);
                acc[v] = p.fma(V::load(s.values.add(c + v * LANES)), acc[v]);
            }
        }
        for v in 0..N {
            acc[v].div(sum[v]).store(to.add(c + v * LANES));
        }
    }
}
