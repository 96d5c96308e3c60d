//! What the CUDA device fails at before it is a device.

use core::fmt;
use lockstep_device::DeviceError;

/// Why there is no CUDA device, or why the driver refused something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CudaError {
    /// No CUDA driver on this machine.
    NoDriver {
        /// Names that the loader was asked for.
        looked_for: Vec<&'static str>,
    },
    /// A driver, and no such GPU.
    NoDevice { asked: u32, found: u32 },
    /// This binary holds no kernels that the GPU runs, and none could be compiled.
    NoKernels {
        /// The GPU's compute capability.
        capability: (u32, u32),
        /// Architectures that were built in.
        built: Vec<String>,
        /// Why none were compiled, where that was tried.
        compiler: Option<Box<CudaError>>,
    },
    /// There is no NVRTC on this machine, or not all of it.
    NoCompiler {
        /// What was not found, and where.
        looked_for: Vec<String>,
    },
    /// NVRTC refused a file of kernels.
    Compile { file: String, code: u32, log: String },
    /// A kernel is not among those built in.
    KernelMissing { kernel: String },
    /// A graph would take memory when it is launched.
    GraphAllocates {
        /// Its nodes that allocate or free.
        nodes: usize,
    },
    /// The driver refused a call.
    Driver { call: &'static str, code: u32, name: String },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::NoDriver { looked_for } => write!(
                f,
                "no CUDA driver here: looked for {} where the loader looks; a machine with an \
                 NVIDIA driver of version 580 or newer has one, and --device cpu needs none",
                looked_for.join(", ")
            ),
            CudaError::NoDevice { asked, found } => {
                write!(f, "GPU {asked} was asked for and the CUDA driver sees {found}")
            }
            CudaError::NoKernels { capability: (major, minor), built, compiler } => {
                let built = if built.is_empty() { "none".into() } else { built.join(", ") };
                write!(
                    f,
                    "no kernels for a GPU of compute capability {major}.{minor} in this binary \
                     (built in: {built}); `cargo xtask cuda` compiles them before a build"
                )?;
                compiler.as_ref().map_or(Ok(()), |why| write!(f, "; at run time: {why}"))
            }
            CudaError::NoCompiler { looked_for } => write!(
                f,
                "no NVRTC: looked for {}; a CUDA toolkit of version 12 or 13 has it, and CUDA_HOME \
                 says where that is",
                looked_for.join(", ")
            ),
            CudaError::Compile { file, code, log } => {
                write!(f, "NVRTC refused {file} ({code}): {}", log.trim())
            }
            CudaError::KernelMissing { kernel } => {
                write!(f, "kernel {kernel} is not in the compiled kernels; run `cargo xtask cuda`")
            }
            CudaError::GraphAllocates { nodes } => write!(
                f,
                "refused: {nodes} of its nodes allocate or free memory, and a replay takes none: \
                 what a step needs lies in its arena"
            ),
            CudaError::Driver { call, code, name } => {
                write!(f, "{call} failed: {name} ({code})")
            }
        }
    }
}

impl core::error::Error for CudaError {}

impl From<CudaError> for DeviceError {
    fn from(e: CudaError) -> Self {
        match e {
            CudaError::Driver { call, code, name } => {
                DeviceError::Failed { op: call.into(), what: format!("{name} ({code})") }
            }
            other => DeviceError::Failed { op: "cuda".into(), what: other.to_string() },
        }
    }
}
