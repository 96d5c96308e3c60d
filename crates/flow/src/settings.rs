//! Knobs with values: what is in force and who said so.

use crate::knobs::{KNOBS, Knob, KnobError, Value, shown};
use core::fmt;

/// Where a value came from; a later one wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The registry's default.
    Default,
    /// `lockstep.toml`.
    File,
    /// A `LOCKSTEP_*` variable.
    Env,
    /// The command line.
    Flag,
    /// A guarded change of the running server.
    Change,
}

impl Source {
    /// The word in `/server_info`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::File => "file",
            Source::Env => "env",
            Source::Flag => "flag",
            Source::Change => "change",
        }
    }
}

/// A knob, its value in the operator's notation, and the source.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// Which.
    pub knob: &'static Knob,
    /// As written, `4GiB` rather than a number.
    pub written: String,
    /// As parsed.
    pub value: Value,
    /// Who said so.
    pub source: Source,
}

/// One setting for every knob of [`KNOBS`], in that order.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings(Vec<Setting>);

/// A name that no knob has, with the nearest one that exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownKnob {
    /// What was given.
    pub name: String,
    /// What was probably meant.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no knob '{}'", shown(&self.name))?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean '{nearest}'?"),
            None => write!(f, "; `lockstep serve --help` lists them"),
        }
    }
}

impl core::error::Error for UnknownKnob {}

impl Default for Settings {
    fn default() -> Self {
        let setting = |knob: &'static Knob| Setting {
            knob,
            written: knob.default.into(),
            value: knob.parse(knob.default).unwrap_or(Value::Text(String::new())),
            source: Source::Default,
        };
        Settings(KNOBS.iter().map(setting).collect())
    }
}

impl Settings {
    /// Every setting, in the registry's order.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// Puts a value in the operator's notation in place; a source below the present one is
    /// ignored, so the layers can be applied in any order.
    pub fn set(
        &mut self,
        knob: &'static Knob,
        written: &str,
        source: Source,
    ) -> Result<(), KnobError> {
        let value = knob.parse(written)?;
        if let Some(s) = self.0.iter_mut().find(|s| s.knob.name == knob.name)
            && s.source <= source
        {
            *s = Setting { knob, written: written.into(), value, source };
        }
        Ok(())
    }

    /// The setting of a knob by its dotted name.
    ///
    /// # Panics
    /// Where the registry has no such knob: the name is a literal in our own code.
    pub fn get(&self, name: &str) -> &Setting {
        match self.0.iter().find(|s| s.knob.name == name) {
            Some(setting) => setting,
            None => panic!("no knob '{name}' in the registry"),
        }
    }

    /// A count or bytes.
    pub fn number(&self, name: &str) -> u64 {
        match &self.get(name).value {
            Value::Number(n) => *n,
            other => panic!("knob '{name}' is {other:?}, not a number"),
        }
    }

    /// A text or choice; empty where nothing was given.
    pub fn text(&self, name: &str) -> &str {
        match &self.get(name).value {
            Value::Text(t) => t,
            other => panic!("knob '{name}' is {other:?}, not text"),
        }
    }

    /// A text, `None` where it is empty.
    pub fn text_opt(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|t| !t.is_empty())
    }

    /// A flag.
    pub fn flag(&self, name: &str) -> bool {
        match &self.get(name).value {
            Value::Flag(b) => *b,
            other => panic!("knob '{name}' is {other:?}, not a flag"),
        }
    }
}

/// The nearest word by edit distance, where it is near enough to be what was meant.
pub fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    among
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(d, candidate)| *d <= 2.max(candidate.len() / 3))
        .min_by_key(|(d, _)| *d)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in characters, of the first 64 of each word.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Finds a knob by its dotted name, or says which one was probably meant.
pub fn find_or_nearest(name: &str) -> Result<&'static Knob, UnknownKnob> {
    crate::knobs::find(name).ok_or_else(|| UnknownKnob {
        name: name.into(),
        nearest: nearest(name, KNOBS.iter().map(|k| k.name)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::find;

    #[test]
    fn the_higher_source_wins_in_any_order() {
        let bs = find("decode.graph-max-bs").unwrap();
        let mut s = Settings::default();
        assert_eq!(s.number("decode.graph-max-bs"), 32);
        s.set(bs, "96", Source::Env).unwrap();
        s.set(bs, "64", Source::File).unwrap();
        assert_eq!(s.number("decode.graph-max-bs"), 96);
        assert_eq!(s.get("decode.graph-max-bs").source, Source::Env);
        s.set(bs, "8", Source::Flag).unwrap();
        assert_eq!(s.number("decode.graph-max-bs"), 8);
    }

    #[test]
    fn a_bad_value_leaves_the_old_one() {
        let bs = find("decode.graph-max-bs").unwrap();
        let mut s = Settings::default();
        assert!(s.set(bs, "0", Source::Flag).is_err());
        assert_eq!(s.number("decode.graph-max-bs"), 32);
        assert_eq!(s.get("decode.graph-max-bs").source, Source::Default);
    }

    #[test]
    fn a_misspelt_knob_finds_its_neighbour() {
        let e = find_or_nearest("decode.graph-max-sb").unwrap_err();
        assert_eq!(
            e.to_string(),
            "there is no knob 'decode.graph-max-sb'; did you mean 'decode.graph-max-bs'?"
        );
        assert_eq!(find_or_nearest("zzzz").unwrap_err().nearest, None);
    }

    #[test]
    fn every_default_parses() {
        for s in Settings::default().iter() {
            let none = s.value == Value::Text(String::new());
            assert!(none || s.knob.parse(s.knob.default).is_ok(), "{}", s.knob.name);
        }
    }
}
