//! The device that the settings ask for.

use crate::exit::{Exit, Failure};
#[cfg(feature = "cuda")]
use lockstep_cuda::{CudaDevice, KernelSource};
use lockstep_device::{CpuDevice, Device, cpu::CpuBackend};
use lockstep_flow::Settings;
use lockstep_flow::status::DeviceFacts;
use lockstep_plan::Backend;

/// Opens it.
pub fn open(settings: &Settings) -> Result<(Box<dyn Device>, DeviceFacts), Failure> {
    match settings.text("device.kind") {
        "cuda" => cuda(),
        _ => cpu(settings).map(|(device, facts)| (Box::new(device) as Box<dyn Device>, facts)),
    }
}

/// The side of it that shapes plans, which needs no device.
pub fn backend(settings: &Settings) -> Result<Box<dyn Backend>, Failure> {
    match settings.text("device.kind") {
        "cuda" => cuda_backend(),
        _ => Ok(Box::new(CpuBackend)),
    }
}

/// The CPU, whatever the settings ask for.
pub fn cpu(settings: &Settings) -> Result<(CpuDevice, DeviceFacts), Failure> {
    let threads = u32::try_from(settings.number("device.threads")).unwrap_or(u32::MAX);
    let device = CpuDevice::new(threads, settings.text("device.isa"))
        .map_err(|e| crate::knob_fault::of_device(settings, &e))?;
    let facts = DeviceFacts {
        name: "cpu".into(),
        isa: device.isa().name().into(),
        threads: device.threads(),
        arena_bytes: 0,
    };
    Ok((device, facts))
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<(Box<dyn Device>, DeviceFacts), Failure> {
    let cache = crate::pull::Store::cache(|name| std::env::var_os(name));
    let kernels = KernelSource::BuiltIn { cache: cache.map(|c| c.join("kernels")) };
    let device = CudaDevice::new(0, &kernels).map_err(|e| Failure::new(Exit::Resources, e))?;
    let (major, minor) = device.capability();
    let facts = DeviceFacts {
        name: device.name().into(),
        isa: format!("sm_{major}{minor}"),
        threads: device.multiprocessors(),
        arena_bytes: 0,
    };
    Ok((Box::new(device), facts))
}

#[cfg(feature = "cuda")]
fn cuda_backend() -> Result<Box<dyn Backend>, Failure> {
    Ok(Box::new(lockstep_cuda::CudaBackend::default()))
}

#[cfg(not(feature = "cuda"))]
fn without() -> Failure {
    let what = "this binary was built without the CUDA device: `cargo xtask cuda`, then \
                `cargo build --release --features cuda`, make one with it; --device cpu runs here";
    Failure::new(Exit::Resources, what)
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<(Box<dyn Device>, DeviceFacts), Failure> {
    Err(without())
}

#[cfg(not(feature = "cuda"))]
fn cuda_backend() -> Result<Box<dyn Backend>, Failure> {
    Err(without())
}
