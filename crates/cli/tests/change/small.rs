//! A chat model that answers in microseconds: random weights of `fixtures/tiny`, a tokenizer whose
//! tokens are bytes, a chat template. What it says means nothing and is the same each time, so a
//! gate that compares answers letter for letter works on it like on any other.

use crate::common::tiny;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const TEMPLATE: &str =
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:";
/// Prompts are bytes here, so there are many tokens.
const CONTEXT_TOKENS: u32 = 8192;

/// Makes the model in a folder of `dir`, with the weights of a tiny model.
pub fn chat_model(dir: &Path, weights: &str) -> PathBuf {
    let (from, to) = (tiny(weights), dir.join(format!("{weights}-bytes")));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = CONTEXT_TOKENS.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    std::fs::write(to.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    std::fs::write(to.join("chat_template.jinja"), TEMPLATE).unwrap();
    to
}

/// One token a byte, spelled as byte-level tokenizers spell bytes: those that print as
/// themselves, the others as characters from U+0100 on.
fn tokenizer() -> Value {
    let prints = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let mut vocabulary = Map::new();
    for byte in 0..256 {
        let code = if prints(byte) { byte } else { others.next().unwrap() };
        vocabulary.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}
