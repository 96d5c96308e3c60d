//! The library's tokenizer from a GGUF vocabulary.

use super::pre;
use super::vocab::{GgufVocab, Kind};
use crate::TextError;
use serde_json::{Value, json};
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// SentencePiece's visible space.
pub(crate) const SPM_SPACE: char = '\u{2581}';

/// What the builder hands to the tokenizer.
pub(crate) struct Built {
    pub(crate) inner: tokenizers::Tokenizer,
    /// The decoder, as `tokenizer.json` would have it.
    pub(crate) decoder: Value,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) add_bos: bool,
}

/// What surrounds the model, as `tokenizer.json` would have it.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
}

/// Checks `vocab` and builds its tokenizer.
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
        merges.push((left.to_owned(), right.to_owned()));
    }
    let model = model(vocab, merges).ignore_merges(pre.ignore_merges);
    let decoder = json!({
        "type": "ByteLevel",
        "add_prefix_space": true,
        "trim_offsets": true,
        "use_regex": true,
    });
    let normalizer = if pre.nfc { json!({"type": "NFC"}) } else { Value::Null };
    let parts = Parts { normalizer, pre_tokenizer: pre.to_json(), decoder };
    assemble(vocab, kinds, model, parts, vocab.add_bos.unwrap_or(pre.add_bos))
}

fn sentence_piece(vocab: &GgufVocab, kinds: Vec<Kind>) -> Result<Built, TextError> {
    let ids = ids(vocab);
    let missing = (0..=255u8).find(|b| !ids.contains_key(format!("<0x{b:02X}>").as_str()));
    let unk = vocab.unk.map(|id| vocab.tokens[id as usize].clone());
    if let (Some(byte), None) = (missing, &unk) {
        return Err(TextError::NoByteToken { byte });
    }
    let mut model = model(vocab, merges_of_scores(vocab, &kinds, &ids))
        .fuse_unk(true)
        .byte_fallback(missing.is_none());
    if let Some(unk) = unk {
        model = model.unk_token(unk);
    }
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
    let parts = Parts { normalizer, pre_tokenizer: Value::Null, decoder };
    assemble(vocab, kinds, model, parts, vocab.add_bos.unwrap_or(true))
}

/// SentencePiece merges the adjacent pair whose union has the highest score. As ranked merges:
/// every split of every normal piece into two pieces, best score first (the conversion that
/// transformers applies to SentencePiece models, so the ids are theirs in ties too).
fn merges_of_scores(vocab: &GgufVocab, kinds: &[Kind], ids: &HashMap<&str, u32>) -> Merges {
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
    ranked.into_iter().map(|(_, left, right, ..)| (left.to_owned(), right.to_owned())).collect()
}

fn ids(vocab: &GgufVocab) -> HashMap<&str, u32> {
    vocab.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id as u32)).collect()
}

fn model(vocab: &GgufVocab, merges: Merges) -> BpeBuilder {
    let ids: Vocab =
        vocab.tokens.iter().enumerate().map(|(id, text)| (text.clone(), id as u32)).collect();
    BPE::builder().vocab_and_merges(ids, merges)
}

/// Control and user-defined tokens are found in text before anything else looks at it.
fn assemble(
    vocab: &GgufVocab,
    kinds: Vec<Kind>,
    model: BpeBuilder,
    parts: Parts,
    add_bos: bool,
) -> Result<Built, TextError> {
    let refused = |e: serde_json::Error| TextError::Tokenizer { what: e.to_string() };
    let mut inner = tokenizers::Tokenizer::new(model.build().map_err(super::refused)?);
    let normalizer: Option<NormalizerWrapper> =
        serde_json::from_value(parts.normalizer).map_err(refused)?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        serde_json::from_value(parts.pre_tokenizer).map_err(refused)?;
    let decoder: DecoderWrapper = serde_json::from_value(parts.decoder.clone()).map_err(refused)?;
    inner.with_normalizer(normalizer).map_err(super::refused)?;
    inner.with_pre_tokenizer(pre_tokenizer);
    inner.with_decoder(Some(decoder));
    let of = |special: bool| {
        let wanted = move |kind: &Kind| match kind {
            Kind::Control | Kind::Unknown => special,
            Kind::UserDefined => !special,
            Kind::Normal | Kind::Unused | Kind::Byte => false,
        };
        let texts = vocab.tokens.iter().zip(&kinds).filter(move |(_, kind)| wanted(kind));
        texts.map(move |(text, _)| AddedToken::from(text.as_str(), special).normalized(false))
    };
    inner.add_special_tokens(of(true)).map_err(super::refused)?;
    inner.add_tokens(of(false)).map_err(super::refused)?;
    Ok(Built { inner, decoder: parts.decoder, kinds, add_bos })
}
