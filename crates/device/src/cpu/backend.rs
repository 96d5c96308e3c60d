//! Sizes and layouts of the CPU device.

use super::attention;
use super::kv;
use super::quant;
use super::sample;
use super::tile::PackedMatrix;
use super::v4;
use lockstep_flow::BucketKey;
use lockstep_plan::format::Format;
use lockstep_plan::v4::V4Shape;
use lockstep_plan::{Activation, AttnShape, Backend, RopePairing, Unsupported};

/// The name in messages.
pub const NAME: &str = "cpu";

/// The side of the CPU device that shapes plans; it has no state.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuBackend;

impl CpuBackend {
    /// How a matrix is packed.
    ///
    /// # Errors
    /// Its shape is outside what the tiles hold.
    pub fn packed(format: Format, n: u32, k: u32) -> Result<PackedMatrix, Unsupported> {
        PackedMatrix::plan(format, n as usize, k as usize).map_err(|e| Unsupported {
            device: NAME,
            asked: format!("a {n} by {k} matrix of {format}"),
            supported: e.to_string(),
        })
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn matrix_bytes(&self, format: Format, n: u32, k: u32) -> Result<u64, Unsupported> {
        Self::packed(format, n, k).map(|m| m.bytes() as u64)
    }

    fn activation(&self, format: Format) -> Activation {
        match format {
            Format::F32 | Format::F16 | Format::BF16 => Activation::F32,
            _ => Activation::Quantised,
        }
    }

    fn quant_row_bytes(&self, k: u32) -> u64 {
        quant::row_bytes(k as usize) as u64
    }

    fn kv_page_bytes(&self, shape: &AttnShape) -> Result<(u64, u64), Unsupported> {
        kv::kv_page_bytes(shape)
    }

    fn attention_scratch_bytes(
        &self,
        shape: &AttnShape,
        bucket: BucketKey,
        context_tokens: u32,
    ) -> u64 {
        attention::scratch_bytes(shape, bucket, context_tokens)
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
        Err(Unsupported {
            device: NAME,
            asked: format!("{rotary_dim} rotary channels of {}", shape.head_dim),
            supported: "an even number of them, at most the head's".into(),
        })
    }

    fn v4(&self, shape: &V4Shape) -> Result<(), Unsupported> {
        v4::check_shape(shape)
    }

    fn sample_params_bytes(&self) -> u64 {
        size_of::<sample::SampleParams>() as u64
    }

    fn sample_results_bytes(&self) -> u64 {
        size_of::<sample::SampleResult>() as u64
    }

    fn sample_scratch_bytes(&self, vocab: u32) -> u64 {
        sample::scratch_bytes(vocab)
    }
}
