//! A layer's second half: norm, gate and up with SwiGLU, down.

use super::{Llama, Step};
use crate::ModelError;
use crate::emit::{Act, Emit};
use lockstep_plan::{Activation, Axis, Elem, Epilogue, Gemm, OpKind, SiluMul};
use lockstep_weights::{LayerRole, Role};

impl Llama {
    pub(super) fn feed_forward(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
    ) -> Result<(), ModelError> {
        let at = |what: &str| format!("layers.{layer}.{what}");
        let role = |r| Role::Layer(layer, r);
        let (d, ffn) = (self.spec.hidden, self.spec.ffn);
        let gate = e.part(role(LayerRole::FfnGate), (ffn, d, 0), None)?;
        let mut up = e.part(role(LayerRole::FfnUp), (ffn, d, 0), None)?;
        // One tile holds both only where both have one format.
        let fused = gate.format == up.format;
        if !fused {
            up.out_col = ffn;
        }
        let parts = vec![gate, up];
        let norm = self.rms_norm(e, role(LayerRole::FfnNorm), step.x);
        let act = e.norm(&at("ffn_norm"), norm, &parts);
        let down = e.part(role(LayerRole::FfnDown), (d, ffn, 0), None)?;
        let quantised = e.backend.activation(down.format) == Activation::Quantised;
        let (epilogue, out_cols, out_bytes, elem) = match (fused, quantised) {
            (true, true) => {
                let bytes = e.backend.quant_row_bytes(ffn);
                (Epilogue::SwiGluQuantised, ffn, bytes, Elem::QuantRows)
            }
            (true, false) => (Epilogue::SwiGlu, ffn, u64::from(ffn) * 4, Elem::F32),
            (false, _) => (Epilogue::Store, 2 * ffn, u64::from(2 * ffn) * 4, Elem::F32),
        };
        let h = e.b.transient(at("ffn_hidden"), Axis::T, out_bytes, elem);
        e.op(
            at("ffn_gate_up"),
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
            let h = Act { f32: None, quant: Some(h) };
            e.add_product(&at("ffn_down"), h, ffn, down, step.x);
            return Ok(());
        }
        let gated = if fused {
            h
        } else {
            let out = e.rows_f32(at("ffn_gated"), Axis::T, ffn);
            e.op(at("silu_mul"), OpKind::SiluMul(SiluMul { x: h, dim: ffn, out }));
            out
        };
        e.project(&at("ffn_down"), gated, ffn, down, step.x);
        Ok(())
    }
}
