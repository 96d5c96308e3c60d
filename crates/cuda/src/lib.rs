//! The CUDA device: proven plans as CUDA graphs, built node by node.
//!
//! Three rings: *raw* is the driver's own interface (`cudarc::driver::sys`, loaded at run time),
//! *checked* gives every call an error and every resource an owner ([`driver`]), *safe* is
//! [`CudaDevice`] behind the device port. No raw handle leaves this room, and nothing of CUDA is
//! needed to build it.

mod ahead;
mod attention;
mod away;
mod backend;
mod captured;
mod device;
mod digest;
mod driver;
mod error;
mod exec;
mod fuse;
mod gemm;
mod kernels;
#[cfg(feature = "lab")]
mod lab;
mod launch;
mod memory;
mod nvrtc;
mod probe;
mod resolve;
mod run;

pub use backend::{CudaBackend, TileFormat, gemm_slices};
pub use captured::Captured;
pub use device::CudaDevice;
pub use driver::{Gpu, gpus};
pub use error::CudaError;
pub use kernels::{KernelSource, architecture_for, architectures};
pub use nvrtc::{Compiled, Compiler, compile, compiler, target};
pub use probe::{OpTime, Probe, Report};
