//! `POST /v1/chat/completions`.

use crate::app::{App, Shared, unix_seconds};
use crate::choice::{Choice, ChoiceStart, Delta, Finish};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::format::Format;
use crate::messages;
use crate::params::{Common, Limit};
use crate::prepare;
use crate::run::{Planned, Run};
use crate::scores::Names;
use crate::stream::{Answer, Cost, Shape};
use crate::surface::{self, Endpoint};
use crate::tools::Tools;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use lockstep_flow::limits::TOP_LOGPROBS_MAX;
use lockstep_flow::{SamplingParams, Token};
use lockstep_text::{ChatOptions, ChatPrompt};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A body, understood.
struct Asked {
    common: Common,
    prompt: Arc<[Token]>,
    scores: Option<u32>,
    tools: Tools,
    format: Format,
}

fn options(app: &App, fields: &mut Fields) -> Result<ChatOptions, ApiError> {
    let kwargs = fields.object("chat_template_kwargs")?.map(Fields::into_map);
    let mut options = ChatOptions {
        now_unix_s: Some(unix_seconds()),
        kwargs: kwargs.unwrap_or_default(),
        ..ChatOptions::default()
    };
    options.continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    let generation = fields.flag("add_generation_prompt")?;
    options.add_generation_prompt = generation.unwrap_or(!options.continue_final_message);
    if options.continue_final_message && options.add_generation_prompt {
        let what = "cannot be true together with continue_final_message";
        return Err(ApiError::field("add_generation_prompt", what));
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        check_effort(app, &effort)?;
        options.kwargs.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(options)
}

/// A template that does not read the effort would leave it without effect; `none` asks a model
/// that does not reason for nothing.
fn check_effort(app: &App, effort: &str) -> Result<(), ApiError> {
    let read = app.text.chat_template().is_none_or(|t| t.contains("reasoning_effort"));
    if read || (effort == "none" && app.text.reasoning_marks().is_none()) {
        return Ok(());
    }
    let what = "is not supported by this model: its chat template does not read it; leave it out";
    Err(ApiError::parameter("reasoning_effort", what))
}

fn render(app: &App, fields: &mut Fields, tools: &mut Tools) -> Result<ChatPrompt, ApiError> {
    let messages = tools.speak(messages::take(app, fields)?);
    let options = options(app, fields)?;
    let prompt = app
        .text
        .render_chat(&messages, tools.for_template(), &options)
        .map_err(|e| prepare::text_error("messages", &e))?;
    tools.after(&prompt.text);
    Ok(prompt)
}

/// The prompt that a chat body makes, for `/tokenize`.
pub fn prompt_of(app: &App, fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
    let mut tools = Tools::take(app, fields)?;
    render(app, fields, &mut tools)
}

fn scores(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, TOP_LOGPROBS_MAX as u64)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::field("top_logprobs", "is only allowed with logprobs: true"))
        }
    }
}

fn understand(app: &App, mut fields: Fields) -> Result<Asked, ApiError> {
    prepare::check_model(app, &mut fields)?;
    surface::check(&fields, Endpoint::Chat)?;
    let context_max_tokens = app.model.context_max_tokens;
    let limit = Limit { context_max_tokens, may_be_zero: false, zero: "" };
    let common = Common::take(&mut fields, app.model.vocab, limit)?;
    let scores = scores(&mut fields)?;
    let mut tools = Tools::take(app, &mut fields)?;
    let format = Format::take(&mut fields)?;
    let prompt = render(app, &mut fields, &mut tools)?;
    Ok(Asked { common, prompt: prompt.tokens.into(), scores, tools, format })
}

impl Asked {
    fn plan(&self, app: &App) -> Result<Vec<Planned>, ApiError> {
        let asked = self.common.max_tokens;
        let prompt = ("messages", self.prompt.len());
        let max_tokens = prepare::max_tokens(app, prompt, &self.common, asked)?;
        let count = self.common.n as usize;
        prepare::check_sequences(app, "n", count)?;
        let masks = self.tools.masks(app, &self.format, count)?;
        let one = |(choice, grammar)| {
            let params = SamplingParams {
                choice,
                max_tokens,
                logprobs: self.scores,
                ..self.common.params.clone()
            };
            let (prompt, private) = (Arc::clone(&self.prompt), self.common.private);
            Planned { prompt, params, grammar, private }
        };
        Ok((0..self.common.n).zip(masks).map(one).collect())
    }

    fn choices(&self, app: &App) -> Result<Vec<Choice>, ApiError> {
        let one = |_| {
            Ok(Choice::new(ChoiceStart {
                text: self.common.text(app, self.tools.keep(app))?,
                parser: Some(self.tools.parser()),
                tool_finish: self.tools.finish(),
                wants_scores: self.scores.is_some(),
                grammar_field: self.tools.grammar_field(&self.format),
                prompt_tokens: self.prompt.len() as u32,
            }))
        };
        (0..self.common.n).map(one).collect()
    }
}

/// The handler.
pub async fn handle(State(app): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let name = app.ids.response("chatcmpl");
    let (asked, planned, choices) = prepare::with_body(&app, request, |app, fields| {
        let asked = understand(app, fields)?;
        let planned = asked.plan(app)?;
        let choices = asked.choices(app)?;
        Ok((asked, planned, choices))
    })
    .await?;
    let run = Run::start(&app, planned, &name, asked.common.rid.as_deref(), "messages")?;
    let per_prompt = choices.len();
    let mut answer = Answer { run, choices, per_prompt, prompt_only: false };
    let chat = Chat {
        app,
        name,
        created: unix_seconds(),
        include_usage: asked.common.include_usage,
        scores: asked.scores.is_some(),
        tokens_as_ids: asked.common.tokens_as_ids,
        seed: asked.common.params.seed.0,
    };
    if asked.common.stream {
        return Ok(answer.into_stream(chat));
    }
    let made = answer.collect().await?;
    Ok(Json(chat.whole(made, answer.cost())).into_response())
}

/// How answers of this endpoint look.
struct Chat {
    app: Shared,
    name: String,
    created: u64,
    include_usage: bool,
    scores: bool,
    tokens_as_ids: bool,
    seed: u64,
}

impl Chat {
    fn frame(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut frame = Map::new();
        frame.insert("id".into(), self.name.as_str().into());
        frame.insert("object".into(), object.into());
        frame.insert("created".into(), self.created.into());
        frame.insert("model".into(), self.app.model_name.as_str().into());
        frame.insert("system_fingerprint".into(), self.app.fingerprint.as_str().into());
        frame.insert("choices".into(), choices.into());
        frame
    }

    fn chunk_of(&self, choices: Vec<Value>, usage: Value) -> Value {
        let mut frame = self.frame("chat.completion.chunk", choices);
        if self.include_usage {
            frame.insert("usage".into(), usage);
        }
        Value::Object(frame)
    }

    fn scores(&self, delta: &Delta) -> Value {
        let names = Names { text: &self.app.text, as_ids: self.tokens_as_ids };
        if self.scores { names.chat(&delta.scored) } else { Value::Null }
    }

    fn whole(&self, made: Vec<Delta>, cost: Cost) -> Value {
        let choice = |(index, delta): (usize, Delta)| {
            let scores = self.scores(&delta);
            let mut message = Map::new();
            message.insert("role".into(), "assistant".into());
            let silent = delta.content.is_empty() && !delta.tools.is_empty();
            let content = if silent { Value::Null } else { delta.content.into() };
            message.insert("content".into(), content);
            message.insert("refusal".into(), Value::Null);
            if !delta.reasoning.is_empty() {
                message.insert("reasoning_content".into(), delta.reasoning.into());
            }
            if !delta.tools.is_empty() {
                let call = |t: crate::choice::ToolDelta| {
                    let (id, name) = t.begin.unwrap_or_default();
                    json!({
                        "id": id,
                        "type": "function",
                        "function": {"name": name, "arguments": t.arguments},
                    })
                };
                let calls: Vec<Value> = delta.tools.into_iter().map(call).collect();
                message.insert("tool_calls".into(), calls.into());
            }
            json!({
                "index": index,
                "message": message,
                "logprobs": scores,
                "finish_reason": delta.finish.map(Finish::as_str),
            })
        };
        let choices = made.into_iter().enumerate().map(choice).collect();
        let mut frame = self.frame("chat.completion", choices);
        frame.insert("usage".into(), cost.to_json());
        frame.insert("seed".into(), self.seed.into());
        Value::Object(frame)
    }
}

impl Shape for Chat {
    fn opens_late(&self) -> bool {
        false
    }

    fn opening(&mut self, index: usize, _choice: &Choice) -> Option<Value> {
        let choice = json!({
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": null,
            "finish_reason": null,
        });
        let mut chunk = self.chunk_of(vec![choice], Value::Null);
        chunk["seed"] = self.seed.into();
        Some(chunk)
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Value {
        let scores = self.scores(&delta);
        let mut inner = Map::new();
        if !delta.content.is_empty() {
            inner.insert("content".into(), delta.content.into());
        }
        if !delta.reasoning.is_empty() {
            inner.insert("reasoning_content".into(), delta.reasoning.into());
        }
        if !delta.tools.is_empty() {
            let call = |t: crate::choice::ToolDelta| {
                let mut function = Map::new();
                let mut call = Map::new();
                call.insert("index".into(), t.index.into());
                if let Some((id, name)) = t.begin {
                    call.insert("id".into(), id.into());
                    call.insert("type".into(), "function".into());
                    function.insert("name".into(), name.into());
                }
                function.insert("arguments".into(), t.arguments.into());
                call.insert("function".into(), function.into());
                Value::Object(call)
            };
            inner.insert("tool_calls".into(), delta.tools.into_iter().map(call).collect());
        }
        let choice = json!({
            "index": index,
            "delta": inner,
            "logprobs": scores,
            "finish_reason": delta.finish.map(Finish::as_str),
        });
        self.chunk_of(vec![choice], Value::Null)
    }

    fn usage_chunk(&mut self, usage: &Cost) -> Option<Value> {
        self.include_usage.then(|| self.chunk_of(Vec::new(), usage.to_json()))
    }
}
