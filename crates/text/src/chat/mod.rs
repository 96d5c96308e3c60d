//! Chat templates: messages to a prompt, as `transformers` renders them.

mod messages;
mod python;

use crate::TextError;
use crate::tokenizer::Guard;
use lockstep_flow::{Token, limits};
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use python::Dumps;
use serde_json::{Map, Value};
use std::io;

/// Bytes of a rendered prompt, at most: a token has at least a byte of text, give or take the
/// control tokens, and no context is longer than this many tokens of 32 bytes.
const PROMPT_BYTES_MAX: usize = limits::CONTEXT_TOKENS_MAX as usize * 32;
/// Steps of the template engine (one instruction, or 64 bytes moved) beside those for the input.
const STEPS_BASE: u64 = 4 << 20;
/// Steps for a byte of input.
const STEPS_PER_BYTE: u64 = 16;
/// Ends the last message while it is rendered, to find where it ends.
const CONTINUE_TAG: &str = "\u{fdd0}CONTINUE-FINAL-MESSAGE\u{fdd0}";

/// What a chat prompt is asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct ChatOptions {
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// End inside the last message, for the model to go on with it.
    pub continue_final_message: bool,
    /// For templates that print the date, in UTC. `None` leaves `strftime_now` undefined, on
    /// which templates fall back to a date of their own.
    pub now_unix_s: Option<u64>,
    /// Further variables of the template (`chat_template_kwargs`: `enable_thinking`, ..).
    pub kwargs: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            now_unix_s: None,
            kwargs: Map::new(),
        }
    }
}

/// A rendered prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatPrompt {
    /// What the template produced.
    pub text: String,
    /// Its token ids. Control tokens are the template's own; the messages' text has none.
    pub tokens: Vec<Token>,
}

/// A rendered prompt that still has the marks of [`Guard`] in it.
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) mark: Option<char>,
}

/// A compiled template.
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    specials: Vec<(&'static str, String)>,
    parts: bool,
}

impl ChatTemplate {
    /// `specials` are the values of `bos_token` and so on.
    pub(crate) fn new(
        source: String,
        specials: Vec<(&'static str, String)>,
    ) -> Result<ChatTemplate, TextError> {
        let mut env = Environment::new();
        let syntax = env.syntax().to_builder().trim_blocks(true).lstrip_blocks(true).build();
        if let Ok(syntax) = syntax {
            env.set_syntax(syntax);
        }
        env.set_debug(false);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(python::method);
        env.set_formatter(|out, _, value| {
            out.write_str(&python::str_of(value)?).map_err(Error::from)
        });
        env.add_filter("tojson", tojson);
        env.add_test("iterable", python::is_iterable);
        env.add_test("sequence", python::is_sequence);
        env.add_filter("string", |value: &Jinja| python::str_of(value));
        env.add_filter("trim", |value: &Jinja, chars: Option<&str>| -> Result<String, Error> {
            let text = python::str_of(value)?;
            Ok(match chars {
                Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
                None => text.trim_matches(python::is_space).to_owned(),
            })
        });
        env.add_function("raise_exception", |message: &Jinja| -> Result<Jinja, Error> {
            let message = python::str_of(message)?;
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
                .with_source(Raised(message)))
        });
        env.add_template_owned("chat", generation_tags_to_if(&source)).map_err(|e| {
            TextError::TemplateSyntax { line: e.line().unwrap_or(0), what: describe(&e) }
        })?;
        let parts = walks_over_parts(&source);
        Ok(ChatTemplate { env, source, specials, parts })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Renders, with marks in what came from the client where `guard` finds a need.
    pub(crate) fn render(
        &self,
        guard: &Guard,
        messages: &Value,
        tools: Option<&Value>,
        options: &ChatOptions,
    ) -> Result<Rendered, TextError> {
        let objects = messages::normalise(messages, self.parts, true)?;
        let first = self.render_normalised(guard, objects, tools, options);
        let has_calls = |m: &Value| m.get("tool_calls").is_some();
        if matches!(first, Err(TextError::TemplateFailed { .. }))
            && messages.as_array().is_some_and(|list| list.iter().any(has_calls))
        {
            // A few templates append the arguments as a string.
            let strings = messages::normalise(messages, self.parts, false)?;
            return self.render_normalised(guard, strings, tools, options).or(first);
        }
        first
    }

    fn render_normalised(
        &self,
        guard: &Guard,
        mut messages: Value,
        tools: Option<&Value>,
        options: &ChatOptions,
    ) -> Result<Rendered, TextError> {
        let mut tools = tools.cloned().unwrap_or(Value::Null);
        let mut kwargs = Value::Object(options.kwargs.clone());
        let input = format!("{messages}{tools}{kwargs}");
        let mark = crate::tokenizer::unused_mark(&format!("{input}{CONTINUE_TAG}"));
        let mark = mark.filter(|&mark| {
            [&mut messages, &mut tools, &mut kwargs]
                .into_iter()
                .fold(false, |any, value| messages::mark_all(value, guard, mark) | any)
        });
        if options.continue_final_message {
            tag_final_message(&mut messages)?;
        }
        let mut context = kwargs.as_object().cloned().unwrap_or_default();
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools);
        context.entry("documents").or_insert(Value::Null);
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        for (name, text) in &self.specials {
            context.insert((*name).into(), text.as_str().into());
        }
        let steps = STEPS_BASE + STEPS_PER_BYTE * input.len() as u64;
        let mut text = self.run(&context, options.now_unix_s, steps)?;
        if options.continue_final_message {
            cut_at_tag(&mut text)?;
        }
        Ok(Rendered { text, mark })
    }

    fn run(
        &self,
        context: &Map<String, Value>,
        now_unix_s: Option<u64>,
        steps: u64,
    ) -> Result<String, TextError> {
        let mut env = self.env.clone();
        env.set_fuel(Some(steps));
        if let Some(now) = now_unix_s {
            env.add_function("strftime_now", move |format: &str| python::strftime(format, now));
        }
        let mut out = Bounded { bytes: Vec::new(), full: false };
        let result = env
            .get_template("chat")
            .and_then(|t| t.render_captured_to(Jinja::from(Serde(context)), &mut out).map(|_| ()));
        match result {
            _ if out.full => Err(TextError::PromptTooLong { max_bytes: PROMPT_BYTES_MAX }),
            Err(e) => Err(failure(&e, steps)),
            Ok(()) => Ok(String::from_utf8_lossy(&out.bytes).into_owned()),
        }
    }
}

fn tag_final_message(messages: &mut Value) -> Result<(), TextError> {
    let list = messages.as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
    let index = list.len().saturating_sub(1);
    let content = list.last_mut().and_then(|m| m.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|p| p.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) => {
            text.push_str(CONTINUE_TAG);
            text.push(' ');
            Ok(())
        }
        _ => Err(TextError::Message { index, problem: crate::error::MessageProblem::Content }),
    }
}

/// Cuts where the final message ended. Where the template trimmed the message (the space after
/// the tag is gone), so is what comes before the tag.
fn cut_at_tag(text: &mut String) -> Result<(), TextError> {
    let lost = || TextError::TemplateFailed {
        line: 0,
        what: "the template leaves out the final message, which was to be continued".into(),
    };
    let at = text.rfind(CONTINUE_TAG).ok_or_else(lost)?;
    let kept_space = text[at + CONTINUE_TAG.len()..].starts_with(' ');
    text.truncate(at);
    if !kept_space {
        text.truncate(text.trim_end_matches(python::is_space).len());
    }
    Ok(())
}

/// `{% generation %}` marks what trains; for us it is a block that is always there.
fn generation_tags_to_if(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}").map(|at| at + 2) else {
            rest = tag;
            break;
        };
        let inner = tag[2..end].trim_start_matches(['-', '+']);
        let word = inner.trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag[..end + 2].replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag[..end + 2].replace("endgeneration", "endif")),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

/// True where the template reads content that is a list of parts.
fn walks_over_parts(source: &str) -> bool {
    let signs = [
        "content is string",
        "content is not string",
        "content'] is string",
        "content'] is not string",
        "content\"] is string",
        "content\"] is not string",
        "content is iterable",
        "content'] is iterable",
        "content is sequence",
        "in message.content",
        "in message['content']",
        "in message[\"content\"]",
    ];
    signs.iter().any(|sign| source.contains(sign))
}

fn tojson(value: &Jinja, indent: Option<Jinja>, kwargs: Kwargs) -> Result<Jinja, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get("indent")?,
    };
    let separators: Option<Jinja> = kwargs.get("separators")?;
    let separator = |v: &Jinja, i| v.get_item_by_index(i).and_then(|s| python::str_of(&s));
    let how = Dumps {
        indent: indent.filter(|v| !v.is_none()).map(usize::try_from).transpose()?,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        separators: separators
            .filter(|v| !v.is_none())
            .map(|v| Ok::<_, Error>((separator(&v, 0)?, separator(&v, 1)?)))
            .transpose()?,
    };
    kwargs.assert_all_used()?;
    python::dumps(value, &how).map(Jinja::from_safe_string)
}

/// The message of `raise_exception`, told apart from a failing template.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn failure(e: &Error, max_steps: u64) -> TextError {
    let mut cause = std::error::Error::source(e);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        cause = inner.source();
    }
    match e.kind() {
        ErrorKind::OutOfFuel => TextError::TemplateTooSlow { max_steps },
        _ => TextError::TemplateFailed { line: e.line().unwrap_or(0), what: describe(e) },
    }
}

fn describe(e: &Error) -> String {
    match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    }
}

/// Output that refuses to grow past the limit.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for &mut Bounded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buf.len() > PROMPT_BYTES_MAX {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
