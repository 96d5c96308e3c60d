//! Model files: GGUF and safetensors readers, architecture facts, digests.
//!
//! [`Checkpoint::open`] takes a GGUF file or a Hugging Face folder and gives the facts
//! ([`ModelSpec`]) and every tensor by its [`Role`], with shapes checked. No length, offset or
//! count that a file states is used before it was checked against the bytes that are there.
//!
//! `unsafe` is denied everywhere but in the one call that maps a file (`mmap.rs`).
#![deny(unsafe_code)]

mod checkpoint;
mod digest;
mod error;
mod file;
pub mod gguf;
mod hf;
mod layout;
mod mmap;
pub mod narrow;
mod role;
mod rope;
pub mod safetensors;
mod spec;
mod v4;
mod vocab;

pub use checkpoint::{Checkpoint, TensorRef};
pub use digest::{Digest, file_sha256};
pub use error::{Found, SUPPORTED_ARCHITECTURES, WeightsError};
pub use file::SourceFile;
pub use hf::{ConfigFault, config_spec};
pub use layout::{roles, shape_of};
pub use role::{LayerRole, Role};
pub use rope::{Pairing, Rope, RopeScaling};
pub use spec::{
    AttnBias, Family, HEAD_DIM_MAX, LAYERS_MAX, LlamaSpec, ModelSpec, SlidingWindow, SpecFault,
    WIDTH_MAX,
};
pub use v4::{
    Compression, DeepSeekV4Spec, HyperRole, V4_HYPER_STREAMS_MAX, V4Part, V4Place, V4Role,
    v4_roles, v4_shape_of,
};
pub use vocab::VocabData;
