//! Digests of plans and packings.

use core::fmt;
use core::hash::{Hash, Hasher};
use sha2::{Digest as _, Sha256};

/// SHA-256 of a value's fields in declaration order, little-endian. The same for the same value
/// on every machine and in every process of one build; a change of the IR changes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of any value that hashes its fields.
    pub fn of<T: Hash + ?Sized>(value: &T) -> Digest {
        let mut fields = Fields(Sha256::new());
        value.hash(&mut fields);
        Digest(fields.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Feeds fields to SHA-256. Integers are fixed to little-endian and `usize` to 64 bits, where the
/// default methods would follow the machine.
struct Fields(Sha256);

macro_rules! little_endian {
    ($($write:ident: $int:ty as $wide:ty),*) => {
        $(fn $write(&mut self, i: $int) {
            self.0.update((i as $wide).to_le_bytes());
        })*
    };
}

impl Hasher for Fields {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    little_endian!(
        write_u16: u16 as u16, write_u32: u32 as u32, write_u64: u64 as u64,
        write_usize: usize as u64, write_i16: i16 as i16, write_i32: i32 as i32,
        write_i64: i64 as i64, write_isize: isize as i64
    );

    /// Never asked: a 64-bit answer would throw the rest away.
    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        u64::from_le_bytes(digest[..8].try_into().unwrap_or_default())
    }
}
