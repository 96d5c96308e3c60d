//! Is it well? `/health` by its own word, `/health_generate` by doing a token's work.

use crate::app::Shared;
use crate::error::ApiError;
use crate::run::{Planned, Run};
use crate::state;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use lockstep_flow::{EventKind, Refusal, SamplingParams, Token};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long a token may take before the probe calls it silence.
const PROBE_SECONDS: u64 = 20;
/// A success this recent answers the next probe.
const FRESH: Duration = Duration::from_secs(1);
/// How often a busy engine's counters are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// `GET /health`: 200 while requests are taken, else 503 with the reason.
pub async fn health(State(app): State<Shared>) -> Response {
    let status = app.status();
    if status.health.is_serving() {
        let mut body = json!({"status": "serving"});
        if status.lab.is_some() {
            body["lab"] = state::lab(&status);
        }
        Json(body).into_response()
    } else {
        ApiError::Unhealthy { what: status.health.to_string() }.into_response()
    }
}

/// `GET /health_generate`: 200 once a token has come out of the engine, the probe's own or, where
/// the server is busy, anybody's.
pub async fn health_generate(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let status = app.status();
    if !status.health.is_serving() {
        return Err(ApiError::Unhealthy { what: status.health.to_string() });
    }
    let mut last = app.probe.lock().await;
    if last.is_some_and(|at| at.elapsed() < FRESH) {
        return Ok(Json(json!({"status": "generating"})));
    }
    let limit = Duration::from_secs(PROBE_SECONDS);
    match timeout(limit, generate_one(&app)).await {
        Ok(Ok(by)) => {
            *last = Some(Instant::now());
            Ok(Json(json!({"status": "generating", "seen": by})))
        }
        Ok(Err(e)) => Err(e),
        Err(_) => Err(ApiError::Unhealthy { what: format!("no token in {PROBE_SECONDS} s") }),
    }
}

/// Says who produced the token that was seen.
async fn generate_one(app: &Shared) -> Result<&'static str, ApiError> {
    let before = app.status().counters.generated_tokens;
    let params = SamplingParams { temperature: 0.0, max_tokens: 1, ..SamplingParams::default() };
    let prompt = [app.text.bos().unwrap_or(Token(0))].into();
    let planned = vec![Planned { prompt, params, grammar: None, private: false }];
    let name = app.ids.response("health");
    let mut run = match Run::start(app, planned, &name, None, "probe") {
        Ok(run) => Some(run),
        Err(ApiError::Refused { refusal: Refusal::QueueFull { .. }, .. }) => None,
        Err(e) => return Err(e),
    };
    let own = async {
        match &mut run {
            None => std::future::pending().await,
            Some(run) => loop {
                match run.next().await {
                    Some((_, EventKind::Token { .. } | EventKind::Finished { .. })) | None => {
                        return Ok("own");
                    }
                    Some((_, EventKind::Failed { failure, .. })) => {
                        return Err(ApiError::Unhealthy { what: failure.to_string() });
                    }
                    Some(_) => {}
                }
            },
        }
    };
    let others = async {
        loop {
            sleep(LOOK).await;
            if app.status().counters.generated_tokens > before {
                return Ok("others");
            }
        }
    };
    tokio::select! {
        biased;
        seen = own => seen,
        seen = others => seen,
    }
}
