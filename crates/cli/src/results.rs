//! Results that go to standard output and to files: one place that fails loses none of the others.

use crate::out;
use std::io::Read;
use std::path::Path;

/// What a measurement or a gate ends with where it could not run, or where its verdict is well and
/// a place that was asked for does not have it.
pub const CANNOT: u8 = 3;

/// Writes wherever it can, and keeps what could not be written.
#[derive(Debug, Default)]
pub struct Results {
    lost: Vec<String>,
}

impl Results {
    /// Prints a text without its line's end at the end.
    pub fn line(&mut self, text: &str) {
        if let Err(e) = out::try_line(text.trim_end()) {
            self.lost.push(format!("standard output cannot be written: {e}"));
        }
    }

    /// Prints a page for people, no wider than the terminal; `hang` as for [`out::fitted`].
    pub fn page(&mut self, text: &str, hang: impl Fn(&str) -> Option<usize>) {
        self.line(&out::fitted(text.trim_end(), hang));
    }

    /// Writes a file, or standard output where it is `-`.
    pub fn file(&mut self, path: &Path, text: &str) {
        if path == Path::new("-") {
            return self.line(text);
        }
        if let Err(e) = std::fs::write(path, text) {
            self.lost.push(format!("{} cannot be written: {e}", path.display()));
        }
    }

    /// Names what could not be written. A verdict that is not well keeps its exit code.
    pub fn code(self, verdict: u8) -> u8 {
        for words in &self.lost {
            out::complain(format_args!("lockstep: {words}"));
        }
        if verdict == 0 && !self.lost.is_empty() { CANNOT } else { verdict }
    }
}

/// Whether a file can be written. Changes none, and leaves none behind.
pub fn can_write(path: &Path) -> Result<(), String> {
    let is_there = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
    if !is_there {
        // What stays behind where that fails is empty.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Reads an earlier result of at most `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    let fault = |e: std::io::Error| format!("{} cannot be read: {e}", path.display());
    let file = std::fs::File::open(path).map_err(fault)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(fault)?;
    if text.len() as u64 > bytes_max {
        let path = path.display();
        return Err(format!("{path} has more than the {bytes_max} bytes that a result may have"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One file that could not be written at the end once took the verdict and the other file along,
    /// and turned every verdict into 3.
    #[test]
    fn a_file_that_cannot_be_written_loses_no_other_and_no_verdict() {
        let path = std::env::temp_dir().join(format!("lockstep-results-{}", std::process::id()));
        let full = || {
            let mut results = Results::default();
            results.file(Path::new("/dev/full"), "lost");
            results.file(&path, "kept");
            assert_eq!(results.lost.len(), 1, "{results:?}");
            assert!(results.lost[0].starts_with("/dev/full cannot be written: "), "{results:?}");
            results
        };
        assert_eq!([0, 1, 2].map(|verdict| full().code(verdict)), [3, 1, 2]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Results::default().code(0), 0);
    }

    /// `check --replay /dev/zero` was once read for as long as there was memory.
    #[test]
    fn a_result_that_never_ends_is_refused() {
        let words = read(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert_eq!(words, "/dev/zero has more than the 65536 bytes that a result may have");
    }
}
