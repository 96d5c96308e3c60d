//! Weight matrices repacked, once at load, into tiles of 16 output rows.
//!
//! A vector lane is an output row and K is walked in order, so no kernel ever adds across lanes
//! and the order of a sum does not depend on the vector width.
//!
//! A tile is one run of bytes, a multiple of 64:
//! - *quantised*: a header with the scales (and mins) of its K/32 blocks, padded to 64 bytes, then
//!   the codes. A block of 8-bit codes is 8 lines of 64 bytes; line `j` has, for each of the 16
//!   rows, the four codes of `k = 4 j .. 4 j + 4`. A block of 4-bit codes is 4 lines; the low
//!   nibbles of line `j` are line `j` of the 8-bit form and the high nibbles are line `j + 4`.
//!   Codes are stored unsigned, as `code + zero`. A block's header entry is 16 scales and then 16
//!   mins, or 16 scales of its low and 16 of its high half ([`Scales`]);
//! - *float*: 16 values for each `k`.
//!
//! Rows past N and the header's padding are zero, which decodes to finite weights.

use core::fmt;
use core::ops::Range;

use half::f16;
use lockstep_plan::format::{Format, decode_blocks, decode_codes};

use super::quant::BLOCK;
use super::tile_format::{LANES, QuantTile, Scales, TileFormat};

/// Largest N or K that a matrix may have.
pub const DIM_MAX: usize = 1 << 24;

/// A shape or a buffer that the kernels cannot work with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixError {
    /// N or K is zero or beyond [`DIM_MAX`].
    Shape { n: usize, k: usize },
    /// K is not a whole number of blocks.
    PartialBlock { format: Format, k: usize },
    /// The source has another size than N rows of the format.
    SourceBytes { expected: usize, found: usize },
    /// The destination has another size than the tiles.
    PackedBytes { expected: usize, found: usize },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MatrixError::Shape { n, k } => {
                write!(f, "a matrix of {n} x {k} weights; each side must be 1 to {DIM_MAX}")
            }
            MatrixError::PartialBlock { format, k } => write!(
                f,
                "rows of {k} weights; {format} needs a multiple of {}",
                format.block_elems()
            ),
            MatrixError::SourceBytes { expected, found } => {
                write!(f, "the weights have {found} bytes where the shape needs {expected}")
            }
            MatrixError::PackedBytes { expected, found } => {
                write!(f, "a buffer of {found} bytes for tiles of {expected}")
            }
        }
    }
}

impl core::error::Error for MatrixError {}

/// The shape and layout of a repacked matrix `[n][k]`; its bytes live in a buffer of the plan,
/// aligned to 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PackedMatrix {
    source: Format,
    format: TileFormat,
    n: usize,
    k: usize,
    tile_bytes: usize,
}

impl PackedMatrix {
    /// The layout for `n` output rows of `k` weights in `source` format.
    pub fn plan(source: Format, n: usize, k: usize) -> Result<PackedMatrix, MatrixError> {
        if n == 0 || k == 0 || n > DIM_MAX || k > DIM_MAX {
            return Err(MatrixError::Shape { n, k });
        }
        if !k.is_multiple_of(source.block_elems()) {
            return Err(MatrixError::PartialBlock { format: source, k });
        }
        let format = TileFormat::of(source);
        Ok(PackedMatrix { source, format, n, k, tile_bytes: format.tile_bytes(k) })
    }

    /// Output rows.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Weights of a row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// The layout of its tiles.
    pub const fn format(&self) -> TileFormat {
        self.format
    }

    /// The format that it was planned from.
    pub const fn source(&self) -> Format {
        self.source
    }

    /// True where the kernels read quantised activations; float weights read f32 ones.
    pub const fn takes_quantised(&self) -> bool {
        self.format.quant().is_some()
    }

    /// Tiles of 16 rows, the last one perhaps partly padding.
    pub const fn tiles(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes of a tile, a multiple of 64.
    pub const fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// Bytes of all tiles.
    pub const fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes
    }

    /// Bytes of a source row.
    pub const fn source_row_bytes(&self) -> usize {
        self.k / self.source.block_elems() * self.source.block_bytes()
    }
}

/// Repacks a whole matrix from rows in their file format.
pub fn repack(desc: &PackedMatrix, src: &[u8], dst: &mut [u8]) -> Result<(), MatrixError> {
    repack_tiles(desc, src, 0..desc.tiles(), dst)
}

/// Repacks some tiles, so that threads can share the work: `src` is the whole source matrix and
/// `dst` the bytes of those tiles alone.
///
/// # Panics
/// When `tiles` reaches past the matrix.
pub fn repack_tiles(
    desc: &PackedMatrix,
    src: &[u8],
    tiles: Range<usize>,
    dst: &mut [u8],
) -> Result<(), MatrixError> {
    assert!(tiles.end <= desc.tiles(), "tiles {tiles:?} of {}", desc.tiles());
    let row_bytes = desc.source_row_bytes();
    let expected = desc.n * row_bytes;
    if src.len() != expected {
        return Err(MatrixError::SourceBytes { expected, found: src.len() });
    }
    let expected = tiles.len() * desc.tile_bytes;
    if dst.len() != expected {
        return Err(MatrixError::PackedBytes { expected, found: dst.len() });
    }
    for (tile, dst) in tiles.zip(dst.chunks_exact_mut(desc.tile_bytes)) {
        dst.fill(0);
        let first = tile * LANES;
        let rows = src[first * row_bytes..].chunks_exact(row_bytes).take(LANES);
        for (lane, row) in rows.enumerate() {
            match desc.format.quant() {
                Some(q) => pack_quantised(desc, q, lane, row, dst),
                None => pack_float(desc.source.block_bytes(), lane, row, dst),
            }
        }
    }
    Ok(())
}

/// Element sizes are the source's own, so packing moves bytes.
fn pack_float(elem: usize, lane: usize, row: &[u8], tile: &mut [u8]) {
    for (value, line) in row.chunks_exact(elem).zip(tile.chunks_exact_mut(LANES * elem)) {
        line[lane * elem..][..elem].copy_from_slice(value);
    }
}

fn pack_quantised(desc: &PackedMatrix, q: QuantTile, lane: usize, row: &[u8], tile: &mut [u8]) {
    let (header, codes) = tile.split_at_mut(q.header_bytes(desc.k / BLOCK));
    let entries = header.chunks_exact_mut(q.scales.entry_bytes());
    let blocks = entries.zip(codes.chunks_exact_mut(q.code_bytes()));
    match desc.source {
        // These are quads of nibbles or bytes already: packing moves them.
        Format::Q4_0 | Format::Q4_1 | Format::Q8_0 => {
            let scale_bytes = if desc.source == Format::Q4_1 { 4 } else { 2 };
            let flip = if desc.source == Format::Q8_0 { 0x80 } else { 0 };
            for (block, (entry, codes)) in row.chunks_exact(desc.source.block_bytes()).zip(blocks) {
                let (scales, quads) = block.split_at(scale_bytes);
                for (i, scale) in scales.chunks_exact(2).enumerate() {
                    entry[i * 32 + lane * 2..][..2].copy_from_slice(scale);
                }
                let (quads, _) = quads.as_chunks::<4>();
                for (quad, line) in quads.iter().zip(codes.chunks_exact_mut(64)) {
                    line[lane * 4..][..4].copy_from_slice(&quad.map(|c| c ^ flip));
                }
            }
        }
        _ => pack_decoded(desc.source, q, lane, row, blocks),
    }
}

/// The general way, through the format's scalar decoding.
fn pack_decoded<'a>(
    source: Format,
    q: QuantTile,
    lane: usize,
    row: &[u8],
    mut blocks: impl Iterator<Item = (&'a mut [u8], &'a mut [u8])>,
) {
    let (mut codes, mut scales, mut mins) = ([0i8; 256], [0f32; 16], [0f32; 16]);
    let (elems, subs) = (source.block_elems(), source.sub_blocks().unwrap_or(1));
    let subs_per_block = subs * BLOCK / elems;
    for block in row.chunks_exact(source.block_bytes()) {
        decode_codes(source, block, &mut codes[..elems], &mut scales[..subs], &mut mins[..subs]);
        for b in 0..elems / BLOCK {
            let Some((entry, lines)) = blocks.next() else { return };
            let s = b * subs_per_block;
            match q.scales {
                Scales::F16 => put_f16(entry, lane, scales[s]),
                Scales::F16Min => {
                    put_f16(entry, lane, scales[s]);
                    put_f16(entry, LANES + lane, mins[s]);
                }
                Scales::F32Min => {
                    put_f32(entry, lane, scales[s]);
                    put_f32(entry, LANES + lane, mins[s]);
                }
                Scales::F32Halves => {
                    put_f32(entry, lane, scales[s]);
                    put_f32(entry, LANES + lane, scales[s + 1]);
                }
            }
            let stored = |i: usize| (i32::from(codes[b * BLOCK + i]) + q.zero) as u8;
            if q.code_bits == 8 {
                for i in 0..BLOCK {
                    lines[code_at(i, lane)] = stored(i);
                }
            } else {
                for i in 0..BLOCK / 2 {
                    lines[code_at(i, lane)] = stored(i) | stored(i + BLOCK / 2) << 4;
                }
            }
        }
    }
}

/// Where code `i` of a lane stands in the lines of an 8-bit block.
#[inline]
pub(super) const fn code_at(i: usize, lane: usize) -> usize {
    i / 4 * 64 + lane * 4 + i % 4
}

/// Exact: the value came from an f16.
fn put_f16(entry: &mut [u8], at: usize, value: f32) {
    entry[at * 2..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

fn put_f32(entry: &mut [u8], at: usize, value: f32) {
    entry[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
}

/// A quantised block of one lane, as the scalar definition reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBlock {
    /// `code + zero`.
    pub stored: [u8; BLOCK],
    /// Scales of the low and the high half; equal but for [`Scales::F32Halves`].
    pub scale: [f32; 2],
    /// The min, where the format has one.
    pub min: Option<f32>,
}

/// Reads block `b` of `lane` out of a tile of `blocks` blocks.
pub(super) fn lane_block(
    q: QuantTile,
    tile: &[u8],
    blocks: usize,
    b: usize,
    lane: usize,
) -> LaneBlock {
    let (header, codes) = tile.split_at(q.header_bytes(blocks));
    let entry = &header[b * q.scales.entry_bytes()..][..q.scales.entry_bytes()];
    let lines = &codes[b * q.code_bytes()..][..q.code_bytes()];
    let stored = core::array::from_fn(|i| match q.code_bits {
        8 => lines[code_at(i, lane)],
        _ => lines[code_at(i % 16, lane)] >> (i / 16 * 4) & 15,
    });
    let f16_at = |at: usize| f16::from_le_bytes([entry[at * 2], entry[at * 2 + 1]]).to_f32();
    let f32_at = |at: usize| {
        f32::from_le_bytes([entry[at * 4], entry[at * 4 + 1], entry[at * 4 + 2], entry[at * 4 + 3]])
    };
    let (low, second) = match q.scales {
        Scales::F16 => (f16_at(lane), 0.0),
        Scales::F16Min => (f16_at(lane), f16_at(LANES + lane)),
        Scales::F32Min | Scales::F32Halves => (f32_at(lane), f32_at(LANES + lane)),
    };
    match q.scales {
        Scales::F16 => LaneBlock { stored, scale: [low; 2], min: None },
        Scales::F16Min | Scales::F32Min => LaneBlock { stored, scale: [low; 2], min: Some(second) },
        Scales::F32Halves => LaneBlock { stored, scale: [low, second], min: None },
    }
}

/// Decodes row `row` of a packed matrix, exactly as `format::decode_blocks` decodes its source.
///
/// # Panics
/// When `bytes` is not the whole matrix, `row` is outside it, or `out` is not K values.
pub fn unpack_row(desc: &PackedMatrix, bytes: &[u8], row: usize, out: &mut [f32]) {
    assert_eq!(bytes.len(), desc.bytes(), "bytes of the packed matrix");
    assert!(row < desc.n, "row {row} of {}", desc.n);
    assert_eq!(out.len(), desc.k, "values of a row");
    let tile = &bytes[row / LANES * desc.tile_bytes..][..desc.tile_bytes];
    let lane = row % LANES;
    let Some(q) = desc.format.quant() else {
        let elem = desc.source.block_bytes();
        if desc.source == Format::BF16 {
            for (line, o) in tile.chunks_exact(LANES * 2).zip(out) {
                let bits = u16::from_le_bytes([line[lane * 2], line[lane * 2 + 1]]);
                *o = f32::from_bits(u32::from(bits) << 16);
            }
            return;
        }
        for (line, o) in tile.chunks_exact(LANES * elem).zip(out) {
            decode_blocks(desc.source, &line[lane * elem..][..elem], core::slice::from_mut(o));
        }
        return;
    };
    let blocks = desc.k / BLOCK;
    for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let block = lane_block(q, tile, blocks, b, lane);
        let min = block.min.unwrap_or(-0.0);
        for (i, o) in out.iter_mut().enumerate() {
            let code = (i32::from(block.stored[i]) - q.zero) as f32;
            *o = block.scale[i / 16] * code + min;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values as bits, all NaN alike: their payload is not part of a weight.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
    }

    fn round_trip(format: Format, n: usize, units: usize, bytes: impl FnMut() -> u8) {
        let k = units * format.block_elems();
        let desc = PackedMatrix::plan(format, n, k).unwrap();
        let src: Vec<u8> =
            core::iter::repeat_with(bytes).take(n * desc.source_row_bytes()).collect();
        let mut packed = vec![0xaa; desc.bytes()];
        repack(&desc, &src, &mut packed).unwrap();
        let (mut found, mut expected) = (vec![0f32; k], vec![0f32; k]);
        for (row, src) in src.chunks_exact(desc.source_row_bytes()).enumerate() {
            unpack_row(&desc, &packed, row, &mut found);
            decode_blocks(format, src, &mut expected);
            assert_eq!(bits(&found), bits(&expected), "{format} row {row}");
        }
        // Tiles packed apart are the tiles packed together.
        for tile in 0..desc.tiles() {
            let mut apart = vec![0x55; desc.tile_bytes()];
            repack_tiles(&desc, &src, tile..tile + 1, &mut apart).unwrap();
            assert_eq!(apart, packed[tile * desc.tile_bytes()..][..desc.tile_bytes()]);
        }
    }

    #[test]
    fn every_byte_value_survives_the_round_trip() {
        for format in Format::ALL {
            let mut next = 0u8;
            round_trip(format, 19, 3, || {
                next = next.wrapping_mul(5).wrapping_add(17);
                next
            });
        }
    }

    #[test]
    fn common_formats_keep_their_size() {
        let size = |format| PackedMatrix::plan(format, 1024, 2048).unwrap().bytes();
        for (format, bytes_per_32) in
            [(Format::Q4_0, 18), (Format::Q4_1, 20), (Format::Q8_0, 34), (Format::BF16, 64)]
        {
            assert_eq!(size(format), 1024 * 2048 / 32 * bytes_per_32, "{format}");
        }
    }

    #[test]
    fn bad_shapes_and_sizes_are_named() {
        let plan = PackedMatrix::plan;
        assert_eq!(plan(Format::F32, 0, 8), Err(MatrixError::Shape { n: 0, k: 8 }));
        let (n, k) = (8, usize::MAX);
        assert_eq!(plan(Format::F32, n, k), Err(MatrixError::Shape { n, k }));
        let format = Format::Q4_K;
        assert_eq!(plan(format, 8, 64), Err(MatrixError::PartialBlock { format, k: 64 }));
        let desc = plan(Format::Q8_0, 16, 32).unwrap();
        let mut dst = vec![0; desc.bytes()];
        assert_eq!(
            repack(&desc, &[0; 543], &mut dst),
            Err(MatrixError::SourceBytes { expected: 544, found: 543 })
        );
        let expected = desc.bytes();
        assert_eq!(
            repack(&desc, &[0; 544], &mut dst[1..]),
            Err(MatrixError::PackedBytes { expected, found: expected - 1 })
        );
    }

    proptest! {
        #[test]
        fn any_matrix_survives_the_round_trip(
            format in prop::sample::select(Format::ALL.to_vec()),
            n in 1usize..40,
            units in 1usize..6,
            seed in any::<u64>(),
        ) {
            let mut state = seed | 1;
            round_trip(format, n, units, || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            });
        }
    }
}
