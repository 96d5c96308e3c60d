//! The kernel of [`lockstep_plan::OpKind::Mix`]; [`lockstep_plan::mix`] is its definition.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use lockstep_plan::mix::{MixIn, MixOut};

/// The bytes of one access.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Known at planning time.
    Static { at: *mut u8, len: u64 },
    /// Whole blocks of a state of `blocks` blocks, named by u32 entries of a table.
    Indexed { state: *mut u8, blocks: u64, block: u64, table: *const u8, entries: u64 },
}

/// One op, resolved. Its bytes are read and written as relaxed atomics: it is the op that is run
/// on lanes which are out of order on purpose, and a race of its bytes is an outcome to look at.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The op's seed.
    pub seed: u64,
    /// In list order.
    pub reads: Vec<Bytes>,
    /// In list order.
    pub writes: Vec<Bytes>,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for Mix {}
// SAFETY: as above.
unsafe impl Sync for Mix {}

impl Bytes {
    /// Calls `f` with every range, in order.
    ///
    /// # Safety
    /// All ranges, and the table, are live memory that is touched as atomics only, or by nothing
    /// else meanwhile.
    unsafe fn each(&self, f: &mut dyn FnMut(*mut u8, u64)) {
        match *self {
            Bytes::Static { at, len } => f(at, len),
            Bytes::Indexed { state, blocks, block, table, entries } => {
                for entry in 0..entries as usize {
                    let mut word = [0; 4];
                    for (i, byte) in word.iter_mut().enumerate() {
                        // SAFETY: inside the table, by the caller's contract.
                        *byte = unsafe { load(table.add(entry * 4 + i).cast_mut()) };
                    }
                    let index = u64::from(u32::from_le_bytes(word));
                    if index < blocks {
                        f(state.wrapping_add((index * block) as usize), block);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`Bytes::each`].
pub unsafe fn load(at: *mut u8) -> u8 {
    // SAFETY: the caller's contract.
    unsafe { AtomicU8::from_ptr(at) }.load(Relaxed)
}

/// # Safety
/// As [`Bytes::each`].
pub unsafe fn store(at: *mut u8, byte: u8) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Relaxed);
}

/// Bytes that are hashed or written at a time.
const CHUNK: usize = 256;

impl Mix {
    /// One: a hash of all bytes is no sum of parts that threads would gain from.
    pub fn tasks(&self) -> u32 {
        1
    }

    /// Reads everything, then writes everything.
    ///
    /// # Safety
    /// As [`Bytes::each`] for every access.
    pub unsafe fn run(&self) {
        let mut input = MixIn::new(self.seed);
        for access in &self.reads {
            // SAFETY: the caller's contract, here and in `read`.
            unsafe { access.each(&mut |at, len| read(&mut input, at, len as usize)) };
        }
        let mut output = input.finish();
        for access in &self.writes {
            // SAFETY: as above.
            unsafe { access.each(&mut |at, len| write(&mut output, at, len as usize)) };
        }
    }
}

fn read(input: &mut MixIn, at: *mut u8, len: usize) {
    let mut chunk = [0; CHUNK];
    for first in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - first);
        for (i, byte) in chunk[..n].iter_mut().enumerate() {
            // SAFETY: `Mix::run`'s contract; the range comes from one of its accesses.
            *byte = unsafe { load(at.add(first + i)) };
        }
        input.read(&chunk[..n]);
    }
}

fn write(output: &mut MixOut, at: *mut u8, len: usize) {
    let mut chunk = [0; CHUNK];
    for first in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - first);
        output.write(&mut chunk[..n]);
        for (i, byte) in chunk[..n].iter().enumerate() {
            // SAFETY: as in `read`.
            unsafe { store(at.add(first + i), *byte) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_plan::{
        Access, Buffer, BufferId, BufferKind, Elem, PaddingPolicy, StateKind, mix,
    };

    /// Beside `plan`'s own reading of the definition, on static and indexed accesses, with table
    /// entries outside the state.
    #[test]
    fn the_kernel_is_the_definition() {
        let buffer = |name: &str, bytes, kind| Buffer {
            name: name.into(),
            bytes,
            align: 1,
            kind,
            rows: None,
            elem: Elem::Opaque,
        };
        let late = BufferKind::Input { padding: PaddingPolicy::NoRows, late: false };
        let buffers = [
            buffer("table", 16, late),
            buffer("pages", 40, BufferKind::State(StateKind::Pages { page_bytes: 8 })),
            buffer("t", 700, BufferKind::Transient),
        ];
        let via = BufferId(0);
        let indexed = Access::Indexed { buffer: BufferId(1), via, reserved_for_padding: true };
        let reads = [Access::whole(BufferId(2), 700), Access::whole(via, 16), indexed];
        let writes = [indexed, Access::whole(BufferId(2), 600)];
        let table: Vec<u8> = [3u32, 9, 1, u32::MAX].iter().flat_map(|e| e.to_le_bytes()).collect();
        let mut memory = [
            table.clone(),
            (0..40).map(|i| i * 3).collect(),
            (0..700u32).map(|i| (i % 251) as u8).collect(),
        ];
        let mut expected = memory.clone();
        let mut input = MixIn::new(77);
        for access in &reads {
            for s in mix::spans(&buffers, access, &table) {
                input.read(&expected[s.buffer.index()][s.offset as usize..s.end() as usize]);
            }
        }
        let mut output = input.finish();
        for access in &writes {
            for s in mix::spans(&buffers, access, &table) {
                output.write(&mut expected[s.buffer.index()][s.offset as usize..s.end() as usize]);
            }
        }
        let [table, pages, t] = memory.each_mut().map(|m| m.as_mut_ptr());
        let bytes = |a: &Access| match a {
            Access::Static { span, .. } => {
                let at = if span.buffer == via { table } else { t };
                Bytes::Static { at, len: span.len }
            }
            Access::Indexed { .. } => {
                Bytes::Indexed { state: pages, blocks: 5, block: 8, table, entries: 4 }
            }
        };
        let op = Mix {
            seed: 77,
            reads: reads.iter().map(bytes).collect(),
            writes: writes.iter().map(bytes).collect(),
        };
        // SAFETY: every access lies inside its vector, and nothing else touches them.
        unsafe { op.run() };
        assert_eq!(memory, expected);
    }
}
