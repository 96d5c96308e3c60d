//! What captures take of the GPU's memory: expected before each, and measured after it.

use crate::CudaDevice;
use lockstep_device::DeviceError;
use lockstep_plan::StepPlan;
use std::time::Instant;

/// What arenas and captures of a device have come to.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Captured {
    /// Captured plans.
    pub plans: u32,
    /// Kernels in their graphs.
    pub kernels: u32,
    /// Those of them that are attention which turns the queries that it reads.
    pub turning: u32,
    /// Milliseconds of all captures, arenas left out.
    pub ms: f64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of arenas.
    pub arena_bytes: u64,
    /// Bytes that arenas and captures were expected to take of the GPU's memory.
    pub predicted_bytes: u64,
    /// Bytes by which the driver says that free memory shrank.
    pub taken_bytes: u64,
}

impl Captured {
    /// How far off the prediction was, in percent of what was taken.
    pub fn error_percent(&self) -> f64 {
        let (taken, predicted) = (self.taken_bytes as f64, self.predicted_bytes as f64);
        (predicted - taken) / taken.max(1.0) * 100.0
    }
}

/// Steps in which the driver takes memory from the GPU.
const GRANULE_BYTES: u64 = 2 << 20;

/// What an op of a plan takes of the GPU's memory in an uploaded graph: 2,480 to 2,590 bytes were
/// measured (H200, driver 580; 42 plans of the Qwen3-0.6B and 8B shapes).
const NODE_BYTES: u64 = 2560;

/// What an arena takes.
pub fn arena_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRANULE_BYTES)
}

/// What the graph of a plan takes, from the plan alone.
pub fn graph_bytes(plan: &StepPlan) -> u64 {
    plan.ops.iter().filter(|op| !op.kind.is_host()).count() as u64 * NODE_BYTES
}

impl CudaDevice {
    /// Runs what takes memory, and counts it beside what it was expected to take.
    pub(crate) fn counted<T>(
        &mut self,
        predicted: u64,
        run: impl FnOnce(&mut CudaDevice) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let free = self.free_and_total()?.0;
        let start = Instant::now();
        let done = run(self)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let left = self.free_and_total()?.0;
        let captured = &mut self.captured;
        captured.predicted_bytes += predicted;
        captured.taken_bytes += free.saturating_sub(left);
        captured.ms += ms;
        Ok(done)
    }
}
