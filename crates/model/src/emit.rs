//! What plan builders share: a plan in the making, and the weights and products that go into it.

use crate::{ModelError, PlanShape};
use lockstep_flow::BucketKey;
use lockstep_plan::format::Format;
use lockstep_plan::{
    Activation, Axis, Backend, BufferId, Elem, Epilogue, Gemm, GemmPart, LaneId, OpKind,
    PlanBuilder, QuantizeRows, RmsNorm,
};
use lockstep_weights::Role;
use std::collections::BTreeMap;

/// The file format of each matrix of a checkpoint.
#[derive(Clone, Debug)]
pub struct Formats(BTreeMap<Role, Format>);

impl Formats {
    /// The formats of those of `roles` that the checkpoint has.
    pub fn of(
        roles: impl IntoIterator<Item = Role>,
        format_of: impl Fn(Role) -> Option<Format>,
    ) -> Formats {
        Formats(roles.into_iter().filter_map(|role| Some((role, format_of(role)?))).collect())
    }

    /// The format of one matrix.
    ///
    /// # Errors
    /// The checkpoint lacks it.
    pub fn get(&self, role: Role) -> Result<Format, ModelError> {
        self.0.get(&role).copied().ok_or(ModelError::MissingWeight { role })
    }
}

/// Rows of a GEMM's input in the forms that its parts need.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// As f32, where a part reads that.
    pub f32: Option<BufferId>,
    /// Quantised by row and block, where a part reads that.
    pub quant: Option<BufferId>,
}

/// A plan in the making, with what decides sizes.
pub struct Emit<'a> {
    /// The plan.
    pub b: PlanBuilder,
    /// Sizes of what the device packs.
    pub backend: &'a dyn Backend,
    /// Shapes of the generation.
    pub shape: &'a PlanShape,
    formats: &'a Formats,
}

impl<'a> Emit<'a> {
    /// An empty plan of `bucket`.
    pub fn new(
        backend: &'a dyn Backend,
        shape: &'a PlanShape,
        formats: &'a Formats,
        bucket: BucketKey,
    ) -> Emit<'a> {
        Emit { b: PlanBuilder::new(bucket, shape.lanes), backend, shape, formats }
    }

    /// Appends an op to the main lane.
    pub fn op(&mut self, name: impl Into<String>, kind: OpKind) {
        self.b.op(name, LaneId::MAIN, kind);
    }

    /// A transient of f32 rows.
    pub fn rows_f32(&mut self, name: impl Into<String>, axis: Axis, cols: u32) -> BufferId {
        self.b.transient(name, axis, u64::from(cols) * 4, Elem::F32)
    }

    /// The matrix `[n][k]` of a role; bound once, however often it is asked for.
    pub fn matrix(&mut self, role: Role, n: u32, k: u32) -> Result<(BufferId, Format), ModelError> {
        let format = self.formats.get(role)?;
        let name = role.to_string();
        if let Some(bound) = self.b.find(&name) {
            return Ok((bound, format));
        }
        let bytes = self.backend.matrix_bytes(format, n, k)?;
        Ok((self.b.weight(name, bytes, Elem::Packed(format)), format))
    }

    /// The f32 vector of a role; bound once, however often it is asked for.
    pub fn vector(&mut self, role: Role, len: u32) -> BufferId {
        let name = role.to_string();
        let bound = self.b.find(&name);
        bound.unwrap_or_else(|| self.b.weight(name, u64::from(len) * 4, Elem::F32))
    }

    /// A part of a GEMM: the matrix `[n][k]` of a role, its results from column `out_col` on.
    pub fn part(
        &mut self,
        role: Role,
        (n, k, out_col): (u32, u32, u32),
        bias: Option<Role>,
    ) -> Result<GemmPart, ModelError> {
        let (w, format) = self.matrix(role, n, k)?;
        let bias = bias.map(|role| self.vector(role, n));
        Ok(GemmPart { w, format, n, out_col, bias })
    }

    /// A norm whose output has the forms that `parts` read.
    pub fn norm(&mut self, name: &str, mut norm: RmsNorm, parts: &[GemmPart]) -> Act {
        let act = self.act_for(name, norm.axis, norm.dim, parts);
        norm.out = act.f32;
        norm.out_q = act.quant;
        self.op(name, OpKind::RmsNorm(norm));
        act
    }

    /// Buffers for a GEMM's input in the forms that its parts read.
    fn act_for(&mut self, name: &str, axis: Axis, dim: u32, parts: &[GemmPart]) -> Act {
        let needs = |a| parts.iter().any(|p| self.backend.activation(p.format) == a);
        let (plain, quantised) = (needs(Activation::F32), needs(Activation::Quantised));
        let f32 = plain.then(|| self.rows_f32(format!("{name}.out"), axis, dim));
        let quant = quantised.then(|| {
            let bytes = self.backend.quant_row_bytes(dim);
            self.b.transient(format!("{name}.out_q"), axis, bytes, Elem::QuantRows)
        });
        Act { f32, quant }
    }

    /// `x += input * w^T` over token rows, quantising `input` where the matrix wants it.
    pub fn project(&mut self, name: &str, input: BufferId, k: u32, part: GemmPart, x: BufferId) {
        if self.backend.activation(part.format) != Activation::Quantised {
            return self.add_product(name, Act { f32: Some(input), quant: None }, k, part, x);
        }
        let bytes = self.backend.quant_row_bytes(k);
        let out = self.b.transient(format!("{name}.in_q"), Axis::T, bytes, Elem::QuantRows);
        let op = QuantizeRows { axis: Axis::T, x: input, dim: k, out };
        self.op(format!("{name}.quantize"), OpKind::QuantizeRows(op));
        self.add_product(name, Act { f32: None, quant: Some(out) }, k, part, x);
    }

    /// `x += input * w^T` over token rows for an input that has the form that the matrix wants.
    pub fn add_product(&mut self, name: &str, input: Act, k: u32, part: GemmPart, x: BufferId) {
        let gemm = Gemm {
            axis: Axis::T,
            k,
            x: input.f32,
            xq: input.quant,
            out_cols: part.n,
            parts: vec![part],
            epilogue: Epilogue::AddTo,
            out: x,
        };
        self.op(name, OpKind::Gemm(gemm));
    }
}
