//! A layer's first half: norm, QKV, RoPE with the KV write, attention, output projection.

use super::{Llama, Step};
use crate::ModelError;
use crate::emit::{Act, Emit};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{
    Activation, Attention, AttnShape, Axis, BufferId, Elem, Epilogue, Gemm, OpKind, RopeKvWrite,
    RopePairing, StateKind,
};
use lockstep_weights::{LayerRole, Pairing, Role};

/// A layer's KV pages.
#[derive(Clone, Copy)]
struct KvPages {
    k: BufferId,
    v: BufferId,
}

impl Llama {
    pub(super) fn attention(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
    ) -> Result<(), ModelError> {
        let at = |what: &str| format!("layers.{layer}.{what}");
        let attn = self.attn_shape(e.shape, layer);
        let (d, q_cols) = (self.spec.hidden, attn.heads * attn.head_dim);
        let qkv = self.qkv(e, step, layer)?;
        let (k_bytes, v_bytes) = e.backend.kv_page_bytes(&attn)?;
        let pages = e.shape.pages;
        let mut state = |name: &str, page_bytes| {
            e.b.state(at(name), StateKind::Pages { page_bytes }, pages, Elem::Opaque)
        };
        let kv = KvPages { k: state("k_pages", k_bytes), v: state("v_pages", v_bytes) };
        self.rope_kv_write(e, step, layer, (qkv, kv))?;
        let bias = self.spec.attn_bias.o.then_some(Role::Layer(layer, LayerRole::AttnOBias));
        let part = e.part(Role::Layer(layer, LayerRole::AttnO), (d, q_cols, 0), bias)?;
        let wanted = e.backend.activation(part.format) == Activation::Quantised;
        let quantised = wanted && e.backend.quantises_attention();
        let out = attend(e, step, &at, (qkv, kv), (attn, quantised));
        if quantised {
            let out = Act { f32: None, quant: Some(out) };
            e.add_product(&at("attn_o"), out, q_cols, part, step.x);
        } else {
            e.project(&at("attn_o"), out, q_cols, part, step.x);
        }
        Ok(())
    }

    /// Norm and the three projections: `[T][q, k, v]`, f32.
    fn qkv(&self, e: &mut Emit<'_>, step: &Step, layer: u32) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let at = |what: &str| format!("layers.{layer}.{what}");
        let role = |r| Role::Layer(layer, r);
        let (q_cols, kv_cols) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let cols = q_cols + 2 * kv_cols;
        let d = spec.hidden;
        let bias = |has: bool, r| has.then_some(role(r));
        let q = bias(spec.attn_bias.q, LayerRole::AttnQBias);
        let k = bias(spec.attn_bias.k, LayerRole::AttnKBias);
        let v = bias(spec.attn_bias.v, LayerRole::AttnVBias);
        let parts = vec![
            e.part(role(LayerRole::AttnQ), (q_cols, d, 0), q)?,
            e.part(role(LayerRole::AttnK), (kv_cols, d, q_cols), k)?,
            e.part(role(LayerRole::AttnV), (kv_cols, d, q_cols + kv_cols), v)?,
        ];
        let norm = self.rms_norm(e, role(LayerRole::AttnNorm), step.x);
        let act = e.norm(&at("attn_norm"), norm, &parts);
        let qkv = e.rows_f32(at("qkv"), Axis::T, cols);
        e.op(
            at("qkv"),
            OpKind::Gemm(Gemm {
                axis: Axis::T,
                k: d,
                x: act.f32,
                xq: act.quant,
                parts,
                epilogue: Epilogue::Store,
                out: qkv,
                out_cols: cols,
            }),
        );
        Ok(qkv)
    }

    /// Norms of heads where the model has them, RoPE in place, and keys and values into pages.
    fn rope_kv_write(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
        (qkv, kv): (BufferId, KvPages),
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let attn = self.attn_shape(e.shape, layer);
        let qk_norm = spec.qk_norm.then(|| {
            (
                e.vector(Role::Layer(layer, LayerRole::AttnQNorm), spec.head_dim),
                e.vector(Role::Layer(layer, LayerRole::AttnKNorm), spec.head_dim),
            )
        });
        let pairing = match spec.rope.pairing {
            Pairing::Adjacent => RopePairing::Adjacent,
            Pairing::Half => RopePairing::Half,
        };
        e.backend.rope(&attn, spec.rope.rotary_dim, pairing)?;
        e.op(
            format!("layers.{layer}.rope_kv_write"),
            OpKind::RopeKvWrite(RopeKvWrite {
                qkv,
                table: step.rope,
                positions: step.inputs.positions,
                write_slots: step.inputs.write_slots,
                qk_norm,
                eps_bits: spec.norm_eps.to_bits(),
                k_pages: kv.k,
                v_pages: kv.v,
                attn,
                rotary_dim: spec.rope.rotary_dim,
                pairing,
            }),
        );
        Ok(())
    }
}

/// Attention over the pages: `[T][heads * head_dim]`, f32 or quantised rows.
fn attend(
    e: &mut Emit<'_>,
    step: &Step,
    at: &dyn Fn(&str) -> String,
    (qkv, kv): (BufferId, KvPages),
    (attn, out_quantised): (AttnShape, bool),
) -> BufferId {
    let pages_per_seq_max = e.shape.pages_per_seq_max();
    let tokens_max = pages_per_seq_max * PAGE_TOKENS;
    let bytes = e.backend.attention_scratch_bytes(&attn, e.b.bucket(), tokens_max);
    let scratch = e.b.scratch(at("attention_partials"), bytes);
    let cols = attn.heads * attn.head_dim;
    let out = if out_quantised {
        let bytes = e.backend.quant_row_bytes(cols);
        e.b.transient(at("attention"), Axis::T, bytes, Elem::QuantRows)
    } else {
        e.rows_f32(at("attention"), Axis::T, cols)
    };
    let op = Attention {
        qkv,
        positions: step.inputs.positions,
        token_seq: step.inputs.token_seq,
        block_table: step.inputs.block_table,
        pages_per_seq_max,
        k_pages: kv.k,
        v_pages: kv.v,
        scratch,
        out,
        out_quantised,
        attn,
    };
    e.op(at("attention_partial"), OpKind::AttentionPartial(op.clone()));
    e.op(at("attention_combine"), OpKind::AttentionCombine(op));
    out
}
