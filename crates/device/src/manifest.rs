//! What a capture is bound to: named, hashed, compared.

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

    /// In words, for an error.
    pub fn describe(&self) -> String {
        format!("{} bytes at {:#x}, layout {:016x}", self.bytes, self.address, self.layout)
    }
}

/// FNV-1a of the facts that a kernel's addressing relies on.
pub fn layout_digest(buffer: &Buffer) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    let mut eat = |bytes: &[u8]| {
        for b in bytes {
            h = (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    eat(buffer.name.as_bytes());
    eat(&buffer.bytes.to_le_bytes());
    eat(&buffer.align.to_le_bytes());
    eat(format!("{:?} {:?} {:?}", buffer.kind, buffer.rows, buffer.elem).as_bytes());
    h
}
