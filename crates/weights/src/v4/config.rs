//! DeepSeek-V4's `config.json`.

use lockstep_flow::Token;
use lockstep_flow::limits::CONTEXT_TOKENS_MAX;
use serde_json::{Map, Value};

use super::spec::{Compression, DeepSeekV4Spec};
use crate::hf::{ConfigError, ConfigFault, Keys};
use crate::rope::{Pairing, Rope, RopeScaling};

/// The value of `model_type`.
pub(crate) const MODEL_TYPE: &str = "deepseek_v4";

/// The facts that `json` states; `eos` is what both configuration files say of it.
pub(crate) fn spec(json: &Keys<'_>, eos: Vec<Token>) -> Result<DeepSeekV4Spec, ConfigError> {
    refuse_other_computations(json)?;
    let need = |key: &str| json.need(json.u32(key)?, key);
    let layers = need("num_hidden_layers")?;
    let rotary_dim = need("qk_rope_head_dim")?;
    let context_max = need("max_position_embeddings")?;
    let mtp_blocks = json.u32("num_nextn_predict_layers")?.unwrap_or(0);
    let plain =
        |theta| Rope { theta, pairing: Pairing::Adjacent, scaling: RopeScaling::None, rotary_dim };
    let rope = plain(json.float("rope_theta")?.unwrap_or(10_000.0));
    let theta = json.float("compress_rope_theta")?.unwrap_or(160_000.0);
    let compress_rope = Rope { scaling: scaling(json, context_max)?, ..plain(theta) };
    let spec = DeepSeekV4Spec {
        name: json.text("_name_or_path")?.unwrap_or_default().to_owned(),
        layers,
        hidden: need("hidden_size")?,
        heads: need("num_attention_heads")?,
        head_dim: need("head_dim")?,
        rotary_dim,
        q_lora: need("q_lora_rank")?,
        o_groups: need("o_groups")?,
        o_lora: need("o_lora_rank")?,
        window: need("sliding_window")?,
        compression: compression(json, layers, mtp_blocks)?,
        index_heads: need("index_n_heads")?,
        index_head_dim: need("index_head_dim")?,
        index_topk: need("index_topk")?,
        experts: need("n_routed_experts")?,
        experts_per_token: need("num_experts_per_tok")?,
        ffn: need("moe_intermediate_size")?,
        hash_layers: json.u32("num_hash_layers")?.unwrap_or(0).min(layers),
        routed_scaling: json.float("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        swiglu_limit: json.need(json.float("swiglu_limit")?, "swiglu_limit")? as f32,
        streams: need("hc_mult")?,
        sinkhorn_iters: need("hc_sinkhorn_iters")?,
        hyper_eps: json.float("hc_eps")?.unwrap_or(1e-6) as f32,
        mtp_blocks,
        vocab: need("vocab_size")?,
        context_max: context_max.min(CONTEXT_TOKENS_MAX),
        norm_eps: json.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope,
        compress_rope,
        bos: json.tokens("bos_token_id")?.first().copied(),
        eos,
        dtype_hint: match json.text("dtype")? {
            Some(dtype) => Some(dtype.to_owned()),
            None => json.text("torch_dtype")?.map(str::to_owned),
        },
    };
    spec.check()?;
    Ok(spec)
}

/// What a key must say where it is there at all.
fn refuse_other_computations(json: &Keys<'_>) -> Result<(), ConfigFault> {
    let texts =
        [("scoring_func", "sqrtsoftplus"), ("topk_method", "noaux_tc"), ("hidden_act", "silu")];
    for (key, supported) in texts {
        if let Some(found) = json.text(key)?.filter(|&v| v != supported) {
            return unsupported(key, format!("`{found}`"), supported);
        }
    }
    let flags = [
        ("norm_topk_prob", true, "true"),
        ("tie_word_embeddings", false, "false"),
        ("attention_bias", false, "false"),
        ("mlp_bias", false, "false"),
    ];
    for (key, wanted, supported) in flags {
        if let Some(found) = json.bool(key)?.filter(|&v| v != wanted) {
            return unsupported(key, found.to_string(), supported);
        }
    }
    if let Some(map) = json.object("quantization_config")? {
        let keys = Keys { map, prefix: "quantization_config." };
        if let Some(found) = keys.text("scale_fmt")?.filter(|&v| v != "ue8m0") {
            return unsupported("quantization_config.scale_fmt", format!("`{found}`"), "ue8m0");
        }
        let block = keys.get("weight_block_size");
        if let Some(found) = block.filter(|b| **b != serde_json::json!([128, 128])) {
            let key = "quantization_config.weight_block_size";
            return unsupported(key, found.to_string(), "[128, 128]");
        }
    }
    for (key, supported) in [("n_shared_experts", "1"), ("num_key_value_heads", "1")] {
        if let Some(found) = json.u32(key)?.filter(|&n| n != 1) {
            return unsupported(key, found.to_string(), supported);
        }
    }
    Ok(())
}

fn unsupported<T>(key: &str, found: String, supported: &'static str) -> Result<T, ConfigFault> {
    Err(ConfigFault::Unsupported { key: key.into(), found, supported })
}

/// The entries of `compress_ratios` that belong to layers; those of prediction blocks follow and
/// must be window-only.
fn compression(json: &Keys<'_>, layers: u32, mtp: u32) -> Result<Vec<Compression>, ConfigFault> {
    let key = "compress_ratios";
    let list = json.need(json.get(key).and_then(Value::as_array), key)?;
    let wanted = layers as usize;
    if list.len() != wanted && list.len() != wanted + mtp as usize {
        return unsupported(
            key,
            format!("a list of {} entries", list.len()),
            "an entry for each layer, then perhaps one for each prediction block",
        );
    }
    let of = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let mut out = Vec::with_capacity(list.len());
    for v in list {
        match of(v).and_then(Compression::from_ratio) {
            Some(c) => out.push(c),
            None => return unsupported(key, format!("an entry `{v}`"), "0, 4 and 128"),
        }
    }
    if out[wanted..].iter().any(|c| *c != Compression::Window) {
        return unsupported(key, "a compressed prediction block".into(), "0 for those");
    }
    out.truncate(wanted);
    Ok(out)
}

/// YaRN without its factor on sine and cosine: the reference scales no magnitude.
fn scaling(json: &Keys<'_>, context_max: u32) -> Result<RopeScaling, ConfigFault> {
    let empty = Map::new();
    let map = json.object("rope_scaling")?.unwrap_or(&empty);
    let keys = Keys { map, prefix: "rope_scaling." };
    let kind = match keys.text("rope_type")? {
        Some(kind) => kind,
        None => keys.text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: keys.need(keys.float("factor")?, "factor")?,
            original_context: keys.u32("original_max_position_embeddings")?.unwrap_or(context_max),
            beta_fast: keys.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.float("beta_slow")?.unwrap_or(1.0),
            attention_factor: 1.0,
            truncate: true,
        }),
        other => unsupported("rope_scaling.type", format!("`{other}`"), "default, yarn"),
    }
}
