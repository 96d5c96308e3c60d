//! The seam through which a grammar constrains sampling without `engine` knowing any grammar.

use crate::Token;
use core::fmt;

/// Why a grammar could not go on. The request ends with an error that carries these words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MaskError {
    /// The sampled token is not allowed at this point: a bug in sampler or grammar.
    Rejected { token: Token, at_output_index: usize },
    /// The grammar engine gave up (too many states, for instance).
    Engine { what: String },
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskError::Rejected { token, at_output_index } => {
                write!(f, "the grammar rejects token {token} at output index {at_output_index}")
            }
            MaskError::Engine { what } => write!(f, "the grammar engine stopped: {what}"),
        }
    }
}

impl core::error::Error for MaskError {}

/// A grammar's state for one sequence.
///
/// Called on the step thread between two steps, so `fill` must stay well under a millisecond.
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
