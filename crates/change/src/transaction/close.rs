//! A change that neither goes on nor back any more is closed: its server is gone for good, or its
//! journal is damaged. Nothing is asked of a server and none of its files is written.

use super::{Done, pending_file};
use crate::backup::Backup;
use crate::fault::ChangeError;
use crate::journal::{self, DAMAGED, Journal, State};
use crate::lock::Lock;
use crate::record::{self, Broken, Record};
use crate::target::Target;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Where the journal that takes a damaged one's place is written.
const ANEW: &str = "journal.anew";

/// A record to close.
enum Open {
    /// One that is not over.
    Unfinished(Box<Record>),
    /// One that does not tell.
    Broken(Box<Broken>, u64),
}

/// Closes a change, by its number or its record's name; without one the only one that is open.
///
/// # Errors
/// There is none, several are open, or the journal cannot be written.
pub fn close(
    records: &Path,
    which: Option<&str>,
    why: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Done, ChangeError> {
    let url = match find(records, which)? {
        Open::Unfinished(r) => r.url,
        Open::Broken(b, _) => b.url.unwrap_or_default(),
    };
    let _lock = Lock::take(records, &url)?;
    // Whoever had the lock may have settled it.
    let (number, folder) = match find(records, which)? {
        Open::Unfinished(r) => {
            let mut journal = Journal::open(&r.folder)?;
            let was = format!("while it was {}", r.state);
            end(&mut journal, &r.folder, why, &was, say)?;
            (r.number, r.folder)
        }
        Open::Broken(b, free) => {
            let number = b.number.unwrap_or(free);
            begin_anew(&b, number, why, say)?;
            (number, b.folder)
        }
    };
    forget_pending(&folder);
    if let Err(e) = record::write(&folder) {
        say(&format!("{e}; `lockstep change show {number}` writes it again"));
    }
    Ok(Done::Ended { number, folder, state: State::Closed, reasons: vec![why.into()] })
}

/// Whether there is a record that [`close`] would close.
///
/// # Errors
/// There is none, or several are open.
pub fn is_there(records: &Path, which: Option<&str>) -> Result<(), ChangeError> {
    find(records, which).map(|_| ())
}

fn find(records: &Path, which: Option<&str>) -> Result<Open, ChangeError> {
    let mut all = record::list(records)?;
    if let Some(at) = all.closed.iter().position(|c| which == Some(&*c.name)) {
        let closed = all.closed.swap_remove(at);
        return Err(ChangeError::Read { path: closed.folder, why: closed.why });
    }
    let free = all.next_number();
    let number = which.and_then(|w| w.parse::<u64>().ok());
    let is_meant = |n: Option<u64>, name: &str| {
        which.is_none_or(|w| w == name || (number.is_some() && number == n))
    };
    let records_open = core::mem::take(&mut all.records).into_iter();
    let records_open = records_open.filter(|r| !r.state.is_over());
    let mut open: Vec<Open> = records_open
        .filter(|r| is_meant(Some(r.number), &r.name))
        .map(|r| Open::Unfinished(Box::new(r)))
        .collect();
    let broken = core::mem::take(&mut all.broken).into_iter();
    let broken = broken.filter(|b| is_meant(b.number, &b.name));
    open.extend(broken.map(|b| Open::Broken(Box::new(b), free)));
    match (open.len(), open.pop()) {
        (1, Some(one)) => Ok(one),
        (n, _) => {
            let asked = match which {
                Some(w) if n == 0 => format!("no change {w} that is not over"),
                None if n == 0 => "nothing to close: no change that is not over".into(),
                _ => format!("more than one ({n}) that may be meant"),
            };
            Err(all.has_no(asked, records))
        }
    }
}

/// A new journal for a damaged one, which is kept beside it.
fn begin_anew(
    b: &Broken,
    number: u64,
    why: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(), ChangeError> {
    // In a folder of its own until it is whole: a death in between leaves the damaged one where it is.
    let apart = b.folder.join(ANEW);
    let fault = |why| ChangeError::Write { path: apart.clone(), why };
    if apart.exists() {
        std::fs::remove_dir_all(&apart).map_err(fault)?;
    }
    std::fs::create_dir(&apart).map_err(fault)?;
    let mut journal = Journal::create(&apart)?;
    let mut facts = match &b.proposed {
        Value::Object(facts) => facts.clone(),
        _ => Map::new(),
    };
    facts.insert("number".into(), number.into());
    if !facts.contains_key("title") {
        facts.insert("title".into(), b.name.as_str().into());
        facts.insert("url".into(), b.url.as_deref().unwrap_or("unknown").into());
    }
    journal.reach(State::Proposed, facts.into())?;
    let was = format!("since its record does not tell what became of it ({})", b.what);
    end(&mut journal, &b.folder, why, &was, say)?;
    // Also a link to nothing is there.
    let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    let old = b.folder.join(journal::FILE);
    if is_there(&old) {
        let names = core::iter::once(DAMAGED.to_owned())
            .chain((2..).map(|n| DAMAGED.replace(".jsonl", &format!("-{n}.jsonl"))));
        let name = names.into_iter().find(|name| !is_there(&b.folder.join(name)));
        let name = name.expect("there is always another number");
        let kept = b.folder.join(&name);
        std::fs::rename(&old, &kept).map_err(|why| ChangeError::Write { path: kept, why })?;
        say(&format!("the damaged journal is kept as {name}"));
    }
    std::fs::rename(apart.join(journal::FILE), &old)
        .and_then(|()| std::fs::remove_dir(&apart))
        .map_err(fault)?;
    journal::sync_folder(&b.folder)
}

/// The last line, with what the files hold that the change was to write.
fn end(
    journal: &mut Journal,
    folder: &Path,
    why: &str,
    was: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(), ChangeError> {
    let backups = journal.facts("backed_up").map(|f| f["files"].clone()).unwrap_or_default();
    let wrote = ["keep", "flip"].map(|word| journal.facts(word).cloned());
    let mut files = Vec::new();
    for backup in backups.as_array().into_iter().flatten().filter_map(Backup::from_json) {
        let holds = if backup.is_in_place() {
            "is as it was before the change"
        } else if wrote.iter().any(|w| backup.holds(w.as_ref())) {
            "holds what the change wrote"
        } else {
            "is neither as it was nor what the change wrote"
        };
        say(&format!("{} {holds}", backup.path.display()));
        files.push(json!({"path": backup.path, "copy": backup.copy, "holds": holds}));
    }
    if journal.facts("drain").is_some() {
        say("its router was told to send the server nothing: look whether it does again");
    }
    let copies = folder.join("backup");
    if files.is_empty() && copies.is_dir() {
        say(&format!("copies of files from before the change are in {}", copies.display()));
    }
    journal.reach(State::Closed, json!({"reasons": [why], "was": was, "files": files}))
}

/// The word that a start of the server would tell of this change.
fn forget_pending(folder: &Path) {
    let Ok(target) = Target::read(&folder.join("target.toml")) else { return };
    let Some(path) = target.config.as_deref().map(pending_file) else { return };
    let word = std::fs::read(&path).unwrap_or_default();
    let word: Value = serde_json::from_slice(&word).unwrap_or_default();
    if word["record"].as_str().is_some_and(|r| Path::new(r) == folder) {
        // A word that stays says too much, and is no reason to fail.
        let _ = std::fs::remove_file(path);
    }
}
