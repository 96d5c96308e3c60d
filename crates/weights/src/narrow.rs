//! Number formats of four and eight bits, decoded exactly.
//!
//! Sources: OCP's 8-bit floating point specification (E4M3 without infinities, E5M2) and its
//! microscaling formats (E8M0 scales, E2M1 elements); NVIDIA's NVFP4 (E2M1 elements, an E4M3 scale
//! for each 16 and one f32 scale a tensor).

/// Rows and columns of a block of 8-bit weights that share a scale.
pub const FP8_BLOCK: usize = 128;
/// Weights along a row that share an E8M0 scale.
pub const MXFP4_BLOCK: usize = 32;
/// Weights along a row that share an E4M3 scale.
pub const NVFP4_BLOCK: usize = 16;

/// An E4M3 number: no infinities, and one NaN of each sign.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => f32::from(m) * power_of_two(-9),
        (e, m) => f32::from(8 + m) * power_of_two(i32::from(e) - 10),
    };
    signed(code >> 7, magnitude)
}

/// An E5M2 number, with infinities and NaNs as in IEEE formats.
pub fn e5m2(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 2 & 31, code & 3);
    let magnitude = match (exponent, mantissa) {
        (31, 0) => f32::INFINITY,
        (31, _) => f32::NAN,
        (0, m) => f32::from(m) * power_of_two(-16),
        (e, m) => f32::from(4 + m) * power_of_two(i32::from(e) - 17),
    };
    signed(code >> 7, magnitude)
}

/// An E8M0 scale: a power of two from 2^-127, or NaN.
pub fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        // Below the smallest normal number.
        0 => f32::from_bits(1 << 22),
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// An E2M1 number: the low four bits of `code`.
pub fn e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    signed(code >> 3 & 1, MAGNITUDES[(code & 7) as usize])
}

fn signed(sign: u8, magnitude: f32) -> f32 {
    if sign == 1 { -magnitude } else { magnitude }
}

/// 2^n for a normal result.
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// How the elements of a matrix are coded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Coding<'a> {
    /// E4M3, one E8M0 scale for each block of 128 rows and columns.
    Fp8 { scales: &'a [u8] },
    /// E2M1, the low nibble first, one E8M0 scale for each 32 along a row.
    Mxfp4 { scales: &'a [u8] },
    /// E2M1, the low nibble first, one E4M3 scale for each 16 along a row, and `global`.
    Nvfp4 { scales: &'a [u8], global: f32 },
}

impl Coding<'_> {
    /// The name in messages and digests.
    pub fn name(&self) -> &'static str {
        match self {
            Coding::Fp8 { .. } => "FP8",
            Coding::Mxfp4 { .. } => "MXFP4",
            Coding::Nvfp4 { .. } => "NVFP4",
        }
    }

    /// The scales' bytes.
    pub fn scales(&self) -> &[u8] {
        match self {
            Coding::Fp8 { scales } | Coding::Mxfp4 { scales } | Coding::Nvfp4 { scales, .. } => {
                scales
            }
        }
    }

    /// The scale of the whole tensor; 1 where there is none.
    pub fn global(&self) -> f32 {
        match self {
            Coding::Nvfp4 { global, .. } => *global,
            Coding::Fp8 { .. } | Coding::Mxfp4 { .. } => 1.0,
        }
    }

    /// Decodes `rows x cols` elements. The first two codings are exact: few significant bits times
    /// a power of two, unless that falls below the normal numbers. In the third the product of
    /// element and scale is exact and the product with `global` is rounded once.
    ///
    /// # Panics
    /// When a slice does not have the size that the shape needs.
    pub fn decode(&self, bytes: &[u8], rows: usize, cols: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows * cols);
        for r in 0..rows {
            match *self {
                Coding::Fp8 { scales } => {
                    let across = cols.div_ceil(FP8_BLOCK);
                    let scale = |c: usize| e8m0(scales[r / FP8_BLOCK * across + c / FP8_BLOCK]);
                    let row = &bytes[r * cols..][..cols];
                    out.extend(row.iter().enumerate().map(|(c, &b)| e4m3(b) * scale(c)));
                }
                Coding::Mxfp4 { scales } => {
                    let scales = &scales[r * (cols / MXFP4_BLOCK)..];
                    let element =
                        |c: usize| nibble(bytes, r * cols + c) * e8m0(scales[c / MXFP4_BLOCK]);
                    out.extend((0..cols).map(element));
                }
                Coding::Nvfp4 { scales, global } => {
                    let scales = &scales[r * (cols / NVFP4_BLOCK)..];
                    let scale = |c: usize| e4m3(scales[c / NVFP4_BLOCK]);
                    let element = |c: usize| nibble(bytes, r * cols + c) * scale(c) * global;
                    out.extend((0..cols).map(element));
                }
            }
        }
        out
    }
}

fn nibble(bytes: &[u8], at: usize) -> f32 {
    e2m1(bytes[at / 2] >> (at % 2 * 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number of the IEEE shape in f64, from its fields.
    fn by_fields(code: u8, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
        let mantissa = f64::from(u32::from(code) & ((1 << mantissa_bits) - 1));
        let exponent = (u32::from(code) >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = mantissa / f64::from(1 << mantissa_bits);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            e => (1.0 + fraction) * 2f64.powi(e - bias),
        };
        let sign = u32::from(code) >> (exponent_bits + mantissa_bits) & 1;
        if sign == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_e4m3_code() {
        for code in 0..=255u8 {
            if code & 127 == 127 {
                assert!(e4m3(code).is_nan());
                continue;
            }
            let want = by_fields(code, 4, 3, 7);
            assert_eq!(f64::from(e4m3(code)), want, "{code:#x}");
            assert_eq!(e4m3(code).is_sign_negative(), code > 127);
        }
        assert_eq!((e4m3(0x7e), e4m3(0x01)), (448.0, 1.0 / 512.0));
    }

    #[test]
    fn every_e5m2_code() {
        for code in 0..=255u8 {
            let found = e5m2(code);
            match (code >> 2 & 31, code & 3) {
                (31, 0) => assert_eq!(found, signed(code >> 7, f32::INFINITY)),
                (31, _) => assert!(found.is_nan()),
                _ => assert_eq!(f64::from(found), by_fields(code, 5, 2, 15), "{code:#x}"),
            }
            // E5M2 is the upper half of an f16.
            let half = half::f16::from_bits(u16::from(code) << 8).to_f32();
            assert!(found == half || (found.is_nan() && half.is_nan()));
        }
    }

    #[test]
    fn every_e8m0_code() {
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn every_e2m1_code() {
        for code in 0..16u8 {
            let want = by_fields(code, 2, 1, 1);
            assert_eq!(f64::from(e2m1(code)), want, "{code:#x}");
            assert_eq!(e2m1(code).is_sign_negative(), code > 7);
            assert_eq!(e2m1(code | 0xf0).to_bits(), e2m1(code).to_bits());
        }
    }

    #[test]
    fn blocks_take_their_own_scales() {
        // 130 x 129: two blocks each way, the second of two rows and one column.
        let scales = [127, 128, 126, 129];
        let fp8 = Coding::Fp8 { scales: &scales }.decode(&vec![0x38; 130 * 129], 130, 129);
        assert_eq!((fp8[0], fp8[128], fp8[128 * 129], fp8[130 * 129 - 1]), (1.0, 2.0, 0.5, 4.0));
        // One row of 64: the low nibble is the even column.
        let scales = [127, 130];
        let mx = Coding::Mxfp4 { scales: &scales }.decode(&[0x21; 32], 1, 64);
        assert_eq!((mx[0], mx[1], mx[32], mx[63]), (0.5, 1.0, 4.0, 8.0));
        let scales = [0x38, 0x40, 0x30, 0x7e];
        let nv = Coding::Nvfp4 { scales: &scales, global: 0.25 }.decode(&[0x7f; 32], 1, 64);
        assert_eq!((nv[0], nv[1], nv[16], nv[32], nv[63]), (-1.5, 1.5, -3.0, -0.75, 672.0));
    }
}
