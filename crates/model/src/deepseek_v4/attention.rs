//! The attention sublayer: five lanes that meet before the attention itself.

use super::compress::Which;
use super::state::Paged;
use super::{DeepSeekV4, Site, Step, Sublayer, product, v4, v4_on};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::v4::{
    CompressedRows, GroupedGemm, HeadRope, IndexScores, IndexTopK, SinkAttention, Tables, TailRope,
    V4Op, WindowStore,
};
use lockstep_plan::{Axis, BufferId, Elem, LaneId, OpKind, RmsNorm, RowCode};
use lockstep_weights::{Compression, V4Role};

/// The rows that an attention sees.
pub(super) struct Seen {
    /// Pages of the window.
    pub window_rows: BufferId,
    /// Rows beyond it.
    pub compressed: Option<CompressedRows>,
    /// Rows that have no page yet, of a prediction block.
    pub tail: Vec<BufferId>,
    /// The rotation.
    pub rope: TailRope,
    /// Where everything is.
    pub tables: Tables,
}

impl DeepSeekV4 {
    pub(super) fn attention(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        layer: u32,
    ) -> Result<(), ModelError> {
        let compression = self.compression(layer);
        let rope = step.ropes[usize::from(compression != Compression::Window)];
        let entered = self.enter(e, site, Sublayer::Attention);
        let row = entered.row;
        let q_lora = self.query_row(e, site, row)?;
        let kv = self.key_value(e, site, row)?;
        let window_rows = self.store_window(e, step, site, rope, kv);
        let compressed = match compression {
            Compression::Window => None,
            _ => {
                let lane = step.lanes.compress;
                let rows = self.compress(e, step, layer, (Which::Core, lane), row)?;
                let selection = match compression {
                    Compression::C4 => Some(self.select(e, step, site, layer, (row, q_lora))?),
                    _ => None,
                };
                let ratio = compression.ratio().expect("a compressed layer has a ratio");
                Some(CompressedRows { rows, ratio, selection })
            }
        };
        let seen = Seen { window_rows, compressed, tail: Vec::new(), rope, tables: step.tables };
        let y = self.attend(e, site, q_lora, seen)?;
        self.leave(e, site, "attn_out", &entered, y);
        Ok(())
    }

    /// The low-rank row of the queries, normed; the indexer's queries start from it as well.
    pub(super) fn query_row(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        row: BufferId,
    ) -> Result<BufferId, ModelError> {
        let (dim, d) = (self.spec.q_lora, self.spec.hidden);
        let part = e.part(site.role(V4Role::WqA), (dim, d, 0), None)?;
        let on = (LaneId::MAIN, site.axis);
        let x = product(e, on, &site.at("wq_a"), (row, d), vec![part]);
        Ok(self.norm(e, site, "q_norm", (V4Role::QNorm, dim), x))
    }

    /// The key-value row, before its norm.
    pub(super) fn key_value(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        row: BufferId,
    ) -> Result<BufferId, ModelError> {
        let d = self.spec.hidden;
        let part = e.part(site.role(V4Role::Wkv), (self.spec.head_dim, d, 0), None)?;
        let on = (LaneId::MAIN, site.axis);
        Ok(product(e, on, &site.at("wkv"), (row, d), vec![part]))
    }

    /// Queries, their attention to what is `seen`, and its result in the hidden width.
    pub(super) fn attend(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        q_lora: BufferId,
        seen: Seen,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let q_width = spec.q_width();
        let part = e.part(site.role(V4Role::WqB), (q_width, spec.q_lora, 0), None)?;
        let on = (LaneId::MAIN, site.axis);
        let q = product(e, on, &site.at("wq_b"), (q_lora, spec.q_lora), vec![part]);
        let heads = (q, spec.heads, spec.head_dim);
        self.turn(e, LaneId::MAIN, site, "q_rope", heads, (seen.rope, true, RowCode::F32));
        let out = e.rows_f32(site.at("attention.out"), site.axis, q_width);
        let op = SinkAttention {
            axis: site.axis,
            q,
            heads: spec.heads,
            dim: spec.head_dim,
            sinks: e.vector(site.role(V4Role::Sink), spec.heads),
            window_rows: seen.window_rows,
            code: self.row_code(e.shape),
            window: spec.window,
            compressed: seen.compressed,
            tail: seen.tail,
            rope: seen.rope,
            tables: seen.tables,
            out,
        };
        v4(e, site.at("attention"), V4Op::SinkAttention(op));
        self.project_out(e, site, out)
    }

    /// The norm of rows with the vector of a role.
    pub(super) fn norm(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        what: &str,
        (role, dim): (V4Role, u32),
        x: BufferId,
    ) -> BufferId {
        let name = site.at(what);
        let out = e.rows_f32(format!("{name}.out"), site.axis, dim);
        let norm = RmsNorm {
            axis: site.axis,
            x,
            row_index: None,
            weight: e.vector(site.role(role), dim),
            dim,
            eps_bits: self.spec.norm_eps.to_bits(),
            out: Some(out),
            out_q: None,
        };
        e.op(name, OpKind::RmsNorm(norm));
        out
    }

    pub(super) fn store_window(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        rope: TailRope,
        kv: BufferId,
    ) -> BufferId {
        let spec = &self.spec;
        let pages = Paged::Window.declare(e, spec, site.place);
        let op = WindowStore {
            kv,
            norm: e.vector(site.role(V4Role::KvNorm), spec.head_dim),
            dim: spec.head_dim,
            eps_bits: spec.norm_eps.to_bits(),
            rope,
            positions: site.positions,
            write_slots: step.inputs.write_slots,
            pages,
            code: self.row_code(e.shape),
        };
        v4_on(e, step.lanes.window, site.at("window_store"), V4Op::WindowStore(op));
        pages
    }

    /// The indexer: its keys, its query and its weights on lanes of their own, then the choice.
    fn select(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        layer: u32,
        (row, q_lora): (BufferId, BufferId),
    ) -> Result<(BufferId, u32), ModelError> {
        let spec = &self.spec;
        let rope = step.ropes[1];
        let at = |what: &str| site.at(what);
        let role = |r| site.role(r);
        let code = e.shape.index_dtype.code();
        let (heads, dim, topk) = (spec.index_heads, spec.index_head_dim, spec.index_topk);
        let lanes = step.lanes;
        let keys = self.compress(e, step, layer, (Which::Index, lanes.index), row)?;
        let part = e.part(role(V4Role::IndexWeights), (heads, spec.hidden, 0), None)?;
        let name = at("index_weights");
        let on = (lanes.index_weights, Axis::T);
        let weights = product(e, on, &name, (row, spec.hidden), vec![part]);
        let part = e.part(role(V4Role::IndexWqB), (heads * dim, spec.q_lora, 0), None)?;
        let lane = lanes.index_query;
        let on = (lane, Axis::T);
        let q = product(e, on, &at("index_wq_b"), (q_lora, spec.q_lora), vec![part]);
        self.turn(e, lane, site, "index_q_rope", (q, heads, dim), (rope, false, code));
        let ratio = 4;
        let context = step.tables.pages_per_seq_max * lockstep_flow::limits::PAGE_TOKENS;
        let rows_max = context / ratio;
        let scores = e.rows_f32(at("index_scores.out"), Axis::T, rows_max);
        let op = IndexScores {
            q,
            weights,
            heads,
            dim,
            topk,
            ratio,
            keys,
            code,
            tables: step.tables,
            scores,
            rows_max,
        };
        v4_on(e, lanes.index, at("index_scores"), V4Op::IndexScores(op));
        let out = e.b.transient(at("selection"), Axis::T, u64::from(topk) * 4, Elem::U32);
        let positions = step.inputs.positions;
        let op = IndexTopK { scores, rows_max, ratio, topk, positions, out };
        v4_on(e, lanes.index, at("index_topk"), V4Op::IndexTopK(op));
        Ok((out, topk))
    }

    /// Rotates heads, normed first where `unit_norm` says so, and rounds them.
    pub(super) fn turn(
        &self,
        e: &mut Emit<'_>,
        lane: LaneId,
        site: &Site,
        what: &str,
        (x, heads, dim): (BufferId, u32, u32),
        (rope, unit_norm, code): (TailRope, bool, RowCode),
    ) {
        let eps_bits = self.spec.norm_eps.to_bits();
        let (axis, positions) = (site.axis, site.positions);
        let op = HeadRope { axis, x, heads, dim, unit_norm, eps_bits, rope, code, positions };
        v4_on(e, lane, site.at(what), V4Op::HeadRope(op));
    }

    /// Groups of heads to low-rank rows, and those to the hidden width.
    fn project_out(
        &self,
        e: &mut Emit<'_>,
        site: &Site,
        x: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (groups, n, k) = (spec.o_groups, spec.o_lora, spec.q_width() / spec.o_groups);
        let (w, format) = e.matrix(site.role(V4Role::WoA), groups * n, k)?;
        let axis = site.axis;
        let out = e.rows_f32(site.at("wo_a.out"), axis, groups * n);
        let op = GroupedGemm { axis, x, groups, k, n, w, format, out };
        v4(e, site.at("wo_a"), V4Op::GroupedGemm(op));
        let part = e.part(site.role(V4Role::WoB), (spec.hidden, groups * n, 0), None)?;
        let on = (LaneId::MAIN, axis);
        Ok(product(e, on, &site.at("wo_b"), (out, groups * n), vec![part]))
    }
}
