//! Exit codes: one meaning each. `docs/cli.md` and `lockstep --help` show [`TABLE`], a command's own
//! `--help` those that it ends with.

use core::fmt;

/// What a command ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// A bug or an unexpected failure of the system.
    Unexpected = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A setting is wrong: an unknown key or a bad value in the file or the environment.
    Settings = 3,
    /// The model is nowhere to be had.
    NoModel = 4,
    /// The model's files are damaged or of a kind that is not supported.
    BadModel = 5,
    /// The machine lacks what the settings ask for (memory, an instruction set).
    Resources = 6,
    /// The address cannot be listened on.
    Listen = 7,
    /// No server answers at the address.
    NoServer = 8,
    /// The server answers, but not well.
    Unwell = 9,
    /// A drill was missed, or a clean twin alarmed.
    Missed = 10,
    /// A change was rolled back.
    RolledBack = 11,
    /// A change was not begun.
    NotChanged = 12,
}

impl Exit {
    /// Its name in the JSON of a failure.
    pub const fn code(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Unexpected => "unexpected",
            Exit::Usage => "usage",
            Exit::Settings => "settings",
            Exit::NoModel => "no_model",
            Exit::BadModel => "bad_model",
            Exit::Resources => "resources",
            Exit::Listen => "listen",
            Exit::NoServer => "no_server",
            Exit::Unwell => "unwell",
            Exit::Missed => "missed",
            Exit::RolledBack => "rolled_back",
            Exit::NotChanged => "not_changed",
        }
    }
}

/// Every code with its meaning.
pub const TABLE: &[(Exit, &str)] = &[
    (Exit::Done, "done; for serve: stopped by a signal and drained"),
    (Exit::Unexpected, "an unexpected failure: a bug, or the operating system refused something"),
    (Exit::Usage, "the command line is wrong, an address included (3 for check and bench)"),
    (Exit::Settings, "a setting is wrong (lockstep.toml or a LOCKSTEP_ variable)"),
    (Exit::NoModel, "the model is in none of its sources; each is named with its reason"),
    (Exit::BadModel, "the model's files are damaged or not supported"),
    (Exit::Resources, "the machine lacks what the settings ask for"),
    (Exit::Listen, "the address cannot be listened on"),
    (Exit::NoServer, "no server answers at the address"),
    (Exit::Unwell, "the server answers but is draining, failed, or not a Lockstep server"),
    (Exit::Missed, "a drill was missed by every layer that is to see it, or a clean twin alarmed"),
    (
        Exit::RolledBack,
        "a change did not pass and was rolled back, which was verified; the record says why",
    ),
    (
        Exit::NotChanged,
        "a change was not begun: it cannot work, nobody said yes, or another one is not over",
    ),
];

/// The code of a process that a second signal ended at once, by the shells' convention.
pub const INTERRUPTED: u8 = 130;

/// The whole table, as `lockstep --help` shows it.
pub fn help() -> String {
    let all: Vec<Exit> = TABLE.iter().map(|(exit, _)| *exit).collect();
    format!("{}\n{}", help_of(&all), interrupted())
}

/// Columns at which exit codes break, at most, since breaks that the help makes itself know no hang.
const HELP_COLUMNS: usize = 80;
/// And at least.
const HELP_COLUMNS_MIN: usize = 30;

/// The codes that a command ends with, for its `--help`; beside them any may end with
/// [`Exit::Done`], [`Exit::Unexpected`] and [`Exit::Usage`].
pub fn help_of(own: &[Exit]) -> String {
    let of_all = [Exit::Done, Exit::Unexpected, Exit::Usage];
    let occurs = |exit: &Exit| of_all.contains(exit) || own.contains(exit);
    let codes = TABLE.iter().filter(|(exit, _)| occurs(exit));
    let codes: Vec<(u8, &str)> = codes.map(|(exit, meaning)| (*exit as u8, *meaning)).collect();
    listed("Exit codes:", &codes)
}

/// Codes with what they mean, below a title.
pub fn listed(title: &str, codes: &[(u8, &str)]) -> String {
    let line = |(code, meaning): &(u8, &str)| format!("\n{}", lined(*code, meaning));
    format!("{title}{}", codes.iter().map(line).collect::<String>())
}

fn lined(code: u8, meaning: &str) -> String {
    let columns = crate::out::columns().unwrap_or(HELP_COLUMNS);
    let columns = columns.clamp(HELP_COLUMNS_MIN, HELP_COLUMNS);
    crate::out::wrap(&format!("  {code:>3}  {meaning}"), columns, 7)
}

/// The line of [`INTERRUPTED`].
pub fn interrupted() -> String {
    lined(INTERRUPTED, "a second signal ended a draining server at once")
}

/// The code of a failure where an operator ended a command before it had anything to say.
pub const ENDED: &str = "ended";

/// A command's failure: the code, words for people, and data for machines.
#[derive(Debug)]
pub struct Failure {
    /// What the process exits with.
    pub exit: Exit,
    /// Its name for machines; [`Exit::code`], or [`ENDED`].
    pub code: &'static str,
    /// What was asked for, what was found, what would work.
    pub message: String,
    /// More for `--json`, or null.
    pub detail: serde_json::Value,
}

impl Failure {
    /// A failure without detail.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        let (code, message) = (exit.code(), message.to_string());
        Failure { exit, code, message, detail: serde_json::Value::Null }
    }

    /// The line that `--json` prints on standard output.
    pub fn to_json(&self) -> serde_json::Value {
        self.to_json_of(self.exit as u8)
    }

    /// The same for a command whose exit codes are its own.
    pub fn to_json_of(&self, exit: u8) -> serde_json::Value {
        serde_json::json!({"error": {
            "code": self.code,
            "exit": exit,
            "message": self.message,
            "detail": self.detail,
        }})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table_once() {
        for (at, (exit, _)) in TABLE.iter().enumerate() {
            assert_eq!(*exit as usize, at);
        }
    }

    /// What was found: the codes of `check` and `bench` broke at the margin, with no hang.
    #[test]
    fn every_list_of_codes_goes_on_under_its_text() {
        for help in [help(), crate::check::help(), crate::bench::help()] {
            let (_, codes) = help.split_once("Exit codes").unwrap();
            for line in codes.lines().skip(1) {
                let is_code = line.len() > 7 && line[2..5].trim().parse::<u8>().is_ok();
                assert!(is_code || line.starts_with("       "), "{line}");
                assert!(line.chars().count() <= HELP_COLUMNS, "{line}");
            }
        }
    }

    /// Names of codes were once Rust's, in lower case (`noserver`), and stood on no page.
    #[test]
    fn every_code_s_name_is_documented() {
        let page = include_str!("../../../docs/cli.md");
        for (exit, meaning) in TABLE {
            let code = if *exit == Exit::Done { "" } else { exit.code() };
            let start = match code {
                "" => format!("| {} | | ", *exit as u8),
                code => format!("| {} | `{code}` | ", *exit as u8),
            };
            let line = page.lines().find(|l| l.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("no line starts with {start}"));
            assert_eq!(line.replace('`', "").matches(meaning).count(), 1, "{line}");
        }
        assert!(page.contains(&format!("`{ENDED}`")));
    }
}
