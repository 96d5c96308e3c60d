//! Grammar masks: which tokens may come next so that the output keeps to a schema, a pattern or
//! the form of a tool call.

mod bridge;
mod lark;
mod mask;

use crate::TextError;
use crate::tokenizer::Tokenizer;
use crate::tools::{ToolChoice, ToolFormat, Tools};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use lockstep_flow::{Token, TokenMask};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of a grammar, schema or pattern, at most.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Bytes of a regular expression, at most.
const REGEX_BYTES_MAX: usize = 16 << 10;
/// Brackets that may be open at once in a grammar: its parser recurses.
const NESTING_MAX: usize = 64;

/// What an output must look like.
#[derive(Clone, PartialEq, Debug)]
pub enum GrammarSpec {
    /// Any JSON object (`response_format` `json_object`).
    JsonObject,
    /// JSON that a schema accepts (`response_format` `json_schema`).
    JsonSchema(Value),
    /// Text that a regular expression (Rust's syntax) matches as a whole.
    Regex(String),
    /// Text of a grammar in llguidance's variant of Lark, whose first rule is `start`.
    Lark(String),
    /// Tool calls in the model's format. `Auto` leaves the model free until it opens a call.
    Tools {
        /// The functions and the schemas of their arguments.
        tools: Tools,
        /// Which of them, and whether one must be called.
        choice: ToolChoice,
        /// How a call is written.
        format: ToolFormat,
        /// More than one call may be made, in formats that have a form for it.
        parallel: bool,
    },
}

impl GrammarSpec {
    fn kind(&self) -> &'static str {
        match self {
            GrammarSpec::JsonObject => "JSON object grammar",
            GrammarSpec::JsonSchema(_) => "JSON schema",
            GrammarSpec::Regex(_) => "regular expression",
            GrammarSpec::Lark(_) => "grammar",
            GrammarSpec::Tools { .. } => "schema of the tools",
        }
    }
}

/// Compiles grammars for one vocabulary. Built once a model; compiling takes about a millisecond
/// and is done off the step thread.
pub(crate) struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    eos: Arc<[Token]>,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, eos: &[Token]) -> Result<Grammars, TextError> {
        let engine = |what: String| TextError::GrammarEngine { what };
        let env = bridge::environment(tokenizer.clone(), eos)?;
        let build =
            || ParserFactory::new(&env, InferenceCapabilities::default(), &bridge::slices());
        let mut factory = guarded(build).map_err(engine)?;
        factory.quiet();
        let limits = factory.limits_mut();
        // A mask is computed between two steps: about 15 and 2.5 ms at these figures, which only
        // schemas made to be hard come near.
        limits.step_lexer_fuel = 200_000;
        limits.step_max_items = 50_000;
        limits.max_lexer_states = 50_000;
        limits.max_grammar_size = 200_000;
        limits.verbose_errors = false;
        Ok(Grammars { factory, tokenizer, eos: eos.into() })
    }

    /// Compiles `spec`. Where the output begins with reasoning, `after` is the mark that ends it;
    /// the grammar then holds for what follows the mark.
    pub(crate) fn compile(
        &self,
        spec: &GrammarSpec,
        after: Option<&str>,
    ) -> Result<Box<dyn TokenMask>, TextError> {
        let body = self.body(spec)?;
        let grammars = match after {
            None => vec![body],
            Some(mark) => {
                let main = lark::after_reasoning(&self.tokenizer, mark, lark::BODY);
                let body = GrammarWithLexer { name: Some(lark::BODY.into()), ..body };
                vec![GrammarWithLexer::from_lark(main), body]
            }
        };
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let refused = |what| TextError::Grammar { kind: spec.kind(), what };
        let parser = guarded(|| self.factory.create_parser(top)).map_err(refused)?;
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask is made here: a grammar that allows no first token fails now, not on the
        // step thread.
        matcher.compute_mask_or_eos().map_err(|e| refused(e.to_string()))?;
        let vocab = self.tokenizer.pieces().len() as u32;
        Ok(Box::new(mask::GrammarMask::new(matcher, vocab, self.eos.clone())))
    }

    fn body(&self, spec: &GrammarSpec) -> Result<GrammarWithLexer, TextError> {
        let kind = spec.kind();
        let fits = |bytes: usize, max_bytes: usize| match bytes > max_bytes {
            true => Err(TextError::GrammarTooLarge { kind, bytes, max_bytes }),
            false => Ok(()),
        };
        Ok(match spec {
            GrammarSpec::JsonObject => {
                GrammarWithLexer::from_json_schema(lark::compact(&json!({"type": "object"})))
            }
            GrammarSpec::JsonSchema(schema) => {
                fits(schema.to_string().len(), SOURCE_BYTES_MAX)?;
                if !schema.is_object() {
                    let what = "a schema is a JSON object".into();
                    return Err(TextError::Grammar { kind, what });
                }
                GrammarWithLexer::from_json_schema(lark::compact(schema))
            }
            GrammarSpec::Regex(regex) => {
                fits(regex.len(), REGEX_BYTES_MAX)?;
                nesting(kind, regex)?;
                GrammarWithLexer::from_regex(regex)
            }
            GrammarSpec::Lark(source) => {
                fits(source.len(), SOURCE_BYTES_MAX)?;
                nesting(kind, source)?;
                GrammarWithLexer::from_lark(source.clone())
            }
            GrammarSpec::Tools { tools, choice, format, parallel } => {
                let chosen = tools.chosen(choice)?;
                if chosen.is_empty() {
                    return Err(TextError::NoTools);
                }
                let free = *choice == ToolChoice::Auto;
                let source = lark::tools(&self.tokenizer, &chosen, *format, *parallel, free);
                fits(source.len(), SOURCE_BYTES_MAX)?;
                GrammarWithLexer::from_lark(source)
            }
        })
    }
}

/// Refuses sources whose brackets nest deeper than the engine's recursive parsers should follow.
fn nesting(kind: &'static str, source: &str) -> Result<(), TextError> {
    let mut open = 0usize;
    for b in source.bytes() {
        match b {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > NESTING_MAX {
            let what = format!("brackets nest deeper than {NESTING_MAX}");
            return Err(TextError::Grammar { kind, what });
        }
    }
    Ok(())
}

/// Runs a part of the grammar engine; its panics, which inputs made for it can reach, are errors.
fn guarded<T, E: std::fmt::Display>(f: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("it failed").to_owned())
        }
    }
}
