//! llama-server: `/props`, `/slots`, its log.

use super::Readback;
use crate::target::Kind;
use serde_json::{Value, json};

/// Reads the answers.
pub fn read(props: Value, slots: Value, _log: &str) -> Readback {
    let mut r = Readback::none(Kind::LlamaCpp);
    r.version = props["build_info"].as_str().unwrap_or_default().into();
    let path = props["model_path"].as_str().unwrap_or_default();
    r.model = path.rsplit('/').next().unwrap_or_default().into();
    r.set("parallel", &props["total_slots"]);
    r.running_max = props["total_slots"].as_u64();
    // Each slot has its share of the context; all of them together are the pool.
    let per_slot = props["default_generation_settings"]["n_ctx"].as_u64();
    if let (Some(per_slot), Some(n)) = (per_slot, r.running_max) {
        let all: u64 = slots
            .as_array()
            .map_or(per_slot * n, |s| s.iter().filter_map(|s| s["n_ctx"].as_u64()).sum());
        r.set("ctx-per-slot", &json!(per_slot));
        r.pool_tokens = Some(all);
    }
    r.raw = json!({"props": props});
    r
}
