//! Architecture facts out of `config.json`, in its spellings before and since transformers 5.

use std::path::PathBuf;

use lockstep_flow::Token;
use lockstep_flow::limits::CONTEXT_TOKENS_MAX;
use serde_json::{Map, Value};

use super::ConfigFault;
use crate::error::WeightsError;
use crate::rope::{Pairing, Rope, RopeScaling};
use crate::spec::{AttnBias, Family, LlamaSpec, ModelSpec, SlidingWindow, SpecFault};
use crate::v4;

/// `config.json` and, where there is one, `generation_config.json`.
pub(crate) struct Config {
    pub json: Map<String, Value>,
    pub generation: Option<Map<String, Value>>,
}

/// A fault in a key, or in what the keys say together.
pub(crate) enum ConfigError {
    Config(ConfigFault),
    Spec(SpecFault),
}

impl ConfigError {
    pub fn at(self, file: PathBuf) -> WeightsError {
        match self {
            ConfigError::Config(fault) => WeightsError::Config { file, fault },
            ConfigError::Spec(fault) => WeightsError::Spec { file, fault },
        }
    }
}

impl From<ConfigFault> for ConfigError {
    fn from(fault: ConfigFault) -> ConfigError {
        ConfigError::Config(fault)
    }
}

impl From<SpecFault> for ConfigError {
    fn from(fault: SpecFault) -> ConfigError {
        ConfigError::Spec(fault)
    }
}

impl Config {
    /// The facts, checked against each other. `has_head` says whether the weights have an
    /// `lm_head.weight`, which decides where `tie_word_embeddings` is absent.
    pub fn model_spec(&self, has_head: bool) -> Result<ModelSpec, ConfigError> {
        let json = Keys { map: &self.json, prefix: "" };
        if json.text("model_type")? == Some(v4::config::MODEL_TYPE) {
            return v4::config::spec(&json, self.eos(&json)?).map(ModelSpec::DeepSeekV4);
        }
        let family = Family::from_name(json.need(json.text("model_type")?, "model_type")?)?;
        refuse_other_computations(&json)?;
        let heads = json.need(json.u32("num_attention_heads")?, "num_attention_heads")?;
        let hidden = json.need(json.u32("hidden_size")?, "hidden_size")?;
        let layers = json.need(json.u32("num_hidden_layers")?, "num_hidden_layers")?;
        let kv_heads = match json.u32("num_key_value_heads")? {
            Some(n) => n,
            // What the first Llama had; the other families' defaults are sizes of one model.
            None if family == Family::Llama || json.is_null("num_key_value_heads") => heads,
            None => json.need(None, "num_key_value_heads")?,
        };
        let head_dim = match json.u32("head_dim")? {
            Some(n) => n,
            None if family == Family::Qwen3 => json.need(None, "head_dim")?,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let context_max =
            json.need(json.u32("max_position_embeddings")?, "max_position_embeddings")?;
        let qkv = match family {
            Family::Qwen2 => true,
            Family::Mistral => false,
            Family::Llama | Family::Qwen3 => json.bool("attention_bias")?.unwrap_or(false),
        };
        let spec = LlamaSpec {
            family,
            name: json.text("_name_or_path")?.unwrap_or_default().to_owned(),
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ffn: json.need(json.u32("intermediate_size")?, "intermediate_size")?,
            vocab: json.need(json.u32("vocab_size")?, "vocab_size")?,
            context_max: context_max.min(CONTEXT_TOKENS_MAX),
            norm_eps: json.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: rope(&json, head_dim, context_max)?,
            tied_head: json.bool("tie_word_embeddings")?.unwrap_or(!has_head),
            attn_bias: AttnBias { q: qkv, k: qkv, v: qkv, o: qkv && family != Family::Qwen2 },
            qk_norm: family == Family::Qwen3,
            sliding_window: sliding_window(&json, family, layers)?,
            bos: json.tokens("bos_token_id")?.first().copied(),
            eos: self.eos(&json)?,
            dtype_hint: match json.text("dtype")? {
                Some(dtype) => Some(dtype.to_owned()),
                None => json.text("torch_dtype")?.map(str::to_owned),
            },
        };
        spec.check()?;
        Ok(ModelSpec::Llama(spec))
    }

    /// The generation configuration's list first, which is the one that chat models complete.
    fn eos(&self, json: &Keys<'_>) -> Result<Vec<Token>, ConfigFault> {
        let mut out = match &self.generation {
            Some(map) => Keys { map, prefix: "generation_config." }.tokens("eos_token_id")?,
            None => Vec::new(),
        };
        for token in json.tokens("eos_token_id")? {
            if !out.contains(&token) {
                out.push(token);
            }
        }
        Ok(out)
    }
}

fn refuse_other_computations(json: &Keys<'_>) -> Result<(), ConfigFault> {
    let unsupported = |key: &str, found: String, supported| {
        Err(ConfigFault::Unsupported { key: key.into(), found, supported })
    };
    if let Some(act) = json.text("hidden_act")?.filter(|&a| a != "silu") {
        return unsupported("hidden_act", format!("`{act}`"), "silu");
    }
    if json.bool("mlp_bias")? == Some(true) {
        return unsupported("mlp_bias", "true".into(), "false");
    }
    if json.get("quantization_config").is_some() {
        return unsupported(
            "quantization_config",
            "present".into(),
            "safetensors in F32, F16 or BF16; quantised weights as GGUF",
        );
    }
    if let Some(list) = json.get("architectures") {
        let names: Vec<&str> =
            list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !names.is_empty() && !names.iter().any(|n| n.ends_with("ForCausalLM")) {
            return unsupported("architectures", names.join(", "), "a ...ForCausalLM model");
        }
    }
    Ok(())
}

fn sliding_window(
    json: &Keys<'_>,
    family: Family,
    layers: u32,
) -> Result<Option<SlidingWindow>, ConfigFault> {
    let tokens = json.u32("sliding_window")?;
    let (tokens, first_layer) = match family {
        Family::Llama => return Ok(None),
        Family::Mistral if json.is_null("sliding_window") => return Ok(None),
        Family::Mistral => (tokens.unwrap_or(4096), 0),
        Family::Qwen2 | Family::Qwen3 => {
            if json.bool("use_sliding_window")? != Some(true) || json.is_null("sliding_window") {
                return Ok(None);
            }
            (tokens.unwrap_or(4096), json.u32("max_window_layers")?.unwrap_or(28))
        }
    };
    let first_layer = match json.get("layer_types").and_then(Value::as_array) {
        None => first_layer,
        Some(types) => {
            let full = types.iter().take_while(|t| *t == "full_attention").count();
            if types.iter().skip(full).any(|t| t != "sliding_attention") {
                return Err(ConfigFault::Unsupported {
                    key: "layer_types".into(),
                    found: "another pattern".into(),
                    supported: "full_attention layers followed by sliding_attention layers",
                });
            }
            full as u32
        }
    };
    Ok((first_layer < layers).then_some(SlidingWindow { tokens, first_layer }))
}

fn rope(json: &Keys<'_>, head_dim: u32, context_max: u32) -> Result<Rope, ConfigFault> {
    let nested = match json.object("rope_parameters")? {
        Some(map) => Some((map, "rope_parameters.")),
        None => json.object("rope_scaling")?.map(|map| (map, "rope_scaling.")),
    };
    let empty = Map::new();
    let (map, prefix) = nested.unwrap_or((&empty, "rope_scaling."));
    let nested = Keys { map, prefix };
    let either = |key: &str| match nested.float(key)? {
        Some(v) => Ok(Some(v)),
        None => json.float(key),
    };
    // None of these families rotates a part of a head; one that says so is another model.
    if let Some(part) = either("partial_rotary_factor")?.filter(|&part| part != 1.0) {
        return Err(ConfigFault::Unsupported {
            key: "partial_rotary_factor".into(),
            found: part.to_string(),
            supported: "1",
        });
    }
    Ok(Rope {
        theta: either("rope_theta")?.unwrap_or(10_000.0),
        pairing: Pairing::Half,
        scaling: rope_scaling(&nested, context_max)?,
        rotary_dim: head_dim,
    })
}

fn rope_scaling(keys: &Keys<'_>, context_max: u32) -> Result<RopeScaling, ConfigFault> {
    let kind = match keys.text("rope_type")? {
        Some(kind) => kind,
        None => keys.text("type")?.unwrap_or("default"),
    };
    let need = |key: &str| keys.need(keys.float(key)?, key);
    let original = keys.u32("original_max_position_embeddings")?;
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_context: keys.need(original, "original_max_position_embeddings")?,
        },
        "yarn" => {
            let factor = need("factor")?;
            let mscale = (keys.float("mscale")?, keys.float("mscale_all_dim")?);
            let recommended = |m: f64| (RopeScaling::yarn_attention_factor(factor) - 1.0) * m + 1.0;
            let attention_factor = match (keys.float("attention_factor")?, mscale) {
                (Some(stated), _) => stated,
                (None, (Some(m), Some(all))) if m != 0.0 && all != 0.0 => {
                    recommended(m) / recommended(all)
                }
                (None, _) => recommended(1.0),
            };
            RopeScaling::Yarn {
                factor,
                original_context: original.unwrap_or(context_max),
                beta_fast: keys.float("beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.float("beta_slow")?.unwrap_or(1.0),
                attention_factor,
                truncate: keys.bool("truncate")?.unwrap_or(true),
            }
        }
        other => {
            return Err(ConfigFault::Unsupported {
                key: format!("{}rope_type", keys.prefix),
                found: format!("`{other}`"),
                supported: "default, linear, llama3, yarn",
            });
        }
    })
}

/// Typed access to an object; JSON null counts as absent.
pub(crate) struct Keys<'a> {
    pub map: &'a Map<String, Value>,
    pub prefix: &'static str,
}

impl<'a> Keys<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    fn typed<T>(
        &self,
        key: &str,
        want: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigFault> {
        let Some(v) = self.get(key) else { return Ok(None) };
        read(v).map(Some).ok_or_else(|| {
            let mut found: String = v.to_string().chars().take(60).collect();
            found.insert(0, '`');
            found.push('`');
            ConfigFault::KeyType { key: format!("{}{key}", self.prefix), found, want }
        })
    }

    pub fn u32(&self, key: &str) -> Result<Option<u32>, ConfigFault> {
        self.typed(key, "an integer from 0 to 4294967295", |v| {
            v.as_u64().and_then(|n| u32::try_from(n).ok())
        })
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>, ConfigFault> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, ConfigFault> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigFault> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, ConfigFault> {
        self.typed(key, "an object", Value::as_object)
    }

    /// A token id or a list of them.
    pub fn tokens(&self, key: &str) -> Result<Vec<Token>, ConfigFault> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).map(Token);
        let all = self.typed(key, "a token id or a list of them", |v| match v.as_array() {
            Some(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
            None => id(v).map(|t| vec![t]),
        })?;
        Ok(all.unwrap_or_default())
    }

    pub fn need<T>(&self, found: Option<T>, key: &str) -> Result<T, ConfigFault> {
        found.ok_or_else(|| ConfigFault::KeyMissing { key: format!("{}{key}", self.prefix) })
    }
}
