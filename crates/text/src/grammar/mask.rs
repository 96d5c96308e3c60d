//! The state of one sequence under a grammar.

use super::guard::{Fault, guarded};
use super::watch::Watch;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};
use lockstep_flow::limits::{GRAMMAR_CALL_MS, GRAMMAR_FIRST_MASK_MS};
use lockstep_flow::{MaskError, Token, TokenMask};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// What every mask of a vocabulary shares.
#[derive(Clone)]
pub(super) struct Common {
    pub watch: Arc<Watch>,
    /// Ids that the grammar engine knows.
    pub vocab: u32,
    pub eos: Arc<[Token]>,
}

/// [`TokenMask`] over the grammar engine.
pub(super) struct GrammarMask {
    parser: TokenParser,
    cancel: CancellationHandle,
    common: Common,
    /// The mask of where it stands, where that is known.
    ready: Option<SimpleVob>,
    /// Why it cannot go on. The parser is not touched again.
    failed: Option<MaskError>,
    accepted: usize,
}

impl std::fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMask").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

impl GrammarMask {
    /// Begins a parse and computes its first mask: a grammar that allows no first token, or none
    /// at a bearable cost, fails here.
    pub(super) fn begin(mut parser: TokenParser, common: Common) -> Result<GrammarMask, MaskError> {
        let cancel = parser.enable_cancellation();
        let mut mask =
            GrammarMask { parser, cancel, common, ready: None, failed: None, accepted: 0 };
        mask.ready = Some(mask.compute(GRAMMAR_FIRST_MASK_MS, TokenParser::start_without_prompt)?);
        Ok(mask)
    }

    /// The same state once more: nothing of it is shared.
    pub(super) fn fork(&self) -> GrammarMask {
        let mut parser = self.parser.deep_clone();
        GrammarMask {
            cancel: parser.enable_cancellation(),
            parser,
            common: self.common.clone(),
            ready: self.ready.clone(),
            failed: self.failed.clone(),
            accepted: self.accepted,
        }
    }

    fn compute(
        &mut self,
        limit_ms: u64,
        before: impl FnOnce(&mut TokenParser),
    ) -> Result<SimpleVob, MaskError> {
        let mask = self.call(limit_ms, |parser| {
            before(parser);
            match parser.stop_reason() {
                StopReason::NotStopped => parser.compute_mask(),
                _ => Ok(parser.token_env.tok_trie().eos_token_set()),
            }
        })?;
        // Where a token is forced its mask is made without a look at the limits that forcing hit.
        if let Some(e) = self.parser.parser.get_error() {
            return Err(self.fail(MaskError::TooComplex { what: e.message() }));
        }
        if mask.is_zero() {
            return Err(self.fail(MaskError::DeadEnd));
        }
        Ok(mask)
    }

    /// Runs a call of the engine under the clock. After an error the parser is not used again.
    fn call<T, E: Display>(
        &mut self,
        limit_ms: u64,
        f: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, MaskError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let limit = Duration::from_millis(limit_ms);
        let watched = self.common.watch.over(&self.cancel, limit);
        let made = guarded(|| f(&mut self.parser));
        drop(watched);
        let error = match made {
            _ if self.cancel.is_cancelled() => MaskError::TooSlow { limit_ms },
            Ok(value) => return Ok(value),
            Err(Fault::Panic(what)) => MaskError::Engine { what },
            Err(Fault::Refused(what)) => match self.parser.stop_reason() {
                StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                    MaskError::TooComplex { what }
                }
                StopReason::NoExtension | StopReason::NoExtensionBias => MaskError::DeadEnd,
                _ => MaskError::Engine { what },
            },
        };
        Err(self.fail(error))
    }

    fn fail(&mut self, error: MaskError) -> MaskError {
        self.failed.get_or_insert(error).clone()
    }
}

impl TokenMask for GrammarMask {
    fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError> {
        let mask = match self.ready.take() {
            Some(mask) => mask,
            None => self.compute(GRAMMAR_CALL_MS, |_| {})?,
        };
        let bits = mask.as_slice();
        // A model may have more rows of logits than the tokenizer has ids, never fewer.
        let common = bits.len().min(words.len());
        words[..common].copy_from_slice(&bits[..common]);
        words[common..].fill(0);
        if words.iter().all(|w| *w == 0) {
            return Err(self.fail(MaskError::DeadEnd));
        }
        self.ready = Some(mask);
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), MaskError> {
        let rejected = MaskError::Rejected { token, at_output_index: self.accepted };
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        if self.parser.stopped() {
            // The end token of a text that was already complete.
            return if self.common.eos.contains(&token) { Ok(()) } else { Err(rejected) };
        }
        if token.0 >= self.common.vocab {
            return Err(rejected);
        }
        let moved = self.call(GRAMMAR_CALL_MS, |parser| match parser.validate_token(token.0) {
            Ok(true) => parser
                .consume_token(token.0)
                .and_then(|dropped| parser.check_stop().map(|_| Some(dropped))),
            Ok(false) => Ok(None),
            Err(e) => Err(e),
        })?;
        match moved {
            Some(0) => {
                self.ready = None;
                self.accepted += 1;
                Ok(())
            }
            Some(_) => {
                let what = "it took back what was accepted".into();
                Err(self.fail(MaskError::Engine { what }))
            }
            None => Err(rejected),
        }
    }

    fn is_complete(&mut self) -> bool {
        let reason = self.parser.stop_reason();
        self.failed.is_none() && reason != StopReason::NotStopped && reason.is_ok()
    }
}
