//! The journal of a change: JSON lines that are only ever appended, each synced before what it
//! announces is done, each with a checksum over itself and the one before.
//!
//! A crash leaves whole lines and at most one torn one at the end, which is left out when the
//! journal is opened again. Order is the sequence number's; times are for people, so a clock that
//! jumps changes nothing.

mod state;

pub use state::State;

use crate::clock::unix_ms;
use crate::fault::ChangeError;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The file's name in the folder of a record.
pub const FILE: &str = "journal.jsonl";
/// What a damaged one is called once its record was closed, or so with a number.
pub const DAMAGED: &str = "journal.damaged.jsonl";
/// Bytes of a journal, at most.
const BYTES_MAX: u64 = 16 << 20;
/// Hex digits of a line's checksum.
const SUM_DIGITS: usize = 16;

/// What a line says.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A state was reached.
    State(State),
    /// Something is about to be done; whether it was is for whoever resumes to find out.
    Intent(&'static str),
    /// Something worth keeping.
    Note(&'static str),
}

/// A line that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// From 1.
    pub seq: u64,
    /// When, by this machine's clock.
    pub unix_ms: u64,
    /// `state`, `intent` or `note`.
    pub kind: String,
    /// The state's, the intent's or the note's word.
    pub word: String,
    /// What belongs to it.
    pub facts: Value,
}

impl Record {
    /// The state that the line says was reached.
    pub fn state(&self) -> Option<State> {
        (self.kind == "state").then(|| State::parse(&self.word)).flatten()
    }
}

/// A journal that can be appended to.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
    sum: String,
    /// The process ends itself at this line, as if by a power cut: for crash tests.
    death: Option<Death>,
}

impl Journal {
    /// Begins a journal in a folder that has none.
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    pub fn create(folder: &Path) -> Result<Journal, ChangeError> {
        let path = folder.join(FILE);
        let fault = |why| ChangeError::Write { path: path.clone(), why };
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(fault)?;
        sync_folder(folder)?;
        let death = death();
        Ok(Journal { path, file, records: Vec::new(), sum: String::new(), death })
    }

    /// Opens a journal to go on with it; a torn last line is cut off.
    ///
    /// # Errors
    /// It cannot be read, or a line before the last is not as it was written.
    pub fn open(folder: &Path) -> Result<Journal, ChangeError> {
        let path = folder.join(FILE);
        let (records, whole, sum) = whole_lines(&path)?;
        let fault = |why| ChangeError::Write { path: path.clone(), why };
        let file = OpenOptions::new().append(true).open(&path).map_err(fault)?;
        if file.metadata().map_err(fault)?.len() > whole {
            file.set_len(whole).and_then(|()| file.sync_all()).map_err(fault)?;
        }
        Ok(Journal { path, file, records, sum, death: death() })
    }

    /// The whole lines of a journal.
    ///
    /// # Errors
    /// As for [`Journal::open`].
    pub fn read(folder: &Path) -> Result<Vec<Record>, ChangeError> {
        whole_lines(&folder.join(FILE)).map(|(records, _, _)| records)
    }

    /// The lines of a journal up to the first that is not as it was written, and which that is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn legible(folder: &Path) -> Result<(Vec<Record>, Option<usize>), ChangeError> {
        read(&folder.join(FILE)).map(|read| (read.records, read.damage))
    }

    /// Its lines.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Where the change stands; `None` before the first state.
    pub fn state(&self) -> Option<State> {
        state_of(&self.records)
    }

    /// The facts of the last line with this word.
    pub fn facts(&self, word: &str) -> Option<&Value> {
        self.records.iter().rev().find(|r| r.word == word).map(|r| &r.facts)
    }

    /// Moves on to a state.
    ///
    /// # Errors
    /// There is no such move, or the line cannot be written.
    pub fn reach(&mut self, state: State, facts: Value) -> Result<(), ChangeError> {
        let from = self.state();
        let legal = from.map_or(state == State::Proposed, |from| from.may_become(state));
        if !legal {
            return Err(ChangeError::Move { from, to: state });
        }
        self.append(&Entry::State(state), facts)
    }

    /// Appends a line and waits until the disk has it.
    ///
    /// # Errors
    /// It cannot be written; the change must not go on then.
    pub fn append(&mut self, entry: &Entry, facts: Value) -> Result<(), ChangeError> {
        let (kind, word) = match entry {
            Entry::State(s) => ("state", s.as_str()),
            Entry::Intent(word) => ("intent", *word),
            Entry::Note(word) => ("note", *word),
        };
        let seq = self.records.last().map_or(0, |r| r.seq) + 1;
        if self.death == Some(Death::Before(seq)) {
            die();
        }
        let record =
            Record { seq, unix_ms: unix_ms(), kind: kind.into(), word: word.into(), facts };
        let body = json!({"seq": seq, "unix_ms": record.unix_ms, "kind": kind, "word": word,
                          "facts": record.facts})
        .to_string();
        let sum = checksum(&self.sum, &body);
        let line = format!("{},\"sum\":\"{sum}\"}}\n", &body[..body.len() - 1]);
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|why| ChangeError::Write { path: self.path.clone(), why })?;
        self.sum = sum;
        self.records.push(record);
        if self.death == Some(Death::After(seq)) {
            die();
        }
        Ok(())
    }
}

/// Where these lines say that the change stands.
pub fn state_of(records: &[Record]) -> Option<State> {
    records.iter().rev().find_map(Record::state)
}

/// Where a process kills itself: what a line announces is done, or the line is there, and nothing
/// after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    Before(u64),
    After(u64),
}

/// `LOCKSTEP_TEST_CHANGE_DIES`: `before-5` or `after-5`.
fn death() -> Option<Death> {
    let text = std::env::var("LOCKSTEP_TEST_CHANGE_DIES").ok()?;
    let (when, seq) = text.split_once('-')?;
    let seq = seq.parse().ok()?;
    match when {
        "before" => Some(Death::Before(seq)),
        "after" => Some(Death::After(seq)),
        _ => None,
    }
}

fn die() {
    let me = rustix::process::getpid();
    let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    // The signal is there before the call returns, for any but a thread that is being torn down.
    std::process::abort();
}

fn checksum(before: &str, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(before.as_bytes());
    hash.update(body.as_bytes());
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    hex[..SUM_DIGITS].to_owned()
}

/// What a file holds of a journal.
struct Legible {
    records: Vec<Record>,
    /// Bytes that its whole lines take.
    whole: u64,
    /// The last one's checksum.
    sum: String,
    /// The first line that is not as it was written.
    damage: Option<usize>,
}

/// Whole lines, the bytes that they take, and the last one's checksum.
fn whole_lines(path: &Path) -> Result<(Vec<Record>, u64, String), ChangeError> {
    let read = read(path)?;
    match read.damage {
        None => Ok((read.records, read.whole, read.sum)),
        Some(line) => Err(ChangeError::Journal { path: path.into(), line }),
    }
}

fn read(path: &Path) -> Result<Legible, ChangeError> {
    let fault = |why| ChangeError::Read { path: path.into(), why };
    let mut text = Vec::new();
    // Before it is opened: a pipe would be waited for.
    let found = std::fs::metadata(path).map_err(fault)?;
    let refuse = |why: String| fault(std::io::Error::other(why));
    if !found.is_file() {
        return Err(refuse("it is no file".into()));
    }
    if found.len() > BYTES_MAX {
        return Err(refuse(format!("it has {} bytes, a journal {BYTES_MAX} at most", found.len())));
    }
    let file = File::open(path).map_err(fault)?;
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(fault)?;
    let (mut records, mut whole, mut sum) = (Vec::new(), 0u64, String::new());
    let mut damage = None;
    let mut lines = text.split_inclusive(|b| *b == b'\n').enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let expected = records.last().map_or(0, |r: &Record| r.seq) + 1;
        match parse(line, &sum).filter(|(r, _)| r.seq == expected) {
            Some((record, new)) => {
                whole += line.len() as u64;
                sum = new;
                records.push(record);
            }
            // Only the last line can be torn, and then its end is missing or the disk never got some of it;
            // any other bad one was changed by somebody.
            None if lines.peek().is_none() && is_torn(line) => break,
            None => {
                damage = Some(at + 1);
                break;
            }
        }
    }
    Ok(Legible { records, whole, sum, damage })
}

/// Whether a power cut can leave a line so.
fn is_torn(line: &[u8]) -> bool {
    !line.ends_with(b"\n") || line.contains(&0)
}

/// A line with its newline and a checksum that fits, or nothing.
fn parse(line: &[u8], before: &str) -> Option<(Record, String)> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let at = text.rfind(",\"sum\":\"")?;
    let sum = text[at + 8..].strip_suffix("\"}")?;
    let body = format!("{}}}", &text[..at]);
    if checksum(before, &body) != sum {
        return None;
    }
    let mut map: Map<String, Value> = serde_json::from_str(&body).ok()?;
    let record = Record {
        seq: map.get("seq")?.as_u64()?,
        unix_ms: map.get("unix_ms")?.as_u64()?,
        kind: map.get("kind")?.as_str()?.into(),
        word: map.get("word")?.as_str()?.into(),
        facts: map.remove("facts")?,
    };
    Some((record, sum.to_owned()))
}

/// Waits until the disk has a folder's names.
///
/// # Errors
/// The system refuses.
pub fn sync_folder(folder: &Path) -> Result<(), ChangeError> {
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|why| ChangeError::Write { path: folder.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    fn written(test: &str) -> (PathBuf, Journal) {
        let dir = folder(test);
        let mut journal = Journal::create(&dir).unwrap();
        journal.reach(State::Proposed, json!({"a": "b\"},\"sum\":\"x"})).unwrap();
        journal.append(&Entry::Intent("stage"), json!({"generation_before": 1})).unwrap();
        journal.reach(State::Checked, json!(null)).unwrap();
        (dir, journal)
    }

    #[test]
    fn what_was_appended_is_read_back() {
        let (dir, journal) = written("journal-back");
        let records = Journal::read(&dir).unwrap();
        assert_eq!(records, journal.records());
        assert_eq!(state_of(&records), Some(State::Checked));
        assert_eq!(journal.facts("stage").unwrap()["generation_before"], 1);
        assert!(Journal::create(&dir).is_err(), "a second one over the first");
    }

    /// Every length that a power cut can leave: whole lines count, the torn one does not, and the
    /// journal goes on from there.
    #[test]
    fn any_cut_leaves_the_whole_lines() {
        let (dir, _) = written("journal-cut");
        let all = std::fs::read(dir.join(FILE)).unwrap();
        let ends: Vec<usize> = (0..all.len()).filter(|i| all[*i] == b'\n').map(|i| i + 1).collect();
        for cut in 0..=all.len() {
            std::fs::write(dir.join(FILE), &all[..cut]).unwrap();
            let mut journal = Journal::open(&dir).unwrap();
            let whole = ends.iter().filter(|e| **e <= cut).count();
            assert_eq!(journal.records().len(), whole, "cut at {cut}");
            journal.append(&Entry::Note("resumed"), json!({})).unwrap();
            assert_eq!(Journal::read(&dir).unwrap().len(), whole + 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_that_was_changed_is_noticed() {
        let (dir, _) = written("journal-changed");
        let all = std::fs::read(dir.join(FILE)).unwrap();
        let mut changed = all.clone();
        let at = all.windows(5).position(|w| w == b"stage").unwrap();
        changed[at] = b'S';
        std::fs::write(dir.join(FILE), &changed).unwrap();
        let e = Journal::read(&dir).unwrap_err();
        assert!(matches!(e, ChangeError::Journal { line: 2, .. }), "{e}");
        // A line taken out is noticed by the sum of the next.
        let lines: Vec<&[u8]> = all.split_inclusive(|b| *b == b'\n').collect();
        std::fs::write(dir.join(FILE), [lines[0], lines[2], lines[2]].concat()).unwrap();
        assert!(Journal::read(&dir).is_err());
    }

    /// The state went back by one where somebody had edited the last line.
    #[test]
    fn a_last_line_that_is_whole_and_was_changed_is_no_torn_one() {
        let (dir, _) = written("journal-last");
        let all = std::fs::read_to_string(dir.join(FILE)).unwrap();
        let line_of = |text: &[u8]| {
            std::fs::write(dir.join(FILE), text).unwrap();
            match Journal::read(&dir) {
                Err(ChangeError::Journal { line, .. }) => Some(line),
                other => other.map(|_| None).unwrap(),
            }
        };
        assert_eq!(line_of(all.replace("checked", "chequed").as_bytes()), Some(3));
        assert_eq!(line_of(format!("{all}garbage\n").as_bytes()), Some(4));
        assert_eq!(line_of(format!("{all}\n").as_bytes()), Some(4));
        let last = all.lines().last().unwrap();
        assert_eq!(line_of(format!("{all}{last}\n").as_bytes()), Some(4), "said twice");
        // What a power cut can leave.
        assert_eq!(line_of(format!("{all}{{\"seq\":4").as_bytes()), None);
        assert_eq!(line_of(format!("{all}\0\0\0\"}}\n").as_bytes()), None);
    }

    /// `change` waited for ever where a pipe lay in the journal's place, and read 16 MiB of nothing.
    #[test]
    fn what_is_no_journal_by_its_kind_or_size_is_refused_unread() {
        let dir = folder("journal-kind");
        let refused = || Journal::read(&dir).unwrap_err().to_string();
        std::fs::create_dir(dir.join(FILE)).unwrap();
        assert!(refused().contains("it is no file"), "{}", refused());
        std::fs::remove_dir(dir.join(FILE)).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.join(FILE)).status().unwrap();
        assert!(pipe.success() && refused().contains("it is no file"));
        std::fs::remove_file(dir.join(FILE)).unwrap();
        File::create(dir.join(FILE)).unwrap().set_len(3 << 30).unwrap();
        assert!(refused().contains("3221225472 bytes"), "{}", refused());
    }

    #[test]
    fn a_clock_that_jumps_back_changes_nothing() {
        let (dir, _) = written("journal-clock");
        let body =
            json!({"seq": 4, "unix_ms": 1, "kind": "state", "word": "backed_up", "facts": {}});
        let (_, _, sum) = whole_lines(&dir.join(FILE)).unwrap();
        let body = body.to_string();
        let line = format!("{},\"sum\":\"{}\"}}\n", &body[..body.len() - 1], checksum(&sum, &body));
        let mut file = OpenOptions::new().append(true).open(dir.join(FILE)).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        let journal = Journal::open(&dir).unwrap();
        assert_eq!(journal.state(), Some(State::BackedUp));
    }

    #[test]
    fn states_move_as_named() {
        let (_, mut journal) = written("journal-moves");
        let e = journal.reach(State::Kept, json!({})).unwrap_err();
        assert!(e.to_string().contains("checked cannot become kept"), "{e}");
        journal.reach(State::RolledBack, json!({})).unwrap();
        assert!(journal.reach(State::Checked, json!({})).is_err());
    }
}
