//! DeepSeek-V4 checkpoints: facts, roles and tensor names as DeepSeek's own releases write them.

mod coded;
pub(crate) mod config;
pub(crate) mod layout;
mod role;
mod spec;

pub use layout::{roles as v4_roles, shape_of as v4_shape_of};
pub use role::{HyperRole, V4Part, V4Place, V4Role};
pub use spec::{Compression, DeepSeekV4Spec, V4_HYPER_STREAMS_MAX};
