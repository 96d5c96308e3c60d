//! `POST /v1/completions`.

use crate::app::{App, Shared, unix_seconds};
use crate::choice::{Choice, ChoiceStart, Delta, Finish};
use crate::compile;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::format::Format;
use crate::params::{Common, Limit};
use crate::prepare;
use crate::run::{Planned, Run};
use crate::scores::{Lists, Names};
use crate::stream::{Answer, Cost, Shape};
use crate::surface::{self, Endpoint};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use lockstep_flow::limits::{CHOICES_MAX, MAX_TOKENS_DEFAULT, PROMPTS_MAX, TOP_LOGPROBS_MAX};
use lockstep_flow::{Refusal, SamplingParams, Token, TokenLogprob};
use lockstep_text::StreamOptions;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A prompt: its tokens, and its text for `echo`.
struct Prompt {
    tokens: Arc<[Token]>,
    text: String,
}

/// A body, understood.
struct Asked {
    common: Common,
    prompts: Vec<Prompt>,
    echo: bool,
    /// Sequences a prompt; the best `n` of them are answered.
    best_of: u32,
    scores: Option<u32>,
    format: Format,
}

fn understand(app: &App, mut fields: Fields) -> Result<Asked, ApiError> {
    prepare::check_model(app, &mut fields)?;
    surface::check(&fields, Endpoint::Text)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let context_max_tokens = app.model.context_max_tokens;
    let zero = ", or 0 together with echo";
    let limit = Limit { context_max_tokens, may_be_zero: echo, zero };
    let common = Common::take(&mut fields, app.model.vocab, limit)?;
    let top = TOP_LOGPROBS_MAX as u64;
    let scores = fields.count("logprobs", 0, top)?.map(|n| n as u32);
    let best_of = fields.count("best_of", 1, u64::from(CHOICES_MAX))?.map(|n| n as u32);
    if let Some(best_of) = best_of.filter(|best_of| *best_of < common.n) {
        let what = format!("is {best_of} and n is {}: it must be at least n", common.n);
        return Err(ApiError::field("best_of", what));
    }
    let best_of = best_of.unwrap_or(common.n);
    let count_field = if best_of > common.n { "best_of" } else { "n" };
    if best_of > common.n && common.stream {
        let what =
            "cannot be larger than n in a stream: which choices are best is known at the end";
        return Err(ApiError::field("best_of", what));
    }
    let format = Format::take(&mut fields)?;
    let add_bos = fields.flag("add_special_tokens")?.unwrap_or(true);
    let prompt = fields
        .take("prompt")
        .ok_or_else(|| ApiError::field("prompt", "is missing; send a string or token ids"))?;
    let count = prompt.as_array().filter(|items| !items.iter().all(Value::is_number));
    let sequences = count.map_or(1, Vec::len).saturating_mul(best_of as usize);
    let param = if sequences == best_of as usize { count_field } else { "prompt" };
    prepare::check_sequences(app, param, sequences)?;
    let prompts = prompts(app, prompt, add_bos)?;
    Ok(Asked { common, prompts, echo, best_of, scores, format })
}

fn prompts(app: &App, prompt: Value, add_bos: bool) -> Result<Vec<Prompt>, ApiError> {
    let text = |text: String| {
        let tokens = prepare::encode(app, "prompt", &text, add_bos, true)?;
        Ok(Prompt { tokens: tokens.into(), text })
    };
    let ids = |items: &[Value]| {
        let tokens = prepare::token_ids(items, "prompt", app.model.vocab)?;
        let text = app.text.decode(&tokens, false);
        Ok(Prompt { tokens: tokens.into(), text })
    };
    let wrong = || {
        let what = "must be a string, an array of strings, an array of token ids, or an array of \
                    such arrays, all of one kind";
        ApiError::field("prompt", what)
    };
    let items = match prompt {
        Value::String(one) => return Ok(vec![text(one)?]),
        Value::Array(items) => items,
        _ => return Err(wrong()),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![ids(&items)?]);
    }
    if items.is_empty() {
        return Err(ApiError::Refused { refusal: Refusal::EmptyPrompt, param: "prompt" });
    }
    if items.len() > PROMPTS_MAX {
        let what = format!("holds {} prompts; at most {PROMPTS_MAX} are taken", items.len());
        return Err(ApiError::field("prompt", what));
    }
    let strings = items[0].is_string();
    let one = |item: Value| match item {
        Value::String(one) if strings => text(one),
        Value::Array(one) if !strings => ids(&one),
        _ => Err(wrong()),
    };
    items.into_iter().map(one).collect()
}

impl Asked {
    fn plan(&self, app: &App) -> Result<Vec<Planned>, ApiError> {
        let mut planned = Vec::new();
        let count = self.prompts.len() * self.best_of as usize;
        let mut grammars = match self.format.spec() {
            None => Vec::new(),
            Some((field, spec)) => compile::grammars(app, field, spec, None, count)?,
        };
        for prompt in &self.prompts {
            let asked = self.common.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT).max(1);
            let tokens = ("prompt", prompt.tokens.len());
            let max_tokens = prepare::max_tokens(app, tokens, &self.common, Some(asked))?;
            let ranks = self.best_of > self.common.n;
            for choice in 0..self.best_of {
                let params = SamplingParams {
                    choice,
                    max_tokens,
                    logprobs: self.scores.or(ranks.then_some(0)),
                    prompt_logprobs: self.echo && self.scores.is_some(),
                    ..self.common.params.clone()
                };
                let grammar = grammars.pop();
                let (prompt, private) = (Arc::clone(&prompt.tokens), self.common.private);
                planned.push(Planned { prompt, params, grammar, private });
            }
        }
        Ok(planned)
    }

    fn choices(&self, app: &App) -> Result<Vec<Choice>, ApiError> {
        let mut choices = Vec::new();
        for prompt in &self.prompts {
            for _ in 0..self.best_of {
                choices.push(Choice::new(ChoiceStart {
                    text: self.common.text(app, Vec::new())?,
                    parser: None,
                    tool_finish: Finish::Stop,
                    wants_scores: self.scores.is_some(),
                    grammar_field: self.format.spec().map(|(field, _)| field),
                    prompt_tokens: prompt.tokens.len() as u32,
                }));
            }
        }
        Ok(choices)
    }
}

/// The handler.
pub async fn handle(State(app): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let name = app.ids.response("cmpl");
    let (asked, planned, choices) = prepare::with_body(&app, request, |app, fields| {
        let asked = understand(app, fields)?;
        let planned = asked.plan(app)?;
        let choices = asked.choices(app)?;
        Ok((asked, planned, choices))
    })
    .await?;
    let run = Run::start(&app, planned, &name, asked.common.rid.as_deref(), "prompt")?;
    let per_prompt = asked.best_of as usize;
    let prompt_only = asked.common.max_tokens == Some(0);
    let answer = Answer { run, choices, per_prompt, prompt_only };
    let shape = Completions { created: unix_seconds(), app, name, asked };
    if shape.asked.common.stream {
        Ok(answer.into_stream(shape))
    } else {
        shape.whole(answer).await
    }
}

/// How answers of this endpoint look.
struct Completions {
    app: Shared,
    name: String,
    created: u64,
    asked: Asked,
}

impl Completions {
    fn names(&self) -> Names<'_> {
        Names { text: &self.app.text, as_ids: self.asked.common.tokens_as_ids }
    }

    fn frame(&self, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let mut frame = Map::new();
        frame.insert("id".into(), self.name.as_str().into());
        frame.insert("object".into(), "text_completion".into());
        frame.insert("created".into(), self.created.into());
        frame.insert("model".into(), self.app.model_name.as_str().into());
        frame.insert("system_fingerprint".into(), self.app.fingerprint.as_str().into());
        frame.insert("choices".into(), choices.into());
        match usage {
            Some(usage) => frame.insert("usage".into(), usage),
            None if self.asked.common.include_usage => frame.insert("usage".into(), Value::Null),
            None => None,
        };
        Value::Object(frame)
    }

    /// The prompt's part of an echoed answer: its text, and its log-probabilities. Its length in
    /// characters is where the completion's offsets begin.
    fn echo(&self, index: usize, scores: &[TokenLogprob], lists: &mut Lists) -> String {
        let prompt = &self.asked.prompts[index / self.asked.best_of as usize];
        let names = self.names();
        let options =
            StreamOptions { skip_special: false, continuation: false, ..StreamOptions::default() };
        // Without stop strings there is nothing in the options to refuse.
        let Ok(mut text) = self.app.text.stream_with(options) else { return prompt.text.clone() };
        let mut chars = 0;
        for (at, token) in prompt.tokens.iter().enumerate() {
            match at.checked_sub(1).and_then(|at| scores.get(at)) {
                Some(entry) => lists.push(&names, entry, chars),
                None => lists.first(&names, *token),
            }
            let added = text.push(*token).text;
            // A beginning-of-text token that encoding put in front is no part of the text.
            if at > 0 || prompt.text.starts_with(&added) {
                chars += added.chars().count();
            }
        }
        prompt.text.clone()
    }

    fn choice(&self, index: usize, text: String, lists: Option<&Lists>, delta: &Delta) -> Value {
        json!({
            "index": index,
            "text": text,
            "logprobs": lists.map(Lists::to_json),
            "finish_reason": delta.finish.map(Finish::as_str),
        })
    }

    fn lists(&self, delta: &Delta, index: usize, lists: &mut Lists) {
        let base = match self.asked.echo {
            true => self.prompt_chars(index),
            false => 0,
        };
        for s in &delta.scored {
            lists.push(&self.names(), &s.token, base + s.at_char);
        }
    }

    fn prompt_chars(&self, index: usize) -> usize {
        self.asked.prompts[index / self.asked.best_of as usize].text.chars().count()
    }

    async fn whole(self, mut answer: Answer) -> Result<Response, ApiError> {
        let made = answer.collect().await?;
        let (n, best_of) = (self.asked.common.n as usize, self.asked.best_of as usize);
        let mut kept: Vec<usize> = Vec::new();
        for first in (0..made.len()).step_by(best_of) {
            let mut group: Vec<usize> = (first..first + best_of).collect();
            if best_of > n {
                // A stable sort: equal ones keep their order.
                group.sort_by(|a, b| {
                    let mean = |i: &usize| answer.choices[*i].mean_logprob();
                    mean(b).total_cmp(&mean(a))
                });
            }
            kept.extend(&group[..n]);
        }
        let mut choices = Vec::with_capacity(kept.len());
        for (number, index) in kept.into_iter().enumerate() {
            let delta = &made[index];
            let mut lists = Lists::default();
            let mut text = String::new();
            if self.asked.echo {
                text = self.echo(index, answer.choices[index].prompt_scores(), &mut lists);
            }
            text.push_str(&delta.content);
            self.lists(delta, index, &mut lists);
            let lists = self.asked.scores.map(|_| &lists);
            choices.push(self.choice(number, text, lists, delta));
        }
        let mut body = self.frame(choices, Some(answer.cost().to_json()));
        body["seed"] = json!(self.asked.common.params.seed.0);
        Ok(Json(body).into_response())
    }
}

impl Shape for Completions {
    fn opens_late(&self) -> bool {
        true
    }

    fn opening(&mut self, index: usize, choice: &Choice) -> Option<Value> {
        if !self.asked.echo {
            return None;
        }
        let mut lists = Lists::default();
        let text = self.echo(index, choice.prompt_scores(), &mut lists);
        let lists = self.asked.scores.map(|_| &lists);
        let choice = self.choice(index, text, lists, &Delta::default());
        Some(self.frame(vec![choice], None))
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Value {
        let mut lists = Lists::default();
        self.lists(&delta, index, &mut lists);
        let lists = self.asked.scores.map(|_| &lists);
        let choice = self.choice(index, delta.content.clone(), lists, &delta);
        let mut frame = self.frame(vec![choice], None);
        if delta.finish.is_some() {
            frame["seed"] = json!(self.asked.common.params.seed.0);
        }
        frame
    }

    fn usage_chunk(&mut self, usage: &Cost) -> Option<Value> {
        self.asked.common.include_usage.then(|| self.frame(Vec::new(), Some(usage.to_json())))
    }
}
