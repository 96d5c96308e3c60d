//! Where each pre-tokenizer cuts, against Hugging Face's engine with the models' definitions.
//!
//! The vocabulary has every byte and every pair of bytes, so that a cut in another place changes
//! the ids; `data/make_pretokenizers.py` builds the same one and wrote the goldens.

use crate::common::{corpus, data};
use lockstep_flow::Token;
use lockstep_text::{Encode, GgufVocab, TextModel};

fn alphabet() -> Vec<char> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let letter = |b: u32| {
        let code = if printable(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap()
    };
    (0..256).map(letter).collect()
}

fn model(pre: &str) -> TextModel {
    let alphabet = alphabet();
    let pairs = (0..65_536_usize).map(|i| i * 40_503 % 65_536);
    let pairs: Vec<(char, char)> = pairs.map(|i| (alphabet[i / 256], alphabet[i % 256])).collect();
    let mut tokens: Vec<String> = alphabet.iter().map(|c| c.to_string()).collect();
    tokens.extend(pairs.iter().map(|(a, b)| format!("{a}{b}")));
    TextModel::from_gguf(GgufVocab {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens,
        merges: pairs.iter().map(|(a, b)| format!("{a} {b}")).collect(),
        ..GgufVocab::default()
    })
    .unwrap()
}

fn fnv(ids: &[Token]) -> String {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for byte in ids.iter().flat_map(|id| id.0.to_le_bytes()) {
        h = (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{h:016x}")
}

fn check(pre: &str) {
    let golden = data("pretokenizers.json");
    let golden = &golden[pre];
    let model = model(pre);
    let hash = |text: &str| fnv(&model.encode(text, Encode::TEXT).unwrap());
    let corpus = corpus();
    assert_eq!(golden["texts"].as_array().unwrap().len(), corpus.len());
    for (i, text) in corpus.iter().enumerate() {
        assert_eq!(hash(text), golden["texts"][i].as_str().unwrap(), "{pre}: {text:?}");
    }
    let blocks = golden["blocks"].as_object().unwrap();
    assert!(blocks.len() > 25);
    for (first, want) in blocks {
        let start = u32::from_str_radix(first, 16).unwrap();
        let chars = (start..start + 0x400).filter_map(char::from_u32);
        let text: String = chars.map(|c| format!("{c}x {c}{c} 1{c}a{c}\n")).collect();
        assert_eq!(hash(&text), want.as_str().unwrap(), "{pre}: block U+{first}");
    }
}

macro_rules! pre_tokenizers {
    ($($test:ident $name:literal,)*) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )*};
}

pre_tokenizers! {
    gpt_2 "gpt-2",
    default "default",
    smollm "smollm",
    command_r "command-r",
    llama_3 "llama-bpe",
    qwen_2 "qwen2",
    qwen_3_5 "qwen35",
    tekken "tekken",
    gpt_4o "gpt-4o",
    deepseek_llm "deepseek-llm",
    deepseek_coder "deepseek-coder",
    deepseek_v3 "deepseek-v3",
}

/// The vocabulary tells the pre-tokenizers apart: no two of them give the same ids.
#[test]
fn the_goldens_differ_from_each_other() {
    let golden = data("pretokenizers.json");
    let all: Vec<&serde_json::Value> = golden.as_object().unwrap().values().collect();
    for (i, a) in all.iter().enumerate() {
        for b in &all[..i] {
            assert_ne!(a["texts"], b["texts"]);
        }
    }
}
