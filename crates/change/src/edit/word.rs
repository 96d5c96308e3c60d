//! A word of a command with the bytes that each of its characters came from.

use std::ops::Range;

/// How a byte of a word was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// As it stands.
    Plain,
    /// Inside quotes, or after a backslash.
    Quoted,
    /// Part of `$NAME`, `${..}`, `$(..)` or backticks: only the shell knows what comes of it.
    Expansion,
}

/// One byte of a word as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Char {
    /// The byte.
    pub byte: u8,
    /// The bytes of the file that it was written with.
    pub raw: Range<usize>,
    /// How.
    pub written: Written,
}

/// A word; [`Word::raw`] covers its quotes too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    /// Where it stands in the file.
    pub raw: Range<usize>,
    /// What the program sees of it; expansions as they are written.
    pub chars: Vec<Char>,
}

impl Word {
    /// The word as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The word's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.chars.iter().map(|c| c.byte).collect()
    }

    /// What follows `NAME=` where the word is an assignment, with the name.
    pub fn assignment(&self) -> Option<(String, &[Char])> {
        let at = self.chars.iter().position(|c| c.byte == b'=')?;
        let name = &self.chars[..at];
        let letter = |c: &Char| c.byte.is_ascii_alphanumeric() || c.byte == b'_';
        let starts = name.first().is_some_and(|c| !c.byte.is_ascii_digit());
        (starts && name.iter().all(letter)).then(|| {
            let name: Vec<u8> = name.iter().map(|c| c.byte).collect();
            (String::from_utf8_lossy(&name).into_owned(), &self.chars[at + 1..])
        })
    }

    /// The words inside a word that holds blanks, as an unquoted expansion of it gives them.
    pub fn inner(chars: &[Char]) -> Vec<Word> {
        let blank = |c: &Char| c.byte.is_ascii_whitespace() && c.written != Written::Expansion;
        let word = |chars: &[Char]| {
            Some(Word {
                raw: chars.first()?.raw.start..chars.last()?.raw.end,
                chars: chars.to_vec(),
            })
        };
        chars.split(blank).filter_map(word).collect()
    }
}

/// A simple command: words up to an operator or the end of the line.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Command {
    /// Its words, assignments first where it has some.
    pub words: Vec<Word>,
}

/// The line of an offset, from 1.
pub fn line_of(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}
