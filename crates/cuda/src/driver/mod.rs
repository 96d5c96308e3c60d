//! The checked ring: every driver call has an error, every resource an owner.

macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: each use states above why its arguments are what the driver asks for.
        check(stringify!($name), unsafe { sys::$name($($arg),*) })
    };
}

mod bytes;
mod event;
mod graph;
mod module;
mod survey;
mod tensor;
mod timer;

pub use bytes::{DeviceBytes, PinnedBytes};
pub use event::Event;
pub use graph::{Graph, GraphExec, Node, Wait};
pub use module::{Function, Module, Shape};
pub use survey::{Gpu, gpus};
pub use tensor::{PageMap, TokenMap};
pub use timer::Timer;

use crate::CudaError;
use core::ffi::CStr;
use core::ptr::null_mut;
use cudarc::driver::sys;
use std::sync::Arc;

/// Names under which the loader is asked for the driver.
const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = core::ptr::null();
    // SAFETY: the driver is loaded (it returned a code) and gives a static string or nothing.
    let named = unsafe { sys::cuGetErrorName(code, &mut text) } == sys::CUresult::CUDA_SUCCESS;
    let name = if named && !text.is_null() {
        // SAFETY: a string of the driver's own, terminated.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "an error without a name".into()
    };
    Err(CudaError::Driver { call, code: code as u32, name })
}

/// A GPU with its context and the one stream that steps run on.
#[derive(Debug)]
pub struct Driver {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The GPU's name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may have, in bytes.
    pub shared_bytes_max: u32,
    /// Version of the driver's interface: 13000 is CUDA 13.0.
    pub version: u32,
}

// SAFETY: contexts and streams may be used from any thread that makes the context current, which
// `bind` does; who uses them when is the device's business.
unsafe impl Send for Driver {}
// SAFETY: the driver's calls are thread safe.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens GPU `ordinal`.
    pub fn open(ordinal: u32) -> Result<Arc<Driver>, CudaError> {
        // SAFETY: loads the driver's library, which is made to be loaded so.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver { looked_for: LIBRARIES.to_vec() });
        }
        // Arguments here are places of this frame, or handles that the driver gave just before.
        call!(cuInit(0))?;
        let (mut count, mut version) = (0, 0);
        call!(cuDeviceGetCount(&mut count))?;
        call!(cuDriverGetVersion(&mut version))?;
        if ordinal >= count as u32 {
            return Err(CudaError::NoDevice { asked: ordinal, found: count as u32 });
        }
        let mut device = 0;
        call!(cuDeviceGet(&mut device, ordinal as i32))?;
        let mut name = [0 as core::ffi::c_char; 256];
        call!(cuDeviceGetName(name.as_mut_ptr(), 255, device))?;
        // SAFETY: terminated by the driver, and by the last byte that it may not write.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        use sys::CUdevice_attribute as A;
        let attribute = |which| {
            let mut value = 0;
            call!(cuDeviceGetAttribute(&mut value, which, device)).map(|()| value as u32)
        };
        let capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_bytes_max = attribute(shared)?;
        let mut context = null_mut();
        // Waiting for a step spins: a blocked thread wakes tens of microseconds late.
        let spin = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
        call!(cuDevicePrimaryCtxSetFlags_v2(device, spin))?;
        call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        call!(cuCtxSetCurrent(context))?;
        let mut stream = null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&mut stream, flags))?;
        let version = version as u32;
        Ok(Arc::new(Driver {
            device,
            context,
            stream,
            name,
            capability,
            multiprocessors,
            shared_bytes_max,
            version,
        }))
    }

    /// The same GPU and context with a stream of its own, for what need not wait for the steps.
    pub fn beside(&self) -> Result<Arc<Driver>, CudaError> {
        let mut context = null_mut();
        // Places of this frame; each of the two gives the context back once.
        call!(cuDevicePrimaryCtxRetain(&mut context, self.device))?;
        call!(cuCtxSetCurrent(context))?;
        let mut stream = null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&mut stream, flags))?;
        let name = self.name.clone();
        Ok(Arc::new(Driver { context, stream, name, ..*self }))
    }

    /// Makes the context current on this thread.
    pub fn bind(&self) -> Result<(), CudaError> {
        // The context lives as long as `self`.
        call!(cuCtxSetCurrent(self.context))
    }

    /// Waits until the stream is idle.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // The stream lives as long as `self`.
        call!(cuStreamSynchronize(self.stream))
    }

    /// Free and total bytes of the GPU's memory.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // Places of this frame.
        call!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Copies to the GPU, in stream order.
    ///
    /// # Safety
    /// `to` is `from.len()` bytes of the GPU, and `from` stays as it is until the stream is idle.
    pub unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // The caller's contract.
        call!(cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream))
    }

    /// Copies from the GPU, in stream order.
    ///
    /// # Safety
    /// `from` is `to.len()` bytes of the GPU, and nobody looks at `to` until the stream is idle.
    pub unsafe fn download(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        // The caller's contract.
        call!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.stream))
    }

    /// Fills bytes, in stream order.
    ///
    /// # Safety
    /// `to` is `bytes` bytes of the GPU.
    pub unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        // The caller's contract.
        call!(cuMemsetD8Async(to, byte, bytes, self.stream))
    }
}

impl Driver {
    /// Fills bytes beside the stream of the steps, and waits.
    ///
    /// # Safety
    /// `to` is `bytes` bytes of the GPU that no step touches.
    pub unsafe fn fill_aside(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.bind()?;
        // The caller's contract; the null stream does not wait for the steps' own.
        call!(cuMemsetD8Async(to, byte, bytes, null_mut()))?;
        call!(cuStreamSynchronize(null_mut()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Errors have no reader left; the process's end frees what these do not.
        let _ = self.bind();
        let _ = call!(cuStreamDestroy_v2(self.stream));
        let _ = call!(cuDevicePrimaryCtxRelease_v2(self.device));
    }
}
