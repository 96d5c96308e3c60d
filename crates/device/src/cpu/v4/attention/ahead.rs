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
    /// Asked for where all have been: lines that are near.
    near: *const f32,
}

impl<'a> Ahead<'a> {
    /// During a block that has so many calls; a row's lines from `near` on are in the nearest cache.
    #[inline(always)]
    pub fn new(queue: &'a Queue, dim: usize, calls: usize, near: *const f32) -> Ahead<'a> {
        let vectors = dim / LANES;
        let rows = &queue.rows[..queue.count];
        Ahead { rows, rows_a_call: rows.len().div_ceil(calls.max(1)), vectors, near }
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
            Some((first, rest)) => Asked { first: *first, rest },
            None => Asked { first: self.near, rest: &[] },
        }
    }
}

/// The rows of a call.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    first: *const f32,
    rest: &'a [*const f32],
}

impl Asked<'_> {
    /// Asks for a line of each.
    #[inline(always)]
    pub fn step<V: Lanes>(self, line: usize) {
        V::fetch(self.first.wrapping_add(line * LANES));
        for row in self.rest {
            V::fetch(row.wrapping_add(line * LANES));
        }
    }
}
