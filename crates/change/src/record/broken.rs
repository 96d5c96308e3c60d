//! Records whose journal is damaged or gone: what can still be told of them.

use crate::fault::ChangeError;
use crate::journal::{self, Journal};
use crate::target::Target;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a change writes only after the first line of its journal, and after that line was synced.
const LATER: [&str; 5] =
    ["baseline.json", "bench-before.jsonl", "backup", "staged", "evidence.json"];

/// A record that does not tell whether its change is over.
#[derive(Clone, PartialEq, Debug)]
pub struct Broken {
    /// Its folder.
    pub folder: PathBuf,
    /// The folder's name.
    pub name: String,
    /// Its number, where that can be told.
    pub number: Option<u64>,
    /// What the change was, where that can be told.
    pub title: String,
    /// The server's address, where that can be told.
    pub url: Option<String>,
    /// What is wrong with it.
    pub what: String,
    /// Facts of the journal's first line, where that is as it was written.
    pub proposed: Value,
}

impl From<Broken> for ChangeError {
    fn from(b: Broken) -> ChangeError {
        ChangeError::Broken { record: b.name, what: b.what }
    }
}

/// What is wrong with a record; nothing where its journal is whole, or where nothing was begun.
pub(super) fn look(folder: &Path) -> Option<Broken> {
    let has = |name: &str| folder.join(name).exists();
    let (lines, what) = if !has(journal::FILE) {
        if !has("target.toml") && !has(journal::DAMAGED) && !LATER.into_iter().any(has) {
            return None;
        }
        (Vec::new(), format!("it has no {}", journal::FILE))
    } else {
        match Journal::legible(folder) {
            Err(e) => (Vec::new(), e.to_string()),
            Ok((lines, Some(line))) => {
                let what = format!("line {line} of its {} is not as it was written", journal::FILE);
                (lines, what)
            }
            Ok((lines, None)) if lines.is_empty() && LATER.into_iter().any(has) => {
                (lines, format!("its {} has no line", journal::FILE))
            }
            Ok((_, None)) => return None,
        }
    };
    let proposed = lines.into_iter().next().map(|l| l.facts).unwrap_or_default();
    let text = |name: &str| proposed[name].as_str().map(str::to_owned);
    let target = || Target::read(&folder.join("target.toml")).ok().map(|t| t.url);
    Some(Broken {
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        folder: folder.to_path_buf(),
        number: proposed["number"].as_u64(),
        title: text("title").unwrap_or_default(),
        url: text("url").or_else(target),
        what,
        proposed,
    })
}
