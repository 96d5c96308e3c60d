//! A `tokenizer.json` from a GGUF vocabulary, in memory.

use super::pre::{self, Pre};
use super::vocab::{GgufVocab, Kind};
use crate::TextError;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// SentencePiece's visible space.
pub(crate) const SPM_SPACE: char = '\u{2581}';

/// What the builder hands to the tokenizer.
pub(crate) struct Built {
    pub(crate) json: Value,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) add_bos: bool,
}

/// Checks `vocab` and writes its definition.
pub(crate) fn build(vocab: &GgufVocab) -> Result<Built, TextError> {
    let kinds = vocab.check()?;
    if vocab.model == "gpt2" { byte_level(vocab, kinds) } else { sentence_piece(vocab, kinds) }
}

fn byte_level(vocab: &GgufVocab, kinds: Vec<Kind>) -> Result<Built, TextError> {
    let pre =
        pre::find(&vocab.pre).ok_or_else(|| TextError::UnknownPre { found: vocab.pre.clone() })?;
    let ids = ids(vocab);
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (index, merge) in vocab.merges.iter().enumerate() {
        let bad = |missing| TextError::Merge { index, merge: merge.clone(), missing };
        // A part may begin with a space in vocabularies that are not byte-encoded.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let at = merge.get(first..).and_then(|rest| rest.find(' ')).ok_or_else(|| bad(None))?;
        let (left, right) = (&merge[..first + at], &merge[first + at + 1..]);
        for part in [left, right] {
            if !ids.contains_key(part) {
                return Err(bad(Some(part.to_owned())));
            }
        }
        let whole = format!("{left}{right}");
        if !ids.contains_key(whole.as_str()) {
            return Err(bad(Some(whole)));
        }
        merges.push(json!([left, right]));
    }
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": pre.ignore_merges,
        "vocab": vocab_json(vocab),
        "merges": merges,
    });
    let json = definition(&added(vocab, &kinds), model, byte_level_parts(*pre));
    Ok(Built { json, kinds, add_bos: vocab.add_bos.unwrap_or(pre.add_bos) })
}

/// Normalizer, pre-tokenizer and decoder.
fn byte_level_parts(pre: Pre) -> [Value; 3] {
    let normalizer = if pre.nfc { json!({"type": "NFC"}) } else { Value::Null };
    let decoder = json!({
        "type": "ByteLevel",
        "add_prefix_space": true,
        "trim_offsets": true,
        "use_regex": true,
    });
    [normalizer, pre.to_json(), decoder]
}

fn sentence_piece(vocab: &GgufVocab, kinds: Vec<Kind>) -> Result<Built, TextError> {
    let ids = ids(vocab);
    let missing = (0..=255u8).find(|b| !ids.contains_key(format!("<0x{b:02X}>").as_str()));
    let unk = vocab.unk.map(|id| vocab.tokens[id as usize].clone());
    if let (Some(byte), None) = (missing, &unk) {
        return Err(TextError::NoByteToken { byte });
    }
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unk,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": true,
        "byte_fallback": missing.is_none(),
        "ignore_merges": false,
        "vocab": vocab_json(vocab),
        "merges": merges_of_scores(vocab, &kinds, &ids),
    });
    let space = SPM_SPACE.to_string();
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": space});
    let normalizer = if prefix {
        let prepend = json!({"type": "Prepend", "prepend": space});
        json!({"type": "Sequence", "normalizers": [prepend, replace]})
    } else {
        json!({"type": "Sequence", "normalizers": [replace]})
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": space}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    let json = definition(&added(vocab, &kinds), model, [normalizer, Value::Null, decoder]);
    Ok(Built { json, kinds, add_bos: vocab.add_bos.unwrap_or(true) })
}

/// SentencePiece merges the adjacent pair whose union has the highest score. As ranked merges:
/// every split of every normal piece into two pieces, best score first (the conversion that
/// transformers applies to SentencePiece models, so the ids are theirs in ties too).
fn merges_of_scores(vocab: &GgufVocab, kinds: &[Kind], ids: &HashMap<&str, u32>) -> Vec<Value> {
    let usable = |id: u32| matches!(kinds[id as usize], Kind::Normal | Kind::UserDefined);
    let mut ranked: Vec<(f32, &str, &str, u32, u32)> = Vec::new();
    for (id, piece) in vocab.tokens.iter().enumerate().filter(|(id, _)| usable(*id as u32)) {
        let mut splits = Vec::new();
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right))
                && usable(l)
                && usable(r)
            {
                splits.push((vocab.scores[id], left, right, l, r));
            }
        }
        splits.sort_by_key(|s| (s.3, s.4));
        ranked.extend(splits);
    }
    let chars = |s: &str| s.chars().count();
    ranked.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then_with(|| chars(b.1).cmp(&chars(a.1)))
            .then_with(|| chars(b.2).cmp(&chars(a.2)))
    });
    ranked.into_iter().map(|(_, left, right, ..)| json!([left, right])).collect()
}

fn ids(vocab: &GgufVocab) -> HashMap<&str, u32> {
    vocab.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id as u32)).collect()
}

fn vocab_json(vocab: &GgufVocab) -> Map<String, Value> {
    vocab.tokens.iter().enumerate().map(|(id, text)| (text.clone(), json!(id))).collect()
}

/// Control and user-defined tokens, which are found in text before anything else looks at it.
fn added(vocab: &GgufVocab, kinds: &[Kind]) -> Vec<Value> {
    let entry = |(id, kind): (usize, &Kind)| {
        let special = match kind {
            Kind::Control | Kind::Unknown => true,
            Kind::UserDefined => false,
            Kind::Normal | Kind::Unused | Kind::Byte => return None,
        };
        Some(json!({
            "id": id,
            "content": vocab.tokens[id],
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": special,
        }))
    };
    kinds.iter().enumerate().filter_map(entry).collect()
}

fn definition(added: &[Value], model: Value, parts: [Value; 3]) -> Value {
    let [normalizer, pre_tokenizer, decoder] = parts;
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": decoder,
        "model": model,
    })
}
