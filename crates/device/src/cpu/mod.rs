//! The CPU device's kernels: one scalar definition each, reproduced by every instruction set.

pub mod attention;
mod audit;
mod away;
mod backend;
mod background;
mod call;
mod device;
pub mod embed;
mod exec;
mod faults;
pub mod gemm;
pub mod isa;
pub mod kv;
#[cfg(feature = "lab")]
pub mod lab;
pub mod lanes;
pub mod limits;
mod load;
pub mod math;
mod memory;
mod mix;
pub mod norm;
pub mod pool;
pub mod quant;
mod resolve;
mod resolve_v4;
mod room;
pub mod rope;
mod rows;
pub mod sample;
mod slab;
mod source;
pub mod tile;
pub mod tile_format;
pub mod v4;

pub use backend::CpuBackend;
pub use background::stand_back;
pub use device::CpuDevice;
