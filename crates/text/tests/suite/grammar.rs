//! Outputs under a grammar: whatever is drawn from the masks is what was asked for.

use crate::common::smollm2;
use lockstep_flow::{MaskError, Token, TokenMask};
use lockstep_text::{
    Encode, GrammarSpec, OutputParser, ParserOptions, TextError, ToolChoice, ToolFormat, Tools,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const VOCAB: u32 = 49_152;

fn grammar(spec: &GrammarSpec) -> Box<dyn TokenMask> {
    smollm2().grammar(spec, None).unwrap()
}

fn allowed(words: &[u32]) -> Vec<Token> {
    let bits = |(i, w): (usize, &u32)| {
        let w = *w;
        (0..32).filter(move |b| w >> b & 1 == 1).map(move |b| Token(i as u32 * 32 + b))
    };
    words.iter().enumerate().flat_map(bits).collect()
}

fn mask(grammar: &mut dyn TokenMask) -> Vec<Token> {
    let mut words = vec![u32::MAX; VOCAB.div_ceil(32) as usize];
    grammar.fill(&mut words).unwrap();
    allowed(&words)
}

/// Draws tokens at random until the grammar is complete or an end token is drawn.
fn walk(grammar: &mut dyn TokenMask, seed: u64, tokens_max: usize) -> Option<String> {
    walk_or_fail(grammar, seed, tokens_max).unwrap()
}

fn walk_or_fail(
    grammar: &mut dyn TokenMask,
    seed: u64,
    tokens_max: usize,
) -> Result<Option<String>, MaskError> {
    let m = smollm2();
    let mut x = seed;
    let mut out = Vec::new();
    while out.len() < tokens_max {
        if grammar.is_complete() {
            return Ok(Some(m.decode(&out, false)));
        }
        let mut words = vec![0; VOCAB.div_ceil(32) as usize];
        grammar.fill(&mut words)?;
        let choices = allowed(&words);
        let control: Vec<&Token> = choices.iter().filter(|t| m.is_special(**t)).collect();
        assert!(control.iter().all(|t| m.eos_tokens().contains(t)), "{control:?}");
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = choices[(x >> 33) as usize % choices.len()];
        grammar.accept(token)?;
        if m.eos_tokens().contains(&token) {
            assert!(grammar.is_complete());
            return Ok(Some(m.decode(&out, false)));
        }
        out.push(token);
    }
    Ok(None)
}

/// Feeds a text's own tokens; says at which byte it was refused. Where the grammar forces bytes
/// the mask allows only their usual tokens, so more is accepted than the mask allows; what is
/// refused is never in the mask.
fn feed(grammar: &mut dyn TokenMask, text: &str) -> Result<(), usize> {
    let mut at = 0;
    for token in smollm2().encode(text, Encode::TEXT).unwrap() {
        let in_mask = mask(grammar).contains(&token);
        match grammar.accept(token) {
            Ok(()) => {}
            Err(MaskError::Rejected { .. }) => {
                assert!(!in_mask, "rejected what the mask allows");
                return Err(at);
            }
            Err(e) => panic!("{e}"),
        }
        at += smollm2().token_bytes(token).len();
    }
    Ok(())
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b<c"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

#[test]
fn outputs_under_a_schema_follow_it() {
    for seed in 0..40 {
        let mut g = grammar(&GrammarSpec::JsonSchema(person()));
        let text = walk(&mut *g, seed, 200).expect("the schema bounds the length");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(value["name"].as_str().unwrap().chars().count() <= 6, "{text}");
        assert!((0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
        let tags = value["tags"].as_array().unwrap();
        assert!(tags.len() <= 2 && tags.iter().all(|t| t == "a" || t == "b<c"), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 3);
    }
}

#[test]
fn a_complete_object_can_only_end() {
    let mut g = grammar(&GrammarSpec::JsonObject);
    assert!(!g.is_complete());
    assert_eq!(feed(&mut *g, "{\"a\": [1, {\"b\": null}], \"é\": \"😀\"}"), Ok(()));
    assert!(g.is_complete());
    assert_eq!(mask(&mut *g), smollm2().eos_tokens());
    assert_eq!(g.accept(Token(2)), Ok(()));
    assert!(g.is_complete());
}

#[test]
fn what_does_not_fit_is_rejected_where_it_stands() {
    let mut g = grammar(&GrammarSpec::JsonObject);
    assert_eq!(feed(&mut *g, "Sure"), Err(0));
    let mut g = grammar(&GrammarSpec::JsonObject);
    assert_eq!(feed(&mut *g, "{\"a\": nope}"), Err(7));
    let mut g = grammar(&GrammarSpec::Regex("[0-9]{3}-[a-c]+".into()));
    assert_eq!(feed(&mut *g, "123-abd"), Err(6));
    let mut g = grammar(&GrammarSpec::JsonObject);
    let err = g.accept(Token(2)).unwrap_err();
    assert_eq!(err, MaskError::Rejected { token: Token(2), at_output_index: 0 });
    assert!(matches!(g.accept(Token(VOCAB + 5)), Err(MaskError::Rejected { .. })));
    // A rejected token leaves the grammar where it was.
    assert_eq!(feed(&mut *g, "{}"), Ok(()));
}

#[test]
fn patterns_and_grammars() {
    for seed in 0..20 {
        let mut g = grammar(&GrammarSpec::Regex("(yes|no|[0-9]{2,4})!".into()));
        let text = walk(&mut *g, seed, 20).unwrap();
        let body = text.strip_suffix('!').unwrap();
        let digits = (2..=4).contains(&body.len()) && body.bytes().all(|b| b.is_ascii_digit());
        assert!(body == "yes" || body == "no" || digits, "{text}");
        let lark = "start: \"a\" item{1,2}\nitem: \"<\" /[xy]/ \">\"".to_owned();
        let text = walk(&mut *grammar(&GrammarSpec::Lark(lark)), seed, 20).unwrap();
        assert!(["a<x>", "a<y>", "a<x><x>", "a<x><y>", "a<y><x>", "a<y><y>"].contains(&&*text));
    }
}

/// A model may have more logits than its tokenizer has ids: those are never allowed.
#[test]
fn rows_beyond_the_vocabulary_are_forbidden() {
    let mut g = grammar(&GrammarSpec::JsonObject);
    let mut words = vec![u32::MAX; VOCAB.div_ceil(32) as usize + 9];
    g.fill(&mut words).unwrap();
    assert!(words[VOCAB.div_ceil(32) as usize..].iter().all(|w| *w == 0));
    assert!(!allowed(&words).is_empty());
}

fn tools() -> Tools {
    Tools::parse(&json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
            "required": ["city", "days"],
            "additionalProperties": false,
            "$defs": {"city": {"enum": ["Paris", "S\u{e3}o Paulo", "\"<|im_end|>\""]}},
        }}},
        {"type": "function", "function": {"name": "stop-now"}},
    ]))
    .unwrap()
}

fn spec(choice: ToolChoice, format: ToolFormat, parallel: bool) -> GrammarSpec {
    GrammarSpec::Tools { tools: tools(), choice, format, parallel }
}

const FORMATS: [ToolFormat; 5] = [
    ToolFormat::Hermes,
    ToolFormat::Llama3,
    ToolFormat::Mistral,
    ToolFormat::Plain,
    ToolFormat::Dsml,
];

fn parse(format: ToolFormat, text: &str) -> lockstep_text::ParsedOutput {
    let options = ParserOptions {
        format: Some(format),
        functions: tools().names(),
        ..ParserOptions::default()
    };
    OutputParser::parse(options, text)
}

/// What `tool_choice` forces out of any model is a call that the parser of the same format reads.
#[test]
fn forced_calls_are_calls() {
    let named = ToolChoice::Function("get_weather".into());
    let mut names = std::collections::BTreeSet::new();
    for format in FORMATS {
        for seed in 0..12 {
            let choice = if seed % 2 == 0 { ToolChoice::Required } else { named.clone() };
            let mut g = grammar(&spec(choice.clone(), format, false));
            let Some(text) = walk(&mut *g, seed, 300) else { continue };
            let out = parse(format, &text);
            assert_eq!((out.content.as_str(), out.tool_calls.len()), ("", 1), "{format:?} {text}");
            let call = &out.tool_calls[0];
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            if choice == named || call.name == "get_weather" {
                assert_eq!(call.name, "get_weather");
                assert!((1..=14).contains(&arguments["days"].as_i64().unwrap()), "{text}");
                assert!(arguments["city"].is_string() && arguments.as_object().unwrap().len() == 2);
            }
            names.insert((format!("{format:?}"), call.name.clone()));
        }
    }
    assert!(names.len() >= 6, "{names:?}");
}

/// Limits of a string parameter were once dropped where it is written as raw text.
#[test]
fn raw_text_parameters_keep_to_their_schema() {
    let tools = Tools::parse(&json!([
        {"type": "function", "function": {"name": "note", "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$", "maxLength": 6},
                "unit": {"$ref": "#/$defs/unit"},
                "word": {"type": "string", "minLength": 2},
            },
            "required": ["code", "unit", "word"],
            "$defs": {"unit": {"type": "string", "enum": ["km", "mile"]}},
        }}},
    ]))
    .unwrap();
    let choice = ToolChoice::Required;
    let spec = GrammarSpec::Tools { tools, choice, format: ToolFormat::Dsml, parallel: false };
    let call = |code: &str, unit: &str, word: &str| {
        let d = "\u{ff5c}DSML\u{ff5c}";
        let parameter = |name: &str, text: &str| {
            format!("<{d}parameter name=\"{name}\" string=\"true\">{text}</{d}parameter>\n")
        };
        format!(
            "\n\n<{d}tool_calls>\n<{d}invoke name=\"note\">\n{}{}{}</{d}invoke>\n</{d}tool_calls>",
            parameter("code", code),
            parameter("unit", unit),
            parameter("word", word),
        )
    };
    let takes = |text: &str| feed(&mut *grammar(&spec), text).is_ok();
    assert!(takes(&call("AB/12", "km", "ab")) && takes(&call("AB/123", "mile", "a \n<b>")));
    for bad in [
        call("AB/1234", "km", "ab"),
        call("Ab/1", "km", "ab"),
        call("AB/12", "kms", "ab"),
        call("AB/12", "km", "a"),
    ] {
        assert!(!takes(&bad), "{bad}");
    }
}

#[test]
fn parallel_calls_where_the_format_has_them() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>";
    let two = format!("{call}\n{call}");
    let required = |parallel| spec(ToolChoice::Required, ToolFormat::Hermes, parallel);
    assert_eq!(feed(&mut *grammar(&required(true)), &two), Ok(()));
    let mut one = grammar(&required(false));
    assert!(feed(&mut *one, &two).is_err());
    assert_eq!(parse(ToolFormat::Hermes, &two).tool_calls.len(), 2);
}

/// Strict tools with `tool_choice` auto: text is free, an opened call is bound.
#[test]
fn a_free_choice_binds_once_a_call_is_opened() {
    for format in FORMATS {
        let auto = || grammar(&spec(ToolChoice::Auto, format, true));
        let mut g = auto();
        assert_eq!(
            feed(&mut *g, "Just some text, with [brackets] and {braces}."),
            Ok(()),
            "{format:?}"
        );
        assert!(mask(&mut *g).contains(&Token(2)), "text may end");
    }
    let good = "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>";
    let auto = || grammar(&spec(ToolChoice::Auto, ToolFormat::Hermes, true));
    assert_eq!(feed(&mut *auto(), good), Ok(()));
    assert!(feed(&mut *auto(), &good.replace("Paris", "Rome")).is_err());
    assert!(feed(&mut *auto(), "ok <tool_call>\nhm").is_err());
}

#[test]
fn a_grammar_after_reasoning() {
    let m = smollm2();
    let spec = GrammarSpec::JsonSchema(person());
    let mut g = m.grammar(&spec, Some("</think>")).unwrap();
    let text = "Let {me} think.\n</think>\n\n{\"name\": \"Bo\", \"age\": 7, \"tags\": []}";
    assert_eq!(feed(&mut *g, text), Ok(()));
    assert!(g.is_complete());
    let mut g = m.grammar(&spec, Some("</think>")).unwrap();
    assert!(feed(&mut *g, "Hm.</think>no").is_err());
}

#[test]
fn bad_grammars_are_refused_in_words() {
    let m = smollm2();
    let refused = |spec: GrammarSpec| m.grammar(&spec, None).map(|_| ()).unwrap_err();
    let schema = |v: Value| refused(GrammarSpec::JsonSchema(v));
    let e = schema(json!({"type": "strange"}));
    assert!(matches!(&e, TextError::Grammar { kind: "JSON schema", .. }), "{e}");
    assert!(e.to_string().contains("strange"), "{e}");
    assert!(matches!(schema(json!(3)), TextError::Grammar { .. }));
    assert!(matches!(schema(json!({"$ref": "#/$defs/none"})), TextError::Grammar { .. }));
    assert!(matches!(
        schema(json!({"type": "integer", "minimum": 3, "maximum": 2})),
        TextError::Grammar { .. }
    ));
    let large = json!({"enum": ["x".repeat(300 << 10)]});
    assert!(matches!(schema(large), TextError::GrammarTooLarge { max_bytes: 262_144, .. }));
    assert!(matches!(refused(GrammarSpec::Regex("(".into())), TextError::Grammar { .. }));
    assert!(matches!(refused(GrammarSpec::Regex("(".repeat(5000))), TextError::Grammar { .. }));
    assert!(matches!(refused(GrammarSpec::Lark("start: (((".into())), TextError::Grammar { .. }));
    assert!(matches!(refused(GrammarSpec::Lark("(".repeat(100_000))), TextError::Grammar { .. }));
    assert!(matches!(
        refused(GrammarSpec::Lark("start: nothing".into())),
        TextError::Grammar { .. }
    ));
    let unknown = spec(ToolChoice::Function("nope".into()), ToolFormat::Plain, false);
    assert_eq!(refused(unknown), TextError::UnknownTool { name: "nope".into() });
    let none = GrammarSpec::Tools {
        tools: Tools::default(),
        choice: ToolChoice::Required,
        format: ToolFormat::Plain,
        parallel: false,
    };
    assert_eq!(refused(none), TextError::NoTools);
}

/// Arrays in arrays without end: nothing satisfies it, and the request ends with an error.
#[test]
fn a_schema_that_nothing_satisfies_never_completes() {
    let endless = json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 3});
    if let Ok(mut g) = smollm2().grammar(&GrammarSpec::JsonSchema(endless), None) {
        let end = walk_or_fail(&mut *g, 0, 60);
        assert!(matches!(end, Ok(None) | Err(MaskError::TooComplex { .. })), "{end:?}");
    }
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "integer", "minimum": -3})),
        Just(json!({"type": ["number", "null"]})),
        Just(json!({"enum": [1, "a", null, [2]]})),
        Just(json!({"const": "\u{e9}"})),
        Just(json!({"type": "string", "pattern": "^[a-z]{1,3}$"})),
        Just(json!({"type": "string", "format": "date"})),
        Just(json!({"$ref": "#"})),
        Just(json!({"not": {}})),
        Just(json!(true)),
        "\\PC{0,5}".prop_map(|s| json!({"type": s})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (proptest::collection::vec(("[a-c]", inner.clone()), 0..3), any::<bool>()).prop_map(
                |(fields, more)| {
                    let names: Vec<String> = fields.iter().map(|f| f.0.clone()).collect();
                    let fields: serde_json::Map<String, Value> = fields.into_iter().collect();
                    json!({"type": "object", "properties": fields, "required": names, "additionalProperties": more})
                }
            ),
            inner.clone().prop_map(|i| json!({"type": "array", "items": i, "minItems": 1, "maxItems": 3})),
            proptest::collection::vec(inner, 1..3).prop_map(|v| json!({"anyOf": v})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Any schema compiles or is refused; what is drawn under one that compiles is JSON.
    #[test]
    fn any_schema_gives_json_or_an_error(schema in any_schema(), seed in any::<u64>()) {
        if let Ok(mut g) = smollm2().grammar(&GrammarSpec::JsonSchema(schema), None)
            // The engine may give up on a schema made to be hard; that is an error, not a panic.
            && let Ok(Some(text)) = walk_or_fail(&mut *g, seed, 60)
            && let Err(e) = serde_json::from_str::<Value>(&text)
        {
            // JSON puts no bound on a number; the reader does.
            prop_assert!(e.to_string().contains("number out of range"), "{}: {}", text, e);
        }
    }

    #[test]
    fn no_pattern_or_grammar_panics(text in "[a-z(){}\\[\\]|*+?.^$:\"/\\\\<> \n%]{0,40}") {
        let _ = smollm2().grammar(&GrammarSpec::Regex(text.clone()), None);
        let _ = smollm2().grammar(&GrammarSpec::Lark(format!("start: {text}")), None);
        let _ = smollm2().grammar(&GrammarSpec::Lark(text), None);
    }
}
