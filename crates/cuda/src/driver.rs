//! The checked ring: every driver call has an error, every resource an owner.

use crate::CudaError;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use cudarc::driver::sys;
use std::ffi::CString;
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

macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: each use states above why its arguments are what the driver asks for.
        check(stringify!($name), unsafe { sys::$name($($arg),*) })
    };
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

/// Memory of the GPU.
#[derive(Debug)]
pub struct DeviceBytes {
    driver: Arc<Driver>,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

impl DeviceBytes {
    /// Allocates; the bytes are what they are.
    pub fn new(driver: &Arc<Driver>, len: u64) -> Result<DeviceBytes, CudaError> {
        driver.bind()?;
        let mut address = 0;
        // A place of this frame.
        call!(cuMemAlloc_v2(&mut address, len.max(1) as usize))?;
        Ok(DeviceBytes { driver: driver.clone(), address, len })
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        let _ = self.driver.bind();
        // Allocated by `new` and freed once.
        let _ = call!(cuMemFree_v2(self.address));
    }
}

/// Memory of the host that the GPU copies from and to without a stop between.
#[derive(Debug)]
pub struct PinnedBytes {
    driver: Arc<Driver>,
    at: *mut u8,
    len: usize,
}

// SAFETY: host memory without thread affinity, reached through `&self` and `&mut self` only.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above.
unsafe impl Sync for PinnedBytes {}

impl PinnedBytes {
    /// Allocates zeroed bytes.
    pub fn new(driver: &Arc<Driver>, len: usize) -> Result<PinnedBytes, CudaError> {
        driver.bind()?;
        let mut at: *mut c_void = null_mut();
        // A place of this frame; portable, not write-combined: the host reads some of it back.
        call!(cuMemHostAlloc(&mut at, len.max(1), sys::CU_MEMHOSTALLOC_PORTABLE))?;
        let at = at.cast::<u8>();
        // SAFETY: fresh memory of at least `len` bytes.
        unsafe { core::ptr::write_bytes(at, 0, len) };
        Ok(PinnedBytes { driver: driver.clone(), at, len })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialised by `new`; copies into it end before anyone looks (the device waits
        // for the stream).
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        let _ = self.driver.bind();
        // Allocated by `new` and freed once.
        let _ = call!(cuMemFreeHost(self.at.cast()));
    }
}

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
pub struct Function(sys::CUfunction);

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

fn cluster_value(blocks: u32) -> sys::CUlaunchAttributeValue {
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

/// A node of a graph under construction.
#[derive(Clone, Copy, Debug)]
pub struct Node(sys::CUgraphNode);

/// A graph under construction.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
}

/// How a node waits for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It starts after the other has ended.
    End,
    /// It may start when all blocks of the other have said so, and waits for its end itself.
    Programmatic,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Result<Graph, CudaError> {
        let mut graph = null_mut();
        // A place of this frame.
        call!(cuGraphCreate(&mut graph, 0))?;
        Ok(Graph { graph })
    }

    /// Adds a kernel after `before`.
    ///
    /// # Safety
    /// As [`Driver::launch`], for every launch of the graph.
    pub unsafe fn kernel(
        &mut self,
        shape: &Shape,
        args: &[u64],
        before: &[(Node, Wait)],
    ) -> Result<Node, CudaError> {
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        let node_params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: shape.function.0,
            gridDimX: shape.grid.0,
            gridDimY: shape.grid.1,
            gridDimZ: 1,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            kernelParams: params.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let mut node = null_mut();
        // The caller's contract; the driver copies the argument before it returns.
        call!(cuGraphAddKernelNode_v2(&mut node, self.graph, core::ptr::null(), 0, &node_params))?;
        if shape.cluster > 1 {
            let value = cluster_value(shape.cluster);
            let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            call!(cuGraphKernelNodeSetAttribute(node, id, &value))?;
        }
        for (from, wait) in before {
            let programmatic = u8::from(*wait == Wait::Programmatic);
            let edge = sys::CUgraphEdgeData {
                from_port: programmatic,
                to_port: 0,
                type_: programmatic,
                reserved: [0; 5],
            };
            // Both nodes belong to this graph.
            call!(cuGraphAddDependencies_v2(self.graph, &from.0, &node, &edge, 1))?;
        }
        Ok(Node(node))
    }

    /// Makes it launchable and puts it on the GPU.
    pub fn instantiate(self, driver: &Arc<Driver>) -> Result<GraphExec, CudaError> {
        let mut exec = null_mut();
        // The graph is this one's own.
        call!(cuGraphInstantiateWithFlags(&mut exec, self.graph, 0))?;
        let exec = GraphExec { driver: driver.clone(), exec };
        // Beside the steps' stream, so that a capture elsewhere holds no step up.
        call!(cuGraphUpload(exec.exec, null_mut()))?;
        call!(cuStreamSynchronize(null_mut()))?;
        Ok(exec)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Made by `new` and destroyed once.
        let _ = call!(cuGraphDestroy(self.graph));
    }
}

/// A launchable graph.
#[derive(Debug)]
pub struct GraphExec {
    driver: Arc<Driver>,
    exec: sys::CUgraphExec,
}

// SAFETY: a handle of the context, which any thread may make current.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Launches it, in stream order.
    ///
    /// # Safety
    /// What its kernels point to is memory of the GPU, as when they were added.
    pub unsafe fn launch(&self) -> Result<(), CudaError> {
        // The caller's contract.
        call!(cuGraphLaunch(self.exec, self.driver.stream))
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let _ = self.driver.bind();
        // Made by `instantiate` and destroyed once.
        let _ = call!(cuGraphExecDestroy(self.exec));
    }
}

/// Times on the GPU between two places of the stream.
#[derive(Debug)]
pub struct Timer {
    events: [sys::CUevent; 2],
}

// SAFETY: handles of the context, which any thread may make current.
unsafe impl Send for Timer {}

impl Timer {
    /// Two events.
    pub fn new() -> Result<Timer, CudaError> {
        let mut events = [null_mut(); 2];
        for event in &mut events {
            // A place of this frame.
            call!(cuEventCreate(event, 0))?;
        }
        Ok(Timer { events })
    }

    /// Marks the start (0) or the end (1).
    pub fn mark(&self, driver: &Driver, which: usize) -> Result<(), CudaError> {
        // Both live.
        call!(cuEventRecord(self.events[which], driver.stream))
    }

    /// Milliseconds between the marks, once the stream is idle.
    pub fn ms(&self) -> Result<f32, CudaError> {
        let mut ms = 0.0;
        // Both were recorded; a place of this frame.
        call!(cuEventElapsedTime_v2(&mut ms, self.events[0], self.events[1]))?;
        Ok(ms)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for event in self.events {
            // Made by `new` and destroyed once.
            let _ = call!(cuEventDestroy_v2(event));
        }
    }
}
