//! Where a flag's own value stands among the commands of a file.

use super::word::{Char, Command, Word, Written, line_of};
use super::{EditError, Wanted};
use std::ops::Range;

/// A value that can be replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The value as the program sees it.
    pub was: String,
    /// Its bytes in the file, quotes left out.
    pub value: Range<usize>,
    /// Its bytes with the quotes, where nothing else is inside them.
    pub quoted: Option<Range<usize>>,
    /// The variable that the flag takes its value from, where it does.
    pub variable: Option<String>,
}

/// What a search gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Search {
    /// One place.
    One(Found),
    /// The flag is nowhere; it may be put after the word that ends here.
    Absent { after: Option<usize> },
}

/// Programs whose words are shown and do nothing.
const TALKERS: [&str; 3] = ["echo", "printf", ":"];

/// Programs that run another one, with flags of their own before its name.
const WRAPPERS: [&str; 17] = [
    "bash", "chrt", "dash", "docker", "ionice", "ksh", "nice", "numactl", "podman", "sh", "ssh",
    "stdbuf", "su", "sudo", "taskset", "timeout", "zsh",
];
/// Words that stand before a command's own first word.
const LEADS: [&str; 6] = ["export", "env", "local", "readonly", "declare", "exec"];

/// From which of a command's words on flags are the program's own, and whether a flag of one dash
/// among them is surely its: `taskset -c 0-3` speaks of processors, whatever `-c` is to a server.
pub fn own_from(words: &[String], program: Option<&str>) -> (usize, bool) {
    let is = |word: &str, name: &str| word == name || word.rsplit('/').next() == Some(name);
    if let Some(at) = program.and_then(|p| words.iter().position(|w| is(w, p))) {
        return (at + 1, true);
    }
    let leads = |w: &&String| LEADS.contains(&w.as_str()) || w.split('=').count() > 1;
    let first = words.iter().find(|w| !leads(w));
    (0, first.is_none_or(|w| !WRAPPERS.iter().any(|name| is(w, name))))
}

/// Those of a flag's spellings that may be looked for.
pub fn spellings<'a>(all: &[&'a str], takes_short: bool) -> Vec<&'a str> {
    all.iter().copied().filter(|s| takes_short || s.starts_with("--")).collect()
}

/// Looks for the flag in commands, then in words that hold commands (`sh -c '..'`).
///
/// # Errors
/// It is there more than once, has no value, or its value is made by the shell.
pub fn flag(text: &[u8], all: &[Command], wanted: &Wanted<'_>) -> Result<Search, EditError> {
    let speaks = |c: &&Command| !c.words.first().is_some_and(|w| TALKERS.contains(&&*w.text()));
    let concerned: Vec<&Command> = all.iter().filter(speaks).filter(|c| c.runs(wanted)).collect();
    let mut places = Vec::new();
    for command in &concerned {
        let texts: Vec<String> = command.words.iter().map(Word::text).collect();
        let (from, takes_short) = own_from(&texts, wanted.program);
        let spellings = spellings(wanted.spellings, takes_short);
        let own = Wanted { spellings: &spellings, ..*wanted };
        in_words(text, &command.words[from..], true, &own, &mut places)?;
    }
    for (_, value) in assignments(all) {
        in_words(text, &Word::inner(value), false, wanted, &mut places)?;
    }
    if places.is_empty() {
        for word in all.iter().filter(speaks).flat_map(|c| &c.words) {
            if word.assignment().is_none() && word.chars.iter().any(|c| c.byte == b' ') {
                in_words(text, &Word::inner(&word.chars), false, wanted, &mut places)?;
            }
        }
    }
    match places.len() {
        0 => Ok(Search::Absent { after: insertion(&concerned, wanted) }),
        1 => resolve(text, all, places.remove(0), wanted).map(Search::One),
        _ => {
            let lines = places.iter().map(|p| line_of(text, p.range().start)).collect();
            Err(EditError::Repeated { flag: wanted.shown(), lines })
        }
    }
}

impl Command {
    /// True where the command runs the wanted program, or any program will do.
    fn runs(&self, wanted: &Wanted<'_>) -> bool {
        wanted.program.is_none_or(|p| self.words.iter().any(|w| is_program(w, p)))
    }
}

fn is_program(word: &Word, program: &str) -> bool {
    let text = word.text();
    text == program || text.rsplit('/').next() == Some(program)
}

/// Where a new flag may stand: right after the program's word, where just one command has it.
fn insertion(concerned: &[&Command], wanted: &Wanted<'_>) -> Option<usize> {
    let program = wanted.program?;
    let mut words = concerned.iter().flat_map(|c| &c.words).filter(|w| is_program(w, program));
    let word = words.next()?;
    words.next().is_none().then_some(word.raw.end)
}

/// A value's characters, and the quoted range that may be replaced as a whole.
struct Place {
    chars: Vec<Char>,
    quoted: Option<Range<usize>>,
    at: usize,
}

impl Place {
    fn range(&self) -> Range<usize> {
        let end = self.chars.last().map_or(self.at, |c| c.raw.end);
        self.chars.first().map_or(self.at, |c| c.raw.start)..end
    }
}

fn in_words(
    text: &[u8],
    words: &[Word],
    outer: bool,
    wanted: &Wanted<'_>,
    places: &mut Vec<Place>,
) -> Result<(), EditError> {
    for (i, word) in words.iter().enumerate() {
        let bytes = word.bytes();
        if wanted.spellings.iter().any(|s| s.as_bytes() == bytes) {
            let next = words.get(i + 1).filter(|w| !w.chars.is_empty() || outer);
            let value = next.filter(|w| !w.bytes().starts_with(b"--"));
            let Some(value) = value else {
                let line = line_of(text, word.raw.start);
                return Err(EditError::NoValue { flag: wanted.shown(), line });
            };
            places.push(Place {
                chars: value.chars.clone(),
                quoted: outer.then(|| value.raw.clone()),
                at: value.raw.end,
            });
        } else if let Some(s) = wanted.spellings.iter().find(|s| {
            s.starts_with("--")
                && bytes.starts_with(s.as_bytes())
                && bytes.get(s.len()) == Some(&b'=')
        }) {
            let equals = &word.chars[s.len()];
            let bare = outer && equals.written == Written::Plain;
            places.push(Place {
                chars: word.chars[s.len() + 1..].to_vec(),
                quoted: bare.then_some(equals.raw.end..word.raw.end),
                at: equals.raw.end,
            });
        }
    }
    Ok(())
}

/// Every `NAME=value` that is a word of a command of its own or stands before a program.
fn assignments(all: &[Command]) -> impl Iterator<Item = (String, &[Char])> {
    all.iter().flat_map(|command| {
        let leads = |w: &&Word| w.assignment().is_some() || LEADS.contains(&&*w.text());
        command.words.iter().take_while(leads).filter_map(Word::assignment)
    })
}

/// Follows a value that is one variable to the place where that variable is set.
fn resolve(
    text: &[u8],
    all: &[Command],
    place: Place,
    wanted: &Wanted<'_>,
) -> Result<Found, EditError> {
    let line = line_of(text, place.range().start);
    let computed = || EditError::Computed { flag: wanted.shown(), line };
    if !place.chars.iter().any(|c| c.written == Written::Expansion) {
        return Ok(found(&place.chars, place.at, place.quoted, None));
    }
    let (name, default) = reference(&place.chars).ok_or_else(computed)?;
    let set: Vec<&[Char]> =
        assignments(all).filter(|(n, _)| *n == name).map(|(_, value)| value).collect();
    let value = match (set.as_slice(), default) {
        ([one], _) => one.to_vec(),
        ([], Some(default)) => default,
        ([], None) => {
            return Err(EditError::FromOutside { flag: wanted.shown(), line, variable: name });
        }
        (several, _) => {
            let line = |v: &&[Char]| v.first().map_or(line, |c| line_of(text, c.raw.start));
            let lines = several.iter().map(line).collect();
            return Err(EditError::Repeated { flag: format!("{name}="), lines });
        }
    };
    // NAME=${NAME:-4}: the default is what counts, where nothing outside says otherwise.
    let value = match reference(&value) {
        Some((inner, Some(default))) if inner == name => default,
        _ => value,
    };
    if value.is_empty() || value.iter().any(|c| c.written == Written::Expansion) {
        return Err(computed());
    }
    Ok(found(&value, place.at, None, Some(name)))
}

fn found(
    chars: &[Char],
    at: usize,
    quoted: Option<Range<usize>>,
    variable: Option<String>,
) -> Found {
    let bytes: Vec<u8> = chars.iter().map(|c| c.byte).collect();
    let start = chars.first().map_or(at, |c| c.raw.start);
    let end = chars.last().map_or(start, |c| c.raw.end);
    Found { was: String::from_utf8_lossy(&bytes).into_owned(), value: start..end, quoted, variable }
}

/// The name in `$NAME`, `${NAME}` or `${NAME:-default}`, with the default's characters.
fn reference(chars: &[Char]) -> Option<(String, Option<Vec<Char>>)> {
    if chars.iter().any(|c| c.written != Written::Expansion) {
        return None;
    }
    let bytes: Vec<u8> = chars.iter().map(|c| c.byte).collect();
    let text = std::str::from_utf8(&bytes).ok()?;
    let is_name =
        |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let Some(inner) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}')) else {
        let name = text.strip_prefix('$')?;
        return is_name(name).then(|| (name.to_owned(), None));
    };
    if is_name(inner) {
        return Some((inner.to_owned(), None));
    }
    let (name, default) = inner.split_once('-')?;
    let name = name.strip_suffix(':').unwrap_or(name);
    let plain = |c: &Char| Char { written: Written::Plain, ..c.clone() };
    let simple = default.bytes().all(super::is_plain);
    let start = text.len() - 1 - default.len();
    let default = chars[start..chars.len() - 1].iter().map(plain).collect();
    (is_name(name) && simple).then(|| (name.to_owned(), Some(default)))
}

/// Looks for the assignment of a variable, for settings that are variables themselves.
///
/// # Errors
/// It is set more than once, or to what the shell makes.
pub fn variable(text: &[u8], all: &[Command], name: &str) -> Result<Search, EditError> {
    let set: Vec<&[Char]> =
        assignments(all).filter(|(n, _)| n == name).map(|(_, value)| value).collect();
    match set.as_slice() {
        [] => Ok(Search::Absent { after: None }),
        [value] => {
            let chars = match reference(value) {
                Some((inner, Some(default))) if inner == name => default,
                _ => value.to_vec(),
            };
            let line = chars.first().map_or(1, |c| line_of(text, c.raw.start));
            if chars.is_empty() || chars.iter().any(|c| c.written == Written::Expansion) {
                return Err(EditError::Computed { flag: format!("{name}="), line });
            }
            Ok(Search::One(found(&chars, 0, None, None)))
        }
        several => {
            let line = |v: &&[Char]| v.first().map_or(1, |c| line_of(text, c.raw.start));
            let lines = several.iter().map(line).collect();
            Err(EditError::Repeated { flag: format!("{name}="), lines })
        }
    }
}
