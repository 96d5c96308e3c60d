//! A small byte-level text model: every byte a token, a few words, ChatML.

use lockstep_text::{GgufVocab, TextModel};
use std::sync::Arc;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}\
                        <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
                        {% endif %}";

/// GPT-2's spelling of a byte.
fn spelling(byte: u8) -> char {
    let plain = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if plain(byte) {
        return byte as char;
    }
    let shift = (0..byte).filter(|b| !plain(*b)).count() as u32;
    char::from_u32(256 + shift).unwrap()
}

fn word(text: &str) -> String {
    text.bytes().map(spelling).collect()
}

pub fn model() -> Arc<TextModel> {
    let mut tokens: Vec<String> =
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from).to_vec();
    let mut token_types = vec![3; tokens.len()];
    tokens.extend((0..=255u8).map(|b| spelling(b).to_string()));
    let mut merges = Vec::new();
    for pair in ["he", "ll", "in", "er", "th", "an", "on"] {
        let (a, b) = pair.split_at(1);
        merges.push(format!("{} {}", word(a), word(b)));
        tokens.push(word(pair));
    }
    token_types.resize(tokens.len(), 1);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: "smollm".into(),
        tokens,
        token_types,
        merges,
        bos: Some(1),
        eos: Some(2),
        add_bos: Some(false),
        chat_template: Some(TEMPLATE.into()),
        ..GgufVocab::default()
    };
    Arc::new(TextModel::from_gguf(vocab).unwrap())
}
