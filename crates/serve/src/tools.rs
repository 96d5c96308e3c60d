//! The tools of a chat request: what the model is shown, what it may write, how it is read.

use crate::app::App;
use crate::choice::Finish;
use crate::compile;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::format::Format;
use crate::prepare::text_error;
use crate::{ids, tool_prompt};
use lockstep_flow::limits::TOOLS_MAX;
use lockstep_flow::{Token, TokenMask};
use lockstep_text::{
    GrammarSpec, OutputParser, ParserOptions, ReasoningMarks, TextError, ToolChoice, ToolFormat,
    Tools as ToolSpecs,
};
use serde_json::Value;

/// The tools of a request, and how they are spoken of.
#[derive(Clone, PartialEq, Debug)]
pub struct Tools {
    /// As the client sent them; for the template.
    shown: Option<Value>,
    specs: ToolSpecs,
    choice: ToolChoice,
    parallel: bool,
    /// `None` where no call is looked for.
    format: Option<ToolFormat>,
    /// The model's own template knows tools.
    native: bool,
    reasoning: Option<ReasoningMarks>,
    /// The prompt ends inside the reasoning.
    opened: bool,
}

impl Tools {
    /// Takes `tools`, `tool_choice`, `parallel_tool_calls` and `separate_reasoning`.
    pub fn take(app: &App, fields: &mut Fields) -> Result<Tools, ApiError> {
        let given = fields.array("tools")?.filter(|tools| !tools.is_empty());
        if given.as_ref().is_some_and(|tools| tools.len() > TOOLS_MAX) {
            return Err(ApiError::field("tools", format!("may hold at most {TOOLS_MAX} tools")));
        }
        let shown = given.map(Value::Array);
        let choice = choice(fields, shown.is_some())?;
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let separate = fields.flag("separate_reasoning")?.unwrap_or(true);
        let specs = match &shown {
            Some(tools) => ToolSpecs::parse(tools).map_err(|e| text_error("tools", &e))?,
            None => ToolSpecs::default(),
        };
        if let ToolChoice::Function(name) = &choice
            && !specs.list.iter().any(|t| t.name == *name)
        {
            let e = TextError::UnknownTool { name: name.clone() };
            return Err(text_error("tool_choice", &e));
        }
        let off = shown.is_none() || choice == ToolChoice::None;
        let own = app.text.tool_format();
        let format = match (&choice, own) {
            _ if off => None,
            (_, Some(own)) => Some(own),
            (ToolChoice::Auto, None) => Some(ToolFormat::Hermes),
            (_, None) => Some(ToolFormat::Plain),
        };
        Ok(Tools {
            shown: shown.filter(|_| !off),
            specs,
            choice,
            parallel,
            format,
            native: own.is_some(),
            reasoning: app.text.reasoning_marks().filter(|_| separate),
            opened: false,
        })
    }

    /// What the template is given as its tools.
    pub fn for_template(&self) -> Option<&Value> {
        self.shown.as_ref().filter(|_| self.native)
    }

    /// Messages for a template that knows no tools: they stand in the system message, and earlier
    /// calls and their results in the turns' text.
    pub fn speak(&self, messages: Value) -> Value {
        if self.native {
            return messages;
        }
        let messages = tool_prompt::write_out(messages);
        match (&self.shown, self.format) {
            (Some(tools), Some(format)) => tool_prompt::announce(messages, tools, format),
            _ => messages,
        }
    }

    /// Notes how the rendered prompt ends.
    pub fn after(&mut self, prompt: &str) {
        self.opened = self.reasoning.is_some_and(|marks| marks.opened_by(prompt));
    }

    /// The field that a grammar of tools and format together comes from.
    pub fn grammar_field(&self, format: &Format) -> Option<&'static str> {
        self.format.map(|_| "tools").or_else(|| format.spec().map(|(field, _)| field))
    }

    /// Fresh grammar states of tools and format together, for `count` sequences; none where text
    /// is free.
    pub fn masks(
        &self,
        app: &App,
        format: &Format,
        count: usize,
    ) -> Result<Vec<Option<Box<dyn TokenMask>>>, ApiError> {
        let after = self.reasoning.filter(|_| self.opened).map(|marks| marks.end);
        let free = || Ok((0..count).map(|_| None).collect());
        let compile = |field: &str, spec: &GrammarSpec| {
            let masks = compile::grammars(app, field, spec, after, count)?;
            Ok(masks.into_iter().map(Some).collect())
        };
        let tools = self.format.map(|format| GrammarSpec::Tools {
            tools: self.specs.clone(),
            choice: self.choice.clone(),
            format,
            parallel: self.parallel,
        });
        match (tools, format.spec()) {
            (None, None) => free(),
            (None, Some((field, spec))) => compile(field, spec),
            (Some(_), Some((field, _))) if self.choice == ToolChoice::Auto => {
                let what = "cannot be combined with tools that the model may or may not call; \
                            set tool_choice to required or none";
                Err(ApiError::unsupported(field, what))
            }
            (Some(spec), _) => match compile("tools", &spec) {
                Err(e) if self.is_lenient() => {
                    app.metrics.unconstrained_tools.inc();
                    tracing::warn!("tool calls of a request are not held to their schemas: {e}");
                    free()
                }
                result => result,
            },
        }
    }

    /// True where calls need not follow their schemas: the model decides whether to call, and no
    /// tool is strict.
    fn is_lenient(&self) -> bool {
        self.choice == ToolChoice::Auto && !self.specs.list.iter().any(|t| t.strict)
    }

    /// A fresh parser.
    pub fn parser(&self) -> OutputParser {
        OutputParser::new(ParserOptions {
            format: self.format,
            functions: self.specs.names(),
            reasoning: self.reasoning,
            reasoning_opened: self.opened,
            id_seed: ids::random_seed(),
        })
    }

    /// Special tokens that the parser has to see.
    pub fn keep(&self, app: &App) -> Vec<Token> {
        app.text.parser_tokens(self.format, self.reasoning)
    }

    /// How a choice with calls ends: OpenAI's own answers say `stop` where the request named the
    /// function.
    pub fn finish(&self) -> Finish {
        match self.choice {
            ToolChoice::Function(_) => Finish::Stop,
            _ => Finish::ToolCalls,
        }
    }
}

fn choice(fields: &mut Fields, has_tools: bool) -> Result<ToolChoice, ApiError> {
    let expected = || {
        let what = "must be none, auto, required or {\"type\": \"function\", \"function\": \
                    {\"name\": NAME}}";
        ApiError::field("tool_choice", what)
    };
    let choice = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return Err(expected()),
        },
        Some(Value::Object(map)) => {
            let name = map.get("function").and_then(|f| f["name"].as_str());
            match (map.get("type").and_then(Value::as_str), name) {
                (Some("function"), Some(name)) => ToolChoice::Function(name.into()),
                (Some("allowed_tools" | "custom"), _) => {
                    let what =
                        "of this type is not supported; send only the tools that are allowed";
                    return Err(ApiError::unsupported("tool_choice", what));
                }
                _ => return Err(expected()),
            }
        }
        Some(_) => return Err(expected()),
    };
    let forced = matches!(choice, ToolChoice::Required | ToolChoice::Function(_));
    if forced && !has_tools {
        return Err(ApiError::field("tool_choice", "asks for a call, but there are no tools"));
    }
    Ok(choice)
}
