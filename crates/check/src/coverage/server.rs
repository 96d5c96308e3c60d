//! What a server tells of itself: ours, SGLang, vLLM, llama.cpp, or nothing.

use super::metrics;
use crate::client::{Client, Outcome};
use serde_json::Value;
use std::collections::BTreeMap;

/// Which server it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerKind {
    /// Ours.
    Lockstep,
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// llama.cpp's llama-server.
    LlamaCpp,
    /// Any other.
    Other,
}

impl ServerKind {
    /// Its word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            ServerKind::Lockstep => "lockstep",
            ServerKind::Sglang => "sglang",
            ServerKind::Vllm => "vllm",
            ServerKind::LlamaCpp => "llama.cpp",
            ServerKind::Other => "unknown",
        }
    }
}

/// What stays the same while a run lasts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Which server it is.
    pub kind: ServerKind,
    /// Its version, where it says.
    pub version: String,
    /// Whether it claims the same answer alone and in a crowd.
    pub claims_determinism: bool,
    /// Requests that it runs at once, at most.
    pub running_max: Option<u32>,
    /// Decode buckets with whether they are captured, ascending; empty where it lists none.
    pub buckets: Vec<(u32, Option<bool>)>,
    /// Tokens that its pool holds.
    pub capacity_tokens: Option<u64>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Facts {
    /// Of a server that says nothing.
    pub fn unknown() -> Facts {
        Facts {
            kind: ServerKind::Other,
            version: String::new(),
            claims_determinism: false,
            running_max: None,
            buckets: Vec::new(),
            capacity_tokens: None,
            notes: Vec::new(),
        }
    }
}

/// What a server counts, at one moment.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Snapshot {
    /// Requests that run.
    pub running: Option<u32>,
    /// Decode steps, captured and eager.
    pub passes: Option<(u64, u64)>,
    /// Steps by decode bucket, captured and eager together.
    pub bucket_steps: BTreeMap<u32, u64>,
    /// The generation that counts them.
    pub generation: u64,
    /// When its process started, in its own words.
    pub started: Option<u64>,
    /// A count that never falls while one process lives, of a server that does not say when that
    /// started.
    pub grows: Option<u64>,
}

impl Snapshot {
    /// Whether the server told anything at all.
    pub fn is_told(&self) -> bool {
        *self != Snapshot::default()
    }
}

/// Finds out what it is. An error only where nothing answers at all.
pub async fn facts(client: &Client) -> Result<Facts, Outcome> {
    for path in ["/server_info", "/get_server_info"] {
        let reply = client.get(path).await?;
        let Some(info) = reply.json().filter(|_| reply.status == 200) else { continue };
        if info["lockstep"]["engine"].is_object() {
            return Ok(lockstep(&info));
        }
        if info["internal_states"].is_array() || info.get("max_total_num_tokens").is_some() {
            return Ok(sglang(&info));
        }
    }
    if let Some(props) = get_json(client, "/props").await
        && (props.get("total_slots").is_some() || props.get("build_info").is_some())
    {
        return Ok(llama(&props));
    }
    let page = get_text(client, "/metrics").await.unwrap_or_default();
    if page.contains("vllm:") {
        let version = get_json(client, "/version").await.unwrap_or(Value::Null);
        // There in its development mode alone; without the format it is one long string.
        let info = get_json(client, "/server_info?config_format=json").await;
        return Ok(vllm(&version, &info.unwrap_or(Value::Null), &page));
    }
    Ok(Facts::unknown())
}

async fn get_json(client: &Client, path: &str) -> Option<Value> {
    let reply = client.get(path).await.ok()?;
    reply.json().filter(|_| reply.status == 200)
}

async fn get_text(client: &Client, path: &str) -> Option<String> {
    let reply = client.get(path).await.ok().filter(|r| r.status == 200)?;
    String::from_utf8(reply.body).ok()
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").chars().take(80).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(4096)
}

fn lockstep(info: &Value) -> Facts {
    let engine = &info["lockstep"]["engine"];
    let decode = list(&engine["buckets"]).filter(|b| b["decode"] == true);
    let mut buckets: Vec<(u32, Option<bool>)> =
        decode.filter_map(|b| Some((number(&b["seqs"])?, Some(b["mode"] == "captured")))).collect();
    buckets.sort_unstable();
    buckets.dedup();
    let alarms = list(&info["lockstep"]["alarms"]);
    Facts {
        kind: ServerKind::Lockstep,
        version: text(&info["version"]),
        claims_determinism: true,
        running_max: number(&engine["running_max"]),
        buckets,
        capacity_tokens: info["max_total_num_tokens"].as_u64(),
        notes: alarms
            .map(|a| format!("its alarm {}: {}", text(&a["alarm"]), text(&a["words"])))
            .collect(),
    }
}

fn sglang(info: &Value) -> Facts {
    let state = &info["internal_states"][0];
    let first = |name: &str| {
        [&state[name], &info[name]].into_iter().find(|v| !v.is_null()).unwrap_or(&Value::Null)
    };
    let sizes = ["decode_cuda_graph_bs", "cuda_graph_bs"].map(first);
    let sizes = sizes.into_iter().find(|v| v.is_array()).unwrap_or(&Value::Null);
    let mut buckets: Vec<(u32, Option<bool>)> =
        list(sizes).filter_map(|v| Some((number(v)?, Some(true)))).collect();
    buckets.sort_unstable();
    let limits = ["effective_max_running_requests_per_dp", "max_running_requests"].map(first);
    let mut notes = Vec::new();
    if buckets.is_empty() {
        notes
            .push("it does not list its captured batch sizes; powers of two stand for them".into());
    }
    Facts {
        kind: ServerKind::Sglang,
        version: text(&info["version"]),
        claims_determinism: *first("enable_deterministic_inference") == true,
        running_max: limits.into_iter().find_map(number),
        buckets,
        capacity_tokens: info["max_total_num_tokens"].as_u64(),
        notes,
    }
}

fn llama(props: &Value) -> Facts {
    Facts {
        kind: ServerKind::LlamaCpp,
        version: text(&props["build_info"]),
        running_max: number(&props["total_slots"]),
        capacity_tokens: props["default_generation_settings"]["n_ctx"].as_u64(),
        ..Facts::unknown()
    }
}

/// vLLM 0.24 tells its captured sizes in its development mode (`VLLM_SERVER_DEV_MODE=1`), the size
/// of its pool on every metrics page.
fn vllm(version: &Value, info: &Value, page: &str) -> Facts {
    let config = &info["vllm_config"];
    let compilation = &config["compilation_config"];
    let mode = &compilation["cudagraph_mode"];
    // 0 is NONE, 1 PIECEWISE, 2 FULL; of a pair the first is that of decode steps.
    let is_captured = *mode != 0 && *mode != "NONE" && mode[0] != 0;
    let sizes = list(&compilation["cudagraph_capture_sizes"]);
    let mut buckets: Vec<(u32, Option<bool>)> =
        sizes.filter_map(|v| Some((number(v)?, Some(is_captured)))).collect();
    buckets.sort_unstable();
    let pool = metrics::label(page, "vllm:cache_config_info", "kv_cache_size_tokens");
    let mut notes = Vec::new();
    if buckets.is_empty() {
        notes.push(
            "it does not tell its captured sizes, which it does with VLLM_SERVER_DEV_MODE=1; \
             powers of two stand for them"
                .into(),
        );
    }
    Facts {
        kind: ServerKind::Vllm,
        version: text(&version["version"]),
        claims_determinism: info["vllm_env"]["VLLM_BATCH_INVARIANT"] == true,
        running_max: number(&config["scheduler_config"]["max_num_seqs"]),
        buckets,
        capacity_tokens: pool.and_then(|n| n.parse().ok()),
        notes,
    }
}

/// What it counts now. A server that does not answer counts nothing.
pub async fn snapshot(client: &Client, kind: ServerKind) -> Snapshot {
    match kind {
        ServerKind::Lockstep => {
            let info = get_json(client, "/server_info").await.unwrap_or(Value::Null);
            let counts = lockstep_counts(&info["lockstep"]["engine"]);
            Snapshot { started: info["startup_time"].as_u64(), ..counts }
        }
        ServerKind::Sglang => {
            sglang_counts(&get_text(client, "/metrics").await.unwrap_or_default())
        }
        ServerKind::Vllm => {
            let page = get_text(client, "/metrics").await.unwrap_or_default();
            vllm_counts(&page)
        }
        ServerKind::LlamaCpp => llama_counts(client).await,
        ServerKind::Other => Snapshot::default(),
    }
}

fn lockstep_counts(engine: &Value) -> Snapshot {
    if !engine.is_object() {
        return Snapshot::default();
    }
    let mut bucket_steps = BTreeMap::new();
    for bucket in list(&engine["buckets"]).filter(|b| b["decode"] == true) {
        let count = |name: &str| bucket[name].as_u64().unwrap_or(0);
        if let Some(rows) = number(&bucket["seqs"]) {
            *bucket_steps.entry(rows).or_default() += count("replays") + count("eager_steps");
        }
    }
    let total = |name: &str| engine["counters"][name].as_u64();
    let passes = total("decode_steps")
        .zip(total("decode_steps_captured"))
        .map(|(all, captured)| (captured, all.saturating_sub(captured)));
    Snapshot {
        running: number(&engine["running"]),
        passes,
        bucket_steps,
        generation: engine["generation"].as_u64().unwrap_or(0),
        started: None,
        grows: None,
    }
}

fn sglang_counts(page: &str) -> Snapshot {
    // Ranks tell of the same batch, replicas each of its own: a step never held the sum.
    let running = metrics::largest(page, "sglang:num_running_reqs", &[]);
    let pass = |mode| metrics::sum(page, "sglang:cuda_graph_passes_total", &[mode]);
    let passes = pass("mode=\"decode_cuda_graph\"")
        .map(|captured| (captured as u64, pass("mode=\"decode_none\"").unwrap_or(0.0) as u64));
    let grows = metrics::sum(page, "sglang:generation_tokens_total", &[]).map(|n| n as u64);
    Snapshot { running: running.map(|n| n as u32), passes, grows, ..Snapshot::default() }
}

fn vllm_counts(page: &str) -> Snapshot {
    let running = metrics::largest(page, "vllm:num_requests_running", &[]);
    let grows = metrics::sum(page, "vllm:generation_tokens_total", &[]).map(|n| n as u64);
    Snapshot { running: running.map(|n| n as u32), grows, ..Snapshot::default() }
}

/// Slots that are busy; else the gauge of `/metrics`, where it is turned on. The numbers of the slots'
/// tasks fall while one process lives, so they tell of no restart.
async fn llama_counts(client: &Client) -> Snapshot {
    let slots = get_json(client, "/slots").await.unwrap_or(Value::Null);
    if slots.is_array() {
        let busy = list(&slots).filter(|s| s["is_processing"] == true || s["state"] == 1);
        return Snapshot { running: u32::try_from(busy.count()).ok(), ..Snapshot::default() };
    }
    let page = get_text(client, "/metrics").await.unwrap_or_default();
    let running = metrics::sum(&page, "llamacpp:requests_processing", &[]).map(|n| n as u32);
    let grows = metrics::sum(&page, "llamacpp:tokens_predicted_total", &[]).map(|n| n as u64);
    Snapshot { running, grows, ..Snapshot::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn our_buckets_are_read_with_their_steps() {
        let engine = json!({"running": 3, "running_max": 8, "generation": 2,
        "counters": {"decode_steps": 10, "decode_steps_captured": 9},
        "buckets": [
            {"bucket": "decode-1", "decode": true, "seqs": 1, "mode": "captured",
             "replays": 5, "eager_steps": 1},
            {"bucket": "prefill-64", "decode": false, "seqs": 1, "mode": "captured",
             "replays": 50, "eager_steps": 1},
            {"bucket": "decode-8", "decode": true, "seqs": 8, "mode": "eager",
             "replays": 0, "eager_steps": 4},
        ]});
        let counts = lockstep_counts(&engine);
        assert_eq!(counts.bucket_steps, BTreeMap::from([(1, 6), (8, 4)]));
        assert_eq!((counts.passes, counts.generation), (Some((9, 1)), 2));
        let facts = lockstep(&json!({"lockstep": {"engine": engine}}));
        assert_eq!(facts.buckets, [(1, Some(true)), (8, Some(false))]);
        assert!(facts.claims_determinism);
    }

    #[test]
    fn sglang_s_two_forms_are_read() {
        let new = json!({"internal_states": [{"decode_cuda_graph_bs": [4, 1, 2],
            "effective_max_running_requests_per_dp": 48}], "version": "0.5.23",
            "enable_deterministic_inference": true});
        let facts = sglang(&new);
        assert_eq!(facts.buckets.iter().map(|b| b.0).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!((facts.running_max, facts.claims_determinism), (Some(48), true));
        let old = sglang(&json!({"max_total_num_tokens": 5, "cuda_graph_bs": [1, 2]}));
        assert_eq!((old.buckets.len(), old.claims_determinism), (2, false));
        let page = "sglang:num_running_reqs{a=\"b\"} 7.0\n\
                    sglang:cuda_graph_passes_total{mode=\"decode_cuda_graph\"} 90\n\
                    sglang:cuda_graph_passes_total{mode=\"decode_none\"} 2\n";
        let counts = sglang_counts(page);
        assert_eq!((counts.running, counts.passes), (Some(7), Some((90, 2))));
    }

    #[test]
    fn what_only_grows_is_read_of_servers_that_do_not_say_when_they_started() {
        let page = "vllm:generation_tokens_total{engine=\"0\"} 40.0\n\
                    vllm:generation_tokens_total{engine=\"1\"} 2.0\n";
        assert_eq!(vllm_counts(page).grows, Some(42));
        let page = "sglang:generation_tokens_total{a=\"b\"} 7\n";
        assert_eq!(sglang_counts(page).grows, Some(7));
    }

    /// As vLLM 0.24.0 answered on an H200; powers of two stood for its sizes, without 24.
    #[test]
    fn vllm_s_captured_sizes_are_read_where_it_tells_them() {
        let version = json!({"version": "0.24.0"});
        let page = "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2\"} 0.0\n\
                    vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"16\",\
                    engine=\"0\",kv_cache_size_tokens=\"3229264\",num_gpu_blocks=\"201829\"} 1.0\n";
        let told = |mode: Value| {
            let info = json!({
                "vllm_config": {
                    "scheduler_config": {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
                    "compilation_config": {"mode": 0, "cudagraph_mode": mode,
                        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32],
                        "max_cudagraph_capture_size": 32},
                },
                "vllm_env": {"VLLM_BATCH_INVARIANT": false},
            });
            vllm(&version, &info, page)
        };
        let facts = told(json!([2, 0]));
        let sizes: Vec<u32> = facts.buckets.iter().map(|b| b.0).collect();
        assert_eq!(sizes, [1, 2, 4, 8, 16, 24, 32]);
        assert!(facts.buckets.iter().all(|b| b.1 == Some(true)));
        assert_eq!((facts.running_max, facts.capacity_tokens), (Some(32), Some(3_229_264)));
        assert!(!facts.claims_determinism && facts.notes.is_empty());
        for eager in [json!(0), json!("NONE"), json!([0, 0])] {
            assert!(told(eager).buckets.iter().all(|b| b.1 == Some(false)));
        }
        let silent = vllm(&version, &Value::Null, page);
        assert_eq!((silent.version.as_str(), silent.buckets.len()), ("0.24.0", 0));
        assert!(silent.notes[0].contains("VLLM_SERVER_DEV_MODE=1"), "{:?}", silent.notes);
        assert_eq!(silent.capacity_tokens, Some(3_229_264));
    }
}
