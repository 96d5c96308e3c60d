//! The prediction block: from a token's streams and the token after it to the one after that.
//!
//! A block's key-value row of position i depends on token i + 1. So it is computed when that token
//! is a row of a step, from the streams of the position before, which are kept by page, and lies in
//! the slot of position i + 1: a page's bytes then follow from the tokens up to its end, as those of
//! all other pages do, and prefixes are shared, rewritten and compared like any. A rejected draft
//! leaves nothing that is read: its slots are written again before a row sees them.
//!
//! Drafts follow the draw, a row for every logit row: the token just drawn is the next one, and its
//! row, which has no slot yet, is read from a tail. Further drafts start from the block's own
//! streams and the draft before, each with one row more in the tail.

use super::attention::Seen;
use super::state::{self, Paged};
use super::{DeepSeekV4, Site, Step, Sublayer, product, v4};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::v4::{
    DraftPick, DraftStart, HyperIn, HyperStart, ShiftPositions, StateStore, StreamNorm,
    StreamSource, Tables, V4Op, WindowStore,
};
use lockstep_plan::{Axis, BufferId, BufferKind, Elem, Embed, Epilogue, Gemm, LaneId, OpKind};
use lockstep_weights::{HyperRole, Role, V4Place, V4Role};

/// The block that drafts.
const PLACE: V4Place = V4Place::Mtp(0);

impl DeepSeekV4 {
    /// Keeps what the block needs of every token row, and drafts from every logit row.
    /// `embedding` are the token rows' own, `results` the draw's.
    pub(super) fn drafts(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        embedding: BufferId,
        results: BufferId,
    ) -> Result<(), ModelError> {
        let window_rows = self.keep_rows(e, step, embedding)?;
        let inputs = &step.inputs;
        let words = |e: &mut Emit<'_>, name: &str| e.b.transient(name, Axis::R, 4, Elem::U32);
        let mut tokens = words(e, "draft_tokens");
        let (mut positions, seqs) = (words(e, "draft_positions"), words(e, "draft_seqs"));
        let start = DraftStart {
            results,
            logit_rows: inputs.logit_rows,
            positions: inputs.positions,
            token_seq: inputs.token_seq,
            vocab: self.spec.vocab,
            tokens_out: tokens,
            positions_out: positions,
            seqs_out: seqs,
        };
        v4(e, "draft_start", V4Op::DraftStart(start));
        let mut source = StreamSource::Rows { x: step.x, row_index: Some(inputs.logit_rows) };
        let mut tail = Vec::new();
        for draft in 0..e.shape.drafts {
            let name = format!("{PLACE}draft{draft}.");
            if draft > 0 {
                positions = self.moved(e, &name, Axis::R, positions, 1);
            }
            let embedding = self.embedding(e, &name, tokens)?;
            let site = self.joined(e, (name, Axis::R, positions), embedding, source)?;
            let tables = Tables { positions, token_seq: seqs, ..step.tables };
            self.block(e, step, &site, (window_rows, &mut tail), tables)?;
            tokens = self.pick(e, &site, draft)?;
            source = StreamSource::Rows { x: site.x, row_index: None };
        }
        Ok(())
    }

    /// Keeps the streams of every token row, and the block's key-value row of the position before
    /// it. Returns the pages of the latter.
    fn keep_rows(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        embedding: BufferId,
    ) -> Result<BufferId, ModelError> {
        let spec = &self.spec;
        let pages = state::declare_streams(e, spec);
        let write_slots = step.inputs.write_slots;
        let store = StateStore { x: step.x, cols: spec.stream_width(), write_slots, pages };
        v4(e, "stream_store", V4Op::StateStore(store));
        let name = format!("{PLACE}keep.");
        let source = StreamSource::Before { pages, tables: step.tables };
        let positions = self.moved(e, &name, Axis::T, step.inputs.positions, -1);
        let site = self.joined(e, (name, Axis::T, positions), embedding, source)?;
        let entered = self.enter(e, &site, Sublayer::Attention);
        let kv = self.key_value(e, &site, entered.row)?;
        let window_rows = Paged::Window.declare(e, spec, PLACE);
        let op = WindowStore {
            kv,
            norm: e.vector(site.role(V4Role::KvNorm), spec.head_dim),
            dim: spec.head_dim,
            eps_bits: spec.norm_eps.to_bits(),
            rope: step.ropes[0],
            positions,
            write_slots,
            pages: window_rows,
            code: self.row_code(e.shape),
        };
        v4(e, site.at("window_store"), V4Op::WindowStore(op));
        Ok(window_rows)
    }

    fn moved(
        &self,
        e: &mut Emit<'_>,
        name: &str,
        axis: Axis,
        positions: BufferId,
        by: i32,
    ) -> BufferId {
        let out = e.b.transient(format!("{name}positions"), axis, 4, Elem::U32);
        let limit = e.shape.context_tokens;
        let op = ShiftPositions { axis, positions, by, limit, out };
        v4(e, format!("{name}shift"), V4Op::ShiftPositions(op));
        out
    }

    /// Rows of the embedding of drafted tokens.
    fn embedding(
        &self,
        e: &mut Emit<'_>,
        name: &str,
        tokens: BufferId,
    ) -> Result<BufferId, ModelError> {
        let (vocab, dim, axis) = (self.spec.vocab, self.spec.hidden, Axis::R);
        let (w, format) = e.matrix(Role::Embed, vocab, dim)?;
        let out = e.rows_f32(format!("{name}embed.out"), axis, dim);
        let op = Embed { axis, tokens, w, format, vocab, dim, out };
        e.op(format!("{name}embed"), OpKind::Embed(op));
        Ok(out)
    }

    /// The block's streams: the projected norm of the embedding in each, and the projected norm of
    /// the stream itself.
    fn joined(
        &self,
        e: &mut Emit<'_>,
        (name, axis, positions): (String, Axis, BufferId),
        embedding: BufferId,
        source: StreamSource,
    ) -> Result<Site, ModelError> {
        let spec = &self.spec;
        let (streams, dim) = (spec.streams, spec.hidden);
        let x = e.rows_f32(format!("{name}streams"), axis, spec.stream_width());
        let site = Site { place: PLACE, name, axis, x, positions };
        let row = self.norm(e, &site, "enorm", (V4Role::EmbedNorm, dim), embedding);
        let part = e.part(site.role(V4Role::EmbedProj), (dim, dim, 0), None)?;
        let on = (LaneId::MAIN, axis);
        let row = product(e, on, &site.at("e_proj"), (row, dim), vec![part]);
        let start = HyperStart { axis, x: row, streams, dim, out: x };
        v4(e, site.at("hyper_start"), V4Op::HyperStart(start));
        let outs: Vec<BufferId> =
            (0..streams).map(|k| e.rows_f32(site.at(&format!("hnorm.{k}")), axis, dim)).collect();
        let norm = StreamNorm {
            axis,
            source,
            dim,
            norm: e.vector(site.role(V4Role::StreamNorm), dim),
            eps_bits: spec.norm_eps.to_bits(),
            outs: outs.clone(),
        };
        v4(e, site.at("hnorm"), V4Op::StreamNorm(norm));
        for (k, out) in (0..).zip(outs) {
            let part = e.part(site.role(V4Role::StreamProj), (dim, dim, k * dim), None)?;
            let gemm = Gemm {
                axis,
                k: dim,
                x: Some(out),
                xq: None,
                parts: vec![part],
                epilogue: Epilogue::AddTo,
                out: x,
                out_cols: spec.stream_width(),
            };
            e.op(site.at(&format!("h_proj.{k}")), OpKind::Gemm(gemm));
        }
        Ok(site)
    }

    /// The block itself, over logit rows.
    fn block(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        site: &Site,
        (window_rows, tail): (BufferId, &mut Vec<BufferId>),
        tables: Tables,
    ) -> Result<(), ModelError> {
        let (spec, rope) = (&self.spec, step.ropes[0]);
        let entered = self.enter(e, site, Sublayer::Attention);
        let q_lora = self.query_row(e, site, entered.row)?;
        let kv = self.key_value(e, site, entered.row)?;
        let kv = self.norm(e, site, "kv_norm", (V4Role::KvNorm, spec.head_dim), kv);
        let code = self.row_code(e.shape);
        self.turn(e, LaneId::MAIN, site, "kv_rope", (kv, 1, spec.head_dim), (rope, false, code));
        tail.push(kv);
        let seen = Seen { window_rows, compressed: None, tail: tail.clone(), rope, tables };
        let y = self.attend(e, site, q_lora, seen)?;
        self.leave(e, site, "attn_out", &entered, y);
        self.feed_forward(e, step, site)
    }

    /// The block's own head, the model's matrix, and the token with the greatest logit.
    fn pick(&self, e: &mut Emit<'_>, site: &Site, draft: u32) -> Result<BufferId, ModelError> {
        let (spec, axis) = (&self.spec, site.axis);
        let row = e.rows_f32(site.at("head_in.row"), axis, spec.hidden);
        let roles: (fn(HyperRole) -> V4Role, _) = (V4Role::HyperHead, V4Role::BlockNorm);
        let sizes = (spec.streams, 1);
        let op = HyperIn { axis, ..self.hyper(e, PLACE, roles, sizes, site.x, row) };
        v4(e, site.at("head_in"), V4Op::HyperIn(op));
        let part = e.part(Role::Head, (spec.vocab, spec.hidden, 0), None)?;
        let (kind, bytes) = (BufferKind::Output { fetched: false }, u64::from(spec.vocab) * 4);
        let logits = e.b.rows(format!("draft_logits.{draft}"), kind, axis, bytes, Elem::F32);
        let gemm = Gemm {
            axis,
            k: spec.hidden,
            x: Some(row),
            xq: None,
            out_cols: spec.vocab,
            parts: vec![part],
            epilogue: Epilogue::Store,
            out: logits,
        };
        e.op(site.at("head"), OpKind::Gemm(gemm));
        let kind = BufferKind::Output { fetched: true };
        let out = e.b.rows(format!("drafts.{draft}"), kind, axis, 4, Elem::U32);
        let op = DraftPick { logits, vocab: spec.vocab, out };
        v4(e, site.at("pick"), V4Op::DraftPick(op));
        Ok(out)
    }
}
