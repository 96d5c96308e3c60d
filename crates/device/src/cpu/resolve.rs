//! From an op of a proven plan to a call: names become addresses, shapes become arguments.

use super::attention;
use super::attention::Layout;
use super::call::{Call, GemmCall, PARTS_MAX};
use super::embed;
use super::gemm::{Activations, Epilogue, Gemm, GemmArgs, SwiGluOut};
use super::isa::Isa;
use super::memory::{Memory, WeightLayout};
use super::mix::{Bytes, Mix};
use super::quant::{self, QBlock};
use super::source::Source;
use super::tile::PackedMatrix;
use super::{norm, rope, rows, sample};
use crate::DeviceError;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan as plan;
use lockstep_plan::{Access, Axis, BufferId, BufferKind, OpId, OpKind, StateKind, Unsupported};

/// Where every buffer of a plan lies, by [`BufferId`].
#[derive(Clone, Debug)]
pub struct Addresses(Vec<*mut u8>);

// SAFETY: addresses are plain numbers; who may follow them when is the device's business.
unsafe impl Send for Addresses {}

impl Addresses {
    /// Resolves all buffers: weights and state by name, the rest into the arena at `base`.
    pub fn new(source: &Source, base: *mut u8, memory: &Memory) -> Result<Addresses, DeviceError> {
        let all = source.plan().buffer_ids().map(|id| address(source, id, base, memory));
        Ok(Addresses(all.collect::<Result<_, _>>()?))
    }

    /// The buffer's first byte.
    pub fn at(&self, id: BufferId) -> *mut u8 {
        self.0[id.index()]
    }

    /// The same with one buffer elsewhere.
    pub fn moved(&self, id: BufferId, to: *mut u8) -> Addresses {
        let mut moved = self.clone();
        moved.0[id.index()] = to;
        moved
    }

    pub(super) fn f32(&self, id: BufferId) -> *mut f32 {
        self.at(id).cast()
    }

    pub(super) fn u32(&self, id: BufferId) -> *mut u32 {
        self.at(id).cast()
    }

    pub(super) fn opt_f32(&self, id: Option<BufferId>) -> *mut f32 {
        id.map_or(core::ptr::null_mut(), |id| self.f32(id))
    }
}

/// Where a buffer of a plan lies. Takes no memory unless it is refused.
///
/// # Errors
/// A weight or state that is not bound, or has another size.
pub fn address(
    source: &Source,
    id: BufferId,
    base: *mut u8,
    memory: &Memory,
) -> Result<*mut u8, DeviceError> {
    let buffer = source.plan().buffer(id);
    let name = &buffer.name;
    let unbound = || DeviceError::Unbound { buffer: name.clone() };
    let sized = |found: usize| {
        if found as u64 == buffer.bytes {
            return Ok(());
        }
        Err(DeviceError::Binding {
            buffer: name.clone(),
            found: format!("{found} bytes"),
            expected: format!("{} bytes", buffer.bytes),
        })
    };
    match buffer.kind {
        BufferKind::Weight => {
            let weight = memory.weight(name).ok_or_else(unbound)?;
            sized(weight.bytes)?;
            Ok(weight.address)
        }
        BufferKind::State(_) => {
            let slab = memory.state(name).ok_or_else(unbound)?;
            sized(slab.len())?;
            Ok(slab.base())
        }
        _ => {
            let offset = source.packing().offset(id);
            let offset = offset.expect("a checked packing places every arena buffer");
            // SAFETY: the proof (or the laboratory's own check) has the buffer inside the arena.
            Ok(unsafe { base.add(offset as usize) })
        }
    }
}

/// Resolves an op; `None` for what the host lane does itself.
///
/// # Errors
/// A kernel refuses a shape.
pub fn resolve(
    source: &Source,
    op: OpId,
    at: &Addresses,
    memory: &Memory,
    isa: Isa,
) -> Result<Option<Call>, DeviceError> {
    let r = Resolver { plan: source.kernels(), at, memory, isa };
    let op = source.kernels().op(op);
    Ok(Some(match &op.kind {
        OpKind::HostWrite { .. } | OpKind::HostRead { .. } => return Ok(None),
        OpKind::GatherTokens(g) => Call::GatherTokens(r.gather_tokens(g)),
        OpKind::Embed(e) => Call::Embed(r.embed(e)?, e.axis),
        OpKind::RmsNorm(n) => Call::RmsNorm(r.rms_norm(n), n.axis),
        OpKind::QuantizeRows(q) => Call::QuantizeRows(r.quantize(q), q.axis),
        OpKind::Gemm(g) => Call::Gemm(r.gemm(g)?),
        OpKind::RopeKvWrite(w) => Call::RopeKvWrite(r.rope_kv_write(w)),
        OpKind::AttentionPartial(a) => Call::AttentionPartial(r.attention(a)?),
        OpKind::AttentionCombine(a) => Call::AttentionCombine(r.attention(a)?),
        OpKind::SiluMul(s) => Call::SiluMul(r.silu_mul(s)),
        OpKind::Sample(s) => Call::Sample(r.sample(s)),
        OpKind::Mix { seed } => Call::Mix(Box::new(r.mix(*seed, op))),
        OpKind::V4(op) => Call::V4(r.v4(op)?, op.row_axis()),
        OpKind::Collective { ranks } => {
            return Err(r.refuse(&format!("a collective of {ranks} ranks"), "plans of one rank"));
        }
    }))
}

pub(super) struct Resolver<'a> {
    pub(super) plan: &'a plan::StepPlan,
    pub(super) at: &'a Addresses,
    memory: &'a Memory,
    pub(super) isa: Isa,
}

impl Resolver<'_> {
    fn refuse(&self, asked: &str, supported: &str) -> DeviceError {
        DeviceError::Unsupported(Unsupported {
            device: super::backend::NAME,
            asked: asked.into(),
            supported: supported.into(),
        })
    }

    pub(super) fn rows(&self, axis: Axis) -> u32 {
        axis.rows(self.plan.bucket)
    }

    pub(super) fn packed(&self, id: BufferId) -> Result<PackedMatrix, DeviceError> {
        let name = &self.plan.buffer(id).name;
        match self.memory.weight(name).map(|w| w.layout) {
            Some(WeightLayout::Packed(desc)) => Ok(desc),
            Some(WeightLayout::Words { len }) => Err(DeviceError::Binding {
                buffer: name.clone(),
                found: format!("{len} words"),
                expected: "a packed matrix".into(),
            }),
            Some(WeightLayout::F32 { len }) => Err(DeviceError::Binding {
                buffer: name.clone(),
                found: format!("{len} f32 values"),
                expected: "a packed matrix".into(),
            }),
            None => Err(DeviceError::Unbound { buffer: name.clone() }),
        }
    }

    fn mix(&self, seed: u64, op: &plan::Op) -> Mix {
        let bytes = |access: &Access| match access {
            Access::Static { span, .. } => Bytes::Static {
                at: self.at.at(span.buffer).wrapping_add(span.offset as usize),
                len: span.len,
            },
            Access::Indexed { buffer, via, .. } => {
                let (state, table) = (self.plan.buffer(*buffer), self.plan.buffer(*via));
                let block = match state.kind {
                    BufferKind::State(StateKind::Pages { page_bytes }) => page_bytes,
                    BufferKind::State(StateKind::Slots { slot_bytes }) => slot_bytes,
                    _ => 0,
                };
                Bytes::Indexed {
                    state: self.at.at(*buffer),
                    blocks: state.bytes.checked_div(block).unwrap_or(0),
                    block,
                    table: self.at.at(*via),
                    entries: table.bytes / 4,
                }
            }
        };
        let all = |list: &[Access]| list.iter().map(bytes).collect();
        Mix { seed, reads: all(&op.reads), writes: all(&op.writes) }
    }

    fn gather_tokens(&self, g: &plan::GatherTokens) -> embed::GatherTokens {
        embed::GatherTokens {
            rows: self.rows(Axis::T),
            vocab: g.vocab,
            token_source: self.at.u32(g.token_source),
            token_seq: self.at.u32(g.token_seq),
            seq_slots: self.at.u32(g.seq_slots),
            last_token: self.at.u32(g.last_token),
            write_slots: self.at.u32(g.write_slots),
            token_pages: self.at.u32(g.token_pages),
            out: self.at.u32(g.out),
        }
    }

    fn embed(&self, e: &plan::Embed) -> Result<embed::Embed, DeviceError> {
        Ok(embed::Embed {
            isa: self.isa,
            rows: self.rows(e.axis),
            tokens: self.at.u32(e.tokens),
            desc: self.packed(e.w)?,
            weights: self.at.at(e.w),
            out: self.at.f32(e.out),
            out_stride: e.dim as usize,
        })
    }

    fn rms_norm(&self, n: &plan::RmsNorm) -> norm::RmsNorm {
        let dim = n.dim as usize;
        norm::RmsNorm {
            isa: self.isa,
            rows: self.rows(n.axis),
            dim: n.dim,
            eps: f32::from_bits(n.eps_bits),
            x: self.at.f32(n.x),
            x_stride: dim,
            row_index: n.row_index.map_or(core::ptr::null(), |id| self.at.u32(id)),
            weight: self.at.f32(n.weight),
            out: self.at.opt_f32(n.out),
            out_stride: dim,
            out_q: n.out_q.map_or(core::ptr::null_mut(), |id| self.at.at(id).cast()),
            out_q_stride_bytes: quant::row_bytes(dim),
        }
    }

    fn quantize(&self, q: &plan::QuantizeRows) -> rows::QuantizeRows {
        rows::QuantizeRows {
            isa: self.isa,
            rows: self.rows(q.axis),
            dim: q.dim,
            x: self.at.f32(q.x),
            out: self.at.at(q.out).cast::<QBlock>(),
            out_stride_bytes: quant::row_bytes(q.dim as usize),
        }
    }

    fn silu_mul(&self, s: &plan::SiluMul) -> rows::SiluMul {
        rows::SiluMul {
            isa: self.isa,
            rows: self.rows(Axis::T),
            dim: s.dim,
            x: self.at.f32(s.x),
            out: self.at.f32(s.out),
        }
    }

    fn gemm(&self, g: &plan::Gemm) -> Result<GemmCall, DeviceError> {
        let mut parts = [None; PARTS_MAX];
        match g.epilogue {
            plan::Epilogue::Store | plan::Epilogue::AddTo => {
                assert!(g.parts.len() <= PARTS_MAX, "a GEMM of {} parts", g.parts.len());
                for (slot, part) in parts.iter_mut().zip(&g.parts) {
                    *slot = Some(self.gemm_part(g, part, self.plain(g, part))?);
                }
            }
            plan::Epilogue::SwiGlu | plan::Epilogue::SwiGluQuantised => {
                let [gate, up] = &g.parts[..] else {
                    panic!("a SwiGLU has a gate and an up matrix");
                };
                let out = if g.epilogue == plan::Epilogue::SwiGlu {
                    SwiGluOut::F32 { values: self.at.f32(g.out), row_stride: g.out_cols as usize }
                } else {
                    SwiGluOut::Quantised {
                        blocks: self.at.at(g.out).cast(),
                        row_stride_bytes: quant::row_bytes(g.out_cols as usize),
                    }
                };
                let epilogue = Epilogue::SwiGlu { up: self.at.at(up.w), out };
                parts[0] = Some(self.gemm_part(g, gate, epilogue)?);
            }
        }
        Ok(GemmCall { parts, axis: g.axis })
    }

    fn plain(&self, g: &plan::Gemm, part: &plan::GemmPart) -> Epilogue {
        let row_stride = g.out_cols as usize;
        let out = self.at.f32(g.out).wrapping_add(part.out_col as usize);
        match g.epilogue {
            plan::Epilogue::AddTo => Epilogue::Add { out, row_stride },
            _ => Epilogue::Store { out, row_stride },
        }
    }

    fn gemm_part(
        &self,
        g: &plan::Gemm,
        part: &plan::GemmPart,
        epilogue: Epilogue,
    ) -> Result<Gemm, DeviceError> {
        let desc = self.packed(part.w)?;
        let k = g.k as usize;
        let missing = "a GEMM has its input in the form that its weights read";
        let x = if desc.takes_quantised() {
            let blocks = self.at.at(g.xq.expect(missing)).cast();
            Activations::Quantised { blocks, row_stride_bytes: quant::row_bytes(k) }
        } else {
            Activations::F32 { values: self.at.f32(g.x.expect(missing)), row_stride: k }
        };
        let args = GemmArgs {
            desc,
            weights: self.at.at(part.w),
            bias: self.at.opt_f32(part.bias),
            x,
            rows: self.rows(g.axis),
            epilogue,
            isa: self.isa,
        };
        args.capture().map_err(|e| {
            DeviceError::Unsupported(Unsupported {
                device: super::backend::NAME,
                asked: format!("a GEMM with {}", self.plan.buffer(part.w).name),
                supported: e.to_string(),
            })
        })
    }

    fn rope_kv_write(&self, w: &plan::RopeKvWrite) -> rope::RopeKvWrite {
        let (q_norm, k_norm) = w.qk_norm.unzip();
        rope::RopeKvWrite {
            isa: self.isa,
            rows: self.rows(Axis::T),
            shape: w.attn,
            rotary_dim: w.rotary_dim,
            pairing: w.pairing,
            qkv: self.at.f32(w.qkv),
            qkv_stride: qkv_cols(&w.attn),
            table: self.at.f32(w.table),
            positions: self.at.u32(w.positions),
            write_slots: self.at.u32(w.write_slots),
            q_norm: self.at.opt_f32(q_norm),
            k_norm: self.at.opt_f32(k_norm),
            eps: f32::from_bits(w.eps_bits),
            k_pages: self.at.at(w.k_pages),
            v_pages: self.at.at(w.v_pages),
        }
    }

    fn attention(&self, a: &plan::Attention) -> Result<attention::Attention, DeviceError> {
        if a.out_quantised {
            return Err(DeviceError::Unsupported(Unsupported {
                device: "cpu",
                asked: "attention into quantised rows".into(),
                supported: "attention into f32 rows".into(),
            }));
        }
        let rows = self.rows(Axis::T);
        let attention = attention::Attention {
            isa: self.isa,
            rows,
            shape: a.attn,
            layout: Layout::of(&a.attn, rows, a.pages_per_seq_max * PAGE_TOKENS),
            q: self.at.f32(a.qkv),
            q_stride: qkv_cols(&a.attn),
            positions: self.at.u32(a.positions),
            token_seq: self.at.u32(a.token_seq),
            block_table: self.at.u32(a.block_table),
            table_stride: a.pages_per_seq_max as usize,
            k_pages: self.at.at(a.k_pages),
            v_pages: self.at.at(a.v_pages),
            scratch: self.at.f32(a.scratch),
            out: self.at.f32(a.out),
            out_stride: (a.attn.heads * a.attn.head_dim) as usize,
        };
        attention.check()?;
        Ok(attention)
    }

    fn sample(&self, s: &plan::Sample) -> sample::Sample {
        sample::Sample {
            isa: self.isa,
            rows: self.rows(Axis::R),
            vocab: s.vocab,
            logits: self.at.f32(s.logits),
            logits_stride: s.vocab as usize,
            params: self.at.at(s.params).cast(),
            logit_rows: self.at.u32(s.logit_rows),
            logit_slots: self.at.u32(s.logit_slots),
            token_seq: self.at.u32(s.token_seq),
            masks: self.at.u32(s.masks),
            mask_stride: s.vocab.div_ceil(32) as usize,
            bias: self.at.at(s.bias).cast(),
            block_table: self.at.u32(s.block_table),
            table_stride: s.pages_per_seq_max as usize,
            token_pages: self.at.u32(s.token_pages),
            last_token: self.at.u32(s.last_token),
            scratch: self.at.u32(s.scratch),
            results: self.at.at(s.results).cast(),
        }
    }
}

/// Columns of a row of q, k and v heads.
fn qkv_cols(shape: &plan::AttnShape) -> usize {
    ((shape.heads + 2 * shape.kv_heads) * shape.head_dim) as usize
}
