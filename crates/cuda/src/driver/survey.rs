//! What GPUs there are, without taking one.

use super::{LIBRARIES, check};
use crate::CudaError;
use core::ffi::CStr;
use cudarc::driver::sys;

/// What the driver says of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its number.
    pub ordinal: u32,
    /// Its name; a slice of a partitioned GPU (MIG) has `MIG` in it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Greatest clock of the multiprocessors, in MHz.
    pub clock_mhz: u32,
    /// Greatest clock of the memory, in MHz.
    pub memory_clock_mhz: u32,
    /// Whether processes may take contexts on it (compute mode).
    pub prohibited: bool,
}

impl Gpu {
    /// Whether it is a slice of a partitioned GPU.
    pub fn is_slice(&self) -> bool {
        self.name.split_whitespace().any(|word| word == "MIG")
    }
}

/// The driver's version (13000 is CUDA 13.0) and its GPUs.
///
/// # Errors
/// There is no driver, or it refuses to start.
pub fn gpus() -> Result<(u32, Vec<Gpu>), CudaError> {
    // SAFETY: loads the driver's library, which is made to be loaded so.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver { looked_for: LIBRARIES.to_vec() });
    }
    let (mut count, mut version) = (0, 0);
    // Arguments here are places of this frame, or handles that the driver gave just before.
    call!(cuInit(0))?;
    call!(cuDriverGetVersion(&mut version))?;
    call!(cuDeviceGetCount(&mut count))?;
    let found: Result<Vec<Gpu>, CudaError> = (0..count).map(gpu).collect();
    Ok((version as u32, found?))
}

fn gpu(ordinal: i32) -> Result<Gpu, CudaError> {
    use sys::CUdevice_attribute as A;
    let mut device = 0;
    call!(cuDeviceGet(&mut device, ordinal))?;
    let mut name = [0 as core::ffi::c_char; 256];
    call!(cuDeviceGetName(name.as_mut_ptr(), 255, device))?;
    // SAFETY: terminated by the driver, and by the last byte that it may not write.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0;
    call!(cuDeviceTotalMem_v2(&mut memory, device))?;
    let attribute = |which| {
        let mut value = 0;
        call!(cuDeviceGetAttribute(&mut value, which, device)).map(|()| value as u32)
    };
    let prohibited = sys::CUcomputemode_enum::CU_COMPUTEMODE_PROHIBITED as u32;
    Ok(Gpu {
        ordinal: ordinal as u32,
        name,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        clock_mhz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? / 1000,
        memory_clock_mhz: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)? / 1000,
        prohibited: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? == prohibited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_known_by_its_name() {
        let mut gpu = Gpu {
            ordinal: 0,
            name: "NVIDIA H200 MIG 1g.18gb".into(),
            capability: (9, 0),
            multiprocessors: 16,
            memory_bytes: 18 << 30,
            clock_mhz: 1980,
            memory_clock_mhz: 3201,
            prohibited: false,
        };
        assert!(gpu.is_slice());
        gpu.name = "NVIDIA H200".into();
        assert!(!gpu.is_slice());
    }
}
