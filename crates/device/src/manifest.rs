//! What a capture is bound to: named, hashed, compared.

use core::fmt::Write as _;
use lockstep_plan::{Buffer, BufferKind, PaddingPolicy};

/// One bound buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The buffer's name.
    pub name: String,
    /// Its device address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Digest of name, kind, rows, stride and element type.
    pub layout: u64,
    /// What its padded rows hold.
    pub padding: Option<PaddingPolicy>,
}

/// Everything that an executable is bound to, in buffer order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// One entry a buffer of the plan.
    pub bound: Vec<Bound>,
}

impl Bound {
    /// Describes `buffer` at `address`.
    pub fn new(buffer: &Buffer, address: u64) -> Bound {
        let padding = match buffer.kind {
            BufferKind::Input { padding, .. } => Some(padding),
            _ => None,
        };
        let layout = layout_digest(buffer);
        Bound { name: buffer.name.clone(), address, bytes: buffer.bytes, layout, padding }
    }

    /// True where `buffer` at `address` is what was bound. Takes no memory.
    pub fn is(&self, buffer: &Buffer, address: u64) -> bool {
        let padding = match buffer.kind {
            BufferKind::Input { padding, .. } => Some(padding),
            _ => None,
        };
        self.address == address
            && self.bytes == buffer.bytes
            && self.name == buffer.name
            && self.padding == padding
            && self.layout == layout_digest(buffer)
    }

    /// In words, for an error.
    pub fn describe(&self) -> String {
        format!("{} bytes at {:#x}, layout {:016x}", self.bytes, self.address, self.layout)
    }
}

/// FNV-1a of the facts that a kernel's addressing relies on. Takes no memory.
pub fn layout_digest(buffer: &Buffer) -> u64 {
    let mut h = Fnv(0xcbf2_9ce4_8422_2325);
    h.eat(buffer.name.as_bytes());
    h.eat(&buffer.bytes.to_le_bytes());
    h.eat(&buffer.align.to_le_bytes());
    // Writing to the digest cannot fail.
    let _ = write!(h, "{:?} {:?} {:?}", buffer.kind, buffer.rows, buffer.elem);
    h.0
}

struct Fnv(u64);

impl Fnv {
    fn eat(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl core::fmt::Write for Fnv {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.eat(s.as_bytes());
        Ok(())
    }
}
