//! Safetensors files: a JSON header with each tensor's type, shape and byte range, then the data.
//!
//! The header is not believed: ranges must lie in the file, agree with type and shape, and cover
//! the data without a gap or an overlap, as the format demands; a name may be given once.
//!
//! Source: the format description in huggingface/safetensors.

use core::fmt;
use core::ops::Range;
use std::collections::HashSet;

use lockstep_plan::format::Format;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Header size above which the format calls a file invalid, bytes.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const DIMS_MAX: usize = 8;

/// One tensor, with its range checked to lie in the file and to fit type and shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SafeTensor {
    pub name: String,
    /// The type as the header writes it.
    pub dtype: String,
    /// Slowest-varying dimension first: `[rows, columns]` for a matrix.
    pub shape: Vec<u64>,
    /// Byte range from the start of the file.
    pub range: Range<usize>,
}

impl SafeTensor {
    /// The format, where the type is served as a weight.
    pub fn format(&self) -> Option<Format> {
        match self.dtype.as_str() {
            "F32" => Some(Format::F32),
            "F16" => Some(Format::F16),
            "BF16" => Some(Format::BF16),
            _ => None,
        }
    }
}

/// Why a file is not a sound safetensors file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SafetensorsFault {
    Truncated {
        need: u64,
        have: u64,
    },
    HeaderSize {
        bytes: u64,
        max: u64,
    },
    /// Not the JSON that the format describes; the parser's words.
    Json {
        what: String,
    },
    DuplicateTensor {
        name: String,
    },
    Dtype {
        tensor: String,
        found: String,
    },
    Shape {
        tensor: String,
        shape: Vec<u64>,
    },
    /// Type and shape need `want` bytes, the range has `found`.
    Size {
        tensor: String,
        found: u64,
        want: u64,
    },
    /// A range that is reversed or ends behind the data. Offsets within the data.
    OutOfFile {
        tensor: String,
        start: u64,
        end: u64,
        data_bytes: u64,
    },
    Overlap {
        first: String,
        second: String,
        at: u64,
    },
    Gap {
        before: String,
        at: u64,
        bytes: u64,
    },
    Trailing {
        bytes: u64,
    },
}

/// Parses and checks the header of a file, of which `file` is every byte. Tensors come in the
/// order of their data.
pub fn parse(file: &[u8]) -> Result<Vec<SafeTensor>, SafetensorsFault> {
    let have = file.len() as u64;
    let Some((len, rest)) = file.split_first_chunk::<8>() else {
        return Err(SafetensorsFault::Truncated { need: 8, have });
    };
    let header_bytes = u64::from_le_bytes(*len);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(SafetensorsFault::HeaderSize { bytes: header_bytes, max: HEADER_BYTES_MAX });
    }
    if header_bytes > rest.len() as u64 {
        return Err(SafetensorsFault::Truncated { need: 8 + header_bytes, have });
    }
    let (json, data) = rest.split_at(header_bytes as usize);
    let header: Header =
        serde_json::from_slice(json).map_err(|e| SafetensorsFault::Json { what: e.to_string() })?;
    let mut names = HashSet::with_capacity(header.0.len());
    if let Some((name, _)) = header.0.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(SafetensorsFault::DuplicateTensor { name: name.clone() });
    }
    let data_start = 8 + header_bytes as usize;
    let mut tensors = Vec::with_capacity(header.0.len());
    for (name, entry) in header.0 {
        tensors.push(check_entry(name, entry, data.len() as u64, data_start)?);
    }
    tensors.sort_by_key(|t| (t.range.start, t.range.end));
    check_cover(&tensors, data_start, file.len())?;
    Ok(tensors)
}

fn check_entry(
    name: String,
    entry: Entry,
    data_bytes: u64,
    data_start: usize,
) -> Result<SafeTensor, SafetensorsFault> {
    let Entry { dtype, shape, data_offsets: [start, end] } = entry;
    let Some(bits) = dtype_bits(&dtype) else {
        return Err(SafetensorsFault::Dtype { tensor: name, found: dtype });
    };
    let elems = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let want_bits = elems.and_then(|n| n.checked_mul(bits));
    let Some(want) = want_bits.filter(|b| b % 8 == 0 && shape.len() <= DIMS_MAX).map(|b| b / 8)
    else {
        return Err(SafetensorsFault::Shape { tensor: name, shape });
    };
    if start > end || end > data_bytes {
        return Err(SafetensorsFault::OutOfFile { tensor: name, start, end, data_bytes });
    }
    if end - start != want {
        return Err(SafetensorsFault::Size { tensor: name, found: end - start, want });
    }
    let range = data_start + start as usize..data_start + end as usize;
    Ok(SafeTensor { name, dtype, shape, range })
}

/// The ranges, in order, must cover the data exactly.
fn check_cover(
    tensors: &[SafeTensor],
    data_start: usize,
    file_bytes: usize,
) -> Result<(), SafetensorsFault> {
    let (mut at, mut last) = (data_start, None::<&SafeTensor>);
    for t in tensors {
        let offset = (t.range.start - data_start) as u64;
        if t.range.start < at {
            return Err(SafetensorsFault::Overlap {
                first: last.map_or_else(String::new, |l| l.name.clone()),
                second: t.name.clone(),
                at: offset,
            });
        }
        if t.range.start > at {
            let bytes = (t.range.start - at) as u64;
            return Err(SafetensorsFault::Gap {
                before: t.name.clone(),
                at: offset - bytes,
                bytes,
            });
        }
        (at, last) = (t.range.end, Some(t));
    }
    if at != file_bytes {
        return Err(SafetensorsFault::Trailing { bytes: (file_bytes - at) as u64 });
    }
    Ok(())
}

/// Bits of an element of a type that the format defines.
fn dtype_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header as a list, so that a name given twice is seen.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut out = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        out.push((name, map.next_value()?));
                    }
                }
                Ok(Header(out))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl fmt::Display for SafetensorsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SafetensorsFault::Truncated { need, have } => {
                write!(f, "truncated: the header needs {need} bytes, the file has {have}")
            }
            SafetensorsFault::HeaderSize { bytes, max } => write!(
                f,
                "not a safetensors file: its first 8 bytes give a header of {bytes} bytes, at most \
                 {max} are allowed"
            ),
            SafetensorsFault::Json { what } => write!(f, "the header is malformed: {what}"),
            SafetensorsFault::DuplicateTensor { name } => {
                write!(f, "tensor `{name}` is given twice")
            }
            SafetensorsFault::Dtype { tensor, found } => {
                write!(f, "tensor `{tensor}` has the unknown type `{found}`")
            }
            SafetensorsFault::Shape { tensor, shape } => write!(
                f,
                "tensor `{tensor}` has shape {shape:?}: more than {DIMS_MAX} dimensions, or a \
                 size that overflows or is not whole bytes"
            ),
            SafetensorsFault::Size { tensor, found, want } => write!(
                f,
                "tensor `{tensor}` has {found} bytes of data, its type and shape need {want}"
            ),
            SafetensorsFault::OutOfFile { tensor, start, end, data_bytes } => write!(
                f,
                "tensor `{tensor}` has data offsets {start} to {end}, the file has {data_bytes} \
                 bytes of data; it is truncated or its header is wrong"
            ),
            SafetensorsFault::Overlap { first, second, at } => {
                write!(f, "tensors `{first}` and `{second}` overlap at data offset {at}")
            }
            SafetensorsFault::Gap { before, at, bytes } => write!(
                f,
                "{bytes} bytes at data offset {at}, before tensor `{before}`, belong to no tensor"
            ),
            SafetensorsFault::Trailing { bytes } => {
                write!(f, "{bytes} bytes after the last tensor belong to no tensor")
            }
        }
    }
}

impl core::error::Error for SafetensorsFault {}
