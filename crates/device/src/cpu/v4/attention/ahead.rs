//! Lines that are asked for before they are needed.

use super::super::super::lanes::{LANES, Lanes};
use super::{BLOCK, FIRST, HEADS_MANY};

/// Rows to ask for during a block: of a first one the rest, and those of the next; or, in the last,
/// results, queries and the first rows of another sequence.
const ROWS: usize = 2 * BLOCK;
const _: () = assert!(2 * HEADS_MANY + FIRST <= ROWS - BLOCK);

/// Asks for a row.
#[inline(always)]
pub fn fetch_row<V: Lanes>(row: *const f32, dim: usize) {
    for d in (0..dim).step_by(LANES) {
        V::fetch(row.wrapping_add(d));
    }
}

/// Rows to ask for.
pub struct Queue {
    rows: [*const f32; ROWS],
    count: usize,
}

impl Queue {
    #[inline(always)]
    pub fn new() -> Queue {
        Queue { rows: [core::ptr::null(); ROWS], count: 0 }
    }

    #[inline(always)]
    pub fn push(&mut self, rows: &[*const f32]) {
        self.rows[self.count..][..rows.len()].copy_from_slice(rows);
        self.count += rows.len();
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }
}

/// A queue's rows, one or a few to be asked for during each call of a block's two passes: so many as
/// are spread over all of them. More at once would stand in the way of the block's own lines.
pub struct Ahead<'a> {
    rows: &'a [*const f32],
    rows_a_call: usize,
    vectors: usize,
    /// A row's first half has been asked for.
    second: bool,
    /// Asked for where all have been: lines that are near.
    near: *const f32,
}

impl<'a> Ahead<'a> {
    /// During a block that has so many calls; a row's lines from `near` on are in the nearest cache.
    #[inline(always)]
    pub fn new(queue: &'a Queue, dim: usize, calls: usize, near: *const f32) -> Ahead<'a> {
        let vectors = dim / LANES;
        let rows = &queue.rows[..queue.count];
        Ahead { rows, rows_a_call: rows.len().div_ceil(calls.max(1)), vectors, second: false, near }
    }

    /// The rows of the next call, which has so many steps: a line of each at a step.
    #[inline(always)]
    pub fn call<V: Lanes>(&mut self, steps: usize) -> Asked<'a> {
        let (now, later) = self.rows.split_at(self.rows_a_call.min(self.rows.len()));
        self.rows = later;
        for row in now {
            for line in steps..self.vectors {
                V::fetch(row.wrapping_add(line * LANES));
            }
        }
        match now.split_first() {
            Some((first, rest)) => Asked { first: *first, rest, slower: 0 },
            None => Asked { first: self.near, rest: &[], slower: 0 },
        }
    }

    /// As [`Ahead::call`], but half a row where all of them are of a block that is not begun: whole
    /// ones would be over when half of the calls are to come.
    #[inline(always)]
    pub fn call_evenly<V: Lanes>(&mut self, steps: usize) -> Asked<'a> {
        if self.rows_a_call > 1 || self.rows.len() > BLOCK {
            return self.call::<V>(steps);
        }
        let Some((row, later)) = self.rows.split_first() else {
            return self.call::<V>(steps);
        };
        let half = self.vectors.div_ceil(2);
        let first = row.wrapping_add(if self.second { half * LANES } else { 0 });
        self.rows = if self.second { later } else { self.rows };
        self.second = !self.second;
        for line in steps..half {
            V::fetch(first.wrapping_add(line * LANES));
        }
        Asked { first, rest: &[], slower: u32::from(steps >= 2 * half) }
    }
}

/// The rows of a call.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    first: *const f32,
    rest: &'a [*const f32],
    /// 1: two steps a line.
    slower: u32,
}

impl Asked<'_> {
    /// Asks for a line of each.
    #[inline(always)]
    pub fn step<V: Lanes>(self, line: usize) {
        V::fetch(self.first.wrapping_add((line >> self.slower) * LANES));
        for row in self.rest {
            V::fetch(row.wrapping_add(line * LANES));
        }
    }
}
