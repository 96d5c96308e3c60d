//! Grammars that cannot be compiled or followed are their sender's fault: a 4xx that names the
//! field. They were once answered with 500, and one ended the process.

use crate::common::serving::Serving;
use crate::common::wait_until;
use serde_json::{Map, Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// An answer's status, and the field and code of its error.
type Seen = (u16, Option<String>, Option<String>);

fn seen(server: &Serving, path: &str, body: &Value) -> Seen {
    let (head, answer) = server.post(path, body);
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let text = |field: &str| answer["error"][field].as_str().map(str::to_owned);
    (status, text("param"), text("code"))
}

fn refused(field: &str) -> Seen {
    (422, Some(field.to_owned()), Some("unsupported".to_owned()))
}

const ANSWERED: Seen = (200, None, None);

fn with(field: &str, value: &Value) -> Value {
    json!({"prompt": "a", "max_tokens": 8, "temperature": 0, field: value})
}

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8,
        "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn one_of(objects: usize, required: bool) -> Value {
    let one = |i: usize| {
        let field = |f: usize| (format!("field_{f}"), json!({"type": "string"}));
        let mut properties: Map<String, Value> = (0..20).map(field).collect();
        properties.insert("field_0".into(), json!({"const": format!("kind {i}")}));
        let names: Vec<&String> = properties.keys().filter(|_| required).collect();
        json!({"type": "object", "required": names, "properties": properties,
            "additionalProperties": !required})
    };
    json!({"oneOf": (0..objects).map(one).collect::<Vec<_>>()})
}

fn mutual() -> Value {
    json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
}

/// Satisfied by nothing that ends.
fn endless() -> Value {
    json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"],
        "properties": {"a": {"$ref": "#/$defs/a"}}, "additionalProperties": false}}})
}

fn chain(links: usize) -> Value {
    let link = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), json!({"type": "object", "properties": {"a": next}}))
    };
    let mut defs: Map<String, Value> = (0..links).map(link).collect();
    defs.insert(format!("d{links}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

fn ring(rules: usize) -> String {
    let rule = |i: usize| format!("r{i}: \"x\" r{}\n", (i + 1) % rules);
    (0..rules).map(rule).chain(["start: r0\n".to_owned()]).collect()
}

#[test]
fn a_grammar_at_fault_is_422_and_names_its_field() {
    let server = Serving::start("grammars", &[]);
    let schemas = [
        ("a reference to itself", json!({"$ref": "#"}), false),
        ("references to each other", mutual(), false),
        ("an object that holds itself", endless(), false),
        ("an unknown type", json!({"type": "strange"}), false),
        ("nested repeats", json!({"type": "string", "pattern": "^((a{100}){100}){100}$"}), false),
        ("200 alternatives", one_of(200, true), true),
        // Compiles, and is found to be too wide on its way.
        ("200 alternatives of optional fields", one_of(200, false), false),
    ];
    for (name, schema, answered) in &schemas {
        let expect = |field: &str| if *answered { ANSWERED } else { refused(field) };
        let wrapped = json!({"type": "json_schema",
            "json_schema": {"name": "x", "schema": schema}});
        for field in ["guided_json", "json_schema"] {
            let found = seen(&server, COMPLETIONS, &with(field, schema));
            assert_eq!(found, expect(field), "{name}");
        }
        let found = seen(&server, COMPLETIONS, &with("response_format", &wrapped));
        assert_eq!(found, expect("response_format"), "{name}");
        let found = seen(&server, CHAT, &chat(&json!({"response_format": wrapped})));
        assert_eq!(found, expect("response_format"), "{name}");
    }
    let regexes = ["[^\\s\\S]", "((a{100}){100}){100}", "a{1000000000}", "(", "(?=a)b"];
    for regex in regexes {
        for field in ["regex", "guided_regex"] {
            let found = seen(&server, COMPLETIONS, &with(field, &json!(regex)));
            assert_eq!(found, refused(field), "{regex}");
        }
        let found = seen(&server, CHAT, &chat(&json!({"regex": regex})));
        assert_eq!(found, refused("regex"), "{regex}");
    }
    let doubling = "start: start start | /[a-z]/ | \"ab\"";
    let grammars = ["start: start", "start: a\na: b\nb: a", "start: (((", "a: \"b\"", doubling];
    for grammar in grammars {
        let found = seen(&server, COMPLETIONS, &with("guided_grammar", &json!(grammar)));
        assert_eq!(found, refused("guided_grammar"), "{grammar}");
    }
    let large = json!({"enum": ["x".repeat(300 << 10)]});
    assert_eq!(seen(&server, COMPLETIONS, &with("guided_json", &large)), refused("guided_json"));
    // What is not even of the field's type is a malformed request.
    let malformed = seen(&server, COMPLETIONS, &with("guided_json", &json!(5)));
    assert_eq!((malformed.0, malformed.1.as_deref()), (400, Some("guided_json")));
    for parameters in [json!({"$ref": "#"}), mutual(), endless(), json!({"type": "strange"})] {
        let tool = |strict: bool| {
            json!([{"type": "function", "function": {
                "name": "f", "parameters": parameters, "strict": strict}}])
        };
        for more in
            [json!({"tools": tool(false), "tool_choice": "required"}), json!({"tools": tool(true)})]
        {
            let found = seen(&server, CHAT, &chat(&more));
            assert_eq!(found, refused("tools"), "{parameters}");
        }
    }
    let engine = &server.status()["lockstep"]["engine"];
    // The four spellings of the one that was only found on its way.
    assert_eq!(engine["counters"]["grammar_stopped"], 4, "{engine}");
    assert_eq!(engine["counters"]["failed"], 0, "no alarm: {engine}");
    assert_eq!(engine["health"], "serving", "{engine}");
    let plain = json!({"prompt": "a", "max_tokens": 2});
    assert_eq!(seen(&server, COMPLETIONS, &plain), ANSWERED);
}

/// Chains of references, once too deep for the compiler's stack, ended the process: every client
/// of the server paid for one request of 20 KB.
#[test]
fn a_deep_chain_of_references_is_answered_and_the_server_lives() {
    let server = Serving::start("deep-chain", &[]);
    let chained = seen(&server, COMPLETIONS, &with("guided_json", &chain(1_500)));
    assert_eq!(chained, ANSWERED);
    let ringed = seen(&server, COMPLETIONS, &with("guided_grammar", &json!(ring(1_500))));
    assert_eq!(ringed, refused("guided_grammar"));
    let plain = json!({"prompt": "a", "max_tokens": 2});
    assert_eq!(seen(&server, COMPLETIONS, &plain), ANSWERED);
}

/// A token of this grammar once held the step thread, and with it every client, for minutes: the
/// time to complete its items grows with the cube of the text. It now ends for itself.
#[test]
fn a_grammar_that_takes_too_long_ends_and_others_go_on() {
    let server = Serving::start("cubic", &[]);
    let cubic = "start: start start start | /[a-z]/";
    let slow = json!({"prompt": "a", "max_tokens": 600, "guided_grammar": cubic, "seed": 1,
        "temperature": 2});
    let address = server.url().to_owned();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| seen(&server, COMPLETIONS, &slow));
        wait_until("it runs", || server.status()["lockstep"]["engine"]["running"] != 0);
        let plain = json!({"prompt": "Once", "max_tokens": 20, "ignore_eos": true});
        while !asked.is_finished() {
            assert_eq!(seen(&server, COMPLETIONS, &plain), ANSWERED, "{address}");
        }
        assert_eq!(asked.join().unwrap(), refused("guided_grammar"));
    });
    let counters = &server.status()["lockstep"]["engine"]["counters"];
    assert_eq!(counters["grammar_stopped"], 1, "{counters}");
}
