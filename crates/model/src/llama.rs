//! The Llama family as a plan builder: Llama, SmolLM2, Mistral, Qwen2, Qwen3.
//!
//! One step, T token rows, S sequences, R logit rows. The residual stream `x` is `[T][hidden]`
//! f32; every layer is norm, QKV, RoPE with the KV write, attention in two halves (fixed KV
//! splits, then their combination), output projection into `x`, norm, gate and up, down into `x`.

use crate::{ModelError, PlanShape, SubPool, WeightLoad, WeightSource, rope};
use lockstep_flow::BucketKey;
use lockstep_flow::limits::{LOGIT_BIAS_MAX, PAGE_TOKENS};
use lockstep_plan::format::Format;
use lockstep_plan::{
    Activation, Attention, AttnShape, Axis, Backend, BufferId, BufferKind, Elem, Embed, Epilogue,
    GatherTokens, Gemm, GemmPart, LaneId, OpKind, PaddingPolicy, PlanBuilder, QuantizeRows,
    RmsNorm, RopeKvWrite, RopePairing, Sample, SiluMul, StateKind, StepPlan,
};
use lockstep_weights::{LayerRole, LlamaSpec, Pairing, Role};
use std::collections::BTreeMap;

/// A Llama-family model: its facts and the file format of each matrix.
#[derive(Clone, Debug)]
pub struct Llama {
    spec: LlamaSpec,
    formats: BTreeMap<Role, Format>,
}

/// Rows of a GEMM's input in the forms that its parts need.
#[derive(Clone, Copy)]
struct Act {
    f32: Option<BufferId>,
    quant: Option<BufferId>,
}

/// Input buffers that more than one op reads.
struct Inputs {
    positions: BufferId,
    token_seq: BufferId,
    write_slots: BufferId,
    block_table: BufferId,
    seq_slots: BufferId,
    token_source: BufferId,
    logit_rows: BufferId,
    logit_slots: BufferId,
    params: BufferId,
    masks: BufferId,
    bias: BufferId,
}

impl Llama {
    /// A model of `spec` whose matrices are stored as `format_of` says, by role.
    pub fn new(spec: LlamaSpec, format_of: impl Fn(Role) -> Option<Format>) -> Llama {
        let formats = matrix_roles(&spec)
            .into_iter()
            .filter_map(|role| format_of(role).map(|f| (role, f)))
            .collect();
        Llama { spec, formats }
    }

    /// The facts.
    pub fn spec(&self) -> &LlamaSpec {
        &self.spec
    }

    fn format(&self, role: Role) -> Result<Format, ModelError> {
        self.formats.get(&role).copied().ok_or(ModelError::MissingWeight { role })
    }

    fn head_role(&self) -> Role {
        if self.spec.tied_head { Role::Embed } else { Role::Head }
    }

    /// Positions that a layer sees; 0 sees all.
    fn window(&self, layer: u32) -> u32 {
        match self.spec.sliding_window {
            Some(w) if layer >= w.first_layer => w.tokens,
            _ => 0,
        }
    }

    fn attn_shape(&self, shape: &PlanShape, layer: u32) -> AttnShape {
        AttnShape {
            heads: self.spec.heads,
            kv_heads: self.spec.kv_heads,
            head_dim: self.spec.head_dim,
            kv_dtype: shape.kv_dtype,
            window: self.window(layer),
        }
    }

    /// Every weight buffer that the plans bind.
    pub fn weights(&self, shape: &PlanShape) -> Vec<WeightLoad> {
        let mut out = Vec::new();
        let matrix = |role: Role| WeightLoad {
            buffer: role.to_string(),
            source: WeightSource::Matrix { role },
        };
        let vector = |role: Role| WeightLoad {
            buffer: role.to_string(),
            source: WeightSource::Vector { role },
        };
        out.extend(matrix_roles(&self.spec).into_iter().map(matrix));
        out.extend(vector_roles(&self.spec).into_iter().map(vector));
        let values = rope::table(&self.spec.rope, shape.context_tokens);
        out.push(WeightLoad { buffer: "rope".into(), source: WeightSource::Values(values) });
        out
    }

    /// The sub-pools: KV of every layer and the token ids, one page group.
    pub fn sub_pools(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
    ) -> Result<Vec<SubPool>, ModelError> {
        let (k, v) = backend.kv_page_bytes(&self.attn_shape(shape, 0))?;
        let mut buffers = vec![("token_pages".to_string(), u64::from(PAGE_TOKENS) * 4)];
        for layer in 0..self.spec.layers {
            buffers.push((format!("layers.{layer}.k_pages"), k));
            buffers.push((format!("layers.{layer}.v_pages"), v));
        }
        Ok(vec![SubPool { name: "full".into(), buffers }])
    }

    /// State by slots: name and bytes of one slot.
    pub fn slot_states(&self) -> Vec<(String, u64)> {
        vec![("last_token".into(), 4)]
    }

    /// The step plan of `bucket`.
    pub fn plan(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
        bucket: BucketKey,
    ) -> Result<StepPlan, ModelError> {
        let spec = &self.spec;
        let mut b = PlanBuilder::new(bucket, shape.lanes);
        let inputs = self.inputs(&mut b, backend, shape);
        let table_bytes = u64::from(shape.context_tokens) * u64::from(spec.rope.rotary_dim) * 4;
        let rope = b.weight("rope", table_bytes, Elem::F32);
        let page = u64::from(PAGE_TOKENS) * 4;
        let kind = StateKind::Pages { page_bytes: page };
        let token_pages = b.state("token_pages", kind, shape.pages, Elem::U32);
        let kind = StateKind::Slots { slot_bytes: 4 };
        let last_token = b.state("last_token", kind, shape.slots, Elem::U32);
        let embed = self.matrix(&mut b, backend, Role::Embed, spec.vocab, spec.hidden)?;

        let tokens = b.transient("tokens", Axis::T, 4, Elem::U32);
        b.op(
            "gather_tokens",
            LaneId::MAIN,
            OpKind::GatherTokens(GatherTokens {
                token_source: inputs.token_source,
                token_seq: inputs.token_seq,
                seq_slots: inputs.seq_slots,
                last_token,
                write_slots: inputs.write_slots,
                token_pages,
                vocab: spec.vocab,
                out: tokens,
            }),
        );
        let x = b.transient("x", Axis::T, u64::from(spec.hidden) * 4, Elem::F32);
        b.op(
            "embed",
            LaneId::MAIN,
            OpKind::Embed(Embed {
                tokens,
                w: embed.0,
                format: embed.1,
                vocab: spec.vocab,
                dim: spec.hidden,
                out: x,
            }),
        );
        for layer in 0..spec.layers {
            self.attention(&mut b, backend, shape, &inputs, layer, x, rope)?;
            self.feed_forward(&mut b, backend, layer, x)?;
        }
        self.head(&mut b, backend, shape, &inputs, x, (token_pages, last_token))?;
        Ok(b.finish())
    }

    fn inputs(&self, b: &mut PlanBuilder, backend: &dyn Backend, shape: &PlanShape) -> Inputs {
        let padded = |late| BufferKind::Input { padding: PaddingPolicy::Word(0), late };
        let mask_bytes = u64::from(self.spec.vocab.div_ceil(32)) * 4;
        let bias_bytes = LOGIT_BIAS_MAX as u64 * 8;
        let params_bytes = backend.sample_params_bytes();
        b.live_counts();
        Inputs {
            token_source: b.table("token_source", Axis::T, 1, 0),
            token_seq: b.table("token_seq", Axis::T, 1, 0),
            positions: b.table("positions", Axis::T, 1, 0),
            write_slots: b.table("write_slots", Axis::T, 1, 0),
            seq_slots: b.table("seq_slots", Axis::S, 1, 0),
            block_table: b.table("block_table", Axis::S, u64::from(shape.pages_per_seq_max()), 0),
            logit_rows: b.table("logit_rows", Axis::R, 1, 0),
            logit_slots: b.table("logit_slots", Axis::R, 1, 0),
            params: b.rows("sample_params", padded(false), Axis::R, params_bytes, Elem::Opaque),
            masks: b.rows("masks", padded(true), Axis::R, mask_bytes, Elem::U32),
            bias: b.rows("logit_bias", padded(false), Axis::R, bias_bytes, Elem::Opaque),
        }
    }

    fn matrix(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        role: Role,
        n: u32,
        k: u32,
    ) -> Result<(BufferId, Format), ModelError> {
        let format = self.format(role)?;
        let bytes = backend.matrix_bytes(format, n, k)?;
        Ok((b.weight(role.to_string(), bytes, Elem::Packed(format)), format))
    }

    fn part(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        role: Role,
        (n, k, out_col): (u32, u32, u32),
        bias: Option<Role>,
    ) -> Result<GemmPart, ModelError> {
        let (w, format) = self.matrix(b, backend, role, n, k)?;
        let bias = bias.map(|r| b.weight(r.to_string(), u64::from(n) * 4, Elem::F32));
        Ok(GemmPart { w, format, n, out_col, bias })
    }

    /// A norm whose output has the forms that `parts` read.
    fn norm(
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        name: &str,
        mut norm: RmsNorm,
        parts: &[GemmPart],
    ) -> Act {
        let act = act_for(b, backend, name, norm.axis, norm.dim, parts);
        norm.out = act.f32;
        norm.out_q = act.quant;
        b.op(name, LaneId::MAIN, OpKind::RmsNorm(norm));
        act
    }

    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        shape: &PlanShape,
        inputs: &Inputs,
        layer: u32,
        x: BufferId,
        rope: BufferId,
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let at = |what: &str| format!("layers.{layer}.{what}");
        let role = |r| Role::Layer(layer, r);
        let attn = self.attn_shape(shape, layer);
        let (q_cols, kv_cols) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let qkv_cols = q_cols + 2 * kv_cols;
        let d = spec.hidden;
        let parts = vec![
            self.part(
                b,
                backend,
                role(LayerRole::AttnQ),
                (q_cols, d, 0),
                spec.attn_bias.q.then(|| role(LayerRole::AttnQBias)),
            )?,
            self.part(
                b,
                backend,
                role(LayerRole::AttnK),
                (kv_cols, d, q_cols),
                spec.attn_bias.k.then(|| role(LayerRole::AttnKBias)),
            )?,
            self.part(
                b,
                backend,
                role(LayerRole::AttnV),
                (kv_cols, d, q_cols + kv_cols),
                spec.attn_bias.v.then(|| role(LayerRole::AttnVBias)),
            )?,
        ];
        let norm = self.rms_norm(b, role(LayerRole::AttnNorm), Axis::T, x, None);
        let act = Self::norm(b, backend, &at("attn_norm"), norm, &parts);
        let qkv = b.transient(at("qkv"), Axis::T, u64::from(qkv_cols) * 4, Elem::F32);
        b.op(
            at("qkv"),
            LaneId::MAIN,
            OpKind::Gemm(Gemm {
                axis: Axis::T,
                k: d,
                x: act.f32,
                xq: act.quant,
                parts,
                epilogue: Epilogue::Store,
                out: qkv,
                out_cols: qkv_cols,
            }),
        );
        let (k_bytes, v_bytes) = backend.kv_page_bytes(&attn)?;
        let mut pages = |name: &str, page_bytes| {
            b.state(at(name), StateKind::Pages { page_bytes }, shape.pages, Elem::Opaque)
        };
        let (k_pages, v_pages) = (pages("k_pages", k_bytes), pages("v_pages", v_bytes));
        let qk_norm = spec.qk_norm.then(|| {
            let bytes = u64::from(spec.head_dim) * 4;
            (
                b.weight(role(LayerRole::AttnQNorm).to_string(), bytes, Elem::F32),
                b.weight(role(LayerRole::AttnKNorm).to_string(), bytes, Elem::F32),
            )
        });
        let pairing = match spec.rope.pairing {
            Pairing::Adjacent => RopePairing::Adjacent,
            Pairing::Half => RopePairing::Half,
        };
        backend.rope(&attn, spec.rope.rotary_dim, pairing)?;
        b.op(
            at("rope_kv_write"),
            LaneId::MAIN,
            OpKind::RopeKvWrite(RopeKvWrite {
                qkv,
                table: rope,
                positions: inputs.positions,
                write_slots: inputs.write_slots,
                qk_norm,
                eps_bits: spec.norm_eps.to_bits(),
                k_pages,
                v_pages,
                attn,
                rotary_dim: spec.rope.rotary_dim,
                pairing,
            }),
        );
        let scratch_bytes = backend.attention_scratch_bytes(
            &attn,
            b.bucket(),
            shape.pages_per_seq_max() * PAGE_TOKENS,
        );
        let scratch = b.scratch(at("attention_partials"), scratch_bytes);
        let out = b.transient(at("attention"), Axis::T, u64::from(q_cols) * 4, Elem::F32);
        let op = Attention {
            qkv,
            positions: inputs.positions,
            token_seq: inputs.token_seq,
            block_table: inputs.block_table,
            pages_per_seq_max: shape.pages_per_seq_max(),
            k_pages,
            v_pages,
            scratch,
            out,
            attn,
        };
        b.op(at("attention_partial"), LaneId::MAIN, OpKind::AttentionPartial(op.clone()));
        b.op(at("attention_combine"), LaneId::MAIN, OpKind::AttentionCombine(op));
        let part = self.part(
            b,
            backend,
            role(LayerRole::AttnO),
            (d, q_cols, 0),
            spec.attn_bias.o.then(|| role(LayerRole::AttnOBias)),
        )?;
        self.project(b, backend, &at("attn_o"), out, q_cols, part, x);
        Ok(())
    }

    fn rms_norm(
        &self,
        b: &mut PlanBuilder,
        role: Role,
        axis: Axis,
        x: BufferId,
        row_index: Option<BufferId>,
    ) -> RmsNorm {
        let weight = b.weight(role.to_string(), u64::from(self.spec.hidden) * 4, Elem::F32);
        RmsNorm {
            axis,
            x,
            row_index,
            weight,
            dim: self.spec.hidden,
            eps_bits: self.spec.norm_eps.to_bits(),
            out: None,
            out_q: None,
        }
    }

    /// `x += input * w^T`, quantising `input` where the matrix wants it.
    #[allow(clippy::too_many_arguments)]
    fn project(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        name: &str,
        input: BufferId,
        k: u32,
        part: GemmPart,
        x: BufferId,
    ) {
        let quantised = backend.activation(part.format) == Activation::Quantised;
        let xq = quantised.then(|| {
            let bytes = backend.quant_row_bytes(k);
            let out = b.transient(format!("{name}.in_q"), Axis::T, bytes, Elem::QuantRows);
            let op = QuantizeRows { axis: Axis::T, x: input, dim: k, out };
            b.op(format!("{name}.quantize"), LaneId::MAIN, OpKind::QuantizeRows(op));
            out
        });
        let input = if quantised { None } else { Some(input) };
        self.add_product(b, name, (input, xq), k, part, x);
    }

    /// `x += input * w^T` for an input that has the form that the matrix wants.
    fn add_product(
        &self,
        b: &mut PlanBuilder,
        name: &str,
        (input, xq): (Option<BufferId>, Option<BufferId>),
        k: u32,
        part: GemmPart,
        x: BufferId,
    ) {
        let gemm = Gemm {
            axis: Axis::T,
            k,
            x: input,
            xq,
            parts: vec![part],
            epilogue: Epilogue::AddTo,
            out: x,
            out_cols: self.spec.hidden,
        };
        b.op(name, LaneId::MAIN, OpKind::Gemm(gemm));
    }

    fn feed_forward(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        layer: u32,
        x: BufferId,
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let at = |what: &str| format!("layers.{layer}.{what}");
        let role = |r| Role::Layer(layer, r);
        let (d, ffn) = (spec.hidden, spec.ffn);
        let gate = self.part(b, backend, role(LayerRole::FfnGate), (ffn, d, 0), None)?;
        let mut up = self.part(b, backend, role(LayerRole::FfnUp), (ffn, d, 0), None)?;
        let fused = gate.format == up.format;
        if !fused {
            up.out_col = ffn;
        }
        let parts = vec![gate, up];
        let norm = self.rms_norm(b, role(LayerRole::FfnNorm), Axis::T, x, None);
        let act = Self::norm(b, backend, &at("ffn_norm"), norm, &parts);
        let down = self.part(b, backend, role(LayerRole::FfnDown), (d, ffn, 0), None)?;
        let quantised = backend.activation(down.format) == Activation::Quantised;
        let (epilogue, out_cols, out_bytes, elem) = match (fused, quantised) {
            (true, true) => {
                let bytes = backend.quant_row_bytes(ffn);
                (Epilogue::SwiGluQuantised, ffn, bytes, Elem::QuantRows)
            }
            (true, false) => (Epilogue::SwiGlu, ffn, u64::from(ffn) * 4, Elem::F32),
            (false, _) => (Epilogue::Store, 2 * ffn, u64::from(2 * ffn) * 4, Elem::F32),
        };
        let h = b.transient(at("ffn_hidden"), Axis::T, out_bytes, elem);
        b.op(
            at("ffn_gate_up"),
            LaneId::MAIN,
            OpKind::Gemm(Gemm {
                axis: Axis::T,
                k: d,
                x: act.f32,
                xq: act.quant,
                parts,
                epilogue,
                out: h,
                out_cols,
            }),
        );
        if epilogue == Epilogue::SwiGluQuantised {
            self.add_product(b, &at("ffn_down"), (None, Some(h)), ffn, down, x);
            return Ok(());
        }
        let gated = if fused {
            h
        } else {
            let out = b.transient(at("ffn_gated"), Axis::T, u64::from(ffn) * 4, Elem::F32);
            let op = SiluMul { x: h, dim: ffn, out };
            b.op(at("silu_mul"), LaneId::MAIN, OpKind::SiluMul(op));
            out
        };
        self.project(b, backend, &at("ffn_down"), gated, ffn, down, x);
        Ok(())
    }

    fn head(
        &self,
        b: &mut PlanBuilder,
        backend: &dyn Backend,
        shape: &PlanShape,
        inputs: &Inputs,
        x: BufferId,
        (token_pages, last_token): (BufferId, BufferId),
    ) -> Result<(), ModelError> {
        let (d, vocab) = (self.spec.hidden, self.spec.vocab);
        let role = self.head_role();
        let format = self.format(role)?;
        let w = match b.find(&role.to_string()) {
            Some(w) => w,
            None => self.matrix(b, backend, role, vocab, d)?.0,
        };
        let part = GemmPart { w, format, n: vocab, out_col: 0, bias: None };
        let norm = self.rms_norm(b, Role::FinalNorm, Axis::R, x, Some(inputs.logit_rows));
        let act = Self::norm(b, backend, "final_norm", norm, core::slice::from_ref(&part));
        let logits = b.transient("logits", Axis::R, u64::from(vocab) * 4, Elem::F32);
        b.op(
            "head",
            LaneId::MAIN,
            OpKind::Gemm(Gemm {
                axis: Axis::R,
                k: d,
                x: act.f32,
                xq: act.quant,
                parts: vec![part],
                epilogue: Epilogue::Store,
                out: logits,
                out_cols: vocab,
            }),
        );
        let scratch = b.transient(
            "sample_scratch",
            Axis::R,
            backend.sample_scratch_bytes(vocab),
            Elem::Opaque,
        );
        let results = b.rows(
            "results",
            BufferKind::Output,
            Axis::R,
            backend.sample_results_bytes(),
            Elem::Opaque,
        );
        b.op(
            "sample",
            LaneId::MAIN,
            OpKind::Sample(Sample {
                logits,
                vocab,
                params: inputs.params,
                logit_rows: inputs.logit_rows,
                logit_slots: inputs.logit_slots,
                token_seq: inputs.token_seq,
                masks: inputs.masks,
                bias: inputs.bias,
                block_table: inputs.block_table,
                pages_per_seq_max: shape.pages_per_seq_max(),
                token_pages,
                last_token,
                scratch,
                results,
            }),
        );
        Ok(())
    }
}

/// Buffers for a GEMM's input in the forms that its parts read.
fn act_for(
    b: &mut PlanBuilder,
    backend: &dyn Backend,
    name: &str,
    axis: Axis,
    dim: u32,
    parts: &[GemmPart],
) -> Act {
    let needs = |a| parts.iter().any(|p| backend.activation(p.format) == a);
    let f32 = needs(Activation::F32)
        .then(|| b.transient(format!("{name}.out"), axis, u64::from(dim) * 4, Elem::F32));
    let quant = needs(Activation::Quantised).then(|| {
        b.transient(format!("{name}.out_q"), axis, backend.quant_row_bytes(dim), Elem::QuantRows)
    });
    Act { f32, quant }
}

/// Roles of all matrices, in load order.
fn matrix_roles(spec: &LlamaSpec) -> Vec<Role> {
    use LayerRole::{AttnK, AttnO, AttnQ, AttnV, FfnDown, FfnGate, FfnUp};
    let mut roles = vec![Role::Embed];
    for layer in 0..spec.layers {
        let all = [AttnQ, AttnK, AttnV, AttnO, FfnGate, FfnUp, FfnDown];
        roles.extend(all.map(|r| Role::Layer(layer, r)));
    }
    if !spec.tied_head {
        roles.push(Role::Head);
    }
    roles
}

/// Roles of all vectors.
fn vector_roles(spec: &LlamaSpec) -> Vec<Role> {
    use LayerRole::{
        AttnKBias, AttnKNorm, AttnNorm, AttnOBias, AttnQBias, AttnQNorm, AttnVBias, FfnNorm,
    };
    let bias = spec.attn_bias;
    let wanted = [
        (true, AttnNorm),
        (true, FfnNorm),
        (bias.q, AttnQBias),
        (bias.k, AttnKBias),
        (bias.v, AttnVBias),
        (bias.o, AttnOBias),
        (spec.qk_norm, AttnQNorm),
        (spec.qk_norm, AttnKNorm),
    ];
    let mut roles = vec![Role::FinalNorm];
    for layer in 0..spec.layers {
        roles.extend(wanted.iter().filter(|w| w.0).map(|w| Role::Layer(layer, w.1)));
    }
    roles
}
