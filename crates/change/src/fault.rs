//! Why a change did not go as asked.

use crate::edit::EditError;
use crate::journal::State;
use core::fmt;
use lockstep_check::client::{NoAnswer, NoServer, Outcome};
use std::io;
use std::path::PathBuf;

/// Everything that can be in a change's way.
#[derive(Debug)]
pub enum ChangeError {
    /// A file cannot be read.
    Read { path: PathBuf, why: io::Error },
    /// A file cannot be written.
    Write { path: PathBuf, why: io::Error },
    /// A file cannot be copied before it is changed.
    Backup { path: PathBuf, why: io::Error },
    /// A copy is not what was copied.
    Damaged { path: PathBuf },
    /// A journal's line was changed.
    Journal { path: PathBuf, line: usize },
    /// A record does not tell what became of a change.
    Broken { record: String, what: String },
    /// A move that the state machine does not have.
    Move { from: Option<State>, to: State },
    /// Another change has the folder of records.
    Locked { records: PathBuf, pid: Option<u32> },
    /// An earlier change of this target is not over.
    Unfinished { record: String, number: u64, state: State },
    /// There is no such record, or none to resume, as far as records can be read.
    NoRecord { asked: String, records: PathBuf, closed: Vec<String> },
    /// The folder of records is something else.
    Records { path: PathBuf },
    /// A file cannot be edited.
    Edit { path: PathBuf, why: EditError },
    /// A target's file is wrong.
    Target { path: PathBuf, what: String, would_work: String },
    /// What was asked for is no setting of this server.
    Setting { name: String, what: String },
    /// The server's address or its key cannot be used.
    Address { why: String },
    /// The server is of another kind than the address alone says.
    Kind { url: String, found: &'static str },
    /// The server cannot be asked.
    Unreachable { url: String, outcome: Outcome },
    /// The server takes a connection and does not answer.
    Silent { url: String, seconds: u64 },
    /// The server's answer is not what it should be.
    Answer { url: String, what: String },
    /// A program of the system failed.
    Program { program: String, what: String },
    /// The gate could not be run.
    Gate { what: String },
    /// Prediction: it cannot work.
    Blocked { reasons: Vec<String> },
    /// Nobody said yes.
    Unconfirmed,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ChangeError as E;
        match self {
            E::Read { path, why } => write!(f, "{} cannot be read: {why}", path.display()),
            E::Write { path, why } => write!(f, "{} cannot be written: {why}", path.display()),
            E::Backup { path, why } => write!(
                f,
                "{} cannot be copied before it is changed ({why}); it was not touched",
                path.display()
            ),
            E::Damaged { path } => write!(f, "{} is not what was copied", path.display()),
            E::Journal { path, line } => write!(
                f,
                "line {line} of {} is not as it was written, so what was done is not sure; look \
                 at the server, then `lockstep change close` ends it",
                path.display()
            ),
            E::Broken { record, what } => write!(
                f,
                "the record {record} does not tell what became of its change: {what}; look at the \
                 server and its files, then `lockstep change close {record} --why TEXT` ends it"
            ),
            E::Move { from: Some(from), to } => {
                write!(f, "a change that is {from} cannot become {to}")
            }
            E::Move { from: None, to } => write!(f, "a change does not begin as {to}"),
            E::Locked { records, pid } => {
                let who = pid.map_or(String::new(), |p| format!(" (process {p})"));
                write!(f, "another change is going on{who} in {}; wait for it", records.display())
            }
            E::Unfinished { record, number, state } => write!(
                f,
                "change {number} ({record}) ended while it was {state}; first `lockstep change \
                 resume {number}` or `lockstep change rollback {number}`"
            ),
            E::NoRecord { asked, records, closed } => {
                let records = records.display();
                write!(f, "there is {asked} in {records}")?;
                if !closed.is_empty() {
                    let all = closed.join(", ");
                    write!(f, ", as far as that can be read: this user may not look into {all}")?;
                }
                f.write_str("; `lockstep change log` lists what there is")
            }
            E::Records { path } => write!(
                f,
                "{} is a file, where --records takes the folder that holds the records, or will \
                 ('records' where it is not given)",
                path.display()
            ),
            E::Edit { path, why } => write!(f, "{}: {why}", path.display()),
            E::Target { path, what, would_work } => {
                write!(f, "{}: {what}; {would_work}", path.display())
            }
            E::Setting { name, what } => write!(f, "{name} {what}"),
            E::Address { why } => f.write_str(why),
            E::Kind { url, found } => write!(
                f,
                "{url} is no Lockstep server ({found} answers there), so how it is started has to \
                 be said: `lockstep change init --url {url}` writes a target, which --target names"
            ),
            E::Unreachable { url, outcome: Outcome::Connect { why } } => {
                NoServer { url, why }.fmt(f)
            }
            E::Unreachable { url, outcome } => write!(f, "{url} cannot be asked: {outcome}"),
            E::Silent { url, seconds } => NoAnswer { url, seconds: *seconds }.fmt(f),
            E::Answer { url, what } => write!(f, "{url}: {what}"),
            E::Program { program, what } => write!(f, "{program}: {what}"),
            E::Gate { what } => write!(f, "the gate could not be run: {what}"),
            E::Blocked { reasons } => {
                write!(f, "it cannot work: {}; nothing was touched", reasons.join("; "))
            }
            E::Unconfirmed => write!(
                f,
                "nothing was changed: nobody said yes; --yes says so where nobody is there to ask"
            ),
        }
    }
}

impl core::error::Error for ChangeError {}
