//! What other servers tell of themselves, in their own words: recorded pages of SGLang, vLLM and
//! llama.cpp are served by path, and the gate has to find out what it is talking to.

use lockstep_check::Stop;
use lockstep_check::client::{Client, Target};
use lockstep_check::coverage::{Facts, Samples, ServerKind, Snapshot, Source, between};
use lockstep_check::coverage::{facts, snapshot};
use lockstep_check::run::{Options, Profile, check};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;

/// SGLang 0.5: `/server_info`, shortened to what is read and some of what is not.
const SGLANG_INFO: &str = r#"{"model_path": "Qwen/Qwen3-8B", "tp_size": 2, "dp_size": 1,
    "max_running_requests": null, "cuda_graph_max_bs": 32, "cuda_graph_bs": [1, 2, 4, 8, 16, 32],
    "disable_overlap_schedule": false, "enable_deterministic_inference": false, "status": "ready",
    "max_total_num_tokens": 161721, "version": "0.5.3",
    "internal_states": [{"last_gen_throughput": 83.2, "effective_max_running_requests_per_dp": 48,
        "memory_usage": {"weight": 15.3, "kvcache": 22.2, "token_capacity": 161721, "graph": 1.1}}]}"#;

/// Its `/metrics`: two ranks tell of the same batch.
const SGLANG_METRICS: &str = "\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type=\"unified\",model_name=\"Qwen/Qwen3-8B\",pp_rank=\"0\",tp_rank=\"0\"} 17.0
sglang:num_running_reqs{engine_type=\"unified\",model_name=\"Qwen/Qwen3-8B\",pp_rank=\"0\",tp_rank=\"1\"} 17.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type=\"unified\",model_name=\"Qwen/Qwen3-8B\",pp_rank=\"0\",tp_rank=\"0\"} 79.0
# TYPE sglang:cuda_graph_passes_total counter
sglang:cuda_graph_passes_total{mode=\"decode_cuda_graph\",model_name=\"Qwen/Qwen3-8B\"} 912.0
sglang:cuda_graph_passes_total{mode=\"decode_none\",model_name=\"Qwen/Qwen3-8B\"} 4.0
sglang:cuda_graph_passes_total{mode=\"prefill_none\",model_name=\"Qwen/Qwen3-8B\"} 77.0
";

/// vLLM's `/metrics` with two engines behind one address: each has a batch of its own.
const VLLM_METRICS: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"Qwen/Qwen3-0.6B\"} 12.0
vllm:num_requests_running{engine=\"1\",model_name=\"Qwen/Qwen3-0.6B\"} 9.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"Qwen/Qwen3-0.6B\"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"Qwen/Qwen3-0.6B\"} 0.0312
";

/// vLLM 0.24.0 in its development mode, as an H200 answered, shortened: without a format the
/// configuration is one string.
const VLLM_INFO_TEXT: &str = r#"{"vllm_config": "model='m', speculative_config=None, dtype=torch.bfloat16",
    "vllm_env": {"VLLM_BATCH_INVARIANT": false}, "system_env": {}}"#;
const VLLM_INFO: &str = r#"{"vllm_config": {"model_config": {"max_model_len": 8192},
    "cache_config": {"block_size": 16, "kv_cache_size_tokens": 3229264, "num_gpu_blocks": 201829},
    "scheduler_config": {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
    "compilation_config": {"mode": 0, "cudagraph_mode": [2, 0], "max_cudagraph_capture_size": 32,
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32]}, "kv_transfer_config": null},
    "vllm_env": {"VLLM_BATCH_INVARIANT": false}, "system_env": {}}"#;

const LLAMA_PROPS: &str = r#"{"default_generation_settings": {"id": 0, "n_ctx": 4096},
    "total_slots": 4, "model_path": "m.gguf", "build_info": "b11434-0123abcd"}"#;
const LLAMA_SLOTS: &str = r#"[{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false},
    {"id": 2, "is_processing": true}, {"id": 3, "is_processing": true}]"#;

type Pages = &'static [(&'static str, &'static str)];

/// Serves pages by path, anything else with 404. Ends with the process.
fn serve(pages: Pages) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            lines.take_while(|l| l.as_ref().is_ok_and(|l| !l.is_empty())).for_each(drop);
            let path = first.split(' ').nth(1).unwrap();
            let page = pages.iter().find(|(of, _)| *of == path);
            let (status, body) = page.map_or(("404 Not Found", "no"), |(_, p)| ("200 OK", p));
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    Client::new(Target::parse(&address).unwrap())
}

async fn seen(pages: Pages) -> (Facts, Snapshot) {
    let client = serve(pages);
    let facts = facts(&client).await.unwrap();
    let counted = snapshot(&client, facts.kind).await;
    (facts, counted)
}

fn rows(facts: &Facts, running: u32, sessions: u32) -> (Source, Vec<u32>, Vec<u32>) {
    let (mut samples, none) = (Samples::default(), Snapshot::default());
    (1..=running).for_each(|n| samples.take(n));
    let coverage = between(facts, &none, &none, &samples, sessions, sessions);
    let required = coverage.buckets.iter().filter(|b| b.is_required).map(|b| b.rows).collect();
    (coverage.source, required, coverage.missing().iter().map(|b| b.rows).collect())
}

#[tokio::test]
async fn sglang_tells_its_captured_sizes_and_its_passes() {
    for path in ["/server_info", "/get_server_info"] {
        let pages: Pages = if path == "/server_info" {
            &[("/server_info", SGLANG_INFO), ("/metrics", SGLANG_METRICS)]
        } else {
            &[("/get_server_info", SGLANG_INFO), ("/metrics", SGLANG_METRICS)]
        };
        let (facts, counted) = seen(pages).await;
        assert_eq!((facts.kind, facts.version.as_str()), (ServerKind::Sglang, "0.5.3"));
        assert_eq!((facts.running_max, facts.capacity_tokens), (Some(48), Some(161_721)));
        assert!(!facts.claims_determinism);
        // Both ranks ran the one batch of 17; it was never one of 34.
        assert_eq!((counted.running, counted.passes), (Some(17), Some((912, 4))));
        let (source, required, missing) = rows(&facts, 17, 96);
        assert_eq!(source, Source::Inferred);
        assert_eq!(required, [1, 2, 4, 8, 16, 32]);
        assert_eq!(missing, [0; 0], "17 rows run in the bucket of 32");
    }
}

#[tokio::test]
async fn vllm_tells_how_many_run_and_powers_of_two_stand_for_its_sizes() {
    let (facts, counted) =
        seen(&[("/metrics", VLLM_METRICS), ("/version", r#"{"version": "0.11.0"}"#)]).await;
    assert_eq!((facts.kind, facts.version.as_str()), (ServerKind::Vllm, "0.11.0"));
    assert!(facts.notes.iter().any(|n| n.contains("powers of two")), "{:?}", facts.notes);
    // A step of either engine held its own requests alone.
    assert_eq!(counted.running, Some(12));
    let (source, required, missing) = rows(&facts, 12, 24);
    assert_eq!((source, required), (Source::Inferred, vec![1, 2, 4, 8, 16, 24]));
    assert_eq!(missing, [24]);
}

/// Powers of two stood for them there too, so that a run with no step through 24 was clean.
#[tokio::test]
async fn vllm_tells_its_captured_sizes_in_its_development_mode() {
    let (facts, counted) = seen(&[
        ("/server_info", VLLM_INFO_TEXT),
        ("/server_info?config_format=json", VLLM_INFO),
        ("/metrics", VLLM_METRICS),
        ("/version", r#"{"version":"0.24.0"}"#),
    ])
    .await;
    assert_eq!((facts.kind, facts.version.as_str()), (ServerKind::Vllm, "0.24.0"));
    assert_eq!((facts.running_max, counted.running), (Some(32), Some(12)));
    let (source, required, missing) = rows(&facts, 12, 96);
    assert_eq!((source, required), (Source::Inferred, vec![1, 2, 4, 8, 16, 24, 32]));
    assert_eq!(missing, [24, 32]);
}

#[tokio::test]
async fn llama_cpp_tells_its_slots() {
    let (facts, counted) = seen(&[("/props", LLAMA_PROPS), ("/slots", LLAMA_SLOTS)]).await;
    assert_eq!((facts.kind, facts.running_max), (ServerKind::LlamaCpp, Some(4)));
    assert_eq!(counted.running, Some(3));
    let metrics = "llamacpp:requests_processing 2\n";
    let (_, counted) =
        seen(Box::leak(Box::new([("/props", LLAMA_PROPS), ("/metrics", metrics)]))).await;
    assert_eq!(counted.running, Some(2), "without /slots");
    let (source, required, _) = rows(&facts, 4, 96);
    assert_eq!((source, required), (Source::Inferred, vec![1, 2, 4]));
}

/// A web server that answers was once asked whether it was running.
#[tokio::test]
async fn a_server_without_models_is_told_apart_from_none() {
    let client = serve(&[]);
    let (options, stop) = (Options::of(Profile::Quick), Stop::default());
    let e = check(client, options, Arc::new(|_| ()), stop).await.unwrap_err().to_string();
    assert!(e.contains("404") && e.contains("--model") && !e.contains("running"), "{e}");
}

#[tokio::test]
async fn a_server_that_tells_nothing_is_unknown() {
    let (facts, counted) = seen(&[]).await;
    assert_eq!((facts.kind, counted), (ServerKind::Other, Snapshot::default()));
}
