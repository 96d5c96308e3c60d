//! Digests of ranges of the GPU's memory, a warp a range, and where two ranges differ.

use crate::CudaError;
use crate::driver::{DeviceBytes, Driver, PinnedBytes, Shape};
use crate::kernels::Kernels;
use crate::launch::{DifferenceArgs, DigestArgs, Launch};
use std::sync::Arc;

/// Ranges that are digested by one launch.
const ITEMS: usize = 1 << 14;

/// Blocks that look for a difference, at most: eight a multiprocessor.
const DIFFERENCE_BLOCKS: u64 = 1056;

/// Room for the ranges and their digests, made once, and a stream: digests of pages that have
/// closed wait for no step in flight.
#[derive(Debug)]
pub struct Digests {
    host: PinnedBytes,
    device: DeviceBytes,
    driver: Arc<Driver>,
}

impl Digests {
    /// Takes the room.
    pub fn new(driver: &Arc<Driver>) -> Result<Digests, CudaError> {
        let bytes = ITEMS * 24;
        let driver = driver.beside()?;
        Ok(Digests {
            host: PinnedBytes::new(&driver, bytes)?,
            device: DeviceBytes::new(&driver, bytes as u64)?,
            driver,
        })
    }

    /// Digests `range(i)`, an address and a length, into `out[i]`.
    ///
    /// # Safety
    /// Every range is memory of the GPU that nothing writes meanwhile, aligned to 8, and whatever
    /// wrote it last has been waited for.
    pub unsafe fn of(
        &mut self,
        kernels: &Kernels,
        range: impl Fn(usize) -> (u64, u64),
        out: &mut [u64],
    ) -> Result<(), CudaError> {
        let driver = &self.driver;
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

    /// The first byte at which the `len` bytes at `a` and at `b` differ, looked for on the GPU.
    ///
    /// # Safety
    /// As [`Digests::of`], for both.
    pub unsafe fn first_difference(
        &self,
        kernels: &Kernels,
        [a, b]: [u64; 2],
        len: u64,
    ) -> Result<Option<u64>, CudaError> {
        let driver = &self.driver;
        driver.bind()?;
        let out = self.device.address;
        let blocks = len.div_ceil(8 * 256).clamp(1, DIFFERENCE_BLOCKS) as u32;
        let function = kernels.get("first_difference");
        let shape = Shape { function, grid: (blocks, 1), block: 256, shared: 0, cluster: 1 };
        let launch = Launch::new(shape, DifferenceArgs { a, b, out, len });
        let mut found = [0; 8];
        // SAFETY: the room has eight bytes; the stream is waited for before the host looks. The
        // ranges are the caller's contract.
        unsafe {
            driver.fill(out, u8::MAX, found.len())?;
            driver.launch(&launch.shape, &launch.args)?;
            driver.download(&mut found, out)?;
        }
        driver.synchronize()?;
        let found = u64::from_le_bytes(found);
        Ok((found < len).then_some(found))
    }
}
