//! Rust source with comments, strings and characters blanked, so that a word search finds code.

/// `source` with the insides of comments, string and character literals replaced by spaces; line
/// breaks stay, so that line numbers hold.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' | b'b' | b'c' if !is_word(bytes, at.wrapping_sub(1)) => {
                match raw_string_end(bytes, at) {
                    Some(end) => end,
                    None => {
                        at += 1;
                        continue;
                    }
                }
            }
            b'\'' => match char_end(source, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Only whole literals and comments were blanked, so what is left is still UTF-8; a stray cut
    // would show as a replacement character, never as a panic.
    String::from_utf8_lossy(&out).into_owned()
}

/// Lines (from 1) on which `word` stands as a whole identifier in code.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            !is_word(line.as_bytes(), at.wrapping_sub(1))
                && !is_word(line.as_bytes(), at + word.len())
        })
    };
    code.lines().enumerate().filter(|(_, l)| holds(l)).map(|(i, _)| i + 1).collect()
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0usize);
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'/', Some(b'*')) => {
                depth += 1;
                at += 2;
            }
            (b'*', Some(b'/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."`, `r#"..."#`, `br"..."`, `b"..."`, `c"..."` at `start`, where one stands.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    while at < start + 2 && matches!(bytes.get(at), Some(b'b' | b'c' | b'r')) {
        at += 1;
    }
    let raw = bytes[start..at].contains(&b'r');
    let hashes = bytes[at..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') || (hashes > 0 && !raw) {
        return None;
    }
    let body = at + hashes + 1;
    if !raw {
        return Some(string_end(bytes, body));
    }
    let closes = |at: &usize| {
        bytes[*at] == b'"'
            && bytes[at + 1..].iter().take(hashes).filter(|b| **b == b'#').count() == hashes
    };
    Some((body..bytes.len()).find(closes).map_or(bytes.len(), |q| q + 1 + hashes))
}

/// The end of a character literal at `start`; `None` for a lifetime.
fn char_end(source: &str, start: usize) -> Option<usize> {
    let body = &source[start + 1..];
    let mut chars = body.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let rest = &body[1..];
        let skip = rest.chars().next()?.len_utf8();
        return rest[skip..].find('\'').map(|n| start + 2 + skip + n + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(start + 1 + at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<usize> {
        lines_with_word(&code_only(source), "unsafe")
    }

    #[test]
    fn code_is_found_and_words_about_it_are_not() {
        assert_eq!(found("// unsafe\n/* unsafe /* unsafe */ unsafe */\nunsafe fn f() {}"), [3]);
        assert_eq!(found("let a = \"unsafe \\\" unsafe\"; unsafe {}"), [1]);
        assert_eq!(
            found("let a = r#\"unsafe \" unsafe\"#;\nlet b = br\"unsafe\\\";\nunsafe {}"),
            [3]
        );
        assert_eq!(found("#![forbid(unsafe_code)]\nlet not_unsafe = 1;"), Vec::<usize>::new());
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_do_not_hide_code() {
        assert_eq!(found("let q = '\"'; unsafe {}\nlet s = \"x\";"), [1]);
        assert_eq!(found("fn f<'a>(x: &'a str) {}\nlet e = '\\''; unsafe {}"), [2]);
        assert_eq!(found("let u = '\\u{1F600}'; unsafe {}"), [1]);
        assert_eq!(found("let é = 'é'; unsafe {} // é"), [1]);
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_file() {
        assert_eq!(found("let a = \"unsafe"), Vec::<usize>::new());
        assert_eq!(found("let a = r#\"unsafe\""), Vec::<usize>::new());
        assert_eq!(found("/* unsafe"), Vec::<usize>::new());
    }
}
