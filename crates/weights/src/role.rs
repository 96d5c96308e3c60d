//! What a tensor is for: one name for it, whatever file it came from.

use core::fmt;

use crate::v4::{V4Place, V4Role};

/// A tensor's place in a Llama-family model. The order of roles is the canonical order of a
/// checkpoint (the order of its digest).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Token embedding, `vocab x hidden`.
    Embed,
    Layer(u32, LayerRole),
    /// Weight of the last RMS norm, `hidden`.
    FinalNorm,
    /// Output projection, `vocab x hidden`; the embedding where the head is tied.
    Head,
    /// Divisors of the rotary frequencies, `rotary_dim / 2` (Llama 3 GGUF files).
    RopeFactors,
    /// A tensor of a DeepSeek-V4 model.
    V4(V4Place, V4Role),
}

/// A tensor of one decoder layer. Matrices are `out x in`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LayerRole {
    /// `hidden`
    AttnNorm,
    /// `heads * head_dim x hidden`
    AttnQ,
    /// `kv_heads * head_dim x hidden`
    AttnK,
    /// `kv_heads * head_dim x hidden`
    AttnV,
    /// `hidden x heads * head_dim`
    AttnO,
    /// `heads * head_dim`
    AttnQBias,
    /// `kv_heads * head_dim`
    AttnKBias,
    /// `kv_heads * head_dim`
    AttnVBias,
    /// `hidden`
    AttnOBias,
    /// `head_dim`
    AttnQNorm,
    /// `head_dim`
    AttnKNorm,
    /// `hidden`
    FfnNorm,
    /// `ffn x hidden`
    FfnGate,
    /// `ffn x hidden`
    FfnUp,
    /// `hidden x ffn`
    FfnDown,
}

impl Role {
    /// True for what is added to a projection's result.
    pub const fn is_bias(self) -> bool {
        use LayerRole::{AttnKBias, AttnOBias, AttnQBias, AttnVBias};
        matches!(self, Role::Layer(_, AttnQBias | AttnKBias | AttnVBias | AttnOBias))
    }
}

impl LayerRole {
    pub const ALL: [LayerRole; 15] = [
        LayerRole::AttnNorm,
        LayerRole::AttnQ,
        LayerRole::AttnK,
        LayerRole::AttnV,
        LayerRole::AttnO,
        LayerRole::AttnQBias,
        LayerRole::AttnKBias,
        LayerRole::AttnVBias,
        LayerRole::AttnOBias,
        LayerRole::AttnQNorm,
        LayerRole::AttnKNorm,
        LayerRole::FfnNorm,
        LayerRole::FfnGate,
        LayerRole::FfnUp,
        LayerRole::FfnDown,
    ];

    /// The canonical name, without the layer.
    pub const fn name(self) -> &'static str {
        match self {
            LayerRole::AttnNorm => "attn_norm",
            LayerRole::AttnQ => "attn_q",
            LayerRole::AttnK => "attn_k",
            LayerRole::AttnV => "attn_v",
            LayerRole::AttnO => "attn_o",
            LayerRole::AttnQBias => "attn_q_bias",
            LayerRole::AttnKBias => "attn_k_bias",
            LayerRole::AttnVBias => "attn_v_bias",
            LayerRole::AttnOBias => "attn_o_bias",
            LayerRole::AttnQNorm => "attn_q_norm",
            LayerRole::AttnKNorm => "attn_k_norm",
            LayerRole::FfnNorm => "ffn_norm",
            LayerRole::FfnGate => "ffn_gate",
            LayerRole::FfnUp => "ffn_up",
            LayerRole::FfnDown => "ffn_down",
        }
    }

    const fn gguf(self) -> &'static str {
        match self {
            LayerRole::AttnNorm => "attn_norm.weight",
            LayerRole::AttnQ => "attn_q.weight",
            LayerRole::AttnK => "attn_k.weight",
            LayerRole::AttnV => "attn_v.weight",
            LayerRole::AttnO => "attn_output.weight",
            LayerRole::AttnQBias => "attn_q.bias",
            LayerRole::AttnKBias => "attn_k.bias",
            LayerRole::AttnVBias => "attn_v.bias",
            LayerRole::AttnOBias => "attn_output.bias",
            LayerRole::AttnQNorm => "attn_q_norm.weight",
            LayerRole::AttnKNorm => "attn_k_norm.weight",
            LayerRole::FfnNorm => "ffn_norm.weight",
            LayerRole::FfnGate => "ffn_gate.weight",
            LayerRole::FfnUp => "ffn_up.weight",
            LayerRole::FfnDown => "ffn_down.weight",
        }
    }

    const fn hf(self) -> &'static str {
        match self {
            LayerRole::AttnNorm => "input_layernorm.weight",
            LayerRole::AttnQ => "self_attn.q_proj.weight",
            LayerRole::AttnK => "self_attn.k_proj.weight",
            LayerRole::AttnV => "self_attn.v_proj.weight",
            LayerRole::AttnO => "self_attn.o_proj.weight",
            LayerRole::AttnQBias => "self_attn.q_proj.bias",
            LayerRole::AttnKBias => "self_attn.k_proj.bias",
            LayerRole::AttnVBias => "self_attn.v_proj.bias",
            LayerRole::AttnOBias => "self_attn.o_proj.bias",
            LayerRole::AttnQNorm => "self_attn.q_norm.weight",
            LayerRole::AttnKNorm => "self_attn.k_norm.weight",
            LayerRole::FfnNorm => "post_attention_layernorm.weight",
            LayerRole::FfnGate => "mlp.gate_proj.weight",
            LayerRole::FfnUp => "mlp.up_proj.weight",
            LayerRole::FfnDown => "mlp.down_proj.weight",
        }
    }
}

impl Role {
    /// The tensor's name in a GGUF file.
    pub fn gguf_name(self) -> String {
        match self {
            Role::Embed => "token_embd.weight".into(),
            Role::Layer(n, role) => format!("blk.{n}.{}", role.gguf()),
            Role::FinalNorm => "output_norm.weight".into(),
            Role::Head => "output.weight".into(),
            Role::RopeFactors => "rope_freqs.weight".into(),
            Role::V4(place, role) => role.tensor_name(place),
        }
    }

    /// The tensor's name in a Hugging Face checkpoint; `None` where those have no such tensor.
    pub fn hf_name(self) -> Option<String> {
        Some(match self {
            Role::Embed => "model.embed_tokens.weight".into(),
            Role::Layer(n, role) => format!("model.layers.{n}.{}", role.hf()),
            Role::FinalNorm => "model.norm.weight".into(),
            Role::Head => "lm_head.weight".into(),
            Role::RopeFactors => return None,
            Role::V4(place, role) => role.tensor_name(place),
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Embed => f.write_str("embed"),
            Role::Layer(n, role) => write!(f, "layers.{n}.{}", role.name()),
            Role::FinalNorm => f.write_str("final_norm"),
            Role::Head => f.write_str("head"),
            Role::RopeFactors => f.write_str("rope_factors"),
            Role::V4(place, role) => write!(f, "{place}{}", role.name()),
        }
    }
}
