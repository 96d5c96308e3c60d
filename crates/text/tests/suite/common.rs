//! The default model's tokenizer, and the goldens.

use lockstep_text::TextModel;
use std::path::Path;
use std::sync::OnceLock;

#[path = "../../../../tests/support/model_files.rs"]
mod model_files;
#[path = "vocab.rs"]
mod vocab;

pub use model_files::smollm2 as model_path;
pub use vocab::vocab_of;

/// SmolLM2-135M-Instruct, built once a test binary.
pub fn smollm2() -> &'static TextModel {
    static MODEL: OnceLock<TextModel> = OnceLock::new();
    MODEL.get_or_init(|| TextModel::from_gguf(vocab_of(&model_path()).unwrap()).unwrap())
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
