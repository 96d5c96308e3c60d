//! The CPU device's kernels: one scalar definition each, reproduced by every instruction set.

pub mod attention;
pub mod embed;
pub mod gemm;
pub mod isa;
pub mod kv;
pub mod lanes;
pub mod math;
pub mod norm;
pub mod pool;
pub mod quant;
pub mod rope;
pub mod sample;
pub mod tile;
