//! Compiled kernels, and their launches in stream order.

use super::{Driver, check};
use crate::CudaError;
use core::ffi::c_void;
use core::ptr::null_mut;
use cudarc::driver::sys;
use std::ffi::CString;
use std::sync::Arc;

/// As much shared memory as there is, in percent.
const ALL_SHARED: i32 = 100;

/// Compiled kernels on the GPU.
#[derive(Debug)]
pub struct Module {
    driver: Arc<Driver>,
    module: sys::CUmodule,
}

// SAFETY: a module belongs to the context, which any thread may make current.
unsafe impl Send for Module {}
// SAFETY: `&Module` only looks functions up, which the driver allows from any thread.
unsafe impl Sync for Module {}

/// A kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function(pub(super) sys::CUfunction);

// SAFETY: a handle; what it names lives as long as the modules, which the device owns.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a cubin.
    pub fn load(driver: &Arc<Driver>, cubin: &[u8]) -> Result<Module, CudaError> {
        driver.bind()?;
        let mut module = null_mut();
        // The bytes are a whole cubin, made by the toolkit; the driver refuses anything else.
        call!(cuModuleLoadData(&mut module, cubin.as_ptr().cast()))?;
        Ok(Module { driver: driver.clone(), module })
    }

    /// Looks a kernel up and lets it have all the shared memory that a block may have.
    pub fn function(&self, name: &str) -> Result<Option<Function>, CudaError> {
        let text = CString::new(name).expect("kernel names hold no zero byte");
        let mut function = null_mut();
        // SAFETY: the module is loaded and the name terminated.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, self.module, text.as_ptr()) };
        if code == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Ok(None);
        }
        check("cuModuleGetFunction", code)?;
        let mut fixed = 0;
        use sys::CUfunction_attribute as F;
        let fixed_bytes = F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // The function was just found.
        call!(cuFuncGetAttribute(&mut fixed, fixed_bytes, function))?;
        let most = self.driver.shared_bytes_max as i32 - fixed;
        let dynamic = F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(cuFuncSetAttribute(function, dynamic, most))?;
        // A multiprocessor that has to move the border between shared memory and cache lets what it
        // runs end first: no kernel would start beside its predecessor.
        let carve_out = F::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        call!(cuFuncSetAttribute(function, carve_out, ALL_SHARED))?;
        Ok(Some(Function(function)))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.driver.bind();
        // Loaded by `load` and unloaded once.
        let _ = call!(cuModuleUnload(self.module));
    }
}

/// A kernel with its shape; arguments lie in one struct, passed by value.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The kernel.
    pub function: Function,
    /// Blocks.
    pub grid: (u32, u32),
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Blocks of a cluster; 1 is none.
    pub cluster: u32,
}

pub(super) fn cluster_value(blocks: u32) -> sys::CUlaunchAttributeValue {
    // SAFETY: a union of plain numbers, for which all zeros is a value.
    let mut value: sys::CUlaunchAttributeValue = unsafe { core::mem::zeroed() };
    value.clusterDim.x = blocks;
    value.clusterDim.y = 1;
    value.clusterDim.z = 1;
    value
}

impl Driver {
    /// Launches a kernel, in stream order.
    ///
    /// # Safety
    /// `args` are the kernel's one argument, and what it points to is memory of the GPU that
    /// nothing else touches meanwhile.
    pub unsafe fn launch(&self, shape: &Shape, args: &[u64]) -> Result<(), CudaError> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: cluster_value(shape.cluster),
        };
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid.0,
            gridDimY: shape.grid.1,
            gridDimZ: 1,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.stream,
            attrs: &mut attribute,
            numAttrs: u32::from(shape.cluster > 1),
        };
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        // The caller's contract; the driver copies the argument before it returns.
        call!(cuLaunchKernelEx(&config, shape.function.0, params.as_mut_ptr(), null_mut()))
    }
}
