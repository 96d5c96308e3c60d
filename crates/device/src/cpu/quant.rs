//! Activation rows quantised to int8, block by block along K.
//!
//! **Scalar definition.** A block is 32 consecutive values `x[0..32]`. With `amax = max |x[i]|`:
//! - any NaN or infinity in the block: all codes 0, `scale` NaN. Every output that reads the block
//!   becomes NaN, so a fault upstream is seen and not rounded away;
//! - `amax < 2^-119` (where `amax / 127` would no longer be a normal number): all codes 0,
//!   `scale` 0;
//! - otherwise `scale = amax / 127`, `inverse = 127 / amax` (both correctly rounded f32), and
//!   `code[i] = round_half_even(x[i] * inverse)`, which lies in -127..=127.
//!
//! A block depends on its own 32 values and nothing else, so quantising a row gives the same bits
//! wherever the row stands and however its kernel was fused.

use super::isa::Isa;
use core::mem::size_of;

/// Values of a block along K.
pub const BLOCK: usize = 32;

/// The largest magnitude of a code.
pub const CODE_MAX: f32 = 127.0;

/// Blocks whose largest magnitude is below this are zero.
pub const AMAX_MIN: f32 = f32::from_bits((127 - 119) << 23);

/// What `start` and `start_high` are multiples of; see [`QBlock`].
pub const START_UNIT: i32 = 128;

const BITS_INFINITY: u32 = 0x7f80_0000;

/// Thirty-two quantised activations and what the kernels need beside the codes, in the order in
/// which they read it.
///
/// Weight codes are stored unsigned, as `code + zero`, because the dot-product instructions take
/// unsigned times signed bytes; a dot product starts at `-zero * sum(codes)`, exactly, so that it
/// ends at the signed one. `start` has that for `zero == 128`, and every smaller zero is a power
/// of two: an exact arithmetic shift.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C, align(4))]
pub struct QBlock {
    /// Codes in -127..=127.
    pub codes: [i8; BLOCK],
    /// Value of a code's unit.
    pub scale: f32,
    /// `scale * sum(codes)`, rounded once: what a weight block's min is multiplied with.
    pub scaled_sum: f32,
    /// `-128 * sum(codes)`.
    pub start: i32,
    /// `-128 * sum(codes[16..])`, for weight formats with two scales to a block.
    pub start_high: i32,
}

const _: () = assert!(size_of::<QBlock>() == 48);

impl QBlock {
    /// A block of zeros.
    pub const ZERO: QBlock =
        QBlock { codes: [0; BLOCK], scale: 0.0, scaled_sum: 0.0, start: 0, start_high: 0 };

    #[inline]
    fn of_scale(scale: f32) -> QBlock {
        QBlock { scale, scaled_sum: scale, ..QBlock::ZERO }
    }

    /// The value that code `i` stands for.
    pub fn value(&self, i: usize) -> f32 {
        f32::from(self.codes[i]) * self.scale
    }
}

/// Bytes from one quantised row of `k` values to the next: an odd number of cache lines, so that
/// equal columns of many rows do not share cache sets.
pub const fn row_bytes(k: usize) -> usize {
    let lines = (k.div_ceil(BLOCK) * size_of::<QBlock>()).div_ceil(64);
    (lines | 1) * 64
}

/// The scale and its inverse, or a finished block where there is nothing to round.
#[inline]
fn scales(amax_bits: u32) -> Result<(f32, f32), QBlock> {
    if amax_bits >= BITS_INFINITY {
        return Err(QBlock::of_scale(f32::NAN));
    }
    let amax = f32::from_bits(amax_bits);
    if amax < AMAX_MIN {
        return Err(QBlock::of_scale(0.0));
    }
    Ok((amax / CODE_MAX, CODE_MAX / amax))
}

#[inline]
fn finish(codes: [i8; BLOCK], scale: f32, low: i32, high: i32) -> QBlock {
    QBlock {
        codes,
        scale,
        scaled_sum: scale * (low + high) as f32,
        start: -START_UNIT * (low + high),
        start_high: -START_UNIT * high,
    }
}

/// The scalar definition of a block.
pub fn quantize_block(x: &[f32; BLOCK]) -> QBlock {
    // Magnitudes of floats are ordered as their bits are, with infinity and NaN on top.
    let amax_bits = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let (scale, inverse) = match scales(amax_bits) {
        Ok(pair) => pair,
        Err(block) => return block,
    };
    let codes = x.map(|v| (v * inverse).round_ties_even() as i8);
    let sum = |codes: &[i8]| codes.iter().map(|&c| i32::from(c)).sum::<i32>();
    finish(codes, scale, sum(&codes[..16]), sum(&codes[16..]))
}

/// Quantises a row of whole blocks.
///
/// # Panics
/// When `x` is not `32 * out.len()` values, or `isa` is not available on this CPU.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [QBlock]) {
    assert_eq!(x.len(), out.len() * BLOCK, "a row of {} blocks", out.len());
    assert!(isa.is_available(), "the {isa} kernels need features that this CPU lacks");
    let (x, _) = x.as_chunks::<BLOCK>();
    // SAFETY: availability is asserted above.
    unsafe { quantize_blocks(isa, x, out) }
}

/// [`quantize_row`] without the checks, for kernels that have made them at capture.
///
/// # Safety
/// `isa` is available on this CPU and both slices have the same length.
#[inline]
pub unsafe fn quantize_blocks(isa: Isa, x: &[[f32; BLOCK]], out: &mut [QBlock]) {
    debug_assert_eq!(x.len(), out.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for the instruction set.
        Isa::Avx512 => unsafe { x86::blocks_avx512(x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for the instruction set.
        Isa::Avx2 => unsafe { x86::blocks_avx2(x, out) },
        _ => {
            for (x, out) in x.iter().zip(out) {
                *out = quantize_block(x);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK, QBlock, finish, scales};
    use core::arch::x86_64::*;

    /// # Safety
    /// AVX-512 F, BW and VL are there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn blocks_avx512(x: &[[f32; BLOCK]], out: &mut [QBlock]) {
        for (x, out) in x.iter().zip(out) {
            // SAFETY: the caller vouches for the instruction set.
            *out = unsafe { block_avx512(x) };
        }
    }

    /// # Safety
    /// AVX-512 F, BW and VL are there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn block_avx512(x: &[f32; BLOCK]) -> QBlock {
        // SAFETY: both loads are inside the 32 values.
        let (a, b) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
        let magnitude = |v| _mm512_castps_si512(_mm512_abs_ps(v));
        let top = _mm512_max_epu32(magnitude(a), magnitude(b));
        let (scale, inverse) = match scales(_mm512_reduce_max_epu32(top)) {
            Ok(pair) => pair,
            Err(block) => return block,
        };
        let inverse = _mm512_set1_ps(inverse);
        // The conversion rounds half to even, the mode that Rust programs run in.
        let a = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
        let b = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
        let mut codes = [0i8; BLOCK];
        // SAFETY: both stores are inside the 32 codes.
        unsafe {
            _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(a));
            _mm_storeu_si128(codes.as_mut_ptr().add(16).cast(), _mm512_cvtepi32_epi8(b));
        }
        finish(codes, scale, _mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b))
    }

    /// # Safety
    /// AVX2 is there.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn blocks_avx2(x: &[[f32; BLOCK]], out: &mut [QBlock]) {
        for (x, out) in x.iter().zip(out) {
            // SAFETY: the caller vouches for the instruction set.
            *out = unsafe { block_avx2(x) };
        }
    }

    /// # Safety
    /// AVX2 is there.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn block_avx2(x: &[f32; BLOCK]) -> QBlock {
        // SAFETY: four loads of eight inside the 32 values.
        let v: [__m256; 4] = core::array::from_fn(|i| unsafe { _mm256_loadu_ps(&x[8 * i]) });
        let mask = _mm256_set1_epi32(0x7fff_ffff);
        let m = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), mask));
        let m = _mm256_max_epu32(_mm256_max_epu32(m[0], m[1]), _mm256_max_epu32(m[2], m[3]));
        let m = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
        let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
        let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
        let (scale, inverse) = match scales(_mm_cvtsi128_si32(m) as u32) {
            Ok(pair) => pair,
            Err(block) => return block,
        };
        let inverse = _mm256_set1_ps(inverse);
        let q = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
        // Packing works in 128-bit halves; the permutation puts the groups of four in order.
        let (lo, hi) = (_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), order);
        let mut codes = [0i8; BLOCK];
        // SAFETY: one store of all 32 codes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), packed) };
        let low = sum_avx2(_mm256_add_epi32(q[0], q[1]));
        let high = sum_avx2(_mm256_add_epi32(q[2], q[3]));
        finish(codes, scale, low, high)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum_avx2(v: __m256i) -> i32 {
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(b: &QBlock) -> ([i8; BLOCK], [u32; 2], [i32; 2]) {
        (b.codes, [b.scale.to_bits(), b.scaled_sum.to_bits()], [b.start, b.start_high])
    }

    fn check(x: &[f32; BLOCK]) {
        let expected = quantize_block(x);
        for isa in Isa::available() {
            let mut out = [QBlock::ZERO];
            quantize_row(isa, x, &mut out);
            assert_eq!(bits(&out[0]), bits(&expected), "{isa} {x:?}");
        }
        let sum = |codes: &[i8]| codes.iter().map(|&c| i32::from(c)).sum::<i32>();
        assert_eq!(expected.start, -128 * sum(&expected.codes));
        assert_eq!(expected.start_high, -128 * sum(&expected.codes[16..]));
        assert!(expected.codes.iter().all(|&c| c != i8::MIN));
    }

    #[test]
    fn a_block_with_nan_or_infinity_is_nan() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 31] {
                let mut x = [1.0; BLOCK];
                x[at] = bad;
                check(&x);
                let block = quantize_block(&x);
                assert!(block.scale.is_nan() && block.scaled_sum.is_nan());
                assert_eq!(block.codes, [0; BLOCK]);
            }
        }
    }

    #[test]
    fn tiny_blocks_are_zero_and_the_rest_have_normal_scales() {
        for x in [0.0, -0.0, 1e-45, f32::MIN_POSITIVE, AMAX_MIN.next_down()] {
            check(&[x; BLOCK]);
            assert_eq!(quantize_block(&[x; BLOCK]), QBlock::ZERO);
        }
        for x in [AMAX_MIN, 1.0, f32::MAX] {
            check(&[x; BLOCK]);
            let block = quantize_block(&[x; BLOCK]);
            assert!(block.scale.is_normal());
            assert_eq!(block.codes, [127; BLOCK]);
        }
    }

    #[test]
    fn ties_round_to_even() {
        let mut x = [0.0; BLOCK];
        x[0] = 127.0;
        (x[1], x[2], x[3], x[4]) = (0.5, 1.5, -0.5, -2.5);
        check(&x);
        assert_eq!(quantize_block(&x).codes[..5], [127, 0, 2, 0, -2]);
    }

    #[test]
    fn rows_are_an_odd_number_of_lines_apart() {
        for k in [32, 64, 576, 1536, 4096, 14336] {
            let bytes = row_bytes(k);
            assert!(bytes >= k / BLOCK * size_of::<QBlock>());
            assert_eq!((bytes % 64, bytes / 64 % 2), (0, 1), "k {k}");
        }
    }

    proptest! {
        #[test]
        fn any_bits_give_the_same_block_on_every_isa(x in prop::array::uniform32(any::<u32>())) {
            check(&x.map(f32::from_bits));
        }

        #[test]
        fn values_are_within_half_a_unit(
            x in prop::array::uniform32(-8f32..8.0),
            exponent in -100i32..100,
        ) {
            let x = x.map(|v| v * 2f32.powi(exponent));
            check(&x);
            let block = quantize_block(&x);
            for (i, v) in x.iter().enumerate() {
                prop_assert!((block.value(i) - v).abs() <= block.scale * 0.50001);
            }
        }
    }
}
