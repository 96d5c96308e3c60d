//! Events: places of a stream that the host waits for.

use super::{Driver, check};
use crate::CudaError;
use core::ptr::null_mut;
use cudarc::driver::sys;
use std::sync::Arc;

/// A place of the steps' stream.
#[derive(Debug)]
pub struct Event {
    driver: Arc<Driver>,
    event: sys::CUevent,
}

// SAFETY: a handle of the context, which any thread may make current.
unsafe impl Send for Event {}

impl Event {
    /// An event that is over.
    pub fn new(driver: &Arc<Driver>) -> Result<Event, CudaError> {
        driver.bind()?;
        let mut event = null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // A place of this frame.
        call!(cuEventCreate(&mut event, flags))?;
        Ok(Event { driver: driver.clone(), event })
    }

    /// From now on it is this place: what was asked of the stream before.
    pub fn record(&self) -> Result<(), CudaError> {
        // Both live.
        call!(cuEventRecord(self.event, self.driver.stream))
    }

    /// Waits until everything before its place is done.
    pub fn wait(&self) -> Result<(), CudaError> {
        // It lives.
        call!(cuEventSynchronize(self.event))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.driver.bind();
        // Made by `new` and destroyed once.
        let _ = call!(cuEventDestroy_v2(self.event));
    }
}
