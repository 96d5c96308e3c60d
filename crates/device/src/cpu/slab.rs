//! Memory that never moves: anonymous mappings on huge pages, zeroed by the kernel, resident only
//! where touched.

use crate::DeviceError;
use crate::held::ArenaBytes;
use core::ptr::NonNull;

/// Huge pages on x86-64.
const HUGE: usize = 2 << 20;

/// One mapping, unmapped on drop. It hands out raw addresses; who may touch which bytes when is
/// what a plan's proof and a step's lease establish.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    map: NonNull<u8>,
    map_len: usize,
    len: usize,
}

impl ArenaBytes for Slab {
    fn arena_bytes(&self) -> u64 {
        self.len as u64
    }
}

// SAFETY: a slab is a range of process memory with no thread affinity; access through its
// addresses is governed by the device that owns it.
unsafe impl Send for Slab {}
// SAFETY: as above; `&Slab` gives out addresses only.
unsafe impl Sync for Slab {}

impl Slab {
    /// Maps `len` zeroed bytes aligned to 2 MiB, for `what` in messages.
    pub fn new(len: usize, what: &str) -> Result<Slab, DeviceError> {
        let oom = || DeviceError::OutOfMemory { what: what.into(), bytes: len as u64 };
        let map_len = len.max(1).checked_next_multiple_of(4096).ok_or_else(oom)?;
        let map_len = map_len.checked_add(HUGE).ok_or_else(oom)?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // memory that exists.
        let map = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(oom());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or_else(oom)?;
        let skip = map.as_ptr().align_offset(HUGE);
        // SAFETY: `skip < HUGE` and the mapping is HUGE longer than what is handed out.
        let base = unsafe { map.add(skip) };
        if len >= HUGE {
            // SAFETY: the range lies inside the mapping; advice changes no contents.
            unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Slab { base, map, map_len, len })
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Overwrites the first `len` bytes. Nobody else reaches them: the slab is borrowed mutably by
    /// whoever owns it, and the device that its addresses were resolved for runs nothing in a slab
    /// that it does not hold.
    pub fn fill(&mut self, len: usize, byte: u8) {
        assert!(len <= self.len, "past the end of a slab");
        // SAFETY: in bounds by the assertion; exclusive as said above.
        unsafe { core::ptr::write_bytes(self.base(), byte, len) };
    }

    /// All bytes.
    ///
    /// # Safety
    /// Nothing writes them while the slice lives.
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: in bounds by the assertion; the caller vouches for the aliasing.
        unsafe { core::slice::from_raw_parts(self.base().add(offset), len) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and is unmapped once.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_zeroed_aligned_and_bounded() {
        let slab = Slab::new(3 << 20, "test").unwrap();
        assert_eq!(slab.base() as usize % HUGE, 0);
        // SAFETY: the only accesses to this slab.
        unsafe {
            assert!(slab.bytes(0, slab.len()).iter().all(|b| *b == 0));
            slab.base().add((3 << 20) - 1).write(7);
            assert_eq!(slab.bytes((3 << 20) - 1, 1), [7]);
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_an_error() {
        let e = Slab::new(usize::MAX - 5, "the token pool").unwrap_err();
        assert!(matches!(e, DeviceError::OutOfMemory { .. }), "{e}");
        let e = Slab::new(1 << 60, "the token pool").unwrap_err();
        assert!(matches!(e, DeviceError::OutOfMemory { .. }), "{e}");
    }
}
