//! The attention sublayer: five lanes that meet before the attention itself.

use super::compress::Which;
use super::state::Paged;
use super::{DeepSeekV4, Step, Sublayer, product, v4, v4_on};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::v4::{
    CompressedRows, GroupedGemm, HeadRope, IndexScores, IndexTopK, SinkAttention, TailRope, V4Op,
    WindowStore,
};
use lockstep_plan::{Axis, BufferId, Elem, LaneId, OpKind, RmsNorm};
use lockstep_weights::{Compression, Role, V4Place, V4Role};

impl DeepSeekV4 {
    pub(super) fn attention(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
    ) -> Result<(), ModelError> {
        let spec = &self.spec;
        let place = V4Place::Layer(layer);
        let at = |what: &str| format!("{place}{what}");
        let role = |r| Role::V4(place, r);
        let compression = self.compression(layer);
        let rope = step.ropes[usize::from(compression != Compression::Window)];
        let d = spec.hidden;
        let entered = self.enter(e, step, layer, Sublayer::Attention);
        let row = entered.row;

        let part = e.part(role(V4Role::WqA), (spec.q_lora, d, 0), None)?;
        let q_a = product(e, LaneId::MAIN, &at("wq_a"), (row, d), vec![part]);
        let part = e.part(role(V4Role::Wkv), (spec.head_dim, d, 0), None)?;
        let kv = product(e, LaneId::MAIN, &at("wkv"), (row, d), vec![part]);
        let q_lora = self.q_norm(e, place, q_a);
        let window_rows = self.store_window(e, step, layer, rope, kv);
        let compressed = match compression {
            Compression::Window => None,
            _ => {
                let lane = step.lanes.compress;
                let rows = self.compress(e, step, layer, (Which::Core, lane), row)?;
                let selection = match compression {
                    Compression::C4 => Some(self.select(e, step, layer, rope, row, q_lora)?),
                    _ => None,
                };
                let ratio = compression.ratio().expect("a compressed layer has a ratio");
                Some(CompressedRows { rows, ratio, selection })
            }
        };

        let q_width = spec.q_width();
        let part = e.part(role(V4Role::WqB), (q_width, spec.q_lora, 0), None)?;
        let q = product(e, LaneId::MAIN, &at("wq_b"), (q_lora, spec.q_lora), vec![part]);
        self.turn(e, LaneId::MAIN, at("q_rope"), step, (q, spec.heads, spec.head_dim), rope, true);
        let out = e.rows_f32(at("attention.out"), Axis::T, q_width);
        let op = SinkAttention {
            q,
            heads: spec.heads,
            dim: spec.head_dim,
            sinks: e.vector(role(V4Role::Sink), spec.heads),
            window_rows,
            window: spec.window,
            compressed,
            rope,
            tables: step.tables,
            out,
        };
        v4(e, at("attention"), V4Op::SinkAttention(op));
        let y = self.project_out(e, place, out)?;
        self.leave(e, step, at("attn_out"), &entered, y);
        Ok(())
    }

    /// The low-rank row of the queries, normed; the indexer's queries start from it as well.
    fn q_norm(&self, e: &mut Emit<'_>, place: V4Place, x: BufferId) -> BufferId {
        let dim = self.spec.q_lora;
        let out = e.rows_f32(format!("{place}q_norm.out"), Axis::T, dim);
        let norm = RmsNorm {
            axis: Axis::T,
            x,
            row_index: None,
            weight: e.vector(Role::V4(place, V4Role::QNorm), dim),
            dim,
            eps_bits: self.spec.norm_eps.to_bits(),
            out: Some(out),
            out_q: None,
        };
        e.op(format!("{place}q_norm"), OpKind::RmsNorm(norm));
        out
    }

    fn store_window(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
        rope: TailRope,
        kv: BufferId,
    ) -> BufferId {
        let spec = &self.spec;
        let place = V4Place::Layer(layer);
        let pages = Paged::Window.declare(e, spec, layer);
        let op = WindowStore {
            kv,
            norm: e.vector(Role::V4(place, V4Role::KvNorm), spec.head_dim),
            dim: spec.head_dim,
            eps_bits: spec.norm_eps.to_bits(),
            rope,
            positions: step.inputs.positions,
            write_slots: step.inputs.write_slots,
            pages,
        };
        v4_on(e, step.lanes.window, format!("{place}window_store"), V4Op::WindowStore(op));
        pages
    }

    /// The indexer: its keys, its query and its weights on lanes of their own, then the choice.
    fn select(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
        rope: TailRope,
        row: BufferId,
        q_lora: BufferId,
    ) -> Result<(BufferId, u32), ModelError> {
        let spec = &self.spec;
        let place = V4Place::Layer(layer);
        let at = |what: &str| format!("{place}{what}");
        let role = |r| Role::V4(place, r);
        let (heads, dim, topk) = (spec.index_heads, spec.index_head_dim, spec.index_topk);
        let lanes = step.lanes;
        let keys = self.compress(e, step, layer, (Which::Index, lanes.index), row)?;
        let part = e.part(role(V4Role::IndexWeights), (heads, spec.hidden, 0), None)?;
        let name = at("index_weights");
        let weights = product(e, lanes.index_weights, &name, (row, spec.hidden), vec![part]);
        let part = e.part(role(V4Role::IndexWqB), (heads * dim, spec.q_lora, 0), None)?;
        let lane = lanes.index_query;
        let q = product(e, lane, &at("index_wq_b"), (q_lora, spec.q_lora), vec![part]);
        self.turn(e, lane, at("index_q_rope"), step, (q, heads, dim), rope, false);
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

    #[allow(clippy::too_many_arguments)]
    fn turn(
        &self,
        e: &mut Emit<'_>,
        lane: LaneId,
        name: String,
        step: &Step,
        (x, heads, dim): (BufferId, u32, u32),
        rope: TailRope,
        unit_norm: bool,
    ) {
        let eps_bits = self.spec.norm_eps.to_bits();
        let positions = step.inputs.positions;
        let op = HeadRope { x, heads, dim, unit_norm, eps_bits, rope, positions };
        v4_on(e, lane, name, V4Op::HeadRope(op));
    }

    /// Groups of heads to low-rank rows, and those to the hidden width.
    fn project_out(
        &self,
        e: &mut Emit<'_>,
        place: V4Place,
        x: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let (groups, n, k) = (spec.o_groups, spec.o_lora, spec.q_width() / spec.o_groups);
        let (w, format) = e.matrix(Role::V4(place, V4Role::WoA), groups * n, k)?;
        let out = e.rows_f32(format!("{place}wo_a.out"), Axis::T, groups * n);
        let op = GroupedGemm { x, groups, k, n, w, format, out };
        v4(e, format!("{place}wo_a"), V4Op::GroupedGemm(op));
        let part = e.part(Role::V4(place, V4Role::WoB), (spec.hidden, groups * n, 0), None)?;
        let name = format!("{place}wo_b");
        Ok(product(e, LaneId::MAIN, &name, (out, groups * n), vec![part]))
    }
}
