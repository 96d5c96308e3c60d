//! How DeepSeek-V4's key-value rows and index keys are kept.

/// Channels that share an E8M0 scale in [`RowCode::Fp8`].
pub const FP8_ROW_BLOCK: u32 = 64;
/// Channels that share an E8M0 scale in [`RowCode::HadamardFp4`].
pub const FP4_ROW_BLOCK: u32 = 32;

/// How a row is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowCode {
    /// 32-bit floats.
    F32,
    /// The upper halves of 32-bit floats, rounded to nearest even.
    Bf16,
    /// E4M3 in blocks of 64 channels with an E8M0 scale each; the last `rotary` channels as bf16.
    Fp8 { rotary: u32 },
    /// Turned by a normalised Hadamard matrix, then E4M3 with one f32 scale.
    HadamardFp8,
    /// Turned the same way, then E2M1 in blocks of 32 with an E8M0 scale each.
    HadamardFp4,
}

impl RowCode {
    /// Bytes of a row of `dim` channels: a multiple of 4.
    pub const fn row_bytes(self, dim: u32) -> u32 {
        match self {
            RowCode::F32 => 4 * dim,
            RowCode::Bf16 => 2 * dim,
            RowCode::Fp8 { rotary } => {
                let plain = dim - rotary;
                plain + 2 * rotary + plain.div_ceil(FP8_ROW_BLOCK).next_multiple_of(8)
            }
            RowCode::HadamardFp8 => dim + 4,
            RowCode::HadamardFp4 => dim / 2 + dim.div_ceil(FP4_ROW_BLOCK).next_multiple_of(4),
        }
    }

    /// True where rows are turned by a Hadamard matrix, which needs a power of two of channels.
    pub const fn is_turned(self) -> bool {
        matches!(self, RowCode::HadamardFp8 | RowCode::HadamardFp4)
    }
}

/// Element type of index keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum IndexDtype {
    /// As computed.
    #[default]
    F32,
    /// Rounded.
    Bf16,
    /// [`RowCode::HadamardFp8`].
    Fp8,
    /// [`RowCode::HadamardFp4`].
    Fp4,
}

impl IndexDtype {
    /// How a key is kept.
    pub const fn code(self) -> RowCode {
        match self {
            IndexDtype::F32 => RowCode::F32,
            IndexDtype::Bf16 => RowCode::Bf16,
            IndexDtype::Fp8 => RowCode::HadamardFp8,
            IndexDtype::Fp4 => RowCode::HadamardFp4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 448 codes, 64 rotary channels of two bytes, 8 bytes of scales of which 7 are used.
    #[test]
    fn a_row_of_the_released_model_takes_584_bytes() {
        assert_eq!(RowCode::Fp8 { rotary: 64 }.row_bytes(512), 584);
        assert_eq!(RowCode::HadamardFp8.row_bytes(128), 132);
        assert_eq!(RowCode::HadamardFp4.row_bytes(128), 68);
        assert_eq!((RowCode::Bf16.row_bytes(128), RowCode::F32.row_bytes(64)), (256, 256));
    }
}
