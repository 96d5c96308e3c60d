//! What the tests of the binary share.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod hub;
pub mod serving;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The binary under test.
pub fn lockstep() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_lockstep"))
}

#[path = "../../../../tests/support/model_files.rs"]
mod model_files;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use model_files::{smollm2 as model, tiny};

/// An empty folder of this test's own, below cargo's folder for such things.
pub fn temp_dir(test: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}-{test}-{}",
        env!("CARGO_CRATE_NAME"),
        std::process::id()
    ));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Waits until something holds; the limit only ends a test that would hang.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 300, "still not so after five minutes: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
