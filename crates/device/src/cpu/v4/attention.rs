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
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::exp_lanes;
use super::paged::{PagedRows, Tables};
use super::rope::{HEAD_DIM_MAX, TailRope, Turn};

/// Heads that share the loads of a row where registers allow it and there are tasks enough, and
/// else; both shape speed, not bits.
const HEADS_MANY: usize = 8;
const HEADS_FEW: usize = 4;
/// Tasks of many heads that are worth having.
const TASKS_MANY: u32 = 4;
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
    /// Heads of a task.
    fn together(&self) -> usize {
        let many = self.rows * self.heads.div_ceil(HEADS_MANY) as u32;
        if self.isa == Isa::Avx512 && many >= TASKS_MANY { HEADS_MANY } else { HEADS_FEW }
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
            unsafe { attend(self.isa, self, row, group * self.together()) }
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
    // SAFETY: the caller's contract.
    unsafe {
        match (V::ISA, a.together()) {
            (Isa::Avx512, HEADS_MANY) => attend_heads::<V, HEADS_MANY, 2>(a, row, first),
            (Isa::Avx512, _) => attend_heads::<V, HEADS_FEW, 4>(a, row, first),
            _ => attend_heads::<V, HEADS_FEW, 1>(a, row, first),
        }
    }
}

/// `H` heads; `N` rows, and as many vectors of channels, are held in registers at once: shapes
/// speed, not bits.
#[inline(always)]
unsafe fn attend_heads<V: Lanes, const H: usize, const N: usize>(
    a: &SinkAttention,
    row: usize,
    first: usize,
) {
    let heads = (a.heads - first).min(H);
    // Past the last head the first stands in, and its results go nowhere.
    let mut nowhere = MaybeUninit::<[[f32; HEAD_DIM_MAX]; H]>::uninit();
    let nowhere = nowhere.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's contract.
    unsafe {
        let (position, table) = a.tables.of(row);
        let list = List::of(a, row, position);
        let scale = (1.0 / (a.dim as f64).sqrt()) as f32;
        let mut state = [Head { q: a.q, o: nowhere, m: 0.0, l: 1.0 }; H];
        for (h, s) in state.iter_mut().enumerate() {
            let head = first + if h < heads { h } else { 0 };
            let at = (row * a.heads + head) * a.dim;
            s.q = a.q.add(at);
            s.o = if h < heads { a.out.add(at) } else { nowhere.add(h * HEAD_DIM_MAX) };
            s.m = *a.sinks.add(head);
            for d in (0..a.dim).step_by(LANES) {
                V::splat(0.0).store(s.o.add(d));
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
            block::<V, H, N>(a.dim, scale, &rows[..n], &mut state);
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

/// Scores, then weights, of a block: `H` heads a row, row after row.
#[repr(align(64))]
struct Weights<const H: usize>([[f32; H]; BLOCK]);

/// Adds a block of rows to the running results.
#[inline(always)]
unsafe fn block<V: Lanes, const H: usize, const N: usize>(
    dim: usize,
    scale: f32,
    rows: &[*const f32],
    heads: &mut [Head; H],
) {
    let mut p = Weights([[f32::NEG_INFINITY; H]; BLOCK]);
    let n = rows.len();
    // SAFETY: the caller's contract; weights of places past the rows are computed and not used.
    unsafe {
        let whole = n / N * N;
        for i in (0..whole).step_by(N) {
            scores::<V, H, N>(dim, scale, &rows[i..], heads, &mut p.0[i..]);
        }
        for i in whole..n {
            scores::<V, H, 1>(dim, scale, &rows[i..], heads, &mut p.0[i..]);
        }
        let keep = weigh::<V, H>(&mut p, n, heads);
        let step = N * LANES;
        let whole = dim / step * step;
        for d in (0..whole).step_by(step) {
            add_rows::<V, H, N>(d, rows, &p.0, &keep, heads);
        }
        for d in (whole..dim).step_by(LANES) {
            add_rows::<V, H, 1>(d, rows, &p.0, &keep, heads);
        }
    }
}

/// Scores of the first `N` rows.
#[inline(always)]
unsafe fn scores<V: Lanes, const H: usize, const N: usize>(
    dim: usize,
    scale: f32,
    rows: &[*const f32],
    heads: &[Head; H],
    p: &mut [[f32; H]],
) {
    const { assert!(H * N <= LANES) };
    // SAFETY: the caller's contract; there are `N` rows.
    unsafe {
        let mut acc = [V::splat(0.0); LANES];
        for d in (0..dim).step_by(LANES) {
            let mut k = [V::splat(0.0); N];
            for (k, row) in k.iter_mut().zip(rows) {
                *k = V::load(row.add(d));
            }
            for (h, head) in heads.iter().enumerate() {
                let q = V::load(head.q.add(d));
                for (i, k) in k.iter().enumerate() {
                    acc[i * H + h] = q.fma(*k, acc[i * H + h]);
                }
            }
        }
        let p = p.as_flattened_mut();
        if H * N == LANES {
            V::sum_each(&acc).mul(V::splat(scale)).store(p.as_mut_ptr());
        } else {
            for (p, acc) in p.iter_mut().zip(&acc[..H * N]) {
                *p = acc.sum() * scale;
            }
        }
    }
}

/// Scores of `n` rows become weights; what is left of the results before them is returned.
#[inline(always)]
unsafe fn weigh<V: Lanes, const H: usize>(
    p: &mut Weights<H>,
    n: usize,
    heads: &mut [Head; H],
) -> [f32; H] {
    let mut most = [0f32; H];
    for (most, head) in most.iter_mut().zip(heads.iter()) {
        *most = head.m;
    }
    for p in &p.0[..n] {
        for (most, s) in most.iter_mut().zip(p) {
            *most = if *s > *most { *s } else { *most };
        }
    }
    // SAFETY: the caller's contract; heads fill vectors evenly.
    unsafe {
        let (mut before, mut now) = ([0f32; LANES], [0f32; LANES]);
        for (l, (before, now)) in before.iter_mut().zip(&mut now).enumerate() {
            (*before, *now) = (heads[l % H].m, most[l % H]);
        }
        let now = V::load(now.as_ptr());
        let mut keep = [0f32; LANES];
        exp_lanes(V::load(before.as_ptr()).sub(now)).store(keep.as_mut_ptr());
        let flat = p.0.as_flattened_mut();
        for at in (0..n * H).step_by(LANES) {
            let at = flat.as_mut_ptr().add(at);
            exp_lanes(V::load(at).sub(now)).store(at);
        }
        let mut kept = [0f32; H];
        for (h, head) in heads.iter_mut().enumerate() {
            kept[h] = keep[h];
            head.m = most[h];
            head.l *= keep[h];
        }
        for p in &p.0[..n] {
            for (head, p) in heads.iter_mut().zip(p) {
                head.l += p;
            }
        }
        kept
    }
}

/// Adds weighted rows to `N` vectors of channels from `d` on.
#[inline(always)]
unsafe fn add_rows<V: Lanes, const H: usize, const N: usize>(
    d: usize,
    rows: &[*const f32],
    p: &[[f32; H]; BLOCK],
    keep: &[f32; H],
    heads: &[Head; H],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; H];
        for ((acc, head), keep) in acc.iter_mut().zip(heads).zip(keep) {
            let keep = V::splat(*keep);
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(head.o.add(d + c * LANES)).mul(keep);
            }
        }
        for (row, p) in rows.iter().zip(p) {
            let mut v = [V::splat(0.0); N];
            for (c, v) in v.iter_mut().enumerate() {
                *v = V::load(row.add(d + c * LANES));
            }
            for (acc, p) in acc.iter_mut().zip(p) {
                let p = V::splat(*p);
                for (acc, v) in acc.iter_mut().zip(&v) {
                    *acc = p.fma(*v, *acc);
                }
            }
        }
        for (acc, head) in acc.iter().zip(heads) {
            for (c, acc) in acc.iter().enumerate() {
                acc.store(head.o.add(d + c * LANES));
            }
        }
    }
}

#[cfg(test)]
mod tests;
