//! Names: unique in the process by counting, unlikely to meet another process's by a random tag.

use lockstep_flow::RequestId;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out request numbers and response names.
#[derive(Debug)]
pub struct Ids {
    tag: u32,
    requests: AtomicU64,
    responses: AtomicU64,
}

/// 64 bits that differ on every call: a hash keyed by the operating system's randomness over a
/// counter. For names and default seeds, not for secrets.
fn random() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(CALLS.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// A seed for a request that names none. Below 2^53, so that JSON readers that hold numbers as
/// doubles give it back unchanged.
pub fn random_seed() -> u64 {
    random() >> 11
}

impl Ids {
    /// A fresh tag, counters at 1.
    pub fn new() -> Ids {
        Ids { tag: random() as u32, requests: AtomicU64::new(1), responses: AtomicU64::new(1) }
    }

    /// The next sequence's number.
    pub fn request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// The next response's name: `chatcmpl-1a2b3c4d-17`.
    pub fn response(&self, kind: &str) -> String {
        let n = self.responses.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{:08x}-{n}", self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_seeds_differ() {
        let ids = Ids::new();
        assert_ne!(ids.response("chatcmpl"), ids.response("chatcmpl"));
        assert_ne!(ids.request(), ids.request());
        assert_ne!(random_seed(), random_seed());
        assert!(random_seed() < 1 << 53);
    }
}
