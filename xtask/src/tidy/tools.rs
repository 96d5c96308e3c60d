//! rustfmt and clippy, run as they would be by hand.

use crate::args::Stop;
use crate::proc;
use std::path::Path;

/// Runs both and says which passed; their own words go to the terminal.
pub fn run(root: &Path) -> Result<Vec<(&'static str, bool)>, Stop> {
    let mut results = Vec::new();
    for (name, args) in [
        ("fmt", &["fmt", "--all", "--check"][..]),
        (
            "clippy",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        ),
    ] {
        let status = proc::cargo(root)
            .args(args)
            .status()
            .map_err(|e| Stop::failed(format!("cargo {name} did not start: {e}")))?;
        if !status.success() {
            eprintln!("    what would work: cargo {} passes", args.join(" "));
        }
        results.push((name, status.success()));
    }
    Ok(results)
}
