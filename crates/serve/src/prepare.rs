//! From a body to token ids, away from the threads that serve sockets.

use crate::app::{App, LARGE_BODY_BYTES, Shared};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::params::{Common, token_id};
use crate::{body, json};
use axum::extract::Request;
use lockstep_flow::{Refusal, Token};
use lockstep_text::{Encode, TextError};
use serde_json::Value;
use std::sync::Arc;

/// Reads a body and runs `work` on its fields on a thread that may take its time. Large bodies
/// wait for each other, so that they cannot fill the memory together.
pub async fn with_body<T: Send + 'static>(
    app: &Shared,
    request: Request,
    work: impl FnOnce(&Shared, Fields) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (parts, raw) = request.into_parts();
    let bytes = body::read(&parts.headers, raw).await?;
    let app = Arc::clone(app);
    let gone = |_| ApiError::Internal { what: "the server is ending".into() };
    let permit = match bytes.len() > LARGE_BODY_BYTES {
        true => Some(app.large.acquire().await.map_err(gone)?),
        false => None,
    };
    let worker = Arc::clone(&app);
    let made = tokio::task::spawn_blocking(move || {
        let fields = Fields::new(json::parse_object(&bytes)?);
        drop(bytes);
        work(&worker, fields)
    });
    let made = made.await;
    drop(permit);
    made.unwrap_or_else(|e| {
        tracing::error!("preparing a request panicked: {e}");
        Err(ApiError::Internal { what: "preparing the request failed".into() })
    })
}

/// The `model` field: absent takes the served one.
pub fn check_model(app: &App, fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("model")? {
        Some(asked) if !app.is_served(&asked) => {
            let asked = asked.chars().take(200).collect();
            Err(ApiError::NoModel { asked, served: app.model_name.clone() })
        }
        _ => Ok(()),
    }
}

/// Refuses a text that cannot fit the context however it is tokenized.
pub fn check_bytes(app: &App, param: &'static str, bytes: usize) -> Result<(), ApiError> {
    let context_max_tokens = app.model.context_max_tokens;
    let least = bytes / app.token_bytes_max;
    if least <= context_max_tokens as usize {
        return Ok(());
    }
    let prompt_tokens = u32::try_from(least).unwrap_or(u32::MAX);
    let refusal = Refusal::ContextTooLong { prompt_tokens, max_tokens: 1, context_max_tokens };
    Err(ApiError::Refused { refusal, param })
}

/// Bytes of all strings below a value.
pub fn string_bytes(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len(),
        Value::Array(items) => items.iter().map(string_bytes).sum(),
        Value::Object(map) => map.values().map(string_bytes).sum(),
        _ => 0,
    }
}

/// Token ids of a text that came in the field `param`.
pub fn encode(
    app: &App,
    param: &'static str,
    text: &str,
    add_bos: bool,
    parse_special: bool,
) -> Result<Vec<Token>, ApiError> {
    check_bytes(app, param, text.len())?;
    app.text.encode(text, Encode { add_bos, parse_special }).map_err(|e| text_error(param, &e))
}

/// A JSON array as token ids of this vocabulary.
pub fn token_ids(items: &[Value], param: &'static str, vocab: u32) -> Result<Vec<Token>, ApiError> {
    let one = |(at, item): (usize, &Value)| match token_id(item, param)? {
        token if token.0 < vocab => Ok(token),
        token => {
            let refusal = Refusal::TokenOutOfRange { token, at: at as u32, vocab };
            Err(ApiError::Refused { refusal, param })
        }
    };
    items.iter().enumerate().map(one).collect()
}

/// What the text room refuses, as an answer. `param` is where its input came from.
pub fn text_error(param: &str, e: &TextError) -> ApiError {
    use TextError as E;
    let what = format!("cannot be used: {e}");
    match e {
        E::Message { index, .. } => ApiError::field(format!("{param}[{index}]"), what),
        E::Tool { index, .. } => ApiError::field(format!("tools[{index}]"), what),
        E::UnknownTool { .. } | E::NoTools => ApiError::field("tool_choice", what),
        E::Stop { .. } => ApiError::field("stop", what),
        E::Messages { .. } | E::TemplateRaised { .. } => ApiError::field(param, what),
        E::PromptTooLong { .. } => ApiError::field(param, what),
        E::NoTemplate
        | E::IdsOnly
        | E::TemplateSyntax { .. }
        | E::TemplateFailed { .. }
        | E::TemplateTooSlow { .. }
        | E::Grammar { .. }
        | E::GrammarTooLarge { .. }
        | E::GrammarEngine { .. } => ApiError::unsupported(param, what),
        _ => ApiError::Internal { what: e.to_string() },
    }
}

/// Refuses more sequences than can ever be live at once, before anything is made for them. The
/// answer is not 429: no waiting helps.
pub fn check_sequences(app: &App, param: &'static str, sequences: usize) -> Result<(), ApiError> {
    let (sequences, limit) = (u32::try_from(sequences).unwrap_or(u32::MAX), app.sequences_max);
    match sequences > limit {
        true => Err(ApiError::Refused {
            refusal: Refusal::TooManySequences { sequences, limit },
            param,
        }),
        false => Ok(()),
    }
}

/// How many tokens a sequence may produce, after a prompt that came in a field and has so many
/// tokens. `None` takes what context and pool leave. `min_tokens` must not be more.
pub fn max_tokens(
    app: &App,
    (field, prompt): (&'static str, usize),
    common: &Common,
    asked: Option<u32>,
) -> Result<u32, ApiError> {
    let context_max_tokens = app.model.context_max_tokens;
    let prompt_tokens = u32::try_from(prompt).unwrap_or(u32::MAX);
    let limit = u64::from(context_max_tokens).min(app.capacity_tokens.max(1)) as u32;
    let left = match asked {
        Some(_) => context_max_tokens.saturating_sub(prompt_tokens),
        None => limit.saturating_sub(prompt_tokens),
    };
    let wanted = asked.unwrap_or(left.max(1));
    if wanted > left {
        let refusal =
            Refusal::ContextTooLong { prompt_tokens, max_tokens: wanted, context_max_tokens };
        // With any room beside the prompt, it is the number that is too large.
        let is_number = common.max_tokens.is_some() && left > 0;
        let param = if is_number { common.max_tokens_field } else { field };
        return Err(ApiError::Refused { refusal, param });
    }
    let min_tokens = common.params.min_tokens;
    if min_tokens > wanted {
        let what = format!("is {min_tokens}; at most {wanted} tokens are made, so it must be less");
        return Err(ApiError::field("min_tokens", what));
    }
    Ok(wanted)
}
