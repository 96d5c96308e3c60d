//! Tool calls and output formats, whole and streamed. The engine writes hashes where nothing
//! constrains it, so what is valid here is valid because the grammar made it so.

mod common;

use common::Server;
use serde_json::{Map, Value, json};

const CHAT: &str = "/v1/chat/completions";

fn tools() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": schema}},
        {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
    ])
}

fn ask(words: &str, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": words}], "temperature": 0, "max_tokens": 200,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The message that a stream's deltas make, put together as a client does.
fn put_together(events: &[Value]) -> (Value, Value) {
    let mut message = Map::new();
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        for field in ["content", "reasoning_content"] {
            if let Some(text) = delta[field].as_str() {
                let so_far = message.entry(field).or_insert_with(|| "".into());
                *so_far = format!("{}{text}", so_far.as_str().unwrap()).into();
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                assert!(call["function"]["name"].is_string(), "{call}");
                calls.push(json!({"id": call["id"], "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": ""}}));
            } else {
                assert!(call.get("id").is_none(), "only the first piece has the id: {call}");
            }
            let arguments = &mut calls[index]["function"]["arguments"];
            let more = call["function"]["arguments"].as_str().unwrap();
            *arguments = format!("{}{more}", arguments.as_str().unwrap()).into();
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    message.insert("tool_calls".into(), calls.into());
    (Value::Object(message), finish)
}

/// Asks whole and streamed, checks that both say the same, and returns message and finish reason.
fn both(server: &Server, mut body: Value) -> (Value, String) {
    let answer = server.post(CHAT, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let whole = answer.json();
    body["stream"] = json!(true);
    let (streamed, finish) = put_together(&server.post(CHAT, &body).events());
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert_eq!(streamed["content"].as_str().unwrap(), message["content"].as_str().unwrap_or(""));
    assert_eq!(streamed.get("reasoning_content"), message.get("reasoning_content"));
    let bare = |calls: &Value| -> Vec<Value> {
        calls.as_array().into_iter().flatten().map(|c| c["function"].clone()).collect()
    };
    assert_eq!(bare(&streamed["tool_calls"]), bare(&message["tool_calls"]));
    assert_eq!(choice["finish_reason"], finish);
    (message.clone(), finish.as_str().unwrap().to_owned())
}

fn arguments(call: &Value) -> Value {
    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
}

#[test]
fn a_free_model_calls_or_answers() {
    let server = Server::start();
    let script = "[[Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
                  {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>]]";
    let (message, finish) = both(&server, ask(script, json!({"tools": tools()})));
    assert_eq!(finish, "tool_calls");
    assert_eq!(message["content"], "Let me see.");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    assert_eq!(arguments(call), json!({"city": "Oslo", "days": 3}));
    let (message, finish) = both(&server, ask("[[Just words.]]", json!({"tools": tools()})));
    assert_eq!((finish.as_str(), &message["content"]), ("stop", &json!("Just words.")));
    assert!(message.get("tool_calls").is_none());
}

#[test]
fn a_free_model_cannot_make_a_call_that_breaks_its_schema() {
    let server = Server::start();
    let script = "[[<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Atlantis\", \
                  \"days\": 3}}\n</tool_call>]]";
    let (message, _) = both(&server, ask(script, json!({"tools": tools()})));
    let call = &message["tool_calls"][0];
    let city = arguments(call)["city"].as_str().unwrap().to_owned();
    assert!(["Oslo", "Rome"].contains(&city.as_str()), "{city}");
}

#[test]
fn a_required_call_is_made_whatever_the_model_wants() {
    let server = Server::start();
    let body = ask("[[no]]", json!({"tools": tools(), "tool_choice": "required"}));
    let (message, finish) = both(&server, body);
    assert_eq!(finish, "tool_calls");
    assert_eq!(message["content"], Value::Null);
    let call = &message["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().len() > 4);
    arguments(call);
}

#[test]
fn a_named_function_is_the_one_that_is_called() {
    let server = Server::start();
    for name in ["weather", "time"] {
        let choice = json!({"type": "function", "function": {"name": name}});
        let body = ask("[[no]]", json!({"tools": tools(), "tool_choice": choice}));
        let (message, finish) = both(&server, body);
        assert_eq!(finish, "stop");
        let call = &message["tool_calls"][0];
        assert_eq!(call["function"]["name"], name);
        let made = arguments(call);
        if name == "weather" {
            assert!((1..=9).contains(&made["days"].as_u64().unwrap()), "{made}");
        } else {
            assert_eq!(made, json!({}));
        }
    }
}

#[test]
fn none_means_none() {
    let server = Server::start();
    let body = ask("[[<tool_call>{}]]", json!({"tools": tools(), "tool_choice": "none"}));
    let (message, finish) = both(&server, body);
    assert_eq!((finish.as_str(), &message["content"]), ("stop", &json!("<tool_call>{}")));
}

#[test]
fn call_ids_differ_between_answers_and_choices() {
    let server = Server::start();
    let body = ask("[[no]]", json!({"tools": tools(), "tool_choice": "required", "n": 3}));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = server.post(CHAT, &body).json();
        for choice in answer["choices"].as_array().unwrap() {
            ids.push(choice["message"]["tool_calls"][0]["id"].as_str().unwrap().to_owned());
        }
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn tools_reach_a_model_whose_template_has_no_place_for_them() {
    let server = Server::start();
    let prompt = |body: Value| {
        let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
        let text = server.post("/detokenize", &json!({"tokens": tokens})).json();
        text["prompt"].as_str().unwrap().to_owned()
    };
    let user = json!({"role": "user", "content": "hi"});
    let with = prompt(json!({"messages": [user], "tools": tools()}));
    assert!(with.contains("\"name\":\"weather\"") && with.contains("Oslo"), "{with}");
    assert_eq!(with.matches("<|im_start|>system").count(), 1);
    let without = prompt(json!({"messages": [user], "tools": tools(), "tool_choice": "none"}));
    assert!(!without.contains("weather"), "{without}");
    let call = json!({"id": "1", "type": "function",
        "function": {"name": "time", "arguments": "{}"}});
    let turns = prompt(json!({"messages": [
        user,
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]}));
    assert!(turns.contains("assistant\n<tool_call>\n{\"name\":\"time\""), "{turns}");
    assert!(turns.contains("user\n<tool_response>\nnoon\n</tool_response>"), "{turns}");
}

#[test]
fn json_formats_hold() {
    let server = Server::start();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let (message, finish) = both(&server, ask("[[no]]", json!({"response_format": format})));
    assert_eq!(finish, "stop");
    let made: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(made["name"].is_string() && made["ok"].is_boolean(), "{made}");
    let script = "[[{\"a\": [1, 2]}]]";
    let object = json!({"response_format": {"type": "json_object"}});
    let (message, _) = both(&server, ask(script, object));
    let made: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(made.is_object());
    let (message, _) = both(&server, ask("x", json!({"guided_choice": ["yes.", "no (never)"]})));
    assert!(["yes.", "no (never)"].contains(&message["content"].as_str().unwrap()));
    let body = json!({"prompt": "x", "regex": "[ab]{5}c", "max_tokens": 50, "temperature": 0});
    let text = server.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let text = text.as_str().unwrap();
    assert!(text.len() == 6 && text.ends_with('c'), "{text}");
}

#[test]
fn mistakes_in_tools_and_formats_are_named() {
    let server = Server::start();
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "http://x/y"}},
                         "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": endless}});
    for (status, param, more) in [
        (400, "tools", json!({"tools": "weather"})),
        (400, "tools[0]", json!({"tools": [5]})),
        (400, "tools[0]", json!({"tools": [{"type": "function"}]})),
        (400, "tools[1]", json!({"tools": [named("a"), named("a")]})),
        (400, "tools[0]", json!({"tools": [named("bad name")]})),
        (400, "tool_choice", json!({"tool_choice": "required"})),
        (400, "tool_choice", json!({"tools": tools(), "tool_choice": "always"})),
        (400, "tool_choice", json!({"tools": tools(), "tool_choice": 5})),
        (400, "tool_choice", json!({"tools": tools(), "tool_choice": {"type": "function"}})),
        (400, "tool_choice", json!({"tools": tools(), "tool_choice": named("other")})),
        (422, "tool_choice", json!({"tools": tools(), "tool_choice": {"type": "allowed_tools"}})),
        (400, "parallel_tool_calls", json!({"tools": tools(), "parallel_tool_calls": "yes"})),
        (422, "response_format", json!({"response_format": format})),
        (
            422,
            "response_format",
            json!({"tools": tools(), "response_format": {"type": "json_object"}}),
        ),
        (422, "regex", json!({"regex": "("})),
    ] {
        let answer = server.post(CHAT, &ask("x", more.clone()));
        let (found, _, found_param) = answer.error();
        assert_eq!(
            (found, found_param.as_deref()),
            (status, Some(param)),
            "{more}: {}",
            answer.text()
        );
    }
}
