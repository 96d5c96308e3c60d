//! Virtual environments for the Python side of the tests, made from pinned requirements.

use crate::args::Stop;
use crate::proc::must;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A Python environment.
#[derive(Debug, Clone)]
pub struct Venv {
    /// Its folder.
    pub dir: PathBuf,
}

impl Venv {
    /// Makes the environment at `dir` with `requirements` (lines of `name==version`), or takes
    /// the one that is there if it was made from the same lines.
    pub fn ensure(dir: &Path, requirements: &str) -> Result<Venv, Stop> {
        let venv = Venv { dir: dir.to_path_buf() };
        let stamp = dir.join("requirements.sha256");
        let digest = hex(&Sha256::digest(requirements.as_bytes()));
        if std::fs::read_to_string(&stamp).is_ok_and(|s| s == digest) && venv.python().exists() {
            return Ok(venv);
        }
        let io = |e: std::io::Error| Stop::failed(format!("{}: {e}", dir.display()));
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(io)?;
        }
        std::fs::create_dir_all(dir).map_err(io)?;
        must(
            Command::new("python3").args(["-m", "venv"]).arg(dir),
            INSTALL_LIMIT,
            "python3 -m venv (needs python3 with its venv and pip modules)",
        )?;
        let list = dir.join("requirements.txt");
        std::fs::write(&list, requirements).map_err(io)?;
        must(
            Command::new(venv.python())
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
                .arg(&list),
            INSTALL_LIMIT,
            "pip install of the pinned requirements",
        )?;
        std::fs::write(&stamp, digest).map_err(io)?;
        Ok(venv)
    }

    /// The interpreter.
    pub fn python(&self) -> PathBuf {
        self.dir.join("bin/python")
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_made_once_and_again_when_its_requirements_change() {
        let dir = std::env::temp_dir().join(format!("lockstep-venv-{}", std::process::id()));
        let venv = Venv::ensure(&dir, "").unwrap();
        let mark = dir.join("mark");
        std::fs::write(&mark, "kept").unwrap();
        Venv::ensure(&dir, "").unwrap();
        assert!(mark.exists(), "made again without a change");
        Venv::ensure(&dir, "# changed\n").unwrap();
        assert!(!mark.exists(), "a changed list must make it again");
        assert!(Command::new(venv.python()).args(["-c", "pass"]).status().unwrap().success());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
