//! Grammar masks: which tokens may come next so that the output keeps to a schema, a pattern or
//! the form of a tool call.

mod bridge;
mod guard;
mod lark;
mod mask;
mod watch;

use crate::TextError;
use crate::tokenizer::Tokenizer;
use crate::tools::{ToolChoice, ToolFormat, Tools};
use guard::{Fault, guarded};
use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use lockstep_flow::{MaskError, Token, TokenMask};
use mask::{Common, GrammarMask};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use watch::Watch;

/// Bytes of a grammar, schema or pattern, at most.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Bytes of a regular expression, at most.
const REGEX_BYTES_MAX: usize = 16 << 10;
/// Brackets that may be open at once in a grammar: its parser recurses.
const NESTING_MAX: usize = 64;

/// How long the schemas of a request's tools may take to be looked at one by one.
const TOOLS_LIMIT: Duration = Duration::from_secs(2);

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
    common: Common,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, eos: &[Token]) -> Result<Grammars, TextError> {
        let engine = |what: String| TextError::GrammarEngine { what };
        let env = bridge::environment(tokenizer.clone(), eos)?;
        let build =
            || ParserFactory::new(&env, InferenceCapabilities::default(), &bridge::slices());
        let mut factory = guarded(build).map_err(|e| engine(e.into_words()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let watch = Watch::start().map_err(|e| engine(format!("no thread to watch it: {e}")))?;
        let vocab = tokenizer.pieces().len() as u32;
        let common = Common { watch: Arc::new(watch), vocab, eos: eos.into() };
        Ok(Grammars { factory, tokenizer, common })
    }

    /// Compiles `spec` and its first mask once, for `count` sequences. Where the output begins with
    /// reasoning, `after` is the mark that ends it; the grammar then holds for what follows.
    pub(crate) fn compile(
        &self,
        spec: &GrammarSpec,
        after: Option<&str>,
        count: usize,
    ) -> Result<Vec<Box<dyn TokenMask>>, TextError> {
        let body = self.body(spec)?;
        let grammars = match after {
            None => vec![body],
            Some(mark) => {
                let main = lark::after_reasoning(&self.tokenizer, mark, lark::BODY);
                let body = GrammarWithLexer { name: Some(lark::BODY.into()), ..body };
                vec![GrammarWithLexer::from_lark(main), body]
            }
        };
        let kind = spec.kind();
        self.check_tools(spec)?;
        let mask = self.begin(kind, grammars)?;
        let forks = (1..count).map(|_| mask.fork()).collect::<Vec<_>>();
        let all = forks.into_iter().chain([mask]).take(count);
        Ok(all.map(|mask| Box::new(mask) as Box<dyn TokenMask>).collect())
    }

    fn begin(
        &self,
        kind: &'static str,
        grammars: Vec<GrammarWithLexer>,
    ) -> Result<GrammarMask, TextError> {
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let parser = guarded(|| self.factory.create_parser(top))
            .map_err(|e: Fault| TextError::Grammar { kind, what: e.into_words() })?;
        GrammarMask::begin(parser, self.common.clone()).map_err(|e| refused(kind, e))
    }

    /// Arguments that nothing satisfies because their schema refers to itself would be found only
    /// where the model comes to them: the text of a call in front of them compiles.
    fn check_tools(&self, spec: &GrammarSpec) -> Result<(), TextError> {
        let GrammarSpec::Tools { tools, choice, .. } = spec else { return Ok(()) };
        let (kind, begun) = (spec.kind(), Instant::now());
        for tool in tools.chosen(choice)? {
            if tool.parameters.to_string().contains("\"$ref\"") {
                let schema = GrammarWithLexer::from_json_schema(lark::compact(&tool.parameters));
                self.begin(kind, vec![schema])?;
            }
            // Each of them is bounded; so are they together.
            if begun.elapsed() > TOOLS_LIMIT {
                let what =
                    format!("it takes more than {} s; make it smaller", TOOLS_LIMIT.as_secs());
                return Err(TextError::Grammar { kind, what });
            }
        }
        Ok(())
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

/// Why a grammar is refused whose first mask failed.
fn refused(kind: &'static str, e: MaskError) -> TextError {
    let what = match e {
        MaskError::DeadEnd => "no text matches it".into(),
        MaskError::TooComplex { what } => format!("it is too complex ({what}); simplify it"),
        MaskError::TooSlow { limit_ms } => {
            format!("its first mask takes more than {limit_ms} ms; simplify it")
        }
        other => other.to_string(),
    };
    TextError::Grammar { kind, what }
}

/// What one grammar may cost. The engine counts these; what it does not count is ended by the
/// clock ([`watch`]). What grammars cost is in `docs/performance.md`.
fn limits() -> ParserLimits {
    ParserLimits {
        // Work on regular expressions while compiling.
        initial_lexer_fuel: 500_000,
        // Symbols of the rules that a source becomes.
        max_grammar_size: 200_000,
        // Work on regular expressions, and parser items, for one mask.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // Alternatives that are open at one point.
        max_items_in_row: 2_000,
        // States of the lexer, at 1 to 2 kB each, over the whole output.
        max_lexer_states: 50_000,
        // Walks the whole vocabulary while compiling, where masks would otherwise do it.
        precompute_large_lexemes: true,
        // Errors with the state and the whole grammar in them.
        verbose_errors: false,
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
