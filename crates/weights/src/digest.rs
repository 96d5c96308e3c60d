//! SHA-256 of weights and of files.

use core::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest as _, Sha256};

use crate::checkpoint::TensorRef;
use crate::error::WeightsError;
use crate::file::open_regular;
use crate::narrow::Coding;
use crate::role::Role;

/// A SHA-256; displays as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The digest of a checkpoint: SHA-256 over, for each tensor in canonical order, its role and
/// format (each with a byte for its length before it), rows and columns (u64, little endian) and
/// the SHA-256 of its bytes. Tensors are hashed apart so that threads can share the work.
pub(crate) fn of_tensors(tensors: &[(Role, TensorRef<'_>)], threads: usize) -> Digest {
    let next = AtomicUsize::new(0);
    let hash_some = || {
        let mut out = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((_, t)) = tensors.get(n) else { return out };
            let mut hash = Sha256::new();
            hash.update(t.bytes);
            if let Some(coding) = &t.coding {
                hash.update(coding.scales());
                hash.update(coding.global().to_le_bytes());
            }
            out.push((n, <[u8; 32]>::from(hash.finalize())));
        }
    };
    let mut parts: Vec<(usize, [u8; 32])> = std::thread::scope(|scope| {
        let helpers: Vec<_> =
            (1..threads.min(tensors.len())).map(|_| scope.spawn(hash_some)).collect();
        let mut parts = hash_some();
        for helper in helpers {
            parts.extend(helper.join().expect("hashing does not panic"));
        }
        parts
    });
    parts.sort_unstable_by_key(|p| p.0);
    let mut all = Sha256::new();
    for (n, hash) in parts {
        let (role, t) = &tensors[n];
        let mut text = |s: &str| {
            all.update([u8::try_from(s.len()).expect("names are short")]);
            all.update(s);
        };
        text(&role.to_string());
        text(t.coding.as_ref().map_or(t.format.name(), Coding::name));
        all.update((t.rows as u64).to_le_bytes());
        all.update((t.cols as u64).to_le_bytes());
        all.update(hash);
    }
    Digest(all.finalize().into())
}

/// SHA-256 of a whole file, read in pieces.
pub fn file_sha256(path: &Path) -> Result<Digest, WeightsError> {
    let io = |source| WeightsError::Io { file: path.to_path_buf(), source };
    let (mut file, _) = open_regular(path)?;
    let mut piece = vec![0u8; 1 << 18];
    let mut hash = Sha256::new();
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(Digest(hash.finalize().into())),
            Ok(n) => hash.update(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(e)),
        }
    }
}
