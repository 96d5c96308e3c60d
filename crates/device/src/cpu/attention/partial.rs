//! Partial results: which rows share a tile, and which splits they see.

use super::super::kv::{KvElem, PAGE};
use super::super::lanes::{LANES, Lanes, per_isa};
use super::combine::fold;
use super::tile::{Pages, SPLIT_PAGES, Seen, TILE_MAX, Tile, Work};
use super::{Attention, SPLIT, TaskRange};
use core::mem::MaybeUninit;
use half::f16;
use lockstep_plan::KvDtype;

/// # Safety
/// As [`Attention::run_partial`].
pub unsafe fn run(a: &Attention, range: TaskRange) {
    // SAFETY: the caller's contract.
    unsafe {
        match a.shape.kv_dtype {
            KvDtype::F32 => run_f32(a.isa, a, range),
            KvDtype::F16 => run_f16(a.isa, a, range),
            KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("refused with the model"),
        }
    }
}

per_isa! {
    unsafe fn run_f32(a: &Attention, range: TaskRange) = run_f32_body;
}
per_isa! {
    unsafe fn run_f16(a: &Attention, range: TaskRange) = run_f16_body;
}

#[inline(always)]
unsafe fn run_f32_body<V: Lanes>(a: &Attention, range: TaskRange) {
    // SAFETY: the caller's contract.
    unsafe { run_body::<V, f32>(a, range) }
}

#[inline(always)]
unsafe fn run_f16_body<V: Lanes>(a: &Attention, range: TaskRange) {
    // SAFETY: the caller's contract.
    unsafe { run_body::<V, f16>(a, range) }
}

/// Query vectors of `rows` rows from `row`, `heads` heads each from `head`, of one sequence.
#[derive(Clone, Copy)]
struct Group {
    row: usize,
    rows: usize,
    head: usize,
    heads: usize,
    seq: usize,
}

impl Group {
    fn len(self) -> usize {
        self.rows * self.heads
    }

    fn row_and_head(self, i: usize) -> (usize, usize) {
        (self.row + i / self.heads, self.head + i % self.heads)
    }
}

#[inline(always)]
unsafe fn run_body<V: Lanes, E: KvElem>(a: &Attention, range: TaskRange) {
    let mut work = MaybeUninit::<Work>::uninit();
    let tile = Tile { work: work.as_mut_ptr(), dim: a.shape.head_dim as usize };
    let per_kv = (a.shape.heads / a.shape.kv_heads) as usize;
    let heads_max = per_kv.min(V::TILE);
    let rows_max = (V::TILE / per_kv).max(1);
    let mut row = range.first;
    while row < range.end {
        // SAFETY: `row` is live, so `token_seq` has an entry for it.
        let seq_of = |row: usize| unsafe { *a.token_seq.add(row) };
        let seq = seq_of(row);
        let most = rows_max.min(range.end - row);
        let rows = (1..most).take_while(|&n| seq_of(row + n) == seq).count() + 1;
        for first in (0..per_kv).step_by(heads_max) {
            let group = Group {
                row,
                rows,
                head: range.kv_head * per_kv + first,
                heads: heads_max.min(per_kv - first),
                seq: seq as usize,
            };
            // SAFETY: the group's rows are live and its heads belong to the KV head.
            unsafe { run_group::<V, E>(a, range, group, tile) };
        }
        row += rows;
    }
}

#[inline(always)]
unsafe fn run_group<V: Lanes, E: KvElem>(a: &Attention, range: TaskRange, g: Group, tile: Tile) {
    let dim = tile.dim;
    let mut bounds = [(0usize, 0usize); TILE_MAX];
    let (mut lowest, mut highest) = (usize::MAX, 0);
    for (i, bound) in bounds.iter_mut().enumerate().take(g.len()) {
        let (row, head) = g.row_and_head(i);
        // SAFETY: the row is live; a head has `dim` channels and the tile room for it.
        unsafe {
            let position = *a.positions.add(row) as usize;
            *bound = (a.lowest(position), position);
            let q = a.q.add(row * a.q_stride + head * dim);
            let scale = V::splat(a.scale());
            for d in (0..dim).step_by(LANES) {
                V::load(q.add(d)).mul(scale).store(tile.q(i).add(d));
            }
        }
        lowest = lowest.min(bound.0);
        highest = highest.max(bound.1);
    }
    let mut folded = [false; TILE_MAX];
    let (ways, parts) = (a.layout.ways as usize, a.layout.parts);
    for split in lowest / SPLIT..=highest / SPLIT {
        if split % ways != range.way {
            continue;
        }
        let seen = bounds.map(|b| seen_in(b, split));
        // SAFETY: the caller's contract.
        unsafe { run_split::<V, E>(a, range.kv_head, g, split, &seen, tile) };
        for i in (0..g.len()).filter(|&i| !seen[i].is_empty()) {
            let (row, head) = g.row_and_head(i);
            let part = a.part(row, head, if parts == 1 { 0 } else { split });
            // SAFETY: the part belongs to this task's row and head; a part has `dim + 2` floats.
            unsafe {
                if parts == 1 && folded[i] {
                    fold::<V>(part, tile.o(i), dim);
                } else {
                    core::ptr::copy_nonoverlapping(tile.o(i), part, dim + 2);
                }
            }
            folded[i] = true;
        }
    }
}

/// What a row that sees `lo..=hi` sees of a split.
#[inline(always)]
fn seen_in((lo, hi): (usize, usize), split: usize) -> Seen {
    let start = split * SPLIT;
    if hi < start || lo >= start + SPLIT {
        return Seen::NONE;
    }
    Seen { from: lo.max(start) - start, to: hi.min(start + SPLIT - 1) + 1 - start }
}

#[inline(always)]
unsafe fn run_split<V: Lanes, E: KvElem>(
    a: &Attention,
    kv_head: usize,
    g: Group,
    split: usize,
    seen: &[Seen; TILE_MAX],
    tile: Tile,
) {
    let seen_by = &seen[..g.len()];
    let active = |i: &usize| !seen_by[*i].is_empty();
    let Some(q0) = (0..g.len()).find(active) else { return };
    let q1 = (q0..g.len()).rfind(active).map_or(q0, |i| i + 1);
    let inside = seen_by[q0..q1].iter().filter(|s| !s.is_empty());
    let from = inside.clone().map(|s| s.from).min().unwrap_or(0);
    let to = inside.map(|s| s.to).max().unwrap_or(0);
    let (p0, p1) = (from / PAGE, to.div_ceil(PAGE));
    let (mut k, mut v): (Pages<E>, Pages<E>) =
        ([core::ptr::null(); SPLIT_PAGES], [core::ptr::null(); SPLIT_PAGES]);
    // SAFETY: the caller vouches for the table up to the rows' positions and for the pages that it
    // names; a page has `kv_heads` parts of `PAGE * dim` elements.
    unsafe {
        let table = a.block_table.add(g.seq * a.table_stride + split * SPLIT_PAGES);
        for p in p0..p1 {
            let page = *table.add(p) as usize;
            let part = (page * a.shape.kv_heads as usize + kv_head) * PAGE * tile.dim;
            k[p] = a.k_pages.cast::<E>().add(part);
            v[p] = a.v_pages.cast::<E>().add(part);
        }
        tile.scores::<V, E>(&k, &v, (p0, p1), (q0, q1));
        for i in (q0..q1).filter(active) {
            tile.softmax::<V>(i, seen_by[i]);
        }
        tile.values::<V, E>(&v, (q0, q1), seen);
    }
}
