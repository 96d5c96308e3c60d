//! Typed access to the fields of a request, with errors that name the field.
//!
//! `null` counts as absent everywhere, as client libraries send it for unset fields. Which fields
//! there are at all is [`crate::surface`]'s.

use crate::error::ApiError;
use crate::json::type_name;
use serde_json::{Map, Value};

/// A JSON object whose fields are taken out one by one.
pub struct Fields {
    map: Map<String, Value>,
    /// Put before a field's name in errors: `response_format.`.
    prefix: String,
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(n) => n.to_string(),
        Value::String(s) => {
            let head: String = s.chars().take(60).collect();
            let dots = if head.len() < s.len() { "..." } else { "" };
            format!("the string '{head}{dots}'")
        }
        other => type_name(other).into(),
    }
}

impl Fields {
    /// The fields of a body.
    pub fn new(map: Map<String, Value>) -> Fields {
        Fields { map, prefix: String::new() }
    }

    /// The full name of a field, for errors.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// The error of a value that is not what is expected.
    pub fn wrong(&self, field: &str, expected: &str, found: &Value) -> ApiError {
        ApiError::field(self.name(field), format!("must be {expected}, found {}", shown(found)))
    }

    /// True where the field is there and not null.
    pub fn has(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(|v| !v.is_null())
    }

    /// Every field with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(field, value)| (field.as_str(), value))
    }

    /// Takes a field out; `null` is absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        // Order of the remaining fields does not matter here, so the constant-time removal is
        // taken: a body may have as many fields as its budget of values.
        self.map.swap_remove(field).filter(|v| !v.is_null())
    }

    /// A finite number.
    pub fn number(&mut self, field: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_f64() {
            Some(n) if (n as f32).is_finite() => Ok(Some(n as f32)),
            _ => Err(self.wrong(field, "a number", &value)),
        }
    }

    /// A whole number in `min..=max`; `3.0` counts as whole.
    pub fn count(&mut self, field: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match whole(&value) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.wrong(field, &format!("a whole number from {min} to {max}"), &value)),
        }
    }

    /// A 64-bit integer of either sign, as its bits.
    pub fn bits64(&mut self, field: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_u64().or_else(|| value.as_i64().map(|n| n as u64)) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(field, "a 64-bit integer", &value)),
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value {
            Value::Bool(b) => Ok(Some(b)),
            other => Err(self.wrong(field, "true or false", &other)),
        }
    }

    /// A string.
    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value {
            Value::String(s) => Ok(Some(s)),
            other => Err(self.wrong(field, "a string", &other)),
        }
    }

    /// An array.
    pub fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value {
            Value::Array(items) => Ok(Some(items)),
            other => Err(self.wrong(field, "an array", &other)),
        }
    }

    /// An object.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value {
            Value::Object(map) => {
                Ok(Some(Fields { map, prefix: format!("{}.", self.name(field)) }))
            }
            other => Err(self.wrong(field, "an object", &other)),
        }
    }

    /// What is left, as an object again.
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }
}

/// A value as a whole number, where it is one and not negative.
pub fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let f = value.as_f64()?;
        ((0.0..=9_007_199_254_740_992.0).contains(&f) && f.fract() == 0.0).then_some(f as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(v: Value) -> Fields {
        match v {
            Value::Object(map) => Fields::new(map),
            _ => panic!("an object"),
        }
    }

    #[test]
    fn errors_name_the_field_and_what_was_found() {
        let mut f = fields(json!({"temperature": "hot", "n": 0, "seed": 1.5, "stop": {}}));
        let said = |e: ApiError| e.to_string();
        assert_eq!(
            said(f.number("temperature").unwrap_err()),
            "'temperature' must be a number, found the string 'hot'"
        );
        assert_eq!(
            said(f.count("n", 1, 128).unwrap_err()),
            "'n' must be a whole number from 1 to 128, found 0"
        );
        assert!(f.bits64("seed").is_err());
        assert!(f.string("stop").is_err());
    }

    #[test]
    fn null_is_absent_and_whole_floats_are_whole() {
        let mut f = fields(json!({"a": null, "b": 3.0, "c": -1, "d": 1e300}));
        assert_eq!(f.number("a").unwrap(), None);
        assert_eq!(f.count("b", 0, 9).unwrap(), Some(3));
        assert_eq!(f.bits64("c").unwrap(), Some(u64::MAX));
        assert!(f.number("d").is_err());
    }
}
