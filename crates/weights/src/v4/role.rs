//! What a tensor of a DeepSeek-V4 model is for.

use core::fmt;

/// Where a tensor belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum V4Place {
    /// The model as a whole.
    Top,
    /// A decoder layer.
    Layer(u32),
    /// A block of multi-token prediction.
    Mtp(u32),
}

/// The three tensors of a hyper-connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HyperRole {
    /// `outputs x streams * hidden`
    Fn,
    /// `outputs`
    Base,
    /// 3 for a sublayer (pre, post, comb), 1 for a head.
    Scale,
}

/// One of the matrices of a gated feed-forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum V4Part {
    /// `w1`, `ffn x hidden`
    Gate,
    /// `w2`, `hidden x ffn`
    Down,
    /// `w3`, `ffn x hidden`
    Up,
}

/// A tensor's place inside a layer, block or the top. Matrices are `out x in`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum V4Role {
    /// Of the head: streams to one row.
    HyperHead(HyperRole),
    /// Around attention.
    HyperAttn(HyperRole),
    /// Around the feed-forward.
    HyperFfn(HyperRole),
    /// `hidden`
    AttnNorm,
    /// `hidden`
    FfnNorm,
    /// `q_lora x hidden`
    WqA,
    /// `q_lora`
    QNorm,
    /// `heads * head_dim x q_lora`
    WqB,
    /// `head_dim x hidden`: key and value at once
    Wkv,
    /// `head_dim`
    KvNorm,
    /// `heads`
    Sink,
    /// `groups * o_lora x heads * head_dim / groups`
    WoA,
    /// `hidden x groups * o_lora`
    WoB,
    /// `channels x hidden`
    CompressKv,
    /// `channels x hidden`
    CompressGate,
    /// `head_dim`
    CompressNorm,
    /// `ratio x channels`
    CompressApe,
    /// `index_heads * index_head_dim x q_lora`
    IndexWqB,
    /// `index_heads x hidden`
    IndexWeights,
    /// `2 * index_head_dim x hidden`
    IndexKv,
    /// `2 * index_head_dim x hidden`
    IndexGate,
    /// `index_head_dim`
    IndexNorm,
    /// `ratio x 2 * index_head_dim`
    IndexApe,
    /// `experts x hidden`
    Router,
    /// `experts`: selects, and weighs nothing
    RouterBias,
    /// `vocab x experts_per_token` integers: the experts of a token
    RouterTable,
    /// A routed expert's matrix.
    Expert(u32, V4Part),
    /// The shared expert's matrix.
    Shared(V4Part),
    /// `hidden x hidden` (multi-token prediction)
    EmbedProj,
    /// `hidden x hidden` (multi-token prediction)
    StreamProj,
    /// `hidden` (multi-token prediction)
    EmbedNorm,
    /// `hidden` (multi-token prediction)
    StreamNorm,
    /// `hidden` (multi-token prediction)
    BlockNorm,
}

impl HyperRole {
    /// All three.
    pub const ALL: [HyperRole; 3] = [HyperRole::Fn, HyperRole::Base, HyperRole::Scale];

    const fn name(self) -> &'static str {
        match self {
            HyperRole::Fn => "fn",
            HyperRole::Base => "base",
            HyperRole::Scale => "scale",
        }
    }
}

impl V4Part {
    /// All three.
    pub const ALL: [V4Part; 3] = [V4Part::Gate, V4Part::Down, V4Part::Up];

    const fn name(self) -> &'static str {
        match self {
            V4Part::Gate => "w1",
            V4Part::Down => "w2",
            V4Part::Up => "w3",
        }
    }
}

impl V4Place {
    const fn prefix(self) -> &'static str {
        match self {
            V4Place::Top => "",
            V4Place::Layer(_) => "layers.",
            V4Place::Mtp(_) => "mtp.",
        }
    }
}

impl fmt::Display for V4Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            V4Place::Top => Ok(()),
            V4Place::Layer(n) | V4Place::Mtp(n) => write!(f, "{}{n}.", self.prefix()),
        }
    }
}

impl V4Role {
    /// The roles of a block whose number does not depend on its facts, in canonical order.
    pub(crate) fn fixed() -> impl Iterator<Item = V4Role> {
        use V4Role::{
            AttnNorm, BlockNorm, CompressApe, CompressGate, CompressKv, CompressNorm, EmbedNorm,
            EmbedProj, FfnNorm, IndexApe, IndexGate, IndexKv, IndexNorm, IndexWeights, IndexWqB,
            KvNorm, QNorm, Router, RouterBias, RouterTable, Sink, StreamNorm, StreamProj, Wkv, WoA,
            WoB, WqA, WqB,
        };
        let hyper = HyperRole::ALL.into_iter();
        let hyper = hyper
            .clone()
            .map(V4Role::HyperHead)
            .chain(hyper.clone().map(V4Role::HyperAttn))
            .chain(hyper.map(V4Role::HyperFfn));
        let plain = [
            AttnNorm,
            FfnNorm,
            WqA,
            QNorm,
            WqB,
            Wkv,
            KvNorm,
            Sink,
            WoA,
            WoB,
            CompressKv,
            CompressGate,
            CompressNorm,
            CompressApe,
            IndexWqB,
            IndexWeights,
            IndexKv,
            IndexGate,
            IndexNorm,
            IndexApe,
            Router,
            RouterBias,
            RouterTable,
            EmbedProj,
            StreamProj,
            EmbedNorm,
            StreamNorm,
            BlockNorm,
        ];
        hyper.chain(plain).chain(V4Part::ALL.into_iter().map(V4Role::Shared))
    }

    /// True where the tensor's name ends in `.weight` (and may have a `.scale` beside it).
    const fn has_weight_suffix(self) -> bool {
        !matches!(
            self,
            V4Role::HyperHead(_)
                | V4Role::HyperAttn(_)
                | V4Role::HyperFfn(_)
                | V4Role::Sink
                | V4Role::CompressApe
                | V4Role::IndexApe
                | V4Role::RouterBias
                | V4Role::RouterTable
        )
    }

    /// The tensor's name in a checkpoint.
    pub fn tensor_name(self, place: V4Place) -> String {
        let suffix = if self.has_weight_suffix() { ".weight" } else { "" };
        format!("{place}{}{suffix}", self.name())
    }

    /// The name inside its place, without a suffix.
    pub(crate) fn name(self) -> String {
        let plain = match self {
            V4Role::HyperHead(h) => return format!("hc_head_{}", h.name()),
            V4Role::HyperAttn(h) => return format!("hc_attn_{}", h.name()),
            V4Role::HyperFfn(h) => return format!("hc_ffn_{}", h.name()),
            V4Role::Expert(e, part) => return format!("ffn.experts.{e}.{}", part.name()),
            V4Role::Shared(part) => return format!("ffn.shared_experts.{}", part.name()),
            V4Role::AttnNorm => "attn_norm",
            V4Role::FfnNorm => "ffn_norm",
            V4Role::WqA => "attn.wq_a",
            V4Role::QNorm => "attn.q_norm",
            V4Role::WqB => "attn.wq_b",
            V4Role::Wkv => "attn.wkv",
            V4Role::KvNorm => "attn.kv_norm",
            V4Role::Sink => "attn.attn_sink",
            V4Role::WoA => "attn.wo_a",
            V4Role::WoB => "attn.wo_b",
            V4Role::CompressKv => "attn.compressor.wkv",
            V4Role::CompressGate => "attn.compressor.wgate",
            V4Role::CompressNorm => "attn.compressor.norm",
            V4Role::CompressApe => "attn.compressor.ape",
            V4Role::IndexWqB => "attn.indexer.wq_b",
            V4Role::IndexWeights => "attn.indexer.weights_proj",
            V4Role::IndexKv => "attn.indexer.compressor.wkv",
            V4Role::IndexGate => "attn.indexer.compressor.wgate",
            V4Role::IndexNorm => "attn.indexer.compressor.norm",
            V4Role::IndexApe => "attn.indexer.compressor.ape",
            V4Role::Router => "ffn.gate",
            V4Role::RouterBias => "ffn.gate.bias",
            V4Role::RouterTable => "ffn.gate.tid2eid",
            V4Role::EmbedProj => "e_proj",
            V4Role::StreamProj => "h_proj",
            V4Role::EmbedNorm => "enorm",
            V4Role::StreamNorm => "hnorm",
            V4Role::BlockNorm => "norm",
        };
        plain.into()
    }
}
