//! The last ops of every plan: logits of the rows that want them, and the draw.

use crate::ModelError;
use crate::emit::{Act, Emit};
use crate::inputs::{Inputs, TokenState};
use lockstep_plan::{
    Axis, BufferId, BufferKind, Elem, Epilogue, Gemm, GemmPart, OpKind, RmsNorm, Sample,
};
use lockstep_weights::Role;

/// The output matrix and the norm before it.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The matrix `[vocab][hidden]`; that of the embedding where the two are tied.
    pub role: Role,
    /// Columns of the residual stream.
    pub hidden: u32,
    /// Rows of the matrix.
    pub vocab: u32,
    /// Of the final norm.
    pub norm_eps: f32,
}

impl Head {
    /// Final norm of the rows of `x` that `logit_rows` names, their logits, and a token for each.
    ///
    /// # Errors
    /// The checkpoint lacks the matrix, or the device a packing of it.
    pub fn emit(
        &self,
        e: &mut Emit<'_>,
        inputs: &Inputs,
        state: &TokenState,
        x: BufferId,
    ) -> Result<(), ModelError> {
        let part = e.part(self.role, (self.vocab, self.hidden, 0), None)?;
        let norm = RmsNorm {
            axis: Axis::R,
            x,
            row_index: Some(inputs.logit_rows),
            weight: e.vector(Role::FinalNorm, self.hidden),
            dim: self.hidden,
            eps_bits: self.norm_eps.to_bits(),
            out: None,
            out_q: None,
        };
        let act = e.norm("final_norm", norm, core::slice::from_ref(&part));
        self.sample(e, inputs, state, act, part);
        Ok(())
    }

    /// Logits of rows that have the form that `part` reads, and a token for each. Returns the
    /// results.
    pub fn sample(
        &self,
        e: &mut Emit<'_>,
        inputs: &Inputs,
        state: &TokenState,
        act: Act,
        part: GemmPart,
    ) -> BufferId {
        let vocab = self.vocab;
        // The audit, canaries and taps look at logits after the step, though no step needs them on
        // the host: as a transient, the next step's writers could overtake such a look.
        let kind = BufferKind::Output { fetched: false };
        let logits = e.b.rows("logits", kind, Axis::R, u64::from(vocab) * 4, Elem::F32);
        e.op(
            "head",
            OpKind::Gemm(Gemm {
                axis: Axis::R,
                k: self.hidden,
                x: act.f32,
                xq: act.quant,
                parts: vec![part],
                epilogue: Epilogue::Store,
                out: logits,
                out_cols: vocab,
            }),
        );
        let bytes = e.backend.sample_scratch_bytes(vocab);
        let scratch = e.b.transient("sample_scratch", Axis::R, bytes, Elem::Opaque);
        let bytes = e.backend.sample_results_bytes();
        let results =
            e.b.rows("results", BufferKind::Output { fetched: true }, Axis::R, bytes, Elem::Opaque);
        e.op(
            "sample",
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
                pages_per_seq_max: e.shape.pages_per_seq_max(),
                token_pages: state.token_pages,
                last_token: state.last_token,
                scratch,
                results,
            }),
        );
        results
    }
}
