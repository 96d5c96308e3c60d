//! DeepSeek-V4 as a plan builder.
//!
//! One step, T token rows, S sequences, R logit rows. The residual is `[T][streams][hidden]` f32;
//! every sublayer collapses the streams to one normed row, computes, and mixes the result back.
//! Attention reads a window of key-value rows and, in compressed layers, rows that pool 4 tokens
//! (chosen by the indexer) or 128. Rows, index keys and the compressors' state of every token are
//! pages of the same block table, so that they are owned, shared and freed together, and so that a
//! chunk, a cached prefix or a resumed sequence reads the same bytes.
//!
//! Where drafts are asked for, a prediction block follows the draw ([`mtp`]).
//!
//! Lanes: the key-value store, the compressor, the indexer, its query and its weights run beside
//! the main lane and meet it before attention; the shared expert runs beside the routed ones.

mod attention;
mod compress;
mod feed_forward;
mod mtp;
mod state;
mod weights;

use crate::emit::{Act, Emit, Formats};
use crate::head::Head;
use crate::inputs::{self, Inputs, LAST_TOKEN_BYTES, TokenState};
use crate::{ModelError, PlanShape, SubPool, WeightLoad};
use lockstep_flow::BucketKey;
use lockstep_plan::format::Format;
use lockstep_plan::v4::{HyperIn, HyperOut, HyperStart, Tables, TailRope, V4Op, V4Shape};
use lockstep_plan::{
    Axis, Backend, BufferId, Elem, Epilogue, FP4_ROW_BLOCK, Gemm, GemmPart, KvDtype, LaneId,
    OpKind, RowCode, StepPlan, Unsupported,
};
use lockstep_weights::{Compression, DeepSeekV4Spec, HyperRole, Role, V4Place, V4Role};

/// A DeepSeek-V4 model: its facts and the file format of each matrix.
#[derive(Clone, Debug)]
pub struct DeepSeekV4 {
    spec: DeepSeekV4Spec,
    formats: Formats,
}

/// Buffers that every layer reads.
struct Step {
    inputs: Inputs,
    tables: Tables,
    /// `[T]` u32.
    tokens: BufferId,
    /// The residual streams.
    x: BufferId,
    /// Rotation of layers without compressed rows, and of layers with them.
    ropes: [TailRope; 2],
    lanes: Lanes,
}

/// The lanes beside the main one.
#[derive(Clone, Copy)]
struct Lanes {
    window: LaneId,
    compress: LaneId,
    index: LaneId,
    index_query: LaneId,
    index_weights: LaneId,
}

/// Where a block runs: whose weights, over which rows and streams.
#[derive(Clone, Debug)]
struct Site {
    place: V4Place,
    /// What the names of its ops and rows begin with.
    name: String,
    axis: Axis,
    /// The residual streams.
    x: BufferId,
    /// `[rows of axis]` u32.
    positions: BufferId,
}

impl Site {
    fn at(&self, what: &str) -> String {
        format!("{}{what}", self.name)
    }

    const fn role(&self, role: V4Role) -> Role {
        Role::V4(self.place, role)
    }
}

/// Which sublayer a hyper-connection is around.
#[derive(Clone, Copy)]
enum Sublayer {
    Attention,
    FeedForward,
}

/// A sublayer's input row and what puts its result back.
struct Entered {
    /// `[T][hidden]`, normed.
    row: BufferId,
    mix: BufferId,
}

impl DeepSeekV4 {
    /// A model of `spec` whose matrices are stored as `format_of` says, by role.
    pub fn new(spec: DeepSeekV4Spec, format_of: impl Fn(Role) -> Option<Format>) -> DeepSeekV4 {
        let formats = weights::formats(&spec, format_of);
        DeepSeekV4 { spec, formats }
    }

    /// The facts.
    pub fn spec(&self) -> &DeepSeekV4Spec {
        &self.spec
    }

    /// Every weight buffer that the plans bind.
    pub fn weights(&self, shape: &PlanShape) -> Vec<WeightLoad> {
        weights::all(&self.spec, &self.formats, shape)
    }

    /// The sub-pools, one page group.
    ///
    /// # Errors
    /// The device takes no model of this shape, or no KV rows of this type.
    pub fn sub_pools(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
    ) -> Result<Vec<SubPool>, ModelError> {
        self.check(backend, shape)?;
        Ok(state::sub_pools(&self.spec, shape))
    }

    /// State by slots: name and bytes of one slot.
    pub fn slot_states(&self) -> Vec<(String, u64)> {
        vec![("last_token".into(), LAST_TOKEN_BYTES)]
    }

    fn check(&self, backend: &dyn Backend, shape: &PlanShape) -> Result<(), ModelError> {
        let s = &self.spec;
        backend.v4(&V4Shape {
            streams: s.streams,
            hidden: s.hidden,
            head_dim: s.head_dim,
            rotary_dim: s.rotary_dim,
            index_heads: s.index_heads,
            index_head_dim: s.index_head_dim,
            o_lora: s.o_lora,
            experts: s.experts,
            ffn: s.ffn,
            experts_per_token: s.experts_per_token,
        })?;
        if shape.drafts > 0 && s.mtp_blocks == 0 {
            return Err(ModelError::NoDrafts { asked: shape.drafts });
        }
        let refuse = |asked: String, supported: &str| {
            let (device, supported) = (backend.name(), supported.into());
            Err(ModelError::Unsupported(Unsupported { device, asked, supported }))
        };
        if shape.kv_dtype == KvDtype::F16 {
            let asked = "key-value rows of DeepSeek-V4 as f16".into();
            return refuse(asked, "pool.kv-dtype f32 (the default for this model), bf16 or fp8");
        }
        let (dim, code) = (s.index_head_dim, shape.index_dtype.code());
        if code.is_turned() && !(dim.is_power_of_two() && dim.is_multiple_of(FP4_ROW_BLOCK)) {
            let asked = format!("index keys of {dim} channels as fp8 or fp4");
            return refuse(asked, "a power of two from 32; pool.index-dtype f32 or bf16 takes any");
        }
        Ok(())
    }

    /// How key-value rows are kept.
    fn row_code(&self, shape: &PlanShape) -> RowCode {
        state::row_code(&self.spec, shape)
    }

    /// The step plan of `bucket`.
    ///
    /// # Errors
    /// The device lacks a kernel, or the checkpoint a weight.
    pub fn plan(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
        bucket: BucketKey,
    ) -> Result<StepPlan, ModelError> {
        self.check(backend, shape)?;
        let spec = &self.spec;
        let mut emit = Emit::new(backend, shape, &self.formats, bucket);
        let e = &mut emit;
        let inputs = Inputs::declare(e, spec.vocab);
        let token_state = TokenState::declare(e);
        let ropes = self.ropes(e);
        let (tokens, row) = inputs::embed(e, &inputs, &token_state, (spec.vocab, spec.hidden))?;
        let x = e.rows_f32("streams", Axis::T, spec.stream_width());
        let (streams, dim) = (spec.streams, spec.hidden);
        let axis = Axis::T;
        v4(e, "hyper_start", V4Op::HyperStart(HyperStart { axis, x: row, streams, dim, out: x }));
        let tables = Tables {
            positions: inputs.positions,
            token_seq: inputs.token_seq,
            block_table: inputs.block_table,
            pages_per_seq_max: shape.pages_per_seq_max(),
        };
        let lanes = Lanes::of(e);
        let step = Step { inputs, tables, tokens, x, ropes, lanes };
        for layer in 0..spec.layers {
            let site = step.site(layer);
            self.attention(e, &step, &site, layer)?;
            self.feed_forward(e, &step, &site)?;
        }
        let results = self.head(e, &step, &token_state)?;
        if shape.drafts > 0 {
            self.drafts(e, &step, row, results)?;
        }
        Ok(emit.b.finish())
    }

    fn ropes(&self, e: &mut Emit<'_>) -> [TailRope; 2] {
        let rotary_dim = self.spec.rotary_dim;
        let bytes = u64::from(e.shape.context_tokens) * u64::from(rotary_dim) * 4;
        [weights::ROPE, weights::COMPRESS_ROPE]
            .map(|name| TailRope { table: e.b.weight(name, bytes, Elem::F32), rotary_dim })
    }

    fn compression(&self, layer: u32) -> Compression {
        self.spec.compression[layer as usize]
    }

    /// Collapses the streams to the normed row that a sublayer reads.
    fn enter(&self, e: &mut Emit<'_>, site: &Site, which: Sublayer) -> Entered {
        let spec = &self.spec;
        let (hyper, norm, name): (fn(HyperRole) -> V4Role, _, _) = match which {
            Sublayer::Attention => (V4Role::HyperAttn, V4Role::AttnNorm, "attn_in"),
            Sublayer::FeedForward => (V4Role::HyperFfn, V4Role::FfnNorm, "ffn_in"),
        };
        let name = site.at(name);
        let row = e.rows_f32(format!("{name}.row"), site.axis, spec.hidden);
        let mix_cols = spec.streams + spec.streams * spec.streams;
        let mix = e.rows_f32(format!("{name}.mix"), site.axis, mix_cols);
        let sizes = (spec.hyper_outputs(), 3);
        let op = HyperIn {
            axis: site.axis,
            mix: Some(mix),
            ..self.hyper(e, site.place, (hyper, norm), sizes, site.x, row)
        };
        v4(e, name, V4Op::HyperIn(op));
        Entered { row, mix }
    }

    /// A hyper-connection's fields; without `mix`, as a head has them.
    fn hyper(
        &self,
        e: &mut Emit<'_>,
        place: V4Place,
        (hyper, norm): (fn(HyperRole) -> V4Role, V4Role),
        (outputs, scales): (u32, u32),
        x: BufferId,
        out: BufferId,
    ) -> HyperIn {
        let spec = &self.spec;
        let mut vector = |role, len| e.vector(role, len);
        let of = |h| Role::V4(place, hyper(h));
        let norm = if place == V4Place::Top { Role::FinalNorm } else { Role::V4(place, norm) };
        HyperIn {
            axis: Axis::T,
            x,
            row_index: None,
            projection: vector(of(HyperRole::Fn), outputs * spec.stream_width()),
            base: vector(of(HyperRole::Base), outputs),
            scale: vector(of(HyperRole::Scale), scales),
            norm: vector(norm, spec.hidden),
            streams: spec.streams,
            dim: spec.hidden,
            sinkhorn_iters: spec.sinkhorn_iters,
            hyper_eps_bits: spec.hyper_eps.to_bits(),
            norm_eps_bits: spec.norm_eps.to_bits(),
            out,
            mix: None,
        }
    }

    /// Mixes a sublayer's result into the streams.
    fn leave(&self, e: &mut Emit<'_>, site: &Site, what: &str, entered: &Entered, y: BufferId) {
        let (streams, dim) = (self.spec.streams, self.spec.hidden);
        let op = HyperOut { axis: site.axis, y, mix: entered.mix, x: site.x, streams, dim };
        v4(e, site.at(what), V4Op::HyperOut(op));
    }

    fn head(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        token_state: &TokenState,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let row = e.rows_f32("head_in.row", Axis::R, spec.hidden);
        let roles: (fn(HyperRole) -> V4Role, _) = (V4Role::HyperHead, V4Role::BlockNorm);
        let op = HyperIn {
            axis: Axis::R,
            row_index: Some(step.inputs.logit_rows),
            ..self.hyper(e, V4Place::Top, roles, (spec.streams, 1), step.x, row)
        };
        v4(e, "head_in", V4Op::HyperIn(op));
        let head = Head {
            role: Role::Head,
            hidden: spec.hidden,
            vocab: spec.vocab,
            norm_eps: spec.norm_eps,
        };
        let part = e.part(head.role, (spec.vocab, spec.hidden, 0), None)?;
        let act = Act { f32: Some(row), quant: None };
        Ok(head.sample(e, &step.inputs, token_state, act, part))
    }
}

impl Step {
    /// Where a layer runs.
    fn site(&self, layer: u32) -> Site {
        let place = V4Place::Layer(layer);
        let (x, positions) = (self.x, self.inputs.positions);
        Site { place, name: place.to_string(), axis: Axis::T, x, positions }
    }
}

impl Lanes {
    fn of(e: &mut Emit<'_>) -> Lanes {
        Lanes {
            window: e.b.lane("window"),
            compress: e.b.lane("compress"),
            index: e.b.lane("index"),
            index_query: e.b.lane("index_query"),
            index_weights: e.b.lane("index_weights"),
        }
    }
}

/// Appends an op to the main lane.
fn v4(e: &mut Emit<'_>, name: impl Into<String>, op: V4Op) {
    e.op(name, OpKind::V4(op));
}

/// Appends an op to a lane.
fn v4_on(e: &mut Emit<'_>, lane: LaneId, name: impl Into<String>, op: V4Op) {
    e.b.op(name, lane, OpKind::V4(op));
}

/// `out[rows of axis][..] = x * w^T` for matrices of float formats side by side.
fn product(
    e: &mut Emit<'_>,
    (lane, axis): (LaneId, Axis),
    name: &str,
    (x, k): (BufferId, u32),
    parts: Vec<GemmPart>,
) -> BufferId {
    let out_cols = parts.iter().map(|p| p.n).sum();
    let out = e.rows_f32(format!("{name}.out"), axis, out_cols);
    let gemm =
        Gemm { axis, k, x: Some(x), xq: None, parts, epilogue: Epilogue::Store, out, out_cols };
    e.b.op(name, lane, OpKind::Gemm(gemm));
    out
}
