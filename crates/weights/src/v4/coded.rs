//! Matrices of native checkpoints in FP8, MXFP4 and NVFP4: the tensor and its scales, found by
//! name and type.

use std::collections::HashMap;

use crate::checkpoint::{Coded, CodedKind, Entry};
use crate::error::WeightsError;
use crate::file::SourceFile;
use crate::narrow::{FP8_BLOCK, MXFP4_BLOCK, NVFP4_BLOCK};
use lockstep_plan::format::Format;

/// Takes the scales of `entry` out of `by_name` and notes how its elements are coded. An entry of
/// another type stays as it is, for the check that follows to refuse.
pub(super) fn take(
    by_name: &mut HashMap<String, Entry>,
    entry: &mut Entry,
    want: [u64; 2],
    files: &[SourceFile],
) -> Result<(), WeightsError> {
    let Err(dtype) = &entry.format else { return Ok(()) };
    let stem = entry.name.strip_suffix("weight").unwrap_or(&entry.name).to_owned();
    let [rows, cols] = want;
    let (kind, names, block): (_, &[&str], _) = match dtype.as_str() {
        "F8_E4M3" => {
            let blocks = [rows.div_ceil(FP8_BLOCK as u64), cols.div_ceil(FP8_BLOCK as u64)];
            (CodedKind::Fp8, &["scale", "weight_scale_inv"], blocks)
        }
        "I8" | "U8" | "F4" if by_name.contains_key(&format!("{stem}weight_scale_2")) => {
            let global = scalar(by_name, &format!("{stem}weight_scale_2"), files)?;
            by_name.remove(&format!("{stem}input_scale"));
            let blocks = [rows, cols / NVFP4_BLOCK as u64];
            (CodedKind::Nvfp4 { global }, &["weight_scale"], blocks)
        }
        "I8" | "U8" | "F4" => {
            (CodedKind::Mxfp4, &["scale", "weight_scale"], [rows, cols / MXFP4_BLOCK as u64])
        }
        _ => return Ok(()),
    };
    let dtype = if kind == CodedKind::Fp8 { "" } else { dtype.as_str() };
    check_packed(entry, want, dtype, files)?;
    let names: Vec<String> = names.iter().map(|n| format!("{stem}{n}")).collect();
    let scales = names.iter().find_map(|n| by_name.remove(n));
    let Some(scales) = scales else {
        let file = files[entry.file].path().to_path_buf();
        let (name, scales) = (entry.name.clone(), names[0].clone());
        return Err(WeightsError::ScaleMissing { file, name, scales });
    };
    let scale_type = if matches!(kind, CodedKind::Nvfp4 { .. }) { "F8_E4M3" } else { "F8_E8M0" };
    if scales.format.as_ref().err().map(String::as_str) != Some(scale_type) {
        return Err(WeightsError::ScaleType {
            file: files[scales.file].path().to_path_buf(),
            name: scales.name,
            found: scales.format.map_or_else(|name| name, |format| format.to_string()),
            want: scale_type,
        });
    }
    check_shape(&scales, block, files)?;
    check_numbers(entry, &scales, kind, want, files)?;
    let exact = !matches!(kind, CodedKind::Nvfp4 { .. });
    entry.format = Ok(if exact { Format::BF16 } else { Format::F32 });
    entry.shape = want.to_vec();
    entry.coded = Some(Coded { kind, scales: (scales.file, scales.range) });
    Ok(())
}

/// Refuses codes that stand for no number: they would make every row that meets them NaN, long
/// after anything could say why. Elements of four bits are all numbers.
fn check_numbers(
    entry: &Entry,
    scales: &Entry,
    kind: CodedKind,
    [_, cols]: [u64; 2],
    files: &[SourceFile],
) -> Result<(), WeightsError> {
    let refuse = |of: &Entry, width: u64, nan: fn(u8) -> bool, coding| {
        let bytes = &files[of.file].bytes()[of.range.clone()];
        let Some(at) = bytes.iter().position(|b| nan(*b)) else { return Ok(()) };
        let (row, col) = (at as u64 / width, at as u64 % width);
        Err(WeightsError::NotANumber {
            file: files[of.file].path().to_path_buf(),
            name: of.name.clone(),
            row,
            col,
            code: bytes[at],
            coding,
        })
    };
    let e4m3 = |code: u8| code & 127 == 127;
    // NaN, and powers of two with which some element would overflow f32 or be less than bf16 holds.
    let of_e4m3 = |code: u8| !(3..=246).contains(&code);
    let of_e2m1 = |code: u8| code > 252;
    let width = |block: usize| cols.div_ceil(block as u64).max(1);
    match kind {
        CodedKind::Fp8 => {
            refuse(scales, width(FP8_BLOCK), of_e4m3, "E8M0")?;
            refuse(entry, cols, e4m3, "E4M3")
        }
        CodedKind::Mxfp4 => refuse(scales, width(MXFP4_BLOCK), of_e2m1, "E8M0"),
        CodedKind::Nvfp4 { .. } => refuse(scales, width(NVFP4_BLOCK), e4m3, "E4M3"),
    }
}

/// Two elements of four bits share a byte along a row, unless the type counts them itself.
fn check_packed(
    entry: &Entry,
    [rows, cols]: [u64; 2],
    dtype: &str,
    files: &[SourceFile],
) -> Result<(), WeightsError> {
    match dtype {
        "I8" | "U8" => check_shape(entry, [rows, cols / 2], files),
        _ => check_shape(entry, [rows, cols], files),
    }
}

fn check_shape(entry: &Entry, want: [u64; 2], files: &[SourceFile]) -> Result<(), WeightsError> {
    if entry.shape == want {
        return Ok(());
    }
    Err(WeightsError::TensorShape {
        file: files[entry.file].path().to_path_buf(),
        name: entry.name.clone(),
        found: entry.shape.clone(),
        want: want.to_vec(),
    })
}

fn scalar(
    by_name: &mut HashMap<String, Entry>,
    name: &str,
    files: &[SourceFile],
) -> Result<f32, WeightsError> {
    let entry = by_name.remove(name).expect("looked up before");
    let bytes = &files[entry.file].bytes()[entry.range.clone()];
    let value = bytes.first_chunk::<4>().map(|bytes| f32::from_le_bytes(*bytes));
    match (&entry.format, value) {
        (Ok(Format::F32), Some(value)) if entry.range.len() == 4 && value.is_finite() => Ok(value),
        (Ok(Format::F32), Some(value)) if entry.range.len() == 4 => Err(WeightsError::ScaleValue {
            file: files[entry.file].path().to_path_buf(),
            name: entry.name,
            value,
        }),
        _ => Err(WeightsError::ScaleType {
            file: files[entry.file].path().to_path_buf(),
            found: entry.format.map_or_else(|name| name, |format| format.to_string()),
            name: entry.name,
            want: "F32",
        }),
    }
}
