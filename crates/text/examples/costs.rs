//! What this room costs on this machine: `costs MODEL.gguf`.
//!
//! Loading, encoding, decoding token by token, compiling a grammar and filling masks, which
//! happens between two steps.

use lockstep_flow::Token;
use lockstep_text::{ChatOptions, Encode, GrammarSpec, TextModel};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../tests/suite/vocab.rs"]
mod vocab;

use vocab::vocab_of;

type Failure = Box<dyn std::error::Error>;

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = f();
    (value, start.elapsed())
}

fn main() -> Result<(), Failure> {
    let path = std::env::args_os().nth(1).ok_or("usage: costs MODEL.gguf")?;
    let vocab = vocab_of(Path::new(&path))?;
    let (model, took) = timed(|| TextModel::from_gguf(vocab));
    let model = model?;
    println!("build the model's text           {took:>10.1?}");

    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let render = || model.render_chat(&messages, None, &ChatOptions::default());
    render()?;
    let (prompt, took) = timed(render);
    println!("render and encode a short chat   {took:>10.1?}  {} tokens", prompt?.tokens.len());

    let source = include_str!("../src/tools/calls.rs").repeat(20);
    let (tokens, took) = timed(|| model.encode(&source, Encode::TEXT));
    let tokens = tokens?;
    let rate = source.len() as f64 / took.as_secs_f64() / 1e6;
    println!(
        "encode {:>4} kB of code           {took:>10.1?}  {rate:.2} MB/s",
        source.len() / 1000
    );

    let mut stream = model.stream(vec!["no such text".into()])?;
    let (bytes, took) = timed(|| tokens.iter().map(|t| stream.push(*t).text.len()).sum::<usize>());
    println!(
        "stream {} tokens             {took:>10.1?}  {:.0} ns a token, {bytes} bytes",
        tokens.len(),
        took.as_nanos() as f64 / tokens.len() as f64
    );

    let schema = GrammarSpec::JsonSchema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "size": {"type": "number"},
        },
        "required": ["name", "tags", "size"],
        "additionalProperties": false,
    }));
    let (first, took) = timed(|| model.grammar(&schema, None));
    first?;
    println!("first grammar, with the engine   {took:>10.1?}");
    let (grammar, took) = timed(|| model.grammar(&schema, None));
    let mut grammar = grammar?;
    println!("compile a schema                 {took:>10.1?}");

    let text = "{\"name\": \"A long name with é and \\\"quotes\\\"\", \"tags\": [\"one\", \"two three\", \"four\"], \"size\": -12.5e3}";
    let mut words = vec![0u32; model.vocab_size().div_ceil(32) as usize];
    let (mut total, mut most, mut fills) = (Duration::ZERO, Duration::ZERO, 0u32);
    for token in model.encode(text, Encode::TEXT)? {
        let (filled, took) = timed(|| grammar.fill(&mut words));
        filled?;
        (total, most, fills) = (total + took, most.max(took), fills + 1);
        grammar.accept(Token(token.0))?;
    }
    println!(
        "fill a mask                      {:>10.1?}  most {most:.1?}, {fills} masks",
        total / fills
    );
    Ok(())
}
