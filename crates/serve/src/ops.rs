//! Operator routes: metrics and ending requests.

use crate::app::Shared;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::{body, json, metrics};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// `GET /metrics`.
pub async fn metrics(State(app): State<Shared>) -> Result<Response, ApiError> {
    let page = app
        .metrics
        .encode()
        .map_err(|_| ApiError::Internal { what: "the metrics could not be written".into() })?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response())
}

/// `POST /abort_request`: `{"rid": NAME}` ends the answer of that name (a response's `id`, or the
/// `rid` its client gave), `{"abort_all": true}` ends all. Answers how many sequences were told
/// to end; an unknown name is not an error, as it may have just ended.
pub async fn abort_request(
    State(app): State<Shared>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (parts, raw) = request.into_parts();
    let bytes = body::read(&parts.headers, raw).await?;
    let mut fields = Fields::new(json::parse_object(&bytes)?);
    let all = fields.flag("abort_all")?.unwrap_or(false);
    let ids = match (all, fields.string("rid")?) {
        (true, _) => app.live.all(),
        (false, Some(rid)) => app.live.requests(&rid),
        (false, None) => {
            return Err(ApiError::field("rid", "is missing; name a request or set abort_all"));
        }
    };
    for id in &ids {
        app.engine.cancel(*id);
    }
    Ok(Json(json!({"aborted": ids.len()})))
}
