//! The hub, over HTTP(S), by the machine's own Python: its proxies and certificates are the ones
//! that work here, and a TLS stack stays out of the binary.

use super::catalogue::Known;
use super::progress::Progress;
use super::source::Why;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("fetch.py");
const HUB: &str = "https://huggingface.co";
/// Tries that got nowhere before a transfer is given up. One that moved does not count.
const IDLE_TRIES_MAX: u32 = 2;
/// Bytes of the script's first line, and of a failed child's words.
const WORDS_BYTES_MAX: u64 = 16 << 10;

/// The file's address; `HF_ENDPOINT` names a mirror.
pub fn hub_url(known: &Known) -> String {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|e| !e.is_empty());
    let endpoint = endpoint.as_deref().unwrap_or(HUB).trim_end_matches('/');
    format!("{endpoint}/{}/resolve/main/{}", known.hub, known.file)
}

/// Starts `python3 -c script args`, its standard output and error taken.
pub fn python(script: &str, args: &[&str]) -> Result<Child, Why> {
    Command::new("python3")
        .args(["-I", "-c", script])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Why::NoPython)
}

/// The last line that a child wrote to its standard error.
pub fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        // Words that cannot be read are no words.
        let _ = stderr.take(WORDS_BYTES_MAX).read_to_string(&mut text);
    }
    text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no reason given").trim().into()
}

/// Copies a child's output to the partial file, counting on `progress`; at most `max` bytes.
pub fn drain(
    from: &mut impl Read,
    to: &mut File,
    max: u64,
    progress: &Progress,
) -> Result<u64, Why> {
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Why::Read(e)),
        };
        bytes += n as u64;
        if bytes > max {
            return Err(Why::Length { found: bytes, expected: max });
        }
        to.write_all(&buffer[..n]).map_err(Why::Write)?;
        progress.advance(n as u64);
    }
}

/// Fills `partial` from `url`, going on where an earlier transfer ended.
pub fn fill(known: &Known, url: &str, partial: &Path) -> Result<(), Why> {
    let progress = Progress::bytes("fetching from the Hugging Face hub", known.bytes);
    let mut idle = 0;
    loop {
        let at = fs::metadata(partial).map_or(0, |m| m.len());
        if at >= known.bytes {
            return Ok(());
        }
        progress.start_at(at);
        let why = match once(known, url, partial, at, &progress) {
            Ok(()) => return Ok(()),
            Err(why @ Why::BrokeOff { .. }) => why,
            Err(why) => return Err(why),
        };
        let moved = fs::metadata(partial).map_or(0, |m| m.len()) > at;
        idle = if moved { 0 } else { idle + 1 };
        if idle >= IDLE_TRIES_MAX {
            return Err(why);
        }
        progress.note(&format!("{why}; trying again"));
    }
}

fn once(known: &Known, url: &str, partial: &Path, at: u64, progress: &Progress) -> Result<(), Why> {
    let mut child = python(SCRIPT, &[url, &at.to_string()])?;
    let result = receive(known, &mut child, partial, at, progress);
    // A child that still writes would wait for ever on a pipe that nobody reads.
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn receive(
    known: &Known,
    child: &mut Child,
    partial: &Path,
    at: u64,
    progress: &Progress,
) -> Result<(), Why> {
    let Some(stdout) = child.stdout.take() else { return Err(Why::Answer("no answer".into())) };
    let mut from = BufReader::new(stdout);
    let mut line = String::new();
    from.by_ref().take(WORDS_BYTES_MAX).read_line(&mut line).map_err(Why::Read)?;
    let Ok(head) = serde_json::from_str::<serde_json::Value>(&line) else {
        return Err(Why::Answer(last_words(child)));
    };
    let status = head["status"].as_u64().unwrap_or(0);
    if status == 416 && at > 0 {
        // The server's file ends before what we have: what we have is of something else.
        return Err(Why::Length { found: at, expected: known.bytes });
    }
    if let Some(error) = head["error"].as_str() {
        return Err(Why::Answer(error.into()));
    }
    // Only 206 goes on from `at`; 200 is the whole file from its start.
    let at = if status == 206 { at } else { 0 };
    let left = known.bytes - at;
    if let Some(length) = head["length"].as_u64()
        && length != left
    {
        return Err(Why::Length { found: at + length, expected: known.bytes });
    }
    let mut options = File::options();
    let mut to = match at {
        0 => options.write(true).create(true).truncate(true).open(partial),
        _ => options.append(true).open(partial),
    }
    .map_err(Why::Write)?;
    progress.start_at(at);
    let got = drain(&mut from, &mut to, left, progress)?;
    if got == left {
        return Ok(());
    }
    Err(Why::BrokeOff { at: at + got, of: known.bytes, what: last_words(child) })
}
