//! Tools in words, for models whose chat template has no place for them.

use lockstep_text::ToolFormat;
use serde_json::{Map, Value, json};

/// Puts the tools, and how to call them, into the system message.
pub fn announce(messages: Value, tools: &Value, format: ToolFormat) -> Value {
    let Value::Array(mut messages) = messages else { return messages };
    let functions: Vec<String> =
        tools.as_array().into_iter().flatten().map(|t| t["function"].to_string()).collect();
    let call = "{\"name\": FUNCTION, \"arguments\": {ARGUMENTS}}";
    let how = match format {
        ToolFormat::Plain => format!("Answer with a function call and nothing else:\n{call}"),
        _ => format!(
            "To call a function, write this and nothing else, once for each call:\n\
             <tool_call>\n{call}\n</tool_call>\n\
             When no function is needed, answer in words."
        ),
    };
    let words = format!(
        "You can call functions. Each line describes one, with a JSON schema of its arguments:\n\
         {}\n\n{how}",
        functions.join("\n")
    );
    match messages.first_mut() {
        Some(first) if first["role"] == "system" => {
            let own = text_of(&first["content"]);
            first["content"] = Value::String(format!("{own}\n\n{words}"));
        }
        _ => messages.insert(0, json!({"role": "system", "content": words})),
    }
    Value::Array(messages)
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|p| p["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Writes earlier calls and their results as text.
pub fn write_out(messages: Value) -> Value {
    let Value::Array(messages) = messages else { return messages };
    messages.into_iter().map(written).collect()
}

fn written(message: Value) -> Value {
    let Value::Object(mut message) = message else { return message };
    let content = message.get("content").map(text_of).unwrap_or_default();
    if matches!(message.get("role").and_then(Value::as_str), Some("tool" | "function")) {
        let text = format!("<tool_response>\n{content}\n</tool_response>");
        return json!({"role": "user", "content": text});
    }
    let Some(Value::Array(calls)) = message.remove("tool_calls") else {
        if message.get("content").is_none_or(Value::is_null) {
            message.insert("content".into(), "".into());
        }
        return Value::Object(message);
    };
    let mut text = content;
    for call in &calls {
        let function = &call["function"];
        let mut shown = Map::new();
        shown.insert("name".into(), function["name"].clone());
        let arguments = function["arguments"].as_str();
        let parsed = arguments.and_then(|a| serde_json::from_str::<Value>(a).ok());
        shown.insert("arguments".into(), parsed.unwrap_or_else(|| function["arguments"].clone()));
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("<tool_call>\n{}\n</tool_call>", Value::Object(shown)));
    }
    message.insert("content".into(), text.into());
    Value::Object(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_join_the_system_message_or_make_one() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let user = json!({"role": "user", "content": "hi"});
        let made = announce(json!([user]), &tools, ToolFormat::Hermes);
        assert_eq!((made[0]["role"].as_str(), &made[1]), (Some("system"), &user));
        assert!(made[0]["content"].as_str().unwrap().contains("{\"name\":\"f\"}"));
        let own = json!([{"role": "system", "content": "be brief"}, user]);
        let made = announce(own, &tools, ToolFormat::Plain);
        assert!(made[0]["content"].as_str().unwrap().starts_with("be brief\n\nYou can call"));
        assert_eq!(made.as_array().unwrap().len(), 2);
    }

    #[test]
    fn calls_and_results_become_text() {
        let call = json!({"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let out = write_out(json!([
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
            {"role": "assistant", "content": null},
        ]));
        let text = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>";
        assert_eq!(out[0], json!({"role": "assistant", "content": text}));
        let text = "<tool_response>\n42\n</tool_response>";
        assert_eq!(out[1], json!({"role": "user", "content": text}));
        assert_eq!(out[2]["content"], "");
    }
}
