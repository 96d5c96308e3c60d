//! The tile kernels on AVX-512 with VNNI.
//!
//! A block's weights are unpacked once into eight registers and used for up to 16 activation rows,
//! whose float accumulators stay in registers for the whole of K: 8 + 16 + scales fit in 32.

use core::arch::x86_64::*;

use super::layout::Layout;
use super::layout::{by_rows, unrolled};
use super::{ACC_STRIDE, FloatElem, K_CHUNK, TileCall};
use crate::cpu::quant::{BLOCK, QBlock};
use crate::cpu::tile_format::{LANES, Scales};

/// How far ahead of the codes in use the weights are fetched.
const PREFETCH_BYTES: usize = 4096;

/// Float tiles of more bytes are fetched ahead within themselves, others while the ones before
/// them are in use: a thread may not be the one that takes the tiles that follow.
const LONG_TILE: usize = 8192;

/// Quantised tiles times quantised rows.
///
/// # Safety
/// AVX-512 F, BW, VL and VNNI are there; `call` is as [`TileCall`] asks, of layout `L`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn quantised<L: Layout>(call: &TileCall) {
    for tile in 0..call.tiles {
        by_rows!(call.rows, [16, 12, 8, 4, 2, 1], first, ROWS => {
            // SAFETY: rows `first..first + ROWS` and tile `tile` are the call's.
            unsafe { quantised_rows::<L, ROWS>(call, tile, first) }
        });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantised_rows<L: Layout, const ROWS: usize>(call: &TileCall, tile: usize, first: usize) {
    let blocks = call.k / BLOCK;
    // SAFETY: for every access below, the tile has `blocks` header entries and code blocks, each row
    // has `blocks` activation blocks, and the accumulators have a line for each row.
    unsafe {
        let mut entry = call.weights.add(tile * call.tile_bytes);
        let mut codes = entry.add(L::Q.header_bytes(blocks));
        let mut x = call.x.add(first * call.x_stride_bytes);
        let mut acc = [_mm512_setzero_ps(); ROWS];
        for _ in 0..blocks {
            for line in 0..L::Q.code_bytes() / 64 {
                let ahead = codes.wrapping_add(PREFETCH_BYTES + line * 64);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let weights = unpack::<L>(codes);
            let (scale, second) = header::<L>(entry);
            macro_rules! group {
                ($n:literal, $at:expr) => {{
                    let first = x.add($at * $n * call.x_stride_bytes);
                    let rows = core::array::from_fn(|r| first.add(r * call.x_stride_bytes));
                    let acc = &mut acc.as_chunks_mut::<$n>().0[$at];
                    add_blocks::<L, $n>(acc, &weights, scale, second, rows);
                }};
            }
            match ROWS {
                1 => group!(1, 0),
                2 => group!(2, 0),
                _ => unrolled!(ROWS / 4, at => group!(4, at)),
            }
            entry = entry.add(L::Q.scales.entry_bytes());
            codes = codes.add(L::Q.code_bytes());
            x = x.add(size_of::<QBlock>());
        }
        for (r, acc) in acc.into_iter().enumerate() {
            let out = call.acc.add((first + r) * ACC_STRIDE + tile * LANES);
            _mm512_store_ps(out, acc);
        }
    }
}

/// One block of some rows: the scalar definition, lane by lane. Their dot products advance
/// together, because a chain of eight dependent ones is longer than the machine looks ahead.
#[inline(always)]
unsafe fn add_blocks<L: Layout, const N: usize>(
    acc: &mut [__m512; N],
    weights: &[__m512i; 8],
    scale: __m512,
    second: __m512,
    rows: [*const u8; N],
) {
    let halves = matches!(L::Q.scales, Scales::F32Halves);
    // SAFETY: the caller has AVX-512, and a block at each row.
    unsafe {
        let blocks = rows.map(|row| &*row.cast::<QBlock>());
        let start = |start: i32| match L::Q.zero {
            0 => _mm512_setzero_si512(),
            _ => from_start::<L>(_mm512_set1_epi32(start)),
        };
        let mut sums = blocks.map(|x| {
            let high = if halves { x.start_high } else { 0 };
            start(x.start.wrapping_sub(high))
        });
        for (line, &weight) in weights.iter().enumerate() {
            if halves && line == 4 {
                for (r, x) in blocks.iter().enumerate() {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale));
                    acc[r] = add_scaled(acc[r], sums[r], scale);
                    sums[r] = start(x.start_high);
                }
            }
            for (sum, row) in sums.iter_mut().zip(rows) {
                let quad = _mm512_set1_epi32(*row.cast::<i32>().add(line));
                *sum = _mm512_dpbusd_epi32(*sum, weight, quad);
            }
        }
        let scale = if halves { second } else { scale };
        for (r, x) in blocks.iter().enumerate() {
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale));
            acc[r] = add_scaled(acc[r], sums[r], scale);
            if matches!(L::Q.scales, Scales::F16Min | Scales::F32Min) {
                acc[r] = _mm512_fmadd_ps(second, _mm512_set1_ps(x.scaled_sum), acc[r]);
            }
        }
    }
}

/// The eight lines of stored codes of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack<L: Layout>(codes: *const u8) -> [__m512i; 8] {
    // SAFETY: the caller has a whole block there.
    let line = |i: usize| unsafe { _mm512_loadu_si512(codes.add(64 * i).cast()) };
    if L::Q.code_bits == 8 {
        return core::array::from_fn(line);
    }
    let nibble = _mm512_set1_epi8(15);
    let lines: [__m512i; 4] = core::array::from_fn(line);
    let mut out = [_mm512_setzero_si512(); 8];
    for i in 0..4 {
        out[i] = _mm512_and_si512(lines[i], nibble);
        out[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(lines[i]), nibble);
    }
    out
}

/// A header entry: scales, and mins or scales of the high half (zeros where there is neither).
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn header<L: Layout>(entry: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller has a whole entry there.
    unsafe {
        let half = |i: usize| _mm512_cvtph_ps(_mm256_loadu_si256(entry.add(32 * i).cast()));
        match L::Q.scales {
            Scales::F16 => (half(0), _mm512_setzero_ps()),
            Scales::F16Min => (half(0), half(1)),
            Scales::F32Min | Scales::F32Halves => {
                (_mm512_loadu_ps(entry.cast()), _mm512_loadu_ps(entry.cast::<f32>().add(16)))
            }
        }
    }
}

/// `-zero * sum` out of `-128 * sum`.
#[inline]
#[target_feature(enable = "avx512f")]
fn from_start<L: Layout>(start: __m512i) -> __m512i {
    match L::Q.zero {
        128 => start,
        32 => _mm512_srai_epi32::<2>(start),
        16 => _mm512_srai_epi32::<3>(start),
        _ => _mm512_srai_epi32::<4>(start),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_scaled(acc: __m512, sum: __m512i, scale: __m512) -> __m512 {
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc)
}

/// Float tiles times f32 rows.
///
/// # Safety
/// AVX-512 F is there; `call` is as [`TileCall`] asks, of element type `E`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn float<E: FloatElem>(call: &TileCall) {
    // Two tiles at once hide the latency of the multiply-adds where there are few rows.
    // Rows of any number below eight, as checking drafts takes them, pass over the tiles once.
    by_rows!(call.rows, [8, 7, 6, 5, 4, 3, 2, 1], first, ROWS => {
        // SAFETY: these rows and tiles are the call's.
        unsafe {
            match (call.tiles, call.fetch && first == 0) {
                (2, true) => float_rows::<E, ROWS, 2, true>(call, first),
                (2, false) => float_rows::<E, ROWS, 2, false>(call, first),
                (_, true) => float_rows::<E, ROWS, 1, true>(call, first),
                (_, false) => float_rows::<E, ROWS, 1, false>(call, first),
            }
        }
    });
}

/// With `FETCH`, the tiles that follow are asked for meanwhile: a tile is too short for the
/// machine to notice by itself that it is read in a run.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn float_rows<E: FloatElem, const ROWS: usize, const TILES: usize, const FETCH: bool>(
    call: &TileCall,
    first: usize,
) {
    let ahead = if call.tile_bytes > LONG_TILE { PREFETCH_BYTES } else { TILES * call.tile_bytes };
    let mut k = 0;
    while k < call.k {
        let end = (k + K_CHUNK).min(call.k);
        let mut part = [[_mm512_setzero_ps(); TILES]; ROWS];
        // SAFETY: for every access below, tiles and rows have K values, the accumulators a line a row.
        unsafe {
            let x = call.x.add(first * call.x_stride_bytes).cast::<f32>();
            for k in k..end {
                let mut weights = [_mm512_setzero_ps(); TILES];
                for (t, w) in weights.iter_mut().enumerate() {
                    let line = call.weights.add(t * call.tile_bytes + k * LANES * E::BYTES);
                    if FETCH {
                        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(ahead).cast());
                    }
                    *w = load::<E>(line);
                }
                for (r, part) in part.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.byte_add(r * call.x_stride_bytes).add(k));
                    for (part, w) in part.iter_mut().zip(weights) {
                        *part = _mm512_fmadd_ps(w, x, *part);
                    }
                }
            }
            for (r, part) in part.into_iter().enumerate() {
                for (t, part) in part.into_iter().enumerate() {
                    let out = call.acc.add((first + r) * ACC_STRIDE + t * LANES);
                    let total =
                        if k == 0 { part } else { _mm512_add_ps(_mm512_load_ps(out), part) };
                    _mm512_store_ps(out, total);
                }
            }
        }
        k = end;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx2,f16c")]
unsafe fn load<E: FloatElem>(line: *const u8) -> __m512 {
    // SAFETY: the caller has 16 elements there.
    unsafe {
        match E::FORMAT {
            super::FloatFormat::F32 => _mm512_loadu_ps(line.cast()),
            super::FloatFormat::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(line.cast())),
            super::FloatFormat::BF16 => {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(line.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
    }
}
