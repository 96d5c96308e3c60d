//! Records of changes: what is on disk of each, and the pages made from it.

mod broken;
mod decision;
mod page;
mod render;

pub use broken::Broken;

use crate::fault::ChangeError;
use crate::journal::{self, Journal, State};
use crate::transaction::write_file;
use core::fmt;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// A record as a list shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// From 1, in the order in which changes were begun.
    pub number: u64,
    /// Its folder.
    pub folder: PathBuf,
    /// The folder's name.
    pub name: String,
    /// `decode.graph-max-bs=96`.
    pub title: String,
    /// Why it was asked for.
    pub why: String,
    /// When it was begun, by the clock of then.
    pub unix_ms: u64,
    /// The target's name.
    pub target: String,
    /// Its file.
    pub target_file: Option<PathBuf>,
    /// The server's address.
    pub url: String,
    /// The server's kind.
    pub kind: String,
    /// Where it stands.
    pub state: State,
    /// Why it was rolled back.
    pub reasons: Vec<String>,
    /// Settings before it, by name.
    pub before: Vec<(String, String)>,
    /// Bytes that were predicted and measured.
    pub predicted_and_measured: Option<(u64, u64)>,
    /// Seconds without service.
    pub downtime_seconds: Option<f64>,
}

/// What a folder of records holds.
#[derive(Default, Debug)]
pub struct Listing {
    /// Every record, in order.
    pub records: Vec<Record>,
    /// Those whose journal does not tell what became of the change, by their names.
    pub broken: Vec<Broken>,
    /// Those that this user may not look into, by their names.
    pub closed: Vec<Closed>,
}

/// A record that this user may not look into.
#[derive(Debug)]
pub struct Closed {
    /// Its folder.
    pub folder: PathBuf,
    /// The folder's name.
    pub name: String,
    /// The system's words.
    pub why: io::Error,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the record {} cannot be read ({}), so it is not known whose change it is and whether \
             it is over; a user who may read it is told",
            self.name, self.why
        )
    }
}

impl Listing {
    /// A number that no record has.
    pub fn next_number(&self) -> u64 {
        let broken = self.broken.iter().filter_map(|b| b.number);
        self.records.iter().map(|r| r.number).chain(broken).max().unwrap_or(0) + 1
    }

    /// The error of what is not among these, which names those that it may be.
    pub fn has_no(&self, asked: impl Into<String>, records: &Path) -> ChangeError {
        let closed = self.closed.iter().map(|c| c.name.clone()).collect();
        ChangeError::NoRecord { asked: asked.into(), records: records.into(), closed }
    }
}

/// Refuses what is there in the place of a folder of records and is none.
///
/// # Errors
/// It is a file, or something else that holds no records.
pub fn is_folder(records: &Path) -> Result<(), ChangeError> {
    match std::fs::metadata(records) {
        Ok(found) if !found.is_dir() => Err(ChangeError::Records { path: records.into() }),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            Err(ChangeError::Records { path: records.into() })
        }
        // One that is not there is made, and what the system refuses is said when it is read.
        _ => Ok(()),
    }
}

/// Every record. A folder in which nothing was begun is none; one bad file is no reason to leave out
/// the others.
///
/// # Errors
/// The folder cannot be read.
pub fn list(records: &Path) -> Result<Listing, ChangeError> {
    is_folder(records)?;
    let folders = match std::fs::read_dir(records) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Listing::default()),
        other => other.map_err(|why| ChangeError::Read { path: records.into(), why })?,
    };
    let mut all = Listing::default();
    for folder in folders.filter_map(|f| Some(f.ok()?.path())) {
        // What a folder of somebody else's holds is nobody's business here.
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(why) = denied(&folder.join(journal::FILE)) {
            if is_record_name(&name) {
                all.closed.push(Closed { folder, name, why });
            }
            continue;
        }
        if !folder.is_dir() {
            continue;
        }
        match broken::look(&folder) {
            Some(broken) => all.broken.push(broken),
            None => all.records.extend(read(&folder)?),
        }
    }
    all.records.sort_by_key(|r: &Record| r.number);
    all.broken.sort_by(|a, b| a.name.cmp(&b.name));
    all.closed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Why this user may not read a file, or come to it. A pipe in its place is not opened.
fn denied(path: &Path) -> Option<io::Error> {
    let read = std::fs::metadata(path).and_then(|found| match found.is_file() {
        true => std::fs::File::open(path).map(drop),
        false => Ok(()),
    });
    read.err().filter(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether a folder's name begins with a time, as those of records do (`2026-01-02T00-00-00Z-..`).
fn is_record_name(name: &str) -> bool {
    let form = "dddd-dd-ddTdd-dd-ddZ";
    let fits = |(c, f): (u8, u8)| if f == b'd' { c.is_ascii_digit() } else { c == f };
    name.len() >= form.len() && name.bytes().zip(form.bytes()).all(fits)
}

/// The record with a number.
///
/// # Errors
/// There is none, or its journal does not tell.
pub fn find(records: &Path, number: u64) -> Result<Record, ChangeError> {
    let mut all = list(records)?;
    if let Some(at) = all.records.iter().position(|r| r.number == number) {
        return Ok(all.records.swap_remove(at));
    }
    match all.broken.iter().position(|b| b.number == Some(number)) {
        Some(at) => Err(all.broken.swap_remove(at).into()),
        None => Err(all.has_no(format!("no change {number}"), records)),
    }
}

fn read(folder: &Path) -> Result<Option<Record>, ChangeError> {
    if !folder.join(journal::FILE).is_file() {
        return Ok(None);
    }
    let lines = Journal::read(folder)?;
    let Some(first) = lines.first() else { return Ok(None) };
    let of = |word: &str| lines.iter().rev().find(|l| l.word == word).map(|l| &l.facts);
    let f = &first.facts;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let back = of("closed").or(of("rolled_back")).or(of("roll_back"));
    let reasons = back.and_then(|f| f["reasons"].as_array());
    let before = f["before"].as_object().into_iter().flatten();
    let prediction = read_json(folder, "prediction.json");
    let predicted = prediction["memory"]["staging_bytes"].as_u64();
    let measured = of("proven").and_then(|f| f["staging_bytes"].as_u64());
    let graph = of("flipped").and_then(|f| {
        let was = read_json(folder, "before.json")["graph_bytes"].as_u64()?;
        Some((
            prediction["memory"]["kept_bytes"].as_u64()?,
            f["graph_bytes"].as_u64()?.saturating_sub(was),
        ))
    });
    Ok(Some(Record {
        number: f["number"].as_u64().unwrap_or(0),
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        folder: folder.to_path_buf(),
        title: text(&f["title"]),
        why: text(&f["why"]),
        unix_ms: first.unix_ms,
        target: text(&f["target"]),
        target_file: f["target_file"].as_str().map(PathBuf::from),
        url: text(&f["url"]),
        kind: text(&f["server"]["kind"]),
        state: journal::state_of(&lines).unwrap_or(State::Proposed),
        reasons: reasons.into_iter().flatten().map(text).collect(),
        before: before.map(|(name, value)| (name.clone(), text(value))).collect(),
        predicted_and_measured: predicted.zip(measured).or(graph),
        downtime_seconds: of("flipped").and_then(|f| f["downtime_seconds"].as_f64()),
    }))
}

fn read_json(folder: &Path, name: &str) -> Value {
    let text = std::fs::read(folder.join(name)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Everything of a record as one JSON value.
///
/// # Errors
/// The journal cannot be read.
pub fn whole(folder: &Path) -> Result<Value, ChangeError> {
    let lines = Journal::read(folder)?;
    let line = |l: &journal::Record| {
        serde_json::json!({"seq": l.seq, "unix_ms": l.unix_ms, "kind": l.kind, "word": l.word,
                           "facts": l.facts})
    };
    let journal: Vec<Value> = lines.iter().map(line).collect();
    let mut all = serde_json::json!({ "folder": folder, "journal": journal });
    for name in [
        "before",
        "prediction",
        "baseline",
        "evidence",
        "after_readback",
        "check",
        "after",
        "verdict",
    ] {
        all[name] = read_json(folder, &format!("{name}.json"));
    }
    Ok(all)
}

/// `decision.md` as it is now, whether or not it could be written.
///
/// # Errors
/// The record cannot be read.
pub fn decision(folder: &Path) -> Result<String, ChangeError> {
    Ok(decision::markdown(&whole(folder)?))
}

/// Writes `decision.md` and `index.html` from what the record holds.
///
/// # Errors
/// They cannot be written.
pub fn write(folder: &Path) -> Result<(), ChangeError> {
    let whole = whole(folder)?;
    write_file(folder, "decision.md", decision::markdown(&whole).as_bytes())?;
    write_file(folder, "index.html", page::html(&whole).as_bytes())
}
