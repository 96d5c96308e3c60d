//! What can be wrong with a GGUF file.

use core::fmt;

use lockstep_plan::format::{Format, FormatError};

use super::types::type_name;
use super::value::ValueKind;

/// Where in a file a fault was met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Header,
    /// The n-th metadata key.
    MetadataKey(u64),
    MetadataValue(String),
    /// The n-th entry of the tensor table.
    TensorEntry(u64),
}

/// Why a file is not a GGUF file that can be served.
#[derive(Clone, PartialEq, Debug)]
pub enum GgufFault {
    NotGguf {
        found: Vec<u8>,
    },
    BigEndian {
        version: u32,
    },
    Version {
        found: u32,
    },
    /// The file ends inside a field. Byte counts.
    Truncated {
        place: Place,
        offset: u64,
        need: u64,
        have: u64,
    },
    /// A count of things that cannot fit in the rest of the file.
    Count {
        place: Place,
        count: u64,
        max: u64,
    },
    NotUtf8 {
        place: Place,
        offset: u64,
    },
    ValueKind {
        key: String,
        id: u32,
    },
    Bool {
        key: String,
        found: u8,
    },
    ArrayDepth {
        key: String,
    },
    DuplicateKey {
        key: String,
    },
    Alignment {
        found: u64,
    },
    Shards {
        count: u64,
    },
    EmptyName {
        entry: u64,
    },
    DuplicateTensor {
        name: String,
    },
    Dims {
        tensor: String,
        n_dims: u32,
    },
    Shape {
        tensor: String,
        dims: Vec<u64>,
    },
    TensorType {
        tensor: String,
        id: u32,
    },
    Block {
        tensor: String,
        source: FormatError,
    },
    Misaligned {
        tensor: String,
        offset: u64,
        alignment: u64,
    },
    /// Byte range of a tensor, from the start of the file, that ends behind the file's end.
    OutOfFile {
        tensor: String,
        offset: u64,
        bytes: u64,
        file_bytes: u64,
    },
    Overlap {
        first: String,
        first_end: u64,
        second: String,
        second_start: u64,
    },
    KeyMissing {
        key: String,
    },
    KeyType {
        key: String,
        found: ValueKind,
        want: &'static str,
    },
    /// A number that does not fit what it is used for.
    KeyRange {
        key: String,
        found: i128,
        max: u64,
    },
    /// An array that must have as many entries as the vocabulary.
    ArrayLen {
        key: String,
        found: u64,
        want: u64,
    },
    /// A per-layer array whose entries differ.
    PerLayer {
        key: String,
    },
    /// A key that changes the computation in a way that is not built.
    Unsupported {
        key: String,
        found: String,
        supported: &'static str,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => f.write_str("the header"),
            Place::MetadataKey(n) => write!(f, "metadata key {n}"),
            Place::MetadataValue(key) => write!(f, "the value of `{key}`"),
            Place::TensorEntry(n) => write!(f, "tensor table entry {n}"),
        }
    }
}

/// The tensor types that are served, for messages.
pub(crate) fn supported_formats() -> String {
    Format::ALL.map(Format::name).join(", ")
}

impl fmt::Display for GgufFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufFault::NotGguf { found } => write!(
                f,
                "not a GGUF file: it starts with `{}`, a GGUF file with `GGUF`",
                found.escape_ascii()
            ),
            GgufFault::BigEndian { version } => write!(
                f,
                "a big-endian GGUF file (version {}); only little-endian files are read",
                version.swap_bytes()
            ),
            GgufFault::Version { found } => {
                write!(f, "GGUF version {found}; versions 2 and 3 are read")
            }
            GgufFault::Truncated { place, offset, need, have } => write!(
                f,
                "truncated in {place}: {need} bytes are needed at offset {offset}, {have} are left"
            ),
            GgufFault::Count { place, count, max } => write!(
                f,
                "{place} counts {count} elements, the rest of the file holds {max} at most"
            ),
            GgufFault::NotUtf8 { place, offset } => {
                write!(f, "{place}: the string at offset {offset} is not UTF-8")
            }
            GgufFault::ValueKind { key, id } => {
                write!(f, "metadata `{key}` has value type {id}; types 0 to 12 are defined")
            }
            GgufFault::Bool { key, found } => {
                write!(f, "metadata `{key}`: a boolean is 0 or 1, found {found}")
            }
            GgufFault::ArrayDepth { key } => {
                write!(f, "metadata `{key}`: arrays nested deeper than 4")
            }
            GgufFault::DuplicateKey { key } => write!(f, "metadata `{key}` is given twice"),
            GgufFault::Alignment { found } => write!(
                f,
                "general.alignment is {found}; it must be a power of two of at most 1 MiB"
            ),
            GgufFault::Shards { count } => write!(
                f,
                "one of {count} shards; sharded GGUF files are not read: merge them with \
                 `llama-gguf-split --merge`"
            ),
            GgufFault::EmptyName { entry } => write!(
                f,
                "tensor table entry {entry} has no name; the table is damaged or shorter than the \
                 header says"
            ),
            GgufFault::DuplicateTensor { name } => write!(f, "tensor `{name}` is given twice"),
            GgufFault::Dims { tensor, n_dims } => {
                write!(f, "tensor `{tensor}` has {n_dims} dimensions; 1 to 4 are defined")
            }
            GgufFault::Shape { tensor, dims } => write!(
                f,
                "tensor `{tensor}` has shape {dims:?}: a dimension is zero or the product \
                 overflows"
            ),
            GgufFault::TensorType { tensor, id } => write!(
                f,
                "tensor `{tensor}` has type {} ({id}), which is not served; served are {}",
                type_name(*id),
                supported_formats()
            ),
            GgufFault::Block { tensor, source } => write!(f, "tensor `{tensor}`: {source}"),
            GgufFault::Misaligned { tensor, offset, alignment } => write!(
                f,
                "tensor `{tensor}` has data offset {offset}, not a multiple of the alignment \
                 {alignment}"
            ),
            GgufFault::OutOfFile { tensor, offset, bytes, file_bytes } => write!(
                f,
                "tensor `{tensor}` has {bytes} bytes at offset {offset}, beyond the file's end at \
                 {file_bytes}; the file is truncated or its table is wrong"
            ),
            GgufFault::Overlap { first, first_end, second, second_start } => write!(
                f,
                "tensors `{first}` (ends at offset {first_end}) and `{second}` (starts at \
                 {second_start}) overlap"
            ),
            GgufFault::KeyMissing { key } => write!(f, "metadata `{key}` is missing"),
            GgufFault::KeyType { key, found, want } => {
                write!(f, "metadata `{key}` is {found}, {want} is needed")
            }
            GgufFault::KeyRange { key, found, max } => {
                write!(f, "metadata `{key}` is {found}; 0 to {max} can be used")
            }
            GgufFault::ArrayLen { key, found, want } => {
                write!(f, "metadata `{key}` has {found} entries, {want} are needed")
            }
            GgufFault::PerLayer { key } => write!(
                f,
                "metadata `{key}` differs between layers; only models with the same shape in \
                 every layer are served"
            ),
            GgufFault::Unsupported { key, found, supported } => {
                write!(f, "metadata `{key}` is {found}; supported: {supported}")
            }
        }
    }
}

impl core::error::Error for GgufFault {}
