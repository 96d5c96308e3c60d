//! Architectures as plan builders: facts of a model in, a step plan of a bucket out.
//!
//! This room allocates nothing on a device and schedules nothing. It asks a [`Backend`] for sizes
//! and says which weights, state and inputs a plan binds, by name.
#![forbid(unsafe_code)]

mod deepseek_v4;
mod emit;
mod error;
mod head;
mod inputs;
mod llama;
mod load;
mod model;
mod rope;
mod shape;

pub use deepseek_v4::DeepSeekV4;
pub use error::ModelError;
pub use llama::Llama;
pub use load::{SubPool, WeightLoad, WeightSource};
pub use lockstep_plan::Backend;
pub use model::Model;
pub use shape::PlanShape;
