//! What the tests of this room share.

use std::path::PathBuf;

/// An empty folder of this test's own.
pub fn folder(test: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("lockstep-change-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
