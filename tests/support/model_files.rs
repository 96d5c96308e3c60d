//! Where the models of the tests are. Tests of several rooms take this file in by its path: a
//! crate of its own would be a room that every room knows.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

/// A tiny model of `fixtures/tiny`.
pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny").join(name)
}

/// The default model's file: `LOCKSTEP_TEST_MODEL`, else the one in the store, where the project's
/// test command puts it.
pub fn smollm2() -> PathBuf {
    let path = match std::env::var_os("LOCKSTEP_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set"))
            .join(".cache/lockstep/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    };
    assert!(
        path.is_file(),
        "{} is missing: run the tests with `cargo xtask test`, which fetches it, or name the file \
         in LOCKSTEP_TEST_MODEL",
        path.display()
    );
    path
}
