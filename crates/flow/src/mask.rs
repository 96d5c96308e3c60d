//! The seam through which a grammar constrains sampling without `engine` knowing any grammar.

use crate::Token;
use core::fmt;

/// Why a grammar could not go on. The request ends with an error that carries these words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MaskError {
    /// The sampled token is not allowed at this point: a bug in sampler or grammar.
    Rejected { token: Token, at_output_index: usize },
    /// One of the grammar engine's own limits was reached; its words.
    TooComplex { what: String },
    /// One mask, or moving past one token, took longer than a grammar may.
    TooSlow { limit_ms: u64 },
    /// No token of the vocabulary can continue the output.
    DeadEnd,
    /// The grammar engine failed: a bug in it.
    Engine { what: String },
}

impl MaskError {
    /// True where the grammar that the client sent is the cause, false for bugs of ours.
    pub const fn is_of_the_grammar(&self) -> bool {
        match self {
            MaskError::TooComplex { .. } | MaskError::TooSlow { .. } | MaskError::DeadEnd => true,
            MaskError::Rejected { .. } | MaskError::Engine { .. } => false,
        }
    }
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskError::Rejected { token, at_output_index } => {
                write!(f, "the grammar rejects token {token} at output index {at_output_index}")
            }
            MaskError::TooComplex { what } => write!(f, "the grammar is too complex: {what}"),
            MaskError::TooSlow { limit_ms } => {
                write!(f, "the grammar is too complex: one token of it took over {limit_ms} ms")
            }
            MaskError::DeadEnd => write!(f, "the grammar allows no token here, not even an end"),
            MaskError::Engine { what } => write!(f, "the grammar engine failed: {what}"),
        }
    }
}

impl core::error::Error for MaskError {}

/// A grammar's state for one sequence.
///
/// Never called on the step thread but for a `fill` right after it was made or filled, which only
/// copies: what a client sent decides how long the other calls take. Each of them ends after
/// [`crate::limits::GRAMMAR_CALL_MS`] at the latest, with an error then; ordinary ones take well
/// under a millisecond.
pub trait TokenMask: Send + fmt::Debug {
    /// Writes one bit a token: bit `t % 32` of word `t / 32` is 1 where token `t` may come next.
    /// `words` holds `ceil(vocab / 32)` words; every word is written.
    fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError>;

    /// Moves past a sampled token.
    fn accept(&mut self, token: Token) -> Result<(), MaskError>;

    /// True where nothing but the end of the text may follow: the engine finishes the request
    /// with reason `stop` without sampling further.
    fn is_complete(&mut self) -> bool;
}
