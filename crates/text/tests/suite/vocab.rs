//! The vocabulary of a model file, as the text room takes it: for the tests and the examples.

use lockstep_text::GgufVocab;
use lockstep_weights::Checkpoint;
use std::path::Path;

/// The tokenizer keys of a checkpoint; `Err` where it cannot be read or has none.
pub fn vocab_of(path: &Path) -> Result<GgufVocab, Box<dyn std::error::Error>> {
    let data = Checkpoint::open(path)?.vocab()?.ok_or("the file has no vocabulary")?;
    Ok(GgufVocab {
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
    })
}
