//! Reading little-endian fields out of bytes that may end anywhere.

use core::ops::Range;

use super::fault::{GgufFault, Place};

/// A position in the file's bytes. Every read is checked against the end, and a count is checked
/// against the bytes that its elements need at least, before anything is allocated for it.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Reads a range of the file; offsets in faults stay those of the file.
    pub(super) fn within(bytes: &'a [u8], range: Range<usize>) -> Cursor<'a> {
        Cursor { bytes: &bytes[..range.end], at: range.start }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The range of the next `bytes` bytes, and steps over them.
    pub(super) fn skip(&mut self, bytes: u64, place: &Place) -> Result<Range<usize>, GgufFault> {
        if bytes > self.left() as u64 {
            return Err(GgufFault::Truncated {
                place: place.clone(),
                offset: self.at as u64,
                need: bytes,
                have: self.left() as u64,
            });
        }
        let start = self.at;
        self.at += bytes as usize;
        Ok(start..self.at)
    }

    fn array<const N: usize>(&mut self, place: &Place) -> Result<[u8; N], GgufFault> {
        let range = self.skip(N as u64, place)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[range]);
        Ok(out)
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], GgufFault> {
        self.array(&Place::Header)
    }

    pub(super) fn u32(&mut self, place: &Place) -> Result<u32, GgufFault> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: &Place) -> Result<u64, GgufFault> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A count of elements that take at least `min_bytes` each in what is left of the file.
    pub(super) fn count(&mut self, min_bytes: u64, place: &Place) -> Result<u64, GgufFault> {
        let count = self.u64(place)?;
        let max = self.left() as u64 / min_bytes;
        if count > max {
            return Err(GgufFault::Count { place: place.clone(), count, max });
        }
        Ok(count)
    }

    /// The bytes of a string with its 64-bit length.
    pub(super) fn string(&mut self, place: &Place) -> Result<Range<usize>, GgufFault> {
        let len = self.u64(place)?;
        self.skip(len, place)
    }

    /// A string that must be UTF-8.
    pub(super) fn text(&mut self, place: &Place) -> Result<&'a str, GgufFault> {
        let range = self.string(place)?;
        let offset = range.start as u64;
        core::str::from_utf8(&self.bytes[range])
            .map_err(|_| GgufFault::NotUtf8 { place: place.clone(), offset })
    }
}
