//! The tokenizer's part of a GGUF file's metadata.

use super::{GgufFault, GgufHeader};
use crate::vocab::VocabData;

/// The tokenizer data, or `None` where the file has no `tokenizer.ggml.tokens`.
pub(crate) fn vocab_data(header: &GgufHeader, file: &[u8]) -> Result<Option<VocabData>, GgufFault> {
    let meta = &header.metadata;
    let Some(tokens) = meta.strings(file, "tokenizer.ggml.tokens")? else { return Ok(None) };
    let text = |key: &str| meta.string(file, key).map(|s| s.map(str::to_owned));
    let flag = |name: &str| meta.bool(&format!("tokenizer.ggml.{name}"));
    let len = tokens.len() as u64;
    let id = |name: &str| -> Result<Option<u32>, GgufFault> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match meta.u32(&key)? {
            Some(n) if u64::from(n) >= len => {
                Err(GgufFault::KeyRange { key, found: n.into(), max: len.saturating_sub(1) })
            }
            other => Ok(other),
        }
    };
    let one_a_token = |key: &str, found: usize| match found as u64 {
        found if found == 0 || found == len => Ok(()),
        found => Err(GgufFault::ArrayLen { key: key.into(), found, want: len }),
    };
    let (types_key, scores_key) = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores");
    let token_types = meta.ints(file, types_key)?.unwrap_or_default();
    let scores = meta.floats(file, scores_key)?.unwrap_or_default();
    one_a_token(types_key, token_types.len())?;
    one_a_token(scores_key, scores.len())?;

    let model_key = "tokenizer.ggml.model";
    let mut named_chat_templates = Vec::new();
    for (key, _) in meta.iter() {
        if let Some(name) = key.strip_prefix("tokenizer.chat_template.") {
            named_chat_templates.extend(text(key)?.map(|t| (name.to_owned(), t)));
        }
    }
    Ok(Some(VocabData {
        model: text(model_key)?.ok_or_else(|| GgufFault::KeyMissing { key: model_key.into() })?,
        pre: text("tokenizer.ggml.pre")?,
        token_types,
        scores,
        merges: meta.strings(file, "tokenizer.ggml.merges")?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        sep: id("seperator")?, // The key's own spelling.
        pad: id("padding")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        chat_template: text("tokenizer.chat_template")?,
        named_chat_templates,
        tokens,
    }))
}
