//! Matrices of experts and of groups of heads, and what follows them.
//!
//! A product is defined as [`super::super::gemm`] defines it for float weights: which rows share a
//! task changes no bits. Gate and up: g' = least of g and limit, u' = u clamped to the limit, then
//! (g' / (1 + exp(-g'))) * u'. The sum is fma(weight, result, sum) over the chosen experts in
//! order, from the shared expert's result.

use core::mem::MaybeUninit;

use super::super::gemm::{FloatTiles, Gemm, PRODUCTS_STRIDE, TILE_COLUMNS, float_rows};
use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, expect_row, per_isa};
use super::super::math::silu_lanes;
use super::super::tile::PackedMatrix;

/// Rows of one kernel call, at most.
const ROWS: usize = 16;
/// Floats of gathered rows, at most.
const GATHER: usize = 16 << 10;
/// Floats of a matrix's unpacked weights, at most, where an expert has rows enough ([`ROWS`]) that
/// this is cheaper than unpacking them for each few rows.
const UNPACKED: usize = 16 << 10;
/// Bytes of weights of a task, about: fewer are over before memory has got under way.
const TASK_BYTES: usize = 16 << 10;

/// One matrix for each group of columns.
#[derive(Clone, Copy, Debug)]
pub struct GroupedGemm {
    /// The first group's product.
    pub first: Gemm,
    /// Groups.
    pub groups: u32,
}

/// The chosen experts' first half.
#[derive(Clone, Copy, Debug)]
pub struct ExpertUp {
    /// What the product is over.
    pub product: Product,
    /// The other matrix, as `product.weights`.
    pub up: *const u8,
    /// Bound of both.
    pub limit: f32,
}

/// The chosen experts' second half.
#[derive(Clone, Copy, Debug)]
pub struct ExpertDown(pub Product);

/// Rows of a batch, each times the matrices of its chosen experts.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Instruction set.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// Experts of a token.
    pub per_token: usize,
    /// Experts.
    pub experts: usize,
    /// All experts' matrices, one under the other; `n` of each is a multiple of 16.
    pub desc: PackedMatrix,
    /// Its bytes.
    pub weights: *const u8,
    /// `[rows][per_token]`
    pub chosen: *const u32,
    /// Input rows.
    pub x: *const f32,
    /// Floats from a token's input to the next token's.
    pub x_row: usize,
    /// Floats from one choice's input to the next choice's: 0 where they share one.
    pub x_choice: usize,
    /// `[rows][per_token][n]`
    pub out: *mut f32,
}

/// The limited gate.
#[derive(Clone, Copy, Debug)]
pub struct LimitedSiluMul {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Channels of the output, a multiple of 16.
    pub dim: usize,
    /// Bound of both.
    pub limit: f32,
    /// `[rows][2 * dim]`
    pub x: *const f32,
    /// `[rows][dim]`
    pub out: *mut f32,
}

/// The sum over experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSum {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Experts of a token.
    pub per_token: usize,
    /// Channels, a multiple of 16.
    pub dim: usize,
    /// `[rows][dim]`
    pub shared: *const f32,
    /// `[rows][per_token][dim]`
    pub routed: *const f32,
    /// `[rows][per_token]`
    pub weights: *const f32,
    /// `[rows][dim]`
    pub out: *mut f32,
}

// SAFETY: the pointers are followed only by the run functions, whose callers vouch for them.
unsafe impl Send for ExpertUp {}
// SAFETY: as above.
unsafe impl Sync for ExpertUp {}
// SAFETY: as above.
unsafe impl Send for ExpertDown {}
// SAFETY: as above.
unsafe impl Sync for ExpertDown {}
// SAFETY: as above.
unsafe impl Send for LimitedSiluMul {}
// SAFETY: as above.
unsafe impl Sync for LimitedSiluMul {}
// SAFETY: as above.
unsafe impl Send for ExpertSum {}
// SAFETY: as above.
unsafe impl Sync for ExpertSum {}

impl GroupedGemm {
    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.first.tasks() * self.groups
    }

    /// Runs one task.
    ///
    /// # Safety
    /// As [`Gemm::run`], for all groups.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        let (group, task) = ((task / self.first.tasks()) as usize, task % self.first.tasks());
        // SAFETY: the caller's contract; a group's tiles are whole.
        unsafe { self.first.group(group).run(task..task + 1, live_rows) }
    }
}

impl Product {
    /// Outputs of one expert.
    fn n(&self) -> usize {
        self.desc.n() / self.experts
    }

    /// Pairs of tiles of one expert.
    fn pairs(&self) -> usize {
        self.n().div_ceil(TILE_COLUMNS)
    }

    /// Of those, how many a task has.
    fn pairs_of_task(&self) -> usize {
        (TASK_BYTES / (TILE_COLUMNS / LANES * self.desc.tile_bytes())).clamp(1, self.pairs())
    }

    fn tasks_of_expert(&self) -> usize {
        self.pairs().div_ceil(self.pairs_of_task())
    }

    fn tasks(&self) -> u32 {
        (self.experts * self.tasks_of_expert()) as u32
    }

    /// Calls `done` with the products of every few live choices of the task's expert, each of the
    /// task's pairs of tiles, and all of `weights`.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what the fields say.
    unsafe fn each<const M: usize>(
        &self,
        task: u32,
        live_rows: u32,
        weights: [*const u8; M],
        mut done: impl FnMut(&Products<'_>),
    ) {
        let (expert, part) =
            (task as usize / self.tasks_of_expert(), task as usize % self.tasks_of_expert());
        let k = self.desc.k();
        let first_pair = part * self.pairs_of_task();
        let pairs = first_pair..(first_pair + self.pairs_of_task()).min(self.pairs());
        let fits = pairs.len() * TILE_COLUMNS * k <= UNPACKED;
        let mut near = MaybeUninit::<Near<M>>::uninit();
        let near = near.as_mut_ptr();
        let mut unpacked = false;
        // SAFETY: the caller's contract; `near` has room for what `fits` says.
        unsafe {
            let (wide, acc) = ((&raw mut (*near).wide).cast::<f32>(), &raw mut (*near).acc);
            let room = (&raw mut (*near).x).cast::<f32>();
            self.gathered(expert, live_rows, room, |found, x| {
                let unpack = fits && !unpacked && found.len() == ROWS;
                for (p, pair) in pairs.clone().enumerate() {
                    let of = self.products(found, pair, acc.cast());
                    for (m, weights) in weights.into_iter().enumerate() {
                        let mut tiles = self.tiles(expert, pair, weights);
                        if (unpack || unpacked) && tiles.is_narrow() {
                            let wide = wide.add(m * UNPACKED + p * TILE_COLUMNS * k);
                            if unpack {
                                tiles.unpack(self.isa, wide);
                            }
                            tiles = tiles.unpacked(wide);
                        }
                        let acc = acc.cast::<f32>().add(m * TILE_COLUMNS);
                        float_rows(self.isa, &tiles, (x, found.len()), acc);
                    }
                    done(&of);
                }
                unpacked |= unpack;
            });
        }
    }

    /// Calls `with` for every few live choices of an expert: their places, and their inputs one
    /// behind the other.
    ///
    /// # Safety
    /// As [`Product::each`]; `room` is writable for [`GATHER`] floats.
    unsafe fn gathered(
        &self,
        expert: usize,
        live_rows: u32,
        room: *mut f32,
        mut with: impl FnMut(&[usize], *const f32),
    ) {
        let k = self.desc.k();
        let together = (GATHER / k).clamp(1, ROWS);
        let mut found = [0usize; ROWS];
        let mut count = 0;
        let places = live_rows.min(self.rows) as usize * self.per_token;
        for place in 0..=places {
            // SAFETY: places are live rows' choices.
            unsafe {
                if place < places && *self.chosen.add(place) as usize == expert {
                    found[count] = place;
                    count += 1;
                }
                if count == 0 || (count < together && place < places) {
                    continue;
                }
                let x = if count == 1 {
                    self.input(found[0])
                } else {
                    for (i, place) in found[..count].iter().enumerate() {
                        core::ptr::copy_nonoverlapping(self.input(*place), room.add(i * k), k);
                    }
                    room.cast_const()
                };
                with(&found[..count], x);
            }
            count = 0;
        }
    }

    /// The input of a choice.
    fn input(&self, place: usize) -> *const f32 {
        let (row, choice) = (place / self.per_token, place % self.per_token);
        self.x.wrapping_add(row * self.x_row + choice * self.x_choice)
    }

    /// A pair of an expert's tiles.
    fn tiles(&self, expert: usize, pair: usize, weights: *const u8) -> FloatTiles {
        let column = pair * TILE_COLUMNS;
        let tiles = (self.n() - column).min(TILE_COLUMNS) / LANES;
        FloatTiles::kept(&self.desc, weights, (expert * self.n() + column) / LANES, tiles)
    }

    /// Where some choices' products of a pair of tiles go, whose lines are asked for: they lie
    /// apart.
    fn products<'a>(&self, found: &'a [usize], pair: usize, acc: *const f32) -> Products<'a> {
        let (n, column) = (self.n(), pair * TILE_COLUMNS);
        let columns = (n - column).min(TILE_COLUMNS);
        let out = self.out.wrapping_add(column);
        for place in found {
            expect_row(out.wrapping_add(place * n).cast(), columns * size_of::<f32>());
        }
        Products { acc, found, out, out_row: n, columns }
    }
}

/// Products of some choices with a pair of tiles of each matrix.
struct Products<'a> {
    /// [`PRODUCTS_STRIDE`] floats apart, a matrix's beside another's.
    acc: *const f32,
    found: &'a [usize],
    /// Where a place's go: `out_row` floats apart.
    out: *mut f32,
    out_row: usize,
    columns: usize,
}

/// What a task has near.
#[repr(C, align(64))]
struct Near<const M: usize> {
    wide: [[f32; UNPACKED]; M],
    acc: [f32; ROWS * PRODUCTS_STRIDE],
    x: [f32; GATHER],
}

impl ExpertUp {
    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.product.tasks()
    }

    /// Runs one task.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; choices name experts; nothing
    /// else touches the task's columns.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        let p = &self.product;
        // SAFETY: the caller's contract.
        unsafe {
            let weights = [p.weights, self.up];
            p.each(task, live_rows, weights, |of| gated_products(p.isa, of, self.limit));
        }
    }
}

impl ExpertDown {
    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.0.tasks()
    }

    /// Runs one task.
    ///
    /// # Safety
    /// As [`ExpertUp::run`].
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            let weights = [self.0.weights];
            self.0.each(task, live_rows, weights, |of| copy_products(self.0.isa, of));
        }
    }
}

impl LimitedSiluMul {
    /// Gates one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let x = self.x.add(row * 2 * self.dim);
            let out = self.out.add(row * self.dim);
            gated(self.isa, x, x.add(self.dim), out, self.dim, self.limit);
        }
    }
}

impl ExpertSum {
    /// Adds up one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { expert_sum(self.isa, self, row) }
    }
}

per_isa! {
    unsafe fn gated(gate: *const f32, up: *const f32, out: *mut f32, n: usize, limit: f32)
        = gated_body;
}
per_isa! {
    unsafe fn gated_products(of: &Products<'_>, limit: f32) = gated_products_body;
}
per_isa! {
    unsafe fn copy_products(of: &Products<'_>) = copy_products_body;
}
per_isa! {
    unsafe fn expert_sum(a: &ExpertSum, row: usize) = expert_sum_body;
}

#[inline(always)]
unsafe fn gated_body<V: Lanes>(
    gate: *const f32,
    up: *const f32,
    out: *mut f32,
    n: usize,
    limit: f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let (most, least) = (V::splat(limit), V::splat(-limit));
        for i in (0..n).step_by(LANES) {
            let (g, u) = (V::load(gate.add(i)), V::load(up.add(i)));
            let g = most.select_lt(g, most, g);
            let u = most.select_lt(u, most, u);
            let u = u.select_lt(least, least, u);
            silu_lanes(g).mul(u).quiet().store(out.add(i));
        }
    }
}

#[inline(always)]
unsafe fn gated_products_body<V: Lanes>(of: &Products<'_>, limit: f32) {
    for (i, place) in of.found.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let (gate, out) = (of.acc.add(i * PRODUCTS_STRIDE), of.out.add(place * of.out_row));
            gated_body::<V>(gate, gate.add(TILE_COLUMNS), out, of.columns, limit);
        }
    }
}

#[inline(always)]
unsafe fn copy_products_body<V: Lanes>(of: &Products<'_>) {
    for (i, place) in of.found.iter().enumerate() {
        // SAFETY: the caller's contract; columns are whole vectors.
        unsafe {
            let (from, to) = (of.acc.add(i * PRODUCTS_STRIDE), of.out.add(place * of.out_row));
            for c in (0..of.columns).step_by(LANES) {
                V::load(from.add(c)).store(to.add(c));
            }
        }
    }
}

#[inline(always)]
unsafe fn expert_sum_body<V: Lanes>(a: &ExpertSum, row: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let routed = a.routed.add(row * a.per_token * a.dim);
        for i in (0..a.dim).step_by(LANES) {
            let mut sum = V::load(a.shared.add(row * a.dim + i));
            for e in 0..a.per_token {
                let w = V::splat(*a.weights.add(row * a.per_token + e));
                sum = w.fma(V::load(routed.add(e * a.dim + i)), sum);
            }
            sum.quiet().store(a.out.add(row * a.dim + i));
        }
    }
}

#[cfg(test)]
mod tests;
