//! Words of a POSIX shell script (and the bash that serve scripts use), by XCU 2.3: quoting, line
//! continuations, comments, here-documents. Expansions are kept as they are written.

use super::EditError;
use super::word::{Char, Command, Word, Written, line_of};

/// Nested expansions that are followed; no script has as many.
const DEPTH_MAX: usize = 64;

/// Splits a script into simple commands.
///
/// # Errors
/// A quote or an expansion that nothing ends: what the words are is then unknown.
pub fn commands(text: &[u8]) -> Result<Vec<Command>, EditError> {
    let mut lexer = Lexer { text, at: 0, commands: Vec::new(), here: Vec::new() };
    lexer.run()?;
    Ok(lexer.commands)
}

struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    commands: Vec<Command>,
    /// Delimiters of here-documents whose bodies begin at the next line; true strips tabs.
    here: Vec<(Vec<u8>, bool)>,
}

fn is_operator(b: u8) -> bool {
    matches!(b, b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>')
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn open_ended(&self, what: &'static str, at: usize) -> EditError {
        EditError::OpenEnded { what, line: line_of(self.text, at) }
    }

    fn run(&mut self) -> Result<(), EditError> {
        let mut command = Command::default();
        // The word after a redirection names a file, and is no argument.
        let mut redirected = false;
        while let Some(b) = self.peek(0) {
            match b {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\\' if self.peek(1) == Some(b'\n') => self.at += 2,
                b'#' => self.skip_comment(),
                b'\n' => {
                    self.at += 1;
                    self.end(&mut command);
                    self.skip_here_documents();
                }
                b'<' | b'>' => {
                    self.drop_descriptor(&mut command);
                    redirected = self.redirection()?;
                }
                b if is_operator(b) => {
                    self.at += 1;
                    self.end(&mut command);
                }
                _ => {
                    let word = self.word()?;
                    if !std::mem::take(&mut redirected) {
                        command.words.push(word);
                    }
                }
            }
        }
        self.end(&mut command);
        Ok(())
    }

    fn end(&mut self, command: &mut Command) {
        if !command.words.is_empty() {
            self.commands.push(std::mem::take(command));
        }
    }

    fn skip_comment(&mut self) {
        while self.peek(0).is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }

    /// The digits right before `<` or `>` are a descriptor.
    fn drop_descriptor(&self, command: &mut Command) {
        let is_descriptor = command.words.last().is_some_and(|w| {
            w.raw.end == self.at && w.chars.iter().all(|c| c.byte.is_ascii_digit())
        });
        if is_descriptor {
            command.words.pop();
        }
    }

    /// Steps over the operator; true where a file's name follows.
    fn redirection(&mut self) -> Result<bool, EditError> {
        if self.text[self.at..].starts_with(b"<<") && self.peek(2) != Some(b'<') {
            self.at += 2;
            let strip = self.peek(0) == Some(b'-');
            self.at += usize::from(strip);
            while matches!(self.peek(0), Some(b' ' | b'\t')) {
                self.at += 1;
            }
            if self.peek(0).is_some_and(|b| !is_operator(b) && b != b'\n') {
                let delimiter = self.word()?.bytes();
                self.here.push((delimiter, strip));
            }
            return Ok(false);
        }
        while matches!(self.peek(0), Some(b'<' | b'>' | b'&' | b'|')) {
            self.at += 1;
        }
        Ok(true)
    }

    fn skip_here_documents(&mut self) {
        for (delimiter, strip) in std::mem::take(&mut self.here) {
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                let mut line = &rest[..end];
                while strip && line.first() == Some(&b'\t') {
                    line = &line[1..];
                }
                self.at += (end + 1).min(rest.len());
                if line == delimiter {
                    break;
                }
            }
        }
    }

    fn word(&mut self) -> Result<Word, EditError> {
        let start = self.at;
        let mut chars = Vec::new();
        while let Some(b) = self.peek(0) {
            match b {
                b' ' | b'\t' | b'\r' | b'\n' => break,
                b if is_operator(b) => break,
                b'\'' => self.single(&mut chars)?,
                b'"' => self.double(&mut chars)?,
                b'\\' => self.backslash(&mut chars),
                b'$' | b'`' => self.expansion(&mut chars)?,
                _ => self.take(1, Written::Plain, &mut chars),
            }
        }
        Ok(Word { raw: start..self.at, chars })
    }

    /// Takes bytes as they stand.
    fn take(&mut self, bytes: usize, written: Written, chars: &mut Vec<Char>) {
        for _ in 0..bytes {
            if let Some(byte) = self.peek(0) {
                chars.push(Char { byte, raw: self.at..self.at + 1, written });
                self.at += 1;
            }
        }
    }

    fn backslash(&mut self, chars: &mut Vec<Char>) {
        match self.peek(1) {
            Some(b'\n') => self.at += 2,
            Some(byte) => {
                chars.push(Char { byte, raw: self.at..self.at + 2, written: Written::Quoted });
                self.at += 2;
            }
            None => self.take(1, Written::Plain, chars),
        }
    }

    fn single(&mut self, chars: &mut Vec<Char>) -> Result<(), EditError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek(0) {
                None => return Err(self.open_ended("a single quote", start)),
                Some(b'\'') => break,
                Some(_) => self.take(1, Written::Quoted, chars),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn double(&mut self, chars: &mut Vec<Char>) -> Result<(), EditError> {
        let start = self.at;
        self.at += 1;
        loop {
            match (self.peek(0), self.peek(1)) {
                (None, _) => return Err(self.open_ended("a double quote", start)),
                (Some(b'"'), _) => break,
                (Some(b'\\'), Some(b'$' | b'`' | b'"' | b'\\' | b'\n')) => self.backslash(chars),
                (Some(b'$' | b'`'), _) => self.expansion(chars)?,
                _ => self.take(1, Written::Quoted, chars),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// `$NAME`, `${..}`, `$(..)`, `$'..'`, backticks; a lone dollar is itself.
    fn expansion(&mut self, chars: &mut Vec<Char>) -> Result<(), EditError> {
        let start = self.at;
        let end = match (self.peek(0), self.peek(1)) {
            (Some(b'`'), _) => self.closing(start + 1, b'`', "a backtick")?,
            (_, Some(b'{')) => self.balanced(start + 2, b'{', b'}', 0)?,
            (_, Some(b'(')) => self.balanced(start + 2, b'(', b')', 0)?,
            (_, Some(b'\'')) => self.closing(start + 2, b'\'', "a $' quote")?,
            (_, Some(b)) if b.is_ascii_alphabetic() || b == b'_' => {
                let name = |b: &&u8| b.is_ascii_alphanumeric() || **b == b'_';
                start + 1 + self.text[start + 1..].iter().take_while(name).count()
            }
            (_, Some(b)) if b.is_ascii_digit() || b"@*#?!$-".contains(&b) => start + 2,
            _ => {
                self.take(1, Written::Plain, chars);
                return Ok(());
            }
        };
        self.take(end - start, Written::Expansion, chars);
        Ok(())
    }

    /// The offset after the next `close` that no backslash stands before.
    fn closing(&self, from: usize, close: u8, what: &'static str) -> Result<usize, EditError> {
        let mut at = from;
        while at < self.text.len() {
            match self.text[at] {
                b'\\' => at += 2,
                b if b == close => return Ok(at + 1),
                _ => at += 1,
            }
        }
        Err(self.open_ended(what, from))
    }

    /// The offset after the bracket that ends this one; quotes inside are stepped over.
    fn balanced(&self, from: usize, open: u8, close: u8, depth: usize) -> Result<usize, EditError> {
        let what = if open == b'(' { "$(" } else { "${" };
        if depth > DEPTH_MAX {
            return Err(self.open_ended(what, from));
        }
        let mut at = from;
        while at < self.text.len() {
            at = match self.text[at] {
                b if b == close => return Ok(at + 1),
                b if b == open => self.balanced(at + 1, open, close, depth + 1)?,
                b'\\' => at + 2,
                b'\'' if open == b'(' => {
                    let rest = &self.text[at + 1..];
                    let end = rest.iter().position(|b| *b == b'\'');
                    at + 2 + end.ok_or_else(|| self.open_ended("a single quote", at))?
                }
                b'"' => self.closing(at + 1, b'"', "a double quote")?,
                _ => at + 1,
            };
        }
        Err(self.open_ended(what, from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let text_of = |c: &Command| c.words.iter().map(Word::text).collect();
        commands(text.as_bytes()).unwrap().iter().map(text_of).collect()
    }

    #[test]
    fn words_are_what_the_program_sees() {
        assert_eq!(
            words("exec a --b 'c d' \"e\\\"f\" g\\ h \\\n  --i=\"j\"k # l\nm;n&&o|p\n"),
            [
                vec!["exec", "a", "--b", "c d", "e\"f", "g h", "--i=jk"],
                vec!["m"],
                vec!["n"],
                vec!["o"],
                vec!["p"],
            ]
        );
        assert_eq!(words("a --b\\\nc"), [["a", "--bc"]], "a continuation inside a word");
        assert_eq!(words("a 2>&1 >log --b 3 <in"), [["a", "--b", "3"]]);
        assert_eq!(
            words("a $(b \"c)\" 'd)') ${e:-f g} `h i` $j"),
            [["a", "$(b \"c)\" 'd)')", "${e:-f g}", "`h i`", "$j"]]
        );
    }

    #[test]
    fn a_here_document_holds_no_words() {
        let text = "cat <<EOF >x\n--b 1\nEOF\na <<-'E'\n\t--b 2\n\tE\nc";
        assert_eq!(words(text), [vec!["cat"], vec!["a"], vec!["c"]]);
    }

    #[test]
    fn what_nothing_ends_is_refused_with_its_line() {
        for (text, line) in [("a\n'b", 2), ("\n\n\"x", 3), ("a $(b", 1), ("a `b", 1), ("${a", 1)] {
            match commands(text.as_bytes()) {
                Err(EditError::OpenEnded { line: found, .. }) => assert_eq!(found, line, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
