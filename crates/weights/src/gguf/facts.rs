//! Architecture facts out of a GGUF file's metadata.

use lockstep_flow::Token;

use super::{GgufFault, GgufHeader, Value};
use crate::role::{LayerRole, Role};
use crate::rope::{Pairing, Rope, RopeScaling};
use crate::spec::{AttnBias, Family, LlamaSpec, ModelSpec, SlidingWindow, SpecFault};

/// A fault in what the metadata says: in a key, or in what the keys say together.
pub(crate) enum FactsFault {
    Gguf(GgufFault),
    Spec(SpecFault),
}

impl From<GgufFault> for FactsFault {
    fn from(fault: GgufFault) -> FactsFault {
        FactsFault::Gguf(fault)
    }
}

impl From<SpecFault> for FactsFault {
    fn from(fault: SpecFault) -> FactsFault {
        FactsFault::Spec(fault)
    }
}

/// Keys below `general.architecture`'s name.
struct Keys<'a> {
    header: &'a GgufHeader,
    file: &'a [u8],
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn u32(&self, name: &str) -> Result<Option<u32>, GgufFault> {
        self.header.metadata.u32(&self.key(name))
    }

    fn need_u32(&self, name: &str) -> Result<u32, GgufFault> {
        self.u32(name)?.ok_or_else(|| GgufFault::KeyMissing { key: self.key(name) })
    }

    fn float(&self, name: &str) -> Result<Option<f64>, GgufFault> {
        self.header.metadata.float(&self.key(name))
    }

    /// A number, or an array with the same number for each layer.
    fn per_layer_u32(&self, name: &str) -> Result<Option<u32>, GgufFault> {
        let key = self.key(name);
        let Some(Value::Array { .. }) = self.header.metadata.get(&key) else {
            return self.u32(name);
        };
        let all = self.header.metadata.ints(self.file, &key)?.unwrap_or_default();
        match all.first() {
            Some(&n) if n >= 0 && all.iter().all(|&m| m == n) => Ok(Some(n as u32)),
            _ => Err(GgufFault::PerLayer { key }),
        }
    }

    /// A key that has to be absent or to have this value.
    fn expect(&self, name: &str, ok: impl Fn(&Value) -> bool, supported: &'static str) -> Fault {
        let key = self.key(name);
        match self.header.metadata.get(&key) {
            Some(v) if !ok(v) => {
                let found = match v {
                    Value::Uint(_, n) => n.to_string(),
                    Value::Int(_, n) => n.to_string(),
                    Value::Float(_, n) => n.to_string(),
                    Value::Bool(b) => b.to_string(),
                    other => other.kind().to_string(),
                };
                Err(GgufFault::Unsupported { key, found, supported })
            }
            _ => Ok(()),
        }
    }
}

type Fault = Result<(), GgufFault>;

/// The facts of a file, checked against each other. `rope_factors` are the values of
/// `rope_freqs.weight` where the file has one.
pub(crate) fn model_spec(
    header: &GgufHeader,
    file: &[u8],
    rope_factors: Option<Vec<f32>>,
) -> Result<ModelSpec, FactsFault> {
    let key = "general.architecture";
    let arch = header
        .metadata
        .string(file, key)?
        .ok_or_else(|| GgufFault::KeyMissing { key: key.into() })?;
    let family = Family::from_name(arch)?;
    let keys = Keys { header, file, arch };
    refuse_other_computations(&keys)?;

    let heads = keys
        .per_layer_u32("attention.head_count")?
        .ok_or_else(|| GgufFault::KeyMissing { key: keys.key("attention.head_count") })?;
    let hidden = keys.need_u32("embedding_length")?;
    let ffn = keys
        .per_layer_u32("feed_forward_length")?
        .ok_or_else(|| GgufFault::KeyMissing { key: keys.key("feed_forward_length") })?;
    let head_dim = match keys.u32("attention.key_length")? {
        Some(n) => n,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    keys.expect(
        "attention.value_length",
        |v| matches!(v, Value::Uint(_, n) if *n == u64::from(head_dim)),
        "the same as attention.key_length",
    )?;
    let norm_eps = keys.float("attention.layer_norm_rms_epsilon")?.ok_or_else(|| {
        GgufFault::KeyMissing { key: keys.key("attention.layer_norm_rms_epsilon") }
    })?;
    let has = |role| header.tensors.iter().any(|t: &super::GgufTensor| t.name == role);
    let has_layer0 = |role| has(Role::Layer(0, role).gguf_name());
    let context_max = keys.need_u32("context_length")?;
    let spec = LlamaSpec {
        family,
        name: header.metadata.string(file, "general.name")?.unwrap_or_default().to_owned(),
        layers: keys.need_u32("block_count")?,
        hidden,
        heads,
        kv_heads: keys.per_layer_u32("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn,
        vocab: vocab(&keys)?,
        context_max: context_max.min(lockstep_flow::limits::CONTEXT_TOKENS_MAX),
        norm_eps: norm_eps as f32,
        rope: rope(&keys, family, head_dim, context_max, rope_factors)?,
        tied_head: !has(Role::Head.gguf_name()),
        attn_bias: AttnBias {
            q: family == Family::Qwen2 || has_layer0(LayerRole::AttnQBias),
            k: family == Family::Qwen2 || has_layer0(LayerRole::AttnKBias),
            v: family == Family::Qwen2 || has_layer0(LayerRole::AttnVBias),
            o: has_layer0(LayerRole::AttnOBias),
        },
        qk_norm: family == Family::Qwen3,
        sliding_window: keys
            .u32("attention.sliding_window")?
            .filter(|&tokens| tokens > 0)
            .map(|tokens| SlidingWindow { tokens, first_layer: 0 }),
        bos: token(header, "bos_token_id")?,
        eos: eos(header)?,
        dtype_hint: None,
    };
    spec.check()?;
    Ok(ModelSpec::Llama(spec))
}

/// Keys that other models of the same architecture name use to compute something else.
fn refuse_other_computations(keys: &Keys<'_>) -> Fault {
    let zero = |v: &Value| matches!(v, Value::Uint(_, 0) | Value::Int(_, 0));
    keys.expect("expert_count", zero, "0 (dense models)")?;
    keys.expect("attention.causal", |v| *v == Value::Bool(true), "true")?;
    keys.expect("attention.temperature_scale", |_| false, "absent")?;
    for scale in ["attention.scale", "logit_scale", "residual_scale", "embedding_scale"] {
        let none = |v: &Value| matches!(v, Value::Float(_, s) if *s == 0.0);
        keys.expect(scale, none, "absent")?;
    }
    Ok(())
}

/// Rows of the embedding; what the metadata and the token list say must fit in.
fn vocab(keys: &Keys<'_>) -> Result<u32, GgufFault> {
    let name = Role::Embed.gguf_name();
    let embed = keys.header.tensors.iter().find(|t| t.name == name);
    let rows = match embed.map(|t| t.dims.get(1).copied().unwrap_or(1)) {
        Some(rows) => rows,
        // The missing tensor is reported by name when the tensors are matched.
        None => u64::from(keys.need_u32("vocab_size")?),
    };
    let listed = match keys.header.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array { count, .. }) => *count,
        _ => 0,
    };
    if listed > rows {
        let key = "tokenizer.ggml.tokens".to_owned();
        return Err(GgufFault::ArrayLen { key, found: listed, want: rows });
    }
    u32::try_from(rows).map_err(|_| GgufFault::KeyRange {
        key: keys.key("vocab_size"),
        found: rows.into(),
        max: lockstep_flow::limits::VOCAB_MAX.into(),
    })
}

fn rope(
    keys: &Keys<'_>,
    family: Family,
    head_dim: u32,
    context_max: u32,
    factors: Option<Vec<f32>>,
) -> Result<Rope, GgufFault> {
    let kind_key = keys.key("rope.scaling.type");
    let kind = keys.header.metadata.string(keys.file, &kind_key)?.unwrap_or("none");
    let factor = match keys.float("rope.scaling.factor")? {
        Some(f) => f,
        // The name of the same factor in older files.
        None => keys.float("rope.scale_linear")?.unwrap_or(1.0),
    };
    let original_context = keys.u32("rope.scaling.original_context_length")?.unwrap_or(context_max);
    let scaling = match (kind, factors) {
        ("none" | "linear", Some(factors)) if factor == 1.0 => RopeScaling::Factors(factors),
        ("none", None) => match keys.float("rope.scale_linear")? {
            Some(f) if f != 1.0 => RopeScaling::Linear { factor: f },
            _ => RopeScaling::None,
        },
        ("linear", None) => RopeScaling::Linear { factor },
        ("yarn", None) => RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: RopeScaling::yarn_attention_factor(factor)
                * keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
            truncate: true,
        },
        (kind, factors) => {
            let with = if factors.is_some() { " together with rope_freqs.weight" } else { "" };
            return Err(GgufFault::Unsupported {
                key: kind_key,
                found: format!("`{kind}`{with}"),
                supported: "none, linear, yarn, or the tensor rope_freqs.weight",
            });
        }
    };
    Ok(Rope {
        theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        pairing: match family {
            Family::Llama | Family::Mistral => Pairing::Adjacent,
            Family::Qwen2 | Family::Qwen3 => Pairing::Half,
        },
        scaling,
        rotary_dim: keys.u32("rope.dimension_count")?.unwrap_or(head_dim),
    })
}

fn token(header: &GgufHeader, name: &str) -> Result<Option<Token>, GgufFault> {
    Ok(header.metadata.u32(&format!("tokenizer.ggml.{name}"))?.map(Token))
}

fn eos(header: &GgufHeader) -> Result<Vec<Token>, GgufFault> {
    let mut out = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(t) = token(header, name)?.filter(|t| !out.contains(t)) {
            out.push(t);
        }
    }
    Ok(out)
}
