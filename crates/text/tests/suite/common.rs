//! The default model's tokenizer, and the goldens.

use lockstep_text::{GgufVocab, TextModel};
use lockstep_weights::Checkpoint;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The model file, which the project's test command puts into the store.
pub fn model_path() -> PathBuf {
    let path = match std::env::var_os("LOCKSTEP_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set"))
            .join(".cache/lockstep/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    };
    assert!(
        path.exists(),
        "{} is missing: run the tests with `cargo xtask test`, which fetches it, or name the file \
         in LOCKSTEP_TEST_MODEL",
        path.display()
    );
    path
}

/// The tokenizer keys of a GGUF file.
pub fn vocab_of(path: &Path) -> GgufVocab {
    let data = Checkpoint::open(path).unwrap().vocab().unwrap().expect("the file has a vocabulary");
    GgufVocab {
        model: data.model,
        pre: data.pre.unwrap_or_default(),
        tokens: data.tokens,
        token_types: data.token_types,
        scores: data.scores,
        merges: data.merges,
        bos: data.bos,
        eos: data.eos,
        unk: data.unk,
        pad: data.pad,
        eot: data.eot,
        eom: data.eom,
        add_bos: data.add_bos,
        add_space_prefix: data.add_space_prefix,
        chat_template: data.chat_template,
    }
}

/// SmolLM2-135M-Instruct, built once a test binary.
pub fn smollm2() -> &'static TextModel {
    static MODEL: OnceLock<TextModel> = OnceLock::new();
    MODEL.get_or_init(|| TextModel::from_gguf(vocab_of(&model_path())).unwrap())
}

/// A JSON file under `tests/data`.
pub fn data(name: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
}

/// The texts of `corpus.json`.
pub fn corpus() -> Vec<String> {
    serde_json::from_value(data("corpus.json")).unwrap()
}
