//! What each stage of the test command does.

use super::counts::{self, Counts};
use super::stage::Found;
use crate::args::Stop;
use crate::cuda;
use crate::metadata::Metadata;
use crate::peer;
use crate::proc::{cargo, must, tee};
use crate::python::Venv;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

type Step = Result<Found, (Found, Stop)>;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TESTS_LIMIT: Duration = Duration::from_secs(3600);
const SUITE_LIMIT: Duration = Duration::from_secs(2700);

/// The default model as the store names it.
const MODEL: &str = "smollm2-135m-instruct";

/// Where the stages work, and what earlier ones found for later ones.
pub struct Steps {
    root: PathBuf,
    target: PathBuf,
    model: OnceCell<PathBuf>,
    python: OnceCell<PathBuf>,
    peer: OnceCell<PathBuf>,
}

fn bare(stop: Stop) -> (Found, Stop) {
    (Found::default(), stop)
}

impl Steps {
    pub fn new(root: PathBuf) -> Result<Steps, Stop> {
        let target = Metadata::load(&root)?.target_dir;
        Ok(Steps {
            root,
            target,
            model: OnceCell::new(),
            python: OnceCell::new(),
            peer: OnceCell::new(),
        })
    }

    /// The release binary that is served and tested.
    pub fn binary(&self) -> PathBuf {
        self.target.join("release/lockstep")
    }

    pub fn build(&self) -> Step {
        // The proxy that damages answers, for the suites that check servers through it.
        must(
            cargo(&self.root)
                .args(["build", "--release", "--locked", "-p", "lockstep-cli"])
                .args(["-p", "lockstep-check", "--bin", "lockstep", "--example", "fault_proxy"]),
            BUILD_LIMIT,
            "cargo build --release",
        )
        .map_err(bare)?;
        Ok(Found::default())
    }

    /// Fills the model store by the product's own command and asks it where the file lies.
    pub fn model(&self) -> Step {
        let pull = Command::new(self.binary())
            .args(["pull", MODEL, "--json"])
            .current_dir(&self.root)
            .output()
            .map_err(|e| bare(Stop::failed(format!("lockstep pull did not start: {e}"))))?;
        let words = String::from_utf8_lossy(&pull.stdout);
        if !pull.status.success() {
            let errors = String::from_utf8_lossy(&pull.stderr);
            return Err(bare(Stop::failed(format!("lockstep pull failed: {}", errors.trim()))));
        }
        let path = words
            .lines()
            .rev()
            .find_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
            .and_then(|v| v["path"].as_str().map(PathBuf::from))
            .filter(|p| p.is_file())
            .ok_or_else(|| {
                bare(Stop::failed(format!(
                    "lockstep pull --json named no file in its 'path': {}",
                    words.trim()
                )))
            })?;
        let note = format!("{}", path.display());
        let _ = self.model.set(path);
        Ok(Found { note, ..Found::default() })
    }

    /// All Rust tests, by nextest where it is installed.
    pub fn rust(&self) -> Step {
        let nextest = has_nextest(&self.root);
        let mut command = cargo(&self.root);
        if nextest {
            let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
            command.args(["nextest", "run", "--profile", "suite"]);
            command.args(["--test-threads", &(2 * cpus).to_string()]);
        } else {
            command.args(["test", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        }
        command.args(["--release", "--workspace", "--locked"]);
        if let Some(model) = self.model.get() {
            command.env("LOCKSTEP_TEST_MODEL", model);
        }
        let ran = tee(&mut command, TESTS_LIMIT).map_err(bare)?;
        let counts = counts::of_rust(&ran.lines);
        let note = if nextest { "cargo nextest" } else { "cargo test" };
        judge(counts, ran.ok, &ran.end, note)
    }

    /// The tests of a lab build of the binary, which is then put back as it is shipped.
    pub fn lab(&self) -> Step {
        let mut command = cargo(&self.root);
        command.args(["test", "--no-fail-fast", "--release", "--locked", "-p", "lockstep-cli"]);
        command.args(["--features", "lab", "--test", "lab"]);
        if let Some(model) = self.model.get() {
            command.env("LOCKSTEP_TEST_MODEL", model);
        }
        let ran = tee(&mut command, TESTS_LIMIT).map_err(bare)?;
        self.build()?;
        judge(counts::of_rust(&ran.lines), ran.ok, &ran.end, "with the feature lab")
    }

    /// Examples in doc comments; nextest does not run them.
    pub fn doctests(&self) -> Step {
        let ran = tee(
            cargo(&self.root).args(["test", "--doc", "--release", "--workspace", "--locked"]),
            TESTS_LIMIT,
        )
        .map_err(bare)?;
        let counts = counts::of_rust(&ran.lines);
        if ran.ok {
            return Ok(Found { counts, note: String::new() });
        }
        judge(counts, false, &ran.end, "doc tests")
    }

    /// Every CUDA kernel for every architecture that is shipped, by the toolkit's own compiler; those for
    /// Hopper once more by the one that a user's machine has at run time.
    pub fn kernels(&self) -> Step {
        let count = cuda::check().map_err(bare)?;
        let note = format!("{count} compiled, none spills, all within their registers");
        let mut command = cargo(&self.root);
        command.args(["test", "--release", "--locked", "--workspace", "--lib", "nvrtc_takes"]);
        command.args(["--", "--ignored"]).env("CUDA_HOME", cuda::toolkit().map_err(bare)?);
        let ran = tee(&mut command, TESTS_LIMIT).map_err(bare)?;
        judge(counts::of_rust(&ran.lines), ran.ok, &ran.end, &note)
    }

    /// The environment of the Python suites.
    pub fn python(&self) -> Step {
        let list = self.root.join("tests/requirements.txt");
        let requirements = std::fs::read_to_string(&list)
            .map_err(|e| bare(Stop::failed(format!("{}: {e}", list.display()))))?;
        let venv = Venv::ensure(&self.target.join("test-python"), &requirements).map_err(bare)?;
        let _ = self.python.set(venv.python());
        Ok(Found::default())
    }

    /// The peer's binaries.
    pub fn peer(&self) -> Step {
        let bin = peer::ensure().map_err(bare)?;
        let note = format!("{}", bin.display());
        let _ = self.peer.set(bin);
        Ok(Found { note, ..Found::default() })
    }

    /// Runs the unittest suite in `dir`, which finds the peer's binaries where they were built.
    pub fn suite(&self, dir: &str) -> Step {
        let missing = || bare(Stop::failed("an earlier stage left nothing behind"));
        let python = self.python.get().ok_or_else(missing)?;
        let mut command = Command::new(python);
        command
            .args([
                "-u",
                "-m",
                "unittest",
                "discover",
                "--verbose",
                "--top-level-directory",
                "tests",
            ])
            .args(["--start-directory", dir])
            .current_dir(&self.root)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LOCKSTEP_BIN", self.binary())
            .env("LOCKSTEP_TEST_MODEL", self.model.get().ok_or_else(missing)?)
            .env("LOCKSTEP_TEST_OUT", self.target.join("test-out"));
        if let Some(peer) = self.peer.get() {
            command.env("LOCKSTEP_LLAMA_BIN", peer);
        }
        let ran = tee(&mut command, SUITE_LIMIT).map_err(bare)?;
        let notes: Vec<&str> = ran.lines.iter().filter_map(|l| l.strip_prefix("note: ")).collect();
        judge(counts::of_unittest(&ran.lines), ran.ok, &ran.end, &notes.join("; "))
    }
}

/// Passed only where the runner says so and at least one test ran: a suite that found nothing to
/// run has not passed.
fn judge(counts: Counts, ok: bool, end: &str, note: &str) -> Step {
    if ok && counts.failed == 0 && counts.passed > 0 {
        return Ok(Found { counts, note: note.into() });
    }
    let why = if counts.ran() == 0 {
        format!("no test ran ({end})")
    } else {
        format!("{} of {} tests failed ({end})", counts.failed, counts.ran())
    };
    Err((Found { counts, note: note.into() }, Stop::failed(why)))
}

fn has_nextest(root: &Path) -> bool {
    cargo(root).args(["nextest", "--version"]).output().is_ok_and(|out| out.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_that_ran_nothing_has_not_passed() {
        assert!(judge(Counts::default(), true, "exit status: 0", "").is_err());
        let one = Counts { passed: 1, failed: 0, skipped: 0 };
        assert!(judge(one, true, "exit status: 0", "").is_ok());
        assert!(judge(one, false, "exit status: 1", "").is_err());
        let bad = Counts { passed: 1, failed: 1, skipped: 0 };
        assert!(judge(bad, true, "exit status: 0", "").is_err());
    }
}
