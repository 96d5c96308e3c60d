//! Graphs, built node by node.

use super::module::cluster_value;
use super::{Driver, Shape, check};
use crate::CudaError;
use core::ffi::c_void;
use core::ptr::null_mut;
use cudarc::driver::sys;
use std::sync::Arc;

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

    /// Refuses nodes that take or give back memory when the graph is launched.
    fn check_nodes(&self) -> Result<(), CudaError> {
        let mut count = 0;
        // Without a place for nodes the driver counts them.
        call!(cuGraphGetNodes(self.graph, null_mut(), &mut count))?;
        let mut nodes = vec![null_mut(); count];
        // As many places as it counted.
        call!(cuGraphGetNodes(self.graph, nodes.as_mut_ptr(), &mut count))?;
        use sys::CUgraphNodeType as T;
        let (mut allocating, mut kind) = (0, T::CU_GRAPH_NODE_TYPE_EMPTY);
        for node in nodes {
            // A node of this graph.
            call!(cuGraphNodeGetType(node, &mut kind))?;
            let allocates = [T::CU_GRAPH_NODE_TYPE_MEM_ALLOC, T::CU_GRAPH_NODE_TYPE_MEM_FREE];
            allocating += usize::from(allocates.contains(&kind));
        }
        if allocating > 0 { Err(CudaError::GraphAllocates { nodes: allocating }) } else { Ok(()) }
    }

    /// Adds a node that allocates, which no graph of this room has.
    #[cfg(feature = "lab")]
    pub fn allocation(&mut self, driver: &Driver, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: plain numbers and null pointers, for which all zeros is a value.
        let mut params: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { core::mem::zeroed() };
        params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        params.poolProps.location.id = driver.device;
        params.bytesize = bytes;
        let mut node = null_mut();
        // Places of this frame; the graph is this one's own.
        call!(cuGraphAddMemAllocNode(&mut node, self.graph, core::ptr::null(), 0, &mut params))
    }

    /// Makes it launchable and puts it on the GPU.
    pub fn instantiate(self, driver: &Arc<Driver>) -> Result<GraphExec, CudaError> {
        self.check_nodes()?;
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
