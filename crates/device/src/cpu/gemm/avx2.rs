//! The tile kernels on AVX2 with FMA and F16C: half a tile (8 lanes) at a time.

use core::arch::x86_64::*;

use super::layout::Layout;
use super::layout::by_rows;
use super::{ACC_STRIDE, FloatElem, K_CHUNK, TileCall};
use crate::cpu::quant::{BLOCK, QBlock};
use crate::cpu::tile_format::{LANES, Scales};

/// Lanes of a half tile.
const HALF: usize = 8;

/// Quantised tiles times quantised rows.
///
/// # Safety
/// AVX2, FMA and F16C are there; `call` is as [`TileCall`] asks, of layout `L`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantised<L: Layout>(call: &TileCall) {
    for half in 0..call.tiles * 2 {
        by_rows!(call.rows, [4, 2, 1], first, ROWS => {
            // SAFETY: these rows and this half are the call's.
            unsafe { quantised_rows::<L, ROWS>(call, half, first) }
        });
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantised_rows<L: Layout, const ROWS: usize>(call: &TileCall, half: usize, first: usize) {
    let blocks = call.k / BLOCK;
    let (tile, lane) = (half / 2, half % 2 * HALF);
    // SAFETY: for every access below, the tile has `blocks` header entries and code blocks, each row
    // has `blocks` activation blocks, and the accumulators have a line for each row.
    unsafe {
        let mut entry = call.weights.add(tile * call.tile_bytes);
        let mut codes = entry.add(L::Q.header_bytes(blocks) + lane * 4);
        let mut x = call.x.add(first * call.x_stride_bytes);
        let mut acc = [_mm256_setzero_ps(); ROWS];
        for _ in 0..blocks {
            let weights = unpack::<L>(codes);
            let (scale, second) = header::<L>(entry, lane);
            for (r, acc) in acc.iter_mut().enumerate() {
                let block = x.add(r * call.x_stride_bytes).cast::<QBlock>();
                let x_scale = _mm256_set1_ps((*block).scale);
                match L::Q.scales {
                    Scales::F32Halves => {
                        let (start, high) = ((*block).start, (*block).start_high);
                        let low = dot::<L>(start - high, &weights, block, 0..4);
                        *acc = add_scaled(*acc, low, _mm256_mul_ps(scale, x_scale));
                        let high = dot::<L>(high, &weights, block, 4..8);
                        *acc = add_scaled(*acc, high, _mm256_mul_ps(second, x_scale));
                    }
                    scales => {
                        let sum = dot::<L>((*block).start, &weights, block, 0..8);
                        *acc = add_scaled(*acc, sum, _mm256_mul_ps(scale, x_scale));
                        if matches!(scales, Scales::F16Min | Scales::F32Min) {
                            let scaled_sum = _mm256_set1_ps((*block).scaled_sum);
                            *acc = _mm256_fmadd_ps(second, scaled_sum, *acc);
                        }
                    }
                }
            }
            entry = entry.add(L::Q.scales.entry_bytes());
            codes = codes.add(L::Q.code_bytes());
            x = x.add(size_of::<QBlock>());
        }
        for (r, acc) in acc.into_iter().enumerate() {
            let out = call.acc.add((first + r) * ACC_STRIDE + tile * LANES + lane);
            _mm256_store_ps(out, acc);
        }
    }
}

/// The eight half lines of a block: stored codes, or signed ones where the zero is 128.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack<L: Layout>(codes: *const u8) -> [__m256i; 8] {
    // SAFETY: the caller has a whole block there.
    let line = |i: usize| unsafe { _mm256_loadu_si256(codes.add(64 * i).cast()) };
    if L::Q.code_bits == 8 {
        let flip = _mm256_set1_epi8(if L::Q.zero == 128 { -128 } else { 0 });
        return core::array::from_fn(|i| _mm256_xor_si256(line(i), flip));
    }
    let nibble = _mm256_set1_epi8(15);
    let lines: [__m256i; 4] = core::array::from_fn(line);
    let mut out = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        out[i] = _mm256_and_si256(lines[i], nibble);
        out[i + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(lines[i]), nibble);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn header<L: Layout>(entry: *const u8, lane: usize) -> (__m256, __m256) {
    // SAFETY: the caller has a whole entry there.
    unsafe {
        let f16s = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(entry.add(2 * at).cast()));
        let f32s = |at: usize| _mm256_loadu_ps(entry.cast::<f32>().add(at));
        match L::Q.scales {
            Scales::F16 => (f16s(lane), _mm256_setzero_ps()),
            Scales::F16Min => (f16s(lane), f16s(LANES + lane)),
            Scales::F32Min | Scales::F32Halves => (f32s(lane), f32s(LANES + lane)),
        }
    }
}

/// The exact dot product of some lines with an activation block; `start` is `-128 * sum` of
/// those lines' activation codes.
///
/// `vpmaddubsw` adds pairs of products in 16 bits. It cannot saturate here: 4-bit codes give at
/// most 2 * 15 * 127 = 3,810 a pair, so all eight lines fit (30,480); other stored codes are at
/// most 63 (2 * 63 * 127 = 16,002), so two lines fit; signed 8-bit codes are multiplied as
/// |w| * (sign(w) x), at most 2 * 128 * 127 = 32,512.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dot<L: Layout>(
    start: i32,
    weights: &[__m256i; 8],
    block: *const QBlock,
    lines: core::ops::Range<usize>,
) -> __m256i {
    let quads = block.cast::<i32>();
    // SAFETY: a block begins with 8 quads of codes.
    let quad = |line: usize| _mm256_set1_epi32(unsafe { *quads.add(line) });
    let ones = _mm256_set1_epi16(1);
    let mut sum = match L::Q.zero {
        0 | 128 => _mm256_setzero_si256(),
        32 => _mm256_set1_epi32(start >> 2),
        16 => _mm256_set1_epi32(start >> 3),
        _ => _mm256_set1_epi32(start >> 4),
    };
    if L::Q.zero == 128 {
        for line in lines {
            let (w, x) = (weights[line], quad(line));
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        return sum;
    }
    let lines_in_16_bits = if L::Q.code_bits == 4 { 8 } else { 2 };
    for first in lines.clone().step_by(lines_in_16_bits) {
        let mut pairs = _mm256_maddubs_epi16(weights[first], quad(first));
        let mut line = first + 1;
        while line < (first + lines_in_16_bits).min(lines.end) {
            let more = _mm256_maddubs_epi16(weights[line], quad(line));
            pairs = _mm256_add_epi16(pairs, more);
            line += 1;
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    sum
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_scaled(acc: __m256, sum: __m256i, scale: __m256) -> __m256 {
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc)
}

/// Float tiles times f32 rows.
///
/// # Safety
/// AVX2, FMA and F16C are there; `call` is as [`TileCall`] asks, of element type `E`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn float<E: FloatElem>(call: &TileCall) {
    for tile in 0..call.tiles {
        by_rows!(call.rows, [4, 2, 1], first, ROWS => {
            // SAFETY: these rows and this tile are the call's.
            unsafe {
                match call.fetch && first == 0 {
                    true => float_rows::<E, ROWS, true>(call, tile, first),
                    false => float_rows::<E, ROWS, false>(call, tile, first),
                }
            }
        });
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_rows<E: FloatElem, const ROWS: usize, const FETCH: bool>(
    call: &TileCall,
    tile: usize,
    first: usize,
) {
    let mut k = 0;
    while k < call.k {
        let end = (k + K_CHUNK).min(call.k);
        let mut part = [[_mm256_setzero_ps(); 2]; ROWS];
        // SAFETY: for every access below, tile and rows have K values, the accumulators a line a row.
        unsafe {
            let x = call.x.add(first * call.x_stride_bytes).cast::<f32>();
            for k in k..end {
                let line = call.weights.add(tile * call.tile_bytes + k * LANES * E::BYTES);
                if FETCH {
                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(call.tile_bytes).cast());
                }
                let weights = [load::<E>(line), load::<E>(line.add(HALF * E::BYTES))];
                for (r, part) in part.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.byte_add(r * call.x_stride_bytes).add(k));
                    for (part, w) in part.iter_mut().zip(weights) {
                        *part = _mm256_fmadd_ps(w, x, *part);
                    }
                }
            }
            for (r, part) in part.into_iter().enumerate() {
                for (half, part) in part.into_iter().enumerate() {
                    let at = (first + r) * ACC_STRIDE + tile * LANES + half * HALF;
                    let out = call.acc.add(at);
                    let total =
                        if k == 0 { part } else { _mm256_add_ps(_mm256_load_ps(out), part) };
                    _mm256_store_ps(out, total);
                }
            }
        }
        k = end;
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load<E: FloatElem>(line: *const u8) -> __m256 {
    // SAFETY: the caller has 8 elements there.
    unsafe {
        match E::FORMAT {
            super::FloatFormat::F32 => _mm256_loadu_ps(line.cast()),
            super::FloatFormat::F16 => _mm256_cvtph_ps(_mm_loadu_si128(line.cast())),
            super::FloatFormat::BF16 => {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(line.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
        }
    }
}
