//! The inner loops: scores, softmax and weighted sums of a tile of query vectors over one split.

use super::super::kv::{HEAD_DIM_MAX, KvElem, PAGE};
use super::super::lanes::{LANES, Lanes};
use super::super::math::exp_lanes;
use super::SPLIT;

/// Query vectors of a tile, at most.
pub const TILE_MAX: usize = 12;
/// Pages of a split.
pub const SPLIT_PAGES: usize = SPLIT / PAGE;
/// Floats from one query vector of a tile to the next.
const Q_STRIDE: usize = HEAD_DIM_MAX;
/// Floats from one partial result of a tile to the next: o, m, l, whole cache lines.
pub const O_STRIDE: usize = HEAD_DIM_MAX + LANES;

/// Working memory of a task, on its stack.
#[repr(C, align(64))]
pub struct Work {
    /// Scaled query vectors.
    pub q: [f32; TILE_MAX * Q_STRIDE],
    /// Scores, then their exponentials, of one split.
    pub s: [f32; TILE_MAX * SPLIT],
    /// Partial results of one split.
    pub o: [f32; TILE_MAX * O_STRIDE],
}

/// The pages of one KV head in one split; entries that no row sees are null.
pub type Pages<E> = [*const E; SPLIT_PAGES];

/// Positions of the split that a query vector sees: `from..to`, counted from the split's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub from: usize,
    pub to: usize,
}

impl Seen {
    pub const NONE: Seen = Seen { from: 0, to: 0 };

    pub fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// The working memory, by address: query vector i's parts lie at fixed strides.
#[derive(Clone, Copy)]
pub struct Tile {
    pub work: *mut Work,
    /// Channels.
    pub dim: usize,
}

impl Tile {
    /// Query vector `i`.
    pub fn q(self, i: usize) -> *mut f32 {
        self.work.cast::<f32>().wrapping_add(i * Q_STRIDE)
    }

    /// Scores of query vector `i`.
    pub fn s(self, i: usize) -> *mut f32 {
        self.work.cast::<f32>().wrapping_add(TILE_MAX * Q_STRIDE + i * SPLIT)
    }

    /// Partial result of query vector `i`.
    pub fn o(self, i: usize) -> *mut f32 {
        let before = TILE_MAX * (Q_STRIDE + SPLIT);
        self.work.cast::<f32>().wrapping_add(before + i * O_STRIDE)
    }

    /// Scores of query vectors `q0..q1` at the positions of pages `p0..p1`.
    ///
    /// # Safety
    /// The instruction set of `V` is available; the work is valid, `q1 <= TILE_MAX`, and the pages
    /// are readable.
    #[inline(always)]
    pub unsafe fn scores<V: Lanes, E: KvElem>(
        self,
        k: &Pages<E>,
        v: &Pages<E>,
        (p0, p1): (usize, usize),
        (q0, q1): (usize, usize),
    ) {
        let mut p = p0;
        while p < p1 {
            // Few query vectors leave registers for two pages at once.
            let two = p + 1 < p1 && q1 - q0 <= V::TILE / 2;
            // SAFETY: the caller's contract; the arms cover what is left of the tile.
            unsafe {
                let mut i = q0;
                while i < q1 {
                    let n = q1 - i;
                    i += match n {
                        12.. if V::TILE >= 12 => self.score::<V, E, 12, 1>(i, p, k, v),
                        8.. if V::TILE >= 12 => self.score::<V, E, 8, 1>(i, p, k, v),
                        6.. if V::TILE >= 12 && two => self.score::<V, E, 6, 2>(i, p, k, v),
                        6.. if V::TILE >= 12 => self.score::<V, E, 6, 1>(i, p, k, v),
                        4.. if V::TILE >= 12 && two => self.score::<V, E, 4, 2>(i, p, k, v),
                        4.. if V::TILE >= 4 => self.score::<V, E, 4, 1>(i, p, k, v),
                        3.. if two => self.score::<V, E, 3, 2>(i, p, k, v),
                        3.. => self.score::<V, E, 3, 1>(i, p, k, v),
                        2 if two => self.score::<V, E, 2, 2>(i, p, k, v),
                        2 => self.score::<V, E, 2, 1>(i, p, k, v),
                        _ if two => self.score::<V, E, 1, 2>(i, p, k, v),
                        _ => self.score::<V, E, 1, 1>(i, p, k, v),
                    };
                }
            }
            p += if two { 2 } else { 1 };
        }
    }

    /// Scores of NQ query vectors from `i` at the positions of NP pages from `p`; gives NQ.
    #[inline(always)]
    unsafe fn score<V: Lanes, E: KvElem, const NQ: usize, const NP: usize>(
        self,
        i: usize,
        p: usize,
        k: &Pages<E>,
        v: &Pages<E>,
    ) -> usize {
        // SAFETY: the caller's contract.
        unsafe {
            let q = self.q(i).cast_const();
            // With few query vectors the loads are what takes the time, so the pages needed next
            // are asked for early, as far as the load ports have room: K pages here and V pages in
            // `weigh`, where the last K pages of the split ask for its first V pages.
            let ahead: [*const E; NP] = core::array::from_fn(|m| match k.get(p + NP + m) {
                Some(&page) if !page.is_null() => page,
                _ => *v.iter().find(|page| !page.is_null()).unwrap_or(&k[p]),
            });
            let mut acc = [[[V::splat(0.0); 2]; NP]; NQ];
            for d in 0..self.dim {
                let mut keys = [[V::splat(0.0); 2]; NP];
                for (n, keys) in keys.iter_mut().enumerate() {
                    let row = k[p + n].add(d * PAGE);
                    *keys = [E::load(row), E::load(row.add(LANES))];
                }
                if NQ <= 6 {
                    for page in ahead {
                        prefetch::<V, E>(page, d * PAGE, PAGE);
                    }
                }
                for (n, acc) in acc.iter_mut().enumerate() {
                    let q = V::splat(*q.add(n * Q_STRIDE + d));
                    for (acc, keys) in acc.iter_mut().zip(keys) {
                        *acc = [q.fma(keys[0], acc[0]), q.fma(keys[1], acc[1])];
                    }
                }
            }
            for (n, acc) in acc.into_iter().enumerate() {
                for (m, [low, high]) in acc.into_iter().enumerate() {
                    let s = self.s(i + n).add((p + m) * PAGE);
                    low.store(s);
                    high.store(s.add(LANES));
                }
            }
        }
        NQ
    }

    /// Turns the seen scores of query vector `i` into exponentials and sets m and l.
    ///
    /// # Safety
    /// As [`Tile::scores`], which has filled the pages of `seen`; `seen` is not empty.
    #[inline(always)]
    pub unsafe fn softmax<V: Lanes>(self, i: usize, seen: Seen) {
        let s = self.s(i);
        let first = seen.from / LANES * LANES;
        let end = seen.to.next_multiple_of(LANES);
        // SAFETY: the range stays inside the split.
        unsafe {
            for unseen in (first..seen.from).chain(seen.to..end) {
                *s.add(unseen) = f32::NEG_INFINITY;
            }
            let mut m = V::splat(f32::NEG_INFINITY);
            for j in (first..end).step_by(LANES) {
                m = V::load(s.add(j)).max(m);
            }
            let m = m.greatest();
            let mut l = V::splat(0.0);
            for j in (first..end).step_by(LANES) {
                let p = exp_lanes(V::load(s.add(j)).sub(V::splat(m)));
                p.store(s.add(j));
                l = l.add(p);
            }
            let o = self.o(i);
            *o.add(self.dim) = m;
            *o.add(self.dim + 1) = l.sum();
        }
    }

    /// Weighted sums of V for the query vectors `q0..q1`, each over what it sees.
    ///
    /// # Safety
    /// As [`Tile::softmax`], which has run for all that see anything.
    #[inline(always)]
    pub unsafe fn values<V: Lanes, E: KvElem>(
        self,
        v: &Pages<E>,
        (q0, q1): (usize, usize),
        seen: &[Seen; TILE_MAX],
    ) {
        let seen_by = &seen[q0..q1];
        let from = seen_by.iter().map(|s| s.from).max().unwrap_or(0);
        let to = seen_by.iter().map(|s| s.to).min().unwrap_or(0);
        // SAFETY: the caller's contract; ranges are parts of what each vector sees.
        unsafe {
            for i in q0..q1 {
                core::ptr::write_bytes(self.o(i), 0, self.dim);
            }
            if from >= to {
                for (i, s) in (q0..).zip(seen_by) {
                    self.accumulate::<V, E>(v, (i, i + 1), (s.from, s.to));
                }
                return;
            }
            // What all see is taken together; each sees its own positions in order.
            for (i, s) in (q0..).zip(seen_by) {
                self.accumulate::<V, E>(v, (i, i + 1), (s.from, from));
            }
            self.accumulate::<V, E>(v, (q0, q1), (from, to));
            for (i, s) in (q0..).zip(seen_by) {
                self.accumulate::<V, E>(v, (i, i + 1), (to, s.to));
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulate<V: Lanes, E: KvElem>(
        self,
        v: &Pages<E>,
        (q0, q1): (usize, usize),
        (from, to): (usize, usize),
    ) {
        if from >= to {
            return;
        }
        let mut d = 0;
        while d < self.dim {
            let wide = V::TILE >= 12 && self.dim - d >= 4 * LANES;
            let pair = !wide && self.dim - d >= 2 * LANES;
            let mut i = q0;
            while i < q1 {
                let n = q1 - i;
                let at = (i, d, from, to);
                // SAFETY: the caller's contract; the arms cover what is left of tile and head.
                i += unsafe {
                    match n {
                        6.. if wide => self.weigh::<V, E, 6, 4>(v, at),
                        4.. if wide => self.weigh::<V, E, 4, 4>(v, at),
                        3.. if wide => self.weigh::<V, E, 3, 4>(v, at),
                        2 if wide => self.weigh::<V, E, 2, 4>(v, at),
                        _ if wide => self.weigh::<V, E, 1, 4>(v, at),
                        3.. if pair => self.weigh::<V, E, 3, 2>(v, at),
                        _ if pair => self.weigh::<V, E, 1, 2>(v, at),
                        3.. => self.weigh::<V, E, 3, 1>(v, at),
                        _ => self.weigh::<V, E, 1, 1>(v, at),
                    }
                };
            }
            d += LANES * if wide { 4 } else { 1 + usize::from(pair) };
        }
    }

    /// Adds `p * v` over positions `from..to` to NQ results from `i`, 16 * ND channels from `d`;
    /// gives NQ.
    #[inline(always)]
    unsafe fn weigh<V: Lanes, E: KvElem, const NQ: usize, const ND: usize>(
        self,
        v: &Pages<E>,
        (i, d, from, to): (usize, usize, usize, usize),
    ) -> usize {
        // SAFETY: the caller's contract.
        unsafe {
            let (o, p) = (self.o(i).add(d), self.s(i).cast_const());
            let mut acc = [[V::splat(0.0); ND]; NQ];
            for (n, acc) in acc.iter_mut().enumerate() {
                for (m, acc) in acc.iter_mut().enumerate() {
                    *acc = V::load(o.add(n * O_STRIDE + m * LANES));
                }
            }
            let mut j = from;
            while j < to {
                let page_end = to.min((j / PAGE + 1) * PAGE);
                let at = j % PAGE * self.dim + d;
                let mut row = v[j / PAGE].add(at);
                let mut ahead = match v.get(j / PAGE + 1) {
                    Some(&page) if !page.is_null() => page.wrapping_add(at),
                    _ => row,
                };
                for j in j..page_end {
                    let mut values = [V::splat(0.0); ND];
                    if NQ <= 4 {
                        prefetch::<V, E>(ahead, 0, ND * LANES);
                        ahead = ahead.wrapping_add(self.dim);
                    }
                    for (m, value) in values.iter_mut().enumerate() {
                        *value = E::load(row.add(m * LANES));
                    }
                    for (n, acc) in acc.iter_mut().enumerate() {
                        let p = V::splat(*p.add(n * SPLIT + j));
                        for (acc, value) in acc.iter_mut().zip(values) {
                            *acc = p.fma(value, *acc);
                        }
                    }
                    row = row.wrapping_add(self.dim);
                }
                j = page_end;
            }
            for (n, acc) in acc.into_iter().enumerate() {
                for (m, acc) in acc.into_iter().enumerate() {
                    acc.store(o.add(n * O_STRIDE + m * LANES));
                }
            }
        }
        NQ
    }
}

/// Asks for `elements` elements from `at` on.
#[inline(always)]
fn prefetch<V: Lanes, E: KvElem>(page: *const E, at: usize, elements: usize) {
    for line in (0..elements * size_of::<E>()).step_by(64) {
        V::prefetch(page.wrapping_add(at).wrapping_byte_add(line));
    }
}
