//! Why a model could not be opened.

use core::fmt;
use std::io;
use std::path::PathBuf;

use crate::gguf::GgufFault;
use crate::hf::ConfigFault;
use crate::role::Role;
use crate::safetensors::SafetensorsFault;
use crate::spec::SpecFault;

/// Architectures that this build serves, by the names that GGUF files and `config.json` use.
pub const SUPPORTED_ARCHITECTURES: [&str; 5] =
    ["llama", "mistral", "qwen2", "qwen3", "deepseek_v4"];

/// The errors of this room. Each names the file; what is wrong inside it is the fault's to say.
#[derive(Debug)]
pub enum WeightsError {
    Io {
        file: PathBuf,
        source: io::Error,
    },
    NotAFile {
        file: PathBuf,
    },
    /// A path that is neither a GGUF file nor a folder with the files of a Hugging Face model.
    NotAModel {
        path: PathBuf,
        found: Found,
    },
    Gguf {
        file: PathBuf,
        fault: GgufFault,
    },
    Safetensors {
        file: PathBuf,
        fault: SafetensorsFault,
    },
    Config {
        file: PathBuf,
        fault: ConfigFault,
    },
    /// Seeded weights are not made for the architecture.
    NoSeeded {
        path: PathBuf,
    },
    /// Architecture facts that contradict each other or that this build cannot serve.
    Spec {
        file: PathBuf,
        fault: SpecFault,
    },
    /// A tensor that the architecture needs and no file holds.
    TensorMissing {
        path: PathBuf,
        role: Role,
        name: String,
    },
    /// A tensor that the architecture does not have. `count` says how many there are of the kind.
    TensorUnknown {
        file: PathBuf,
        name: String,
        count: usize,
    },
    TensorShape {
        file: PathBuf,
        name: String,
        found: Vec<u64>,
        want: Vec<u64>,
    },
    /// A data type that is legal in the container but not served as a weight.
    TensorType {
        file: PathBuf,
        name: String,
        found: String,
    },
    /// Weights of few bits without their scales.
    ScaleMissing {
        file: PathBuf,
        name: String,
        scales: String,
    },
    /// Scales of another type than their weights have.
    ScaleType {
        file: PathBuf,
        name: String,
        found: String,
        want: &'static str,
    },
    /// A code that stands for no number, or for none that the decoded weights can hold.
    NotANumber {
        file: PathBuf,
        name: String,
        row: u64,
        col: u64,
        code: u8,
        coding: &'static str,
    },
    /// The scale of a whole tensor is no finite number.
    ScaleValue {
        file: PathBuf,
        name: String,
        value: f32,
    },
    /// A table of expert ids that is not stored as integers.
    TableType {
        file: PathBuf,
        name: String,
        found: String,
    },
    /// A table of expert ids with an id that is none.
    TableEntry {
        file: PathBuf,
        name: String,
        token: u64,
        found: u64,
        experts: u32,
    },
    /// A tensor that two shards hold.
    TensorTwice {
        first: PathBuf,
        second: PathBuf,
        name: String,
    },
    /// The index sends a tensor to a shard that does not hold it.
    IndexLies {
        index: PathBuf,
        name: String,
        shard: String,
    },
}

/// What lies at a path that is not a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A `.safetensors` file: the folder around it is the model.
    SafetensorsFile,
    /// A folder without `config.json`.
    FolderWithoutConfig,
    /// A folder with `config.json` but neither `model.safetensors` nor its index.
    FolderWithoutWeights,
    OtherFile,
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsError::NoSeeded { path } => {
                write!(f, "{}: seeded weights are made for the Llama family only", path.display())
            }
            WeightsError::Io { file, source } => write!(f, "{}: {source}", file.display()),
            WeightsError::NotAFile { file } => {
                write!(f, "{}: not a regular file", file.display())
            }
            WeightsError::NotAModel { path, found } => {
                write!(f, "{}: not a model: {found}", path.display())
            }
            WeightsError::Gguf { file, fault } => write!(f, "{}: {fault}", file.display()),
            WeightsError::Safetensors { file, fault } => write!(f, "{}: {fault}", file.display()),
            WeightsError::Config { file, fault } => write!(f, "{}: {fault}", file.display()),
            WeightsError::Spec { file, fault } => write!(f, "{}: {fault}", file.display()),
            WeightsError::TensorMissing { path, role, name } => {
                write!(f, "{}: tensor `{name}` ({role}) is missing", path.display())
            }
            WeightsError::TensorUnknown { file, name, count } => {
                write!(f, "{}: tensor `{name}`", file.display())?;
                if *count > 1 {
                    write!(f, " and {} more", count - 1)?;
                }
                write!(f, " not part of the architecture that the file states")
            }
            WeightsError::TensorShape { file, name, found, want } => write!(
                f,
                "{}: tensor `{name}` has shape {found:?}, the architecture needs {want:?} \
                 (rows, columns)",
                file.display()
            ),
            WeightsError::TensorType { file, name, found } => write!(
                f,
                "{}: tensor `{name}` has type {found}; served from safetensors are F32, F16 and \
                 BF16 (of DeepSeek-V4 also FP8, MXFP4 and NVFP4 with their scales)",
                file.display()
            ),
            WeightsError::ScaleMissing { file, name, scales } => {
                write!(f, "{}: tensor `{name}` needs its scales `{scales}`", file.display())
            }
            WeightsError::ScaleType { file, name, found, want } => {
                write!(f, "{}: scales `{name}` have type {found}; {want} is needed", file.display())
            }
            WeightsError::NotANumber { file, name, row, col, code, coding } => write!(
                f,
                "{}: tensor `{name}` has code {code:#04x} at row {row}, column {col}; as {coding} \
                 it gives no number that weights can have",
                file.display()
            ),
            WeightsError::ScaleValue { file, name, value } => {
                write!(f, "{}: the scale `{name}` is {value}", file.display())
            }
            WeightsError::TableType { file, name, found } => write!(
                f,
                "{}: tensor `{name}` has type {found}; a table of expert ids is I32 or I64",
                file.display()
            ),
            WeightsError::TableEntry { file, name, token, found, experts } => write!(
                f,
                "{}: tensor `{name}` sends token {token} to expert {found}; there are {experts}",
                file.display()
            ),
            WeightsError::TensorTwice { first, second, name } => {
                write!(f, "{}: tensor `{name}` is in {} as well", second.display(), first.display())
            }
            WeightsError::IndexLies { index, name, shard } => write!(
                f,
                "{}: says that tensor `{name}` is in `{shard}`, which does not hold it",
                index.display()
            ),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Found::SafetensorsFile => {
                "a single safetensors file has no architecture facts; give the folder that holds \
                 it with its config.json"
            }
            Found::FolderWithoutConfig => {
                "the folder has no config.json; give a GGUF file or a Hugging Face folder \
                 (config.json, model.safetensors or model.safetensors.index.json, tokenizer.json)"
            }
            Found::FolderWithoutWeights => {
                "the folder has neither model.safetensors nor model.safetensors.index.json \
                 (PyTorch .bin files are not read: convert them to safetensors)"
            }
            Found::OtherFile => {
                "the file does not start as a GGUF file; give a GGUF file or a Hugging Face folder"
            }
        })
    }
}

impl core::error::Error for WeightsError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            WeightsError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
