//! Rows as they are kept: rounded once, when they are written, and read as kept.
//!
//! Definitions: bf16 is the upper half of an f32, rounded to nearest even. E4M3 and E2M1 are rounded
//! to nearest even and saturate. A block's E8M0 scale is 2^ceil(log2(m)): of 64 channels of E4M3, m
//! is the greatest magnitude, at least 1e-4, over 448; of 32 of E2M1, the greatest magnitude, at
//! least 6 * 2^-126, over 6. The f32 scale of a turned E4M3 row is the greatest magnitude, at least
//! 1e-4, over 448. A code is x / scale, rounded; a value is code * scale. The Hadamard matrix is
//! applied by butterflies of distance 1, 2, 4, .. (sum to the lower place), then times
//! 1 / sqrt(dim). A block with a value that is not finite has scale code 255, read as infinity, so
//! that what is broken stays visible.
//!
//! Sources: OCP's FP8 and microscaling specifications; DeepSeek's reference for blocks and clamps.

use lockstep_plan::{FP4_ROW_BLOCK, FP8_ROW_BLOCK, RowCode};

/// Channels of a row, at most.
pub const CHANNELS_MAX: usize = 1024;

/// A kind of row.
#[derive(Clone, Copy, Debug)]
pub struct RowCodec {
    /// How it is kept.
    pub code: RowCode,
    /// Channels, at most [`CHANNELS_MAX`] unless kept as f32.
    pub dim: usize,
}

impl RowCodec {
    /// Bytes of a row.
    pub const fn row_bytes(&self) -> usize {
        self.code.row_bytes(self.dim as u32) as usize
    }

    /// True where a row can be read in place.
    pub const fn is_plain(&self) -> bool {
        matches!(self.code, RowCode::F32)
    }

    /// Writes a row; `row` is used up.
    ///
    /// # Safety
    /// `to` is writable for the bytes of a row, and `row` has `dim` channels.
    #[inline(always)]
    pub unsafe fn encode(&self, row: &mut [f32], to: *mut u8) {
        // SAFETY: the caller's contract.
        let to = unsafe { core::slice::from_raw_parts_mut(to, self.row_bytes()) };
        match self.code {
            RowCode::F32 => {
                for (to, v) in to.chunks_exact_mut(4).zip(row) {
                    to.copy_from_slice(&v.to_ne_bytes());
                }
            }
            RowCode::Bf16 => encode_bf16(row, to),
            RowCode::Fp8 { rotary } => {
                let plain = self.dim - rotary as usize;
                let (codes, rest) = to.split_at_mut(plain);
                let (tail, scales) = rest.split_at_mut(2 * rotary as usize);
                scales.fill(0);
                let block = FP8_ROW_BLOCK as usize;
                let blocks = row[..plain].chunks(block).zip(codes.chunks_mut(block));
                for ((row, codes), scale) in blocks.zip(scales) {
                    *scale = e8m0_above(greatest(row, 1e-4) / 448.0);
                    let scale = e8m0(*scale);
                    for (code, v) in codes.iter_mut().zip(row) {
                        *code = to_e4m3(v / scale);
                    }
                }
                encode_bf16(&row[plain..], tail);
            }
            RowCode::HadamardFp8 => {
                hadamard(row);
                let scale = greatest(row, 1e-4) / 448.0;
                let (codes, tail) = to.split_at_mut(self.dim);
                for (code, v) in codes.iter_mut().zip(row) {
                    *code = to_e4m3(*v / scale);
                }
                tail.copy_from_slice(&scale.to_ne_bytes());
            }
            RowCode::HadamardFp4 => {
                hadamard(row);
                let (codes, scales) = to.split_at_mut(self.dim / 2);
                scales.fill(0);
                let block = FP4_ROW_BLOCK as usize;
                let blocks = row.chunks(block).zip(codes.chunks_mut(block / 2));
                for ((row, codes), scale) in blocks.zip(scales) {
                    *scale = e8m0_above(greatest(row, 6.0 * f32::MIN_POSITIVE) / 6.0);
                    let scale = e8m0(*scale);
                    for (code, pair) in codes.iter_mut().zip(row.chunks_exact(2)) {
                        *code = to_e2m1(pair[0] / scale) | to_e2m1(pair[1] / scale) << 4;
                    }
                }
            }
        }
    }

    /// Reads a row.
    ///
    /// # Safety
    /// `from` is readable for the bytes of a row, and `out` writable for `dim` floats.
    #[inline(always)]
    pub unsafe fn decode(&self, from: *const u8, out: *mut f32) {
        // SAFETY: the caller's contract.
        let (from, out) = unsafe {
            (
                core::slice::from_raw_parts(from, self.row_bytes()),
                core::slice::from_raw_parts_mut(out, self.dim),
            )
        };
        match self.code {
            RowCode::F32 => {
                for (from, v) in from.chunks_exact(4).zip(out) {
                    *v = f32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
            RowCode::Bf16 => decode_bf16(from, out),
            RowCode::Fp8 { rotary } => {
                let plain = self.dim - rotary as usize;
                let (codes, rest) = from.split_at(plain);
                let (tail, scales) = rest.split_at(2 * rotary as usize);
                let block = FP8_ROW_BLOCK as usize;
                let blocks = codes.chunks(block).zip(out[..plain].chunks_mut(block));
                for ((codes, out), scale) in blocks.zip(scales) {
                    let scale = e8m0(*scale);
                    for (v, code) in out.iter_mut().zip(codes) {
                        *v = e4m3(*code) * scale;
                    }
                }
                decode_bf16(tail, &mut out[plain..]);
            }
            RowCode::HadamardFp8 => {
                let (codes, tail) = from.split_at(self.dim);
                let scale = f32::from_ne_bytes([tail[0], tail[1], tail[2], tail[3]]);
                for (v, code) in out.iter_mut().zip(codes) {
                    *v = e4m3(*code) * scale;
                }
            }
            RowCode::HadamardFp4 => {
                let (codes, scales) = from.split_at(self.dim / 2);
                let block = FP4_ROW_BLOCK as usize;
                let blocks = codes.chunks(block / 2).zip(out.chunks_mut(block));
                for ((codes, out), scale) in blocks.zip(scales) {
                    let scale = e8m0(*scale);
                    for (pair, code) in out.chunks_exact_mut(2).zip(codes) {
                        (pair[0], pair[1]) = (e2m1(code & 15) * scale, e2m1(code >> 4) * scale);
                    }
                }
            }
        }
    }

    /// What is read of a row once it is written.
    ///
    /// # Safety
    /// `row` is writable for `dim` floats.
    #[inline(always)]
    pub unsafe fn round(&self, row: *mut f32) {
        if self.is_plain() {
            return;
        }
        let mut kept = [0u8; 2 * CHANNELS_MAX + 64];
        assert!(self.row_bytes() <= kept.len(), "rows of up to {CHANNELS_MAX} channels");
        // SAFETY: the caller's contract; `kept` holds a row.
        unsafe {
            self.encode(core::slice::from_raw_parts_mut(row, self.dim), kept.as_mut_ptr());
            self.decode(kept.as_ptr(), row);
        }
    }
}

#[inline(always)]
fn encode_bf16(row: &[f32], to: &mut [u8]) {
    for (to, v) in to.chunks_exact_mut(2).zip(row) {
        let bits = v.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
        let half = if v.is_nan() { 0x7fc0 } else { rounded as u16 };
        to.copy_from_slice(&half.to_ne_bytes());
    }
}

#[inline(always)]
fn decode_bf16(from: &[u8], out: &mut [f32]) {
    for (v, from) in out.iter_mut().zip(from.chunks_exact(2)) {
        *v = f32::from_bits(u32::from(u16::from_ne_bytes([from[0], from[1]])) << 16);
    }
}

/// The greatest magnitude, at least `least`; NaN where a value is not finite.
#[inline(always)]
fn greatest(row: &[f32], least: f32) -> f32 {
    let mut most = least;
    let mut sound = true;
    for v in row {
        let v = v.abs();
        sound &= v < f32::INFINITY;
        most = if v > most { v } else { most };
    }
    if sound { most } else { f32::NAN }
}

/// The code of the least power of two that is no less than `v`, which is a normal number; 255 for
/// NaN.
fn e8m0_above(v: f32) -> u8 {
    if v.is_nan() {
        return 255;
    }
    let bits = v.to_bits();
    ((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)) as u8
}

#[inline(always)]
fn e8m0(code: u8) -> f32 {
    f32::from_bits(u32::from(code) << 23)
}

/// Eight bits to f32: the fields moved to their places, times 2^120 for the other bias. Exact, and
/// the same for numbers below the normal ones.
#[inline(always)]
fn e4m3(code: u8) -> f32 {
    let bits = u32::from(code & 127) << 20 | u32::from(code & 128) << 24;
    f32::from_bits(bits) * f32::from_bits((127 + 120) << 23)
}

#[inline(always)]
fn to_e4m3(v: f32) -> u8 {
    let sign = (v.to_bits() >> 24 & 128) as u8;
    let v = v.abs();
    // Below the normal numbers codes count steps of 2^-9; eight of them are the first normal one.
    if v < 0.015_625 {
        return sign | (v * 512.0).round_ties_even() as u8;
    }
    let bits = v.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    let code = rounded.wrapping_sub((127 - 7) << 3);
    sign | if code < 0x7e { code as u8 } else { 0x7e }
}

#[inline(always)]
fn e2m1(code: u8) -> f32 {
    const VALUES: [f32; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    VALUES[usize::from(code & 15)]
}

#[inline(always)]
fn to_e2m1(v: f32) -> u8 {
    let sign = (v.to_bits() >> 28 & 8) as u8;
    let v = v.abs();
    // Half-way values go to the code that is even.
    let above = [v > 0.25, v >= 0.75, v > 1.25, v >= 1.75, v > 2.5, v >= 3.5, v > 5.0];
    sign | above.iter().map(|a| u8::from(*a)).sum::<u8>()
}

/// Turns a row in place; its channels are a power of two.
#[inline(always)]
fn hadamard(row: &mut [f32]) {
    let mut half = 1;
    while half < row.len() {
        for pair in row.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = (1.0 / (row.len() as f64).sqrt()) as f32;
    row.iter_mut().for_each(|v| *v *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearest of all values, the even code of two as near.
    fn nearest(v: f32, values: &[f32]) -> u8 {
        let mut best = 0;
        for (code, x) in values.iter().enumerate() {
            let (a, b) = ((f64::from(*x) - f64::from(v)).abs(), f64::from(values[best]));
            let b = (b - f64::from(v)).abs();
            if a < b || (a == b && code.is_multiple_of(2)) {
                best = code;
            }
        }
        best as u8
    }

    #[test]
    fn every_code_comes_back_and_rounding_is_to_the_nearest_even_one() {
        let eight: Vec<f32> = (0..127).map(e4m3).collect();
        let four: Vec<f32> = (0..8).map(e2m1).collect();
        assert_eq!((eight[126], eight[1], eight[8]), (448.0, 1.0 / 512.0, 1.0 / 64.0));
        for code in (0..=255u8).filter(|c| c & 127 != 127) {
            assert_eq!(to_e4m3(e4m3(code)), code);
        }
        for code in 0..16 {
            assert_eq!(to_e2m1(e2m1(code)), code);
        }
        let mut x = 1u32;
        for i in 0..40_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Some of them half-way between two codes.
            let (a, b) = (eight[(x >> 25) as usize % 126], eight[(x >> 25) as usize % 126 + 1]);
            let v = if i % 3 == 0 { (a + b) / 2.0 } else { (x >> 8) as f32 / 3e4 };
            assert_eq!(to_e4m3(v.min(448.0)), nearest(v.min(448.0), &eight), "{v}");
            let v = if i % 3 == 0 { (x >> 29) as f32 / 4.0 } else { (x >> 8) as f32 / 2.8e6 };
            assert_eq!(to_e2m1(v.min(6.0)), nearest(v.min(6.0), &four), "{v}");
        }
        assert_eq!((to_e4m3(1e9), to_e4m3(-1e9), to_e2m1(7.5)), (0x7e, 0xfe, 7));
    }

    #[test]
    fn a_scale_is_the_power_of_two_above() {
        for (v, want) in [(1.0, 1.0), (1.1, 2.0), (2.0, 2.0), (0.3, 0.5), (1e-30, 2f32.powi(-99))] {
            assert_eq!(e8m0(e8m0_above(v)), want, "{v}");
        }
        assert_eq!(e8m0_above(f32::NAN), 255);
    }

    #[test]
    fn turning_twice_is_nothing_and_a_broken_row_stays_broken() {
        let mut row: Vec<f32> = (0..64).map(|i| (i * 37 % 64) as f32 - 20.0).collect();
        let before = row.clone();
        hadamard(&mut row);
        assert_eq!(row[0], before.iter().sum::<f32>() / 8.0);
        hadamard(&mut row);
        for (a, b) in row.iter().zip(&before) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        for code in [RowCode::Bf16, RowCode::Fp8 { rotary: 16 }, RowCode::HadamardFp8] {
            let codec = RowCodec { code, dim: 64 };
            let mut row = vec![1f32; 64];
            row[3] = f32::NAN;
            // SAFETY: the row has as many channels.
            unsafe { codec.round(row.as_mut_ptr()) };
            assert!(row.iter().any(|v| !v.is_finite()), "{code:?}");
        }
    }
}
