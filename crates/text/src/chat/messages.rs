//! Messages as a client sends them, brought to what templates expect and made harmless.

use crate::TextError;
use crate::error::MessageProblem;
use crate::tokenizer::Guard;
use serde_json::Value;

/// Checks `messages` and brings content to the form that the template reads.
///
/// `parts` says whether the template walks over content parts itself; where it does not, text
/// parts become one string, joined by newlines. Arguments of earlier tool calls, which the API
/// carries as a string of JSON, become objects where `parse_arguments` is set: templates print
/// them with `tojson`.
pub(crate) fn normalise(
    messages: &Value,
    parts: bool,
    parse_arguments: bool,
) -> Result<Value, TextError> {
    let list = match messages {
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(TextError::Messages { found: "an empty array" }),
        _ => return Err(TextError::Messages { found: "not an array" }),
    };
    let mut out = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let bad = |problem| TextError::Message { index, problem };
        let Value::Object(fields) = message else {
            return Err(bad(MessageProblem::NotAnObject));
        };
        if !fields.get("role").is_some_and(Value::is_string) {
            return Err(bad(MessageProblem::NoRole));
        }
        let mut fields = fields.clone();
        match fields.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(content)) => {
                let text = text_of_parts(content).map_err(bad)?;
                if !parts {
                    fields.insert("content".into(), text.into());
                }
            }
            Some(_) => return Err(bad(MessageProblem::Content)),
        }
        if let (true, Some(Value::Array(calls))) = (parse_arguments, fields.get_mut("tool_calls")) {
            for call in calls {
                let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
                let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
                if let Some(object @ Value::Object(_)) = parsed {
                    *arguments = object;
                }
            }
        }
        out.push(Value::Object(fields));
    }
    Ok(Value::Array(out))
}

fn text_of_parts(parts: &[Value]) -> Result<String, MessageProblem> {
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => texts.push(text),
            (Some(_), _) => return Err(MessageProblem::PartKind),
            (None, _) => return Err(MessageProblem::Content),
        }
    }
    Ok(texts.join("\n"))
}

/// Puts marks into every string and key below `value`; true where there was one to put.
pub(crate) fn mark_all(value: &mut Value, guard: &Guard, mark: char) -> bool {
    match value {
        Value::String(text) => match guard.mark(text, mark) {
            Some(marked) => {
                *text = marked;
                true
            }
            None => false,
        },
        Value::Array(items) => {
            items.iter_mut().fold(false, |any, item| mark_all(item, guard, mark) | any)
        }
        Value::Object(fields) => {
            let mut any = false;
            if fields.keys().any(|key| guard.mark(key, mark).is_some()) {
                any = true;
                let rename =
                    |(key, value): (String, Value)| (guard.mark(&key, mark).unwrap_or(key), value);
                *fields = std::mem::take(fields).into_iter().map(rename).collect();
            }
            fields.values_mut().fold(any, |any, value| mark_all(value, guard, mark) | any)
        }
        _ => false,
    }
}
