//! Every instruction set against the scalar definition, computed from the source rows and not from
//! the tiles, so that packing is under test too.

use super::*;
use crate::cpu::math::silu;
use crate::cpu::quant::{BLOCK, quantize_block, quantize_row, row_bytes};
use crate::cpu::tile::repack;
use lockstep_plan::format::{Format, decode_blocks, decode_codes};
use proptest::prelude::*;

/// A xorshift generator: the tests' own, so that a seed means the same for ever.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// Bytes aligned as weights are.
struct Aligned(Vec<Line>, usize);

#[derive(Clone)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        Aligned(vec![Line([0; 64]); bytes.div_ceil(64)], bytes)
    }

    fn ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the vector has at least so many bytes, all initialised.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
}

/// What the weights of a test look like.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Weights {
    /// Ordinary magnitudes.
    Sane,
    /// Any bytes, so also NaN, infinite and denormal scales.
    AnyBytes,
}

fn source(format: Format, n: usize, k: usize, kind: Weights, rng: &mut Rng) -> Vec<u8> {
    let block = format.block_bytes();
    let mut bytes = vec![0u8; n * k / format.block_elems() * block];
    bytes.iter_mut().for_each(|b| *b = rng.next() as u8);
    if kind == Weights::AnyBytes {
        return bytes;
    }
    for b in bytes.chunks_exact_mut(block) {
        let scale = half::f16::from_f32(rng.unit() * 0.01).to_le_bytes();
        let min = half::f16::from_f32(rng.unit() * 0.1).to_le_bytes();
        match format {
            Format::F32 => b.copy_from_slice(&rng.unit().to_le_bytes()),
            Format::F16 => b.copy_from_slice(&half::f16::from_f32(rng.unit()).to_le_bytes()),
            Format::BF16 => b.copy_from_slice(&half::bf16::from_f32(rng.unit()).to_le_bytes()),
            Format::Q6_K => b[208..210].copy_from_slice(&scale),
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => {
                b[0..2].copy_from_slice(&scale);
                b[2..4].copy_from_slice(&min);
            }
            _ => b[0..2].copy_from_slice(&scale),
        }
    }
    bytes
}

/// Values that have gone wrong in kernels before, between ordinary ones.
fn activations(count: usize, extreme: bool, rng: &mut Rng) -> Vec<f32> {
    let special = [
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-45,
        1e-37,
        1e30,
        -1e38,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ];
    (0..count)
        .map(|_| {
            let v = rng.unit() * 4.0;
            match rng.next() % 400 {
                pick if extreme && pick < 11 => special[pick as usize],
                _ => v,
            }
        })
        .collect()
}

/// The definition of one output, out of a source row.
fn defined(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let k = x.len();
    let Some(layout) = format.quant() else {
        let mut w = vec![0f32; k];
        decode_blocks(format, row, &mut w);
        return scalar::float_dot(|i| w[i], x);
    };
    let (elems, sub) = (format.block_elems(), layout.sub_block_elems);
    let (mut codes, mut scales, mut mins) = (vec![0i8; elems], vec![0f32; 16], vec![0f32; 16]);
    let subs = elems / sub;
    let mut acc = 0f32;
    for (bytes, x) in row.chunks_exact(format.block_bytes()).zip(x.chunks_exact(elems)) {
        decode_codes(format, bytes, &mut codes, &mut scales[..subs], &mut mins[..subs]);
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let q = quantize_block(x);
            for part in 0..BLOCK / sub {
                let dot: i64 = (0..sub)
                    .map(|i| {
                        let c = i64::from(codes[b * BLOCK + part * sub + i]);
                        c * i64::from(q.codes[part * sub + i])
                    })
                    .sum();
                let s = b * BLOCK / sub + part;
                acc = (dot as f32).mul_add(scales[s] * q.scale, acc);
                if layout.has_min {
                    let sum: i64 = q.codes.iter().map(|&c| i64::from(c)).sum();
                    acc = mins[s].mul_add(q.scale * sum as f32, acc);
                }
            }
        }
    }
    acc
}

/// The bits that are stored for a value.
fn bits(v: f32) -> u32 {
    if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }
}

/// A multiply with everything that it points at.
struct Case {
    desc: PackedMatrix,
    source: Vec<u8>,
    packed: Aligned,
    x: Vec<f32>,
    rows: usize,
}

impl Case {
    fn new(format: Format, (n, k, rows): (usize, usize, usize), kind: Weights, seed: u64) -> Case {
        let mut rng = Rng(seed | 1);
        let desc = PackedMatrix::plan(format, n, k).unwrap();
        let source = source(format, n, k, kind, &mut rng);
        let x = activations(rows * k, kind == Weights::AnyBytes, &mut rng);
        Case::of(desc, source, x, rows)
    }

    fn of(desc: PackedMatrix, source: Vec<u8>, x: Vec<f32>, rows: usize) -> Case {
        let mut packed = Aligned::new(desc.bytes());
        repack(&desc, &source, packed.bytes_mut()).unwrap();
        Case { desc, source, packed, x, rows }
    }

    /// Outputs by the definition, as bits.
    fn defined(&self) -> Vec<f32> {
        let (row_bytes, k) = (self.desc.source_row_bytes(), self.desc.k());
        let row =
            |x| self.source.chunks_exact(row_bytes).map(move |w| defined(self.desc.source(), w, x));
        self.x.chunks_exact(k).flat_map(row).collect()
    }

    fn run_with(&self, isa: Isa, rows: usize, bias: &[f32], epilogue: Epilogue, split: u32) {
        let k = self.desc.k();
        let stride = row_bytes(k);
        let mut quantised = Aligned::new(self.rows * stride);
        let x = if self.desc.takes_quantised() {
            for (x, out) in
                self.x.chunks_exact(k).zip(quantised.bytes_mut().chunks_exact_mut(stride))
            {
                let blocks = out.as_mut_ptr().cast::<QBlock>();
                // SAFETY: a row's stride has room for its blocks, and lines are aligned.
                let blocks = unsafe { core::slice::from_raw_parts_mut(blocks, k / BLOCK) };
                quantize_row(isa, x, blocks);
            }
            Activations::Quantised { blocks: quantised.ptr().cast(), row_stride_bytes: stride }
        } else {
            Activations::F32 { values: self.x.as_ptr(), row_stride: k }
        };
        let bias = if bias.is_empty() { core::ptr::null() } else { bias.as_ptr() };
        let args = GemmArgs {
            desc: self.desc,
            weights: self.packed.ptr(),
            bias,
            x,
            rows: self.rows as u32,
            epilogue,
            isa,
        };
        let gemm = args.capture().unwrap();
        let mut first = 0;
        while first < gemm.tasks() {
            let end = (first + split).min(gemm.tasks());
            // SAFETY: everything above lives until here and has the shapes that were given.
            unsafe { gemm.run(first..end, rows as u32) };
            first = end;
        }
    }

    fn stored(&self, isa: Isa, split: u32) -> Vec<f32> {
        let mut out = vec![f32::MAX; self.rows * self.desc.n()];
        let epilogue = Epilogue::Store { out: out.as_mut_ptr(), row_stride: self.desc.n() };
        self.run_with(isa, self.rows, &[], epilogue, split);
        out
    }
}

fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_eq!(f.to_bits(), bits(*e), "{what}: output {i} is {f:e}, defined as {e:e}");
    }
    assert_eq!(found.len(), expected.len());
}

/// K in units of the format's blocks, but several chunks for floats.
fn k_of(format: Format, units: usize) -> usize {
    match format.block_elems() {
        1 => units * 97 + 3,
        elems => units * elems,
    }
}

#[test]
fn every_format_has_the_defined_bits_on_every_isa() {
    for format in Format::ALL {
        for (n, units, rows) in [(16, 1, 1), (40, 3, 3), (33, 5, 16), (1, 2, 7), (64, 4, 21)] {
            for kind in [Weights::Sane, Weights::AnyBytes] {
                let case = Case::new(format, (n, k_of(format, units), rows), kind, 77);
                let expected = case.defined();
                for isa in Isa::available() {
                    let what = format!("{format} {n}x{units} rows {rows} {isa} {kind:?}");
                    assert_same_bits(&case.stored(isa, u32::MAX), &expected, &what);
                }
            }
        }
    }
}

/// The M=1 kernel once took another path than the batched one; a decode then differed from its
/// prefill. A row alone, a row in any batch and any split into tasks are the same bits.
#[test]
fn a_row_has_the_same_bits_alone_in_any_batch_and_in_any_split() {
    for format in Format::ALL {
        let (n, k, rows) = (72, k_of(format, 3), 37);
        let case = Case::new(format, (n, k, rows), Weights::Sane, 5);
        let whole = case.stored(Isa::detect(), u32::MAX);
        assert_same_bits(&case.stored(Isa::detect(), 1), &whole, "split into tasks");
        for count in [1, 2, 3, 5, 8, 15, 16, 17] {
            for first in [0, 1, rows - count] {
                let x = case.x[first * k..(first + count) * k].to_vec();
                let part = Case::of(case.desc, case.source.clone(), x, count);
                let expected = &whole[first * n..(first + count) * n];
                let what = format!("{format} rows {first}..{}", first + count);
                assert_same_bits(&part.stored(Isa::detect(), 2), expected, &what);
            }
        }
    }
}

#[test]
fn long_batches_are_shared_by_rows_too() {
    let case = Case::new(Format::Q4_1, (48, 64, 300), Weights::Sane, 9);
    let expected = case.defined();
    for isa in Isa::available() {
        for split in [1, 3, u32::MAX] {
            assert_same_bits(&case.stored(isa, split), &expected, "300 rows");
        }
    }
}

/// Quantising moves an activation by at most half a code's unit, so an output is within
/// half a unit of each block times the weights' magnitudes, and float rounding.
#[test]
fn outputs_are_near_the_real_product() {
    for format in Format::ALL {
        let (n, k, rows) = (32, k_of(format, 4), 3);
        let case = Case::new(format, (n, k, rows), Weights::Sane, 11);
        let out = case.stored(Isa::detect(), u32::MAX);
        let mut w = vec![0f32; k];
        for (i, row) in case.source.chunks_exact(case.desc.source_row_bytes()).enumerate() {
            decode_blocks(format, row, &mut w);
            for (m, x) in case.x.chunks_exact(k).enumerate() {
                let (mut exact, mut bound) = (0f64, 0f64);
                for (w, x) in w.chunks(BLOCK).zip(x.chunks(BLOCK)) {
                    let amax = x.iter().fold(0f32, |a, v| a.max(v.abs()));
                    let half_unit =
                        if format.quant().is_some() { f64::from(amax) / 254.0 } else { 0.0 };
                    for (&w, &x) in w.iter().zip(x) {
                        let (w, x) = (f64::from(w), f64::from(x));
                        exact += w * x;
                        // A min's part and a code's part of a weight may cancel: 1.6 covers it.
                        bound += (w.abs() + 1.6) * (half_unit * 1.001 + x.abs() * 2e-6);
                    }
                }
                let found = f64::from(out[m * n + i]);
                assert!((found - exact).abs() <= bound, "{format}: {found} {exact} {bound}");
            }
        }
    }
}

#[test]
fn bias_and_residual_are_added_in_the_stated_order() {
    for format in [Format::Q8_0, Format::BF16] {
        let (n, k, rows) = (41, k_of(format, 2), 5);
        let case = Case::new(format, (n, k, rows), Weights::Sane, 3);
        let (acc, mut rng) = (case.defined(), Rng(99));
        let bias: Vec<f32> = (0..n).map(|_| rng.unit()).collect();
        let residual: Vec<f32> = (0..n * rows).map(|_| rng.unit()).collect();
        for isa in Isa::available() {
            let mut out = residual.clone();
            let epilogue = Epilogue::Add { out: out.as_mut_ptr(), row_stride: n };
            case.run_with(isa, rows, &bias, epilogue, 1);
            let expected: Vec<f32> =
                (0..n * rows).map(|i| residual[i] + (acc[i] + bias[i % n])).collect();
            assert_same_bits(&out, &expected, "residual + (acc + bias)");

            let epilogue = Epilogue::Store { out: out.as_mut_ptr(), row_stride: n };
            case.run_with(isa, rows, &bias, epilogue, u32::MAX);
            let expected: Vec<f32> = (0..n * rows).map(|i| acc[i] + bias[i % n]).collect();
            assert_same_bits(&out, &expected, "acc + bias");
        }
    }
}

#[test]
fn swiglu_has_the_defined_bits_as_floats_and_as_blocks() {
    for (format, kind) in [
        (Format::Q4_1, Weights::Sane),
        (Format::Q4_1, Weights::AnyBytes),
        (Format::F16, Weights::Sane),
    ] {
        let (n, k, rows) = (96, k_of(format, 3), 19);
        let gate = Case::new(format, (n, k, rows), kind, 21);
        let up_source = source(format, n, k, kind, &mut Rng(23));
        let up = Case::of(gate.desc, up_source, gate.x.clone(), rows);
        let expected: Vec<f32> =
            gate.defined().iter().zip(up.defined()).map(|(&g, u)| silu(g) * u).collect();
        for isa in Isa::available() {
            let mut out = vec![0f32; n * rows];
            let to = SwiGluOut::F32 { values: out.as_mut_ptr(), row_stride: n };
            let epilogue = Epilogue::SwiGlu { up: up.packed.ptr(), out: to };
            gate.run_with(isa, rows, &[], epilogue, 1);
            assert_same_bits(&out, &expected, "swiglu");

            let mut blocks = vec![QBlock::ZERO; n / BLOCK * rows];
            let row_stride_bytes = n / BLOCK * size_of::<QBlock>();
            let to = SwiGluOut::Quantised { blocks: blocks.as_mut_ptr(), row_stride_bytes };
            let epilogue = Epilogue::SwiGlu { up: up.packed.ptr(), out: to };
            gate.run_with(isa, rows, &[], epilogue, u32::MAX);
            let (expected, _) = expected.as_chunks::<BLOCK>();
            for (found, x) in blocks.iter().zip(expected) {
                let expected = quantize_block(x);
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{isa}");
            }
        }
    }
}

#[test]
fn rows_past_the_live_count_are_left_alone() {
    let (n, rows, live) = (48, 20, 18);
    let case = Case::new(Format::Q8_0, (n, 64, rows), Weights::Sane, 1);
    let expected = case.defined();
    let mut out = vec![-7.0; n * rows];
    let epilogue = Epilogue::Store { out: out.as_mut_ptr(), row_stride: n };
    case.run_with(Isa::detect(), live, &[], epilogue, 1);
    assert_same_bits(&out[..live * n], &expected[..live * n], "live rows");
    assert!(out[live * n..].iter().all(|&v| v == -7.0));
}

/// A NaN or infinity upstream must reach the output of its row, whatever the codes are.
#[test]
fn non_finite_activations_reach_every_output_of_their_row_alone() {
    let (n, k, rows) = (32, 96, 3);
    let mut case = Case::new(Format::Q4_1, (n, k, rows), Weights::Sane, 31);
    case.x[k + 40] = f32::NEG_INFINITY;
    for isa in Isa::available() {
        let out = case.stored(isa, u32::MAX);
        assert!(out[n..2 * n].iter().all(|v| v.to_bits() == f32::NAN.to_bits()));
        assert!(out[..n].iter().chain(&out[2 * n..]).all(|v| v.is_finite()));
    }
}

#[test]
fn runs_are_counted_once_by_kind_and_isa() {
    let case = Case::new(Format::F32, (64, 8, 1), Weights::Sane, 2);
    for isa in Isa::available() {
        let before = counters().get(KernelKind::GemmFloat, isa);
        case.stored(isa, 1);
        assert!(counters().get(KernelKind::GemmFloat, isa) > before);
    }
}

#[test]
fn capture_refuses_what_would_read_or_write_elsewhere() {
    let desc = PackedMatrix::plan(Format::Q4_1, 48, 64).unwrap();
    let mut out = vec![0f32; 48];
    let weights = Aligned::new(desc.bytes());
    let good = GemmArgs {
        desc,
        weights: weights.ptr(),
        bias: core::ptr::null(),
        x: Activations::Quantised { blocks: weights.ptr().cast(), row_stride_bytes: row_bytes(64) },
        rows: 1,
        epilogue: Epilogue::Store { out: out.as_mut_ptr(), row_stride: 48 },
        isa: Isa::Portable,
    };
    assert!(good.capture().is_ok());
    let error = |args: GemmArgs| args.capture().unwrap_err();
    let x = Activations::F32 { values: core::ptr::null(), row_stride: 64 };
    let format = desc.format();
    assert_eq!(error(GemmArgs { x, ..good }), GemmError::ActivationKind { format });
    let weights = good.weights.wrapping_add(4);
    let what = "the weights";
    assert_eq!(error(GemmArgs { weights, ..good }), GemmError::Alignment { what, needed: 64 });
    let epilogue = Epilogue::Add { out: out.as_mut_ptr(), row_stride: 40 };
    let (needed_bytes, found_bytes) = (192, 160);
    assert_eq!(
        error(GemmArgs { epilogue, ..good }),
        GemmError::Stride { what: "the output", needed_bytes, found_bytes }
    );
    let to = SwiGluOut::Quantised { blocks: core::ptr::null_mut(), row_stride_bytes: 96 };
    let epilogue = Epilogue::SwiGlu { up: good.weights, out: to };
    assert_eq!(error(GemmArgs { epilogue, ..good }), GemmError::PartialBlock { n: 48 });
    assert_eq!(error(GemmArgs { epilogue, bias: out.as_ptr(), ..good }), GemmError::SwiGluBias);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_shape_has_the_defined_bits_on_every_isa(
        format in prop::sample::select(Format::ALL.to_vec()),
        n in 1usize..70,
        units in 1usize..8,
        rows in 1usize..40,
        any_bytes in any::<bool>(),
        seed in any::<u64>(),
        split in 1u32..4,
    ) {
        let kind = if any_bytes { Weights::AnyBytes } else { Weights::Sane };
        let case = Case::new(format, (n, k_of(format, units), rows), kind, seed);
        let expected = case.defined();
        for isa in Isa::available() {
            let out = case.stored(isa, split);
            for (found, expected) in out.iter().zip(&expected) {
                prop_assert_eq!(found.to_bits(), bits(*expected), "{} {}", format, isa);
            }
        }
    }
}
