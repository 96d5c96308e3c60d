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

/// The real default model, which `cargo xtask test` puts into the store before the tests run.
pub fn model() -> PathBuf {
    let named = std::env::var_os("LOCKSTEP_TEST_MODEL").map(PathBuf::from);
    let stored = || {
        let home = std::env::var_os("HOME").map(PathBuf::from)?;
        Some(home.join(".cache/lockstep/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = named.or_else(stored).expect("LOCKSTEP_TEST_MODEL or HOME names the model");
    assert!(
        path.is_file(),
        "{} is missing: run `cargo xtask test`, or `cargo run --release -- pull` first",
        path.display()
    );
    path
}

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
        assert!(begun.elapsed().as_secs() < 60, "still not so after a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
