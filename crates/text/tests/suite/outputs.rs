//! What a model writes, taken apart: the same however the text is cut, in every format.

use lockstep_text::{
    OutputEvent, OutputParser, ParsedOutput, ParserOptions, ReasoningMarks, ToolFormat,
};
use proptest::prelude::*;

fn options(format: ToolFormat) -> ParserOptions {
    ParserOptions {
        format: Some(format),
        functions: vec!["get_weather".into(), "add".into()],
        ..ParserOptions::default()
    }
}

fn parse(format: ToolFormat, text: &str) -> (String, Vec<(String, String)>) {
    let out = OutputParser::parse(options(format), text);
    let calls = out.tool_calls.into_iter().map(|c| (c.name, c.arguments)).collect();
    (out.content, calls)
}

fn expect(content: &str, calls: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
    let calls = calls.iter().map(|(n, a)| (n.to_string(), a.to_string())).collect();
    (content.to_owned(), calls)
}

#[test]
fn deepseek_v4_calls() {
    let f = ToolFormat::Dsml;
    let parameter = |name: &str, kind: &str, value: &str| {
        format!(
            "<｜DSML｜parameter name=\"{name}\" string=\"{kind}\">{value}</｜DSML｜parameter>\n"
        )
    };
    let call = |body: &str| format!("<｜DSML｜invoke name=\"add\">\n{body}</｜DSML｜invoke>\n");
    let block = |body: &str| format!("<｜DSML｜tool_calls>\n{body}</｜DSML｜tool_calls>");
    let two = parameter("a", "false", "[1, 2]") + &parameter("b", "true", "x \"<y>\"\n");
    let args = "{\"a\": [1, 2], \"b\": \"x \\\"<y>\\\"\\n\"}";
    assert_eq!(parse(f, &block(&call(&two))), expect("", &[("add", args)]));
    let both = block(&(call(&two) + &call("")));
    let text = format!("Let me see.\n\n{both}");
    assert_eq!(parse(f, &text), expect("Let me see.", &[("add", args), ("add", "{}")]));
    // A literal that is none is text.
    let bad = block(&call(&parameter("a", "false", "yes")));
    assert_eq!(parse(f, &bad), expect("", &[("add", "{\"a\": \"yes\"}")]));
    // Cut off inside a text, and before a call has begun.
    let cut = &block(&call(&two))[..block(&call(&two)).len() - 60];
    let (_, calls) = parse(f, cut);
    assert!(args.starts_with(&calls[0].1) && calls[0].1.len() > 10, "{calls:?}");
    assert_eq!(parse(f, "<｜DSML｜tool_calls>\n<｜DSML｜inv").1, []);
    assert_eq!(
        parse(f, "a < b <｜DSML｜tool_calls>no"),
        expect("a < b <｜DSML｜tool_calls>no", &[])
    );
    // What follows a block is content.
    let after = format!("{}done", block(&call("")));
    assert_eq!(parse(f, &after), expect("done", &[("add", "{}")]));
}

#[test]
fn hermes_calls() {
    let f = ToolFormat::Hermes;
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"</tool_call>\"}}\n</tool_call>";
    let args = "{\"a\": 1, \"b\": \"</tool_call>\"}";
    assert_eq!(parse(f, call), expect("", &[("add", args)]));
    let text = format!("Let me see. \n{call}\n{call}\n");
    assert_eq!(parse(f, &text), expect("Let me see.", &[("add", args), ("add", args)]));
    // The mark is enough: a name that the request does not have is for the client to judge.
    let other = "<tool_call>{\"name\": \"nope\"}</tool_call> done";
    assert_eq!(parse(f, other), expect("done", &[("nope", "{}")]));
    // Cut off, with and without the call having begun.
    assert_eq!(
        parse(f, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1"),
        expect("", &[("add", "{\"a\": 1")])
    );
    assert_eq!(
        parse(f, "<tool_call>\n{\"name\": \"ad"),
        expect("<tool_call>\n{\"name\": \"ad", &[])
    );
    // Not calls.
    assert_eq!(parse(f, "a < b <tool_call>no"), expect("a < b <tool_call>no", &[]));
    assert_eq!(
        parse(f, "<tool_call><tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"),
        expect("<tool_call>", &[("add", "{}")])
    );
    // Brackets that do not match: the client gets what the model wrote.
    assert_eq!(
        parse(f, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ]}}</tool_call>x"),
        expect("x", &[("add", "{\"a\": ]}}")])
    );
    assert_eq!(parse(f, "no calls \n"), expect("no calls \n", &[]));
}

#[test]
fn llama_calls() {
    let f = ToolFormat::Llama3;
    let call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}";
    let args = "{\"city\": \"Paris\"}";
    assert_eq!(parse(f, call), expect("", &[("get_weather", args)]));
    assert_eq!(parse(f, &format!("\n<|python_tag|>{call}")), expect("", &[("get_weather", args)]));
    assert_eq!(
        parse(f, &format!("{call}; {call}")),
        expect("", &[("get_weather", args), ("get_weather", args)])
    );
    // JSON that is an answer stays one.
    let answer = "{\"name\": \"Bob\", \"parameters\": {}}";
    assert_eq!(parse(f, answer), expect(answer, &[]));
    let answer = "{\"name\": \"add\"}";
    assert_eq!(parse(f, answer), expect(answer, &[]));
    assert_eq!(parse(f, &format!("It is {call}")), expect(&format!("It is {call}"), &[]));
    assert_eq!(parse(f, "<|python_tag|>print(1)"), expect("<|python_tag|>print(1)", &[]));
}

#[test]
fn mistral_calls() {
    let f = ToolFormat::Mistral;
    let one = "{\"name\": \"add\", \"arguments\": {\"a\": [1]}}";
    let args = "{\"a\": [1]}";
    assert_eq!(parse(f, &format!("[TOOL_CALLS][{one}]")), expect("", &[("add", args)]));
    assert_eq!(
        parse(f, &format!("ok [TOOL_CALLS] [{one}, {one}] bye")),
        expect("ok\nbye", &[("add", args), ("add", args)])
    );
    assert_eq!(
        parse(f, "[TOOL_CALLS]add[ARGS]{\"a\": [1]}[TOOL_CALLS]get_weather{\"city\": \"x\"}"),
        expect("", &[("add", args), ("get_weather", "{\"city\": \"x\"}")])
    );
    assert_eq!(
        parse(f, "[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{\"a\": [1]}"),
        expect("", &[("add", args)])
    );
    assert_eq!(parse(f, "[TOOL_CALLS][]"), expect("[TOOL_CALLS][]", &[]));
    let id = &OutputParser::parse(options(f), &format!("[TOOL_CALLS][{one}]")).tool_calls[0].id;
    assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
}

#[test]
fn plain_calls() {
    let f = ToolFormat::Plain;
    let one = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    assert_eq!(parse(f, one), expect("", &[("add", "{\"a\": 1}")]));
    let two = [("add", "{\"a\": 1}"), ("add", "{\"a\": 1}")];
    assert_eq!(parse(f, &format!("[{one}, {one}]")), expect("", &two));
    assert_eq!(parse(f, "[1, 2]"), expect("[1, 2]", &[]));
}

#[test]
fn ids_are_distinct() {
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>".repeat(3);
    let ids = |id_seed| {
        let options = ParserOptions { id_seed, ..options(ToolFormat::Hermes) };
        let calls = OutputParser::parse(options, &call).tool_calls;
        calls.into_iter().map(|c| c.id).collect::<Vec<_>>()
    };
    let mut all = [ids(1), ids(2)].concat();
    assert_eq!(ids(1), ids(1));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6);
    assert!(all.iter().all(|id| id.len() == 29 && id.starts_with("call_")));
}

#[test]
fn reasoning_and_calls_in_one_stream() {
    let options = ParserOptions {
        reasoning: Some(ReasoningMarks::THINK),
        reasoning_opened: true,
        ..options(ToolFormat::Hermes)
    };
    let text = "I should <tool_call>add</think>\n\nSum:\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let mut parser = OutputParser::new(options);
    let mut kinds = Vec::new();
    let mut out = ParsedOutput::default();
    for c in text.chars() {
        for event in parser.push(&c.to_string()) {
            let kind = match &event {
                OutputEvent::Reasoning(_) => 'r',
                OutputEvent::Content(_) => 'c',
                OutputEvent::ToolCallStart { .. } => 's',
                OutputEvent::ToolArguments { .. } => 'a',
            };
            if kinds.last() != Some(&kind) {
                kinds.push(kind);
            }
            out.add(event);
        }
    }
    assert!(parser.finish().is_empty());
    assert_eq!(kinds, ['r', 'c', 's', 'a']);
    assert_eq!(out.reasoning, "I should <tool_call>add");
    assert_eq!(out.content, "Sum:");
    assert_eq!(out.tool_calls[0].arguments, "{\"a\": 1}");
}

/// Pieces of which outputs are made, good and bad.
fn pieces() -> impl Strategy<Value = String> {
    let call = "{\"name\": \"add\", \"arguments\": {\"a\": \"}é\\\"\", \"b\": [1, 2]}}";
    let fixed = [
        call,
        "{\"name\": \"get_weather\", \"parameters\": {}}",
        "{\"arguments\": {\"x\": null}, \"name\": \"add\"}",
        "{\"name\": \"nope\", \"arguments\": 3}",
        "{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<think>",
        "</think>",
        "add",
        " ",
        "\n",
        "[",
        "]",
        ", ",
        ";",
        "{",
        "}",
        "\"",
        "<",
        "é",
        "text",
        "</tool",
        "[TOOL",
    ];
    prop_oneof![
        4 => proptest::sample::select(fixed.map(str::to_owned).to_vec()),
        1 => "\\PC{0,6}",
    ]
}

fn whole_and_cut(
    options: ParserOptions,
    text: &str,
    cuts: &[usize],
) -> (ParsedOutput, ParsedOutput) {
    let whole = OutputParser::parse(options.clone(), text);
    let mut parser = OutputParser::new(options);
    let mut out = ParsedOutput::default();
    let chars: Vec<char> = text.chars().collect();
    let mut rest = &chars[..];
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let n = cuts.next().map_or(1, |c| (*c).clamp(1, rest.len()));
        let piece: String = rest[..n].iter().collect();
        parser.push(&piece).into_iter().for_each(|e| out.add(e));
        rest = &rest[n..];
    }
    parser.finish().into_iter().for_each(|e| out.add(e));
    (whole, out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_stream_adds_up_to_the_whole(
        parts in proptest::collection::vec(pieces(), 0..14),
        cuts in proptest::collection::vec(1..9usize, 1..20),
        format in proptest::sample::select(vec![
            None, Some(ToolFormat::Hermes), Some(ToolFormat::Llama3),
            Some(ToolFormat::Mistral), Some(ToolFormat::Plain), Some(ToolFormat::Dsml),
        ]),
        reasoning in any::<bool>(),
        reasoning_opened in any::<bool>(),
    ) {
        let options = ParserOptions {
            format,
            functions: vec!["get_weather".into(), "add".into()],
            reasoning: reasoning.then_some(ReasoningMarks::THINK),
            reasoning_opened,
            id_seed: 7,
        };
        let text = parts.concat();
        let (whole, cut) = whole_and_cut(options.clone(), &text, &cuts);
        prop_assert_eq!(&whole, &cut);
        if format.is_none() && !reasoning {
            prop_assert_eq!(&whole.content, &text);
        }
    }

    #[test]
    fn well_formed_calls_come_back(
        args in proptest::collection::vec(("[a-z]{1,5}", "\\PC{0,8}"), 0..4),
        format in proptest::sample::select(vec![
            ToolFormat::Hermes, ToolFormat::Llama3, ToolFormat::Mistral, ToolFormat::Plain,
            ToolFormat::Dsml,
        ]),
        cuts in proptest::collection::vec(1..9usize, 1..20),
    ) {
        let dsml: String = args
            .iter()
            .map(|(k, v)| format!("<｜DSML｜parameter name=\"{k}\" string=\"true\">{v}</｜DSML｜parameter>\n"))
            .collect();
        let names: std::collections::HashSet<_> = args.iter().map(|a| a.0.clone()).collect();
        prop_assume!(format != ToolFormat::Dsml || names.len() == args.len());
        let arguments = serde_json::Value::Object(
            args.into_iter().map(|(k, v)| (k, v.into())).collect()).to_string();
        let key = if format == ToolFormat::Llama3 { "parameters" } else { "arguments" };
        let call = format!("{{\"name\": \"add\", \"{key}\": {arguments}}}");
        let text = match format {
            ToolFormat::Hermes => format!("<tool_call>\n{call}\n</tool_call>"),
            ToolFormat::Mistral => format!("[TOOL_CALLS][{call}]"),
            ToolFormat::Llama3 | ToolFormat::Plain => call,
            ToolFormat::Dsml => format!(
                "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n{dsml}</｜DSML｜invoke>\n\
                 </｜DSML｜tool_calls>"
            ),
        };
        let (whole, cut) = whole_and_cut(options(format), &text, &cuts);
        prop_assert_eq!(&whole, &cut);
        prop_assert_eq!(&whole.content, "");
        prop_assert_eq!(whole.tool_calls.len(), 1);
        // Text parameters come with the separators that models write.
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        match format {
            ToolFormat::Dsml => {
                prop_assert_eq!(value(&whole.tool_calls[0].arguments), value(&arguments));
            }
            _ => prop_assert_eq!(&whole.tool_calls[0].arguments, &arguments),
        }
    }
}
