//! Changing one setting's own text in the file that starts a server, and nothing else of it.

pub mod diff;
mod fault;
mod find;
mod shell;
mod toml;
mod unit;
mod word;

pub use fault::toml_fault;

use core::fmt;
use std::ops::Range;
use word::Command;

/// Bytes of a file that is edited, at most.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// What kind of file it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syntax {
    /// A shell script.
    Shell,
    /// A systemd unit file or a drop-in of one.
    Unit,
    /// `lockstep.toml`.
    Toml,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The flag's spellings, dashes included: `--parallel`, `-np`.
    pub spellings: &'a [&'a str],
    /// Only commands that run this program (a file's name or a module's), where a file has more.
    pub program: Option<&'a str>,
}

impl Wanted<'_> {
    fn shown(&self) -> String {
        self.spellings.join(" or ")
    }
}

/// A file with one value changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edited {
    /// The whole file.
    pub text: Vec<u8>,
    /// The value before; none where the flag was not there.
    pub was: Option<String>,
    /// The bytes of the new file that are not the old one's.
    pub changed: Range<usize>,
    /// The line of the change in the new file.
    pub line: usize,
    /// The variable that the flag takes its value from, where it does.
    pub variable: Option<String>,
}

/// Why a file was not edited. Nothing has been written then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EditError {
    /// Something is opened that nothing ends.
    OpenEnded { what: &'static str, line: usize },
    /// The flag is there more than once.
    Repeated { flag: String, lines: Vec<usize> },
    /// The flag is the last word, or another flag follows it.
    NoValue { flag: String, line: usize },
    /// The shell makes the value.
    Computed { flag: String, line: usize },
    /// The value is a variable that is set elsewhere.
    FromOutside { flag: String, line: usize, variable: String },
    /// It is not there, and there is no one place for it.
    NotFound { flag: String, hidden_at: Option<usize> },
    /// The new value holds characters that cannot be put where the old one stands.
    Unquotable { value: String, line: usize },
    /// The file is larger than any such file.
    TooLarge { bytes: u64 },
    /// The file is not TOML, or the key is no value.
    Toml { what: String },
    /// The edited file does not read as it should; a fault of this program.
    NotAsMeant { flag: String, found: String },
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use EditError as E;
        let listed =
            |lines: &[usize]| lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        match self {
            E::OpenEnded { what, line } => {
                write!(f, "line {line} opens {what} that nothing ends; the file was not changed")
            }
            E::Repeated { flag, lines } => write!(
                f,
                "{flag} is there {} times (lines {}), so which one counts is not sure; leave one, \
                 or name the program in the target (launch.program)",
                lines.len(),
                listed(lines)
            ),
            E::NoValue { flag, line } => write!(f, "{flag} on line {line} has no value"),
            E::Computed { flag, line } => write!(
                f,
                "the value of {flag} on line {line} is computed by the shell; write it as a plain \
                 value, or as a variable that is set once in this file"
            ),
            E::FromOutside { flag, line, variable } => write!(
                f,
                "{flag} on line {line} takes its value from ${variable}, which this file does not \
                 set; set it here, or change it where it is set"
            ),
            E::NotFound { flag, hidden_at: Some(line) } => write!(
                f,
                "{flag} stands on line {line}, but not as a word of a command that can be read \
                 safely; write it as FLAG VALUE in the command itself"
            ),
            E::NotFound { flag, hidden_at: None } => write!(
                f,
                "{flag} is not there; write it into the file with its present value, or name the \
                 program that takes it in the target (launch.program)"
            ),
            E::Unquotable { value, line } => write!(
                f,
                "the value on line {line} stands inside other quotes, where '{value}' cannot be \
                 written; write the flag as FLAG=VALUE or FLAG VALUE outside quotes"
            ),
            E::TooLarge { bytes } => {
                write!(
                    f,
                    "the file has {bytes} bytes; one that starts a server has at most {FILE_BYTES_MAX}"
                )
            }
            E::Toml { what } => write!(f, "the settings file cannot be changed: {what}"),
            E::NotAsMeant { flag, found } => write!(
                f,
                "after the edit {flag} reads '{found}'; nothing was written, and this is a fault \
                 worth a report"
            ),
        }
    }
}

impl core::error::Error for EditError {}

/// Bytes that mean themselves to a shell, to systemd and inside any quotes.
pub(crate) fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"_-./:,=+@".contains(&b)
}

fn commands(text: &[u8], syntax: Syntax) -> Result<Vec<Command>, EditError> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(EditError::TooLarge { bytes: text.len() as u64 });
    }
    match syntax {
        Syntax::Shell | Syntax::Toml => shell::commands(text),
        Syntax::Unit => unit_commands(text),
    }
}

/// Command lines of a unit file, the last reset taken into account, and its environment as
/// assignments.
fn unit_commands(text: &[u8]) -> Result<Vec<Command>, EditError> {
    let (mut starts, mut environment) = (Vec::new(), Vec::new());
    for entry in unit::entries(text).iter().filter(|e| e.section == "Service") {
        match entry.key.as_str() {
            "ExecStart" if entry.value.is_empty() => starts.clear(),
            "ExecStart" => starts.push(unit::words(text, &entry.value)?),
            "Environment" if entry.value.is_empty() => environment.clear(),
            "Environment" => {
                // Each word is an assignment of its own.
                let words = unit::words(text, &entry.value)?.words;
                environment.extend(words.into_iter().map(|w| Command { words: vec![w] }));
            }
            _ => {}
        }
    }
    starts.append(&mut environment);
    Ok(starts)
}

/// True where a unit file or drop-in says what is run.
pub fn has_exec_start(text: &[u8]) -> bool {
    unit::entries(text).iter().any(|e| e.section == "Service" && e.key == "ExecStart")
}

/// True where a unit file or drop-in sets this variable.
pub fn sets_variable(text: &[u8], name: &str) -> bool {
    unit_commands(text).is_ok_and(|all| {
        matches!(find::variable(text, &all, name), Ok(find::Search::One(_)) | Err(_))
    })
}

/// The flag's value as the file has it, `None` where it is absent.
///
/// # Errors
/// As for [`set_flag`].
pub fn get_flag(
    text: &[u8],
    syntax: Syntax,
    wanted: &Wanted<'_>,
) -> Result<Option<String>, EditError> {
    match find::flag(text, &commands(text, syntax)?, wanted)? {
        find::Search::One(found) => Ok(Some(found.was)),
        find::Search::Absent { .. } => Ok(None),
    }
}

/// Puts a value in the place of a flag's present one. A flag that is absent is put right after
/// the program's word, where the target names the program and one command runs it.
///
/// # Errors
/// Where the one place is not sure, or the value cannot be written there.
pub fn set_flag(
    text: &[u8],
    syntax: Syntax,
    wanted: &Wanted<'_>,
    value: &str,
) -> Result<Edited, EditError> {
    let edited = match find::flag(text, &commands(text, syntax)?, wanted)? {
        find::Search::One(found) => replace(text, &found, value)?,
        find::Search::Absent { after: Some(at) } => insert(text, at, wanted, value),
        find::Search::Absent { after: None } => {
            return Err(EditError::NotFound {
                flag: wanted.shown(),
                hidden_at: hidden(text, wanted),
            });
        }
    };
    let reads = get_flag(&edited.text, syntax, wanted)?;
    if reads.as_deref() != Some(value) {
        let found = reads.unwrap_or_default();
        return Err(EditError::NotAsMeant { flag: wanted.shown(), found });
    }
    Ok(edited)
}

/// Puts a value in the place of a variable's present one.
///
/// # Errors
/// As for [`set_flag`].
pub fn set_variable(
    text: &[u8],
    syntax: Syntax,
    name: &str,
    value: &str,
) -> Result<Edited, EditError> {
    match find::variable(text, &commands(text, syntax)?, name)? {
        find::Search::One(found) => replace(text, &found, value),
        find::Search::Absent { .. } => {
            Err(EditError::NotFound { flag: format!("{name}="), hidden_at: None })
        }
    }
}

/// Puts a value for a dotted key into `lockstep.toml`; all else stays as it is written.
///
/// # Errors
/// The file is not TOML, or the key holds a table.
pub fn set_toml(text: &[u8], name: &str, value: &TomlValue) -> Result<Edited, EditError> {
    toml::set(text, name, value)
}

/// Puts a value in the place of a flag's present one in `launch.command` of a target's file.
///
/// # Errors
/// The flag is not there just once with a value.
pub fn set_command(text: &[u8], wanted: &Wanted<'_>, value: &str) -> Result<Edited, EditError> {
    toml::set_command(text, wanted, value)
}

/// A value as a settings file has it.
#[derive(Clone, PartialEq, Debug)]
pub enum TomlValue {
    /// A whole number.
    Number(u64),
    /// `true` or `false`.
    Flag(bool),
    /// Text.
    Text(String),
}

fn replace(text: &[u8], found: &find::Found, value: &str) -> Result<Edited, EditError> {
    let line = word::line_of(text, found.value.start);
    let (range, new) = if !value.is_empty() && value.bytes().all(is_plain) {
        let empty_quotes = found.was.is_empty().then(|| found.quoted.clone()).flatten();
        (empty_quotes.unwrap_or_else(|| found.value.clone()), value.to_owned())
    } else {
        match &found.quoted {
            Some(range) if !value.contains(['\'', '\n', '\0', '%', '\\']) => {
                (range.clone(), format!("'{value}'"))
            }
            _ => return Err(EditError::Unquotable { value: value.into(), line }),
        }
    };
    let mut edited = text[..range.start].to_vec();
    edited.extend_from_slice(new.as_bytes());
    edited.extend_from_slice(&text[range.end..]);
    Ok(Edited {
        text: edited,
        was: Some(found.was.clone()),
        changed: range.start..range.start + new.len(),
        line,
        variable: found.variable.clone(),
    })
}

fn insert(text: &[u8], at: usize, wanted: &Wanted<'_>, value: &str) -> Edited {
    let plain = value.bytes().all(is_plain);
    let value =
        if plain { value.to_owned() } else { format!("'{}'", value.replace('\'', "'\\''")) };
    let new = format!(" {} {value}", wanted.spellings[0]);
    let mut edited = text[..at].to_vec();
    edited.extend_from_slice(new.as_bytes());
    edited.extend_from_slice(&text[at..]);
    let line = word::line_of(text, at);
    Edited { text: edited, was: None, changed: at..at + new.len(), line, variable: None }
}

/// The line where the flag's text stands outside comments although no command has it.
fn hidden(text: &[u8], wanted: &Wanted<'_>) -> Option<usize> {
    let lines = text.split(|b| *b == b'\n').enumerate();
    let solid = lines.filter(|(_, l)| !l.trim_ascii_start().starts_with(b"#"));
    let has = |l: &[u8], s: &str| l.windows(s.len()).any(|w| w == s.as_bytes());
    let mut places = solid.filter(|(_, l)| wanted.spellings.iter().any(|s| has(l, s)));
    places.next().map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests;
