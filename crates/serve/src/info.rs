//! What the server says about itself: models, `/server_info`, `/v1/loads`.

use crate::app::{App, Shared};
use crate::error::ApiError;
use crate::state;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use lockstep_flow::knobs::{Value as KnobValue, is_secret};
use lockstep_flow::settings::{Setting, Source};
use lockstep_flow::status::EngineStatus;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;

fn card(app: &App) -> Value {
    json!({
        "id": app.model_name,
        "object": "model",
        "created": app.started_unix,
        "owned_by": "lockstep",
        "root": app.model.path,
        "parent": null,
        "max_model_len": app.model.context_max_tokens,
    })
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Shared>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app)]}))
}

fn raw_id(uri: &Uri) -> String {
    let path = uri.path();
    path.strip_prefix("/v1/models/").unwrap_or(path).chars().take(200).collect()
}

/// `GET /v1/models/{id}`; the id may hold slashes.
pub async fn model(
    State(app): State<Shared>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A name that is no text is the name of no model, as it stands in the path.
    let id = id.map_or_else(|_| raw_id(&uri), |Path(id)| id);
    if app.is_served(&id) {
        Ok(Json(card(&app)))
    } else {
        Err(ApiError::NoModel { asked: id, served: app.model_name.clone() })
    }
}

/// `GET /model_info`, as SGLang's clients read it.
pub async fn model_info(State(app): State<Shared>) -> Json<Value> {
    Json(json!({
        "model_path": app.model.path,
        "served_model_name": app.model_name,
        "tokenizer_path": app.model.path,
        "is_generation": true,
        "architectures": [app.model.architecture],
        "weight_version": app.model.weights_digest,
        "load_format": app.model.quantization,
    }))
}

/// Secrets are shown as set or not.
fn shown(setting: &Setting) -> Value {
    let secret = is_secret(setting.knob.name);
    match &setting.value {
        KnobValue::Text(t) if secret => json!(if t.is_empty() { "" } else { "(set)" }),
        KnobValue::Text(t) => json!(t),
        KnobValue::Number(n) => json!(n),
        KnobValue::Flag(b) => json!(b),
    }
}

/// Every knob as it is in force: a flip may have changed those of a generation.
fn knobs(app: &App, status: &EngineStatus) -> Value {
    let live = status.generation_report(status.generation).map_or(&[][..], |r| &r.knobs);
    let flipped = |s: &Setting| {
        let of_live = live.iter().find(|k| k.name == s.knob.name)?;
        let value = s.knob.parse(&of_live.value).ok().filter(|v| *v != s.value)?;
        let (written, source) = (of_live.value.clone(), Source::Change);
        Some(Setting { knob: s.knob, written, value, source })
    };
    let one = |s: &Setting| {
        let flipped = flipped(s);
        let s = flipped.as_ref().unwrap_or(s);
        json!({
            "name": s.knob.name,
            "flag": format!("--{}", s.knob.flag),
            "value": shown(s),
            "source": s.source.as_str(),
            "default": s.knob.default,
            "shapes": format!("{:?}", s.knob.shapes).to_lowercase(),
            "doc": s.knob.doc,
        })
    };
    app.settings.iter().map(one).collect()
}

const GIB: f64 = (1u64 << 30) as f64;

/// `GET /server_info`: SGLang's shape at the top, ours under `lockstep`.
pub async fn server_info(State(app): State<Shared>) -> Json<Value> {
    let s = app.status();
    let kv_bytes: u64 = s.pools.iter().map(|p| p.bytes_total).sum();
    let capacity = s.capacity_tokens();
    let state = json!({
        "effective_max_running_requests_per_dp": s.running_max,
        "last_gen_throughput": app.load.tokens_per_second(),
        "disaggregation_mode": "null",
        "decode_cuda_graph_bs": s.captured_decode_sizes(),
        "memory_usage": {
            "weight": s.model.weight_bytes as f64 / GIB,
            "kvcache": kv_bytes as f64 / GIB,
            "token_capacity": capacity,
        },
    });
    Json(json!({
        "model_path": s.model.path,
        "served_model_name": app.model_name,
        "tokenizer_path": s.model.path,
        "version": env!("CARGO_PKG_VERSION"),
        "frontend": "lockstep",
        "launch_command": app.launch_command,
        "startup_time": app.started_unix,
        "host": app.settings.text("server.host"),
        "port": app.settings.number("server.port"),
        "device": s.device.name,
        "dtype": s.model.quantization,
        "tp_size": 1,
        "dp_size": 1,
        "disaggregation_mode": "null",
        "weight_version": s.model.weights_digest,
        "context_length": s.model.context_max_tokens,
        "max_running_requests": s.running_max,
        "max_queued_requests": s.queued_max,
        "chunked_prefill_size": s.chunked_prefill_tokens,
        "page_size": s.pools.first().map(|p| p.page_tokens),
        "max_total_num_tokens": capacity,
        "max_req_input_len": u64::from(s.model.context_max_tokens.saturating_sub(1)).min(capacity),
        "internal_states": [state],
        "lockstep": {
            "knobs": knobs(&app, &s),
            "settings_file": app.settings_file,
            "engine": state::engine(&s, app.load.tokens_per_second()),
            "alarms": state::alarms(&s, &app.load),
        },
    }))
}

fn loads_sections(app: &App, s: &EngineStatus, include: &[&str]) -> Value {
    let kv_bytes: u64 = s.pools.iter().map(|p| p.bytes_total).sum();
    let used = s.pools.first().map_or(0, |p| u64::from(p.pages_used) * u64::from(p.page_tokens));
    let mut load = json!({
        "dp_rank": 0,
        "num_running_reqs": s.running,
        "num_waiting_reqs": s.queued,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": s.capacity_tokens(),
        "max_running_requests": s.running_max,
        "max_queued_requests": s.queued_max,
        "token_usage": s.token_usage(),
        "gen_throughput": app.load.tokens_per_second(),
    });
    let all = include.contains(&"all");
    if all || include.contains(&"memory") {
        load["memory"] = json!({
            "weight_gb": s.model.weight_bytes as f64 / GIB,
            "kv_cache_gb": kv_bytes as f64 / GIB,
            "graph_gb": s.device.arena_bytes as f64 / GIB,
            "token_capacity": s.capacity_tokens(),
        });
    }
    if all || include.contains(&"queues") {
        load["queues"] = json!({"waiting": s.queued, "retracted": s.counters.preemptions});
    }
    load
}

const SECTIONS: [&str; 7] = ["all", "core", "memory", "queues", "spec", "lora", "disagg"];

/// `GET /v1/loads?include=core,memory,queues&format=json|prometheus`. Sections of features that
/// this server does not run (spec, lora, disagg) are accepted and absent.
pub async fn loads(
    State(app): State<Shared>,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) =
        query.map_err(|_| ApiError::field("query", "must be include=SECTIONS&format=FORMAT"))?;
    let include = query.get("include").map_or("core", String::as_str);
    let include: Vec<&str> = include.split(',').map(str::trim).collect();
    if let Some(unknown) = include.iter().find(|i| !SECTIONS.contains(i)) {
        let what = format!("has '{unknown}'; it takes {}", SECTIONS.join(", "));
        return Err(ApiError::field("include", what));
    }
    let s = app.status();
    let load = loads_sections(&app, &s, &include);
    match query.get("format").map_or("json", String::as_str) {
        "json" => Ok(Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "timestamp": crate::app::unix_seconds(),
            "dp_rank_count": 1,
            "loads": [load],
        }))
        .into_response()),
        "prometheus" => {
            let text = loads_text(&load);
            Ok(([(header::CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response())
        }
        other => {
            Err(ApiError::field("format", format!("is '{other}'; it takes json or prometheus")))
        }
    }
}

/// The numbers of a load as gauges: `lockstep_load_num_running_reqs{dp_rank="0"} 3`.
fn loads_text(load: &Value) -> String {
    fn walk(prefix: &str, value: &Value, page: &mut String) {
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter().filter(|(key, _)| *key != "dp_rank") {
                    walk(&format!("{prefix}_{key}"), value, page);
                }
            }
            Value::Number(n) => {
                // Writing to a String cannot fail.
                let _ = writeln!(page, "# TYPE {prefix} gauge\n{prefix}{{dp_rank=\"0\"}} {n}");
            }
            _ => {}
        }
    }
    let mut page = String::new();
    walk("lockstep_load", load, &mut page);
    page
}
