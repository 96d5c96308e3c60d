//! Metadata values: small ones decoded, strings and arrays as checked ranges of the file.

use core::fmt;
use core::ops::Range;

use super::cursor::Cursor;
use super::fault::{GgufFault, Place};

/// Depth of arrays of arrays that is followed; real files have 1.
const ARRAY_DEPTH_MAX: u32 = 4;

/// The type of a metadata value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// A metadata value. The ranges lie within the file and were walked to their end when it was
/// opened.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Uint(ValueKind, u64),
    Int(ValueKind, i64),
    Float(ValueKind, f64),
    Bool(bool),
    String(Range<usize>),
    Array { of: ValueKind, count: u64, bytes: Range<usize> },
}

impl ValueKind {
    const fn from_id(id: u32) -> Option<ValueKind> {
        Some(match id {
            0 => ValueKind::U8,
            1 => ValueKind::I8,
            2 => ValueKind::U16,
            3 => ValueKind::I16,
            4 => ValueKind::U32,
            5 => ValueKind::I32,
            6 => ValueKind::F32,
            7 => ValueKind::Bool,
            8 => ValueKind::String,
            9 => ValueKind::Array,
            10 => ValueKind::U64,
            11 => ValueKind::I64,
            12 => ValueKind::F64,
            _ => return None,
        })
    }

    /// Bytes of a value; of a string or array, those that it has at least.
    const fn min_bytes(self) -> u64 {
        match self {
            ValueKind::U8 | ValueKind::I8 | ValueKind::Bool => 1,
            ValueKind::U16 | ValueKind::I16 => 2,
            ValueKind::U32 | ValueKind::I32 | ValueKind::F32 => 4,
            ValueKind::U64 | ValueKind::I64 | ValueKind::F64 | ValueKind::String => 8,
            ValueKind::Array => 12,
        }
    }

    const fn is_fixed(self) -> bool {
        !matches!(self, ValueKind::String | ValueKind::Array)
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueKind::U8 => "a u8",
            ValueKind::I8 => "an i8",
            ValueKind::U16 => "a u16",
            ValueKind::I16 => "an i16",
            ValueKind::U32 => "a u32",
            ValueKind::I32 => "an i32",
            ValueKind::F32 => "an f32",
            ValueKind::Bool => "a bool",
            ValueKind::String => "a string",
            ValueKind::Array => "an array",
            ValueKind::U64 => "a u64",
            ValueKind::I64 => "an i64",
            ValueKind::F64 => "an f64",
        })
    }
}

impl Value {
    pub fn kind(&self) -> ValueKind {
        match self {
            Value::Uint(kind, _) | Value::Int(kind, _) | Value::Float(kind, _) => *kind,
            Value::Bool(_) => ValueKind::Bool,
            Value::String(_) => ValueKind::String,
            Value::Array { .. } => ValueKind::Array,
        }
    }
}

fn kind(cursor: &mut Cursor<'_>, key: &str, place: &Place) -> Result<ValueKind, GgufFault> {
    let id = cursor.u32(place)?;
    ValueKind::from_id(id).ok_or_else(|| GgufFault::ValueKind { key: key.into(), id })
}

/// Reads the type and the value that follow a key.
pub(super) fn read(cursor: &mut Cursor<'_>, file: &[u8], key: &str) -> Result<Value, GgufFault> {
    let place = Place::MetadataValue(key.into());
    match kind(cursor, key, &place)? {
        ValueKind::String => Ok(Value::String(cursor.string(&place)?)),
        ValueKind::Array => {
            let (of, count, bytes) = walk_array(cursor, key, &place, 1)?;
            Ok(Value::Array { of, count, bytes })
        }
        fixed => {
            let range = cursor.skip(fixed.min_bytes(), &place)?;
            scalar(fixed, &file[range], key)
        }
    }
}

/// A value of fixed size from exactly its bytes.
pub(super) fn scalar(kind: ValueKind, b: &[u8], key: &str) -> Result<Value, GgufFault> {
    let mut wide = [0u8; 8];
    wide[..b.len()].copy_from_slice(b);
    let raw = u64::from_le_bytes(wide);
    Ok(match kind {
        ValueKind::U8 | ValueKind::U16 | ValueKind::U32 | ValueKind::U64 => Value::Uint(kind, raw),
        ValueKind::I8 => Value::Int(kind, i64::from(raw as i8)),
        ValueKind::I16 => Value::Int(kind, i64::from(raw as i16)),
        ValueKind::I32 => Value::Int(kind, i64::from(raw as i32)),
        ValueKind::I64 => Value::Int(kind, raw as i64),
        ValueKind::F32 => Value::Float(kind, f64::from(f32::from_bits(raw as u32))),
        ValueKind::F64 => Value::Float(kind, f64::from_bits(raw)),
        ValueKind::Bool if raw <= 1 => Value::Bool(raw == 1),
        ValueKind::Bool => return Err(GgufFault::Bool { key: key.into(), found: raw as u8 }),
        ValueKind::String | ValueKind::Array => unreachable!("fixed size kinds only"),
    })
}

/// Steps over an array, checking every length inside it. The range is that of its elements.
fn walk_array(
    cursor: &mut Cursor<'_>,
    key: &str,
    place: &Place,
    depth: u32,
) -> Result<(ValueKind, u64, Range<usize>), GgufFault> {
    if depth > ARRAY_DEPTH_MAX {
        return Err(GgufFault::ArrayDepth { key: key.into() });
    }
    let of = kind(cursor, key, place)?;
    let count = cursor.count(of.min_bytes(), place)?;
    let start = cursor.at();
    if of.is_fixed() {
        cursor.skip(count * of.min_bytes(), place)?;
    } else {
        for _ in 0..count {
            if of == ValueKind::String {
                cursor.string(place)?;
            } else {
                walk_array(cursor, key, place, depth + 1)?;
            }
        }
    }
    Ok((of, count, start..cursor.at()))
}

/// The elements of a fixed-size array, one after the other.
pub(super) fn elements<'a>(
    of: ValueKind,
    bytes: &'a [u8],
    key: &'a str,
) -> impl Iterator<Item = Result<Value, GgufFault>> + 'a {
    bytes.chunks_exact(of.min_bytes() as usize).map(move |b| scalar(of, b, key))
}
