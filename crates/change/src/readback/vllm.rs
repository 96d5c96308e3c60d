//! vLLM: `/version`, `/v1/models`, `/server_info` of its development mode, its log. Seen live: 0.24;
//! read in its source: 0.33.

use super::{Readback, number_after, numbers, since_start};
use crate::target::Kind;
use serde_json::{Value, json};

/// Each start says it, with its version or below its banner (0.24).
const STARTS: [&str; 2] = ["vLLM API server version", "non-default args:"];
/// `cudagraph_mode` as its numbers, which `/server_info` has: of decode steps, and of the others
/// where that is another.
const MODES: [(&str, &str); 5] = [
    ("0", "NONE"),
    ("1", "PIECEWISE"),
    ("2", "FULL"),
    ("[2,0]", "FULL_DECODE_ONLY"),
    ("[2,1]", "FULL_AND_PIECEWISE"),
];
const GIB: f64 = (1u64 << 30) as f64;

/// Reads what there is: outside the development mode, the log alone tells of captures.
pub fn read(version: &Value, models: &Value, info: Value, log: &str) -> Readback {
    let log = STARTS.iter().fold(log, |log, start| since_start(log, start));
    let mut r = Readback::none(Kind::Vllm);
    r.version = version["version"].as_str().unwrap_or_default().into();
    r.model = models["data"][0]["id"].as_str().unwrap_or_default().into();
    let config = &info["vllm_config"];
    let compilation = &config["compilation_config"];
    r.set("max-num-seqs", &config["scheduler_config"]["max_num_seqs"]);
    r.set("max-num-batched-tokens", &config["scheduler_config"]["max_num_batched_tokens"]);
    r.set("gpu-memory-utilization", &config["cache_config"]["gpu_memory_utilization"]);
    let mode = &compilation["cudagraph_mode"];
    let number = mode.to_string();
    let word = MODES.iter().find(|(is, _)| *is == number);
    r.set("cudagraph-mode", &word.map_or_else(|| mode.clone(), |(_, word)| (*word).into()));
    r.set("max-cudagraph-capture-size", &compilation["max_cudagraph_capture_size"]);
    r.buckets = numbers(&compilation["cudagraph_capture_sizes"]);
    r.running_max = config["scheduler_config"]["max_num_seqs"].as_u64();
    r.pool_tokens = number_after(&log.replace(',', ""), "GPU KV cache size:")
        .map(|n| n as u64)
        .or_else(|| config["cache_config"]["kv_cache_size_tokens"].as_u64());
    let finished = log.rfind("Graph capturing finished").map(|at| &log[at..]);
    let took = finished.and_then(|line| number_after(line.lines().next()?, "took"));
    r.graph_bytes = took.map(|g| (g * GIB) as u64);
    // A side of a disaggregated pair is told by which way its KV goes.
    r.role = match config["kv_transfer_config"]["kv_role"].as_str() {
        Some("kv_producer") => Some("prefill".into()),
        Some("kv_consumer") => Some("decode".into()),
        _ => None,
    };
    r.raw = json!({"version": version, "models": models, "server_info": info});
    r
}
