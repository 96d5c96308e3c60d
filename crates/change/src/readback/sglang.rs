//! SGLang: `/server_info` and its log, 0.5.11 to 0.5.23.

use super::{Readback, list_after, number_after, numbers, since_start};
use crate::target::Kind;
use serde_json::Value;

/// Resolved arguments that are settings, as the answer spells them.
const SETTINGS: [&str; 14] = [
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "max_running_requests",
    "max_queued_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "page_size",
    "disaggregation_mode",
    "tp_size",
    "schedule_policy",
    "num_continuous_decode_steps",
    "disable_cuda_graph",
];
/// Begins the line with which each start tells its arguments.
const START: &str = "server_args=ServerArgs(";
const GB: f64 = (1u64 << 30) as f64;

/// Reads the answer; what it does not tell is looked for in the log.
pub fn read(info: Value, log: &str) -> Readback {
    let log = since_start(log, START);
    let mut r = Readback::none(Kind::Sglang);
    let state = info["internal_states"][0].clone();
    for name in SETTINGS {
        let value = if info[name].is_null() { &state[name] } else { &info[name] };
        r.set(&name.replace('_', "-"), value);
    }
    r.version = info["version"].as_str().unwrap_or_default().into();
    let model = info["served_model_name"].as_str().or(info["model_path"].as_str());
    r.model = model.unwrap_or_default().into();
    r.buckets = numbers(&state["decode_cuda_graph_bs"]);
    if r.buckets.is_empty() {
        // The end line has the list since 0.5.2x, the begin line before.
        r.buckets = list_after(log, "bs=").unwrap_or_default();
    }
    r.running_max = state["effective_max_running_requests_per_dp"]
        .as_u64()
        .or(info["max_running_requests"].as_u64())
        .or(number_after(log, "max_running_requests=").map(|n| n as u64));
    r.pool_tokens =
        info["max_total_num_tokens"]
            .as_u64()
            .or(number_after(log, "max_total_num_tokens=").map(|n| n as u64));
    let graph = &state["memory_usage"]["graph"];
    let gigabytes = state["decode_cuda_graph_memory_gb"]
        .as_f64()
        .or(graph["decode"].as_f64())
        // A single number up to 0.5.16.
        .or(graph.as_f64())
        .or(number_after(log, "mem usage="));
    r.graph_bytes = gigabytes.map(|g| (g * GB) as u64);
    let role = info["disaggregation_mode"].as_str().filter(|m| *m != "null");
    r.role = role.map(str::to_owned);
    r.started = info["startup_time"].as_f64().map(|s| s as u64);
    r.command = info["launch_command"].as_str().unwrap_or_default().into();
    r.raw = info;
    r
}
