//! Typed access to a GGUF file's metadata.

use std::collections::HashSet;

use super::cursor::Cursor;
use super::fault::{GgufFault, Place};
use super::value::{self, Value, ValueKind};

/// The metadata of one file, in its order. Keys are unique.
#[derive(Clone, PartialEq, Debug)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        file: &[u8],
        count: u64,
    ) -> Result<Metadata, GgufFault> {
        let mut entries: Vec<(String, Value)> = Vec::new();
        let mut keys = HashSet::new();
        for n in 0..count {
            let key = cursor.text(&Place::MetadataKey(n))?;
            if !keys.insert(key) {
                return Err(GgufFault::DuplicateKey { key: key.into() });
            }
            entries.push((key.to_owned(), value::read(cursor, file, key)?));
        }
        Ok(Metadata { entries })
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Keys and values in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// An unsigned integer of any width, or a signed one that is not negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, GgufFault> {
        self.get(key).map(|v| as_uint(key, v)).transpose()
    }

    /// [`Metadata::uint`] that fits 32 bits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufFault> {
        self.uint(key)?
            .map(|n| {
                u32::try_from(n).map_err(|_| GgufFault::KeyRange {
                    key: key.into(),
                    found: n.into(),
                    max: u32::MAX.into(),
                })
            })
            .transpose()
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(_, v)) => Ok(Some(*v)),
            Some(other) => Err(wrong(key, other, "a float")),
        }
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(wrong(key, other, "a bool")),
        }
    }

    /// A UTF-8 string; `file` is what the metadata was parsed from.
    pub fn string<'a>(&self, file: &'a [u8], key: &str) -> Result<Option<&'a str>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(range)) => {
                let offset = range.start as u64;
                core::str::from_utf8(&file[range.clone()]).map(Some).map_err(|_| {
                    GgufFault::NotUtf8 { place: Place::MetadataValue(key.into()), offset }
                })
            }
            Some(other) => Err(wrong(key, other, "a string")),
        }
    }

    /// An array of UTF-8 strings.
    pub fn strings(&self, file: &[u8], key: &str) -> Result<Option<Vec<String>>, GgufFault> {
        let Some((of, count, range)) = self.array(key)? else { return Ok(None) };
        if of != ValueKind::String {
            return Err(GgufFault::KeyType { key: key.into(), found: of, want: "a string array" });
        }
        let place = Place::MetadataValue(key.into());
        let mut cursor = Cursor::within(file, range);
        // `count` was checked against the array's bytes, at 8 or more for each string.
        let mut out = Vec::with_capacity(count as usize);
        for _ in 0..count {
            out.push(cursor.text(&place)?.to_owned());
        }
        Ok(Some(out))
    }

    /// An array of integers, each of which fits an i32.
    pub fn ints(&self, file: &[u8], key: &str) -> Result<Option<Vec<i32>>, GgufFault> {
        let Some((of, count, range)) = self.array(key)? else { return Ok(None) };
        let mut out = Vec::with_capacity(count as usize);
        let want = "an integer array";
        if matches!(of, ValueKind::String | ValueKind::Array) {
            return Err(GgufFault::KeyType { key: key.into(), found: of, want });
        }
        for v in value::elements(of, &file[range], key) {
            let wide = match v? {
                Value::Uint(_, n) => i128::from(n),
                Value::Int(_, n) => i128::from(n),
                _ => return Err(GgufFault::KeyType { key: key.into(), found: of, want }),
            };
            out.push(i32::try_from(wide).map_err(|_| GgufFault::KeyRange {
                key: key.into(),
                found: wide,
                max: i32::MAX as u64,
            })?);
        }
        Ok(Some(out))
    }

    /// An array of f32.
    pub fn floats(&self, file: &[u8], key: &str) -> Result<Option<Vec<f32>>, GgufFault> {
        let Some((of, count, range)) = self.array(key)? else { return Ok(None) };
        if of != ValueKind::F32 {
            return Err(GgufFault::KeyType { key: key.into(), found: of, want: "an f32 array" });
        }
        let mut out = Vec::with_capacity(count as usize);
        for v in value::elements(of, &file[range], key) {
            let Value::Float(_, v) = v? else { unreachable!("f32 elements") };
            out.push(v as f32);
        }
        Ok(Some(out))
    }

    fn array(
        &self,
        key: &str,
    ) -> Result<Option<(ValueKind, u64, core::ops::Range<usize>)>, GgufFault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array { of, count, bytes }) => Ok(Some((*of, *count, bytes.clone()))),
            Some(other) => Err(wrong(key, other, "an array")),
        }
    }
}

fn as_uint(key: &str, v: &Value) -> Result<u64, GgufFault> {
    match v {
        Value::Uint(_, n) => Ok(*n),
        Value::Int(_, n) => u64::try_from(*n).map_err(|_| GgufFault::KeyRange {
            key: key.into(),
            found: (*n).into(),
            max: u64::MAX,
        }),
        other => Err(wrong(key, other, "an integer")),
    }
}

fn wrong(key: &str, found: &Value, want: &'static str) -> GgufFault {
    GgufFault::KeyType { key: key.into(), found: found.kind(), want }
}
