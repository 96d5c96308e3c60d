//! Architecture facts: everything about a model that is not in its tensors.

use core::fmt;

use lockstep_flow::Token;
use lockstep_flow::limits::{CONTEXT_TOKENS_MAX, VOCAB_MAX};

use crate::error::SUPPORTED_ARCHITECTURES;
use crate::rope::{Rope, RopeScaling};
use crate::v4::DeepSeekV4Spec;

/// Most layers of a model.
pub const LAYERS_MAX: u32 = 1024;
/// Widest residual or feed-forward row.
pub const WIDTH_MAX: u32 = 1 << 20;
/// Widest attention head.
pub const HEAD_DIM_MAX: u32 = 1024;

/// The architectures that the model room can build a plan for.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ModelSpec {
    Llama(LlamaSpec),
    DeepSeekV4(DeepSeekV4Spec),
}

impl ModelSpec {
    /// Ids that a token can have: rows of the embedding.
    pub fn vocab(&self) -> u32 {
        match self {
            ModelSpec::Llama(s) => s.vocab,
            ModelSpec::DeepSeekV4(s) => s.vocab,
        }
    }

    /// Longest context that the model was made for, tokens.
    pub fn context_max(&self) -> u32 {
        match self {
            ModelSpec::Llama(s) => s.context_max,
            ModelSpec::DeepSeekV4(s) => s.context_max,
        }
    }

    /// Tokens that end a turn, as the checkpoint states them.
    pub fn eos(&self) -> &[Token] {
        match self {
            ModelSpec::Llama(s) => &s.eos,
            ModelSpec::DeepSeekV4(s) => &s.eos,
        }
    }

    /// The name that the checkpoint gives itself; may be empty.
    pub fn name(&self) -> &str {
        match self {
            ModelSpec::Llama(s) => &s.name,
            ModelSpec::DeepSeekV4(s) => &s.name,
        }
    }

    /// The architecture, as GGUF files and `config.json` name it.
    pub fn architecture(&self) -> &'static str {
        match self {
            ModelSpec::Llama(s) => s.family.name(),
            ModelSpec::DeepSeekV4(_) => crate::v4::config::MODEL_TYPE,
        }
    }
}

/// Which of the Llama-like decoders a model is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    /// The name in GGUF's `general.architecture` and in `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    pub(crate) fn from_name(name: &str) -> Result<Family, SpecFault> {
        [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3]
            .into_iter()
            .find(|f| f.name() == name)
            .ok_or_else(|| SpecFault::Architecture { found: name.into() })
    }
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AttnBias {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub o: bool,
}

/// Attention limited to the last `tokens` positions, in layers from `first_layer` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingWindow {
    pub tokens: u32,
    pub first_layer: u32,
}

/// A pre-norm decoder with RMS norms, rotary positions, grouped-query attention and a SwiGLU
/// feed-forward: Llama, SmolLM2, Mistral, Qwen2 and Qwen3.
#[derive(Clone, PartialEq, Debug)]
pub struct LlamaSpec {
    pub family: Family,
    /// The name that the checkpoint gives itself; may be empty.
    pub name: String,
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Width of the feed-forward.
    pub ffn: u32,
    pub vocab: u32,
    /// Longest context that the model was made for, tokens.
    pub context_max: u32,
    /// Added to the mean square in RMS norms.
    pub norm_eps: f32,
    pub rope: Rope,
    /// The output projection is the embedding.
    pub tied_head: bool,
    pub attn_bias: AttnBias,
    /// RMS norm over each head of q and k, before the rotation (Qwen3).
    pub qk_norm: bool,
    pub sliding_window: Option<SlidingWindow>,
    pub bos: Option<Token>,
    /// Tokens that end a turn; the first is the checkpoint's main one.
    pub eos: Vec<Token>,
    /// The data type that `config.json` names for the weights, as it is written there.
    pub dtype_hint: Option<String>,
}

/// Facts that contradict each other, or that no plan can be built for.
#[derive(Clone, PartialEq, Debug)]
pub enum SpecFault {
    Architecture {
        found: String,
    },
    /// A size that is zero or above what is served.
    Size {
        what: &'static str,
        found: u64,
        max: u64,
    },
    HeadGroups {
        heads: u32,
        kv_heads: u32,
    },
    /// Rotary pairs need an even number of dimensions, at most the head's.
    RotaryDim {
        rotary_dim: u32,
        head_dim: u32,
    },
    NormEps {
        found: f32,
    },
    /// Groups of heads that do not come out even.
    OutputGroups {
        heads: u32,
        groups: u32,
    },
    /// Not one compression ratio for each layer.
    CompressRatios {
        found: usize,
        layers: u32,
    },
    /// A factor that is not a positive number.
    Factor {
        what: &'static str,
        found: f32,
    },
    RopeTheta {
        found: f64,
    },
    RopeScaling {
        scaling: RopeScaling,
    },
    TokenId {
        what: &'static str,
        found: u64,
        vocab: u32,
    },
}

impl LlamaSpec {
    /// Width of a row of queries: `heads * head_dim`.
    pub fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Width of a row of keys or values: `kv_heads * head_dim`.
    pub fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Checks the facts against each other and the limits, so that no product of them overflows.
    pub(crate) fn check(&self) -> Result<(), SpecFault> {
        let sizes = [
            ("layers", self.layers, LAYERS_MAX),
            ("hidden", self.hidden, WIDTH_MAX),
            ("heads", self.heads, WIDTH_MAX),
            ("kv_heads", self.kv_heads, WIDTH_MAX),
            ("head_dim", self.head_dim, HEAD_DIM_MAX),
            ("ffn", self.ffn, WIDTH_MAX),
            ("vocab", self.vocab, VOCAB_MAX),
            ("context_max", self.context_max, CONTEXT_TOKENS_MAX),
            ("sliding_window", self.sliding_window.map_or(1, |w| w.tokens), u32::MAX),
        ];
        for (what, found, max) in sizes {
            size(what, found.into(), max.into())?;
        }
        let q_width = u64::from(self.heads) * u64::from(self.head_dim);
        size("heads * head_dim", q_width, WIDTH_MAX.into())?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(SpecFault::HeadGroups { heads: self.heads, kv_heads: self.kv_heads });
        }
        let (rotary_dim, head_dim) = (self.rope.rotary_dim, self.head_dim);
        if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            return Err(SpecFault::RotaryDim { rotary_dim, head_dim });
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(SpecFault::NormEps { found: self.norm_eps });
        }
        if !(self.rope.theta > 1.0 && self.rope.theta <= 1e18) {
            return Err(SpecFault::RopeTheta { found: self.rope.theta });
        }
        if !self.rope.scaling.is_sound(rotary_dim) {
            return Err(SpecFault::RopeScaling { scaling: self.rope.scaling.clone() });
        }
        let bos = self.bos.iter().map(|t| ("bos", t));
        for (what, token) in bos.chain(self.eos.iter().map(|t| ("eos", t))) {
            if token.0 >= self.vocab {
                let (found, vocab) = (token.0.into(), self.vocab);
                return Err(SpecFault::TokenId { what, found, vocab });
            }
        }
        Ok(())
    }
}

pub(crate) fn size(what: &'static str, found: u64, max: u64) -> Result<(), SpecFault> {
    if found == 0 || found > max { Err(SpecFault::Size { what, found, max }) } else { Ok(()) }
}

impl fmt::Display for SpecFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecFault::Architecture { found } => write!(
                f,
                "architecture `{found}` is not served; served are {}",
                SUPPORTED_ARCHITECTURES.join(", ")
            ),
            SpecFault::Size { what, found, max } => {
                write!(f, "{what} is {found}; 1 to {max} are served")
            }
            SpecFault::HeadGroups { heads, kv_heads } => {
                write!(f, "{heads} query heads are not a multiple of {kv_heads} key-value heads")
            }
            SpecFault::RotaryDim { rotary_dim, head_dim } => write!(
                f,
                "{rotary_dim} rotary dimensions; an even number of at most head_dim = {head_dim} \
                 is needed"
            ),
            SpecFault::NormEps { found } => {
                write!(f, "norm epsilon is {found}; it must be above 0 and below 1")
            }
            SpecFault::OutputGroups { heads, groups } => {
                write!(f, "{heads} heads are not a multiple of {groups} output groups")
            }
            SpecFault::CompressRatios { found, layers } => {
                write!(f, "{found} compression ratios; one for each of {layers} layers is needed")
            }
            SpecFault::Factor { what, found } => {
                write!(f, "{what} is {found}; a positive number below 1e9 is needed")
            }
            SpecFault::RopeTheta { found } => {
                write!(f, "rope theta is {found}; it must be above 1 and at most 1e18")
            }
            SpecFault::RopeScaling { scaling } => write!(
                f,
                "rope scaling {scaling:?} has a value that is not finite, not positive or out of \
                 order"
            ),
            SpecFault::TokenId { what, found, vocab } => {
                write!(f, "{what} token id {found} is outside the vocabulary of {vocab}")
            }
        }
    }
}

impl core::error::Error for SpecFault {}
