//! Our own `/server_info`.

use super::{InForce, Readback, numbers};
use crate::target::Kind;
use serde_json::Value;
use std::collections::BTreeMap;

/// `None` where it is not ours.
pub fn read(info: Value) -> Option<Readback> {
    let engine = info["lockstep"]["engine"].as_object()?;
    let mut r = Readback::none(Kind::Lockstep);
    for knob in info["lockstep"]["knobs"].as_array()? {
        let value = match &knob["value"] {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        let source = knob["source"].as_str().map(str::to_owned);
        r.settings.insert(knob["name"].as_str()?.to_owned(), InForce { value, source });
    }
    r.version = info["version"].as_str().unwrap_or_default().into();
    r.model = info["served_model_name"].as_str().unwrap_or_default().into();
    r.buckets = numbers(&info["internal_states"][0]["decode_cuda_graph_bs"]);
    r.running_max = engine.get("running_max").and_then(Value::as_u64);
    r.pool_tokens = info["max_total_num_tokens"].as_u64();
    r.graph_bytes = engine.get("device").and_then(|d| d["arena_bytes"].as_u64());
    r.started = info["startup_time"].as_u64();
    r.command = info["launch_command"].as_str().unwrap_or_default().into();
    r.alarms = alarms(&info).map(|(name, _)| name.to_owned()).collect();
    r.raw = info;
    Some(r)
}

/// Alarms to act on that are raised, with their words.
pub fn alarms(info: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = info["lockstep"]["alarms"].as_array().into_iter().flatten();
    all.filter(|a| a["level"] == "act")
        .filter_map(|a| Some((a["alarm"].as_str()?, a["words"].as_str()?)))
}

/// Bytes of the arena that each decode bucket of a generation uses, by its size.
pub fn generation_buckets(report: &Value) -> BTreeMap<u32, u64> {
    let one = |b: &Value| {
        let size = b["bucket"].as_str()?.strip_prefix("decode-")?.parse().ok()?;
        Some((size, b["arena_bytes"].as_u64()?))
    };
    report["buckets"].as_array().into_iter().flatten().filter_map(one).collect()
}
