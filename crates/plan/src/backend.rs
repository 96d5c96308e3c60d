//! What a plan builder has to ask of a device: sizes and layouts, never pointers.

use crate::format::Format;
use crate::v4::V4Shape;
use crate::{AttnShape, RopePairing};
use core::fmt;
use lockstep_flow::BucketKey;

/// Source bytes of a weight, in the form that the checkpoint has them.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// `n` rows of `k` elements; a device packs them as it likes.
    Matrix { format: Format, n: u32, k: u32, bytes: &'a [u8] },
    /// `n` rows of `k` elements that follow from a seed ([`crate::seeded`]), in the bf16 that they
    /// are rounded to.
    Seeded { n: u32, k: u32, seed: u64, scale: f32 },
    /// f32 values as they are (norms, biases, tables).
    F32(&'a [f32]),
    /// 32-bit words as they are (tables of ids).
    U32(&'a [u32]),
}

/// What a GEMM of a weight format reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// f32 rows.
    F32,
    /// Rows quantised by the device.
    Quantised,
}

/// A shape or format that a device has no kernel for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsupported {
    /// The device.
    pub device: &'static str,
    /// What was asked.
    pub asked: String,
    /// What would work.
    pub supported: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the {} device has no kernel for {}; it has {}",
            self.device, self.asked, self.supported
        )
    }
}

impl core::error::Error for Unsupported {}

/// The side of a device that shapes plans. Every answer is a function of shapes alone.
pub trait Backend {
    /// Its name in messages: `cpu`, `cuda`.
    fn name(&self) -> &'static str;

    /// Bytes of an `n` by `k` matrix as this device packs it.
    fn matrix_bytes(&self, format: Format, n: u32, k: u32) -> Result<u64, Unsupported>;

    /// What a GEMM of this format reads.
    fn activation(&self, format: Format) -> Activation;

    /// Bytes from one quantised row of `k` channels to the next.
    fn quant_row_bytes(&self, k: u32) -> u64;

    /// Whether attention writes its rows quantised where the matrix that reads them wants that.
    fn quantises_attention(&self) -> bool {
        false
    }

    /// Bytes of one layer's K page and V page.
    fn kv_page_bytes(&self, shape: &AttnShape) -> Result<(u64, u64), Unsupported>;

    /// Bytes of partial results of the fixed KV splits, for sequences of up to `context_tokens`.
    fn attention_scratch_bytes(
        &self,
        shape: &AttnShape,
        bucket: BucketKey,
        context_tokens: u32,
    ) -> u64;

    /// Checks that rotary channels of this kind can be turned.
    fn rope(
        &self,
        shape: &AttnShape,
        rotary_dim: u32,
        pairing: RopePairing,
    ) -> Result<(), Unsupported>;

    /// Checks that there are kernels for a DeepSeek-V4 model of this shape.
    fn v4(&self, _shape: &V4Shape) -> Result<(), Unsupported> {
        Err(Unsupported {
            device: self.name(),
            asked: "the ops of DeepSeek-V4".into(),
            supported: "those of the Llama family".into(),
        })
    }

    /// Bytes of one row's sampling parameters.
    fn sample_params_bytes(&self) -> u64;

    /// Bytes of one row's sampling result.
    fn sample_results_bytes(&self) -> u64;

    /// Bytes of working memory of one logit row.
    fn sample_scratch_bytes(&self, vocab: u32) -> u64;
}
