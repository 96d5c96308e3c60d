//! A request body becomes a JSON object, in bounded memory.

use crate::error::ApiError;
use core::fmt;
use lockstep_flow::limits::BODY_VALUES_MAX;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::Cell;

/// Parses a body that must be one JSON object. Nesting is bounded by the parser (128), the number
/// of values by [`BODY_VALUES_MAX`].
pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match parse(body, BODY_VALUES_MAX)? {
        Value::Object(map) => Ok(map),
        other => Err(ApiError::Body {
            what: format!("it must be a JSON object, found {}", type_name(&other)),
        }),
    }
}

/// The JSON type's name, for error messages.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a fractional number",
        Value::Number(_) => "a whole number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn parse(body: &[u8], values_max: usize) -> Result<Value, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::Body { what: "it is empty; send a JSON object".into() });
    }
    let left = Cell::new(values_max);
    let mut parser = serde_json::Deserializer::from_slice(body);
    let bad = |e: serde_json::Error| ApiError::Body { what: e.to_string() };
    let value = Budget(&left).deserialize(&mut parser).map_err(bad)?;
    parser.end().map_err(bad)?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Budget<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Budget<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None => return Err(D::Error::custom("it holds too many JSON values")),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Budget<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            object.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_plain_parser() {
        let text = r#"{"a":[1,-2,3.5,"x\n",null,true,{"b":{}}],"big":18446744073709551615}"#;
        let ours = parse(text.as_bytes(), 100).unwrap();
        assert_eq!(ours, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_flood_of_values_is_refused() {
        let text = format!("[{}0]", "0,".repeat(1000));
        assert!(parse(text.as_bytes(), 1002).is_ok());
        let e = parse(text.as_bytes(), 1001).unwrap_err();
        assert!(e.to_string().contains("too many JSON values"), "{e}");
    }

    #[test]
    fn deep_nesting_is_refused_not_overflowed() {
        let deep = "[".repeat(1 << 20);
        assert!(parse(deep.as_bytes(), BODY_VALUES_MAX).is_err());
    }
}
