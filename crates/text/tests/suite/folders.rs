//! Hugging Face folders: `data/folder` is one that transformers saved (`data/make_folder.py`), with
//! what it makes of texts and chats.

use crate::common::data;
use lockstep_flow::Token;
use lockstep_text::{ChatOptions, Encode, TextError, TextModel};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/folder")
}

fn model() -> TextModel {
    TextModel::from_hf_dir(&folder()).unwrap()
}

fn ids(value: &Value) -> Vec<Token> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| Token(id.as_u64().unwrap() as u32)).collect()
}

#[test]
fn a_folders_texts_agree() {
    let m = model();
    assert_eq!(m.bos(), Some(Token(0)));
    assert_eq!(m.eos_tokens(), [Token(1), Token(2)]);
    let golden = data("folder/golden.json");
    let texts = golden["texts"].as_array().unwrap();
    assert!(texts.len() > 50);
    for entry in texts {
        let text = entry["text"].as_str().unwrap();
        let tokens = m.encode(text, Encode::PROMPT).unwrap();
        assert_eq!(tokens, ids(&entry["ids"]), "{text:?}");
        assert_eq!(m.decode(&tokens, true), entry["decoded"].as_str().unwrap());
    }
}

#[test]
fn a_folders_chats_agree() {
    let m = model();
    let golden = data("folder/golden.json");
    for chat in golden["chats"].as_array().unwrap() {
        let options = ChatOptions {
            add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap_or(true),
            kwargs: chat["kwargs"].as_object().cloned().unwrap_or_default(),
            ..ChatOptions::default()
        };
        let tools = chat.get("tools");
        let prompt = m.render_chat(&chat["messages"], tools, &options).unwrap();
        assert_eq!(prompt.text, chat["text"].as_str().unwrap());
        assert_eq!(prompt.tokens, ids(&chat["ids"]));
    }
}

/// The API carries arguments as a string of JSON; the template gets the object.
#[test]
fn arguments_as_a_string_render_like_the_object() {
    let m = model();
    let chat = |arguments: Value| {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
        ]);
        m.render_chat(&messages, None, &ChatOptions::default()).unwrap()
    };
    let object = chat(json!({"a": [1, "b"]}));
    assert_eq!(chat(json!("{\"a\":[1,\"b\"]}")), object);
    assert!(object.text.contains("{\"name\": \"f\", \"arguments\": {\"a\": [1, \"b\"]}}"));
    assert!(chat(json!("not json")).text.contains("\"arguments\": \"not json\""));
}

#[test]
fn a_final_message_is_continued() {
    let m = model();
    let messages = json!([
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "I think  "},
    ]);
    let options = ChatOptions {
        add_generation_prompt: false,
        continue_final_message: true,
        ..ChatOptions::default()
    };
    let prompt = m.render_chat(&messages, None, &options).unwrap();
    assert!(prompt.text.ends_with("assistant: I think  "), "{:?}", prompt.text);
    let messages = json!([{"role": "user", "content": " trimmed "}]);
    let prompt = m.render_chat(&messages, None, &options).unwrap();
    assert!(prompt.text.ends_with("user: trimmed"), "{:?}", prompt.text);
}

/// Past a million steps the pattern engine gives up and cuts anywhere, silently: such texts are
/// refused instead, well before that.
#[test]
fn runs_that_the_pattern_engine_gives_up_on_are_refused() {
    let m = model();
    for run in [" ", "a", "\n", "!"] {
        let text = format!("x {}y", run.repeat(600_000));
        for parse_special in [false, true] {
            let how = Encode { add_bos: false, parse_special };
            let e = m.encode(&text, how).unwrap_err();
            let space = run.trim().is_empty();
            assert_eq!(e, TextError::RunTooLong { space, max_chars: 500_000 });
        }
        let text = format!("x {} y", run.repeat(400_000));
        let tokens = m.encode(&text, Encode::TEXT).unwrap();
        assert_eq!(m.decode(&tokens, true), text);
    }
    let text = "word ".repeat(150_000);
    assert_eq!(m.decode(&m.encode(&text, Encode::TEXT).unwrap(), true), text);
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("lockstep-text-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn write(&self, name: &str, text: &str) -> &Scratch {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    fn load(&self) -> Result<TextModel, TextError> {
        TextModel::from_hf_dir(&self.0)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn definition() -> Value {
    data("folder/tokenizer.json")
}

#[test]
fn broken_folders_are_refused_in_words() {
    let s = Scratch::new("broken");
    let missing = s.load().unwrap_err();
    assert_eq!(missing, TextError::NoTokenizer { dir: s.0.clone() });
    assert!(missing.to_string().contains("tokenizer.json"));
    let e = s.write("tokenizer.json", "{\"a\": \n nope}").load().unwrap_err();
    assert!(matches!(e, TextError::NotJson { line: 2, .. }), "{e:?}");
    let e = s.write("tokenizer.json", "{\"decoder\": {\"type\": \"ByteLevel\"}}").load();
    assert!(matches!(e, Err(TextError::Tokenizer { .. })));
    let mut d = definition();
    d["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let e = s.write("tokenizer.json", &d.to_string()).load().unwrap_err();
    assert_eq!(e, TextError::Decoder { found: "WordPiece".into() });
    let mut d = definition();
    d["model"]["merges"].as_array_mut().unwrap().push(json!(["Ġ", "nothing-like-it"]));
    assert!(matches!(
        s.write("tokenizer.json", &d.to_string()).load(),
        Err(TextError::Tokenizer { .. })
    ));
    // The library slices past its buffer on this one.
    let mut d = definition();
    let long = "Ġ".repeat(200);
    d["model"]["vocab"] = json!({"a": 0, long.clone(): 1});
    d["model"]["merges"] = json!([[long, long]]);
    assert!(matches!(
        s.write("tokenizer.json", &d.to_string()).load(),
        Err(TextError::Tokenizer { .. })
    ));
    let e =
        s.write("tokenizer.json", &definition().to_string()).write("tokenizer_config.json", "[");
    assert!(matches!(e.load(), Err(TextError::NotJson { .. })));
}

/// Where a folder keeps its template and its special tokens.
#[test]
fn every_place_of_the_template_is_read() {
    let s = Scratch::new("places");
    s.write("tokenizer.json", &definition().to_string());
    let hello = json!([{"role": "user", "content": "x"}]);
    let rendered = |s: &Scratch| {
        s.load().unwrap().render_chat(&hello, None, &ChatOptions::default()).map(|p| p.text)
    };
    assert_eq!(rendered(&s), Err(TextError::NoTemplate));
    let config = json!({
        "bos_token": {"content": "<|begin|>", "lstrip": false},
        "eos_token": "<|end|>",
        "chat_template": "config{{ bos_token }}{{ eos_token }}",
    });
    s.write("tokenizer_config.json", &config.to_string());
    assert_eq!(rendered(&s).unwrap(), "config<|begin|><|end|>");
    assert_eq!(s.load().unwrap().eos_tokens(), [Token(1)]);
    let mut named = config.clone();
    named["chat_template"] = json!([
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"},
    ]);
    s.write("tokenizer_config.json", &named.to_string());
    assert_eq!(rendered(&s).unwrap(), "named");
    s.write("chat_template.json", "{\"chat_template\": \"json\"}");
    assert_eq!(rendered(&s).unwrap(), "json");
    s.write("chat_template.jinja", "jinja");
    assert_eq!(rendered(&s).unwrap(), "jinja");
    // BOS as the configuration says, else as the post-processor does.
    let bos = |s: &Scratch| s.load().unwrap().encode("x", Encode::PROMPT).unwrap()[0] == Token(0);
    assert!(bos(&s));
    named["add_bos_token"] = json!(false);
    s.write("tokenizer_config.json", &named.to_string());
    assert!(!bos(&s));
    s.write("generation_config.json", "{\"eos_token_id\": [2, 99999]}");
    assert_eq!(s.load().unwrap().eos_tokens(), [Token(1), Token(2)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A tokenizer.json with bytes changed, cut out or doubled loads or is refused.
    #[test]
    fn no_damaged_definition_panics(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..4),
        template in "[ -~]{0,20}",
    ) {
        let file = folder().join("tokenizer.json");
        let mut bytes = std::fs::read(file).unwrap();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.truncate(at),
                2 => bytes.insert(at, byte),
                _ => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len()))),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let s = Scratch::new("damaged");
        std::fs::write(s.0.join("tokenizer.json"), &bytes).unwrap();
        s.write("chat_template.jinja", &template);
        if let Ok(m) = s.load() {
            let text = "Hello <|turn|> wörld 123\n";
            if let Ok(tokens) = m.encode(text, Encode::PROMPT) {
                prop_assert!(tokens.iter().all(|t| t.0 < m.vocab_size()));
                m.decode(&tokens, true);
            }
            let messages = json!([{"role": "user", "content": text}]);
            let _ = m.render_chat(&messages, None, &ChatOptions::default());
        }
    }
}
