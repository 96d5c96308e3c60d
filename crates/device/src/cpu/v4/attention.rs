//! Attention of query heads over one shared key-value head.
//!
//! Definition, for one token row and head: the list of rows is the window's positions in order,
//! then the selected (or all closed) compressed rows in order. m = the head's sink, l = 1, o = 0.
//! For each 32 rows of the list: s = dot(q, row) / sqrt(dim), lane l of the dot being the chain of
//! fused multiply-adds over channels l, l + 16, ... from 0, lanes added by the tree; m' = greatest
//! of m and s; a = exp(m - m'); l = l a, o = o a; then, in order, p = exp(s - m'), l = l + p,
//! o = fma(p, row, o). The result is o * (1 / l), its last channels rotated back.
//!
//! The list is a function of the row's own position and selection, so a block of 32 is too.
//!
//! In a prediction block, whose row of a position depends on the token after it, rows lie in the
//! slot after their position, and those of the last positions, which have no slot yet, in a tail.

use core::mem::MaybeUninit;

use super::super::isa::{Isa, KernelKind, counters};
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::exp_lanes;
use super::paged::{PagedRows, Tables};
use super::rope::{HEAD_DIM_MAX, TailRope, Turn};

/// Heads that share the loads of a row; shapes speed, not bits.
const HEADS: usize = 4;
/// Rows of a block.
const BLOCK: usize = 32;
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
    fn groups(&self) -> u32 {
        self.heads.div_ceil(HEADS) as u32
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
            unsafe { attend(self.isa, self, row, group * HEADS) }
        }
    }
}

per_isa! {
    unsafe fn attend(a: &SinkAttention, row: usize, head: usize) = attend_body;
}

/// Where a row is.
#[derive(Clone, Copy)]
enum Row {
    /// In a page, as it is kept.
    Kept(*const u8),
    /// As f32.
    Plain(*const f32),
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

    /// # Safety
    /// `i` is in the list.
    #[inline(always)]
    unsafe fn at(&self, a: &SinkAttention, row: usize, table: *const u32, i: usize) -> Row {
        // SAFETY: the table holds every page of the row's sequence up to its position.
        unsafe {
            if i < self.window {
                let from_end = self.window - 1 - i;
                return match a.tail_rows {
                    0 => Row::Kept(a.window_rows.at(table, self.window_first + i)),
                    n if from_end < n => Row::Plain(a.tail[n - 1 - from_end].add(row * a.dim)),
                    _ => Row::Kept(a.window_rows.at(table, self.window_first + i + 1)),
                };
            }
            let i = i - self.window;
            let c = a.compressed.as_ref().expect("the list has compressed rows");
            let chosen =
                if c.selection.is_null() { i } else { *c.selection.add(row * c.topk + i) as usize };
            Row::Kept(c.rows.at(table, chosen))
        }
    }
}

/// One head's running result; `o` is the output row itself.
#[derive(Clone, Copy)]
struct Head {
    q: *const f32,
    o: *mut f32,
    m: f32,
    l: f32,
}

#[inline(always)]
unsafe fn attend_body<V: Lanes>(a: &SinkAttention, row: usize, first: usize) {
    let heads = (a.heads - first).min(HEADS);
    // SAFETY: the caller's contract.
    unsafe {
        let (position, table) = a.tables.of(row);
        let list = List::of(a, row, position);
        let scale = (1.0 / (a.dim as f64).sqrt()) as f32;
        let mut state: [Head; HEADS] = core::array::from_fn(|h| {
            // Past the last head the first stands in, and its results are not used.
            let head = first + if h < heads { h } else { 0 };
            let at = (row * a.heads + head) * a.dim;
            Head { q: a.q.add(at), o: a.out.add(at), m: *a.sinks.add(head), l: 1.0 }
        });
        for h in &state[..heads] {
            for d in (0..a.dim).step_by(LANES) {
                V::splat(0.0).store(h.o.add(d));
            }
        }
        let total = list.window + list.compressed;
        let codec = a.window_rows.codec;
        let mut decoded = [const { MaybeUninit::<f32>::uninit() }; BLOCK * HEAD_DIM_MAX];
        for start in (0..total).step_by(BLOCK) {
            let n = (total - start).min(BLOCK);
            let mut rows = [core::ptr::null::<f32>(); BLOCK];
            for (i, r) in rows.iter_mut().enumerate().take(n) {
                *r = match list.at(a, row, table, start + i) {
                    Row::Plain(at) => at,
                    Row::Kept(at) if codec.is_plain() => at.cast(),
                    Row::Kept(at) => {
                        let to = decoded.as_mut_ptr().add(i * a.dim).cast::<f32>();
                        // Written before it is read, so that reading it as f32 is sound.
                        core::ptr::write_bytes(to, 0, a.dim);
                        codec.decode(at, to);
                        to.cast_const()
                    }
                };
            }
            block::<V>(a.dim, scale, &rows[..n], &mut state[..heads]);
        }
        let turn = Turn::new(&a.rope, position, -1.0);
        for h in &state[..heads] {
            let inverse = V::splat(1.0 / h.l);
            for d in (0..a.dim).step_by(LANES) {
                V::load(h.o.add(d)).mul(inverse).quiet().store(h.o.add(d));
            }
            turn.apply::<V>(h.o.add(a.dim - a.rope.rotary));
        }
        debug_assert!(a.dim <= HEAD_DIM_MAX);
    }
}

/// Adds a block of rows to the running results.
#[inline(always)]
unsafe fn block<V: Lanes>(dim: usize, scale: f32, rows: &[*const f32], heads: &mut [Head]) {
    let mut p = [[0f32; BLOCK]; HEADS];
    // SAFETY: the caller's contract; weights of places past the rows are computed and not used.
    unsafe {
        for (i, row) in rows.iter().enumerate() {
            let mut acc = [V::splat(0.0); HEADS];
            for d in (0..dim).step_by(LANES) {
                let k = V::load(row.add(d));
                for (acc, head) in acc.iter_mut().zip(heads.iter()) {
                    *acc = V::load(head.q.add(d)).fma(k, *acc);
                }
            }
            for (h, acc) in acc.iter().enumerate().take(heads.len()) {
                p[h][i] = acc.sum() * scale;
            }
        }
        for (p, head) in p.iter_mut().zip(heads.iter_mut()) {
            let n = rows.len();
            let most = p[..n].iter().fold(head.m, |a, &s| if s > a { s } else { a });
            let mut pair = [0f32; LANES];
            pair[0] = head.m - most;
            exp_lanes(V::load(pair.as_ptr())).store(pair.as_mut_ptr());
            let keep = pair[0];
            for i in (0..n).step_by(LANES) {
                let s = V::load(p.as_ptr().add(i)).sub(V::splat(most));
                exp_lanes(s).store(p.as_mut_ptr().add(i));
            }
            head.l *= keep;
            p[..n].iter().for_each(|p| head.l += p);
            head.m = most;
            for d in (0..dim).step_by(LANES) {
                V::load(head.o.add(d)).mul(V::splat(keep)).store(head.o.add(d));
            }
        }
        for d in (0..dim).step_by(LANES) {
            let mut acc = [V::splat(0.0); HEADS];
            for (acc, head) in acc.iter_mut().zip(heads.iter()) {
                *acc = V::load(head.o.add(d));
            }
            for (i, row) in rows.iter().enumerate() {
                let v = V::load(row.add(d));
                for (acc, p) in acc.iter_mut().zip(&p).take(heads.len()) {
                    *acc = V::splat(p[i]).fma(v, *acc);
                }
            }
            for (acc, head) in acc.iter().zip(heads.iter()) {
                acc.store(head.o.add(d));
            }
        }
    }
}
