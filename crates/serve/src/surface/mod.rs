//! What a generation request may name: one row for every field of the OpenAI, SGLang and vLLM
//! request surface (and of llama.cpp's, where its users send it here), and what becomes of it.
//!
//! A field that would change the answer and that this server does not have is refused: an answer
//! to something that was not asked is worse than none. A field that changes no answer is taken and
//! dropped. A field that stands nowhere in here is dropped too, as other servers do, unless it
//! looks like a misspelling of one that matters.

mod table;

use crate::error::ApiError;
use crate::fields::Fields;
use lockstep_flow::settings::edit_distance;
use serde_json::Value;
pub use table::SURFACE;

/// A generation endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What becomes of a field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// It is read where it is used.
    Understood,
    /// It changes no token of the answer.
    NoEffect,
    /// It is refused, but for values that ask for what happens anyway.
    Refused { unless: &'static [Off], instead: &'static str },
}

/// A value that asks for what happens anyway; null and empty ones always do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Off {
    /// This flag.
    Flag(bool),
    /// This number.
    Number(f64),
    /// This word, alone or as the only one of an array.
    Word(&'static str),
}

/// A field, where, and its rule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// Its name on the wire.
    pub field: &'static str,
    /// The endpoint that the rule is of; `None` is both.
    pub on: Option<Endpoint>,
    /// What becomes of it.
    pub rule: Rule,
}

use Off::{Flag, Number, Word};
use Rule::{NoEffect, Refused, Understood};

/// Unknown names that are compared with the known ones, at most: a body may hold millions.
const UNKNOWN_LOOKED_AT_MAX: usize = 64;

/// The rule of a field on an endpoint.
fn rule_of(field: &str, on: Endpoint) -> Option<Rule> {
    let row = SURFACE.iter().find(|r| r.field == field && r.on.is_none_or(|at| at == on))?;
    Some(row.rule)
}

impl Off {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (Flag(off), Value::Bool(b)) => off == *b,
            (Number(off), Value::Number(n)) => n.as_f64() == Some(off),
            (Word(off), Value::String(s)) => off == s,
            (Word(off), Value::Array(items)) => {
                matches!(&items[..], [Value::String(s)] if off == s)
            }
            _ => false,
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The field that a name was probably meant to be: the same letters in another case, or nearly
/// the same word. Only fields that matter count.
fn meant(name: &str, on: Endpoint) -> Option<&'static str> {
    let plain = |s: &str| s.replace(['_', '-'], "").to_ascii_lowercase();
    let given = plain(name);
    let matters = |r: &&Row| r.on.is_none_or(|at| at == on) && r.rule != NoEffect;
    let near = |r: &&Row| {
        let allowed = match r.field.len() {
            0..6 => 0,
            6..9 => 1,
            _ => 2,
        };
        let possible = r.field.len().abs_diff(name.len()) <= allowed;
        plain(r.field) == given || (possible && edit_distance(r.field, name) <= allowed)
    };
    SURFACE.iter().filter(matters).find(near).map(|r| r.field)
}

/// Refuses what would change the answer and is not done here.
///
/// # Errors
/// The first such field of the body, with what would work in its place.
pub fn check(fields: &Fields, on: Endpoint) -> Result<(), ApiError> {
    let mut unknown = 0;
    for (field, value) in fields.iter() {
        match rule_of(field, on) {
            Some(Understood | NoEffect) => {}
            Some(Refused { unless, instead }) => {
                if !is_empty(value) && !unless.iter().any(|off| off.is(value)) {
                    let what = format!("is not supported here: {instead}");
                    return Err(ApiError::parameter(field, what));
                }
            }
            None if value.is_null() || unknown >= UNKNOWN_LOOKED_AT_MAX => {}
            None => {
                unknown += 1;
                if let Some(meant) = meant(field, on) {
                    let what = format!("is not a field of this endpoint; did you mean '{meant}'?");
                    return Err(ApiError::parameter(field, what));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Endpoint::{Chat, Text};
    use super::*;
    use serde_json::json;

    fn said(body: Value, on: Endpoint) -> Option<(String, String)> {
        let Value::Object(map) = body else { panic!("an object") };
        let e = check(&Fields::new(map), on).err()?;
        assert_eq!((e.status().as_u16(), e.to_json()["error"]["code"].as_str()), (400, CODE));
        Some((e.to_json()["error"]["param"].as_str().unwrap().to_owned(), e.to_string()))
    }

    const CODE: Option<&str> = Some("unsupported_parameter");

    #[test]
    fn every_field_has_one_rule_on_each_endpoint() {
        for row in SURFACE {
            for on in [Chat, Text] {
                let rules = SURFACE
                    .iter()
                    .filter(|r| r.field == row.field && r.on.is_none_or(|at| at == on))
                    .count();
                assert_eq!(rules, 1, "{} on {on:?}", row.field);
            }
        }
    }

    #[test]
    fn the_page_about_requests_has_every_field() {
        let page = include_str!("../../../../docs/requests.md");
        for row in SURFACE {
            let field = row.field;
            let found = match row.rule {
                Refused { instead, .. } => page.lines().any(|line| {
                    line.starts_with(&format!("| `{field}` |")) && line.contains(instead)
                }),
                _ => page.contains(&format!("`{field}`")),
            };
            assert!(found, "docs/requests.md says nothing of {field}: {:?}", row.rule);
        }
    }

    /// `ebnf`, `bad_words`, `lora_path` and their like were once dropped, and the answer was to
    /// something else than what was asked.
    #[test]
    fn every_refused_field_is_named_and_what_happens_anyway_is_not_refused() {
        for row in SURFACE {
            let Refused { unless, instead } = row.rule else { continue };
            for on in [Chat, Text].into_iter().filter(|on| row.on.is_none_or(|at| at == *on)) {
                let (param, words) = said(json!({row.field: {"a": 1}}), on).unwrap();
                assert_eq!(param, row.field);
                assert!(words.contains(instead), "{words}");
                for off in [json!(null), json!(""), json!([]), json!({})] {
                    assert_eq!(said(json!({row.field: off}), on), None, "{}", row.field);
                }
                for off in unless {
                    let value = match *off {
                        Flag(b) => json!(b),
                        Number(n) => json!(n),
                        Word(w) => json!(w),
                    };
                    assert_eq!(said(json!({row.field: value}), on), None, "{}", row.field);
                }
            }
        }
        assert_eq!(said(json!({"modalities": ["text"]}), Chat), None);
        assert!(said(json!({"modalities": ["text", "audio"]}), Chat).is_some());
        assert!(said(json!({"use_beam_search": true}), Text).is_some());
        assert!(said(json!({"tools": [{}]}), Text).is_some());
        assert_eq!(said(json!({"tools": [{}]}), Chat), None);
    }

    #[test]
    fn a_misspelt_field_is_refused_and_an_unknown_one_is_not() {
        for (given, meant) in [
            ("temprature", "temperature"),
            ("maxTokens", "max_tokens"),
            ("max_token", "max_tokens"),
            ("top-p", "top_p"),
            ("topK", "top_k"),
            ("stop_tokens_ids", "stop_token_ids"),
        ] {
            let (param, words) = said(json!({given: 1}), Chat).unwrap();
            assert_eq!(param, given);
            assert!(words.contains(&format!("'{meant}'")), "{words}");
        }
        for other in ["models", "provider", "trace", "x", "", "tag", "userid", "keep_alive"] {
            assert_eq!(said(json!({other: 1}), Chat), None, "{other}");
        }
    }
}
