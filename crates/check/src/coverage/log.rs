//! A decode log in SGLang's words: how many requests ran in a step, and whether it was captured.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes that are read of a log at once.
const READ_BYTES_MAX: u64 = 8 << 20;

/// A log that is being written.
#[derive(Debug)]
pub struct DecodeLog {
    file: File,
    rest: Vec<u8>,
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
    /// Opens a log and skips what is in it.
    pub fn open(path: &Path) -> std::io::Result<DecodeLog> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(DecodeLog { file, rest: Vec::new() })
    }

    /// Skips what has come until now.
    pub fn skip(&mut self) {
        self.rest.clear();
        // Where that fails, what was there is read as if it were new.
        let _ = self.file.seek(SeekFrom::End(0));
    }

    /// The lines that have come since; a log that cannot be read has none.
    pub fn lines(&mut self) -> Vec<DecodeLine> {
        let mut bytes = Vec::new();
        if (&mut self.file).take(READ_BYTES_MAX).read_to_end(&mut bytes).is_err() {
            return Vec::new();
        }
        self.rest.extend(bytes);
        let Some(end) = self.rest.iter().rposition(|b| *b == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        String::from_utf8_lossy(&whole).lines().filter_map(parse).collect()
    }
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
}
