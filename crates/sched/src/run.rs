//! A few tokens in a row, in place.

use lockstep_flow::Token;
use lockstep_flow::limits::DRAFTS_MAX;

/// At most one token and the drafts behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    tokens: [Token; DRAFTS_MAX as usize + 1],
    len: u8,
}

impl Default for Run {
    fn default() -> Run {
        Run { tokens: [Token(0); DRAFTS_MAX as usize + 1], len: 0 }
    }
}

impl Run {
    /// Appends a token; there must be room.
    pub fn push(&mut self, token: Token) {
        self.tokens[usize::from(self.len)] = token;
        self.len += 1;
    }

    /// The tokens.
    pub fn as_slice(&self) -> &[Token] {
        &self.tokens[..usize::from(self.len)]
    }

    /// How many.
    pub const fn len(&self) -> u32 {
        self.len as u32
    }

    /// True where there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl FromIterator<Token> for Run {
    fn from_iter<I: IntoIterator<Item = Token>>(tokens: I) -> Run {
        let mut run = Run::default();
        tokens.into_iter().for_each(|t| run.push(t));
        run
    }
}
