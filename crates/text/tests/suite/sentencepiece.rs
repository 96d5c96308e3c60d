//! SentencePiece vocabularies as Llama-2 and the first Mistral have them, against the
//! SentencePiece library on a vocabulary that it trained (`data/make_sentencepiece.py`).

use crate::common::{corpus, data};
use lockstep_flow::Token;
use lockstep_text::{Encode, GgufVocab, StreamOptions, TextModel};
use proptest::prelude::*;
use std::sync::OnceLock;

fn vocab() -> GgufVocab {
    let golden = data("sentencepiece.json");
    let list = |name: &str| golden[name].clone();
    GgufVocab {
        model: "llama".into(),
        pre: "default".into(),
        tokens: serde_json::from_value(list("tokens")).unwrap(),
        scores: serde_json::from_value(list("scores")).unwrap(),
        token_types: serde_json::from_value(list("token_types")).unwrap(),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..GgufVocab::default()
    }
}

fn model() -> &'static TextModel {
    static MODEL: OnceLock<TextModel> = OnceLock::new();
    MODEL.get_or_init(|| TextModel::from_gguf(vocab()).unwrap())
}

#[test]
fn ids_agree_with_the_library() {
    let golden = data("sentencepiece.json");
    let corpus = corpus();
    let texts = golden["texts"].as_array().unwrap();
    assert!(texts.len() > 200);
    let mut fallbacks = 0;
    for entry in texts {
        let text = &corpus[entry["index"].as_u64().unwrap() as usize];
        let want: Vec<Token> = serde_json::from_value::<Vec<u32>>(entry["ids"].clone())
            .unwrap()
            .into_iter()
            .map(Token)
            .collect();
        let how = Encode { add_bos: false, parse_special: false };
        let got = model().encode(text, how).unwrap();
        assert_eq!(got, want, "{text:?}");
        assert_eq!(&model().decode(&got, true), text);
        fallbacks += got.iter().filter(|t| model().token_bytes(**t).len() == 1).count();
    }
    assert!(fallbacks > 1000, "bytes were hardly used: {fallbacks}");
}

#[test]
fn bos_is_added_and_control_tokens_are_read_only_where_asked() {
    let m = model();
    let how = |add_bos, parse_special| Encode { add_bos, parse_special };
    assert_eq!(m.encode("", how(true, true)).unwrap(), [Token(1)]);
    assert!(m.encode("a</s>", how(false, true)).unwrap().contains(&Token(2)));
    let plain = m.encode("a</s>", how(false, false)).unwrap();
    assert!(!plain.contains(&Token(2)));
    assert_eq!(m.decode(&plain, true), "a</s>");
}

#[test]
fn a_continuation_keeps_its_leading_space_and_a_whole_text_does_not() {
    let m = model();
    let tokens = m.encode("a b", Encode::TEXT).unwrap();
    assert_eq!(m.decode(&tokens, true), "a b");
    assert_eq!(m.decode_continuation(&tokens, true), " a b");
    let run = |continuation| {
        let options = StreamOptions { continuation, ..StreamOptions::default() };
        let mut stream = m.stream_with(options).unwrap();
        let text: String = tokens.iter().map(|t| stream.push(*t).text).collect();
        text + &stream.finish().text
    };
    assert_eq!(run(true), " a b");
    assert_eq!(run(false), "a b");
}

proptest! {
    #[test]
    fn any_ids_stream_to_what_they_decode_to(
        ids in proptest::collection::vec(prop_oneof![0..1300u32, 3..259u32], 0..40),
        continuation in any::<bool>(),
        skip_special in any::<bool>(),
    ) {
        let tokens: Vec<Token> = ids.into_iter().map(Token).collect();
        let options = StreamOptions { continuation, skip_special, ..StreamOptions::default() };
        let mut stream = model().stream_with(options).unwrap();
        let text: String = tokens.iter().map(|t| stream.push(*t).text).collect();
        let text = text + &stream.finish().text;
        let whole = if continuation {
            model().decode_continuation(&tokens, skip_special)
        } else {
            model().decode(&tokens, skip_special)
        };
        prop_assert_eq!(text, whole);
    }

    #[test]
    fn any_text_comes_back(text in "\\PC{0,40}") {
        let tokens = model().encode(&text, Encode::TEXT).unwrap();
        prop_assert_eq!(model().decode(&tokens, false), text.replace('\u{2581}', " "));
    }
}
