//! From an op of a proven plan to a launch: names become addresses, shapes become arguments.

use crate::backend::{self, K_STEP, SplitLayout, TILE_ROWS, gemm_slices};
use crate::driver::Shape;
use crate::kernels::Kernels;
use crate::launch::{
    AttnArgs, EmbedArgs, GatherArgs, GemmArgs, Launch, NormArgs, PartArgs, RopeArgs, RowsArgs,
    SAMPLE_SHARED_BYTES, SampleArgs,
};
use crate::memory::{Memory, WeightLayout};
use lockstep_device::DeviceError;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan as plan;
use lockstep_plan::{
    Axis, BufferId, BufferKind, Epilogue, KvDtype, LIVE_COUNTS, OpId, OpKind, Proven, RopePairing,
    StepPlan, Unsupported,
};

/// Where every buffer of a plan lies on the GPU, by [`BufferId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses(Vec<u64>);

impl Addresses {
    /// Resolves all buffers: weights and state by name, the rest into the arena at `base`.
    pub fn new(proven: &Proven, base: u64, memory: &Memory) -> Result<Addresses, DeviceError> {
        let plan = proven.plan();
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
                _ => {
                    let offset = proven.packing().offset(id);
                    base + offset.expect("a proven packing places every arena buffer")
                }
            });
        }
        Ok(Addresses(addresses))
    }

    /// The buffer's first byte.
    pub fn at(&self, id: BufferId) -> u64 {
        self.0[id.index()]
    }

    fn opt(&self, id: Option<BufferId>) -> u64 {
        id.map_or(0, |id| self.at(id))
    }
}

/// Tokens that a block of the matrix kernels takes, in tiles of 8, with 16 and with 32 features a
/// warp.
const TOKEN_TILES_1: [u32; 5] = [1, 2, 4, 6, 8];
const TOKEN_TILES_2: [u32; 4] = [1, 2, 4, 6];

/// Bytes of shared memory that a line of 128 channels takes.
const LINE_BYTES: u32 = (128 + 8) * 2;

/// What resolving needs.
pub struct Resolver<'a> {
    plan: &'a StepPlan,
    at: &'a Addresses,
    memory: &'a Memory,
    kernels: &'a Kernels,
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
            OpKind::RopeKvWrite(w) => self.rope_kv_write(w),
            OpKind::AttentionPartial(a) => self.attention_partial(a),
            OpKind::AttentionCombine(a) => self.attention_combine(a),
            OpKind::SiluMul(s) => self.silu_mul(s),
            OpKind::Sample(s) => self.sample(s),
            OpKind::V4(op) => return Err(refuse(op.kernel(), "the ops of the Llama family")),
            OpKind::Mix { .. } => return Err(refuse("a synthetic op", "the ops of models")),
            OpKind::Collective { ranks } => {
                let asked = format!("a collective of {ranks} ranks");
                return Err(refuse(&asked, "plans of one rank"));
            }
        }))
    }

    fn rows(&self, axis: Axis) -> u32 {
        axis.rows(self.plan.bucket)
    }

    /// Address of the live count of an axis.
    fn live(&self, axis: Axis) -> u64 {
        self.live
            + match axis {
                Axis::T => 0,
                Axis::S => 4,
                Axis::R => 8,
            }
    }

    fn shape(&self, kernel: &str, grid: (u32, u32), block: u32, shared: u32) -> Shape {
        let function = self.kernels.get(kernel);
        Shape { function, grid, block, shared, cluster: 1 }
    }

    fn tiles(&self, id: BufferId) -> Result<(u32, u32), DeviceError> {
        let name = &self.plan.buffer(id).name;
        match self.memory.weight(name)?.2 {
            WeightLayout::Tiles { n, k } => Ok((n, k)),
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
        let (_, k) = self.tiles(e.w)?;
        let rows = self.rows(e.axis);
        let args = EmbedArgs {
            live: self.live(e.axis),
            tokens: self.at.at(e.tokens),
            w: self.at.at(e.w),
            out: self.at.at(e.out),
            rows,
            dim: e.dim,
            k_tiles: k / 16,
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

    fn gemm(&self, g: &plan::Gemm) -> Result<Launch, DeviceError> {
        assert!(g.parts.len() <= 3, "a GEMM of {} parts", g.parts.len());
        let gated = g.epilogue == Epilogue::SwiGluQuantised;
        let epilogue = match g.epilogue {
            Epilogue::Store => 0,
            Epilogue::AddTo => 1,
            Epilogue::SwiGluQuantised => 2,
            Epilogue::SwiGlu => {
                return Err(refuse("SwiGLU into f32 rows", "SwiGLU into bf16 rows"));
            }
        };
        let mut part = [PartArgs::default(); 3];
        for (to, p) in part.iter_mut().zip(&g.parts) {
            let (n, k) = self.tiles(p.w)?;
            assert_eq!((n, k), (p.n, g.k), "a plan's matrices have the shapes that were loaded");
            let (w, bias) = (self.at.at(p.w), self.at.opt(p.bias));
            let tiles = n.div_ceil(TILE_ROWS);
            *to = PartArgs { w, bias, tiles, n, out_col: p.out_col, pad: 0 };
        }
        let tiles: u32 = part.iter().map(|p| p.tiles).sum();
        let units = if gated { part[0].tiles } else { tiles };
        let slices = gemm_slices(units, g.k);
        let rows = self.rows(g.axis);
        let t = Tiling::of(rows, units, gated, slices, self.kernels.clusters);
        let units = if gated { units } else { units.div_ceil(t.m) };
        let groups = units.div_ceil(8 / t.s_in);
        let token_tiles = rows.div_ceil(t.n * 8);
        let missing = "a GEMM has its input as bf16 rows";
        let args = GemmArgs {
            live: self.live(g.axis),
            x: self.at.at(g.xq.expect(missing)),
            out: self.at.at(g.out),
            part,
            parts: g.parts.len() as u32,
            rows,
            x_stride: g.k,
            out_stride: g.out_cols,
            epilogue,
            units,
            k_tiles: g.k / 16,
            steps: g.k / K_STEP / slices,
            s_in: t.s_in,
            s_out: t.s_out,
            token_tiles,
            s_seq: t.s_seq,
        };
        let grid = (groups * token_tiles * t.s_out, 1);
        let shape = self.shape(&t.kernel(), grid, 256, t.shared_bytes());
        Ok(Launch::new(Shape { cluster: t.s_out, ..shape }, args))
    }

    fn rope_kv_write(&self, w: &plan::RopeKvWrite) -> Launch {
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
        };
        let heads = w.attn.heads + 2 * w.attn.kv_heads;
        Launch::new(self.shape("rope_kv_write", (rows, heads.div_ceil(4)), 128, 0), args)
    }

    fn attention_args(&self, a: &plan::Attention) -> AttnArgs {
        let rows = self.rows(Axis::T);
        let layout = SplitLayout::of(&a.attn, rows, a.pages_per_seq_max * PAGE_TOKENS);
        AttnArgs {
            live: self.live(Axis::T),
            qkv: self.at.at(a.qkv),
            positions: self.at.at(a.positions),
            token_seq: self.at.at(a.token_seq),
            block_table: self.at.at(a.block_table),
            k_pages: self.at.at(a.k_pages),
            v_pages: self.at.at(a.v_pages),
            scratch: self.at.at(a.scratch),
            out: self.at.at(a.out),
            rows,
            heads: a.attn.heads,
            kv_heads: a.attn.kv_heads,
            table_stride: a.pages_per_seq_max,
            window: a.attn.window,
            parts: layout.parts,
            ways: layout.ways,
            head_dim: a.attn.head_dim,
            scale: 1.0 / (a.attn.head_dim as f32).sqrt(),
            pad: 0,
        }
    }

    fn attention_partial(&self, a: &plan::Attention) -> Launch {
        let args = self.attention_args(a);
        let dtype = match a.attn.kv_dtype {
            KvDtype::F16 => "f16",
            KvDtype::F32 => "f32",
        };
        let kernel = format!("attention_partial_{dtype}_{}", a.attn.head_dim);
        let blocks = args.rows * args.kv_heads * args.ways;
        let shared = backend::attention_shared_bytes(&a.attn);
        Launch::new(self.shape(&kernel, (blocks, 1), 256, shared), args)
    }

    fn attention_combine(&self, a: &plan::Attention) -> Launch {
        let args = self.attention_args(a);
        let blocks = (args.rows * args.heads).div_ceil(4);
        Launch::new(self.shape("attention_combine", (blocks, 1), 128, 0), args)
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

/// How blocks share a product: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tiling {
    /// Tiles of 16 features a warp.
    m: u32,
    /// Tiles of 8 tokens a block.
    n: u32,
    /// Slices of K that the warps of a block take side by side.
    s_in: u32,
    /// Blocks of a cluster, which take the slices between them.
    s_out: u32,
    /// Slices that a warp takes one after the other.
    s_seq: u32,
}

/// Blocks that occupy an H200.
const BLOCKS_ENOUGH: u32 = 128;

impl Tiling {
    /// For `rows` tokens and `units` tiles of features. Few tokens: a block takes all slices,
    /// since what it reads of x is little. More: the blocks of a cluster take a slice each, so
    /// that x is read once for 128 features instead of once for 16. Many: there are blocks enough
    /// without cutting K, so a warp takes its slices in order and nobody has to meet.
    fn of(rows: u32, units: u32, gated: bool, slices: u32, clusters: bool) -> Tiling {
        // Room for the sums so far of 128 tokens is what chips with clusters have.
        let wide = if clusters { 16 } else { 8 };
        let seq_blocks = units.div_ceil(if gated { 8 } else { 16 }) * rows.div_ceil(wide * 8);
        let alone = !clusters && rows > 32;
        if rows > 128 && seq_blocks >= BLOCKS_ENOUGH || alone {
            return Tiling { m: 2, n: wide, s_in: 1, s_out: 1, s_seq: slices };
        }
        let (m, ladder): (u32, &[u32]) =
            if gated { (2, &TOKEN_TILES_2) } else { (1, &TOKEN_TILES_1) };
        let s_in = match rows {
            _ if !clusters => slices,
            0..=4 => slices,
            // A cluster of more than four finds no room on some parts of the chip.
            5..=16 => slices.div_ceil(4).max(slices.min(2)),
            _ => slices.div_ceil(4),
        };
        let fits = |n: &&u32| 2 * s_in * **n * 8 * LINE_BYTES <= 150 << 10;
        let allowed = ladder.iter().filter(fits).copied();
        let most = allowed.clone().next_back().unwrap_or(1);
        // Equal shares of the rows, as many as it takes.
        let share = rows.div_ceil(8).div_ceil(rows.div_ceil(most * 8));
        let n = allowed.into_iter().find(|n| *n >= share).unwrap_or(most);
        Tiling { m, n, s_in, s_out: slices / s_in, s_seq: 1 }
    }

    /// Whether the kernel is the one for many tokens; a product whose K is not cut has one slice.
    fn seq(&self) -> bool {
        self.m == 2 && self.n >= 8
    }

    /// The kernel's name.
    fn kernel(&self) -> String {
        if self.seq() {
            format!("gemm_seq_n{}", self.n)
        } else {
            format!("gemm_m{}_n{}", self.m, self.n)
        }
    }

    /// Two chunks of x and the sums so far, or the partial sums of eight warps.
    fn shared_bytes(&self) -> u32 {
        let so_far = if self.seq() { self.m * self.n * 4 * 256 * 4 } else { 0 };
        let x = 2 * self.s_in * self.n * 8 * LINE_BYTES + so_far;
        let sums = 8 * self.n * 8 * (self.m * 16 + 4) * 4;
        x.max(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tiling_fits_and_takes_all_slices() {
        for rows in 1..=1000 {
            for slices in [1, 2, 4, 8] {
                for case in 0..16 {
                    let (gated, clusters) = (case & 1 == 1, case & 2 == 2);
                    let units = [1, 64, 256, 9496][case >> 2];
                    let t = Tiling::of(rows, units, gated, slices, clusters);
                    assert_eq!(t.s_in * t.s_out * t.s_seq, slices);
                    assert!(8 % t.s_in == 0 && (clusters || t.s_out == 1));
                    let room = if clusters { 227 } else { 160 };
                    assert!(t.shared_bytes() <= room << 10, "{rows} {t:?}");
                }
            }
        }
        let tiling = |rows, units| Tiling::of(rows, units, false, 8, true);
        let of = |m, n, s_in, s_out, s_seq| Tiling { m, n, s_in, s_out, s_seq };
        assert_eq!(tiling(1, 256), of(1, 1, 8, 1, 1));
        assert_eq!(tiling(96, 256), of(1, 6, 2, 4, 1));
        assert_eq!(tiling(2048, 256), of(2, 16, 1, 1, 8));
    }
}
