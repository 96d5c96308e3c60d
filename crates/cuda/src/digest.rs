//! Digests of ranges of the GPU's memory, a warp a range.

use crate::CudaError;
use crate::driver::{DeviceBytes, Driver, PinnedBytes, Shape};
use crate::kernels::Kernels;
use crate::launch::{DigestArgs, Launch};
use std::sync::Arc;

/// Ranges that are digested by one launch.
const ITEMS: usize = 1 << 14;

/// Room for the ranges and their digests, made once.
#[derive(Debug)]
pub struct Digests {
    host: PinnedBytes,
    device: DeviceBytes,
}

impl Digests {
    /// Takes the room.
    pub fn new(driver: &Arc<Driver>) -> Result<Digests, CudaError> {
        let bytes = ITEMS * 24;
        Ok(Digests {
            host: PinnedBytes::new(driver, bytes)?,
            device: DeviceBytes::new(driver, bytes as u64)?,
        })
    }

    /// Digests `range(i)`, an address and a length, into `out[i]`.
    ///
    /// # Safety
    /// Every range is memory of the GPU that nothing writes meanwhile, aligned to 8.
    pub unsafe fn of(
        &mut self,
        driver: &Driver,
        kernels: &Kernels,
        range: impl Fn(usize) -> (u64, u64),
        out: &mut [u64],
    ) -> Result<(), CudaError> {
        driver.bind()?;
        for (batch, out) in out.chunks_mut(ITEMS).enumerate() {
            let (items, digests) = self.host.bytes_mut().split_at_mut(ITEMS * 16);
            for (i, to) in items.chunks_exact_mut(16).take(out.len()).enumerate() {
                let (address, len) = range(batch * ITEMS + i);
                to[..8].copy_from_slice(&address.to_le_bytes());
                to[8..].copy_from_slice(&len.to_le_bytes());
            }
            let results = self.device.address + ITEMS as u64 * 16;
            let count = out.len() as u32;
            let args = DigestArgs { items: self.device.address, out: results, count, pad: 0 };
            let function = kernels.get("digest_items");
            let grid = (count.div_ceil(4), 1);
            let shape = Shape { function, grid, block: 128, shared: 0, cluster: 1 };
            let launch = Launch::new(shape, args);
            let digests = &mut digests[..out.len() * 8];
            // SAFETY: the room holds as many ranges and digests; the stream is waited for before
            // the host looks or writes again. The ranges are the caller's contract.
            unsafe {
                driver.upload(self.device.address, &items[..out.len() * 16])?;
                driver.launch(&launch.shape, &launch.args)?;
                driver.download(digests, results)?;
            }
            driver.synchronize()?;
            for (to, from) in out.iter_mut().zip(digests.as_chunks::<8>().0) {
                *to = u64::from_le_bytes(*from);
            }
        }
        Ok(())
    }
}
