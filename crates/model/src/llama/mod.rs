//! The Llama family as a plan builder: Llama, SmolLM2, Mistral, Qwen2, Qwen3.
//!
//! One step, T token rows, S sequences, R logit rows. The residual stream `x` is `[T][hidden]`
//! f32; every layer is norm, QKV, RoPE with the KV write, attention in two halves (fixed KV
//! splits, then their combination), output projection into `x`, norm, gate and up, down into `x`.

mod attention;
mod feed_forward;
mod roles;

use crate::emit::{Emit, Formats};
use crate::head::Head;
use crate::inputs::{self, Inputs, LAST_TOKEN_BYTES, TOKEN_PAGE_BYTES, TokenState};
use crate::{ModelError, PlanShape, SubPool, WeightLoad, WeightSource, rope};
use lockstep_flow::BucketKey;
use lockstep_plan::format::Format;
use lockstep_plan::{AttnShape, Axis, Backend, BufferId, Elem, RmsNorm, StepPlan};
use lockstep_weights::{LlamaSpec, Role};

/// A Llama-family model: its facts and the file format of each matrix.
#[derive(Clone, Debug)]
pub struct Llama {
    spec: LlamaSpec,
    formats: Formats,
}

/// Buffers that every layer reads.
struct Step {
    inputs: Inputs,
    /// The residual stream.
    x: BufferId,
    /// Cosines and sines by position.
    rope: BufferId,
}

impl Llama {
    /// A model of `spec` whose matrices are stored as `format_of` says, by role.
    pub fn new(spec: LlamaSpec, format_of: impl Fn(Role) -> Option<Format>) -> Llama {
        let formats = Formats::of(roles::matrices(&spec), format_of);
        Llama { spec, formats }
    }

    /// The facts.
    pub fn spec(&self) -> &LlamaSpec {
        &self.spec
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
        out.extend(roles::matrices(&self.spec).into_iter().map(matrix));
        out.extend(roles::vectors(&self.spec).into_iter().map(vector));
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
        let mut buffers = vec![("token_pages".to_string(), TOKEN_PAGE_BYTES)];
        for layer in 0..self.spec.layers {
            buffers.push((format!("layers.{layer}.k_pages"), k));
            buffers.push((format!("layers.{layer}.v_pages"), v));
        }
        Ok(vec![SubPool { name: "full".into(), buffers }])
    }

    /// State by slots: name and bytes of one slot.
    pub fn slot_states(&self) -> Vec<(String, u64)> {
        vec![("last_token".into(), LAST_TOKEN_BYTES)]
    }

    /// The step plan of `bucket`.
    pub fn plan(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
        bucket: BucketKey,
    ) -> Result<StepPlan, ModelError> {
        let spec = &self.spec;
        let mut emit = Emit::new(backend, shape, &self.formats, bucket);
        let e = &mut emit;
        let inputs = Inputs::declare(e, spec.vocab);
        let table_bytes = u64::from(shape.context_tokens) * u64::from(spec.rope.rotary_dim) * 4;
        let rope = e.b.weight("rope", table_bytes, Elem::F32);
        let tokens = TokenState::declare(e);
        let (_, x) = inputs::embed(e, &inputs, &tokens, (spec.vocab, spec.hidden))?;
        let step = Step { inputs, x, rope };
        for layer in 0..spec.layers {
            self.attention(e, &step, layer)?;
            self.feed_forward(e, &step, layer)?;
        }
        let role = if spec.tied_head { Role::Embed } else { Role::Head };
        let (hidden, vocab, norm_eps) = (spec.hidden, spec.vocab, spec.norm_eps);
        Head { role, hidden, vocab, norm_eps }.emit(e, &step.inputs, &tokens, x)?;
        Ok(emit.b.finish())
    }

    /// A norm of the residual stream's token rows, its outputs yet to be named.
    fn rms_norm(&self, e: &mut Emit<'_>, role: Role, x: BufferId) -> RmsNorm {
        RmsNorm {
            axis: Axis::T,
            x,
            row_index: None,
            weight: e.vector(role, self.spec.hidden),
            dim: self.spec.hidden,
            eps_bits: self.spec.norm_eps.to_bits(),
            out: None,
            out_q: None,
        }
    }
}
