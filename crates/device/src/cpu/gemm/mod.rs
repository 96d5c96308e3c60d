//! Matrix multiply: `out[row][n] = sum over k of weights[n][k] * x[row][k]`, with what follows it
//! (bias, residual, SwiGLU) done on the accumulators.
//!
//! **Contract 1.** The bits of an output depend on its weight row, its activation row and K.
//! - *Quantised weights.* The activation row is quantised per block of 32 ([`super::quant`]). Per
//!   block, in order of k: `acc = fma(f32(dot), w_scale * x_scale, acc)`, then for formats with a
//!   min `acc = fma(w_min, x_scale * f32(sum), acc)`; a format with a scale for each 16 does the
//!   first step for the low and then the high half. `dot` and `sum` are exact integers, products
//!   in parentheses-free position (`w_scale * x_scale`, `x_scale * f32(sum)`) are rounded f32.
//! - *Float weights.* `part = fma(w[k], x[k], part)` in order of k inside chunks of 256; the parts
//!   are added in order.
//! - *Epilogue.* `y = acc + bias` where there is a bias, then store `y`, or `out + y`, or
//!   `(gate / (1 + exp(-gate))) * up`. A NaN is stored as the one quiet NaN of [`f32::NAN`], since
//!   which payload survives an operation is the only thing that instruction sets disagree on.
//!
//! A lane of a tile is an output and rows of the batch are separate accumulators, so neither the
//! batch, nor the split into tasks, nor the vector width can reorder a sum.
//!
//! Nothing here allocates; a [`Gemm`] is checked and resolved once, at capture.

use core::mem::MaybeUninit;
use core::ops::Range;

use super::isa::{Isa, KernelKind, counters};
use super::lanes::{Lanes, expect, per_isa};
use super::quant::QBlock;
use super::tile::PackedMatrix;
use super::tile_format::{LANES, TileFormat};
pub use capture::GemmError;
use layout::{FloatElem, FloatFormat, with_format};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod capture;
mod epilogue;
mod layout;
mod scalar;
#[cfg(test)]
mod tests;

/// Activation rows of one kernel call: the accumulators of a tile that stay in registers.
const ROWS_MAX: usize = 16;

/// Tiles of a task: 32 outputs, a quantised block of the next matrix's input.
const TASK_TILES: usize = 2;

/// Rows of a task, so that threads can also share a prefill of a narrow matrix.
const TASK_ROWS: usize = 128;

/// Values of K of two tiles that are unpacked to f32 at once, at most, where there are rows enough
/// ([`ROWS_MAX`]) that this is cheaper than unpacking them for each few rows.
const UNPACKED_MAX: usize = 1024;

/// Rows of one kernel call with such tiles, during which a part of the tiles that follow is asked
/// for.
const UNPACKED_ROWS: usize = 8;

/// Floats from one row of accumulators to the next: two tiles, and two more of the `up` matrix.
const ACC_STRIDE: usize = 4 * LANES;

/// Values of K whose products are added up before the sum joins the total, for float weights.
pub const K_CHUNK: usize = 256;

/// The rows that a matrix is multiplied with. Rows are `row_stride` apart.
#[derive(Clone, Copy, Debug)]
pub enum Activations {
    /// For quantised weights: K/32 blocks a row; the stride in bytes ([`quant::row_bytes`]).
    Quantised { blocks: *const QBlock, row_stride_bytes: usize },
    /// For float weights: K values a row; the stride in values.
    F32 { values: *const f32, row_stride: usize },
}

/// Where SwiGLU puts its result.
#[derive(Clone, Copy, Debug)]
pub enum SwiGluOut {
    /// N values a row; the stride in values.
    F32 { values: *mut f32, row_stride: usize },
    /// N/32 blocks a row, quantised for the next matrix; the stride in bytes.
    Quantised { blocks: *mut QBlock, row_stride_bytes: usize },
}

/// What becomes of an output `y`.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    /// `out = y`.
    Store { out: *mut f32, row_stride: usize },
    /// `out = out + y`: the residual stream.
    Add { out: *mut f32, row_stride: usize },
    /// `out = silu(y) * (up times x)`; `up` is a matrix of the same layout.
    SwiGlu { up: *const u8, out: SwiGluOut },
}

/// A multiply as it is captured: every address resolved.
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    /// The layout of `weights`.
    pub desc: PackedMatrix,
    /// `desc.bytes()` bytes, aligned to 64.
    pub weights: *const u8,
    /// N values that are added to each row, or null. Not with SwiGLU.
    pub bias: *const f32,
    /// The rows.
    pub x: Activations,
    /// How many.
    pub rows: u32,
    /// What follows.
    pub epilogue: Epilogue,
    /// The kernels to use.
    pub isa: Isa,
}

/// A multiply that was checked and can run.
#[derive(Clone, Copy, Debug)]
pub struct Gemm(GemmArgs);

// SAFETY: the addresses are plain numbers until `run`, whose caller vouches for what they point at
// and for the order of accesses (the plan's proof).
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// Outputs of a task of [`float_rows`]: two tiles.
pub const TILE_COLUMNS: usize = TASK_TILES * LANES;

/// Floats from one row of [`float_rows`]' products to the next: room for those of another matrix.
pub const PRODUCTS_STRIDE: usize = ACC_STRIDE;

/// One or two tiles of a float matrix, as they are kept or unpacked.
#[derive(Clone, Copy, Debug)]
pub struct FloatTiles {
    format: TileFormat,
    first: *const u8,
    tile_bytes: usize,
    tiles: usize,
    k: usize,
    fetch: bool,
}

impl FloatTiles {
    /// Tiles of a packed matrix.
    pub fn kept(desc: &PackedMatrix, weights: *const u8, first: usize, tiles: usize) -> FloatTiles {
        let tile_bytes = desc.tile_bytes();
        let first = weights.wrapping_add(first * tile_bytes);
        FloatTiles { format: desc.format(), first, tile_bytes, tiles, k: desc.k(), fetch: true }
    }

    /// True where a value has two bytes, which are unpacked wherever it is used.
    pub fn is_narrow(&self) -> bool {
        matches!(self.format, TileFormat::BF16 | TileFormat::F16)
    }

    /// Writes every value as an f32 to `to`.
    ///
    /// # Safety
    /// `isa` is available; the tiles are there and narrow, and so is room for `tiles * 16 * k`
    /// floats.
    pub unsafe fn unpack(&self, isa: Isa, to: *mut f32) {
        let values = LANES * self.k;
        for tile in 0..self.tiles {
            // SAFETY: the caller's contract.
            unsafe {
                let from = self.first.add(tile * self.tile_bytes).cast::<u16>();
                let to = to.add(tile * values);
                match self.format {
                    TileFormat::BF16 => unpack_bf16(isa, from, to, values),
                    _ => unpack_f16(isa, from, to, values),
                }
            }
        }
    }

    /// The same ones, which have been unpacked to `at`, aligned to 64.
    pub fn unpacked(self, at: *const f32) -> FloatTiles {
        let tile_bytes = LANES * self.k * size_of::<f32>();
        let (format, first) = (TileFormat::F32, at.cast());
        FloatTiles { format, first, tile_bytes, fetch: false, ..self }
    }
}

/// Products of up to 16 rows, `k` floats each and one behind the other, with tiles: row r's go to
/// `acc + r * PRODUCTS_STRIDE`.
///
/// # Safety
/// `isa` is available; `x` has the rows; `acc` is aligned to 64 bytes and writable for the rows.
pub unsafe fn float_rows(
    isa: Isa,
    tiles: &FloatTiles,
    (x, rows): (*const f32, usize),
    acc: *mut f32,
) {
    let call = TileCall {
        weights: tiles.first,
        tile_bytes: tiles.tile_bytes,
        tiles: tiles.tiles,
        k: tiles.k,
        x: x.cast(),
        x_stride_bytes: tiles.k * size_of::<f32>(),
        rows,
        acc,
        fetch: tiles.fetch,
    };
    // SAFETY: the caller's contract.
    unsafe { run_tiles(isa, tiles.format, &call) }
}

impl Gemm {
    /// The same product for another group of columns: the matrix's next rows with the next input
    /// columns, to the next output columns. Groups are whole tiles of a float matrix whose result
    /// is stored.
    pub fn group(&self, group: usize) -> Gemm {
        let mut args = self.0;
        args.weights = args.weights.wrapping_add(group * args.desc.bytes());
        if let Activations::F32 { values, .. } = &mut args.x {
            *values = values.wrapping_add(group * args.desc.k());
        }
        if let Epilogue::Store { out, .. } = &mut args.epilogue {
            *out = out.wrapping_add(group * args.desc.n());
        }
        Gemm(args)
    }

    /// What was captured.
    pub fn args(&self) -> &GemmArgs {
        &self.0
    }

    /// Tasks to share among threads. Neighbouring tasks read the same weights, so a thread should
    /// take a contiguous run of them.
    pub fn tasks(&self) -> u32 {
        (self.0.desc.tiles().div_ceil(TASK_TILES) * self.row_tasks()) as u32
    }

    fn row_tasks(&self) -> usize {
        (self.0.rows as usize).div_ceil(TASK_ROWS)
    }

    /// Runs some tasks; each writes its own part of the output and reads no other's. Rows from
    /// `live_rows` on are left alone: what they hold afterwards is what they held before.
    ///
    /// # Safety
    /// Everything the arguments point at is there, as long as shapes and strides say; nobody
    /// writes what this reads or touches what this writes while it runs; quantised blocks that
    /// are output do not overlap the activations.
    ///
    /// # Panics
    /// When `tasks` reaches past [`Gemm::tasks`].
    pub unsafe fn run(&self, tasks: Range<u32>, live_rows: u32) {
        assert!(tasks.end <= self.tasks(), "tasks {tasks:?} of {}", self.tasks());
        let (args, row_tasks) = (&self.0, self.row_tasks());
        let live_rows = live_rows.min(args.rows) as usize;
        if tasks.start == 0 && tasks.end > 0 {
            let quantised = args.desc.takes_quantised();
            let kind = if quantised { KernelKind::GemmQuantised } else { KernelKind::GemmFloat };
            counters().count(kind, args.isa);
        }
        let narrow = matches!(args.desc.format(), TileFormat::BF16 | TileFormat::F16);
        let unpack = narrow && args.desc.k() <= UNPACKED_MAX && args.isa != Isa::Portable;
        let mut acc = MaybeUninit::<Accumulators>::uninit();
        let acc = acc.as_mut_ptr().cast::<f32>();
        for task in tasks {
            let (column, part) = (task as usize / row_tasks, task as usize % row_tasks);
            let first_tile = column * TASK_TILES;
            let tiles = (args.desc.tiles() - first_tile).min(TASK_TILES);
            let rows = part * TASK_ROWS..live_rows.min((part + 1) * TASK_ROWS);
            let swiglu = matches!(args.epilogue, Epilogue::SwiGlu { .. });
            if unpack && !swiglu && rows.len() > ROWS_MAX {
                // SAFETY: as below.
                unsafe { args.unpacked_blocks((first_tile, tiles), rows, acc) };
                continue;
            }
            for first in rows.clone().step_by(ROWS_MAX) {
                let rows = (rows.end - first).min(ROWS_MAX);
                // SAFETY: the caller vouches for the addresses; tiles and rows are inside.
                unsafe { args.block(first_tile, tiles, first, rows, acc) }
            }
        }
    }
}

/// Accumulators of up to 16 rows: of two tiles, then of the same two tiles of the `up` matrix.
/// Left uninitialised: a kernel writes each of its rows before the epilogue reads them.
#[repr(C, align(64))]
struct Accumulators([f32; ROWS_MAX * ACC_STRIDE]);

/// The values of two tiles.
#[repr(C, align(64))]
struct Unpacked([f32; TASK_TILES * LANES * UNPACKED_MAX]);

per_isa! {
    /// `to[i]` is the bf16 number `from[i]`, exactly; `values` is a multiple of 16.
    unsafe fn unpack_bf16(from: *const u16, to: *mut f32, values: usize) = unpack_bf16_body;
}
per_isa! {
    /// As `unpack_bf16`, of half-precision numbers.
    unsafe fn unpack_f16(from: *const u16, to: *mut f32, values: usize) = unpack_f16_body;
}

per_isa! {
    /// Asks for lines, which need not be there.
    unsafe fn fetch_bytes(from: *const u8, bytes: usize) = fetch_bytes_body;
}

#[inline(always)]
unsafe fn fetch_bytes_body<V: Lanes>(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        V::fetch(from.wrapping_add(line));
    }
}

// Plain integers, of which each instruction set makes its own vectors.
#[allow(clippy::extra_unused_type_parameters)]
#[inline(always)]
unsafe fn unpack_bf16_body<V: Lanes>(from: *const u16, to: *mut f32, values: usize) {
    for i in 0..values {
        // SAFETY: the caller's contract.
        unsafe { *to.add(i) = f32::from_bits(u32::from(*from.add(i)) << 16) }
    }
}

#[inline(always)]
unsafe fn unpack_f16_body<V: Lanes>(from: *const u16, to: *mut f32, values: usize) {
    for i in (0..values).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe { V::load_f16(from.add(i)).store(to.add(i)) }
    }
}

impl GemmArgs {
    /// Rows in blocks, with tiles that are unpacked once for all of them.
    ///
    /// # Safety
    /// As [`GemmArgs::block`]; weights have two bytes, and K is no more than [`UNPACKED_MAX`].
    #[inline(never)]
    unsafe fn unpacked_blocks(
        &self,
        (tile, tiles): (usize, usize),
        rows: Range<usize>,
        acc: *mut f32,
    ) {
        let mut wide = MaybeUninit::<Unpacked>::uninit();
        let wide = wide.as_mut_ptr().cast::<f32>();
        // SAFETY: the offsets stay inside what the caller vouches for; the tiles fit.
        unsafe {
            let kept = FloatTiles::kept(&self.desc, self.weights, tile, tiles);
            kept.unpack(self.isa, wide);
            let these = kept.unpacked(wide);
            // The tiles that follow, a part during each few rows of these.
            let mut ahead = self.weights.wrapping_add((tile + tiles) * self.desc.tile_bytes());
            let calls = rows.len().div_ceil(UNPACKED_ROWS);
            let part = (tiles * self.desc.tile_bytes()).div_ceil(calls).next_multiple_of(64);
            for first in rows.clone().step_by(UNPACKED_ROWS) {
                let count = (rows.end - first).min(UNPACKED_ROWS);
                let (x, x_stride_bytes) = self.rows_from(first);
                self.expect((tile, tiles), (first, count));
                fetch_bytes(self.isa, ahead, part);
                ahead = ahead.wrapping_add(part);
                let call = TileCall {
                    weights: these.first,
                    tile_bytes: these.tile_bytes,
                    tiles,
                    k: self.desc.k(),
                    x,
                    x_stride_bytes,
                    rows: count,
                    acc,
                    fetch: false,
                };
                run_tiles(self.isa, these.format, &call);
                self.finish((tile, tiles), (first, count), acc);
            }
        }
    }

    /// Where row `row` of the activations is, and how far the next.
    ///
    /// # Safety
    /// There is such a row.
    unsafe fn rows_from(&self, row: usize) -> (*const u8, usize) {
        let (x, stride) = match self.x {
            Activations::Quantised { blocks, row_stride_bytes } => {
                (blocks.cast::<u8>(), row_stride_bytes)
            }
            Activations::F32 { values, row_stride } => (values.cast::<u8>(), row_stride * 4),
        };
        // SAFETY: the caller says so.
        (unsafe { x.add(row * stride) }, stride)
    }

    /// Asks for the lines that the results of some rows go to, which come while these are computed:
    /// they lie a row apart, where the machine expects none of them.
    fn expect(&self, (tile, tiles): (usize, usize), (row, rows): (usize, usize)) {
        let (Epilogue::Store { out, row_stride } | Epilogue::Add { out, row_stride }) =
            self.epilogue
        else {
            return;
        };
        for row in row..row + rows {
            for tile in tile..tile + tiles {
                expect(out.wrapping_add(row * row_stride + tile * LANES));
            }
        }
    }

    /// # Safety
    /// As [`Gemm::run`]; the accumulators of the tiles and rows have been written.
    unsafe fn finish(
        &self,
        (tile, tiles): (usize, usize),
        (row, rows): (usize, usize),
        acc: *const f32,
    ) {
        let columns = (self.desc.n() - tile * LANES).min(tiles * LANES);
        let done = epilogue::Finished { acc, row, rows, column: tile * LANES, columns };
        // SAFETY: the caller's contract.
        unsafe { epilogue::apply(self.isa, self, done) }
    }

    /// # Safety
    /// As [`Gemm::run`]; tiles and rows are inside the matrix and the batch.
    unsafe fn block(&self, tile: usize, tiles: usize, row: usize, rows: usize, acc: *mut f32) {
        let tile_bytes = self.desc.tile_bytes();
        // SAFETY: the offsets stay inside what the caller vouches for.
        unsafe {
            let (x, x_stride_bytes) = self.rows_from(row);
            self.expect((tile, tiles), (row, rows));
            let mut call = TileCall {
                weights: self.weights.add(tile * tile_bytes),
                tile_bytes,
                tiles,
                k: self.desc.k(),
                x,
                x_stride_bytes,
                rows,
                acc,
                fetch: true,
            };
            self.tiles(&call);
            if let Epilogue::SwiGlu { up, .. } = self.epilogue {
                call.weights = up.add(tile * tile_bytes);
                call.acc = acc.add(TASK_TILES * LANES);
                self.tiles(&call);
            }
            self.finish((tile, tiles), (row, rows), acc);
        }
    }

    /// # Safety
    /// As [`TileCall`] asks.
    unsafe fn tiles(&self, call: &TileCall) {
        // SAFETY: capture checked the instruction set; the rest is the caller's.
        unsafe { run_tiles(self.isa, self.desc.format(), call) }
    }
}

/// # Safety
/// `isa` is available, and as [`TileCall`] asks.
unsafe fn run_tiles(isa: Isa, format: TileFormat, call: &TileCall) {
    // SAFETY: the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => with_format!(format,
                L => avx512::quantised::<L>(call), E => avx512::float::<E>(call)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => with_format!(format,
                L => avx2::quantised::<L>(call), E => avx2::float::<E>(call)),
            _ => with_format!(format,
                L => scalar::quantised::<L>(call), E => scalar::float::<E>(call)),
        }
    }
}

/// One kernel call: up to 16 rows times one or two tiles.
///
/// `weights` has `tiles` whole tiles, `x` has `rows` rows of K values or K/32 blocks, and `acc`
/// has `rows` lines, [`ACC_STRIDE`] apart and aligned to 64 bytes, with 16 places for each tile.
struct TileCall {
    weights: *const u8,
    tile_bytes: usize,
    tiles: usize,
    k: usize,
    x: *const u8,
    x_stride_bytes: usize,
    rows: usize,
    acc: *mut f32,
    /// Ask for the tiles that follow, which the next call is likely to need. Of quantised tiles
    /// they are asked for always.
    fetch: bool,
}
