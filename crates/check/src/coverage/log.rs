//! A decode log in SGLang's words: how many requests ran in a step, and whether it was captured.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are read of a log at once, and that wait to be read of one that is a pipe.
const READ_BYTES_MAX: u64 = 8 << 20;
/// Before the name of a unit of systemd, whose journal is followed.
const JOURNAL: &str = "journal:";

/// A log that is being written.
#[derive(Debug)]
pub struct DecodeLog {
    source: Source,
    rest: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    /// A file that grows, by its name: who rotates logs puts another one in its place, or cuts it.
    File { file: File, path: PathBuf },
    /// A pipe, or what a program writes, read by a thread of its own.
    Pipe { come: Arc<Mutex<Vec<u8>>>, program: Option<Child> },
}

/// One line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLine {
    /// `#running-req`.
    pub running: u32,
    /// `cuda graph`.
    pub is_captured: Option<bool>,
}

impl DecodeLog {
    /// Opens a log and skips what is in it: a file, a pipe, or with `journal:UNIT` the journal of
    /// a unit of systemd.
    pub fn open(path: &Path) -> io::Result<DecodeLog> {
        let refused = |what: &str| {
            let why = format!("{what}; a file, a pipe or journal:UNIT would work");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        };
        let source = match path.to_str().and_then(|p| p.strip_prefix(JOURNAL)) {
            Some(unit) if unit.trim().is_empty() => return refused("a unit's name is missing"),
            Some(unit) => journal(unit)?,
            None => match std::fs::metadata(path)?.file_type() {
                kind if kind.is_file() => {
                    let mut file = File::open(path)?;
                    file.seek(SeekFrom::End(0))?;
                    Source::File { file, path: path.into() }
                }
                kind if kind.is_fifo() => {
                    let path = PathBuf::from(path);
                    // Who opens a pipe waits for its writer.
                    pipe(move || File::open(path), None)
                }
                kind if kind.is_dir() => return refused("it is a folder"),
                kind if kind.is_socket() => return refused("it is a socket"),
                _ => return refused("it is a device"),
            },
        };
        Ok(DecodeLog { source, rest: Vec::new() })
    }

    /// Skips what has come until now.
    pub fn skip(&mut self) {
        self.rest.clear();
        match &mut self.source {
            // Where that fails, what was there is read as if it were new.
            Source::File { file, path } => {
                if let Some(new) = successor(file, path) {
                    *file = new;
                }
                drop(file.seek(SeekFrom::End(0)));
            }
            Source::Pipe { come, .. } => {
                come.lock().unwrap_or_else(PoisonError::into_inner).clear()
            }
        }
    }

    /// The lines that have come since; a log that cannot be read has none.
    pub fn lines(&mut self) -> Vec<DecodeLine> {
        let mut is_cut = false;
        let bytes = match &mut self.source {
            Source::File { file, path } => {
                // What is there of the new one was written after all that is left of the old one.
                let new = successor(file, path);
                let mut bytes = Vec::new();
                let came = rewind(file).and_then(|cut| {
                    is_cut = cut;
                    take(file, &mut bytes)
                });
                if came.is_err() {
                    return Vec::new();
                }
                let is_read = (bytes.len() as u64) < READ_BYTES_MAX;
                if let Some(mut new) = new.filter(|_| is_read) {
                    bytes.push(b'\n');
                    let _ = take(&mut new, &mut bytes);
                    *file = new;
                }
                bytes
            }
            Source::Pipe { come, .. } => {
                core::mem::take(&mut *come.lock().unwrap_or_else(PoisonError::into_inner))
            }
        };
        if is_cut {
            // The end of that line is gone with the file.
            self.rest.clear();
        }
        let begun = self.rest.len();
        self.rest.extend(bytes);
        let Some(end) = self.rest[begun..].iter().rposition(|b| *b == b'\n') else {
            // No line of a decode log is so long.
            if self.rest.len() as u64 > READ_BYTES_MAX {
                self.rest.clear();
            }
            return Vec::new();
        };
        let end = begun + end;
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        String::from_utf8_lossy(&whole).lines().filter_map(parse).collect()
    }
}

impl Drop for DecodeLog {
    fn drop(&mut self) {
        if let Source::Pipe { program: Some(program), .. } = &mut self.source {
            // It may have ended by itself.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn take(file: &mut File, bytes: &mut Vec<u8>) -> io::Result<()> {
    file.take(READ_BYTES_MAX).read_to_end(bytes).map(drop)
}

/// Back to the start of a file that was cut and is written anew, and whether it was.
fn rewind(file: &mut File) -> io::Result<bool> {
    let is_cut = file.metadata()?.len() < file.stream_position()?;
    if is_cut {
        file.seek(SeekFrom::Start(0))?;
    }
    Ok(is_cut)
}

/// The file of this name, where that is another one than `file` now and something was written to it: who
/// rotates a log makes an empty one before the writer learns of it.
fn successor(file: &File, path: &Path) -> Option<File> {
    let (was, is) = (file.metadata().ok()?, std::fs::metadata(path).ok()?);
    if !is.is_file() || is.len() == 0 || (was.dev(), was.ino()) == (is.dev(), is.ino()) {
        return None;
    }
    File::open(path).ok()
}

/// What a unit writes from now on. A unit of which the journal knows nothing would be followed for
/// ever, so that is looked for first.
fn journal(unit: &str) -> io::Result<Source> {
    let absent = |e: io::Error| io::Error::new(e.kind(), format!("journalctl does not start: {e}"));
    let journalctl = |args: &[&str]| {
        let mut command = Command::new("journalctl");
        command.args(["--output=cat", "--unit", unit]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    let last = journalctl(&["--quiet", "--no-pager", "--lines=1"]).output().map_err(absent)?;
    if !last.status.success() {
        let said = String::from_utf8_lossy(&last.stderr);
        return Err(io::Error::other(format!("journalctl: {}", said.trim())));
    }
    if last.stdout.is_empty() {
        let why = format!(
            "the journal has no line of {unit}: `systemctl list-units` has the names of units, and \
             root and the group systemd-journal may read what others wrote"
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let mut program =
        journalctl(&["--follow", "--lines=0"]).stderr(Stdio::null()).spawn().map_err(absent)?;
    let output = program.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(pipe(move || Ok(output), Some(program)))
}

/// Reads until the writer ends. What nobody takes in time is dropped, the oldest first: of a log
/// what runs now counts.
fn pipe<R: Read>(
    open: impl FnOnce() -> io::Result<R> + Send + 'static,
    program: Option<Child>,
) -> Source {
    let come = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&come);
    std::thread::spawn(move || {
        let Ok(mut from) = open() else { return };
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let mut come = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if come.len() as u64 > READ_BYTES_MAX {
                come.clear();
            }
            come.extend_from_slice(&buffer[..n]);
        }
    });
    Source::Pipe { come, program }
}

/// A line of the log; `None` for any other line.
pub fn parse(line: &str) -> Option<DecodeLine> {
    let rest = &line[line.find("Decode batch")?..];
    let after = |name: &str| Some(rest[rest.find(name)? + name.len()..].trim_start());
    let number = after("#running-req:")?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let is_captured = after("cuda graph:").and_then(|v| match v {
        v if v.starts_with("True") => Some(true),
        v if v.starts_with("False") => Some(false),
        _ => None,
    });
    Some(DecodeLine { running: number[..digits].parse().ok()?, is_captured })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_of_several_versions_are_read() {
        let line = "[2026-01-01 TP0] Decode batch, #running-req: 11, #full token: 2, full token \
                    usage: 0.1, cuda graph: False, gen throughput (token/s): 4.2";
        let want = DecodeLine { running: 11, is_captured: Some(false) };
        assert_eq!(parse(line), Some(want));
        let short = "Decode batch [3], #running-req: 7, #token: 2";
        assert_eq!(parse(short), Some(DecodeLine { running: 7, is_captured: None }));
        assert_eq!(parse("Prefill batch, #running-req: 7"), None);
        assert_eq!(parse("Decode batch, #running-req: many"), None);
    }

    #[test]
    fn only_what_comes_later_is_read_and_halves_wait() {
        let path = std::env::temp_dir().join(format!("lockstep-log-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        writeln!(file, "Decode batch, #running-req: 1, cuda graph: True").unwrap();
        let mut log = DecodeLog::open(&path).unwrap();
        write!(file, "Decode batch, #running-req: 2").unwrap();
        assert_eq!(log.lines(), []);
        writeln!(file, ", cuda graph: True").unwrap();
        assert_eq!(log.lines(), [DecodeLine { running: 2, is_captured: Some(true) }]);
        writeln!(file, "Decode batch, #running-req: 3").unwrap();
        log.skip();
        assert_eq!(log.lines(), []);
        std::fs::remove_file(path).unwrap();
    }

    /// What was found: after a log was rotated or cut, no line of it was read any more.
    #[test]
    fn a_log_that_is_rotated_or_cut_is_followed() {
        let line = |n: u32| format!("Decode batch, #running-req: {n}, cuda graph: True\n");
        let read = |log: &mut DecodeLog| log.lines().iter().map(|l| l.running).collect::<Vec<_>>();
        let path = std::env::temp_dir().join(format!("lockstep-log-new-{}", std::process::id()));
        let old = path.with_extension("1");
        let mut file = File::create(&path).unwrap();
        let mut log = DecodeLog::open(&path).unwrap();
        file.write_all(line(1).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [1]);
        // Renamed: its writer goes on with it until it is told, and then begins a new one.
        std::fs::rename(&path, &old).unwrap();
        file.write_all(format!("{}Decode ba", line(2)).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [2]);
        let mut file = File::create(&path).unwrap();
        file.write_all(line(3).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [3]);
        file.write_all(line(4).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [4]);
        // Cut where it stands (copytruncate).
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        assert!(read(&mut log).is_empty());
        file.write_all(line(5).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [5]);
        // Cut in the middle of a line.
        file.write_all(b"Decode batch, #runn").unwrap();
        assert!(read(&mut log).is_empty());
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        file.write_all(line(7).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [7]);
        // Renamed, and an empty one made before the writer learns of it.
        std::fs::rename(&path, &old).unwrap();
        let mut new = File::create(&path).unwrap();
        assert!(read(&mut log).is_empty());
        file.write_all(line(8).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [8]);
        file.write_all(line(9).as_bytes()).unwrap();
        new.write_all(line(10).as_bytes()).unwrap();
        assert_eq!(read(&mut log), [9, 10]);
        // Rotated before the load begins: what was there by then does not count.
        std::fs::rename(&path, &old).unwrap();
        std::fs::write(&path, line(6)).unwrap();
        log.skip();
        assert!(read(&mut log).is_empty());
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(old).unwrap();
    }

    /// What had no line's end was once kept for as long as it came.
    #[test]
    fn what_has_no_end_of_a_line_is_not_kept_for_ever() {
        let path = std::env::temp_dir().join(format!("lockstep-log-long-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        let mut log = DecodeLog::open(&path).unwrap();
        for _ in 0..5 {
            file.write_all(&vec![b'x'; READ_BYTES_MAX as usize / 2]).unwrap();
            assert_eq!(log.lines(), []);
            assert!(log.rest.len() as u64 <= READ_BYTES_MAX);
        }
        writeln!(file, "\nDecode batch, #running-req: 4, cuda graph: True").unwrap();
        assert_eq!(log.lines(), [DecodeLine { running: 4, is_captured: Some(true) }]);
        std::fs::remove_file(path).unwrap();
    }

    /// A folder was once followed in silence, /dev/zero read for as long as a check took, and
    /// `journal:` asked for the journal of a unit called nothing.
    #[test]
    fn what_is_neither_a_file_nor_a_pipe_is_refused() {
        for (path, words) in [
            ("/", "it is a folder"),
            ("/dev/null", "it is a device"),
            ("/dev/zero", "it is a device"),
            ("journal:", "a unit's name is missing"),
            ("journal: ", "a unit's name is missing"),
        ] {
            let why = DecodeLog::open(Path::new(path)).unwrap_err().to_string();
            assert!(why.starts_with(words) && why.contains("would work"), "{path}: {why}");
        }
    }

    /// `--decode-log <(journalctl -fu UNIT -o cat)` once could not be opened: a pipe has no end.
    #[test]
    fn a_pipe_is_read_like_a_file() {
        let (end, mut writer) = io::pipe().unwrap();
        let mut log = DecodeLog { source: pipe(move || Ok(end), None), rest: Vec::new() };
        let mut next = || loop {
            let lines = log.lines();
            if !lines.is_empty() {
                return lines;
            }
            std::thread::yield_now();
        };
        write!(writer, "Decode batch, #running-req: 5, cuda gr").unwrap();
        writeln!(writer, "aph: True\nDecode batch, #running-req: 6, cuda graph: False").unwrap();
        let mut lines = next();
        while lines.len() < 2 {
            lines.extend(next());
        }
        let line = |running, is_captured| DecodeLine { running, is_captured: Some(is_captured) };
        assert_eq!(lines, [line(5, true), line(6, false)]);
    }
}
