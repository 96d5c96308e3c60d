//! What an answer was. The classes are never mixed: a timeout is not corruption, and neither is an
//! answer that the model would have got wrong alone.

use core::fmt;

/// The verdict on one answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Right.
    Ok,
    /// Wrong but plausible: what a model does that has not understood or remembered.
    Wrong(Wrong),
    /// What no model does: the server damaged it.
    Corrupted(Corruption),
    /// No answer: HTTP or protocol.
    Error { what: String },
    /// No answer in time.
    Timeout,
    /// The server said that it is full.
    Refused,
    /// This client ended it on purpose.
    Aborted,
}

/// How a plausible answer is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// A code is asked for and none is there.
    Missing { expected: String },
    /// Another code than the one that is right, known to nobody.
    Other { expected: String, found: String },
    /// Words where a tool call is right, or the other way round.
    Form { expected: &'static str },
    /// It was cut at the limit of tokens.
    Length,
    /// It looks damaged, but the model does this alone, or may by its nature.
    Weak { what: String },
}

/// How an answer is damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// Its form is broken.
    Structural(Structural),
    /// A code has come back changed by a few symbols, or a piece of the text twice.
    Altered { expected: String, found: String },
    /// A code of somebody else has come back.
    Swapped { expected: String, found: String, of: Owner },
    /// Not language any more.
    Degenerate(Degenerate),
    /// A server that claims the same bits gave others than alone.
    Divergent { at_byte: usize, alone: String, found: String, token: Option<TokenDifference> },
}

/// The first token in which two answers part; an answer that has ended there has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenDifference {
    /// How many tokens both have before it.
    pub at: usize,
    /// Its id in the answer alone.
    pub alone: Option<u64>,
    /// Its id in the other.
    pub found: Option<u64>,
}

/// What is broken in an answer's form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Structural {
    /// Arguments that are not an object of JSON with text for `key` and `value`.
    Arguments { found: String },
    /// A call of a tool that was not offered.
    NotOffered { name: String },
    /// A special token or the markup of calls in the text.
    Markup { found: String },
    /// `finish_reason` and content do not fit.
    Finish { reason: String },
    /// Text that is not text: replacement characters, NUL.
    Bytes { found: String },
}

/// Whose code came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Another session's.
    Session(u32),
    /// Another key's of the same session.
    Key,
}

/// How text stops being language.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Degenerate {
    /// The same piece again and again, to the end.
    Loop { piece: String, times: usize },
    /// Letters of a script that nobody used.
    Script { found: char },
}

impl Corruption {
    /// The class, as in reports.
    pub const fn class(&self) -> &'static str {
        match self {
            Corruption::Structural(_) => "structural",
            Corruption::Altered { .. } => "altered",
            Corruption::Swapped { .. } => "swapped",
            Corruption::Degenerate(_) => "degenerate",
            Corruption::Divergent { .. } => "divergent",
        }
    }

    /// Every class.
    pub const CLASSES: [&'static str; 5] =
        ["structural", "altered", "swapped", "degenerate", "divergent"];
}

impl Verdict {
    /// The class, as in reports.
    pub const fn class(&self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Wrong(_) => "wrong",
            Verdict::Corrupted(_) => "corrupted",
            Verdict::Error { .. } => "error",
            Verdict::Timeout => "timeout",
            Verdict::Refused => "refused",
            Verdict::Aborted => "aborted",
        }
    }

    /// The damage, where there is any.
    pub const fn corruption(&self) -> Option<&Corruption> {
        match self {
            Verdict::Corrupted(c) => Some(c),
            _ => None,
        }
    }

    /// Whether there was an answer that could be judged.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Verdict::Ok | Verdict::Wrong(_) | Verdict::Corrupted(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Wrong(wrong) => write!(f, "wrong: {wrong}"),
            Verdict::Corrupted(corruption) => write!(f, "{}: {corruption}", corruption.class()),
            Verdict::Error { what } => write!(f, "error: {what}"),
            other => f.write_str(other.class()),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Missing { expected } => write!(f, "{expected} is not there"),
            Wrong::Other { expected, found } => write!(f, "{found} instead of {expected}"),
            Wrong::Form { expected } => write!(f, "{expected} was right"),
            Wrong::Length => f.write_str("cut at the limit of tokens"),
            Wrong::Weak { what } => write!(f, "{what} (not held against the server)"),
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corruption::Structural(s) => s.fmt(f),
            Corruption::Altered { expected, found } => write!(f, "{expected} came as {found}"),
            Corruption::Swapped { expected, found, of: Owner::Session(id) } => {
                write!(f, "{found} of session {id} instead of {expected}")
            }
            Corruption::Swapped { expected, found, of: Owner::Key } => {
                write!(f, "{found}, another key's, instead of {expected}")
            }
            Corruption::Degenerate(Degenerate::Loop { piece, times }) => {
                write!(f, "{piece:?} {times} times to the end")
            }
            Corruption::Degenerate(Degenerate::Script { found }) => {
                write!(f, "'{found}', a letter that nobody used")
            }
            Corruption::Divergent { at_byte, alone, found, token } => {
                write!(f, "from byte {at_byte} on {found:?}, alone {alone:?}")?;
                token.map_or(Ok(()), |token| write!(f, " ({token})"))
            }
        }
    }
}

impl fmt::Display for TokenDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: Option<u64>| id.map_or("the end".into(), |id| id.to_string());
        let (found, alone) = (id(self.found), id(self.alone));
        write!(f, "token {}: {found}, alone {alone}", self.at + 1)
    }
}

impl fmt::Display for Structural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Structural::Arguments { found } => write!(f, "arguments {found:?}"),
            Structural::NotOffered { name } => {
                write!(f, "a call of {name:?}, which is not offered")
            }
            Structural::Markup { found } => write!(f, "{found:?} in the text"),
            Structural::Finish { reason } => write!(f, "finish_reason {reason:?} does not fit"),
            Structural::Bytes { found } => write!(f, "bytes that are no text in {found:?}"),
        }
    }
}
