//! From a DeepSeek-V4 op of a proven plan to a call.

use super::gemm::{Activations, Epilogue, GemmArgs};
use super::resolve::Resolver;
use super::tile::PackedMatrix;
use super::v4::{self, PagedRows, V4Call};
use crate::DeviceError;
use lockstep_plan::v4 as plan;
use lockstep_plan::v4::V4Op;
use lockstep_plan::{Axis, BufferId, RowCode, Unsupported};

impl Resolver<'_> {
    pub(super) fn v4(&self, op: &V4Op) -> Result<V4Call, DeviceError> {
        Ok(match op {
            V4Op::HyperStart(h) => V4Call::HyperStart(v4::HyperStart {
                rows: self.rows(h.axis),
                streams: h.streams as usize,
                dim: h.dim as usize,
                x: self.at.f32(h.x),
                out: self.at.f32(h.out),
            }),
            V4Op::HyperIn(h) => V4Call::HyperIn(self.hyper_in(h)),
            V4Op::HyperOut(h) => V4Call::HyperOut(v4::HyperOut {
                isa: self.isa,
                rows: self.rows(h.axis),
                streams: h.streams as usize,
                dim: h.dim as usize,
                y: self.at.f32(h.y),
                mix: self.at.f32(h.mix),
                x: self.at.f32(h.x),
            }),
            V4Op::HeadRope(h) => V4Call::HeadRope(v4::HeadRope {
                isa: self.isa,
                rows: self.rows(h.axis),
                heads: h.heads as usize,
                dim: h.dim as usize,
                unit_norm: h.unit_norm,
                eps: f32::from_bits(h.eps_bits),
                rope: self.tail_rope(&h.rope),
                code: h.code,
                positions: self.at.u32(h.positions),
                x: self.at.f32(h.x),
            }),
            V4Op::WindowStore(w) => V4Call::WindowStore(v4::WindowStore {
                isa: self.isa,
                rows: self.rows(Axis::T),
                dim: w.dim as usize,
                eps: f32::from_bits(w.eps_bits),
                norm: self.at.f32(w.norm),
                rope: self.tail_rope(&w.rope),
                positions: self.at.u32(w.positions),
                write_slots: self.at.u32(w.write_slots),
                kv: self.at.f32(w.kv),
                to: self.paged(w.pages, w.code, w.dim, 1),
            }),
            V4Op::StateStore(s) => V4Call::StateStore(v4::StateStore {
                rows: self.rows(Axis::T),
                x: self.at.f32(s.x),
                write_slots: self.at.u32(s.write_slots),
                to: self.paged(s.pages, RowCode::F32, s.cols, 1),
            }),
            V4Op::CompressRows(c) => V4Call::CompressRows(self.compress_rows(c)),
            V4Op::IndexScores(i) => V4Call::IndexScores(v4::IndexScores {
                isa: self.isa,
                rows: self.rows(Axis::T),
                heads: i.heads as usize,
                dim: i.dim as usize,
                topk: i.topk as usize,
                q: self.at.f32(i.q),
                weights: self.at.f32(i.weights),
                keys: self.paged(i.keys, i.code, i.dim, i.ratio),
                tables: self.tables(&i.tables),
                scores: self.at.f32(i.scores),
                rows_max: i.rows_max as usize,
            }),
            V4Op::IndexTopK(i) => V4Call::IndexTopK(v4::IndexTopK {
                isa: self.isa,
                rows: self.rows(Axis::T),
                ratio: i.ratio as usize,
                topk: i.topk as usize,
                positions: self.at.u32(i.positions),
                scores: self.at.f32(i.scores),
                rows_max: i.rows_max as usize,
                out: self.at.u32(i.out),
            }),
            V4Op::SinkAttention(a) => V4Call::SinkAttention(self.sink_attention(a)),
            V4Op::GroupedGemm(g) => V4Call::GroupedGemm(self.grouped_gemm(g)?),
            V4Op::Route(r) => V4Call::Route(self.route(r)),
            V4Op::ExpertUp(e) => V4Call::ExpertUp(v4::ExpertUp {
                product: v4::Product {
                    isa: self.isa,
                    rows: self.rows(e.axis),
                    per_token: e.per_token as usize,
                    experts: e.experts as usize,
                    desc: self.packed(e.gate)?,
                    weights: self.at.at(e.gate),
                    chosen: self.at.u32(e.chosen),
                    x: self.at.f32(e.x),
                    x_row: e.k as usize,
                    x_choice: 0,
                    out: self.at.f32(e.out),
                },
                up: self.at.at(e.up),
                limit: f32::from_bits(e.limit_bits),
            }),
            V4Op::ExpertDown(e) => V4Call::ExpertDown(v4::ExpertDown(v4::Product {
                isa: self.isa,
                rows: self.rows(e.axis),
                per_token: e.per_token as usize,
                experts: e.experts as usize,
                desc: self.packed(e.w)?,
                weights: self.at.at(e.w),
                chosen: self.at.u32(e.chosen),
                x: self.at.f32(e.x),
                x_row: (e.per_token * e.k) as usize,
                x_choice: e.k as usize,
                out: self.at.f32(e.out),
            })),
            V4Op::LimitedSiluMul(s) => V4Call::LimitedSiluMul(v4::LimitedSiluMul {
                isa: self.isa,
                rows: self.rows(s.axis),
                dim: s.dim as usize,
                limit: f32::from_bits(s.limit_bits),
                x: self.at.f32(s.x),
                out: self.at.f32(s.out),
            }),
            V4Op::ExpertSum(s) => V4Call::ExpertSum(v4::ExpertSum {
                isa: self.isa,
                rows: self.rows(s.axis),
                per_token: s.per_token as usize,
                dim: s.dim as usize,
                shared: self.at.f32(s.shared),
                routed: self.at.f32(s.routed),
                weights: self.at.f32(s.weights),
                out: self.at.f32(s.out),
            }),
            V4Op::StreamNorm(s) => V4Call::StreamNorm(self.stream_norm(s)),
            V4Op::ShiftPositions(s) => V4Call::ShiftPositions(v4::ShiftPositions {
                rows: self.rows(s.axis),
                by: s.by,
                limit: s.limit,
                positions: self.at.u32(s.positions),
                out: self.at.u32(s.out),
            }),
            V4Op::DraftStart(d) => V4Call::DraftStart(v4::DraftStart {
                rows: self.rows(Axis::R),
                vocab: d.vocab,
                results: self.at.at(d.results).cast(),
                logit_rows: self.at.u32(d.logit_rows),
                positions: self.at.u32(d.positions),
                token_seq: self.at.u32(d.token_seq),
                tokens_out: self.at.u32(d.tokens_out),
                positions_out: self.at.u32(d.positions_out),
                seqs_out: self.at.u32(d.seqs_out),
            }),
            V4Op::DraftPick(d) => V4Call::DraftPick(v4::DraftPick {
                rows: self.rows(Axis::R),
                vocab: d.vocab as usize,
                logits: self.at.f32(d.logits),
                out: self.at.u32(d.out),
            }),
        })
    }

    /// Addresses of a few buffers of f32; null past the last.
    fn list<const N: usize>(&self, of: &[BufferId], what: &str) -> [*mut f32; N] {
        assert!(of.len() <= N, "{} {what}, and {N} is the most", of.len());
        let mut out = [core::ptr::null_mut(); N];
        for (to, id) in out.iter_mut().zip(of) {
            *to = self.at.f32(*id);
        }
        out
    }

    fn stream_norm(&self, s: &plan::StreamNorm) -> v4::StreamNorm {
        let width = s.outs.len() as u32 * s.dim;
        let source = match s.source {
            plan::StreamSource::Before { pages, tables } => v4::StreamSource::Before {
                pages: self.paged(pages, RowCode::F32, width, 1),
                tables: self.tables(&tables),
            },
            plan::StreamSource::Rows { x, row_index } => v4::StreamSource::Rows {
                x: self.at.f32(x),
                row_index: row_index.map_or(core::ptr::null(), |id| self.at.u32(id)),
            },
        };
        v4::StreamNorm {
            isa: self.isa,
            rows: self.rows(s.axis),
            dim: s.dim as usize,
            eps: f32::from_bits(s.eps_bits),
            source,
            norm: self.at.f32(s.norm),
            streams: s.outs.len(),
            outs: self.list(&s.outs, "residual streams"),
        }
    }

    fn paged(&self, pages: BufferId, code: RowCode, dim: u32, ratio: u32) -> PagedRows {
        let codec = v4::RowCodec { code, dim: dim as usize };
        PagedRows { pages: self.at.at(pages), codec, ratio: ratio as usize }
    }

    fn tail_rope(&self, rope: &plan::TailRope) -> v4::TailRope {
        v4::TailRope { table: self.at.f32(rope.table), rotary: rope.rotary_dim as usize }
    }

    fn tables(&self, t: &plan::Tables) -> v4::Tables {
        v4::Tables {
            positions: self.at.u32(t.positions),
            token_seq: self.at.u32(t.token_seq),
            block_table: self.at.u32(t.block_table),
            stride: t.pages_per_seq_max as usize,
        }
    }

    fn hyper_in(&self, h: &plan::HyperIn) -> v4::HyperIn {
        v4::HyperIn {
            isa: self.isa,
            rows: self.rows(h.axis),
            streams: h.streams as usize,
            dim: h.dim as usize,
            iters: h.sinkhorn_iters,
            hyper_eps: f32::from_bits(h.hyper_eps_bits),
            norm_eps: f32::from_bits(h.norm_eps_bits),
            x: self.at.f32(h.x),
            row_index: h.row_index.map_or(core::ptr::null(), |id| self.at.u32(id)),
            projection: self.at.f32(h.projection),
            base: self.at.f32(h.base),
            scale: self.at.f32(h.scale),
            norm: self.at.f32(h.norm),
            out: self.at.f32(h.out),
            mix: self.at.opt_f32(h.mix),
        }
    }

    fn compress_rows(&self, c: &plan::CompressRows) -> v4::CompressRows {
        let channels = if c.overlap { 2 * c.dim } else { c.dim };
        v4::CompressRows {
            isa: self.isa,
            rows: self.rows(Axis::T),
            overlap: c.overlap,
            dim: c.dim as usize,
            ape: self.at.f32(c.ape),
            norm: self.at.f32(c.norm),
            eps: f32::from_bits(c.eps_bits),
            rope: self.tail_rope(&c.rope),
            tables: self.tables(&c.tables),
            write_slots: self.at.u32(c.write_slots),
            state: self.paged(c.state, RowCode::F32, 2 * channels, 1),
            to: self.paged(c.rows, c.code, c.dim, c.ratio),
        }
    }

    fn sink_attention(&self, a: &plan::SinkAttention) -> v4::SinkAttention {
        let compressed = a.compressed.map(|c| {
            let (selection, topk) = c.selection.unzip();
            v4::Compressed {
                rows: self.paged(c.rows, a.code, a.dim, c.ratio),
                selection: selection.map_or(core::ptr::null(), |id| self.at.u32(id)),
                topk: topk.unwrap_or(0) as usize,
            }
        });
        v4::SinkAttention {
            isa: self.isa,
            rows: self.rows(a.axis),
            heads: a.heads as usize,
            dim: a.dim as usize,
            q: self.at.f32(a.q),
            sinks: self.at.f32(a.sinks),
            window_rows: self.paged(a.window_rows, a.code, a.dim, 1),
            window: a.window as usize,
            compressed,
            tail: self.list(&a.tail, "rows of a tail"),
            tail_rows: a.tail.len(),
            rope: self.tail_rope(&a.rope),
            tables: self.tables(&a.tables),
            out: self.at.f32(a.out),
        }
    }

    fn grouped_gemm(&self, g: &plan::GroupedGemm) -> Result<v4::GroupedGemm, DeviceError> {
        let refuse = |e: &dyn core::fmt::Display| {
            DeviceError::Unsupported(Unsupported {
                device: super::backend::NAME,
                asked: format!("groups of {} by {} of {}", g.n, g.k, g.format),
                supported: e.to_string(),
            })
        };
        let (n, k) = (g.n as usize, g.k as usize);
        let desc = PackedMatrix::plan(g.format, n, k).map_err(|e| refuse(&e))?;
        let args = GemmArgs {
            desc,
            weights: self.at.at(g.w),
            bias: core::ptr::null(),
            x: Activations::F32 { values: self.at.f32(g.x), row_stride: k * g.groups as usize },
            rows: self.rows(g.axis),
            epilogue: Epilogue::Store {
                out: self.at.f32(g.out),
                row_stride: n * g.groups as usize,
            },
            isa: self.isa,
        };
        let first = args.capture().map_err(|e| refuse(&e))?;
        Ok(v4::GroupedGemm { first, groups: g.groups })
    }

    fn route(&self, r: &plan::Route) -> v4::Route {
        let null = core::ptr::null();
        let (bias, table, vocab, tokens) = match r.choice {
            plan::Choice::Scored { bias } => (self.at.f32(bias).cast_const(), null, 0, null),
            plan::Choice::Table { table, tokens } => (
                core::ptr::null(),
                self.at.u32(table).cast_const(),
                self.plan.buffer(table).bytes as usize / (4 * r.per_token as usize),
                self.at.u32(tokens).cast_const(),
            ),
        };
        v4::Route {
            isa: self.isa,
            rows: self.rows(r.axis),
            experts: r.experts as usize,
            per_token: r.per_token as usize,
            scaling: f32::from_bits(r.scaling_bits),
            logits: self.at.f32(r.logits),
            bias,
            table,
            vocab,
            tokens,
            chosen: self.at.u32(r.chosen),
            weights: self.at.f32(r.weights),
        }
    }
}
