//! The CPU device's kernels: one scalar definition each, reproduced by every instruction set.

pub mod gemm;
pub mod isa;
pub mod lanes;
pub mod math;
pub mod pool;
pub mod quant;
pub mod tile;
