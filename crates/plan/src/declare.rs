//! The accesses of each kind of op: one place where a kernel says what it touches.
//!
//! Over-approximation is allowed, omission is a bug that the explorer is there to find.

use crate::{Access, Axis, Buffer, BufferId, BufferKind, OpKind, RowReach, RowView, Span, Stride};

/// Reads and writes of an op.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accesses {
    /// Bytes read.
    pub reads: Vec<Access>,
    /// Bytes written.
    pub writes: Vec<Access>,
}

/// Declares what `kind` touches over `buffers`.
pub fn declare(kind: &OpKind, buffers: &[Buffer]) -> Accesses {
    let mut d = Declarer { buffers, out: Accesses::default() };
    d.kind(kind);
    d.out
}

pub(crate) struct Declarer<'a> {
    buffers: &'a [Buffer],
    out: Accesses,
}

impl Declarer<'_> {
    fn access(&self, id: BufferId, reach: RowReach) -> Access {
        // An id out of range stays visible in the declaration, for `prove` to refuse.
        let Some(b) = self.buffers.get(id.index()) else { return Access::whole(id, 0) };
        let span = Span { buffer: id, offset: 0, len: b.bytes };
        let rows =
            b.rows.map(|(axis, stride)| RowView { axis, stride: Stride::Capacity(stride), reach });
        Access::Static { span, rows }
    }

    pub(crate) fn read(&mut self, id: BufferId) {
        let a = self.access(id, RowReach::Same);
        self.out.reads.push(a);
    }

    pub(crate) fn read_gather(&mut self, id: BufferId, via: BufferId) {
        let a = self.access(id, RowReach::Gather { via });
        self.out.reads.push(a);
    }

    pub(crate) fn write(&mut self, id: BufferId) {
        let a = self.access(id, RowReach::Same);
        self.out.writes.push(a);
    }

    /// The first `cols` 4-byte columns of each row; over-approximated as the whole buffer.
    fn indexed(&self, buffer: BufferId, via: BufferId) -> Access {
        let kind = self.buffers.get(buffer.index()).map(|b| b.kind);
        let reserved = matches!(kind, Some(BufferKind::State(_)));
        Access::Indexed { buffer, via, reserved_for_padding: reserved }
    }

    pub(crate) fn read_indexed(&mut self, buffer: BufferId, via: BufferId) {
        let a = self.indexed(buffer, via);
        self.out.reads.push(a);
    }

    pub(crate) fn write_indexed(&mut self, buffer: BufferId, via: BufferId) {
        let a = self.indexed(buffer, via);
        self.out.writes.push(a);
    }

    fn kind(&mut self, kind: &OpKind) {
        match kind {
            OpKind::HostWrite { input } => self.write(*input),
            OpKind::HostRead { output } => self.read(*output),
            OpKind::GatherTokens(g) => {
                self.read(g.token_source);
                self.read(g.token_seq);
                self.read_gather(g.seq_slots, g.token_seq);
                self.read_indexed(g.last_token, g.seq_slots);
                self.read(g.write_slots);
                self.write_indexed(g.token_pages, g.write_slots);
                self.write(g.out);
            }
            OpKind::Embed(e) => {
                self.read(e.tokens);
                self.read(e.w);
                self.write(e.out);
            }
            OpKind::RmsNorm(n) => {
                match n.row_index {
                    Some(via) => {
                        self.read(via);
                        self.read_gather(n.x, via);
                    }
                    None => self.read(n.x),
                }
                self.read(n.weight);
                n.out.into_iter().chain(n.out_q).for_each(|b| self.write(b));
            }
            OpKind::QuantizeRows(q) => {
                self.read(q.x);
                self.write(q.out);
            }
            OpKind::Gemm(g) => {
                g.x.into_iter().chain(g.xq).for_each(|b| self.read(b));
                for part in &g.parts {
                    self.read(part.w);
                    part.bias.into_iter().for_each(|b| self.read(b));
                }
                if g.epilogue == crate::Epilogue::AddTo {
                    self.read(g.out);
                }
                self.write(g.out);
            }
            OpKind::RopeKvWrite(r) => {
                for b in [r.qkv, r.table, r.positions, r.write_slots] {
                    self.read(b);
                }
                if let Some((q, k)) = r.qk_norm {
                    self.read(q);
                    self.read(k);
                }
                self.write(r.qkv);
                self.write_indexed(r.k_pages, r.write_slots);
                self.write_indexed(r.v_pages, r.write_slots);
            }
            OpKind::AttentionPartial(a) => {
                self.attention_reads(a);
                self.read_indexed(a.k_pages, a.block_table);
                self.read_indexed(a.v_pages, a.block_table);
                self.write(a.scratch);
            }
            OpKind::AttentionCombine(a) => {
                self.attention_reads(a);
                self.read(a.scratch);
                self.write(a.out);
            }
            OpKind::SiluMul(s) => {
                self.read(s.x);
                self.write(s.out);
            }
            OpKind::Sample(s) => {
                for b in [s.logits, s.params, s.masks, s.bias, s.logit_rows, s.logit_slots] {
                    self.read(b);
                }
                self.read_gather(s.token_seq, s.logit_rows);
                self.read_gather(s.block_table, s.token_seq);
                self.read_indexed(s.token_pages, s.block_table);
                self.write(s.scratch);
                self.write_indexed(s.last_token, s.logit_slots);
                self.write(s.results);
            }
            OpKind::V4(op) => self.v4(op),
            OpKind::Mix { .. } | OpKind::Collective { .. } => {}
        }
    }

    fn attention_reads(&mut self, a: &crate::Attention) {
        for b in [a.qkv, a.positions, a.token_seq] {
            self.read(b);
        }
        self.read_gather(a.block_table, a.token_seq);
    }
}

/// The axis of an op's rows, where it has one: what a profile divides its time by.
pub fn row_axis(kind: &OpKind) -> Option<Axis> {
    match kind {
        OpKind::RmsNorm(n) => Some(n.axis),
        OpKind::QuantizeRows(q) => Some(q.axis),
        OpKind::Gemm(g) => Some(g.axis),
        OpKind::Sample(_) => Some(Axis::R),
        OpKind::V4(op) => Some(op.row_axis()),
        OpKind::Embed(e) => Some(e.axis),
        OpKind::GatherTokens(_)
        | OpKind::RopeKvWrite(_)
        | OpKind::AttentionPartial(_)
        | OpKind::AttentionCombine(_)
        | OpKind::SiluMul(_) => Some(Axis::T),
        OpKind::HostWrite { .. }
        | OpKind::HostRead { .. }
        | OpKind::Mix { .. }
        | OpKind::Collective { .. } => None,
    }
}
