//! Element and quantised-block formats, with the scalar definition of their decoding.
//!
//! Every decoded weight is `scale * code + min` with **one rounding**: scale, code and their
//! product are exact in f32 for every format here (an f16 significand has 11 bits, sub-block
//! scales at most 7, codes at most 7), so only the final addition rounds. A device may therefore
//! fuse the multiply-add, or keep integer codes and f32 scales apart, and still reproduce
//! [`decode_blocks`] bit for bit.
//!
//! Layouts are those of GGUF files. All multi-byte fields are little endian.

use core::fmt;

use half::{bf16, f16};

/// How the elements of a tensor's row are stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(non_camel_case_types)]
pub enum Format {
    F32,
    F16,
    BF16,
    /// 32 elements in 34 bytes: f16 scale, 32 x i8.
    Q8_0,
    /// 32 elements in 18 bytes: f16 scale, 16 bytes of nibbles offset by 8.
    Q4_0,
    /// 32 elements in 20 bytes: f16 scale, f16 min, 16 bytes of nibbles.
    Q4_1,
    /// 32 elements in 22 bytes: f16 scale, 32 fifth bits, 16 bytes of nibbles, offset by 16.
    Q5_0,
    /// 32 elements in 24 bytes: f16 scale, f16 min, 32 fifth bits, 16 bytes of nibbles.
    Q5_1,
    /// 256 elements in 144 bytes: f16 scale and min units, 8 six-bit scales and mins, nibbles.
    Q4_K,
    /// 256 elements in 176 bytes: as Q4_K, with 256 fifth bits.
    Q5_K,
    /// 256 elements in 210 bytes: low nibbles, high bit pairs, 16 x i8 scales, f16 scale unit.
    Q6_K,
}

/// What a repacking device needs to know of a quantised format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantLayout {
    /// Consecutive elements that share one scale (and one min): 16 or 32.
    pub sub_block_elems: usize,
    /// Smallest integer code that the format can hold.
    pub code_min: i8,
    /// Largest integer code that the format can hold.
    pub code_max: i8,
    /// Whether sub-blocks carry a min; without one the min is -0.0, which adds nothing.
    pub has_min: bool,
}

/// A row length that is not a whole number of blocks, or a size beyond the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatError {
    PartialBlock { format: Format, elems: u64 },
    TooLarge { format: Format, elems: u64 },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FormatError::PartialBlock { format, elems } => write!(
                f,
                "{elems} elements are not a whole number of {format} blocks of {} elements",
                format.block_elems()
            ),
            FormatError::TooLarge { format, elems } => {
                write!(f, "{elems} elements of {format} exceed the address space")
            }
        }
    }
}

impl core::error::Error for FormatError {}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Format {
    /// Every format, in a fixed order.
    pub const ALL: [Format; 11] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
    ];

    /// The name that GGUF tools print.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q4_K => "Q4_K",
            Format::Q5_K => "Q5_K",
            Format::Q6_K => "Q6_K",
        }
    }

    /// The format of that name, or `None`.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Elements of a block: 1, 32 or 256.
    pub const fn block_elems(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 32,
            Format::Q4_K | Format::Q5_K | Format::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q4_K => 144,
            Format::Q5_K => 176,
            Format::Q6_K => 210,
        }
    }

    /// Bytes of `elems` elements, which must be whole blocks.
    pub fn bytes_for(self, elems: u64) -> Result<u64, FormatError> {
        let block = self.block_elems() as u64;
        if !elems.is_multiple_of(block) {
            return Err(FormatError::PartialBlock { format: self, elems });
        }
        (elems / block)
            .checked_mul(self.block_bytes() as u64)
            .filter(|&b| b <= isize::MAX as u64)
            .ok_or(FormatError::TooLarge { format: self, elems })
    }

    /// Sub-block structure of a quantised format; `None` for float formats.
    pub const fn quant(self) -> Option<QuantLayout> {
        let (sub_block_elems, code_min, code_max, has_min) = match self {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q8_0 => (32, -128, 127, false),
            Format::Q4_0 => (32, -8, 7, false),
            Format::Q4_1 => (32, 0, 15, true),
            Format::Q5_0 => (32, -16, 15, false),
            Format::Q5_1 => (32, 0, 31, true),
            Format::Q4_K => (32, 0, 15, true),
            Format::Q5_K => (32, 0, 31, true),
            Format::Q6_K => (16, -32, 31, false),
        };
        Some(QuantLayout { sub_block_elems, code_min, code_max, has_min })
    }

    /// Sub-blocks of a block of a quantised format (1, 8 or 16); `None` for float formats.
    pub const fn sub_blocks(self) -> Option<usize> {
        match self.quant() {
            Some(q) => Some(self.block_elems() / q.sub_block_elems),
            None => None,
        }
    }
}

/// The scalar definition: decodes whole blocks, in element order.
///
/// # Panics
/// When `bytes` is not whole blocks or `out` does not have exactly their elements.
pub fn decode_blocks(format: Format, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.len() / format.block_bytes();
    assert_eq!(bytes.len(), blocks * format.block_bytes(), "whole {format} blocks");
    assert_eq!(out.len(), blocks * format.block_elems(), "elements of {blocks} {format} blocks");
    match format {
        Format::F32 => {
            for (b, o) in bytes.chunks_exact(4).zip(out) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Format::F16 => {
            for (b, o) in bytes.chunks_exact(2).zip(out) {
                *o = f16_at(b, 0);
            }
        }
        Format::BF16 => {
            for (b, o) in bytes.chunks_exact(2).zip(out) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => decode_quantised(format, bytes, out),
    }
}

fn decode_quantised(format: Format, bytes: &[u8], out: &mut [f32]) {
    let (mut codes, mut scales, mut mins) = ([0i8; 256], [0f32; 16], [0f32; 16]);
    let elems = format.block_elems();
    let sub_blocks = format.sub_blocks().expect("a quantised format");
    let sub_elems = elems / sub_blocks;
    let (codes, scales, mins) =
        (&mut codes[..elems], &mut scales[..sub_blocks], &mut mins[..sub_blocks]);
    for (block, out) in bytes.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(elems)) {
        decode_codes(format, block, codes, scales, mins);
        for (s, out) in out.chunks_exact_mut(sub_elems).enumerate() {
            for (o, &c) in out.iter_mut().zip(&codes[s * sub_elems..]) {
                *o = scales[s] * f32::from(c) + mins[s];
            }
        }
    }
}

/// Takes one quantised block apart: element `e` is `scales[s] * codes[e] + mins[s]` with
/// `s = e / sub_block_elems`. Scales and mins are exact products of the stored values; a format
/// without mins gives -0.0.
///
/// # Panics
/// On a float format, or when a slice does not have exactly `block_bytes`, `block_elems`,
/// `sub_blocks` and `sub_blocks` entries.
pub fn decode_codes(
    format: Format,
    block: &[u8],
    codes: &mut [i8],
    scales: &mut [f32],
    mins: &mut [f32],
) {
    let sub_blocks = format.sub_blocks().expect("decode_codes takes a quantised format");
    assert_eq!(block.len(), format.block_bytes(), "one {format} block");
    assert_eq!(codes.len(), format.block_elems(), "codes of one {format} block");
    assert_eq!((scales.len(), mins.len()), (sub_blocks, sub_blocks), "sub-blocks of {format}");
    mins.fill(-0.0);
    match format {
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("asserted above"),
        Format::Q8_0 => {
            scales[0] = f16_at(block, 0);
            for (c, &b) in codes.iter_mut().zip(&block[2..]) {
                *c = b as i8;
            }
        }
        Format::Q4_0 => {
            scales[0] = f16_at(block, 0);
            nibbles(&block[2..18], codes);
            offset(codes, 8);
        }
        Format::Q4_1 => {
            (scales[0], mins[0]) = (f16_at(block, 0), f16_at(block, 2));
            nibbles(&block[4..20], codes);
        }
        Format::Q5_0 => {
            scales[0] = f16_at(block, 0);
            nibbles(&block[6..22], codes);
            fifth_bits(&block[2..6], codes);
            offset(codes, 16);
        }
        Format::Q5_1 => {
            (scales[0], mins[0]) = (f16_at(block, 0), f16_at(block, 2));
            nibbles(&block[8..24], codes);
            fifth_bits(&block[4..8], codes);
        }
        Format::Q4_K => {
            k_scales(block, scales, mins);
            for (codes, qs) in codes.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)) {
                nibbles(qs, codes);
            }
        }
        Format::Q5_K => {
            k_scales(block, scales, mins);
            let high = &block[16..48];
            for (codes, qs) in codes.chunks_exact_mut(64).zip(block[48..].chunks_exact(32)) {
                nibbles(qs, codes);
            }
            // Bit j of high byte l is the fifth bit of element 32 j + l.
            for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (c, &h) in codes.iter_mut().zip(high) {
                    *c |= ((h >> j & 1) << 4) as i8;
                }
            }
        }
        Format::Q6_K => q6_k(block, codes, scales),
    }
}

#[inline]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Low nibbles of `qs` are the first half of the codes, high nibbles the second.
fn nibbles(qs: &[u8], codes: &mut [i8]) {
    let (low, high) = codes.split_at_mut(qs.len());
    for ((l, h), &q) in low.iter_mut().zip(high).zip(qs) {
        (*l, *h) = ((q & 15) as i8, (q >> 4) as i8);
    }
}

fn fifth_bits(bits: &[u8], codes: &mut [i8]) {
    for (e, c) in codes.iter_mut().enumerate() {
        *c |= ((bits[e / 8] >> (e % 8) & 1) << 4) as i8;
    }
}

fn offset(codes: &mut [i8], by: i8) {
    for c in codes {
        *c -= by;
    }
}

/// Eight six-bit scales and mins in 12 bytes: entries 0..4 in the low six bits of bytes 0..4
/// (scales) and 4..8 (mins); entries 4..8 have their low nibbles in bytes 8..12 and their high
/// bit pairs on top of bytes 0..8.
fn k_scales(block: &[u8], scales: &mut [f32], mins: &mut [f32]) {
    let (unit, min_unit) = (f16_at(block, 0), f16_at(block, 2));
    let packed = &block[4..16];
    for j in 0..8 {
        let (scale, min) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let low = packed[j + 4];
            (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
        };
        scales[j] = unit * f32::from(scale);
        mins[j] = -(min_unit * f32::from(min));
    }
}

/// Two halves of 128 elements, each of 64 bytes of nibbles and 32 of bit pairs; quarter `q` of a
/// half takes bit pair `q`, and the low (q < 2) or high nibbles of its 32 of the 64 bytes.
fn q6_k(block: &[u8], codes: &mut [i8], scales: &mut [f32]) {
    let unit = f16_at(block, 208);
    for (s, &b) in scales.iter_mut().zip(&block[192..208]) {
        *s = unit * f32::from(b as i8);
    }
    for (half, codes) in codes.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
        for (q, codes) in codes.chunks_exact_mut(32).enumerate() {
            let low = &low[q % 2 * 32..][..32];
            for ((c, &l), &h) in codes.iter_mut().zip(low).zip(high) {
                *c = (l >> (q / 2 * 4) & 15 | (h >> (2 * q) & 3) << 4) as i8 - 32;
            }
        }
    }
}
