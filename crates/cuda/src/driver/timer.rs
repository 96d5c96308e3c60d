//! Times on the GPU.

use super::{Driver, check};
use crate::CudaError;
use core::ptr::null_mut;
use cudarc::driver::sys;

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
