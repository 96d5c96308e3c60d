//! Where a JSON value ends, a character at a time. Brackets and strings are followed; nothing
//! else is checked, since the text is passed on as it is.

/// Follows one value, from its first character.
#[derive(Clone, Debug)]
pub(crate) enum Lexer {
    /// A string; true after a backslash.
    Text { escaped: bool },
    /// An object or array: the brackets that are open, and the string inside it that is.
    Nested { open: Vec<char>, text: Option<bool> },
    /// A number, `true`, `false` or `null`.
    Scalar,
}

/// What a character did to the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lexed {
    /// The value goes on.
    Inside,
    /// The value is complete with this character.
    Complete,
    /// The value was complete before this character.
    Ended,
    /// Brackets do not match.
    Bad,
}

impl Lexer {
    /// The lexer of a value that starts with `c`; `None` where no value does.
    pub(crate) fn start(c: char) -> Option<Lexer> {
        match c {
            '"' => Some(Lexer::Text { escaped: false }),
            '{' => Some(Lexer::Nested { open: vec!['}'], text: None }),
            '[' => Some(Lexer::Nested { open: vec![']'], text: None }),
            '-' | '0'..='9' | 't' | 'f' | 'n' => Some(Lexer::Scalar),
            _ => None,
        }
    }

    /// Takes the next character of the value.
    pub(crate) fn step(&mut self, c: char) -> Lexed {
        match self {
            Lexer::Text { escaped } => {
                if in_text(escaped, c) {
                    Lexed::Inside
                } else {
                    Lexed::Complete
                }
            }
            Lexer::Nested { open, text } => {
                if let Some(escaped) = text {
                    if !in_text(escaped, c) {
                        *text = None;
                    }
                    return Lexed::Inside;
                }
                match c {
                    '"' => *text = Some(false),
                    '{' => open.push('}'),
                    '[' => open.push(']'),
                    '}' | ']' => {
                        if open.pop() != Some(c) {
                            return Lexed::Bad;
                        }
                        if open.is_empty() {
                            return Lexed::Complete;
                        }
                    }
                    _ => {}
                }
                Lexed::Inside
            }
            Lexer::Scalar => match c {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '+' | '-' | '.' => Lexed::Inside,
                _ => Lexed::Ended,
            },
        }
    }
}

/// Inside a string: false on its closing quote.
fn in_text(escaped: &mut bool, c: char) -> bool {
    if *escaped {
        *escaped = false;
        return true;
    }
    *escaped = c == '\\';
    c != '"'
}
