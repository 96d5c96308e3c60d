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

impl Row {
    fn address(self) -> *const f32 {
        match self {
            Row::Plain(at) => at,
            Row::Kept(at) => at.cast(),
        }
    }
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

/// Running results, at a page's start: then a store to one is never taken for the line of a row,
/// which lies at a multiple of a page or of its half, that is loaded next.
#[repr(C, align(4096))]
struct Results<const H: usize>([[f32; HEAD_DIM_MAX]; H]);

/// One head's running result.
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
    let mut results = MaybeUninit::<Results<H>>::uninit();
    let results = results.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's contract.
    unsafe {
        let (position, table) = a.tables.of(row);
        let list = List::of(a, row, position);
        let scale = (1.0 / (a.dim as f64).sqrt()) as f32;
        let mut state = [Head { q: a.q, o: results, m: 0.0, l: 1.0 }; H];
        for (h, s) in state.iter_mut().enumerate() {
            // Past the last head the first stands in, and its results are not used.
            let head = first + if h < heads { h } else { 0 };
            s.q = a.q.add((row * a.heads + head) * a.dim);
            s.o = results.add(h * a.dim);
            s.m = *a.sinks.add(head);
            for d in (0..a.dim).step_by(LANES) {
                V::splat(0.0).store(s.o.add(d));
            }
        }
        let out = a.out.add((row * a.heads + first) * a.dim);
        let total = list.window + list.compressed;
        let codec = a.window_rows.codec;
        // Of a block's places past the last row, the last row again: they are only fetched.
        let places = |start: usize| {
            let mut places = [Row::Plain(core::ptr::null()); BLOCK];
            for (i, place) in places.iter_mut().enumerate() {
                *place = list.at(a, row, table, (start + i).min(total - 1));
            }
            places
        };
        let mut decoded = [const { MaybeUninit::<f32>::uninit() }; BLOCK * HEAD_DIM_MAX];
        let mut next = places(0);
        // No block before the first asks for its rows: all at once, they come side by side. The row
        // before, if it is one of the same sequence, has seen nearly the same.
        let alone = row == 0 || *a.tables.token_seq.add(row) != *a.tables.token_seq.add(row - 1);
        for place in next.iter().filter(|_| alone) {
            for d in (0..a.dim).step_by(LANES) {
                V::fetch(place.address().wrapping_add(d));
            }
        }
        for start in (0..total).step_by(BLOCK) {
            let n = (total - start).min(BLOCK);
            let now = next;
            let mut rows = [core::ptr::null::<f32>(); BLOCK];
            for (i, (r, place)) in rows.iter_mut().zip(now).enumerate().take(n) {
                *r = match place {
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
            // After the last block come the results, whose lines are asked for too.
            let mut ahead: [*const f32; BLOCK] =
                core::array::from_fn(|h| out.wrapping_add(h.min(heads - 1) * a.dim).cast_const());
            if start + BLOCK < total {
                next = places(start + BLOCK);
                ahead = next.map(Row::address);
            }
            let ahead = Ahead { rows: &ahead, asked: 0, none: rows[0] };
            block::<V, H, N>(a.dim, scale, (&rows[..n], ahead), &mut state);
        }
        let turn = Turn::new(&a.rope, position, -1.0);
        for (h, head) in state[..heads].iter().enumerate() {
            let out = out.add(h * a.dim);
            let inverse = V::splat(1.0 / head.l);
            for d in (0..a.dim).step_by(LANES) {
                V::load(head.o.add(d)).mul(inverse).quiet().store(out.add(d));
            }
            turn.apply::<V>(out.add(a.dim - a.rope.rotary));
        }
        debug_assert!(a.dim <= HEAD_DIM_MAX);
    }
}

/// Scores, then weights, of a block: `H` heads a row, row after row.
#[repr(align(64))]
struct Weights<const H: usize>([[f32; H]; BLOCK]);

/// The rows of the next block, of which each few rows of this one ask for the next.
struct Ahead<'a> {
    rows: &'a [*const f32; BLOCK],
    /// How many have been asked for.
    asked: usize,
    /// Asked for where there is no next block: near already.
    none: *const f32,
}

impl Ahead<'_> {
    /// Fewer heads pass over a block in fewer steps, and ask for more rows at once.
    const fn rows_at_once(heads: usize) -> usize {
        if heads < HEADS_MANY { 2 } else { 1 }
    }

    /// The next two; of which the second is not to be used where rows are asked for one by one.
    #[inline(always)]
    fn next(&mut self, heads: usize) -> [*const f32; 2] {
        let at = self.asked;
        self.asked += Self::rows_at_once(heads);
        let row = |i: usize| self.rows.get(i).copied().unwrap_or(self.none);
        [row(at), row(at + 1)]
    }
}

/// Asks for a line of each.
#[inline(always)]
fn fetch<V: Lanes>(ahead: [*const f32; 2], heads: usize, channel: usize) {
    V::fetch(ahead[0].wrapping_add(channel));
    if Ahead::rows_at_once(heads) == 2 {
        V::fetch(ahead[1].wrapping_add(channel));
    }
}

/// Adds a block of rows to the running results.
///
/// Each of the two passes takes a few rows at a time and all channels of them, so that the block,
/// which a core's nearest cache does not hold, is read from the next one in runs. Rows of the first
/// pass lie apart: two in one page of memory are no run that a prefetcher sees.
#[inline(always)]
unsafe fn block<V: Lanes, const H: usize, const N: usize>(
    dim: usize,
    scale: f32,
    (rows, mut ahead): (&[*const f32], Ahead<'_>),
    heads: &mut [Head; H],
) {
    let mut p = Weights([[f32::NEG_INFINITY; H]; BLOCK]);
    let n = rows.len();
    // SAFETY: the caller's contract; weights of places past the rows are computed and not used.
    unsafe {
        let apart = n / N;
        for i in 0..apart {
            let places: [usize; N] = core::array::from_fn(|k| i + k * apart);
            scores::<V, H, N>((dim, scale), rows, places, heads, &mut p, &mut ahead);
        }
        for i in apart * N..n {
            scores::<V, H, 1>((dim, scale), rows, [i], heads, &mut p, &mut ahead);
        }
        let keep = weigh::<V, H>(&mut p, n, heads);
        match V::ISA {
            Isa::Avx512 => add_block::<V, H, 4, 4>(dim, rows, &mut ahead, &p.0, &keep, heads),
            _ => add_block::<V, H, 2, 2>(dim, rows, &mut ahead, &p.0, &keep, heads),
        }
    }
}

/// `N` values from `at` on, as many as the compiler knows, so that what they are used in is written
/// out and stays in registers.
///
/// # Safety
/// There are so many.
#[inline(always)]
unsafe fn some<T: Copy, const N: usize>(values: &[T], at: usize) -> [T; N] {
    debug_assert!(at + N <= values.len());
    // SAFETY: the caller says so.
    unsafe { values.as_ptr().add(at).cast::<[T; N]>().read() }
}

/// Scores of the `N` rows at these places.
#[inline(always)]
unsafe fn scores<V: Lanes, const H: usize, const N: usize>(
    (dim, scale): (usize, f32),
    rows: &[*const f32],
    places: [usize; N],
    heads: &[Head; H],
    p: &mut Weights<H>,
    ahead: &mut Ahead<'_>,
) {
    const { assert!(H * N <= LANES) };
    // SAFETY: the caller's contract.
    unsafe {
        let q: [*const f32; H] = core::array::from_fn(|h| heads[h].q);
        let rows = places.map(|i| rows[i]);
        let ahead = ahead.next(H);
        let mut acc = [V::splat(0.0); LANES];
        for d in (0..dim).step_by(LANES) {
            fetch::<V>(ahead, H, d);
            let k: [V; N] = core::array::from_fn(|i| V::load(rows[i].add(d)));
            for h in 0..H {
                let q = V::load(q[h].add(d));
                for i in 0..N {
                    acc[i * H + h] = q.fma(k[i], acc[i * H + h]);
                }
            }
        }
        let mut sums = [0f32; LANES];
        if H * N == LANES {
            V::sum_each(&acc).mul(V::splat(scale)).store(sums.as_mut_ptr());
        } else {
            for (sum, acc) in sums.iter_mut().zip(&acc[..H * N]) {
                *sum = acc.sum() * scale;
            }
        }
        for (i, place) in places.into_iter().enumerate() {
            p.0[place] = some(&sums, i * H);
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

/// Adds a block of weighted rows, `R` rows to `G` heads at a time: their weights stay in registers
/// while the channels pass by. Shapes speed, not bits: rows are added in order.
#[inline(always)]
unsafe fn add_block<V: Lanes, const H: usize, const G: usize, const R: usize>(
    dim: usize,
    rows: &[*const f32],
    ahead: &mut Ahead<'_>,
    p: &[[f32; H]; BLOCK],
    keep: &[f32; H],
    heads: &[Head; H],
) {
    const { assert!(H.is_multiple_of(G) && BLOCK.is_multiple_of(R)) };
    // SAFETY: the caller's contract.
    unsafe {
        let n = rows.len();
        for first in (0..H).step_by(G) {
            let o: [*mut f32; G] = core::array::from_fn(|g| heads[first + g].o);
            let keep: [V; G] = core::array::from_fn(|g| V::splat(keep[first + g]));
            for d in (0..dim).step_by(LANES) {
                for (o, keep) in o.iter().zip(&keep) {
                    V::load(o.add(d)).mul(*keep).store(o.add(d));
                }
            }
            let whole = n / R * R;
            for i in (0..whole).step_by(R) {
                let weights = core::array::from_fn(|r| some(&p[i + r], first));
                add_rows::<V, H, G, R>(dim, &some(rows, i), &weights, &o, ahead.next(H));
            }
            for (row, p) in rows.iter().zip(p).skip(whole) {
                let weights = [some(p, first)];
                add_rows::<V, H, G, 1>(dim, &[*row], &weights, &o, ahead.next(H));
            }
        }
    }
}

/// Adds `R` rows to `G` heads.
#[inline(always)]
unsafe fn add_rows<V: Lanes, const H: usize, const G: usize, const R: usize>(
    dim: usize,
    rows: &[*const f32; R],
    weights: &[[f32; G]; R],
    o: &[*mut f32; G],
    ahead: [*const f32; 2],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let weights: [[V; G]; R] =
            core::array::from_fn(|r| core::array::from_fn(|g| V::splat(weights[r][g])));
        for d in (0..dim).step_by(LANES) {
            fetch::<V>(ahead, H, d);
            let v: [V; R] = core::array::from_fn(|r| V::load(rows[r].add(d)));
            for g in 0..G {
                let mut acc = V::load(o[g].add(d));
                for r in 0..R {
                    acc = weights[r][g].fma(v[r], acc);
                }
                acc.store(o[g].add(d));
            }
        }
    }
}

#[cfg(test)]
mod tests;
