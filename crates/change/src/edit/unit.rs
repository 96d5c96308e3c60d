//! Lines of systemd unit files, as systemd.syntax(7) and systemd.service(5) have them: sections,
//! continuations with comments between them, quoting of command lines, drop-ins, resets.

use super::EditError;
use super::word::{Char, Command, Word, Written, line_of};

/// An assignment of a unit file, its continuation lines joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// `Service`, without brackets.
    pub section: String,
    /// `ExecStart`.
    pub key: String,
    /// What stands after the equals sign, blanks around it left out.
    pub value: Vec<Char>,
}

/// The assignments of a unit file in order.
pub fn entries(text: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut section = String::new();
    let mut at = 0;
    while at < text.len() {
        let (chars, next) = logical_line(text, at);
        at = next;
        let line: Vec<u8> = chars.iter().map(|c| c.byte).collect();
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some(equals) = chars.iter().position(|c| c.byte == b'=') {
            let key: Vec<u8> = chars[..equals].iter().map(|c| c.byte).collect();
            let key = String::from_utf8_lossy(&key).trim().to_owned();
            let value = trimmed(&chars[equals + 1..]).to_vec();
            entries.push(Entry { section: section.clone(), key, value });
        }
    }
    entries
}

fn trimmed(chars: &[Char]) -> &[Char] {
    let solid = |c: &Char| !c.byte.is_ascii_whitespace();
    let start = chars.iter().position(solid).unwrap_or(chars.len());
    let end = chars.iter().rposition(solid).map_or(start, |e| e + 1);
    &chars[start..end]
}

/// The line at `at` with its continuations (each a blank), and where the next one begins.
/// A comment gives no characters; comments between continuation lines are left out.
fn logical_line(text: &[u8], mut at: usize) -> (Vec<Char>, usize) {
    let mut chars: Vec<Char> = Vec::new();
    let mut continues = false;
    while at < text.len() {
        let end = text[at..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| at + n);
        let next = (end + 1).min(text.len());
        let line = &text[at..end];
        let first = line.iter().find(|b| !b.is_ascii_whitespace());
        if matches!(first, Some(b'#' | b';')) {
            at = next;
            if continues {
                continue;
            }
            return (Vec::new(), at);
        }
        continues = line.last() == Some(&b'\\');
        let solid = line.len() - usize::from(continues);
        let plain = |(i, byte): (usize, &u8)| Char {
            byte: *byte,
            raw: at + i..at + i + 1,
            written: Written::Plain,
        };
        chars.extend(line[..solid].iter().enumerate().map(plain));
        if continues {
            chars.push(Char { byte: b' ', raw: at + solid..next, written: Written::Plain });
        }
        at = next;
        if !continues {
            break;
        }
    }
    (chars, at)
}

/// Splits a value into words by systemd's quoting.
///
/// # Errors
/// A quote that nothing ends.
pub fn words(text: &[u8], value: &[Char]) -> Result<Command, EditError> {
    let mut command = Command::default();
    let mut at = 0;
    while at < value.len() {
        if value[at].byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let (word, next) = one_word(text, value, at)?;
        command.words.push(word);
        at = next;
    }
    Ok(command)
}

fn one_word(text: &[u8], value: &[Char], start: usize) -> Result<(Word, usize), EditError> {
    let mut chars = Vec::new();
    let mut quote: Option<(u8, usize)> = None;
    let mut at = start;
    while at < value.len() {
        let c = &value[at];
        let written = if quote.is_some() { Written::Quoted } else { Written::Plain };
        match (c.byte, quote) {
            (b, Some((q, _))) if b == q => quote = None,
            (b'\'' | b'"', None) => quote = Some((c.byte, c.raw.start)),
            (b, None) if b.is_ascii_whitespace() => break,
            (b'\\', _) if at + 1 < value.len() => {
                let escaped = &value[at + 1];
                let raw = c.raw.start..escaped.raw.end;
                let byte = match escaped.byte {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b's' => b' ',
                    other => other,
                };
                chars.push(Char { byte, raw, written: Written::Quoted });
                at += 1;
            }
            (b'$', _) => {
                let end = expansion_end(value, at);
                let expands = |c: &Char| Char { written: Written::Expansion, ..c.clone() };
                chars.extend(value[at..end].iter().map(expands));
                at = end;
                continue;
            }
            _ => chars.push(Char { written, ..c.clone() }),
        }
        at += 1;
    }
    if let Some((_, opened)) = quote {
        return Err(EditError::OpenEnded { what: "a quote", line: line_of(text, opened) });
    }
    let raw = value[start].raw.start..value[at - 1].raw.end;
    Ok((Word { raw, chars }, at))
}

/// Where `$NAME` or `${NAME}` ends; `$$` is a dollar.
fn expansion_end(value: &[Char], at: usize) -> usize {
    let rest = &value[at + 1..];
    match rest.first().map(|c| c.byte) {
        Some(b'{') => {
            let close = rest.iter().position(|c| c.byte == b'}');
            close.map_or(at + 1, |n| at + 2 + n)
        }
        Some(b'$') => at + 2,
        _ => {
            let name = |c: &&Char| c.byte.is_ascii_alphanumeric() || c.byte == b'_';
            at + 1 + rest.iter().take_while(name).count()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "# top\n[Unit]\nDescription=x\n\n[Service]\nExecStart=/bin/a --b 'c d' \\\n\
                        # between\n; these\n   --e \"f\\\"g\" $H ${I} \\\n  --j\nRestart = always\n";

    #[test]
    fn entries_join_their_continuations() {
        let all = entries(UNIT.as_bytes());
        let keys: Vec<&str> = all.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["Description", "ExecStart", "Restart"]);
        assert_eq!(all[1].section, "Service");
        let command = words(UNIT.as_bytes(), &all[1].value).unwrap();
        let texts: Vec<String> = command.words.iter().map(Word::text).collect();
        assert_eq!(texts, ["/bin/a", "--b", "c d", "--e", "f\"g", "$H", "${I}", "--j"]);
        let e = &command.words[4];
        assert_eq!(&UNIT.as_bytes()[e.raw.clone()], b"\"f\\\"g\"");
    }
}
