//! From the two halves of attention to launches.
//!
//! f16 pages of up to 128 channels go through tensor cores (`attention_mma.cu`), others do not
//! (`attention.cu`): a choice of the shape, never of the rows.

use crate::backend::{self, SplitLayout};
use crate::launch::{AttnArgs, Launch};
use crate::resolve::Resolver;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{Attention, AttnShape, Axis, KvDtype};

/// Rows of an mma: heads times tokens that a warp takes.
const MMA_ROWS: u32 = 16;

/// Warps that share the pages of a tile of tokens.
const TILE_WARPS: u32 = 4;

/// Blocks beside those of tiles: they take the rows of tiles of more than two sequences in turns.
const ALONE_BLOCKS: u32 = 264;

/// Pages of K and V that a block has in shared memory.
const STAGES: u32 = 3;

/// Whether scores and values of this shape are products of tensor cores.
pub(crate) fn on_tensor_cores(shape: &AttnShape) -> bool {
    shape.kv_dtype == KvDtype::F16 && shape.head_dim <= 128
}

impl Resolver<'_> {
    pub(crate) fn attention_args(&self, a: &Attention) -> AttnArgs {
        let rows = self.rows(Axis::T);
        let layout = SplitLayout::of(&a.attn, rows, a.pages_per_seq_max * PAGE_TOKENS);
        let (mma, dim) = (on_tensor_cores(&a.attn), f64::from(a.attn.head_dim));
        let base = if mma { core::f64::consts::LOG2_E } else { 1.0 };
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
            turn: 0,
            q_norm: 0,
            rows,
            heads: a.attn.heads,
            kv_heads: a.attn.kv_heads,
            table_stride: a.pages_per_seq_max,
            window: a.attn.window,
            parts: layout.parts,
            ways: layout.ways,
            head_dim: a.attn.head_dim,
            scale: (base / dim.sqrt()) as f32,
            tiled: 0,
            base2: u32::from(mma),
            out_bf16: u32::from(a.out_quantised),
            whole: 0,
            adjacent: 0,
            eps: 0.0,
            pad: 0,
        }
    }

    /// Partial results of every split.
    pub(crate) fn attention_partial(&self, a: &Attention) -> Launch {
        let args = self.attention_args(a);
        if on_tensor_cores(&a.attn) {
            return self.attention_mma(args);
        }
        let dtype = match a.attn.kv_dtype {
            KvDtype::F16 => "f16",
            KvDtype::F32 => "f32",
            KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("refused with the model"),
        };
        let kernel = format!("attention_partial_{dtype}_{}", a.attn.head_dim);
        let blocks = args.rows * args.kv_heads * args.ways;
        let shared = backend::attention_shared_bytes(&a.attn);
        Launch::new(self.shape(&kernel, (blocks, 1), 256, shared), args)
    }

    /// Where sequences have one token each, a warp a block; else tiles of tokens after them.
    pub(crate) fn attention_mma(&self, args: AttnArgs) -> Launch {
        let per_kv = args.heads / args.kv_heads;
        let chunks = !self.plan.bucket.is_decode() && per_kv <= MMA_ROWS;
        let tile = (MMA_ROWS / per_kv).max(1) * TILE_WARPS;
        let tiled = if chunks { args.rows.div_ceil(tile) * args.kv_heads } else { 0 };
        let alone = args.rows * args.kv_heads * per_kv.div_ceil(MMA_ROWS) * args.ways;
        let blocks = tiled + if chunks { alone.min(ALONE_BLOCKS) } else { alone };
        let threads = if chunks { 32 * TILE_WARPS } else { 32 };
        let kernel = format!("attention_mma_{}", args.head_dim);
        let shared = STAGES * 2 * PAGE_TOKENS * args.head_dim * 2;
        let shape = self.shape(&kernel, (blocks, 1), threads, shared);
        Launch::new(shape, AttnArgs { tiled, ..args })
    }

    /// Their combination.
    pub(crate) fn attention_combine(&self, a: &Attention) -> Launch {
        let args = self.attention_args(a);
        let blocks = (args.rows * args.heads).div_ceil(4);
        Launch::new(self.shape("attention_combine", (blocks, 1), 128, 0), args)
    }
}
