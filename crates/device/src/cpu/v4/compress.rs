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

/// Tokens of a window whose state is asked for while the one before is pooled, at most.
const RATIO_NEAR: usize = 8;

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
    /// is nobody else's; rows before `live_rows` are live.
    pub unsafe fn run(&self, row: usize, live_rows: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let (position, _) = self.tables.of(row);
            if self.closes(position) {
                compress(self.isa, self, row, live_rows);
            } else if self.to.ratio > PAGE && (position + 1).is_multiple_of(PAGE) {
                let to = self.to.of_slot(*self.write_slots.add(row) as usize);
                core::ptr::write_bytes(to, 0, self.to.codec.row_bytes());
            }
        }
    }

    fn closes(&self, position: usize) -> bool {
        (position + 1).is_multiple_of(self.to.ratio)
    }

    /// The row after `row` that closes a window, which the same thread is likely to take; of a
    /// sequence it is as far as a window is long. None where a window's state is more than a core
    /// has near.
    ///
    /// # Safety
    /// Rows before `live_rows` are live.
    unsafe fn next(&self, row: usize, live_rows: usize) -> Option<usize> {
        let far = if self.to.ratio <= RATIO_NEAR { self.to.ratio } else { 0 };
        let mut rows = row + 1..live_rows.min(row + 1 + far);
        // SAFETY: the caller's contract.
        rows.find(|row| self.closes(unsafe { self.tables.of(*row) }.0))
    }
}

per_isa! {
    unsafe fn compress(a: &CompressRows, row: usize, live_rows: usize) = compress_body;
}

/// One slot: where its values and gates start, and the addition to its gates.
#[derive(Clone, Copy)]
struct Slot {
    values: *const f32,
    gates: *const f32,
    ape: *const f32,
}

/// The slots of the window that a row closes, and of the one before where they overlap.
struct Slots {
    all: [Slot; SLOTS_MAX],
    n: usize,
}

impl Slots {
    /// # Safety
    /// The row is live and closes a window; the table holds every page of its sequence.
    #[inline(always)]
    unsafe fn of(a: &CompressRows, row: usize) -> Slots {
        let (dim, ratio) = (a.dim, a.to.ratio);
        let channels = if a.overlap { 2 * dim } else { dim };
        let null = core::ptr::null();
        let mut slots =
            Slots { all: [Slot { values: null, gates: null, ape: null }; SLOTS_MAX], n: 0 };
        // SAFETY: the caller's contract; overlapping windows have 4 tokens, others at most 128.
        unsafe {
            let (position, table) = a.tables.of(row);
            let first = position / ratio * ratio;
            let before = if a.overlap && first > 0 { ratio } else { 0 };
            for i in 0..before + ratio {
                let state = a.state.at(table, first + i - before).cast::<f32>();
                let j = if i < before { i } else { i - before };
                let half = if a.overlap && i >= before { dim } else { 0 };
                slots.all[slots.n] = Slot {
                    values: state.add(half),
                    gates: state.add(channels + half),
                    ape: a.ape.add(j * channels + half),
                };
                slots.n += 1;
            }
        }
        slots
    }

    fn all(&self) -> &[Slot] {
        &self.all[..self.n]
    }

    /// Asks for some channels of every slot.
    #[inline(always)]
    fn fetch<V: Lanes>(&self, channels: core::ops::Range<usize>) {
        for slot in self.all() {
            for c in channels.clone().step_by(LANES) {
                V::fetch(slot.gates.wrapping_add(c));
                V::fetch(slot.values.wrapping_add(c));
            }
        }
    }
}

/// Vectors of channels that are pooled at once, so that the lines of a slot are read in runs.
const POOLED: usize = 4;

#[inline(always)]
unsafe fn compress_body<V: Lanes>(a: &CompressRows, row: usize, live_rows: usize) {
    let dim = a.dim;
    // SAFETY: the caller's contract.
    unsafe {
        let slots = Slots::of(a, row);
        let next = a.next(row, live_rows).map(|row| Slots::of(a, row));
        let kept = a.to.of_slot(*a.write_slots.add(row) as usize);
        expect_row(kept, a.to.codec.row_bytes());
        // The slots lie apart: read a few channels of each at a time, they would come line by line.
        // Where the row before has asked for them, they are near.
        slots.fetch::<V>(0..dim);
        let mut rounded = [const { MaybeUninit::<f32>::uninit() }; CHANNELS_MAX];
        let plain = a.to.codec.is_plain();
        let to = if plain { kept.cast::<f32>() } else { rounded.as_mut_ptr().cast() };
        let whole = dim / (POOLED * LANES) * (POOLED * LANES);
        for c in (0..whole).step_by(POOLED * LANES) {
            pool::<V, POOLED>(slots.all(), c, to);
            if let Some(next) = &next {
                next.fetch::<V>(c..c + POOLED * LANES);
            }
        }
        for c in (whole..dim).step_by(LANES) {
            pool::<V, 1>(slots.all(), c, to);
        }
        norm_row::<V>(to, a.norm, to, dim, a.eps);
        let first = a.tables.of(row).0 / a.to.ratio * a.to.ratio;
        let turn = Turn::new(&a.rope, first, 1.0);
        turn.apply::<V>(to.add(dim - a.rope.rotary));
        if !plain {
            a.to.codec.encode(core::slice::from_raw_parts_mut(to, dim), kept);
        }
    }
}

/// `N` vectors of channels from `c` on.
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
