//! The two passes over a block in tiles of registers where a vector is two of them.
//!
//! A vector's parts know nothing of each other until a score's sum, so that a pass takes one part of
//! all of a row's vectors, then the other: twelve chains of four heads and three rows (or three parts
//! of channels) take seven loads, where eight chains of whole vectors and one row took ten. Three
//! parts are a line and a half, so that a turn's rows are taken through all channels before the next
//! rows come: what is left of a line is near when it is needed.

use super::super::super::lanes::{LANES, Lanes, Part};
use super::ahead::Ahead;
use super::block::{Head, Weights, rows_in_turn};

/// Heads of a group.
const HEADS: usize = 4;
/// Rows, or parts of channels, of a tile.
const TILE: usize = 3;

/// Parts of a vector.
const fn parts_of<V: Lanes>() -> usize {
    LANES / V::Part::WIDTH
}

/// Calls of both passes over `n` rows, for each of `G` groups.
pub const fn calls<V: Lanes, const G: usize>(n: usize, dim: usize) -> usize {
    let parts = dim / V::Part::WIDTH;
    n.div_ceil(TILE) * parts_of::<V>() + n.div_ceil(rows_in_turn(G)) * (parts / TILE + parts % TILE)
}

/// Scores of all rows with all groups.
///
/// # Safety
/// As `add_rows_of_block`'s; groups are of [`HEADS`] heads.
#[inline(always)]
pub unsafe fn all_scores<V: Lanes, const H: usize>(
    groups: &[Head<H>],
    rows: &[*const f32],
    p: &mut [Weights<H>],
    ahead: &mut Ahead<'_>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for first in (0..rows.len()).step_by(TILE) {
            for (g, (head, p)) in groups.iter().zip(p.iter_mut()).enumerate() {
                let next = &rows[(first + TILE + g * parts_of::<V>()).min(rows.len() - 1)..];
                match rows.len() - first {
                    1 => scores::<V, H, 1>(head, &rows[first..], next, &mut p.0[first..], ahead),
                    2 => scores::<V, H, 2>(head, &rows[first..], next, &mut p.0[first..], ahead),
                    _ => scores::<V, H, TILE>(head, &rows[first..], next, &mut p.0[first..], ahead),
                }
            }
        }
    }
}

/// Scores of the first `R` rows; meanwhile those of `next` come near, one a part.
#[inline(always)]
unsafe fn scores<V: Lanes, const H: usize, const R: usize>(
    head: &Head<H>,
    rows: &[*const f32],
    next: &[*const f32],
    p: &mut [[f32; H]],
    ahead: &mut Ahead<'_>,
) {
    debug_assert_eq!(H, HEADS);
    let width = V::Part::WIDTH;
    // SAFETY: the caller's contract.
    unsafe {
        let of: [*const f32; R] = core::array::from_fn(|r| rows[r]);
        let mut sums = [[[0f32; LANES]; H]; R];
        for part in 0..parts_of::<V>() {
            let next = next[part.min(next.len() - 1)];
            let asked = ahead.call_evenly::<V>(head.dim / LANES);
            let mut acc = [[V::Part::splat(0.0); H]; R];
            for step in 0..head.dim / LANES {
                asked.step::<V>(step);
                V::prefetch(next.wrapping_add(step * LANES));
                let at = step * LANES + part * width;
                let k: [V::Part; R] = core::array::from_fn(|r| V::Part::load(of[r].add(at)));
                let q = head.q.add(step * LANES * H + part * width);
                for h in 0..H {
                    let q = V::Part::load(q.add(h * LANES));
                    for (acc, k) in acc.iter_mut().zip(k) {
                        acc[h] = q.fma(k, acc[h]);
                    }
                }
            }
            for (sums, acc) in sums.iter_mut().zip(acc) {
                for (sums, acc) in sums.iter_mut().zip(acc) {
                    acc.store(sums.as_mut_ptr().add(part * width));
                }
            }
        }
        for (r, p) in p[..R].iter_mut().enumerate() {
            let lanes = core::array::from_fn(|h| V::load(sums[r][h].as_ptr()));
            for (p, sum) in p.iter_mut().zip(V::sum_four(lanes)) {
                *p = sum * head.scale;
            }
        }
    }
}

/// Adds all rows, weighted, to all groups' results, of which `keep` is kept.
///
/// # Safety
/// As `add_rows_of_block`'s; groups are of [`HEADS`] heads.
#[inline(always)]
pub unsafe fn add_all<V: Lanes, const H: usize, const G: usize>(
    groups: &[Head<H>],
    rows: &[*const f32],
    p: &[Weights<H>],
    keep: &[[f32; LANES]],
    ahead: &mut Ahead<'_>,
) {
    let parts = groups[0].dim / V::Part::WIDTH;
    let whole = parts / TILE * TILE;
    // SAFETY: the caller's contract.
    unsafe {
        for start in (0..rows.len()).step_by(rows_in_turn(G)) {
            let of = start..rows.len().min(start + rows_in_turn(G));
            let mut part = 0;
            while part < parts {
                for ((head, p), keep) in groups.iter().zip(p).zip(keep) {
                    let (rows, p) = (&rows[of.clone()], &p.0[of.clone()]);
                    let keep = (start == 0).then_some(keep);
                    if part < whole {
                        add_channels::<V, H, TILE>(head.o, part, rows, p, keep, ahead);
                    } else {
                        add_channels::<V, H, 1>(head.o, part, rows, p, keep, ahead);
                    }
                }
                part += if part < whole { TILE } else { 1 };
            }
        }
    }
}

/// Adds weighted rows to `N` parts of channels from `part` on, of whose results, at `o`, `keep` is
/// kept where these are a block's first rows.
#[inline(always)]
unsafe fn add_channels<V: Lanes, const H: usize, const N: usize>(
    o: *mut f32,
    part: usize,
    rows: &[*const f32],
    p: &[[f32; H]],
    keep: Option<&[f32; LANES]>,
    ahead: &mut Ahead<'_>,
) {
    let width = V::Part::WIDTH;
    // SAFETY: the caller's contract.
    unsafe {
        let places: [*mut f32; N] = core::array::from_fn(|c| {
            let (vector, within) = ((part + c) / parts_of::<V>(), (part + c) % parts_of::<V>());
            o.add(vector * LANES * H + within * width)
        });
        let mut acc = [[V::Part::splat(0.0); N]; H];
        for (h, acc) in acc.iter_mut().enumerate() {
            for (acc, place) in acc.iter_mut().zip(places) {
                *acc = V::Part::load(place.add(h * LANES));
                if let Some(keep) = keep {
                    *acc = acc.mul(V::Part::splat(keep[h]));
                }
            }
        }
        let asked = ahead.call_evenly::<V>(rows.len());
        for (step, (row, p)) in rows.iter().zip(p).enumerate() {
            asked.step::<V>(step);
            let from = row.add(part * width);
            // The line after these: what the next tile begins with, or the one after it.
            V::prefetch(from.wrapping_add((N + 1) * width));
            let v: [V::Part; N] = core::array::from_fn(|c| V::Part::load(from.add(c * width)));
            for (acc, p) in acc.iter_mut().zip(p) {
                let p = V::Part::splat(*p);
                for (acc, v) in acc.iter_mut().zip(v) {
                    *acc = p.fma(v, *acc);
                }
            }
        }
        for (h, acc) in acc.into_iter().enumerate() {
            for (acc, place) in acc.into_iter().zip(places) {
                acc.store(place.add(h * LANES));
            }
        }
    }
}
