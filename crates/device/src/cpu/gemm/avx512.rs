//! The tile kernels on AVX-512 with VNNI.
//!
//! A block's weights are unpacked once into eight registers and used for up to 16 activation rows,
//! whose float accumulators stay in registers for the whole of K: 8 + 16 + scales fit in 32.

use core::arch::x86_64::*;

use super::layout::Layout;
use super::{ACC_STRIDE, FloatElem, K_CHUNK, TileCall, by_rows};
use crate::cpu::quant::{BLOCK, QBlock};
use crate::cpu::tile::{LANES, Scales};

/// How far ahead of the codes in use the weights are fetched, for few rows: the kernel then runs
/// at the speed of memory.
const PREFETCH_BYTES: usize = 2048;

/// Quantised tiles times quantised rows.
///
/// # Safety
/// AVX-512 F, BW, VL and VNNI are there; `call` is as [`TileCall`] asks, of layout `L`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn quantised<L: Layout>(call: &TileCall) {
    for tile in 0..call.tiles {
        by_rows!(call.rows, [16, 8, 4, 2, 1], first, ROWS => {
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
            if ROWS <= 4 {
                for line in 0..L::Q.code_bytes() / 64 {
                    let ahead = codes.wrapping_add(PREFETCH_BYTES + line * 64);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
            }
            let weights = unpack::<L>(codes);
            let (scale, second) = header::<L>(entry);
            let mut row = x;
            for acc in &mut acc {
                let block = row.cast::<QBlock>();
                let x_scale = _mm512_set1_ps((*block).scale);
                match L::Q.scales {
                    Scales::F32Halves => {
                        let high = _mm512_set1_epi32((*block).start_high);
                        let low = _mm512_sub_epi32(_mm512_set1_epi32((*block).start), high);
                        let low = dot(from_start::<L>(low), &weights, block, 0..4);
                        *acc = add_scaled(*acc, low, _mm512_mul_ps(scale, x_scale));
                        let high = dot(from_start::<L>(high), &weights, block, 4..8);
                        *acc = add_scaled(*acc, high, _mm512_mul_ps(second, x_scale));
                    }
                    scales => {
                        let start = if L::Q.zero == 0 {
                            _mm512_setzero_si512()
                        } else {
                            from_start::<L>(_mm512_set1_epi32((*block).start))
                        };
                        let sum = dot(start, &weights, block, 0..8);
                        *acc = add_scaled(*acc, sum, _mm512_mul_ps(scale, x_scale));
                        if matches!(scales, Scales::F16Min | Scales::F32Min) {
                            let scaled_sum = _mm512_set1_ps((*block).scaled_sum);
                            *acc = _mm512_fmadd_ps(second, scaled_sum, *acc);
                        }
                    }
                }
                row = row.add(call.x_stride_bytes);
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

/// `start` plus the exact dot product of some lines with an activation block.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot(
    start: __m512i,
    weights: &[__m512i; 8],
    block: *const QBlock,
    lines: core::ops::Range<usize>,
) -> __m512i {
    let quads = block.cast::<i32>();
    let mut sum = start;
    for line in lines {
        // SAFETY: a block begins with 8 quads of codes.
        let quad = _mm512_set1_epi32(unsafe { *quads.add(line) });
        sum = _mm512_dpbusd_epi32(sum, weights[line], quad);
    }
    sum
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
    by_rows!(call.rows, [8, 4, 2, 1], first, ROWS => {
        // SAFETY: these rows and tiles are the call's.
        unsafe {
            match call.tiles {
                2 => float_rows::<E, ROWS, 2>(call, first),
                _ => float_rows::<E, ROWS, 1>(call, first),
            }
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn float_rows<E: FloatElem, const ROWS: usize, const TILES: usize>(
    call: &TileCall,
    first: usize,
) {
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
