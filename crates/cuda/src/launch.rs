//! Arguments of the kernels, as the structs of `kernels/*.cu` lie in memory, and launches.
//!
//! No struct has padding bytes between or behind its fields: each is copied as whole words.

use crate::driver::Shape;

/// A kernel with its shape and its argument.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Kernel, grid, block.
    pub shape: Shape,
    /// The argument struct.
    pub args: Vec<u64>,
}

/// A struct that a kernel takes.
///
/// # Safety
/// `repr(C)`, without padding, of a whole number of 8-byte words, every byte initialised.
pub unsafe trait Args: Copy {}

impl Launch {
    /// A launch of `shape` with `args`.
    pub fn new<A: Args>(shape: Shape, args: A) -> Launch {
        let words = size_of::<A>() / 8;
        let mut to = vec![0u64; words];
        // SAFETY: `Args` has exactly these bytes, all of them initialised.
        unsafe {
            let from = core::ptr::from_ref(&args).cast::<u8>();
            core::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast::<u8>(), words * 8);
        }
        Launch { shape, args: to }
    }
}

macro_rules! args {
    ($name:ident, $bytes:literal) => {
        const _: () = assert!(size_of::<$name>() == $bytes && align_of::<$name>() == 8);
        // SAFETY: the fields below add up to exactly the asserted size, so there is no padding.
        unsafe impl Args for $name {}
    };
}

/// `gather_tokens`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GatherArgs {
    pub live: u64,
    pub source: u64,
    pub token_seq: u64,
    pub seq_slots: u64,
    pub last_token: u64,
    pub write_slots: u64,
    pub token_pages: u64,
    pub out: u64,
    pub rows: u32,
    pub vocab: u32,
}
args!(GatherArgs, 72);

/// `embed`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EmbedArgs {
    pub live: u64,
    pub tokens: u64,
    pub w: u64,
    pub out: u64,
    pub rows: u32,
    pub dim: u32,
    pub k_tiles: u32,
    pub format: u32,
    /// Rows of tiles of the matrix where they lie in groups, else 0.
    pub grouped: u32,
    pub pad: u32,
}
args!(EmbedArgs, 56);

/// `rms_norm`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NormArgs {
    pub live: u64,
    pub x: u64,
    pub row_index: u64,
    pub weight: u64,
    pub out: u64,
    pub out_q: u64,
    pub rows: u32,
    pub dim: u32,
    pub q_stride: u32,
    pub eps: f32,
}
args!(NormArgs, 64);

/// `quantize_rows` and `silu_mul`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowsArgs {
    pub live: u64,
    pub x: u64,
    pub out: u64,
    pub rows: u32,
    pub dim: u32,
    pub out_stride: u32,
    pub pad: u32,
}
args!(RowsArgs, 40);

/// `rope_kv_write`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RopeArgs {
    pub live: u64,
    pub qkv: u64,
    pub table: u64,
    pub positions: u64,
    pub write_slots: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub k_pages: u64,
    pub v_pages: u64,
    pub rows: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rotary_dim: u32,
    pub adjacent: u32,
    pub kv_f16: u32,
    pub eps: f32,
    /// The first head that is taken; those before it stay as they are.
    pub first: u32,
    pub pad: u32,
}
args!(RopeArgs, 112);

/// `pack_matrix`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PackArgs {
    pub from: u64,
    pub to: u64,
    pub seed: u64,
    pub n: u32,
    pub k: u32,
    pub k_tiles: u32,
    pub tiles: u32,
    pub scale: f32,
    /// Rows of tiles lie in groups.
    pub grouped: u32,
}
args!(PackArgs, 48);

/// `first_difference`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DifferenceArgs {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    pub len: u64,
}
args!(DifferenceArgs, 32);

/// `pack_quantised`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PackQuantisedArgs {
    pub from: u64,
    pub to: u64,
    pub n: u32,
    pub k: u32,
    pub tiles: u32,
    pub format: u32,
}
args!(PackQuantisedArgs, 32);

/// Bytes that a synthetic op reads or writes.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct MixSpan {
    pub at: u64,
    pub bytes: u64,
}

/// Spans of either kind that a synthetic op may have.
pub const MIX_SPANS: usize = 8;

/// `mix`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MixArgs {
    pub seed: u64,
    pub read: [MixSpan; MIX_SPANS],
    pub write: [MixSpan; MIX_SPANS],
    pub reads: u32,
    pub writes: u32,
}
args!(MixArgs, 272);

/// `attention_mma_*`, `attention_partial_*` and `attention_combine`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AttnArgs {
    pub live: u64,
    pub qkv: u64,
    pub positions: u64,
    pub token_seq: u64,
    pub block_table: u64,
    pub k_pages: u64,
    pub v_pages: u64,
    pub scratch: u64,
    pub out: u64,
    pub turn: u64,
    pub q_norm: u64,
    pub rows: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub table_stride: u32,
    pub window: u32,
    pub parts: u32,
    pub ways: u32,
    pub head_dim: u32,
    pub scale: f32,
    pub tiled: u32,
    pub base2: u32,
    pub out_bf16: u32,
    pub whole: u32,
    pub adjacent: u32,
    pub eps: f32,
    pub pad: u32,
}
args!(AttnArgs, 152);

/// Rows that are one token of their sequence each, to be rotated, written and attended: what both
/// kernels for them take, one field after the other there.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OneTokenRows {
    pub live: u64,
    pub qkv: u64,
    pub table: u64,
    pub positions: u64,
    pub token_seq: u64,
    pub block_table: u64,
    pub write_slots: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub k_pages: u64,
    pub v_pages: u64,
    pub out: u64,
    pub rows: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub table_stride: u32,
    pub window: u32,
    pub rotary_dim: u32,
}
args!(OneTokenRows, 120);

/// `attention_decode_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DecodeArgs {
    pub of: OneTokenRows,
    pub adjacent: u32,
    pub ways: u32,
    pub depth: u32,
    pub kept: u32,
    pub scale: f32,
    pub eps: f32,
}
args!(DecodeArgs, 144);

/// `attention_walk_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WalkArgs {
    pub k_map: [u64; 16],
    pub v_map: [u64; 16],
    pub of: OneTokenRows,
    pub adjacent: u32,
    /// Pages of a warp that are on their way.
    pub depth: u32,
    pub scale: f32,
    pub eps: f32,
    /// The struct is aligned to 64 bytes there.
    pub pad: [u32; 14],
}
args!(WalkArgs, 448);

/// A matrix of a product.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct PartArgs {
    pub w: u64,
    pub bias: u64,
    pub tiles: u32,
    pub n: u32,
    pub out_col: u32,
    pub format: u32,
}

/// `gemm_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GemmArgs {
    pub live: u64,
    pub x: u64,
    pub out: u64,
    pub part: [PartArgs; 3],
    pub parts: u32,
    pub rows: u32,
    pub x_stride: u32,
    pub out_stride: u32,
    pub epilogue: u32,
    pub units: u32,
    pub k_tiles: u32,
    pub steps: u32,
    pub s_in: u32,
    pub s_out: u32,
    pub token_tiles: u32,
    pub s_seq: u32,
}
args!(GemmArgs, 168);

/// `gemm_wgmma_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WgmmaArgs {
    pub x_map: [u64; 16],
    pub live: u64,
    pub out: u64,
    pub part: [PartArgs; 3],
    pub parts: u32,
    pub rows: u32,
    pub out_stride: u32,
    pub epilogue: u32,
    pub k_tiles: u32,
    pub stages: u32,
    pub s_out: u32,
    pub s_seq: u32,
    pub token_tiles: u32,
    /// The next kernel may start after the last load has landed, not after it was asked for.
    pub late: u32,
    /// The struct is aligned to 64 bytes there.
    pub pad: [u32; 10],
}
args!(WgmmaArgs, 320);

/// `sample`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleArgs {
    pub live: u64,
    pub logits: u64,
    pub params: u64,
    pub logit_rows: u64,
    pub logit_slots: u64,
    pub token_seq: u64,
    pub masks: u64,
    pub bias: u64,
    pub block_table: u64,
    pub token_pages: u64,
    pub last_token: u64,
    pub scratch: u64,
    pub results: u64,
    pub rows: u32,
    pub vocab: u32,
    pub table_stride: u32,
    pub scratch_words: u32,
}
args!(SampleArgs, 120);

/// Bytes of the `Shared` struct of `sample.cu`, with room to spare for its alignment.
pub const SAMPLE_SHARED_BYTES: u32 =
    128 + 128 + 8 * 1024 + 8 * 2048 + 4 * 2048 + 8 * 1024 + 8 * 512 + 32 + 64;

/// `digest_items`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DigestArgs {
    pub items: u64,
    pub out: u64,
    pub count: u32,
    pub pad: u32,
}
args!(DigestArgs, 24);
