//! The messages of a chat request, checked down to the parts that a template reads.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::json::type_name;
use crate::prepare;
use lockstep_flow::limits::MESSAGES_MAX;
use serde_json::{Map, Value};

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Takes `messages` out of a body.
pub fn take(app: &App, fields: &mut Fields) -> Result<Value, ApiError> {
    let messages = fields
        .array("messages")?
        .ok_or_else(|| ApiError::field("messages", "is missing; send an array of messages"))?;
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        let what = format!("must hold 1 to {MESSAGES_MAX} messages, found {}", messages.len());
        return Err(ApiError::field("messages", what));
    }
    for (at, message) in messages.iter().enumerate() {
        check(&format!("messages[{at}]"), message)?;
    }
    let messages = Value::Array(messages);
    prepare::check_bytes(app, "messages", prepare::string_bytes(&messages))?;
    Ok(messages)
}

fn check(at: &str, message: &Value) -> Result<(), ApiError> {
    let Some(message) = message.as_object() else {
        return Err(ApiError::field(at, "must be an object with role and content"));
    };
    let role = match message.get("role").and_then(Value::as_str) {
        Some(role) if ROLES.contains(&role) => role,
        Some(_) => {
            let what = format!("must be one of {}", ROLES.join(", "));
            return Err(ApiError::field(format!("{at}.role"), what));
        }
        None => return Err(ApiError::field(format!("{at}.role"), "is missing or no string")),
    };
    check_content(at, role, message)?;
    check_calls(at, role, message.get("tool_calls"))?;
    for field in ["name", "tool_call_id", "reasoning_content", "refusal"] {
        match message.get(field) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Err(must_be(format!("{at}.{field}"), "a string", other)),
        }
    }
    for (field, what) in [
        ("function_call", "is the API's old form; send tool_calls"),
        ("audio", "is not supported: the model reads text"),
    ] {
        if message.get(field).is_some_and(|value| !value.is_null()) {
            return Err(ApiError::parameter(format!("{at}.{field}"), what));
        }
    }
    Ok(())
}

fn must_be(path: String, expected: &str, found: &Value) -> ApiError {
    ApiError::field(path, format!("must be {expected}, found {}", type_name(found)))
}

fn check_content(at: &str, role: &str, message: &Map<String, Value>) -> Result<(), ApiError> {
    let name = format!("{at}.content");
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if role == "assistant" => Ok(()),
        None | Some(Value::Null) => Err(ApiError::field(name, "is missing")),
        Some(Value::Array(parts)) => {
            for (part, value) in parts.iter().enumerate() {
                let name = format!("{name}[{part}]");
                match (value["type"].as_str(), value["text"].as_str()) {
                    (Some("text"), Some(_)) => {}
                    (Some("text"), None) => return Err(ApiError::field(name, "has no text")),
                    (Some(kind), _) => {
                        let kind: String = kind.chars().take(40).collect();
                        let what = format!("is of type '{kind}'; the model reads text only");
                        return Err(ApiError::unsupported(name, what));
                    }
                    (None, _) => return Err(ApiError::field(name, "has no type")),
                }
            }
            Ok(())
        }
        Some(_) => Err(ApiError::field(name, "must be a string or an array of parts")),
    }
}

/// Earlier calls: `[{"id", "type": "function", "function": {"name", "arguments"}}]`. The arguments
/// are JSON text, or an object, as some clients send them; their text need not be JSON, as a model
/// may have written it.
fn check_calls(at: &str, role: &str, calls: Option<&Value>) -> Result<(), ApiError> {
    let path = format!("{at}.tool_calls");
    let calls = match calls {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(must_be(path, "an array of calls", other)),
    };
    if role != "assistant" && !calls.is_empty() {
        let what = format!("belongs to assistant messages; this one's role is {role}");
        return Err(ApiError::field(path, what));
    }
    for (number, call) in calls.iter().enumerate() {
        check_call(&format!("{path}[{number}]"), call)?;
    }
    Ok(())
}

fn check_call(path: &str, call: &Value) -> Result<(), ApiError> {
    let Some(call) = call.as_object() else {
        return Err(must_be(path.into(), "an object with id, type and function", call));
    };
    match call.get("id") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(other) => return Err(must_be(format!("{path}.id"), "a string", other)),
    }
    match call.get("type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind == "function" => {}
        Some(_) => return Err(ApiError::field(format!("{path}.type"), "must be 'function'")),
    }
    let function = match call.get("function") {
        Some(Value::Object(function)) => function,
        None | Some(Value::Null) => {
            return Err(ApiError::field(format!("{path}.function"), "is missing"));
        }
        Some(other) => {
            let expected = "an object with name and arguments";
            return Err(must_be(format!("{path}.function"), expected, other));
        }
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        None | Some(Value::Null) => {
            return Err(ApiError::field(format!("{path}.function.name"), "is missing"));
        }
        Some(other) => {
            return Err(must_be(format!("{path}.function.name"), "a function's name", other));
        }
    }
    match function.get("arguments") {
        None | Some(Value::Null | Value::String(_) | Value::Object(_)) => Ok(()),
        Some(other) => {
            let expected = "a string of JSON, or an object";
            Err(must_be(format!("{path}.function.arguments"), expected, other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(message: Value) -> Option<String> {
        let e = check("messages[0]", &message).err()?;
        assert!([400, 422].contains(&e.status().as_u16()), "{e}");
        e.to_json()["error"]["param"].as_str().map(str::to_owned)
    }

    /// Calls of any shape were once accepted, and templates printed what they made of them.
    #[test]
    fn bad_shapes_of_tool_calls_are_named_by_their_path() {
        for (path, calls) in [
            ("", json!({})),
            ("", json!("f")),
            ("", json!(true)),
            ("[0]", json!(["f"])),
            ("[0]", json!([null])),
            ("[0].id", json!([{"id": 1, "function": {"name": "f"}}])),
            ("[0].type", json!([{"type": "custom", "function": {"name": "f"}}])),
            ("[0].type", json!([{"type": 1, "function": {"name": "f"}}])),
            ("[0].function", json!([{}])),
            ("[0].function", json!([{"function": "f"}])),
            ("[0].function.name", json!([{"function": {}}])),
            ("[0].function.name", json!([{"function": {"name": ""}}])),
            ("[0].function.name", json!([{"function": {"name": {"a": 1}}}])),
            ("[0].function.arguments", json!([{"function": {"name": "f", "arguments": 5}}])),
            ("[0].function.arguments", json!([{"function": {"name": "f", "arguments": [1]}}])),
            ("[1].function", json!([{"function": {"name": "f"}}, {"type": "function"}])),
        ] {
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            let want = format!("messages[0].tool_calls{path}");
            assert_eq!(named(message), Some(want), "{calls}");
        }
        let call = json!([{"function": {"name": "f"}}]);
        let users = json!({"role": "user", "content": "x", "tool_calls": call});
        assert_eq!(named(users).as_deref(), Some("messages[0].tool_calls"));
    }

    #[test]
    fn good_calls_are_taken() {
        for calls in [
            json!(null),
            json!([]),
            json!([{"id": "1", "type": "function",
                "function": {"name": "f", "arguments": "{\"a\": 1}"}}]),
            json!([{"function": {"name": "f", "arguments": {"a": 1}}}]),
            json!([{"index": 0, "function": {"name": "f", "arguments": "not JSON"}}]),
            json!([{"id": null, "type": null, "function": {"name": "f", "arguments": null}}]),
        ] {
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            assert_eq!(named(message), None, "{calls}");
        }
    }

    #[test]
    fn other_fields_of_a_message_are_checked_too() {
        for (field, value) in [
            ("name", json!(5)),
            ("tool_call_id", json!(["a"])),
            ("reasoning_content", json!({})),
            ("function_call", json!({"name": "f", "arguments": "{}"})),
            ("audio", json!({"id": "a"})),
        ] {
            let mut message = json!({"role": "assistant", "content": "x"});
            message[field] = value;
            assert_eq!(named(message), Some(format!("messages[0].{field}")));
        }
        let result = json!({"role": "tool", "tool_call_id": "1", "content": "42", "name": "f"});
        assert_eq!(named(result), None);
    }
}
