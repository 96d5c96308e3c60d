//! `/tokenize` and `/detokenize`, in the shapes that vLLM's and llama.cpp's users send.

use crate::app::Shared;
use crate::chat;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prepare;
use axum::Json;
use axum::extract::{Request, State};
use lockstep_flow::Token;
use serde_json::{Value, json};

/// `POST /tokenize`: `{"prompt": TEXT}` (vLLM), `{"content": TEXT}` (llama.cpp) or
/// `{"messages": [...]}` -> `{"tokens": [...], "count", "max_model_len"}`.
pub async fn tokenize(
    State(app): State<Shared>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let made = prepare::with_body(&app, request, |app, mut fields| {
        let tokens = if fields.has("messages") {
            chat::prompt_of(app, &mut fields)?.tokens
        } else {
            plain(app, &mut fields)?
        };
        let pieces = fields.flag("return_token_strs")?.unwrap_or(false);
        let strings: Option<Vec<String>> =
            pieces.then(|| tokens.iter().map(|t| app.text.token_text(*t)).collect());
        Ok(json!({
            "tokens": tokens.iter().map(|t| t.0).collect::<Vec<u32>>(),
            "count": tokens.len(),
            "max_model_len": app.model.context_max_tokens,
            "token_strs": strings,
        }))
    });
    Ok(Json(made.await?))
}

fn plain(app: &Shared, fields: &mut Fields) -> Result<Vec<Token>, ApiError> {
    let (param, text) = match (fields.string("prompt")?, fields.string("content")?) {
        (Some(text), _) => ("prompt", text),
        (None, Some(text)) => ("content", text),
        (None, None) => {
            return Err(ApiError::field("prompt", "is missing; send prompt, content or messages"));
        }
    };
    // vLLM adds the beginning-of-text token by default where it has one, llama.cpp does not.
    let add = match (fields.flag("add_special_tokens")?, fields.flag("add_special")?) {
        (Some(add), _) | (None, Some(add)) => add,
        (None, None) => param == "prompt",
    };
    let special = fields.flag("parse_special")?.unwrap_or(true);
    prepare::encode(app, param, &text, add, special)
}

/// `POST /detokenize`: `{"tokens": [...]}` -> `{"prompt", "content"}`, the same text twice: the
/// first is vLLM's name for it, the second llama.cpp's.
pub async fn detokenize(
    State(app): State<Shared>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let made = prepare::with_body(&app, request, |app, mut fields| {
        let items = fields
            .array("tokens")?
            .ok_or_else(|| ApiError::field("tokens", "is missing; send an array of token ids"))?;
        let tokens = prepare::token_ids(&items, "tokens", app.model.vocab)?;
        let skip = fields.flag("skip_special_tokens")?.unwrap_or(false);
        let text = app.text.decode(&tokens, skip);
        Ok(json!({"prompt": text, "content": text}))
    });
    Ok(Json(made.await?))
}
