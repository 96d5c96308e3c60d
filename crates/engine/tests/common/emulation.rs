//! DeepSeek-V4's kept rows written down simply, in f64: what the kernels of each precision have to
//! agree with. Nothing of the product is used here but the checkpoint's numbers.

use super::one_step::OneStep;
use lockstep_plan::{IndexDtype, KvDtype};
use lockstep_weights::{Checkpoint, DeepSeekV4Spec, ModelSpec, Role, V4Place, V4Role};
use std::path::Path;

const PAGE: usize = 32;

/// The model's facts and numbers.
pub struct Emulation {
    checkpoint: Checkpoint,
    pub spec: DeepSeekV4Spec,
    kv: KvDtype,
    index: IndexDtype,
}

/// A number of few bits by its fields; `None` for NaN.
fn by_fields(code: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        e => (1.0 + fraction) * 2f64.powi(e - bias),
    };
    if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -magnitude } else { magnitude }
}

fn e4m3(code: u8) -> f64 {
    assert_ne!(code & 127, 127, "no NaN is ever kept");
    by_fields(code.into(), 4, 3, 7)
}

fn e2m1(code: u8) -> f64 {
    by_fields(code.into(), 2, 1, 1)
}

fn bf16(bytes: &[u8]) -> f64 {
    f64::from(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
}

/// Asserts that `kept` is `x` rounded to a neighbour as near as any, where the gap between values
/// at `x` is at most `step`: what f32 loses on the way to `x` may decide between two that are.
fn assert_rounded(kept: f64, x: f64, step: f64, what: &str) {
    let slack = 2e-5 * x.abs().max(0.5);
    assert!((kept - x).abs() <= step / 2.0 + slack, "{what}: kept {kept} of {x}, step {step}");
}

/// The gap between E4M3 values at `v`.
fn e4m3_step(v: f64) -> f64 {
    2f64.powi((v.abs().max(2f64.powi(-6)) * (1.0 + 1e-6)).log2().floor() as i32 - 3)
}

fn e2m1_step(v: f64) -> f64 {
    match v.abs() {
        a if a < 1.999 => 0.5,
        a if a < 3.999 => 1.0,
        _ => 2.0,
    }
}

fn greatest(x: &[f64], least: f64) -> f64 {
    x.iter().fold(least, |a, v| a.max(v.abs()))
}

fn hadamard(x: &[f64]) -> Vec<f64> {
    let n = x.len();
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let row = |i| (0..n).map(|j| sign(i, j) * x[j]).sum::<f64>() / (n as f64).sqrt();
    (0..n).map(row).collect()
}

impl Emulation {
    pub fn new(path: &Path, kv: KvDtype, index: IndexDtype) -> Emulation {
        let checkpoint = Checkpoint::open(path).unwrap();
        let ModelSpec::DeepSeekV4(spec) = checkpoint.spec() else { panic!("another model") };
        let spec = spec.clone();
        Emulation { checkpoint, spec, kv, index }
    }

    pub fn weights(&self, layer: u32, role: V4Role) -> Vec<f64> {
        let role = Role::V4(V4Place::Layer(layer), role);
        let values = self.checkpoint.tensor(role).unwrap().decode();
        values.into_iter().map(f64::from).collect()
    }

    /// Bytes of a key-value row.
    pub fn row_bytes(&self) -> usize {
        let (dim, rope) = (self.spec.head_dim as usize, self.spec.rotary_dim as usize);
        match self.kv {
            KvDtype::F32 => 4 * dim,
            KvDtype::Bf16 => 2 * dim,
            // Codes, bf16 of the rotary channels, scales in eights.
            KvDtype::Fp8 => dim - rope + 2 * rope + (dim - rope).div_ceil(64).next_multiple_of(8),
            KvDtype::F16 => unreachable!("not of this model"),
        }
    }

    /// Bytes of an index key.
    pub fn key_bytes(&self) -> usize {
        let dim = self.spec.index_head_dim as usize;
        match self.index {
            IndexDtype::F32 => 4 * dim,
            IndexDtype::Bf16 => 2 * dim,
            IndexDtype::Fp8 => dim + 4,
            IndexDtype::Fp4 => dim / 2 + dim.div_ceil(32).next_multiple_of(4),
        }
    }

    /// Reads a row of a sequence; `tokens` of each row.
    fn kept(step: &OneStep, buffer: &str, i: usize, tokens: usize, bytes: usize) -> Vec<u8> {
        let last = (i + 1) * tokens - 1;
        let (page, offset) = (step.blocks[last / PAGE] as usize, last % PAGE);
        let per_page = (PAGE / tokens).max(1);
        let within = if tokens < PAGE { offset / tokens } else { 0 };
        step.state(buffer, ((page * per_page + within) * bytes) as u64, bytes)
    }

    /// Values of a key-value row.
    pub fn row(&self, step: &OneStep, buffer: &str, i: usize, tokens: usize) -> Vec<f64> {
        let bytes = Emulation::kept(step, buffer, i, tokens, self.row_bytes());
        let (dim, rope) = (self.spec.head_dim as usize, self.spec.rotary_dim as usize);
        match self.kv {
            KvDtype::F32 => floats(&bytes),
            KvDtype::Bf16 => bytes.chunks(2).map(bf16).collect(),
            _ => {
                let scales = &bytes[dim + rope..];
                let scale = |c: usize| 2f64.powi(i32::from(scales[c / 64]) - 127);
                let plain = (0..dim - rope).map(|c| e4m3(bytes[c]) * scale(c));
                plain.chain(bytes[dim - rope..dim + rope].chunks(2).map(bf16)).collect()
            }
        }
    }

    /// Asserts that a key-value row is `x` as it is to be kept.
    pub fn assert_row(&self, x: &[f64], kept: &[f64], what: &str) {
        let (dim, rope) = (self.spec.head_dim as usize, self.spec.rotary_dim as usize);
        let plain = if self.kv == KvDtype::Fp8 { dim - rope } else { 0 };
        for first in (0..plain).step_by(64) {
            let block = first..(first + 64).min(plain);
            let most = greatest(&x[block.clone()], 1e-4) / 448.0;
            let scale = 2f64.powi((most * (1.0 - 1e-6)).log2().ceil() as i32);
            for c in block {
                let gap = e4m3_step(x[c] / scale) * scale;
                assert_rounded(kept[c], x[c], gap, &format!("{what} channel {c}"));
            }
        }
        for c in plain..dim {
            let gap = if self.kv == KvDtype::F32 { 0.0 } else { bf16_step(x[c]) };
            assert_rounded(kept[c], x[c], gap, &format!("{what} channel {c}"));
        }
    }

    /// Values of an index key, turned where it is kept turned.
    pub fn key(&self, step: &OneStep, buffer: &str, i: usize) -> Vec<f64> {
        let bytes = Emulation::kept(step, buffer, i, 4, self.key_bytes());
        let dim = self.spec.index_head_dim as usize;
        match self.index {
            IndexDtype::F32 => floats(&bytes),
            IndexDtype::Bf16 => bytes.chunks(2).map(bf16).collect(),
            IndexDtype::Fp8 => {
                let scale = floats(&bytes[dim..])[0];
                bytes[..dim].iter().map(|c| e4m3(*c) * scale).collect()
            }
            IndexDtype::Fp4 => {
                let scale = |c: usize| 2f64.powi(i32::from(bytes[dim / 2 + c / 32]) - 127);
                let code = |c: usize| bytes[c / 2] >> (c % 2 * 4) & 15;
                (0..dim).map(|c| e2m1(code(c)) * scale(c)).collect()
            }
        }
    }

    /// Asserts that a key, or a head of a query, is `x` as it is to be kept.
    pub fn assert_key(&self, x: &[f64], kept: &[f64], what: &str) {
        let turned = match self.index {
            IndexDtype::F32 | IndexDtype::Bf16 => x.to_vec(),
            IndexDtype::Fp8 | IndexDtype::Fp4 => hadamard(x),
        };
        for (c, (&x, &kept)) in turned.iter().zip(kept).enumerate() {
            let gap = match self.index {
                IndexDtype::F32 => 0.0,
                IndexDtype::Bf16 => bf16_step(x),
                IndexDtype::Fp8 => {
                    let scale = greatest(&turned, 1e-4) / 448.0;
                    e4m3_step(x / scale) * scale
                }
                IndexDtype::Fp4 => {
                    let block = &turned[c / 32 * 32..(c / 32 + 1) * 32];
                    let most = greatest(block, 6.0 * 2f64.powi(-126)) / 6.0;
                    let scale = 2f64.powi((most * (1.0 - 1e-6)).log2().ceil() as i32);
                    e2m1_step(x / scale) * scale
                }
            };
            assert_rounded(kept, x, gap, &format!("{what} channel {c}"));
        }
    }

    /// Angles of a position's pairs.
    fn angles(&self, position: usize, compressed: bool) -> Vec<f64> {
        let dim = f64::from(self.spec.rotary_dim);
        let theta: f64 = if compressed { 160_000.0 } else { 10_000.0 };
        // YaRN of factor 16 over 256 positions, fast 32 and slow 1: the tiny model's.
        let pair =
            |turns: f64| dim * (256.0 / (turns * core::f64::consts::TAU)).ln() / (2.0 * theta.ln());
        let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(dim - 1.0));
        let of = |i: u32| {
            let plain = theta.powf(-2.0 * f64::from(i) / dim);
            let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
            let frequency =
                if compressed { plain / 16.0 * ramp + plain * (1.0 - ramp) } else { plain };
            frequency * position as f64
        };
        (0..self.spec.rotary_dim / 2).map(of).collect()
    }

    /// Turns the last channels by a position, or back.
    pub fn rope(&self, x: &mut [f64], position: usize, compressed: bool, back: bool) {
        let first = x.len() - self.spec.rotary_dim as usize;
        for (i, angle) in self.angles(position, compressed).into_iter().enumerate() {
            let (sin, cos) = (if back { -angle } else { angle }).sin_cos();
            let (a, b) = (x[first + 2 * i], x[first + 2 * i + 1]);
            (x[first + 2 * i], x[first + 2 * i + 1]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }

    /// The RMS norm with a weight.
    pub fn norm(&self, x: &[f64], weight: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let root = (mean + f64::from(self.spec.norm_eps)).sqrt();
        x.iter().zip(weight).map(|(v, w)| v / root * w).collect()
    }

    /// Row `i` that a compressor pools out of its state.
    pub fn pooled(
        &self,
        step: &OneStep,
        state: &str,
        (i, tokens, dim): (usize, usize, usize),
        ape: &[f64],
    ) -> Vec<f64> {
        let overlap = tokens == 4;
        let channels = if overlap { 2 * dim } else { dim };
        let slots: Vec<(Vec<f64>, usize)> = (0..tokens)
            .map(|j| {
                let bytes = 2 * channels * 4;
                (floats(&Emulation::kept(step, state, i * tokens + j, 1, bytes)), j)
            })
            .collect();
        let before: Vec<(Vec<f64>, usize)> = (0..tokens)
            .filter(|_| overlap && i > 0)
            .map(|j| {
                let bytes = 2 * channels * 4;
                (floats(&Emulation::kept(step, state, (i - 1) * tokens + j, 1, bytes)), j)
            })
            .collect();
        let pool = |c: usize| {
            let of = |(x, j): &(Vec<f64>, usize), c: usize| {
                (x[c], x[channels + c] + ape[j * channels + c])
            };
            let half = if overlap { dim } else { 0 };
            let all: Vec<(f64, f64)> = before
                .iter()
                .map(|s| of(s, c))
                .chain(slots.iter().map(|s| of(s, half + c)))
                .collect();
            let top = all.iter().fold(f64::NEG_INFINITY, |a, (_, g)| a.max(*g));
            let weight: f64 = all.iter().map(|(_, g)| (g - top).exp()).sum();
            all.iter().map(|(k, g)| k * (g - top).exp()).sum::<f64>() / weight
        };
        (0..dim).map(pool).collect()
    }
}

fn bf16_step(v: f64) -> f64 {
    2f64.powi((v.abs().max(1e-30) * (1.0 + 1e-6)).log2().floor() as i32 - 7)
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let of = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    bytes.chunks_exact(4).map(of).collect()
}
