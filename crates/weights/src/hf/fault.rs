//! What can be wrong with a Hugging Face folder's JSON files.

use core::fmt;

/// Why `config.json` or the shard index cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigFault {
    TooLarge {
        bytes: u64,
        max: u64,
    },
    /// Not JSON, or not the shape of this file; the parser's words.
    Json {
        what: String,
    },
    KeyMissing {
        key: String,
    },
    KeyType {
        key: String,
        found: String,
        want: &'static str,
    },
    Unsupported {
        key: String,
        found: String,
        supported: &'static str,
    },
    /// A shard's name in the index that is not a plain file name.
    ShardName {
        tensor: String,
        shard: String,
    },
    NoTensors,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigFault::TooLarge { bytes, max } => {
                write!(f, "the file has {bytes} bytes, at most {max} are read")
            }
            ConfigFault::Json { what } => write!(f, "malformed: {what}"),
            ConfigFault::KeyMissing { key } => write!(f, "`{key}` is missing"),
            ConfigFault::KeyType { key, found, want } => {
                write!(f, "`{key}` is {found}, {want} is needed")
            }
            ConfigFault::Unsupported { key, found, supported } => {
                write!(f, "`{key}` is {found}; supported: {supported}")
            }
            ConfigFault::ShardName { tensor, shard } => write!(
                f,
                "tensor `{tensor}` is said to be in `{shard}`, which is not the name of a \
                 .safetensors file in the same folder"
            ),
            ConfigFault::NoTensors => f.write_str("`weight_map` names no tensor"),
        }
    }
}

impl core::error::Error for ConfigFault {}
