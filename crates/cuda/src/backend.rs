//! Sizes and layouts of the CUDA device. Every answer is a function of shapes alone.
//!
//! A matrix is bf16 on the GPU, or stays as its file has it and is decoded to bf16 where it is
//! multiplied ([`TileFormat`]); "quantised rows" are bf16 rows: what the tensor cores multiply.

use lockstep_device::sample::{SampleParams, SampleResult};
use lockstep_flow::BucketKey;
use lockstep_flow::limits::{KV_SPLIT_TOKENS, PAGE_TOKENS};
use lockstep_plan::format::Format;
use lockstep_plan::{Activation, AttnShape, Backend, RopePairing, Unsupported};

/// The name in messages.
pub const NAME: &str = "cuda";

/// Channels that one step of the matrix kernels takes: two mma of 16.
pub const K_STEP: u32 = 32;

/// Rows of a weight tile.
pub const TILE_ROWS: u32 = 16;

/// Head sizes with an attention kernel.
const HEAD_DIMS: [u32; 5] = [16, 32, 64, 128, 256];

/// Words of a partial attention result beside its channels: m, l and room to align.
const PART_EXTRA: u32 = 4;

/// Blocks that may share the splits of one row and KV head.
const SPLIT_WAYS_MAX: u32 = 16;

/// Rows times KV heads from which on splits are folded where they are made.
const FOLD_FROM_UNITS: u32 = 2048;

/// Scratch beyond which splits are folded where they are made.
const SCRATCH_BYTES_MAX: u64 = 512 << 20;

/// How a matrix lies on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileFormat {
    /// Decoded: tiles of 16 rows by 16 columns.
    Bf16 = 0,
    /// As the file has it: tiles of 16 rows by 64 columns.
    Q8_0 = 1,
    /// The same.
    Q4_0 = 2,
    /// The same.
    Q4_1 = 3,
}

/// Columns of a tile that stays as its file has it.
pub const QUANT_TILE_COLS: u32 = 64;

impl TileFormat {
    /// Bytes of 16 rows by 64 columns.
    pub const fn tile_bytes(self) -> u64 {
        match self {
            TileFormat::Bf16 => 2048,
            TileFormat::Q8_0 => 64 + 1024,
            TileFormat::Q4_0 => 64 + 512,
            TileFormat::Q4_1 => 128 + 512,
        }
    }
}

/// The side of the CUDA device that shapes plans.
#[derive(Clone, Copy, Debug)]
pub struct CudaBackend {
    /// Matrices of Q8_0, Q4_0 and Q4_1 stay as they are; Hopper has the kernels for that.
    pub quantised: bool,
}

impl Default for CudaBackend {
    fn default() -> CudaBackend {
        CudaBackend { quantised: true }
    }
}

impl CudaBackend {
    /// How a matrix of `format` with rows of `k` lies on the GPU.
    pub fn tile_format(&self, format: Format, k: u32) -> TileFormat {
        match format {
            _ if !self.quantised || !k.is_multiple_of(QUANT_TILE_COLS) => TileFormat::Bf16,
            Format::Q8_0 => TileFormat::Q8_0,
            Format::Q4_0 => TileFormat::Q4_0,
            Format::Q4_1 => TileFormat::Q4_1,
            _ => TileFormat::Bf16,
        }
    }
}

fn refuse(asked: String, supported: &str) -> Unsupported {
    Unsupported { device: NAME, asked, supported: supported.into() }
}

/// Into how many equal parts a product of `units` tiles of 16 output features over `k` channels
/// cuts K: a function of N and K, and the only one that the sums depend on.
///
/// The most, up to 8, that divides K into whole steps, as long as the parts have 256 channels or
/// more and tiles times parts are not yet two warps for each of 1,056 schedulers (an H200 has 528).
pub fn gemm_slices(units: u32, k: u32) -> u32 {
    let steps = k / K_STEP;
    let mut slices = 1;
    while slices < 8
        && units * slices < 2112
        && steps.is_multiple_of(2 * slices)
        && steps / (2 * slices) >= 8
    {
        slices *= 2;
    }
    slices
}

/// How the splits of a bucket's rows are spread: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitLayout {
    /// Partial results kept for a row and head; 1 where they are folded at once.
    pub parts: u32,
    /// Blocks that share the splits of a row and KV head.
    pub ways: u32,
}

impl SplitLayout {
    /// Of `tokens` rows in sequences of up to `context_tokens`.
    pub fn of(shape: &AttnShape, tokens: u32, context_tokens: u32) -> SplitLayout {
        let splits = context_tokens.div_ceil(KV_SPLIT_TOKENS).max(1);
        let units = tokens.saturating_mul(shape.kv_heads).max(1);
        // Blocks for which there is no split cost a launch each: no more than fill the GPU.
        let ways = (FOLD_FROM_UNITS / units).clamp(1, SPLIT_WAYS_MAX);
        let cut = SplitLayout { parts: splits, ways: splits.min(ways) };
        let few = units < FOLD_FROM_UNITS;
        if few && cut.scratch_bytes(shape, tokens) <= SCRATCH_BYTES_MAX {
            return cut;
        }
        SplitLayout { parts: 1, ways: 1 }
    }

    fn scratch_bytes(&self, shape: &AttnShape, tokens: u32) -> u64 {
        let part = u64::from(shape.head_dim + PART_EXTRA) * 4;
        u64::from(tokens) * u64::from(shape.heads) * u64::from(self.parts) * part
    }
}

/// Bytes of dynamic shared memory of the partial attention kernel.
pub fn attention_shared_bytes(shape: &AttnShape) -> u32 {
    let per_kv = shape.heads / shape.kv_heads;
    let d = shape.head_dim;
    4 * (per_kv * d + per_kv * KV_SPLIT_TOKENS + 8 * 4 * d + per_kv * 4 + per_kv * d)
}

/// Words of working memory of one logit row.
pub fn sample_scratch_words(vocab: u32) -> u32 {
    vocab.next_multiple_of(16)
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn matrix_bytes(&self, format: Format, n: u32, k: u32) -> Result<u64, Unsupported> {
        if n == 0 || k == 0 || !k.is_multiple_of(K_STEP) {
            let asked = format!("a {n} by {k} matrix of {format}");
            return Err(refuse(asked, "matrices whose rows are a multiple of 32 elements"));
        }
        let rows = u64::from(n.next_multiple_of(TILE_ROWS));
        Ok(match self.tile_format(format, k) {
            TileFormat::Bf16 => rows * u64::from(k) * 2,
            tiles => {
                let tile = u64::from(TILE_ROWS * QUANT_TILE_COLS);
                rows * u64::from(k) / tile * tiles.tile_bytes()
            }
        })
    }

    fn activation(&self, _format: Format) -> Activation {
        Activation::Quantised
    }

    fn quant_row_bytes(&self, k: u32) -> u64 {
        u64::from(k) * 2
    }

    fn quantises_attention(&self) -> bool {
        true
    }

    fn kv_page_bytes(&self, shape: &AttnShape) -> Result<(u64, u64), Unsupported> {
        let AttnShape { heads, kv_heads, head_dim, .. } = *shape;
        let heads_ok = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        if !heads_ok || !HEAD_DIMS.contains(&head_dim) || heads / kv_heads > 32 {
            let asked = format!(
                "attention of {heads} heads over {kv_heads} KV heads of {head_dim} channels"
            );
            return Err(refuse(
                asked,
                "heads that are up to 32 times the KV heads, of 16, 32, 64, 128 or 256 channels",
            ));
        }
        let bytes = u64::from(PAGE_TOKENS)
            * u64::from(kv_heads)
            * u64::from(head_dim)
            * shape.kv_dtype.bytes();
        Ok((bytes, bytes))
    }

    fn attention_scratch_bytes(
        &self,
        shape: &AttnShape,
        bucket: BucketKey,
        context_tokens: u32,
    ) -> u64 {
        SplitLayout::of(shape, bucket.tokens, context_tokens).scratch_bytes(shape, bucket.tokens)
    }

    fn rope(
        &self,
        shape: &AttnShape,
        rotary_dim: u32,
        _pairing: RopePairing,
    ) -> Result<(), Unsupported> {
        if rotary_dim.is_multiple_of(2) && rotary_dim <= shape.head_dim {
            return Ok(());
        }
        let asked = format!("{rotary_dim} rotary channels of {}", shape.head_dim);
        Err(refuse(asked, "an even number of them, at most the head's"))
    }

    fn sample_params_bytes(&self) -> u64 {
        size_of::<SampleParams>() as u64
    }

    fn sample_results_bytes(&self) -> u64 {
        size_of::<SampleResult>() as u64
    }

    fn sample_scratch_bytes(&self, vocab: u32) -> u64 {
        u64::from(sample_scratch_words(vocab)) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_plan::KvDtype;

    const SHAPE: AttnShape =
        AttnShape { heads: 32, kv_heads: 8, head_dim: 128, kv_dtype: KvDtype::F16, window: 0 };

    #[test]
    fn slices_cut_k_into_whole_steps_and_depend_on_nothing_else() {
        for units in [1, 36, 64, 256, 768, 9496] {
            for k in [32, 64, 576, 1024, 1536, 4096, 12288] {
                let s = gemm_slices(units, k);
                assert!(s.is_power_of_two() && s <= 8);
                assert_eq!(k % (s * K_STEP), 0, "{units} {k}");
            }
        }
        assert_eq!(gemm_slices(256, 12288), 8);
        assert_eq!(gemm_slices(768, 4096), 4);
        assert_eq!(gemm_slices(9496, 4096), 1);
        assert_eq!(gemm_slices(36, 576), 2);
        assert_eq!(gemm_slices(256, 1024), 4);
    }

    #[test]
    fn wide_steps_fold_splits_at_once() {
        let decode = SplitLayout::of(&SHAPE, 96, 4096);
        assert_eq!(decode, SplitLayout { parts: 16, ways: 2 });
        assert_eq!(SplitLayout::of(&SHAPE, 1, 4096), SplitLayout { parts: 16, ways: 16 });
        assert_eq!(SplitLayout::of(&SHAPE, 768, 4096), SplitLayout { parts: 1, ways: 1 });
        let bucket = BucketKey::decode(96);
        assert_eq!(
            CudaBackend::default().attention_scratch_bytes(&SHAPE, bucket, 4096),
            96 * 32 * 16 * 528
        );
    }

    #[test]
    fn shapes_without_a_kernel_are_refused_in_words() {
        let odd = AttnShape { head_dim: 80, ..SHAPE };
        let words = CudaBackend::default().kv_page_bytes(&odd).unwrap_err().to_string();
        assert!(words.contains("the cuda device has no kernel for attention"), "{words}");
        let words =
            CudaBackend::default().matrix_bytes(Format::BF16, 64, 40).unwrap_err().to_string();
        assert!(words.contains("multiple of 32"), "{words}");
        let bytes = |quantised, format, k| CudaBackend { quantised }.matrix_bytes(format, 100, k);
        assert_eq!(bytes(false, Format::Q4_1, 64), Ok(112 * 64 * 2));
        assert_eq!(bytes(true, Format::Q4_1, 96), Ok(112 * 96 * 2));
        assert_eq!(bytes(true, Format::Q6_K, 256), Ok(112 * 256 * 2));
        assert_eq!(bytes(true, Format::Q4_1, 128), Ok(112 * 128 / 32 * 20));
        assert_eq!(bytes(true, Format::Q4_0, 128), Ok(112 * 128 / 32 * 18));
        assert_eq!(bytes(true, Format::Q8_0, 128), Ok(112 * 128 / 32 * 34));
    }
}
