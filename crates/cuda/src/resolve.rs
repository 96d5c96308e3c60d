//! From an op of a proven plan to a launch: names become addresses, shapes become arguments.

use crate::backend::{self, TILE_ROWS, TileFormat};
use crate::driver::Shape;
use crate::kernels::Kernels;
use crate::launch::{
    EmbedArgs, GatherArgs, Launch, MIX_SPANS, MixArgs, MixSpan, NormArgs, RopeArgs, RowsArgs,
    SAMPLE_SHARED_BYTES, SampleArgs,
};
use crate::memory::{Memory, WeightLayout};
use lockstep_device::DeviceError;
use lockstep_plan as plan;
use lockstep_plan::{
    Access, Axis, BufferId, BufferKind, KvDtype, LIVE_COUNTS, OpId, OpKind, Packing, RopePairing,
    StepPlan, Unsupported,
};

/// Rows from which on a block a row occupies the GPU.
const ROWS_ENOUGH: u32 = 256;

/// Where every buffer of a plan lies on the GPU, by [`BufferId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses(Vec<u64>);

impl Addresses {
    /// Resolves all buffers: weights and state by name, the rest into the arena at `base`.
    pub fn new(
        (plan, packing): (&StepPlan, &Packing),
        base: u64,
        memory: &Memory,
    ) -> Result<Addresses, DeviceError> {
        let sized = |name: &str, found: u64, expected: u64| {
            if found == expected {
                return Ok(());
            }
            Err(DeviceError::Binding {
                buffer: name.into(),
                found: format!("{found} bytes"),
                expected: format!("{expected} bytes"),
            })
        };
        let mut addresses = Vec::with_capacity(plan.buffers.len());
        for (id, buffer) in plan.buffer_ids().zip(&plan.buffers) {
            addresses.push(match buffer.kind {
                BufferKind::Weight => {
                    let (address, bytes, _) = memory.weight(&buffer.name)?;
                    sized(&buffer.name, bytes, buffer.bytes)?;
                    address
                }
                BufferKind::State(_) => {
                    let (address, bytes) = memory.state(&buffer.name)?;
                    sized(&buffer.name, bytes, buffer.bytes)?;
                    address
                }
                _ => base + packing.offset(id).expect("a packing places every arena buffer"),
            });
        }
        Ok(Addresses(addresses))
    }

    /// The buffer's first byte.
    pub fn at(&self, id: BufferId) -> u64 {
        self.0[id.index()]
    }

    pub(crate) fn opt(&self, id: Option<BufferId>) -> u64 {
        id.map_or(0, |id| self.at(id))
    }
}

/// What resolving needs.
pub struct Resolver<'a> {
    pub(crate) plan: &'a StepPlan,
    pub(crate) at: &'a Addresses,
    memory: &'a Memory,
    pub(crate) kernels: &'a Kernels,
    live: u64,
}

impl<'a> Resolver<'a> {
    /// Of a plan at these addresses.
    ///
    /// # Errors
    /// The plan has no live counts.
    pub fn new(
        plan: &'a StepPlan,
        at: &'a Addresses,
        memory: &'a Memory,
        kernels: &'a Kernels,
    ) -> Result<Resolver<'a>, DeviceError> {
        let Some(live) = plan.find(LIVE_COUNTS) else {
            return Err(refuse("a plan without live counts", "plans that have them as an input"));
        };
        Ok(Resolver { plan, at, memory, kernels, live: at.at(live) })
    }

    /// Resolves an op; `None` for what the host lane does itself.
    ///
    /// # Errors
    /// There is no kernel for a shape.
    pub fn op(&self, op: OpId) -> Result<Option<Launch>, DeviceError> {
        Ok(Some(match &self.plan.op(op).kind {
            OpKind::HostWrite { .. } | OpKind::HostRead { .. } => return Ok(None),
            OpKind::GatherTokens(g) => self.gather_tokens(g),
            OpKind::Embed(e) => self.embed(e)?,
            OpKind::RmsNorm(n) => self.rms_norm(n)?,
            OpKind::QuantizeRows(q) => self.quantize(q),
            OpKind::Gemm(g) => self.gemm(g)?,
            OpKind::RopeKvWrite(w) => self.rope_kv_write(w, 0),
            OpKind::AttentionPartial(a) => self.attention_partial(a),
            OpKind::AttentionCombine(a) => self.attention_combine(a),
            OpKind::SiluMul(s) => self.silu_mul(s),
            OpKind::Sample(s) => self.sample(s),
            OpKind::V4(op) => return Err(refuse(op.kernel(), "the ops of the Llama family")),
            OpKind::Mix { seed } => self.mix(*seed, self.plan.op(op))?,
            OpKind::Collective { ranks } => {
                let asked = format!("a collective of {ranks} ranks");
                return Err(refuse(&asked, "plans of one rank"));
            }
        }))
    }

    pub(crate) fn rows(&self, axis: Axis) -> u32 {
        axis.rows(self.plan.bucket)
    }

    /// Address of the live count of an axis.
    pub(crate) fn live(&self, axis: Axis) -> u64 {
        self.live
            + match axis {
                Axis::T => 0,
                Axis::S => 4,
                Axis::R => 8,
            }
    }

    pub(crate) fn shape(&self, kernel: &str, grid: (u32, u32), block: u32, shared: u32) -> Shape {
        let function = self.kernels.get(kernel);
        Shape { function, grid, block, shared, cluster: 1 }
    }

    pub(crate) fn tiles(&self, id: BufferId) -> Result<(u32, u32, TileFormat), DeviceError> {
        let name = &self.plan.buffer(id).name;
        match self.memory.weight(name)?.2 {
            WeightLayout::Tiles { n, k, format } => Ok((n, k, format)),
            WeightLayout::F32 { len } => Err(DeviceError::Binding {
                buffer: name.clone(),
                found: format!("{len} f32 values"),
                expected: "a matrix".into(),
            }),
        }
    }

    fn gather_tokens(&self, g: &plan::GatherTokens) -> Launch {
        let rows = self.rows(Axis::T);
        let args = GatherArgs {
            live: self.live(Axis::T),
            source: self.at.at(g.token_source),
            token_seq: self.at.at(g.token_seq),
            seq_slots: self.at.at(g.seq_slots),
            last_token: self.at.at(g.last_token),
            write_slots: self.at.at(g.write_slots),
            token_pages: self.at.at(g.token_pages),
            out: self.at.at(g.out),
            rows,
            vocab: g.vocab,
        };
        Launch::new(self.shape("gather_tokens", (rows.div_ceil(256), 1), 256, 0), args)
    }

    fn embed(&self, e: &plan::Embed) -> Result<Launch, DeviceError> {
        let (n, k, format) = self.tiles(e.w)?;
        let rows = self.rows(e.axis);
        let args = EmbedArgs {
            live: self.live(e.axis),
            tokens: self.at.at(e.tokens),
            w: self.at.at(e.w),
            out: self.at.at(e.out),
            rows,
            dim: e.dim,
            k_tiles: k / 16,
            format: format as u32,
            grouped: if self.kernels.on_wgmma(k) { n.div_ceil(TILE_ROWS) } else { 0 },
            pad: 0,
        };
        Ok(Launch::new(self.shape("embed", (rows, 1), 256, 0), args))
    }

    fn rms_norm(&self, n: &plan::RmsNorm) -> Result<Launch, DeviceError> {
        if !n.dim.is_multiple_of(4) {
            let asked = format!("an RMS norm of {} channels", n.dim);
            return Err(refuse(&asked, "multiples of 4"));
        }
        let rows = self.rows(n.axis);
        let args = NormArgs {
            live: self.live(n.axis),
            x: self.at.at(n.x),
            row_index: self.at.opt(n.row_index),
            weight: self.at.at(n.weight),
            out: self.at.opt(n.out),
            out_q: self.at.opt(n.out_q),
            rows,
            dim: n.dim,
            q_stride: n.dim,
            eps: f32::from_bits(n.eps_bits),
        };
        Ok(Launch::new(self.shape("rms_norm", (rows, 1), 256, 0), args))
    }

    fn quantize(&self, q: &plan::QuantizeRows) -> Launch {
        let rows = self.rows(q.axis);
        let args = RowsArgs {
            live: self.live(q.axis),
            x: self.at.at(q.x),
            out: self.at.at(q.out),
            rows,
            dim: q.dim,
            out_stride: q.dim,
            pad: 0,
        };
        Launch::new(self.shape("quantize_rows", (q.dim.div_ceil(1024), rows), 256, 0), args)
    }

    fn silu_mul(&self, s: &plan::SiluMul) -> Launch {
        let rows = self.rows(Axis::T);
        let args = RowsArgs {
            live: self.live(Axis::T),
            x: self.at.at(s.x),
            out: self.at.at(s.out),
            rows,
            dim: s.dim,
            out_stride: s.dim,
            pad: 0,
        };
        Launch::new(self.shape("silu_mul", (s.dim.div_ceil(256), rows), 256, 0), args)
    }

    /// Heads before `first` stay as they are.
    pub(crate) fn rope_kv_write(&self, w: &plan::RopeKvWrite, first: u32) -> Launch {
        let (q_norm, k_norm) = w.qk_norm.unzip();
        let rows = self.rows(Axis::T);
        let args = RopeArgs {
            live: self.live(Axis::T),
            qkv: self.at.at(w.qkv),
            table: self.at.at(w.table),
            positions: self.at.at(w.positions),
            write_slots: self.at.at(w.write_slots),
            q_norm: self.at.opt(q_norm),
            k_norm: self.at.opt(k_norm),
            k_pages: self.at.at(w.k_pages),
            v_pages: self.at.at(w.v_pages),
            rows,
            heads: w.attn.heads,
            kv_heads: w.attn.kv_heads,
            head_dim: w.attn.head_dim,
            rotary_dim: w.rotary_dim,
            adjacent: u32::from(w.pairing == RopePairing::Adjacent),
            kv_f16: u32::from(w.attn.kv_dtype == KvDtype::F16),
            eps: f32::from_bits(w.eps_bits),
            first,
            pad: 0,
        };
        let heads = w.attn.heads + 2 * w.attn.kv_heads - first;
        // Many rows keep the GPU busy with a few warps each, which take several heads.
        let blocks = heads.div_ceil(4);
        let blocks = if rows < ROWS_ENOUGH { blocks } else { blocks.min(2) };
        let kernel = if w.attn.head_dim <= 128 { "rope_kv_write_128" } else { "rope_kv_write" };
        Launch::new(self.shape(kernel, (rows, blocks), 128, 0), args)
    }

    fn mix(&self, seed: u64, op: &plan::Op) -> Result<Launch, DeviceError> {
        let spans = |all: &[Access]| -> Option<[MixSpan; MIX_SPANS]> {
            let mut spans = [MixSpan::default(); MIX_SPANS];
            for (i, access) in all.iter().enumerate() {
                let Access::Static { span, .. } = access else { return None };
                let at = self.at.at(span.buffer) + span.offset;
                *spans.get_mut(i)? = MixSpan { at, bytes: span.len };
            }
            Some(spans)
        };
        let Some((read, write)) = spans(&op.reads).zip(spans(&op.writes)) else {
            let asked = format!("the synthetic op {}", op.name);
            return Err(refuse(
                &asked,
                "those of up to 8 spans read and 8 written, without tables",
            ));
        };
        let (reads, writes) = (op.reads.len() as u32, op.writes.len() as u32);
        let args = MixArgs { seed, read, write, reads, writes };
        Ok(Launch::new(self.shape("mix", (1, 1), 256, 0), args))
    }

    fn sample(&self, s: &plan::Sample) -> Launch {
        let rows = self.rows(Axis::R);
        let args = SampleArgs {
            live: self.live(Axis::R),
            logits: self.at.at(s.logits),
            params: self.at.at(s.params),
            logit_rows: self.at.at(s.logit_rows),
            logit_slots: self.at.at(s.logit_slots),
            token_seq: self.at.at(s.token_seq),
            masks: self.at.at(s.masks),
            bias: self.at.at(s.bias),
            block_table: self.at.at(s.block_table),
            token_pages: self.at.at(s.token_pages),
            last_token: self.at.at(s.last_token),
            scratch: self.at.at(s.scratch),
            results: self.at.at(s.results),
            rows,
            vocab: s.vocab,
            table_stride: s.pages_per_seq_max,
            scratch_words: backend::sample_scratch_words(s.vocab),
        };
        Launch::new(self.shape("sample", (rows, 1), 1024, SAMPLE_SHARED_BYTES), args)
    }
}

/// There is no kernel for what was asked.
pub fn refuse(asked: &str, supported: &str) -> DeviceError {
    let (asked, supported) = (asked.into(), supported.into());
    DeviceError::Unsupported(Unsupported { device: backend::NAME, asked, supported })
}
