//! The default model's tokenizer, and the goldens.

use lockstep_text::{GgufVocab, TextModel};
use lockstep_weights::Checkpoint;
use std::path::Path;
use std::sync::OnceLock;

#[path = "../../../../tests/support/model_files.rs"]
mod model_files;

pub use model_files::smollm2 as model_path;

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
