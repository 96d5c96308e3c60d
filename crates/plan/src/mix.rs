//! [`crate::OpKind::Mix`], defined: the op that the explorer, drills and property tests run on
//! every device.
//!
//! Let `m` be the finaliser of splitmix64: `z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27;
//! z *= 0x94d049bb133111eb; z ^= z >> 31`, all modulo 2^64. Number the bytes read from 0, through
//! the op's reads in list order, and the bytes written likewise. With `r_i` the i-th byte read,
//!
//! ```text
//! key = m(m(seed + G) + sum over i of m((256 i + r_i) + G))      G = 0x9e3779b97f4a7c15
//! w_j = top byte of m(key + (j + 1) G)
//! ```
//!
//! The sum is modulo 2^64, so bytes may be read in any order and by any number of threads. Every
//! read happens before any write. Every byte read and its place change every byte written (in
//! half of its bits), so that a stale byte anywhere shows everywhere downstream.
//!
//! A static access is its span. An indexed access goes through its table, read as little-endian
//! `u32` entries from the first to the last: entry `e` is block `e` of the state (a page or a
//! slot), whole; an entry outside the state touches nothing. Of blocks named twice the later
//! write stays.

use crate::{Access, Buffer, BufferKind, Span, StateKind};

/// 2^64 divided by the golden ratio.
const G: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
pub const fn mix64(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Takes in what the op reads, in order.
#[derive(Clone, Copy, Debug)]
pub struct MixIn {
    sum: u64,
    at: u64,
}

impl MixIn {
    /// Of an op with this seed.
    pub const fn new(seed: u64) -> MixIn {
        MixIn { sum: mix64(seed.wrapping_add(G)), at: 0 }
    }

    /// The next bytes read.
    pub fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = self.at.wrapping_mul(256).wrapping_add(u64::from(*byte));
            self.sum = self.sum.wrapping_add(mix64(at.wrapping_add(G)));
            self.at += 1;
        }
    }

    /// All is read.
    pub const fn finish(self) -> MixOut {
        MixOut { key: mix64(self.sum), at: 0 }
    }
}

/// Gives out what the op writes, in order.
#[derive(Clone, Copy, Debug)]
pub struct MixOut {
    key: u64,
    at: u64,
}

impl MixOut {
    /// The next bytes written.
    pub fn write(&mut self, out: &mut [u8]) {
        for byte in out {
            self.at += 1;
            *byte = (mix64(self.key.wrapping_add(self.at.wrapping_mul(G))) >> 56) as u8;
        }
    }
}

/// The spans of an access, in order; `table` are the bytes of the table of an indexed access, and
/// is not looked at for a static one.
pub fn spans(buffers: &[Buffer], access: &Access, table: &[u8]) -> Vec<Span> {
    let (state, block) = match access {
        Access::Static { span, .. } => return vec![*span],
        Access::Indexed { buffer, .. } => match buffers.get(buffer.index()).map(|b| b.kind) {
            Some(BufferKind::State(StateKind::Pages { page_bytes })) => (*buffer, page_bytes),
            Some(BufferKind::State(StateKind::Slots { slot_bytes })) => (*buffer, slot_bytes),
            _ => return Vec::new(),
        },
    };
    let entry = |e: &[u8]| u64::from(u32::from_le_bytes([e[0], e[1], e[2], e[3]]));
    let inside = |e: u64| {
        let offset = e.checked_mul(block)?;
        let end = offset.checked_add(block)?;
        let span = Span { buffer: state, offset, len: block };
        (end <= buffers[state.index()].bytes).then_some(span)
    };
    table.chunks_exact(4).filter_map(|e| inside(entry(e))).collect()
}
