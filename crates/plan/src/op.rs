//! Ops: the vocabulary of a step. A kind says what is computed; each device has a kernel for it.

use crate::format::Format;
use crate::{Access, Axis, BufferId, Decision, LaneId};

/// Index of an op in its plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u32);

impl OpId {
    /// As an index into [`crate::StepPlan::ops`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One op of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// Unique in the plan: `layer3.attention`.
    pub name: String,
    /// What is computed, with its operands.
    pub kind: OpKind,
    /// Bytes read.
    pub reads: Vec<Access>,
    /// Bytes written.
    pub writes: Vec<Access>,
    /// The lane that issues it.
    pub lane: LaneId,
    /// What its kernel's control flow was made to depend on.
    pub decisions: Vec<Decision>,
}

/// Channel pairs that RoPE rotates together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopePairing {
    /// Channels 2i and 2i+1 (GGUF llama, GPT-J).
    Adjacent,
    /// Channels i and i + rotary/2 (Hugging Face llama, GPT-NeoX).
    Half,
}

/// Element type of KV rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvDtype {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes, round to nearest even.
    F16,
    /// 2 bytes, the upper half of an f32, round to nearest even (DeepSeek-V4).
    Bf16,
    /// 1 byte, in blocks with a scale each (DeepSeek-V4).
    Fp8,
}

impl KvDtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 | KvDtype::Bf16 => 2,
            KvDtype::Fp8 => 1,
        }
    }
}

/// One matrix of a [`Gemm`]: `out[.., out_col..out_col + n] = x * w^T (+ bias)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GemmPart {
    /// Packed weight, `n` rows by `k` columns.
    pub w: BufferId,
    /// Its file format.
    pub format: Format,
    /// Output features.
    pub n: u32,
    /// First column of the output row that it fills.
    pub out_col: u32,
    /// `[n]` f32.
    pub bias: Option<BufferId>,
}

/// What a GEMM does with its sums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Epilogue {
    /// Writes them.
    Store,
    /// Adds them to what is there (the residual stream).
    AddTo,
    /// Two parts of equal `n`, gate then up: writes `silu(gate) * up` in `n` columns.
    SwiGlu,
    /// The same, written as quantised rows for the next matrix.
    SwiGluQuantised,
}

/// Matrices that share an input.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Gemm {
    /// Row axis of input and output.
    pub axis: Axis,
    /// Input features.
    pub k: u32,
    /// `[rows][k]` f32, for parts of a float format.
    pub x: Option<BufferId>,
    /// The same rows quantised by the device, for parts of a quantised format.
    pub xq: Option<BufferId>,
    /// The matrices.
    pub parts: Vec<GemmPart>,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// `[rows][out_cols]` f32, or quantised rows where the epilogue says so.
    pub out: BufferId,
    /// Columns of an output row.
    pub out_cols: u32,
}

/// RMS norm of rows, optionally through a row table, optionally quantised.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RmsNorm {
    /// Row axis of the output.
    pub axis: Axis,
    /// `[rows][dim]` f32.
    pub x: BufferId,
    /// `[rows of axis]` u32: which row of `x` an output row takes; the same row where absent.
    pub row_index: Option<BufferId>,
    /// `[dim]` f32.
    pub weight: BufferId,
    /// Channels.
    pub dim: u32,
    /// Bits of the f32 epsilon.
    pub eps_bits: u32,
    /// `[rows][dim]` f32.
    pub out: Option<BufferId>,
    /// The same rows, quantised.
    pub out_q: Option<BufferId>,
}

/// RoPE on q and k, and the write of K and V rows into pages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RopeKvWrite {
    /// `[T][(heads + 2 kv_heads) * head_dim]` f32: q heads, k heads, v heads; q is rotated in
    /// place.
    pub qkv: BufferId,
    /// `[context][rotary_dim / 2][cos, sin]` f32.
    pub table: BufferId,
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T]` u32: page * PAGE_TOKENS + offset.
    pub write_slots: BufferId,
    /// `[head_dim]` f32 weights of the per-head norms of q and k (Qwen3).
    pub qk_norm: Option<(BufferId, BufferId)>,
    /// Bits of the f32 epsilon of those norms.
    pub eps_bits: u32,
    /// K pages.
    pub k_pages: BufferId,
    /// V pages.
    pub v_pages: BufferId,
    /// Shape.
    pub attn: AttnShape,
    /// Rotated channels of a head.
    pub rotary_dim: u32,
    /// Which channels turn together.
    pub pairing: RopePairing,
}

/// Shape of a grouped-query attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttnShape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Channels of a head.
    pub head_dim: u32,
    /// Element type of the pages.
    pub kv_dtype: KvDtype,
    /// Only the last so many positions are seen, the row's own included; 0 sees all.
    pub window: u32,
}

/// Causal attention of token rows over paged KV.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attention {
    /// `[T][(heads + 2 kv_heads) * head_dim]` f32, q first, already rotated.
    pub qkv: BufferId,
    /// `[T]` u32.
    pub positions: BufferId,
    /// `[T]` u32: the row's sequence, an index into the block table.
    pub token_seq: BufferId,
    /// `[S][pages_per_seq_max]` u32.
    pub block_table: BufferId,
    /// Columns of the block table.
    pub pages_per_seq_max: u32,
    /// K pages.
    pub k_pages: BufferId,
    /// V pages.
    pub v_pages: BufferId,
    /// Partial results of fixed KV splits.
    pub scratch: BufferId,
    /// `[T][heads * head_dim]` f32; unused where the op is the partial half.
    pub out: BufferId,
    /// Whether those are rows quantised by the device instead, for the matrix that reads them.
    pub out_quantised: bool,
    /// Shape.
    pub attn: AttnShape,
}

/// Where a row's token comes from, and its entry in the token-id pages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GatherTokens {
    /// `[T]` u32: a token id, or [`TOKEN_FROM_LAST`] for `last_token[slot]`.
    pub token_source: BufferId,
    /// `[T]` u32.
    pub token_seq: BufferId,
    /// `[S]` u32: the sequence's slot.
    pub seq_slots: BufferId,
    /// `[slots]` u32 state.
    pub last_token: BufferId,
    /// `[T]` u32.
    pub write_slots: BufferId,
    /// Token-id pages: u32 a position.
    pub token_pages: BufferId,
    /// Vocabulary.
    pub vocab: u32,
    /// `[T]` u32.
    pub out: BufferId,
}

/// Value of a `token_source` row that takes the token sampled last in its slot.
pub const TOKEN_FROM_LAST: u32 = u32::MAX;

/// Rows of the embedding matrix.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Embed {
    /// Row axis; T in the shapes stands for it.
    pub axis: Axis,
    /// `[T]` u32.
    pub tokens: BufferId,
    /// Packed, `vocab` by `dim`.
    pub w: BufferId,
    /// Its file format.
    pub format: Format,
    /// Rows of `w`.
    pub vocab: u32,
    /// Channels.
    pub dim: u32,
    /// `[T][dim]` f32.
    pub out: BufferId,
}

/// Quantises rows for the device's integer dot products.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QuantizeRows {
    /// Row axis.
    pub axis: Axis,
    /// `[rows][dim]` f32.
    pub x: BufferId,
    /// Channels.
    pub dim: u32,
    /// Quantised rows.
    pub out: BufferId,
}

/// `silu(gate) * up` where one GEMM could not fuse it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SiluMul {
    /// `[T][2 * dim]` f32: gate, then up.
    pub x: BufferId,
    /// Channels of the output.
    pub dim: u32,
    /// `[T][dim]` f32.
    pub out: BufferId,
}

/// Chooses a token for every logit row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sample {
    /// `[R][vocab]` f32.
    pub logits: BufferId,
    /// Vocabulary.
    pub vocab: u32,
    /// `[R]` sampling parameter structs.
    pub params: BufferId,
    /// `[R]` u32: the token row that a logit row belongs to.
    pub logit_rows: BufferId,
    /// `[R]` u32: the slot whose `last_token` the row's sample becomes; slot 0 keeps nothing.
    pub logit_slots: BufferId,
    /// `[T]` u32: the token row's sequence, an index into the block table.
    pub token_seq: BufferId,
    /// `[R][ceil(vocab / 32)]` u32.
    pub masks: BufferId,
    /// `[R][LOGIT_BIAS_MAX]` (u32, f32).
    pub bias: BufferId,
    /// `[S][pages_per_seq_max]` u32.
    pub block_table: BufferId,
    /// Columns of the block table.
    pub pages_per_seq_max: u32,
    /// Token-id pages (penalties look back).
    pub token_pages: BufferId,
    /// `[slots]` u32 state.
    pub last_token: BufferId,
    /// Working memory, one block a logit row.
    pub scratch: BufferId,
    /// `[R]` result structs.
    pub results: BufferId,
}

/// What an op computes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum OpKind {
    /// The host fills an input.
    HostWrite { input: BufferId },
    /// The host reads an output.
    HostRead { output: BufferId },
    /// See [`GatherTokens`].
    GatherTokens(GatherTokens),
    /// See [`Embed`].
    Embed(Embed),
    /// See [`RmsNorm`].
    RmsNorm(RmsNorm),
    /// See [`QuantizeRows`].
    QuantizeRows(QuantizeRows),
    /// See [`Gemm`].
    Gemm(Gemm),
    /// See [`RopeKvWrite`].
    RopeKvWrite(RopeKvWrite),
    /// Partial results of every fixed KV split.
    AttentionPartial(Attention),
    /// Combination of the partial results in the order of the splits.
    AttentionCombine(Attention),
    /// See [`SiluMul`].
    SiluMul(SiluMul),
    /// See [`Sample`].
    Sample(Sample),
    /// See [`crate::v4`].
    V4(crate::v4::V4Op),
    /// Synthetic: every byte written is a hash of all bytes read, the position and the seed, as
    /// [`crate::mix`] defines it. Real on every device; the explorer and the property tests are built on it.
    Mix { seed: u64 },
    /// Reserved: a collective of `ranks` ranks, issued in the same order on each.
    Collective { ranks: u32 },
}

impl OpKind {
    /// The kernel's name, a row of `KERNELS.md`.
    pub const fn kernel(&self) -> &'static str {
        match self {
            OpKind::HostWrite { .. } => "host_write",
            OpKind::HostRead { .. } => "host_read",
            OpKind::GatherTokens(_) => "gather_tokens",
            OpKind::Embed(_) => "embed",
            OpKind::RmsNorm(_) => "rms_norm",
            OpKind::QuantizeRows(_) => "quantize_rows",
            OpKind::Gemm(_) => "gemm",
            OpKind::RopeKvWrite(_) => "rope_kv_write",
            OpKind::AttentionPartial(_) => "attention_partial",
            OpKind::AttentionCombine(_) => "attention_combine",
            OpKind::SiluMul(_) => "silu_mul",
            OpKind::Sample(_) => "sample",
            OpKind::V4(op) => op.kernel(),
            OpKind::Mix { .. } => "mix",
            OpKind::Collective { .. } => "collective",
        }
    }

    /// True for ops that the host lane executes.
    pub const fn is_host(&self) -> bool {
        matches!(self, OpKind::HostWrite { .. } | OpKind::HostRead { .. })
    }
}
