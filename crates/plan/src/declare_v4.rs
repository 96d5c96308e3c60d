//! The accesses of DeepSeek-V4's ops.

use crate::declare::Declarer;
use crate::v4::{Choice, StreamSource, Tables, TailRope, V4Op};

impl Declarer<'_> {
    pub(crate) fn v4(&mut self, op: &V4Op) {
        match op {
            V4Op::HyperStart(h) => self.rows_to(&[h.x], h.out),
            V4Op::HyperIn(h) => {
                match h.row_index {
                    Some(via) => {
                        self.read(via);
                        self.read_gather(h.x, via);
                    }
                    None => self.read(h.x),
                }
                self.reads(&[h.projection, h.base, h.scale, h.norm]);
                self.write(h.out);
                h.mix.into_iter().for_each(|b| self.write(b));
            }
            V4Op::HyperOut(h) => self.rows_to(&[h.y, h.mix, h.x], h.x),
            V4Op::HeadRope(h) => {
                self.rope(&h.rope);
                self.rows_to(&[h.positions, h.x], h.x);
            }
            V4Op::WindowStore(w) => {
                self.rope(&w.rope);
                self.reads(&[w.kv, w.norm, w.positions, w.write_slots]);
                self.write_indexed(w.pages, w.write_slots);
            }
            V4Op::StateStore(s) => {
                self.reads(&[s.x, s.write_slots]);
                self.write_indexed(s.pages, s.write_slots);
            }
            V4Op::CompressRows(c) => {
                self.rope(&c.rope);
                self.tables(&c.tables);
                self.reads(&[c.ape, c.norm, c.write_slots]);
                self.read_indexed(c.state, c.tables.block_table);
                self.write_indexed(c.rows, c.write_slots);
            }
            V4Op::IndexScores(i) => {
                self.tables(&i.tables);
                self.read_indexed(i.keys, i.tables.block_table);
                self.rows_to(&[i.q, i.weights], i.scores);
            }
            V4Op::IndexTopK(i) => self.rows_to(&[i.scores, i.positions], i.out),
            V4Op::SinkAttention(a) => {
                self.rope(&a.rope);
                self.tables(&a.tables);
                self.read(a.sinks);
                self.read_indexed(a.window_rows, a.tables.block_table);
                if let Some(c) = &a.compressed {
                    self.read_indexed(c.rows, a.tables.block_table);
                    c.selection.into_iter().for_each(|(b, _)| self.read(b));
                }
                self.reads(&a.tail);
                self.rows_to(&[a.q], a.out);
            }
            V4Op::GroupedGemm(g) => self.rows_to(&[g.x, g.w], g.out),
            V4Op::Route(r) => {
                match r.choice {
                    Choice::Scored { bias } => self.read(bias),
                    Choice::Table { table, tokens } => self.reads(&[table, tokens]),
                }
                self.read(r.logits);
                self.write(r.chosen);
                self.write(r.weights);
            }
            V4Op::ExpertUp(e) => self.rows_to(&[e.x, e.chosen, e.gate, e.up], e.out),
            V4Op::ExpertDown(e) => self.rows_to(&[e.x, e.chosen, e.w], e.out),
            V4Op::LimitedSiluMul(s) => self.rows_to(&[s.x], s.out),
            V4Op::ExpertSum(s) => self.rows_to(&[s.shared, s.routed, s.weights], s.out),
            V4Op::StreamNorm(s) => {
                match &s.source {
                    StreamSource::Before { pages, tables } => {
                        self.tables(tables);
                        self.read_indexed(*pages, tables.block_table);
                    }
                    StreamSource::Rows { x, row_index: Some(via) } => {
                        self.read(*via);
                        self.read_gather(*x, *via);
                    }
                    StreamSource::Rows { x, row_index: None } => self.read(*x),
                }
                self.read(s.norm);
                s.outs.iter().for_each(|b| self.write(*b));
            }
            V4Op::ShiftPositions(s) => self.rows_to(&[s.positions], s.out),
            V4Op::DraftStart(d) => {
                self.reads(&[d.results, d.logit_rows]);
                self.read_gather(d.positions, d.logit_rows);
                self.read_gather(d.token_seq, d.logit_rows);
                for b in [d.tokens_out, d.positions_out, d.seqs_out] {
                    self.write(b);
                }
            }
            V4Op::DraftPick(d) => self.rows_to(&[d.logits], d.out),
        }
    }

    fn reads(&mut self, buffers: &[crate::BufferId]) {
        buffers.iter().for_each(|b| self.read(*b));
    }

    fn rows_to(&mut self, from: &[crate::BufferId], to: crate::BufferId) {
        self.reads(from);
        self.write(to);
    }

    fn rope(&mut self, rope: &TailRope) {
        self.read(rope.table);
    }

    fn tables(&mut self, t: &Tables) {
        self.reads(&[t.positions, t.token_seq]);
        self.read_gather(t.block_table, t.token_seq);
    }
}
