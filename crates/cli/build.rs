//! Which commit this binary is built from, and whether the tree had other changes: part of the
//! record of every change that it makes.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").args(arguments).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let tree = match git(&["status", "--porcelain", "--untracked-files=no"]) {
        None => "unknown",
        Some(changes) if changes.is_empty() => "clean",
        Some(_) => "changed",
    };
    println!("cargo::rustc-env=LOCKSTEP_BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=LOCKSTEP_BUILD_TREE={tree}");
    println!("cargo::rerun-if-changed=src");
    if let Some(folder) = git(&["rev-parse", "--absolute-git-dir"]) {
        println!("cargo::rerun-if-changed={folder}/logs/HEAD");
    }
}
