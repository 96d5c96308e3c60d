//! What the audit asks of the CPU device: digests of pages and weights on all threads, one op of a
//! capture.

use super::isa::Isa;
use super::memory::Memory;
use super::pool::{Pool, PoolError, Program};
use crate::digest::body;
use crate::port::{DeviceError, PageBuffer};

/// The digest of `bytes` on an instruction set; the same on each.
pub fn digest(isa: Isa, bytes: &[u8]) -> u64 {
    match isa {
        Isa::Portable => body(bytes),
        // SAFETY: an `Isa` is only made where the CPU has it.
        Isa::Avx2 => unsafe { avx2(bytes) },
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512(bytes) },
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn avx2(bytes: &[u8]) -> u64 {
    body(bytes)
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq"))]
unsafe fn avx512(bytes: &[u8]) -> u64 {
    body(bytes)
}

/// Buffers of a page that one task takes: some tens of kilobytes.
const TASK_BUFFERS: usize = 8;

/// Digests of pages: a task is a page and some of its buffers.
struct PageJob<'a> {
    isa: Isa,
    memory: &'a Memory,
    buffers: &'a [PageBuffer],
    pages: &'a [u32],
    out: *mut u64,
}

// SAFETY: tasks read state that nobody writes meanwhile, through a `Memory` that does not change,
// and write disjoint words of `out`, which outlives the walk.
unsafe impl Sync for PageJob<'_> {}

impl PageJob<'_> {
    fn groups(&self) -> usize {
        self.buffers.len().div_ceil(TASK_BUFFERS)
    }
}

impl Program for PageJob<'_> {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        (self.pages.len() * self.groups()) as u32
    }

    unsafe fn run(&self, _op: u32, task: u32, _thread: u32) {
        let (page, group) = (task as usize / self.groups(), task as usize % self.groups());
        let first = group * TASK_BUFFERS;
        let last = (first + TASK_BUFFERS).min(self.buffers.len());
        for (i, buffer) in self.buffers[first..last].iter().enumerate() {
            let slab = self.memory.state(&buffer.name).expect("checked before the walk");
            let bytes = buffer.page_bytes as usize;
            // SAFETY: in bounds, as checked before the walk; no step runs meanwhile.
            let bytes = unsafe { slab.bytes(self.pages[page] as usize * bytes, bytes) };
            // SAFETY: the word belongs to this task alone.
            unsafe {
                let at = page * self.buffers.len() + first + i;
                self.out.add(at).write(digest(self.isa, bytes));
            }
        }
    }
}

/// See [`crate::Device::digest_pages`].
pub(super) fn digest_pages(
    (pool, memory, isa): (&mut Pool, &Memory, Isa),
    buffers: &[PageBuffer],
    pages: &[u32],
    out: &mut [u64],
) -> Result<(), DeviceError> {
    assert_eq!(out.len(), pages.len() * buffers.len(), "a word for each buffer of each page");
    let last = u64::from(pages.iter().copied().max().unwrap_or(0)) + 1;
    for PageBuffer { name, page_bytes } in buffers {
        let slab = memory.state(name);
        let slab = slab.ok_or_else(|| DeviceError::Unbound { buffer: name.clone() })?;
        assert!(last * page_bytes <= slab.len() as u64, "past the end of {name}");
    }
    let job = PageJob { isa, memory, buffers, pages, out: out.as_mut_ptr() };
    pool.execute(&job).map_err(|e| failed("digests of pages", &e))
}

/// Digests of chunks of one weight: a task is a chunk.
struct WeightJob<'a> {
    isa: Isa,
    bytes: &'a [u8],
    chunk: usize,
    out: *mut u64,
}

// SAFETY: as for `PageJob`.
unsafe impl Sync for WeightJob<'_> {}

impl Program for WeightJob<'_> {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        self.bytes.len().div_ceil(self.chunk) as u32
    }

    unsafe fn run(&self, _op: u32, task: u32, _thread: u32) {
        let first = task as usize * self.chunk;
        let last = (first + self.chunk).min(self.bytes.len());
        // SAFETY: the word belongs to this task alone.
        unsafe { self.out.add(task as usize).write(digest(self.isa, &self.bytes[first..last])) };
    }
}

/// See [`crate::Device::digest_weight`].
pub(super) fn digest_weight(
    (pool, memory, isa): (&mut Pool, &Memory, Isa),
    name: &str,
    chunk_bytes: u64,
    first: u64,
    out: &mut [u64],
) -> Result<(), DeviceError> {
    let weight = memory.weight(name);
    let weight = weight.ok_or_else(|| DeviceError::Unbound { buffer: name.into() })?;
    let chunk = chunk_bytes as usize;
    let (start, all) = (first as usize * chunk, weight.bytes.div_ceil(chunk.max(1)));
    assert!(chunk > 0 && first as usize + out.len() <= all, "past the end of {name}");
    if out.is_empty() {
        return Ok(());
    }
    let end = (start + out.len() * chunk).min(weight.bytes);
    // SAFETY: the range lies inside the weight's bytes, which nothing writes once loaded.
    let bytes = unsafe { core::slice::from_raw_parts(weight.address.add(start), end - start) };
    let job = WeightJob { isa, bytes, chunk, out: out.as_mut_ptr() };
    pool.execute(&job).map_err(|e| failed("digests of a weight", &e))
}

fn failed(op: &str, e: &PoolError) -> DeviceError {
    DeviceError::Failed { op: op.into(), what: e.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_digest() {
        for len in [0, 1, 255, 256, 257, 12_288, 40_001] {
            let bytes: Vec<u8> = (0..len as u32).map(|i| ((i * i) >> 3) as u8).collect();
            for isa in Isa::available() {
                assert_eq!(digest(isa, &bytes), crate::digest(&bytes), "{len} bytes on {isa}");
            }
        }
    }
}
