//! The state of one sequence under a grammar.

use llguidance::Matcher;
use llguidance::api::StopReason;
use lockstep_flow::{MaskError, Token, TokenMask};
use std::sync::Arc;

/// [`TokenMask`] over the grammar engine.
pub(super) struct GrammarMask {
    matcher: Matcher,
    /// Ids that the grammar engine knows.
    vocab: u32,
    eos: Arc<[Token]>,
    accepted: usize,
}

impl std::fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMask").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

impl GrammarMask {
    pub(super) fn new(matcher: Matcher, vocab: u32, eos: Arc<[Token]>) -> GrammarMask {
        GrammarMask { matcher, vocab, eos, accepted: 0 }
    }

    fn engine(what: impl ToString) -> MaskError {
        MaskError::Engine { what: what.to_string() }
    }
}

impl TokenMask for GrammarMask {
    fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(GrammarMask::engine)?;
        let bits = mask.as_slice();
        // A model may have more rows of logits than the tokenizer has ids, never fewer.
        let common = bits.len().min(words.len());
        words[..common].copy_from_slice(&bits[..common]);
        words[common..].fill(0);
        if words.iter().all(|w| *w == 0) {
            return Err(GrammarMask::engine("no token can continue the output"));
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), MaskError> {
        let rejected = MaskError::Rejected { token, at_output_index: self.accepted };
        if self.matcher.is_stopped() {
            let reason = self.matcher.stop_reason();
            return match reason.is_ok() {
                false => Err(GrammarMask::engine(reason)),
                // The end token of a text that was already complete.
                true if self.eos.contains(&token) => Ok(()),
                true => Err(rejected),
            };
        }
        if token.0 >= self.vocab {
            return Err(rejected);
        }
        match self.matcher.try_consume_tokens(&[token.0]) {
            Ok(1) => {
                self.accepted += 1;
                Ok(())
            }
            Ok(_) => Err(rejected),
            Err(e) => Err(GrammarMask::engine(e)),
        }
    }

    fn is_complete(&mut self) -> bool {
        let reason = self.matcher.stop_reason();
        reason != StopReason::NotStopped && reason.is_ok()
    }
}
