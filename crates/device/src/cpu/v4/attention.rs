//! Attention of query heads over one shared key-value head.
//!
//! Definition, for one token row and head: the list of rows is the window's positions in order,
//! then the selected (or all closed) compressed rows in order. m = the head's sink, l = 1, o = 0.
//! For each 32 rows of the list: s = dot(q, row) / sqrt(dim), lane l of the dot being the chain of
//! fused multiply-adds over channels l, l + 16, ... from 0, lanes added by the tree; m' = greatest
//! of m and s; a = exp(m - m'); l = l a, o = o a; then, in order, p = exp(s - m'), l = l + p,
//! o = fma(p, row, o). The result is o * (1 / l), its last channels rotated back.
//!
//! The list is a function of the row's own position and selection, so a block of 32 is too. Heads
//! that are computed together share the loads of a row; each keeps its own chains.
//!
//! In a prediction block, whose row of a position depends on the token after it, rows lie in the
//! slot after their position, and those of the last positions, which have no slot yet, in a tail.

use core::mem::MaybeUninit;

use super::super::isa::{Isa, KernelKind, counters};
use super::super::lanes::{Lanes, per_isa};
use super::paged::{PagedRows, Tables};
use super::rope::{HEAD_DIM_MAX, TailRope, Turn};
use ahead::{Ahead, Queue, fetch_row};
use block::{Head, Near, add_rows_of_block, calls};

mod ahead;
mod block;
mod parts;

/// Heads of a task where there are tasks enough, and else; both shape speed, not bits. With AVX2 many
/// are two groups of few, which share what a core fetches.
const HEADS_MANY: usize = 8;
const HEADS_FEW: usize = 4;
/// Tasks of many heads that are worth having.
const TASKS_MANY: u32 = 4;
/// Rows of a block.
const BLOCK: usize = 32;
/// Rows of a sequence that nobody has asked for that are asked for at once, so that they come side by
/// side; those after them are asked for while these are computed.
const FIRST: usize = 6;
/// Rows of a tail, at most.
pub const TAIL_MAX: usize = lockstep_flow::limits::DRAFTS_MAX as usize;

/// Rows beyond the window.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// The rows; their ratio is the window that each pools.
    pub rows: PagedRows,
    /// `[rows][topk]`, by row and ended by `u32::MAX`; null: all closed rows.
    pub selection: *const u32,
    /// Places of a selection.
    pub topk: usize,
}

/// Attention of token rows.
#[derive(Clone, Copy, Debug)]
pub struct SinkAttention {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Heads.
    pub heads: usize,
    /// Channels of a head, a multiple of 16.
    pub dim: usize,
    /// `[rows][heads * dim]`
    pub q: *const f32,
    /// `[heads]`
    pub sinks: *const f32,
    /// Rows of the window.
    pub window_rows: PagedRows,
    /// Positions seen, the row's own included.
    pub window: usize,
    /// Rows beyond it.
    pub compressed: Option<Compressed>,
    /// `[rows][dim]` each: rows of the last positions, the row's own last.
    pub tail: [*mut f32; TAIL_MAX],
    /// How many; where there are any, the window's rows lie in the slot after their position.
    pub tail_rows: usize,
    /// The rotation.
    pub rope: TailRope,
    /// Where everything is.
    pub tables: Tables,
    /// `[rows][heads * dim]`
    pub out: *mut f32,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for SinkAttention {}
// SAFETY: as above.
unsafe impl Sync for SinkAttention {}

impl SinkAttention {
    /// Heads of a task.
    fn together(&self) -> usize {
        let many = self.rows * self.heads.div_ceil(HEADS_MANY) as u32;
        if self.isa != Isa::Portable && many >= TASKS_MANY { HEADS_MANY } else { HEADS_FEW }
    }

    fn groups(&self) -> u32 {
        self.heads.div_ceil(self.together()) as u32
    }

    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.rows * self.groups()
    }

    /// Computes some heads of one token row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; all rows that the token sees have
    /// been written; nothing else touches these heads of `out`.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Attention, self.isa);
        }
        let (row, group) = ((task / self.groups()) as usize, (task % self.groups()) as usize);
        if row < live_rows as usize {
            // SAFETY: the caller's contract.
            unsafe { attend(self.isa, self, row, group * self.together(), live_rows as usize) }
        }
    }
}

per_isa! {
    unsafe fn attend(a: &SinkAttention, row: usize, head: usize, live: usize) = attend_body;
}

/// The rows that a token sees, in order.
struct List {
    window_first: usize,
    window: usize,
    compressed: usize,
}

impl List {
    /// # Safety
    /// The row is live and its selection, where there is one, has been written.
    #[inline(always)]
    unsafe fn of(a: &SinkAttention, row: usize, position: usize) -> List {
        let window = (position + 1).min(a.window);
        let compressed = match &a.compressed {
            None => 0,
            Some(c) if c.selection.is_null() => (position + 1) / c.rows.ratio,
            Some(c) => {
                // SAFETY: the row has `topk` places.
                let chosen =
                    unsafe { core::slice::from_raw_parts(c.selection.add(row * c.topk), c.topk) };
                // What ends a selection is no closed row either: whatever an unproven plan left
                // there, nothing outside the sequence is read.
                let closed = (position + 1) / c.rows.ratio;
                chosen.iter().take_while(|i| (**i as usize) < closed).count()
            }
        };
        List { window_first: position + 1 - window, window, compressed }
    }

    fn len(&self) -> usize {
        self.window + self.compressed
    }

    /// True of a row that is as it is kept; another is f32, of a tail.
    #[inline(always)]
    fn kept(&self, a: &SinkAttention, i: usize) -> bool {
        i >= self.window || self.window - 1 - i >= a.tail_rows
    }

    /// Where the rows of the block from `start` on are, as many as there are.
    ///
    /// # Safety
    /// The table holds every page of the row's sequence up to its position.
    #[inline(always)]
    unsafe fn block(
        &self,
        a: &SinkAttention,
        row: usize,
        start: usize,
    ) -> ([*const f32; BLOCK], usize) {
        let mut places = [core::ptr::null(); BLOCK];
        let n = self.len().saturating_sub(start).min(BLOCK);
        let of_window = self.window.saturating_sub(start).min(n);
        let (of_window, compressed) = places[..n].split_at_mut(of_window);
        // SAFETY: the caller's contract.
        unsafe {
            let table = a.tables.of(row).1;
            let first = self.window_first + start + usize::from(a.tail_rows > 0);
            for (i, place) in of_window.iter_mut().enumerate() {
                *place = match self.kept(a, start + i) {
                    true => a.window_rows.at(table, first + i).cast(),
                    false => {
                        let from_end = self.window - 1 - (start + i);
                        a.tail[a.tail_rows - 1 - from_end].add(row * a.dim).cast_const()
                    }
                };
            }
            let Some(c) = &a.compressed else { return (places, n) };
            let first = (start + of_window.len()).saturating_sub(self.window);
            for (i, place) in (first..).zip(compressed) {
                let all = c.selection.is_null();
                let i = if all { i } else { *c.selection.add(row * c.topk + i) as usize };
                *place = c.rows.at(table, i).cast();
            }
        }
        (places, n)
    }
}

#[inline(always)]
unsafe fn attend_body<V: Lanes>(a: &SinkAttention, row: usize, first: usize, live: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match (V::ISA, a.together()) {
            (Isa::Avx512, HEADS_MANY) => attend_heads::<V, HEADS_MANY, 1, 2>(a, row, first, live),
            (Isa::Avx512, _) => attend_heads::<V, HEADS_FEW, 1, 4>(a, row, first, live),
            (Isa::Avx2, HEADS_MANY) => attend_heads::<V, HEADS_FEW, 2, 1>(a, row, first, live),
            _ => attend_heads::<V, HEADS_FEW, 1, 1>(a, row, first, live),
        }
    }
}

/// `G` groups of `H` heads, one after the other; `N` rows, and as many vectors of channels, are held
/// in registers at once: shapes speed, not bits.
#[inline(always)]
unsafe fn attend_heads<V: Lanes, const H: usize, const G: usize, const N: usize>(
    a: &SinkAttention,
    row: usize,
    first: usize,
    live: usize,
) {
    let heads = (a.heads - first).min(G * H);
    let mut near = [const { MaybeUninit::<Near<H>>::uninit() }; G];
    let near = near.as_mut_ptr().cast::<Near<H>>();
    let mut decoded = [const { MaybeUninit::<f32>::uninit() }; BLOCK * HEAD_DIM_MAX];
    debug_assert!(a.dim <= HEAD_DIM_MAX);
    // SAFETY: the caller's contract.
    unsafe {
        let (position, _) = a.tables.of(row);
        let list = List::of(a, row, position);
        let at = row * a.heads + first;
        let mut groups: [Head<H>; G] = core::array::from_fn(|g| Head::new(near.add(g), a.dim));
        let groups = &mut groups[..heads.div_ceil(H)];
        for (g, head) in groups.iter_mut().enumerate() {
            let q = a.q.add((at + g * H) * a.dim);
            head.start::<V>(q, a.sinks.add(first + g * H), (heads - g * H).min(H));
        }
        let mut queue = Queue::new();
        let (mut now, mut n) = list.block(a, row, 0);
        // The row before, if it is one of the same sequence, has seen nearly the same.
        if row == 0 || *a.tables.token_seq.add(row) != *a.tables.token_seq.add(row - 1) {
            let (at_once, later) = now[..n].split_at(FIRST.min(n));
            at_once.iter().for_each(|place| fetch_row::<V>(*place, a.dim));
            queue.push(later);
        }
        for start in (0..list.len()).step_by(BLOCK) {
            let (mut rows, of_block) = (now, n);
            if !a.window_rows.codec.is_plain() {
                let kept = rows[..of_block].iter_mut().enumerate();
                for (i, row) in kept.filter(|(i, _)| list.kept(a, start + i)) {
                    *row = decode(a, *row, decoded.as_mut_ptr().add(i * a.dim).cast());
                }
            }
            (now, n) = list.block(a, row, start + BLOCK);
            queue.push(&now[..n]);
            if n == 0 {
                after(a, (row, first, heads), live, &mut queue);
            }
            let calls = groups.len() * calls::<V, G, N>(of_block, a.dim);
            let ahead = Ahead::new(&queue, a.dim, calls, near.cast());
            add_rows_of_block::<V, H, G, N>(groups, &rows[..of_block], ahead);
            queue.clear();
        }
        let turn = Turn::new(&a.rope, position, -1.0);
        for h in 0..heads {
            let out = a.out.add((at + h) * a.dim);
            groups[h / H].finish::<V>(h % H, out);
            turn.apply::<V>(out.add(a.dim - a.rope.rotary));
        }
    }
}

/// The channels of a row, at `to`.
///
/// # Safety
/// The row has been written, and `to` has room for its channels.
#[inline(always)]
unsafe fn decode(a: &SinkAttention, row: *const f32, to: *mut f32) -> *const f32 {
    // SAFETY: the caller's contract; written before it is read, so that reading it as f32 is sound.
    unsafe {
        core::ptr::write_bytes(to, 0, a.dim);
        a.window_rows.codec.decode(row.cast(), to);
    }
    to.cast_const()
}

/// What comes after a task's last rows: its results' lines, and what the next task begins with, which
/// the same thread is likely to take.
///
/// # Safety
/// `row` is live.
#[inline(always)]
unsafe fn after(
    a: &SinkAttention,
    (row, first, heads): (usize, usize, usize),
    live: usize,
    queue: &mut Queue,
) {
    let line = |base: *const f32, row: usize, head: usize| {
        base.wrapping_add((row * a.heads + head) * a.dim)
    };
    (first..first + heads).for_each(|h| queue.push(&[line(a.out, row, h)]));
    let (next, head) = if first + heads < a.heads { (row, first + heads) } else { (row + 1, 0) };
    if next >= live {
        return;
    }
    let end = (head + a.together()).min(a.heads);
    (head..end).for_each(|h| queue.push(&[line(a.q, next, h)]));
    // SAFETY: both rows are live.
    unsafe {
        if next > row && *a.tables.token_seq.add(next) != *a.tables.token_seq.add(row) {
            let list = List::of(a, next, a.tables.of(next).0);
            let (rows, n) = list.block(a, next, 0);
            queue.push(&rows[..n.min(FIRST)]);
        }
    }
}

#[cfg(test)]
mod tests;
