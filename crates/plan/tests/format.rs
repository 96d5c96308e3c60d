//! Block formats: every code point at every place, and agreement with the `gguf` package.
//!
//! A format error is silent: a model with two nibbles swapped still writes fluent text. So each
//! code point is placed at each element by an independent packer below, and random blocks are
//! compared with the dequantised values that the reference package wrote (bit for bit).

use half::f16;
use lockstep_plan::format::{Format, FormatError, decode_blocks, decode_codes};

/// Sets element `e` of a block to `code` (the unsigned field: code - code_min for formats with an
/// offset, two's complement for Q8_0), by the layout tables of the GGUF documentation.
fn put(format: Format, block: &mut [u8], e: usize, code: i32) {
    let nibble = |block: &mut [u8], at: usize, high: bool, v: i32| {
        let (keep, v) = if high { (0x0f, (v << 4) as u8) } else { (0xf0, v as u8) };
        block[at] = block[at] & keep | v;
    };
    let bit = |block: &mut [u8], at: usize, bit: usize, on: bool| {
        block[at] = block[at] & !(1 << bit) | u8::from(on) << bit;
    };
    match format {
        Format::Q8_0 => block[2 + e] = code as i8 as u8,
        Format::Q4_0 => nibble(block, 2 + e % 16, e >= 16, code + 8),
        Format::Q4_1 => nibble(block, 4 + e % 16, e >= 16, code),
        Format::Q5_0 => {
            nibble(block, 6 + e % 16, e >= 16, (code + 16) & 15);
            bit(block, 2 + e / 8, e % 8, code + 16 >= 16);
        }
        Format::Q5_1 => {
            nibble(block, 8 + e % 16, e >= 16, code & 15);
            bit(block, 4 + e / 8, e % 8, code >= 16);
        }
        Format::Q4_K => nibble(block, 16 + e / 64 * 32 + e % 32, e % 64 >= 32, code),
        Format::Q5_K => {
            nibble(block, 48 + e / 64 * 32 + e % 32, e % 64 >= 32, code & 15);
            bit(block, 16 + e % 32, e / 32, code >= 16);
        }
        Format::Q6_K => {
            let (half, r) = (e / 128, e % 128);
            let v = code + 32;
            nibble(block, half * 64 + r % 64, r >= 64, v & 15);
            bit(block, 128 + half * 32 + r % 32, r / 32 * 2, v & 16 != 0);
            bit(block, 128 + half * 32 + r % 32, r / 32 * 2 + 1, v & 32 != 0);
        }
        _ => panic!("{format} has no codes"),
    }
}

/// Sets six-bit scale and min `j` of a K block.
fn put_k_scale(block: &mut [u8], j: usize, scale: u8, min: u8) {
    let p = &mut block[4..16];
    if j < 4 {
        p[j] = p[j] & 0xc0 | scale;
        p[j + 4] = p[j + 4] & 0xc0 | min;
    } else {
        p[j + 4] = scale & 15 | min << 4;
        p[j - 4] = p[j - 4] & 63 | scale >> 4 << 6;
        p[j] = p[j] & 63 | min >> 4 << 6;
    }
}

fn put_f16(block: &mut [u8], at: usize, v: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes());
}

struct Parts {
    codes: Vec<i8>,
    scales: Vec<f32>,
    mins: Vec<f32>,
}

fn parts(format: Format, block: &[u8]) -> Parts {
    let n = format.sub_blocks().unwrap();
    let mut p =
        Parts { codes: vec![99; format.block_elems()], scales: vec![9.0; n], mins: vec![9.0; n] };
    decode_codes(format, block, &mut p.codes, &mut p.scales, &mut p.mins);
    p
}

fn quantised() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| f.quant().is_some())
}

/// A block whose scales are all 1 and mins all 0.
fn unit_block(format: Format) -> Vec<u8> {
    let mut block = vec![0u8; format.block_bytes()];
    match format {
        Format::Q6_K => {
            put_f16(&mut block, 208, 1.0);
            block[192..208].fill(1);
        }
        Format::Q4_K | Format::Q5_K => {
            put_f16(&mut block, 0, 1.0);
            put_f16(&mut block, 2, 1.0);
            (0..8).for_each(|j| put_k_scale(&mut block, j, 1, 0));
        }
        _ => put_f16(&mut block, 0, 1.0),
    }
    block
}

#[test]
fn every_code_at_every_element() {
    for format in quantised() {
        let q = format.quant().unwrap();
        for e in 0..format.block_elems() {
            for code in i32::from(q.code_min)..=i32::from(q.code_max) {
                // The other elements hold the complement, so that a stray bit shows.
                let other = i32::from(q.code_min) + i32::from(q.code_max) - code;
                let mut block = unit_block(format);
                (0..format.block_elems()).for_each(|o| put(format, &mut block, o, other));
                put(format, &mut block, e, code);
                let p = parts(format, &block);
                let mut out = vec![0f32; format.block_elems()];
                decode_blocks(format, &block, &mut out);
                for (o, &value) in out.iter().enumerate() {
                    let want = if o == e { code } else { other };
                    assert_eq!(i32::from(p.codes[o]), want, "{format} code {o}, set at {e}");
                    assert_eq!(value, want as f32, "{format} value {o}, set at {e}");
                }
            }
        }
    }
}

#[test]
fn every_scale_and_min_of_k_blocks() {
    for format in [Format::Q4_K, Format::Q5_K] {
        for j in 0..8 {
            for v in 0..64u8 {
                let mut block = vec![0u8; format.block_bytes()];
                put_f16(&mut block, 0, 0.5);
                put_f16(&mut block, 2, 0.25);
                (0..8).for_each(|o| put_k_scale(&mut block, o, 63 - v, v));
                put_k_scale(&mut block, j, v, 63 - v);
                let p = parts(format, &block);
                for o in 0..8 {
                    let (s, m) = if o == j { (v, 63 - v) } else { (63 - v, v) };
                    assert_eq!(p.scales[o], 0.5 * f32::from(s), "{format} scale {o}");
                    assert_eq!(p.mins[o], -0.25 * f32::from(m), "{format} min {o}");
                }
            }
        }
    }
    for j in 0..16 {
        for v in i8::MIN..=i8::MAX {
            let mut block = vec![0u8; Format::Q6_K.block_bytes()];
            put_f16(&mut block, 208, 0.5);
            block[192 + j] = v as u8;
            let p = parts(Format::Q6_K, &block);
            for o in 0..16 {
                assert_eq!(p.scales[o], if o == j { 0.5 * f32::from(v) } else { 0.0 });
                assert_eq!(p.mins[o].to_bits(), (-0.0f32).to_bits());
            }
        }
    }
}

#[test]
fn floats_decode_at_every_16_bit_pattern() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut out = vec![0f32; 1 << 16];
    decode_blocks(Format::BF16, &bytes, &mut out);
    for (i, v) in out.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
        assert_eq!(v.to_bits(), (i as u32) << 16);
    }
    decode_blocks(Format::F16, &bytes, &mut out);
    for (i, v) in out.iter().enumerate() {
        let (exp, frac) = (i >> 10 & 31, (i & 1023) as f32);
        let mag = match exp {
            31 => continue,
            0 => frac * 2f32.powi(-24),
            _ => (1024.0 + frac) * 2f32.powi(exp as i32 - 25),
        };
        let want = if i >> 15 == 1 { -mag } else { mag };
        assert_eq!(v.to_bits(), want.to_bits(), "f16 {i:#06x}");
    }
    let words = [0u32, 1, 0x8000_0000, 0x3f80_0000, 0x7f7f_ffff, 0xff80_0000];
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut out = [0f32; 6];
    decode_blocks(Format::F32, &bytes, &mut out);
    assert_eq!(out.map(f32::to_bits), words);
}

/// The golden files hold, per format, 64 blocks of random bytes with finite scales, and the f32
/// values of the `gguf` Python package (`golden/format/make.py`).
#[test]
fn agrees_with_the_gguf_package() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/format");
    for format in Format::ALL {
        let read = |ext: &str| {
            let path = format!("{dir}/{}.{ext}", format.name());
            std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
        };
        let (blocks, want) = (read("blocks"), read("f32"));
        let n = blocks.len() / format.block_bytes() * format.block_elems();
        assert!(n >= 64 && want.len() == n * 4, "{format}: golden files of one size");
        let mut out = vec![0f32; n];
        decode_blocks(format, &blocks, &mut out);
        for (i, (v, w)) in out.iter().zip(want.chunks_exact(4)).enumerate() {
            let w = f32::from_le_bytes(w.try_into().unwrap());
            // Numeric equality: the sign of a zero may differ (the package computes q - 8 first).
            assert_eq!(*v, w, "{format} element {i}");
        }
    }
}

/// The claim that a device may fuse the multiply-add.
#[test]
fn the_product_of_scale_and_code_is_exact() {
    for format in quantised() {
        let path = format!(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/format/{}.blocks"),
            format.name()
        );
        let blocks = std::fs::read(path).unwrap();
        let sub = format.quant().unwrap().sub_block_elems;
        for block in blocks.chunks_exact(format.block_bytes()) {
            let p = parts(format, block);
            for (e, &c) in p.codes.iter().enumerate() {
                let (s, m) = (p.scales[e / sub], p.mins[e / sub]);
                assert_eq!(f64::from(s) * f64::from(c), f64::from(s * f32::from(c)));
                let fused = s.mul_add(f32::from(c), m);
                assert_eq!(fused.to_bits(), (s * f32::from(c) + m).to_bits());
            }
        }
    }
}

#[test]
fn bytes_for_rejects_partial_blocks_and_overflow() {
    assert_eq!(Format::Q4_1.bytes_for(576), Ok(360));
    assert_eq!(Format::Q6_K.bytes_for(512), Ok(420));
    assert_eq!(Format::F16.bytes_for(3), Ok(6));
    assert_eq!(
        Format::Q4_K.bytes_for(320),
        Err(FormatError::PartialBlock { format: Format::Q4_K, elems: 320 })
    );
    assert_eq!(
        Format::F32.bytes_for(1 << 62),
        Err(FormatError::TooLarge { format: Format::F32, elems: 1 << 62 })
    );
}

#[test]
fn names_round_trip() {
    for f in Format::ALL {
        assert_eq!(Format::from_name(f.name()), Some(f));
    }
    assert_eq!(Format::from_name("IQ2_XXS"), None);
}
