//! The facts of a DeepSeek-V4 model.

use lockstep_flow::Token;
use lockstep_flow::limits::{CONTEXT_TOKENS_MAX, VOCAB_MAX};

use crate::rope::Rope;
use crate::spec::{HEAD_DIM_MAX, LAYERS_MAX, SpecFault, WIDTH_MAX, size};

/// Most residual streams: their mixing matrix is one vector of sixteen lanes.
pub const V4_HYPER_STREAMS_MAX: u32 = 4;

/// How a layer's attention reaches beyond its window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compression {
    /// Not at all.
    Window,
    /// One row for every 4 tokens, chosen by the indexer.
    C4,
    /// One row for every 128 tokens, all of them seen.
    C128,
}

impl Compression {
    /// The compression of a `compress_ratios` entry.
    pub const fn from_ratio(ratio: u32) -> Option<Compression> {
        match ratio {
            0 => Some(Compression::Window),
            4 => Some(Compression::C4),
            128 => Some(Compression::C128),
            _ => None,
        }
    }

    /// Tokens of a compressed row; `None` where there are no such rows.
    pub const fn ratio(self) -> Option<u32> {
        match self {
            Compression::Window => None,
            Compression::C4 => Some(4),
            Compression::C128 => Some(128),
        }
    }

    /// Channels that the compressor has for each channel of a row: overlapping windows take two.
    pub const fn overlap(self) -> u32 {
        match self {
            Compression::C4 => 2,
            Compression::Window | Compression::C128 => 1,
        }
    }
}

/// A decoder with parallel residual streams, window attention over one shared key-value head with
/// compressed rows beyond the window, and a mixture of experts.
#[derive(Clone, PartialEq, Debug)]
pub struct DeepSeekV4Spec {
    /// The name that the checkpoint gives itself; may be empty.
    pub name: String,
    pub layers: u32,
    /// Width of one residual stream.
    pub hidden: u32,
    /// Query heads; there is one key-value head.
    pub heads: u32,
    pub head_dim: u32,
    /// Channels at the end of a head that are rotated.
    pub rotary_dim: u32,
    /// Width of the queries' low-rank row.
    pub q_lora: u32,
    /// Groups of heads that are projected apart.
    pub o_groups: u32,
    /// Width of a group's low-rank row.
    pub o_lora: u32,
    /// Positions that every layer sees, the row's own included.
    pub window: u32,
    /// By layer.
    pub compression: Vec<Compression>,
    pub index_heads: u32,
    pub index_head_dim: u32,
    /// Compressed rows that a C4 layer attends to.
    pub index_topk: u32,
    pub experts: u32,
    pub experts_per_token: u32,
    /// Width of an expert.
    pub ffn: u32,
    /// Layers from the first on whose experts are chosen by a table of token ids.
    pub hash_layers: u32,
    pub routed_scaling: f32,
    pub swiglu_limit: f32,
    /// Residual streams.
    pub streams: u32,
    pub sinkhorn_iters: u32,
    pub hyper_eps: f32,
    /// Blocks of multi-token prediction in the checkpoint.
    pub mtp_blocks: u32,
    pub vocab: u32,
    /// Longest context that the model was made for, tokens.
    pub context_max: u32,
    /// Added to the mean square in RMS norms.
    pub norm_eps: f32,
    /// Rotation in layers without compressed rows.
    pub rope: Rope,
    /// Rotation in layers with compressed rows, theirs included.
    pub compress_rope: Rope,
    pub bos: Option<Token>,
    /// Tokens that end a turn; the first is the checkpoint's main one.
    pub eos: Vec<Token>,
    /// The data type that `config.json` names for the weights, as it is written there.
    pub dtype_hint: Option<String>,
}

impl DeepSeekV4Spec {
    /// Width of a row of queries.
    pub fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Width of all streams of a token.
    pub fn stream_width(&self) -> u32 {
        self.streams * self.hidden
    }

    /// Outputs of a sublayer's hyper-connection: pre and post of each stream, and the matrix.
    pub fn hyper_outputs(&self) -> u32 {
        2 * self.streams + self.streams * self.streams
    }

    /// True where the layer's experts are chosen by a table of token ids.
    pub fn is_hashed(&self, layer: u32) -> bool {
        layer < self.hash_layers
    }

    /// Checks the facts against each other and the limits, so that no product of them overflows.
    pub(crate) fn check(&self) -> Result<(), SpecFault> {
        let heads = self.heads;
        let sizes = [
            ("layers", self.layers, LAYERS_MAX),
            ("hidden", self.hidden, WIDTH_MAX),
            ("heads", heads, WIDTH_MAX),
            ("head_dim", self.head_dim, HEAD_DIM_MAX),
            ("q_lora_rank", self.q_lora, WIDTH_MAX),
            ("o_groups", self.o_groups, heads),
            ("o_lora_rank", self.o_lora, WIDTH_MAX),
            ("sliding_window", self.window, CONTEXT_TOKENS_MAX),
            ("index_n_heads", self.index_heads, 1 << 10),
            ("index_head_dim", self.index_head_dim, HEAD_DIM_MAX),
            ("index_topk", self.index_topk, CONTEXT_TOKENS_MAX),
            ("n_routed_experts", self.experts, 1 << 12),
            ("num_experts_per_tok", self.experts_per_token, self.experts),
            ("moe_intermediate_size", self.ffn, WIDTH_MAX),
            ("hc_mult", self.streams, V4_HYPER_STREAMS_MAX),
            ("hc_sinkhorn_iters", self.sinkhorn_iters, 1000),
            ("vocab", self.vocab, VOCAB_MAX),
            ("context_max", self.context_max, CONTEXT_TOKENS_MAX),
        ];
        for (what, found, max) in sizes {
            size(what, found.into(), max.into())?;
        }
        let products = [
            ("heads * head_dim", heads, self.head_dim),
            ("o_groups * o_lora_rank", self.o_groups, self.o_lora),
            ("hc_mult * hidden", self.streams, self.hidden),
            ("index heads * index_head_dim", self.index_heads, self.index_head_dim),
            ("experts * moe_intermediate_size", self.experts, self.ffn),
        ];
        for (what, a, b) in products {
            size(what, u64::from(a) * u64::from(b), 1 << 24)?;
        }
        if !heads.is_multiple_of(self.o_groups) {
            return Err(SpecFault::OutputGroups { heads, groups: self.o_groups });
        }
        if self.compression.len() != self.layers as usize {
            let (found, layers) = (self.compression.len(), self.layers);
            return Err(SpecFault::CompressRatios { found, layers });
        }
        for (rotary_dim, head_dim) in
            [(self.rotary_dim, self.head_dim), (self.rotary_dim, self.index_head_dim)]
        {
            if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
                return Err(SpecFault::RotaryDim { rotary_dim, head_dim });
            }
        }
        for eps in [self.norm_eps, self.hyper_eps] {
            if !(eps > 0.0 && eps < 1.0) {
                return Err(SpecFault::NormEps { found: eps });
            }
        }
        for (what, found) in
            [("routed_scaling_factor", self.routed_scaling), ("swiglu_limit", self.swiglu_limit)]
        {
            if !(found > 0.0 && found < 1e9) {
                return Err(SpecFault::Factor { what, found });
            }
        }
        for rope in [&self.rope, &self.compress_rope] {
            if !(rope.theta > 1.0 && rope.theta <= 1e18) {
                return Err(SpecFault::RopeTheta { found: rope.theta });
            }
            if !rope.scaling.is_sound(self.rotary_dim) {
                return Err(SpecFault::RopeScaling { scaling: rope.scaling.clone() });
            }
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
