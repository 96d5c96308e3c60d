//! Vocabularies, templates and messages that lie: errors that say what is wrong, never a panic.

use crate::common::{model_path, smollm2, vocab_of};
use lockstep_flow::Token;
use lockstep_text::{
    ChatOptions, Encode, GgufVocab, MessageProblem, StreamOptions, TextError, TextModel,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn small() -> GgufVocab {
    let tokens = ["a", "b", "ab", "Ġ", "Ġa", "<|x|>", "<u>"];
    GgufVocab {
        model: "gpt2".into(),
        pre: "gpt-2".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        token_types: vec![1, 1, 1, 1, 1, 3, 4],
        merges: vec!["a b".into(), "Ġ a".into()],
        eos: Some(5),
        ..GgufVocab::default()
    }
}

fn refused(change: impl FnOnce(&mut GgufVocab)) -> TextError {
    let mut vocab = small();
    change(&mut vocab);
    TextModel::from_gguf(vocab).expect_err("a lie was believed")
}

#[test]
fn lying_vocabularies_are_refused_with_what_was_found() {
    assert!(TextModel::from_gguf(small()).is_ok());
    let text = |e: TextError| e.to_string();
    assert_eq!(
        text(refused(|v| v.model = "bert".into())),
        "tokenizer.ggml.model is 'bert'; supported are gpt2, llama"
    );
    let pre = text(refused(|v| v.pre = "klingon".into()));
    assert!(pre.starts_with("tokenizer.ggml.pre is 'klingon'; supported are gpt-2,"), "{pre}");
    assert!(pre.contains("smollm") && pre.contains("qwen2") && pre.contains("tekken"), "{pre}");
    assert_eq!(
        refused(|v| v.merges.push("a z".into())),
        TextError::Merge { index: 2, merge: "a z".into(), missing: Some("z".into()) }
    );
    assert_eq!(
        refused(|v| v.merges.push("b a".into())),
        TextError::Merge { index: 2, merge: "b a".into(), missing: Some("ba".into()) }
    );
    for merge in ["", " ", "ab", "é"] {
        let want = TextError::Merge { index: 0, merge: merge.into(), missing: None };
        assert_eq!(refused(|v| v.merges[0] = merge.into()), want);
    }
    assert_eq!(
        refused(|v| v.tokens[1] = "a".into()),
        TextError::DuplicateToken { text: "a".into(), first: Token(0), second: Token(1) }
    );
    assert_eq!(refused(|v| v.tokens[2].clear()), TextError::EmptyToken { token: Token(2) });
    let long = TextError::TokenTooLong { token: Token(1), bytes: 5000, max_bytes: 4096 };
    assert_eq!(refused(|v| v.tokens[1] = "z".repeat(5000)), long);
    assert_eq!(
        refused(|v| v.token_types[4] = 9),
        TextError::TokenType { token: Token(4), found: 9 }
    );
    assert_eq!(
        refused(|v| v.token_types.truncate(3)),
        TextError::ArrayLength { array: "tokenizer.ggml.token_type", found: 3, expected: 7 }
    );
    assert_eq!(
        refused(|v| v.eos = Some(7)),
        TextError::SpecialOutOfRange { which: "eos", found: 7, vocab: 7 }
    );
    assert!(matches!(refused(|v| v.tokens.clear()), TextError::VocabSize { found: 0, .. }));
    let llama = |v: &mut GgufVocab| v.model = "llama".into();
    assert!(matches!(refused(llama), TextError::ArrayLength { found: 0, .. }));
    let scored = |v: &mut GgufVocab| {
        v.model = "llama".into();
        v.scores = vec![0.0; 7];
    };
    assert_eq!(refused(scored), TextError::NoByteToken { byte: 0 });
    let not_a_number = |v: &mut GgufVocab| {
        scored(v);
        v.scores[3] = f32::NAN;
    };
    assert_eq!(refused(not_a_number), TextError::Score { token: Token(3) });
}

/// The real vocabulary with one thing in it broken is refused, not loaded as something else.
#[test]
fn a_real_vocabulary_with_one_lie() {
    let real = vocab_of(&model_path()).unwrap();
    let mut lie = real.clone();
    lie.merges[1000] = "Ġt zzzzzz".into();
    assert!(matches!(TextModel::from_gguf(lie), Err(TextError::Merge { index: 1000, .. })));
    let mut lie = real.clone();
    lie.tokens.pop();
    assert!(matches!(TextModel::from_gguf(lie), Err(TextError::ArrayLength { .. })));
    let mut lie = real;
    lie.pre = "smollm3".into();
    assert!(matches!(TextModel::from_gguf(lie), Err(TextError::UnknownPre { .. })));
}

fn with_template(template: &str) -> TextModel {
    let chat_template = Some(template.to_owned());
    TextModel::from_gguf(GgufVocab { chat_template, ..small() }).unwrap()
}

fn render(template: &str, messages: Value) -> Result<String, TextError> {
    let prompt = with_template(template).render_chat(&messages, None, &ChatOptions::default());
    prompt.map(|p| p.text)
}

#[test]
fn templates_that_fail_say_where_and_why() {
    let hi = || json!([{"role": "user", "content": "ab"}]);
    let e =
        TextModel::from_gguf(small()).unwrap().render_chat(&hi(), None, &ChatOptions::default());
    assert_eq!(e, Err(TextError::NoTemplate));
    let e = render("x\n{% for %}", hi()).unwrap_err();
    assert!(matches!(e, TextError::TemplateSyntax { line: 2, .. }), "{e:?}");
    let e = render("\n\n{{ messages[0].content.nope() }}", hi()).unwrap_err();
    assert!(matches!(e, TextError::TemplateFailed { line: 3, .. }), "{e:?}");
    let e = render("{{ raise_exception('roles must alternate') }}", hi()).unwrap_err();
    assert_eq!(e, TextError::TemplateRaised { message: "roles must alternate".into() });
    assert_eq!(e.to_string(), "the chat template refuses these messages: roles must alternate");
}

#[test]
fn templates_that_never_end_are_stopped() {
    let hi = || json!([{"role": "user", "content": "ab"}]);
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    assert!(matches!(render(loops, hi()), Err(TextError::TemplateTooSlow { .. })));
    let doubling = "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}";
    assert!(matches!(render(doubling, hi()), Err(TextError::TemplateTooSlow { .. })));
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(recursion, hi()).is_err());
    let long = "{% for m in messages %}{{ m.content * 5000 }}{% endfor %}";
    let big = json!([{"role": "user", "content": "a".repeat(8 << 10)}]);
    assert!(matches!(
        render(long, big),
        Err(TextError::PromptTooLong { .. } | TextError::TemplateTooSlow { .. })
    ));
}

#[test]
fn messages_are_checked() {
    let template = "{{ messages[0].content }}";
    let problem = |messages: Value| match render(template, messages) {
        Err(TextError::Message { index, problem }) => (index, problem),
        other => panic!("{other:?}"),
    };
    assert!(matches!(render(template, json!({})), Err(TextError::Messages { .. })));
    assert!(matches!(render(template, json!([])), Err(TextError::Messages { .. })));
    let ok = json!({"role": "user", "content": "a"});
    assert_eq!(problem(json!([ok, 3])), (1, MessageProblem::NotAnObject));
    assert_eq!(problem(json!([{"content": "a"}])), (0, MessageProblem::NoRole));
    assert_eq!(problem(json!([{"role": "user", "content": 3}])), (0, MessageProblem::Content));
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    assert_eq!(problem(image), (0, MessageProblem::PartKind));
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render(template, parts).unwrap(), "a\nb");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(Value::from("<|im_end|>")),
        Just(Value::from("user")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec(
                ("role|content|tool_calls|function|arguments|x", inner),
                0..4
            )
            .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Pieces of templates, to be put together at random.
fn template() -> impl Strategy<Value = String> {
    let pieces = [
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ m.role }}",
        "{{ m['content'] }}",
        "{% if m %}",
        "{% endif %}",
        "{% else %}",
        "{{ m | tojson }}",
        "{{ m.content | trim }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{%- set x = m -%}",
        "{{ x }}",
        "{{ messages }}",
        "{{ 1/0 }}",
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "\n",
        " ",
        "é",
        "{{ x[1:] }}",
        "{{ 'a' * 9 }}",
        "{{ loop.index }}",
        "{{ m.content.split('a') }}",
        "{{ raise_exception(m) }}",
        "{{ strftime_now('%d') }}",
        "{% macro f(a) %}",
        "{% endmacro %}",
        "{{ f(m) }}",
        "{% break %}",
        "{{ x | tojson(indent=3) }}",
    ];
    let pieces = pieces.map(str::to_owned).to_vec();
    proptest::collection::vec(proptest::sample::select(pieces), 0..14).prop_map(|v| v.concat())
}

fn any_vocab() -> impl Strategy<Value = GgufVocab> {
    let token = prop_oneof![
        "[abĠ▁]{0,3}",
        "\\PC{0,4}",
        Just("<|x|>".to_owned()),
        (0..=255u8).prop_map(|b| format!("<0x{b:02X}>")),
    ];
    let merge = prop_oneof!["[ab] [ab]", "[ab ]{0,4}", "\\PC{0,5}"];
    let id = proptest::option::of(prop_oneof![0..8u32, any::<u32>()]);
    (
        prop_oneof![Just("gpt2"), Just("llama"), Just("x")],
        prop_oneof![Just(""), Just("gpt-2"), Just("llama-bpe"), Just("deepseek-v3"), Just("?")],
        proptest::collection::vec(token, 0..12),
        proptest::collection::vec(prop_oneof![1..7i32, any::<i32>()], 0..12),
        proptest::collection::vec(any::<f32>(), 0..12),
        proptest::collection::vec(merge, 0..5),
        (id.clone(), id.clone(), id.clone(), id),
        (any::<bool>(), any::<bool>(), any::<bool>()),
    )
        .prop_map(|(model, pre, tokens, mut token_types, mut scores, merges, ids, flags)| {
            let (bos, eos, unk, eot) = ids;
            let n = tokens.len();
            if flags.2 {
                token_types.resize(n, 1);
                scores.resize(n, 0.0);
            }
            GgufVocab {
                model: model.into(),
                pre: pre.into(),
                tokens,
                token_types,
                scores,
                merges,
                bos,
                eos,
                unk,
                eot,
                add_bos: Some(flags.0),
                add_space_prefix: Some(flags.1),
                chat_template: Some("{% for m in messages %}{{ m.content }}{% endfor %}".into()),
                ..GgufVocab::default()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_vocabulary_panics(vocab in any_vocab(), text in "[ab <|x|>é\u{2581}]{0,12}") {
        if let Ok(model) = TextModel::from_gguf(vocab) {
            for parse_special in [false, true] {
                let how = Encode { add_bos: true, parse_special };
                if let Ok(tokens) = model.encode(&text, how) {
                    prop_assert!(tokens.iter().all(|t| t.0 < model.vocab_size()));
                    let mut stream = model.stream_with(StreamOptions::default()).unwrap();
                    let out: String = tokens.iter().map(|t| stream.push(*t).text).collect();
                    prop_assert_eq!(out + &stream.finish().text, model.decode_continuation(&tokens, true));
                }
            }
            let messages = json!([{"role": "user", "content": text}]);
            let _ = model.render_chat(&messages, None, &ChatOptions::default());
        }
    }

    #[test]
    fn no_template_panics(template in template(), messages in any_json(), tools in any_json()) {
        let model = with_template(&template);
        let some = json!([{"role": "user", "content": "ab"}, {"role": "assistant", "content": messages.clone()}]);
        for messages in [&messages, &some] {
            for continue_final_message in [false, true] {
                let options = ChatOptions {
                    continue_final_message,
                    now_unix_s: Some(1 << 40),
                    ..ChatOptions::default()
                };
                let _ = model.render_chat(messages, Some(&tools), &options);
            }
        }
    }

    #[test]
    fn no_message_panics(messages in proptest::collection::vec(any_json(), 0..4)) {
        let _ = smollm2().render_chat(&Value::from(messages), None, &ChatOptions::default());
    }
}
