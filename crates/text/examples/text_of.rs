//! What this room makes of a model's text: requests as JSON lines on stdin, answers on stdout.
//!
//! ```text
//! text_of MODEL.gguf|FOLDER [TEMPLATE.jinja]
//! {"text": "..", "add_bos": false, "parse_special": true}     -> {"ids": [..]}
//! {"messages": [..], "tools": [..], "options": {..}}           -> {"text": "..", "ids": [..]}
//! ```
//!
//! `tests/data/wide_agreement.py` uses it to compare with other implementations.

use lockstep_text::{ChatOptions, Encode, GgufVocab, TextModel};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

fn model(path: &Path, template: Option<String>) -> Result<TextModel, Failure> {
    if path.is_dir() {
        return Ok(TextModel::from_hf_dir(path)?);
    }
    // Read key by key: files that hold a vocabulary and no tensors are no checkpoint.
    let file = std::fs::read(path)?;
    let meta = lockstep_weights::gguf::GgufHeader::parse(&file)?.metadata;
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| meta.string(&file, name).map(|t| t.map(str::to_owned));
    let strings = |name| meta.strings(&file, &key(name)).map(Option::unwrap_or_default);
    let id = |name| meta.u32(&key(name));
    Ok(TextModel::from_gguf(GgufVocab {
        model: text(&key("model"))?.unwrap_or_default(),
        pre: text(&key("pre"))?.unwrap_or_default(),
        tokens: strings("tokens")?,
        token_types: meta.ints(&file, &key("token_type"))?.unwrap_or_default(),
        scores: meta.floats(&file, &key("scores"))?.unwrap_or_default(),
        merges: strings("merges")?,
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        add_bos: meta.bool(&key("add_bos_token"))?,
        add_space_prefix: meta.bool(&key("add_space_prefix"))?,
        chat_template: template.or(text("tokenizer.chat_template")?),
    })?)
}

fn answer(model: &TextModel, request: &Value) -> Result<Value, Failure> {
    let flag = |name: &str, default| request[name].as_bool().unwrap_or(default);
    if let Some(text) = request["text"].as_str() {
        let how =
            Encode { add_bos: flag("add_bos", false), parse_special: flag("parse_special", true) };
        let ids: Vec<u32> = model.encode(text, how)?.into_iter().map(|t| t.0).collect();
        return Ok(json!({ "ids": ids }));
    }
    let options = ChatOptions {
        add_generation_prompt: flag("add_generation_prompt", true),
        now_unix_s: request["now_unix_s"].as_u64(),
        kwargs: request["kwargs"].as_object().cloned().unwrap_or_default(),
        ..ChatOptions::default()
    };
    let tools = Some(&request["tools"]).filter(|t| !t.is_null());
    let prompt = model.render_chat(&request["messages"], tools, &options)?;
    let ids: Vec<u32> = prompt.tokens.iter().map(|t| t.0).collect();
    Ok(json!({"text": prompt.text, "ids": ids}))
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args_os().skip(1);
    let path = args.next().ok_or("usage: text_of MODEL.gguf|FOLDER [TEMPLATE.jinja]")?;
    let template = args.next().map(std::fs::read_to_string).transpose()?;
    let model = model(Path::new(&path), template)?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let reply = answer(&model, &request).unwrap_or_else(|e| json!({"error": e.to_string()}));
        writeln!(out, "{reply}")?;
    }
    Ok(())
}
