//! The admin routes of generations: stage, flip, retire, and what is known of each.

use crate::app::{App, Shared, unix_seconds};
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::json::type_name;
use crate::{body, json, plain};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockstep_flow::generation::{
    BucketEvidence, GenerationError, GenerationReport, GenerationState, KnobInForce, StageMode,
};
use lockstep_flow::knobs::{Kind, Knob, Value as KnobValue, find};
use lockstep_flow::settings::find_or_nearest;
use lockstep_flow::{EngineStatus, Micros};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How often a waiting request looks whether the verdict is there.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest watch window that a flip may ask for.
const WATCH_SECONDS_MAX: u64 = 86_400;

/// `GET /admin/generations`: every generation that is remembered, newest last.
pub async fn list(State(app): State<Shared>) -> Json<Value> {
    let status = app.status();
    let all: Vec<Value> = status.generations.iter().map(|r| shown(r, &status, false)).collect();
    Json(json!({"object": "list", "live": status.generation, "data": all}))
}

/// `GET /admin/generations/{n}`: one, with its evidence by bucket.
pub async fn one(
    State(app): State<Shared>,
    Path(number): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (status, number) = (app.status(), parse(&number)?);
    let report = find_report(&status, number)?;
    Ok(Json(shown(report, &status, true)))
}

/// `POST /admin/generations`: `{"knobs": {NAME: VALUE, ..}, "mode": "beside", "wait": false}`.
/// Answers 202 with the report of the generation that is being built, or, where it is to wait, 200
/// with that of the verified one, or of the live one where it drains. A client that goes away changes nothing.
pub async fn stage(State(app): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let mut fields = read(request).await?;
    let wait = fields.flag("wait")?.unwrap_or(false);
    let mode = stage_mode(fields.string("mode")?)?;
    let changes = changes(fields.object("knobs")?)?;
    nothing_else(fields, "knobs, mode and wait")?;
    let number = app.engine.stage(&changes, mode)?;
    let status = if wait { verdict(&app, number).await? } else { app.status() };
    let report = find_report(&status, number)?;
    let code = if wait { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = (code, Json(shown(report, &status, true))).into_response();
    if let Ok(at) = HeaderValue::from_str(&format!("/admin/generations/{number}")) {
        response.headers_mut().insert(header::LOCATION, at);
    }
    Ok(response)
}

/// `POST /admin/generations/{n}/flip`: `{"watch_seconds": 60}`. Flips to a verified generation, or
/// back to the draining one; answers once steps run in it.
pub async fn flip(
    State(app): State<Shared>,
    Path(number): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let number = parse(&number)?;
    let mut fields = read(request).await?;
    let watch = fields.count("watch_seconds", 0, WATCH_SECONDS_MAX)?;
    nothing_else(fields, "watch_seconds")?;
    let watch = watch.map(|s| Micros::from_millis(1000 * s));
    ask(&app, move |engine| engine.flip(number, watch)).await?;
    let status = app.status();
    Ok(Json(shown(find_report(&status, number)?, &status, true)))
}

/// `POST /admin/generations/{n}/retire`. Answers once its memory is given back.
pub async fn retire(
    State(app): State<Shared>,
    Path(number): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let number = parse(&number)?;
    nothing_else(read(request).await?, "no fields")?;
    ask(&app, move |engine| engine.retire(number)).await?;
    let status = app.status();
    Ok(Json(shown(find_report(&status, number)?, &status, true)))
}

/// Asks what waits for the step thread, on a thread that may wait.
async fn ask(
    app: &App,
    question: impl FnOnce(&dyn Engine) -> Result<(), GenerationError> + Send + 'static,
) -> Result<(), ApiError> {
    let engine = Arc::clone(&app.engine);
    let asked = tokio::task::spawn_blocking(move || question(engine.as_ref())).await;
    asked.map_err(|e| ApiError::Internal { what: e.to_string() })??;
    Ok(())
}

/// Waits until a generation is verified.
async fn verdict(app: &App, number: u64) -> Result<EngineStatus, ApiError> {
    loop {
        let status = app.status();
        let report = find_report(&status, number)?;
        if let GenerationState::Rejected = report.state {
            let reason = report.reason.clone().unwrap_or_default();
            return Err(ApiError::Rejected { number, reason });
        }
        let moving_in =
            report.mode == StageMode::Drain && report.state == GenerationState::Verified;
        if !report.state.is_on_its_way() && !moving_in {
            return Ok(status);
        }
        if let lockstep_flow::status::Health::Failed { why } = status.health {
            return Err(GenerationError::Stopped { why }.into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn stage_mode(written: Option<String>) -> Result<StageMode, ApiError> {
    let Some(written) = written else { return Ok(StageMode::default()) };
    let modes = [StageMode::Beside, StageMode::Drain];
    modes.into_iter().find(|m| m.as_str() == written).ok_or_else(|| {
        let shown: String = written.chars().take(40).collect();
        ApiError::field("mode", format!("is '{shown}'; it takes beside or drain"))
    })
}

fn parse(number: &str) -> Result<u64, ApiError> {
    plain::number(number).ok_or_else(|| {
        let shown: String = number.chars().take(40).collect();
        ApiError::field(
            "generation",
            format!("must be a whole number of 64 bits in the path, in digits alone and without zeros before it; found '{shown}'"),
        )
    })
}

fn find_report(status: &EngineStatus, number: u64) -> Result<&GenerationReport, ApiError> {
    let found = status.generation_report(number);
    found.ok_or_else(|| status.unknown_generation(number).into())
}

/// A body may be left out: there is nothing that these routes must be told.
async fn read(request: Request) -> Result<Fields, ApiError> {
    let (parts, raw) = request.into_parts();
    let bytes = body::read(&parts.headers, raw).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Fields::new(Map::new()));
    }
    Ok(Fields::new(json::parse_object(&bytes)?))
}

/// An operator's field that nobody reads is a mistake.
fn nothing_else(fields: Fields, takes: &str) -> Result<(), ApiError> {
    match fields.into_map().into_iter().next() {
        None => Ok(()),
        Some((name, _)) => {
            let name: String = name.chars().take(60).collect();
            Err(ApiError::field(name, format!("is no field of this route, which takes {takes}")))
        }
    }
}

/// Knobs by name: numbers and flags as JSON has them, bytes also as an operator writes them.
fn changes(knobs: Option<Fields>) -> Result<Vec<(&'static Knob, KnobValue)>, ApiError> {
    let knobs = knobs.map(Fields::into_map).unwrap_or_default();
    let mut changes = Vec::new();
    for (name, value) in knobs {
        let shown: String = name.chars().take(60).collect();
        let param = format!("knobs.{shown}");
        let knob = find_or_nearest(&shown)
            .map_err(|e| ApiError::field(param.clone(), format!("is unknown: {e}")))?;
        // A number in quotes is a mistake elsewhere in the body too.
        let written = match (&value, knob.kind) {
            (Value::Number(n), Kind::Count { .. } | Kind::Bytes { .. }) => n.to_string(),
            (Value::Bool(b), Kind::Flag) => b.to_string(),
            (Value::String(s), Kind::Bytes { .. } | Kind::Choice(_) | Kind::Text) => {
                s.chars().take(200).collect()
            }
            (other, _) => {
                let what = format!("is {}; it takes {}", type_name(other), knob.expected());
                return Err(ApiError::field(param, what));
            }
        };
        let value = knob.parse(&written).map_err(|e| {
            ApiError::field(param, format!("is '{}'; it takes {}", e.found, e.expected))
        })?;
        changes.push((knob, value));
    }
    Ok(changes)
}

/// A report as JSON; `evidence` adds what each bucket has shown.
pub fn shown(r: &GenerationReport, status: &EngineStatus, evidence: bool) -> Value {
    let now_unix = unix_seconds() as f64;
    let ago = |at: Micros| status.uptime.as_secs_f64() - at.as_secs_f64();
    let moves = r.moves.iter().map(|(state, at)| {
        json!({"state": state.as_str(), "uptime_s": at.as_secs_f64(), "unix_s": now_unix - ago(*at)})
    });
    let knobs: Map<String, Value> =
        r.knobs.iter().map(|k| (k.name.to_owned(), typed(k.name, &k.value))).collect();
    let changed: Map<String, Value> = r.knobs.iter().filter_map(changed).collect();
    let total = |of: fn(&BucketEvidence) -> u64| r.buckets.iter().map(of).sum::<u64>();
    let ms = |t: Micros| t.0 as f64 / 1e3;
    let mut value = json!({
        "generation": r.number,
        "object": "generation",
        "state": r.state.as_str(),
        "mode": r.mode.as_str(),
        "verified": r.verified_at.is_some(),
        "reason": r.reason,
        "knobs": knobs,
        "changed": changed,
        "arena_bytes": r.arena_bytes,
        "shadow_bytes": r.shadow_bytes,
        "digests": {
            "plans": r.digests.plans,
            "state_layout": r.digests.state_layout,
            "numerics": r.digests.numerics,
            "weights": r.digests.weights,
        },
        "moves": moves.collect::<Vec<Value>>(),
        "steps": r.steps,
        "captured_steps": r.captured_steps,
        "eager_steps": r.steps - r.captured_steps,
        "gap": {
            "longest_ms": ms(r.gap.longest),
            "longest_canary_step_ms": ms(r.gap.longest_canary),
            "canary_steps": r.gap.canary_steps,
        },
        "watched_for_s": r.watched_until.map(|t| t.since(status.uptime).as_secs_f64()),
        "evidence": {
            "buckets": r.buckets.len(),
            "captured_buckets": r.buckets.iter().filter(|b| b.captured).count(),
            "verified_buckets": r.verified_buckets(),
            "order_proofs": r.order_proofs,
            "proof_pairs": total(|b| b.proof_pairs),
            "canaries": total(|b| u64::from(b.canaries)),
            "canary_rows": total(|b| u64::from(b.canary_rows)),
            "replays": total(|b| u64::from(b.replays)),
            "eager_steps": total(|b| u64::from(b.eager_steps)),
            "poisoned_steps": total(|b| u64::from(b.poisoned_steps)),
            "compared_bits": total(|b| b.compared_bits),
            "differing_bits": total(|b| b.differing_bits),
            "manifest_checks": total(|b| u64::from(b.manifest_checks)),
        },
    });
    if evidence {
        value["buckets"] = r.buckets.iter().map(bucket).collect();
    }
    value
}

/// A knob's value with the type that it has in the registry.
fn typed(name: &str, written: &str) -> Value {
    match find(name).and_then(|k| k.parse(written).ok()) {
        Some(KnobValue::Number(n)) => json!(n),
        Some(KnobValue::Flag(b)) => json!(b),
        Some(KnobValue::Text(_)) | None => json!(written),
    }
}

fn changed(k: &KnobInForce) -> Option<(String, Value)> {
    let was = k.was.as_ref()?;
    let value = json!({"from": typed(k.name, was), "to": typed(k.name, &k.value)});
    Some((k.name.to_owned(), value))
}

fn bucket(b: &BucketEvidence) -> Value {
    json!({
        "bucket": b.key.to_string(),
        "captured": b.captured,
        "verified": b.is_verified(),
        "arena_bytes": b.arena_bytes,
        "ops": b.ops,
        "proof_pairs": b.proof_pairs,
        "canaries": b.canaries,
        "canary_rows": b.canary_rows,
        "canary_rows_max": b.canary_rows_max,
        "canary_padding_max": b.canary_padding_max,
        "canary_full": b.canary_rows_max == b.key.tokens,
        "replays": b.replays,
        "eager_steps": b.eager_steps,
        "poisoned_steps": b.poisoned_steps,
        "compared_bits": b.compared_bits,
        "differing_bits": b.differing_bits,
        "manifest_checks": b.manifest_checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(knobs: Value) -> Result<Vec<(&'static Knob, KnobValue)>, String> {
        let Value::Object(map) = json!({ "knobs": knobs }) else { unreachable!() };
        let fields = Fields::new(map).object("knobs").map_err(|e| e.to_string())?;
        changes(fields).map_err(|e| e.to_string())
    }

    #[test]
    fn knobs_come_with_the_types_of_json() {
        let changes = taken(json!({ "decode.graph-max-bs": 96 })).unwrap();
        assert_eq!(changes[0].0.name, "decode.graph-max-bs");
        assert_eq!(changes[0].1, KnobValue::Number(96));
        for bytes in [json!("2GiB"), json!(2u64 << 30)] {
            let changes = taken(json!({ "pool.kv-memory": bytes })).unwrap();
            assert_eq!(changes[0].1, KnobValue::Number(2 << 30));
        }
        // `"96"` was once a number here.
        assert_eq!(
            taken(json!({"decode.graph-max-bs": "96"})).unwrap_err(),
            "'knobs.decode.graph-max-bs' is a string; it takes a whole number from 1 to 4096"
        );
        assert!(taken(json!({"decode.eager": "true"})).is_err());
        assert!(taken(json!({"decode.eager": 1})).is_err());
        assert_eq!(taken(json!({"decode.eager": true})).unwrap()[0].1, KnobValue::Flag(true));
        assert!(taken(Value::Null).unwrap().is_empty());
    }

    #[test]
    fn a_bad_knob_is_refused_with_what_would_work() {
        assert_eq!(
            taken(json!({"decode.graph-max-sb": 96})).unwrap_err(),
            "'knobs.decode.graph-max-sb' is unknown: there is no knob 'decode.graph-max-sb'; did \
             you mean 'decode.graph-max-bs'?"
        );
        assert_eq!(
            taken(json!({"decode.graph-max-bs": 0})).unwrap_err(),
            "'knobs.decode.graph-max-bs' is '0'; it takes a whole number from 1 to 4096"
        );
        assert_eq!(
            taken(json!({"decode.graph-max-bs": [1]})).unwrap_err(),
            "'knobs.decode.graph-max-bs' is an array; it takes a whole number from 1 to 4096"
        );
        assert!(taken(json!([1])).unwrap_err().contains("must be an object"));
    }
}
