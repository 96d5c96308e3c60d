//! Grammars that are written for a request, in the engine's variant of Lark.

use crate::tokenizer::{Kind, Tokenizer};
use crate::tools::{ToolFormat, ToolSpec, dsml};
use serde_json::{Value, json};
use std::fmt::Write;

/// The name of the grammar that follows reasoning.
pub(super) const BODY: &str = "body";

/// A schema with our way of writing JSON: the separators of Python's `json.dumps`, which models
/// are trained on, and no other white space, which a model could produce without end. `oneOf` is
/// read as `anyOf`, which is what can be enforced token by token.
pub(super) fn compact(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(fields) = &mut schema {
        fields.insert(
            "x-guidance".into(),
            json!({
                "item_separator": ", ",
                "key_separator": ": ",
                "whitespace_flexible": false,
                "coerce_one_of": true,
            }),
        );
    }
    schema
}

/// Any text up to and including `mark`, then the grammar called `body`.
pub(super) fn after_reasoning(tokenizer: &Tokenizer, mark: &str, body: &str) -> String {
    match control(tokenizer, mark) {
        Some(id) => {
            format!("start: reasoning {id} space @{body}\nreasoning: /(?s:.*)/\nspace: /\\s*/")
        }
        None => format!(
            "start: reasoning space @{body}\nreasoning[suffix={}]: /(?s:.*)/\nspace: /[ \\n]*/",
            quote(mark)
        ),
    }
}

/// Calls of any of `tools` in `format`. `free` lets the model write text as well, and bind itself
/// only where it opens a call.
pub(super) fn tools(
    tokenizer: &Tokenizer,
    tools: &[&ToolSpec],
    format: ToolFormat,
    parallel: bool,
    free: bool,
) -> String {
    if format == ToolFormat::Dsml {
        return dsml_calls(tokenizer, tools, parallel, free);
    }
    let mut out = String::new();
    let mut names = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let head = format!("{{\"name\": {}, \"{}\": ", quote(&tool.name), format.arguments_key());
        let _ = writeln!(out, "call_{i}: {} args_{i} \"}}\"", quote(&head));
        let _ = writeln!(out, "args_{i}: %json {}", compact(&tool.parameters));
        names.push(format!("call_{i}"));
    }
    let _ = writeln!(out, "call: {}", names.join(" | "));
    let rules = match format {
        ToolFormat::Hermes => {
            let open = mark(tokenizer, "<tool_call>");
            let close = mark(tokenizer, "</tool_call>");
            let block = format!("block: {open} \"\\n\" call \"\\n\" {close}\n");
            match (free, parallel) {
                (true, _) => free_text(tokenizer, "<tool_call>", "\"\\n\" call \"\\n\" ", &close),
                (false, true) => format!("start: block (\"\\n\" block)*\n{block}"),
                (false, false) => format!("start: block\n{block}"),
            }
        }
        ToolFormat::Mistral => {
            let open = mark(tokenizer, "[TOOL_CALLS]");
            let list = if parallel {
                "\" \"? \"[\" call (\", \" call)* \"]\""
            } else {
                "\" \"? \"[\" call \"]\""
            };
            if free {
                free_text(tokenizer, "[TOOL_CALLS]", list, "")
            } else {
                format!("start: {open} {list}\n")
            }
        }
        ToolFormat::Llama3 | ToolFormat::Plain | ToolFormat::Dsml => {
            if free {
                "start: call | TEXT\nTEXT: /([^{](?s:.*))?/\n".to_owned()
            } else {
                "start: call\n".to_owned()
            }
        }
    };
    rules + &out
}

/// Calls as DeepSeek-V4 writes them: parameters in the schema's order, the required ones always.
fn dsml_calls(tokenizer: &Tokenizer, tools: &[&ToolSpec], parallel: bool, free: bool) -> String {
    let mut out = String::new();
    let mut calls = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let schema = &tool.parameters;
        let required = |name: &str| {
            let list = schema["required"].as_array();
            list.is_some_and(|list| list.iter().any(|v| v == name))
        };
        let mut parts = Vec::new();
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (j, (name, value)) in properties.enumerate() {
            let rule = format!("p_{i}_{j}");
            let value = resolved(schema, value);
            let text = match dsml_text(value) {
                None => "text".to_owned(),
                Some(bound) => {
                    let close = quote(dsml::PARAMETER_END);
                    let _ = writeln!(out, "text_{i}_{j}[suffix={close}]: {bound}");
                    format!("text_{i}_{j}")
                }
            };
            let _ = writeln!(out, "{rule}: {}", dsml_parameter(schema, name, value, &text));
            let optional = if required(name) { "" } else { "?" };
            parts.push(format!("{rule}{optional}"));
        }
        let open = quote(&format!("{}{}\">\n", dsml::INVOKE, tool.name));
        let close = quote(&format!("{}\n", dsml::INVOKE_END));
        let _ = writeln!(out, "call_{i}: {open} {} {close}", parts.join(" "));
        calls.push(format!("call_{i}"));
    }
    let _ = writeln!(out, "call: {}", calls.join(" | "));
    let _ = writeln!(out, "text[suffix={}]: /(?s:.*)/", quote(dsml::PARAMETER_END));
    let body = if parallel { "\"\\n\" call+" } else { "\"\\n\" call" };
    let close = quote(dsml::CLOSE);
    let start = match free {
        true => free_text(tokenizer, dsml::OPEN, body, &close),
        false => {
            let open = quote(dsml::OPEN);
            format!("start: \"\\n\\n\"? {open} {body} {close}\n")
        }
    };
    start + &out
}

/// One parameter: raw text where its schema says string, a literal where it says anything else,
/// either where it says nothing.
fn dsml_parameter(root: &Value, name: &str, schema: &Value, text: &str) -> String {
    let head = |kind: &str| quote(&format!("{}{name}{kind}", dsml::PARAMETER));
    let text = format!("{} {text} \"\\n\"", head(dsml::STRING));
    let mut schema = schema.clone();
    for definitions in ["$defs", "definitions"] {
        if let (Value::Object(fields), Some(all)) = (&mut schema, root.get(definitions)) {
            fields.entry(definitions).or_insert_with(|| all.clone());
        }
    }
    let close = quote(&format!("{}\n", dsml::PARAMETER_END));
    let literal = format!("{} %json {} {close}", head(dsml::LITERAL), compact(&schema));
    match &schema["type"] {
        Value::String(kind) if kind == "string" => text,
        Value::String(_) => literal,
        _ => format!("{text} | {literal}"),
    }
}

/// References that are followed from one definition to the next, at most.
const REFERENCES_MAX: usize = 16;

/// The schema that a reference inside the tool's own schema stands for.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..REFERENCES_MAX {
        let Some(path) = at["$ref"].as_str().and_then(|r| r.strip_prefix('#')) else { break };
        let Some(next) = root.pointer(path) else { break };
        at = next;
    }
    at
}

/// What a parameter's raw text is bound to: one of several, so many characters, a pattern. `None`
/// where any text will do.
fn dsml_text(schema: &Value) -> Option<String> {
    let mut bounds = Vec::new();
    let values = schema["enum"].as_array().map(Vec::as_slice);
    let values = values.or(schema.get("const").map(std::slice::from_ref));
    if let Some(values) = values {
        let texts: Vec<String> = values.iter().filter_map(Value::as_str).map(quote).collect();
        // A value that is no text is the literal's to be.
        let none = || "/[^\\s\\S]/".to_owned();
        bounds.push(if texts.is_empty() { none() } else { format!("({})", texts.join(" | ")) });
    }
    let length = |name| schema[name].as_u64();
    if let (min, Some(max)) = (length("minLength").unwrap_or(0), length("maxLength")) {
        bounds.push(format!("/(?s:.{{{min},{max}}})/"));
    } else if let Some(min) = length("minLength") {
        bounds.push(format!("/(?s:.{{{min},}})/"));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        bounds.push(anywhere(pattern));
    }
    // A text that is too short so far must not go on over its own end.
    let end = dsml::PARAMETER_END.replace('/', "\\/");
    (!bounds.is_empty()).then(|| format!("{} & ~/(?s:.*){end}(?s:.*)/", bounds.join(" & ")))
}

/// A pattern of a schema, which may match anywhere in a text, as one of the whole text.
fn anywhere(pattern: &str) -> String {
    let (from_start, inner) = match pattern.strip_prefix('^') {
        Some(inner) => (true, inner),
        None => (false, pattern),
    };
    let escaped = inner.ends_with("\\$");
    let (to_end, inner) = match inner.strip_suffix('$').filter(|_| !escaped) {
        Some(inner) => (true, inner),
        None => (false, inner),
    };
    let any = |bound: bool| if bound { "" } else { "(?s:.*)" };
    let inner = inner.replace('/', "\\/").replace('\n', "\\n");
    format!("/{}(?:{inner}){}/", any(from_start), any(to_end))
}

/// Text in which every `open` begins a call; `body` and `close` are what follows it.
fn free_text(tokenizer: &Tokenizer, open: &str, body: &str, close: &str) -> String {
    match control(tokenizer, open) {
        Some(id) => format!("start: (TEXT {id} {body} {close})* TEXT\nTEXT: /(?s:.*)/\n"),
        None => format!(
            "start: (opening {body} {close})* TEXT\n\
             opening[lazy]: TEXT {}\nTEXT: /(?s:.*)/\n",
            quote(open)
        ),
    }
}

/// A mark as the grammar must name it: control tokens by id, others by their text.
fn mark(tokenizer: &Tokenizer, spelling: &str) -> String {
    control(tokenizer, spelling).unwrap_or_else(|| quote(spelling))
}

fn control(tokenizer: &Tokenizer, spelling: &str) -> Option<String> {
    let token = tokenizer.token_of(spelling)?;
    let is_control = tokenizer.pieces().get(token.index())?.kind == Kind::Control;
    is_control.then(|| format!("<[{token}]>"))
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}
