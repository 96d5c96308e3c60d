//! Memory with an owner: the GPU's, and the host's that it copies from and to.

use super::{Driver, check};
use crate::CudaError;
use core::ffi::c_void;
use core::ptr::null_mut;
use cudarc::driver::sys;
use lockstep_device::ArenaBytes;
use std::sync::Arc;

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

impl ArenaBytes for DeviceBytes {
    fn arena_bytes(&self) -> u64 {
        self.len
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
