//! Recorded answers, with the facts of their projects' sources as the oracle.

use super::*;

#[test]
fn sglang_23_tells_its_buckets_and_their_memory() {
    let info = json!({
        "version": "0.5.23", "model_path": "deepseek-ai/DeepSeek-V4", "startup_time": 1790000000.5,
        "max_total_num_tokens": 786432, "max_running_requests": 256, "max_queued_requests": 32,
        "disaggregation_mode": "decode", "cuda_graph_max_bs_decode": 32,
        "launch_command": "python -m sglang.launch_server --cuda-graph-max-bs-decode 32",
        "internal_states": [{
            "effective_max_running_requests_per_dp": 256,
            "decode_cuda_graph_bs": [1, 2, 4, 8, 12, 16, 24, 32],
            "decode_cuda_graph_memory_gb": 0.57,
            "memory_usage": {"weight": 80.0, "kvcache": 30.0, "graph": {"decode": 0.57}},
        }],
    });
    let r = sglang::read(info, "");
    assert_eq!(r.buckets, [1, 2, 4, 8, 12, 16, 24, 32]);
    assert_eq!(r.running_max, Some(256));
    assert_eq!(r.value("cuda-graph-max-bs-decode"), Some("32"));
    assert_eq!(r.role.as_deref(), Some("decode"));
    assert_eq!(r.graph_bytes, Some((0.57 * (1u64 << 30) as f64) as u64));
    assert_eq!(r.started, Some(1_790_000_000));
}

/// 0.5.16 has one number for the graphs' memory and no list: the list is in the log.
#[test]
fn sglang_16_is_read_from_its_log() {
    let info = json!({
        "version": "0.5.16", "model_path": "m", "disaggregation_mode": "null",
        "internal_states": [{"memory_usage": {"graph": 3.91}}],
    });
    let log = "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, \
               bs=[32, 24, 16, 12, 8, 4, 2, 1], avail mem=15.01 GB\n\
               Capture target decode CUDA graph end. elapsed=9.1 s, mem usage=3.91 GB, avail \
               mem=11.10 GB.\n\
               max_total_num_tokens=786432, chunked_prefill_size=8192, max_prefill_tokens=16384, \
               max_running_requests=256, context_len=131072, available_gpu_mem=11.10 GB\n";
    let r = sglang::read(info, log);
    assert_eq!(r.buckets, [1, 2, 4, 8, 12, 16, 24, 32]);
    assert_eq!((r.running_max, r.pool_tokens, r.role), (Some(256), Some(786_432), None));
    assert_eq!(r.graph_bytes, Some((3.91 * (1u64 << 30) as f64) as u64));
}

/// A log goes on over restarts: what the start before had captured was once taken for this one's.
#[test]
fn only_the_last_start_of_a_log_counts() {
    let info = json!({"version": "0.5.16", "model_path": "m", "internal_states": [{}]});
    let start = "server_args=ServerArgs(model_path='m')\n";
    let captured = "Capture target decode CUDA graph begin. bs=[4, 2, 1]\nmem usage=3.91 GB\n";
    let two = format!("{start}{captured}{start}max_running_requests=8, x\n");
    let r = sglang::read(info.clone(), &two);
    assert_eq!((r.buckets.len(), r.graph_bytes, r.running_max), (0, None, Some(8)));
    let r = sglang::read(info, &format!("{two}{start}{captured}"));
    assert_eq!(r.buckets, [1, 2, 4]);
    let captured = "Graph capturing finished in 22 secs, took 2.51 GiB\n";
    let log = format!("{captured}INFO vLLM API server version 0.33.0\n");
    let pair = json!({"vllm_config": {"kv_transfer_config": {"kv_role": "kv_consumer"}}});
    let r = vllm::read(&Value::Null, &Value::Null, pair, &log);
    assert_eq!((r.graph_bytes, r.role.as_deref()), (None, Some("decode")));
}

#[test]
fn vllm_is_read_with_and_without_its_development_mode() {
    let version = json!({"version": "0.33.0"});
    let models = json!({"data": [{"id": "m", "owned_by": "vllm"}]});
    let log = "INFO GPU KV cache size: 1,234,560 tokens\n\
               INFO Graph capturing finished in 22 secs, took 2.51 GiB\n";
    let r = vllm::read(&version, &models, Value::Null, log);
    assert_eq!((r.version.as_str(), r.buckets.len()), ("0.33.0", 0));
    assert_eq!(r.pool_tokens, Some(1_234_560));
    assert_eq!(r.graph_bytes, Some((2.51 * (1u64 << 30) as f64) as u64));
    let info = json!({"vllm_config": {
        "scheduler_config": {"max_num_seqs": 256},
        "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE",
                               "cudagraph_capture_sizes": [8, 4, 2, 1],
                               "max_cudagraph_capture_size": 8},
    }});
    let r = vllm::read(&version, &models, info, log);
    assert_eq!((r.buckets, r.running_max), (vec![1, 2, 4, 8], Some(256)));
}

/// As vLLM 0.24.0 answered and wrote on an H200, restarted by a change: its log has no "API server
/// version", so that captures of the start before were taken for those of this one.
#[test]
fn vllm_s_last_start_is_the_one_that_is_read() {
    let version = json!({"version": "0.24.0"});
    let models = json!({"data": [{"id": "smollm2", "owned_by": "vllm"}]});
    let start = "(APIServer pid=691) INFO 11-30 12:13:53 [api_utils.py:339]  version 0.24.0\n\
                 (APIServer pid=691) INFO 11-30 12:13:53 [api_utils.py:273] non-default args: {}\n";
    let captured = "(EngineCore pid=1099) INFO 11-30 12:14:44 [model_runner.py:726] Graph \
                    capturing finished in 1 secs, took 0.09 GiB\n";
    let info = json!({"vllm_config": {
        "scheduler_config": {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
        "cache_config": {"gpu_memory_utilization": 0.5, "kv_cache_size_tokens": 3_229_264},
        "compilation_config": {"cudagraph_mode": [2, 0], "max_cudagraph_capture_size": 32,
                               "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32]},
    }});
    let once = format!("{start}{captured}");
    let r = vllm::read(&version, &models, info.clone(), &once);
    assert_eq!(r.graph_bytes, Some(96_636_764));
    assert_eq!((r.pool_tokens, r.running_max), (Some(3_229_264), Some(32)));
    assert_eq!(r.value("cudagraph-mode"), Some("FULL_DECODE_ONLY"));
    assert_eq!(r.buckets, [1, 2, 4, 8, 16, 24, 32]);
    let r = vllm::read(&version, &models, info, &format!("{once}{start}"));
    assert_eq!(r.graph_bytes, None);
}

#[test]
fn llama_server_tells_its_slots() {
    let props = json!({
        "total_slots": 4, "model_path": "models/a.gguf", "build_info": "b11434-abc",
        "default_generation_settings": {"n_ctx": 2048},
    });
    let slots = json!([{"n_ctx": 2048}, {"n_ctx": 2048}, {"n_ctx": 2048}, {"n_ctx": 2048}]);
    let r = llama::read(props, slots, "");
    assert_eq!((r.value("parallel"), r.pool_tokens), (Some("4"), Some(8192)));
    assert_eq!(r.model, "a.gguf");
}
