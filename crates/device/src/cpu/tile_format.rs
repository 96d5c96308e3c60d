//! How the elements of a tile are laid out: codes and scales, or floats ([`super::tile`]).

use super::quant::BLOCK;
use lockstep_plan::format::Format;

/// Output rows of a tile.
pub const LANES: usize = 16;

/// How a quantised tile stores a block's scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// An f16 scale.
    F16,
    /// An f16 scale and an f16 min.
    F16Min,
    /// An f32 scale and an f32 min: products of K-quant units and sub-scales, exact in f32.
    F32Min,
    /// Two f32 scales, for the low and the high 16 values.
    F32Halves,
}

impl Scales {
    /// Bytes of a block's header entry, for 16 rows.
    pub const fn entry_bytes(self) -> usize {
        match self {
            Scales::F16 => 32,
            Scales::F16Min => 64,
            Scales::F32Min | Scales::F32Halves => 128,
        }
    }
}

/// The element layout of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileFormat {
    /// 4-bit codes with zero 8 and an f16 scale: Q4_0, 18 bytes for 32 weights.
    U4Zero8,
    /// 4-bit codes, f16 scale and min: Q4_1, 20 bytes for 32 weights.
    U4Min,
    /// 4-bit codes, f32 scale and min: Q4_K, 24 bytes for 32 weights.
    U4Min32,
    /// 8-bit codes with zero 16 and an f16 scale: Q5_0, 34 bytes for 32 weights.
    U8Zero16,
    /// 8-bit codes with zero 128 and an f16 scale: Q8_0, 34 bytes for 32 weights.
    U8Zero128,
    /// 8-bit codes, f16 scale and min: Q5_1, 36 bytes for 32 weights.
    U8Min,
    /// 8-bit codes, f32 scale and min: Q5_K, 40 bytes for 32 weights.
    U8Min32,
    /// 8-bit codes with zero 32 and an f32 scale for each 16: Q6_K, 40 bytes for 32 weights.
    U8Halves32,
    F32,
    F16,
    BF16,
}

/// The constants of a quantised tile format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantTile {
    /// 4 or 8.
    pub code_bits: usize,
    /// Stored code minus code: 0, 8, 16, 32 or 128.
    pub zero: i32,
    /// The header.
    pub scales: Scales,
}

impl QuantTile {
    /// Bytes of a block's codes, for 16 rows.
    pub const fn code_bytes(self) -> usize {
        LANES * BLOCK * self.code_bits / 8
    }

    /// Bytes of the header of a tile of `blocks` blocks.
    pub const fn header_bytes(self, blocks: usize) -> usize {
        (blocks * self.scales.entry_bytes()).next_multiple_of(64)
    }
}

impl TileFormat {
    /// The tile format that holds `format` exactly.
    pub const fn of(format: Format) -> TileFormat {
        match format {
            Format::F32 => TileFormat::F32,
            Format::F16 => TileFormat::F16,
            Format::BF16 => TileFormat::BF16,
            Format::Q4_0 => TileFormat::U4Zero8,
            Format::Q4_1 => TileFormat::U4Min,
            Format::Q4_K => TileFormat::U4Min32,
            Format::Q5_0 => TileFormat::U8Zero16,
            Format::Q8_0 => TileFormat::U8Zero128,
            Format::Q5_1 => TileFormat::U8Min,
            Format::Q5_K => TileFormat::U8Min32,
            Format::Q6_K => TileFormat::U8Halves32,
        }
    }

    /// Its constants, or `None` for a float format.
    pub const fn quant(self) -> Option<QuantTile> {
        let (code_bits, zero, scales) = match self {
            TileFormat::U4Zero8 => (4, 8, Scales::F16),
            TileFormat::U4Min => (4, 0, Scales::F16Min),
            TileFormat::U4Min32 => (4, 0, Scales::F32Min),
            TileFormat::U8Zero16 => (8, 16, Scales::F16),
            TileFormat::U8Zero128 => (8, 128, Scales::F16),
            TileFormat::U8Min => (8, 0, Scales::F16Min),
            TileFormat::U8Min32 => (8, 0, Scales::F32Min),
            TileFormat::U8Halves32 => (8, 32, Scales::F32Halves),
            TileFormat::F32 | TileFormat::F16 | TileFormat::BF16 => return None,
        };
        Some(QuantTile { code_bits, zero, scales })
    }

    pub(super) const fn tile_bytes(self, k: usize) -> usize {
        match self {
            TileFormat::F32 => LANES * 4 * k,
            // An odd number of half lines is padded, so that tiles stay aligned.
            TileFormat::F16 | TileFormat::BF16 => (LANES * 2 * k).next_multiple_of(64),
            _ => match self.quant() {
                Some(q) => q.header_bytes(k / BLOCK) + k / BLOCK * q.code_bytes(),
                None => 0,
            },
        }
    }
}
