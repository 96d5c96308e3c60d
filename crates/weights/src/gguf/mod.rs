//! GGUF files, versions 2 and 3, little endian.
//!
//! Layout: header, metadata (key, type, value), tensor table (name, dimensions, type, offset), and
//! the tensors' data at aligned offsets. Nothing that the file says is believed: every length is
//! checked against the bytes that are there before it is used or allocated for, every tensor's
//! range against the file and against its neighbours'.
//!
//! Source: the format's specification, `docs/gguf.md` of ggml-org/ggml.

mod cursor;
mod facts;
mod fault;
mod metadata;
mod types;
mod value;
mod vocab;

use core::ops::Range;
use std::collections::HashSet;

use lockstep_plan::format::Format;

use cursor::Cursor;
pub(crate) use facts::{FactsFault, model_spec};
pub use fault::{GgufFault, Place};
pub use metadata::Metadata;
pub use value::{Value, ValueKind};
pub(crate) use vocab::vocab_data;

const DIMS_MAX: u32 = 4;
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
/// An empty key, its type and a byte.
const METADATA_ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;
/// An empty name, one dimension, type and offset.
const TENSOR_ENTRY_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// One entry of the tensor table, with its range checked to lie in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GgufTensor {
    pub name: String,
    pub format: Format,
    /// Fastest-varying dimension first, as in the file: `[columns, rows]` for a matrix.
    pub dims: Vec<u64>,
    /// Byte range from the start of the file.
    pub range: Range<usize>,
}

/// What a GGUF file says: metadata and the tensor table. Ranges refer to the bytes that it was
/// parsed from.
#[derive(Clone, PartialEq, Debug)]
pub struct GgufHeader {
    pub version: u32,
    pub metadata: Metadata,
    /// In the file's order.
    pub tensors: Vec<GgufTensor>,
}

struct RawTensor {
    name: String,
    format: Format,
    dims: Vec<u64>,
    bytes: u64,
    offset: u64,
}

impl GgufHeader {
    /// Parses and checks the whole header of a file, of which `file` is every byte.
    pub fn parse(file: &[u8]) -> Result<GgufHeader, GgufFault> {
        let mut cursor = Cursor::new(file);
        let version = read_version(&mut cursor, file)?;
        let place = Place::Header;
        let tensor_count = cursor.count(TENSOR_ENTRY_BYTES_MIN, &place)?;
        let metadata_count = cursor.count(METADATA_ENTRY_BYTES_MIN, &place)?;
        let metadata = Metadata::read(&mut cursor, file, metadata_count)?;
        let alignment = alignment(&metadata)?;
        if let Some(count) = metadata.uint("split.count")?.filter(|&n| n > 1) {
            return Err(GgufFault::Shards { count });
        }
        // The counts came before the metadata: check again against what is left.
        let max = cursor.left() as u64 / TENSOR_ENTRY_BYTES_MIN;
        if tensor_count > max {
            return Err(GgufFault::Count { place, count: tensor_count, max });
        }
        let mut raw = Vec::with_capacity(tensor_count as usize);
        for n in 0..tensor_count {
            raw.push(read_tensor(&mut cursor, n)?);
        }
        let mut names = HashSet::with_capacity(raw.len());
        if let Some(twice) = raw.iter().find(|t| !names.insert(t.name.as_str())) {
            return Err(GgufFault::DuplicateTensor { name: twice.name.clone() });
        }
        let data_start = (cursor.at() as u64).next_multiple_of(alignment);
        let tensors = place_tensors(raw, data_start, alignment, file.len() as u64)?;
        Ok(GgufHeader { version, metadata, tensors })
    }
}

fn read_version(cursor: &mut Cursor<'_>, file: &[u8]) -> Result<u32, GgufFault> {
    let not_gguf = || GgufFault::NotGguf { found: file[..file.len().min(4)].to_vec() };
    let magic = cursor.magic().map_err(|_| not_gguf())?;
    if &magic != b"GGUF" {
        return Err(not_gguf());
    }
    match cursor.u32(&Place::Header)? {
        version @ (2 | 3) => Ok(version),
        version if version != 0 && version & 0xffff == 0 => Err(GgufFault::BigEndian { version }),
        found => Err(GgufFault::Version { found }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufFault> {
    let found = metadata.uint("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
    if !found.is_power_of_two() || found > ALIGNMENT_MAX {
        return Err(GgufFault::Alignment { found });
    }
    Ok(found)
}

fn read_tensor(cursor: &mut Cursor<'_>, n: u64) -> Result<RawTensor, GgufFault> {
    let place = Place::TensorEntry(n);
    let name = cursor.text(&place)?.to_owned();
    if name.is_empty() {
        return Err(GgufFault::EmptyName { entry: n });
    }
    let n_dims = cursor.u32(&place)?;
    if n_dims == 0 || n_dims > DIMS_MAX {
        return Err(GgufFault::Dims { tensor: name, n_dims });
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(cursor.u64(&place)?);
    }
    let id = cursor.u32(&place)?;
    let offset = cursor.u64(&place)?;
    let Some(format) = types::format_of(id) else {
        return Err(GgufFault::TensorType { tensor: name, id });
    };
    let rows = dims[1..].iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let Some(rows) = rows.filter(|&n| n != 0 && dims[0] != 0) else {
        return Err(GgufFault::Shape { tensor: name, dims });
    };
    // Blocks do not run across rows.
    match format.bytes_for(dims[0]).map(|row| row.checked_mul(rows)) {
        Ok(Some(bytes)) => Ok(RawTensor { name, format, dims, bytes, offset }),
        Ok(None) => Err(GgufFault::Shape { tensor: name, dims }),
        Err(source) => Err(GgufFault::Block { tensor: name, source }),
    }
}

/// Checks that tensors are aligned, inside the file and apart from each other.
fn place_tensors(
    raw: Vec<RawTensor>,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<GgufTensor>, GgufFault> {
    let mut tensors = Vec::with_capacity(raw.len());
    for RawTensor { name, format, dims, bytes, offset } in raw {
        if !offset.is_multiple_of(alignment) {
            return Err(GgufFault::Misaligned { tensor: name, offset, alignment });
        }
        let start = data_start.saturating_add(offset);
        let end = start.saturating_add(bytes);
        if end > file_bytes {
            return Err(GgufFault::OutOfFile { tensor: name, offset: start, bytes, file_bytes });
        }
        tensors.push(GgufTensor { name, format, dims, range: start as usize..end as usize });
    }
    let mut by_offset: Vec<&GgufTensor> = tensors.iter().collect();
    by_offset.sort_by_key(|t| (t.range.start, t.range.end));
    for pair in by_offset.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(GgufFault::Overlap {
                first: pair[0].name.clone(),
                first_end: pair[0].range.end as u64,
                second: pair[1].name.clone(),
                second_start: pair[1].range.start as u64,
            });
        }
    }
    Ok(tensors)
}
