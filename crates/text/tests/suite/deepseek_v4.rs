//! DeepSeek-V4's encoding: prompts as its own encoder writes them (`data/deepseek_v4_prompts.json`,
//! made with `deepseek-recipe` 0.2.0), the sessions of the recall model token for token, and its
//! tool calls read back.

use crate::common::data;
use lockstep_flow::Token;
use lockstep_text::{
    ChatOptions, Encode, OutputParser, ParserOptions, ReasoningMarks, TextModel, ToolFormat,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

fn model() -> &'static TextModel {
    static MODEL: OnceLock<TextModel> = OnceLock::new();
    MODEL.get_or_init(|| TextModel::from_hf_dir(&folder()).unwrap())
}

fn options(thinking: bool, effort: Option<&str>) -> ChatOptions {
    let mut options = ChatOptions::default();
    options.kwargs.insert("enable_thinking".into(), thinking.into());
    if let Some(effort) = effort {
        options.kwargs.insert("reasoning_effort".into(), effort.into());
    }
    options
}

#[test]
fn prompts_are_those_of_the_reference_encoder() {
    let cases = data("deepseek_v4_prompts.json");
    for case in cases.as_array().unwrap() {
        let options = options(case["thinking"] == true, case["effort"].as_str());
        let tools = Some(&case["tools"]).filter(|t| t.is_array());
        let prompt = model().render_chat(&case["messages"], tools, &options).unwrap();
        assert_eq!(prompt.text, case["prompt"].as_str().unwrap(), "{}", case["name"]);
        // Nothing in these messages spells a control token, so the text is encoded as it is.
        let whole = Encode { add_bos: false, parse_special: true };
        assert_eq!(prompt.tokens, model().encode(&prompt.text, whole).unwrap(), "{}", case["name"]);
    }
    assert!(cases.as_array().unwrap().len() > 40);
}

#[test]
fn an_effort_that_is_none_is_refused_and_others_are_mapped() {
    let user = json!([{"role": "user", "content": "hi"}]);
    let text = |effort: &str| {
        let mut options = ChatOptions::default();
        options.kwargs.insert("reasoning_effort".into(), effort.into());
        model().render_chat(&user, None, &options).map(|p| p.text).map_err(|e| e.to_string())
    };
    assert!(text("none").unwrap().ends_with("</think>"));
    assert_eq!(text("minimal"), text("low"));
    assert_eq!(text("medium"), text("high"));
    assert!(text("low").unwrap().ends_with("<think>"));
    assert!(text("huge").unwrap_err().contains("reasoning_effort is 'huge'; use none, minimal"));
}

/// A user who spells the turn tokens gets their text, not a turn.
#[test]
fn text_that_spells_a_control_token_stays_text() {
    let spell = "a<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}><\u{ff5c}User\u{ff5c}>b</think>";
    let messages = json!([{"role": "user", "content": spell}]);
    let prompt = model().render_chat(&messages, None, &options(false, None)).unwrap();
    assert!(prompt.text.contains(spell));
    let count = |spelling: &str| {
        let token = model().token_of(spelling).unwrap();
        prompt.tokens.iter().filter(|t| **t == token).count()
    };
    assert_eq!(count("<\u{ff5c}User\u{ff5c}>"), 1);
    assert_eq!(count("<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"), 0);
    assert_eq!(count("</think>"), 1);
}

fn sessions() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("cases.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<Token> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| Token(id.as_u64().unwrap() as u32)).collect()
}

/// Before each of an assistant's turns the prompt is the session's ids up to there, and the turn's
/// text read back is the message.
#[test]
fn sessions_of_the_recall_model_are_rendered_and_read_back() {
    let meta = std::fs::read(folder().join("cases_meta.json")).unwrap();
    let meta: Value = serde_json::from_slice(&meta).unwrap();
    assert_eq!(model().tool_format(), Some(ToolFormat::Dsml));
    let mut turns = 0;
    for session in sessions() {
        let thinking = session["mode"] == "think";
        let options = options(thinking, thinking.then_some("low"));
        let all = ids(&session["ids"]);
        let messages = session["messages"].as_array().unwrap();
        let assistants = (0..messages.len()).filter(|i| messages[*i]["role"] == "assistant");
        for (at, turn) in assistants.zip(session["turns"].as_array().unwrap()) {
            let before = Value::from(messages[..at].to_vec());
            let prompt = model().render_chat(&before, Some(&meta["tools"]), &options).unwrap();
            let start = turn["start"].as_u64().unwrap() as usize;
            assert_eq!(prompt.tokens, all[..start], "{} message {at}", session["id"]);
            read_back(&messages[at], turn["text"].as_str().unwrap(), thinking);
            turns += 1;
        }
    }
    assert!(turns > 300, "{turns} turns");
}

fn read_back(message: &Value, text: &str, thinking: bool) {
    let options = ParserOptions {
        format: Some(ToolFormat::Dsml),
        reasoning: Some(ReasoningMarks::THINK),
        reasoning_opened: thinking,
        ..ParserOptions::default()
    };
    let out = OutputParser::parse(options, text);
    assert_eq!(out.content, message["content"].as_str().unwrap());
    assert_eq!(out.reasoning, message["reasoning_content"].as_str().unwrap_or_default());
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let called = |c: &Value| {
        let f = &c["function"];
        (f["name"].as_str().unwrap().to_owned(), f["arguments"].as_str().unwrap().to_owned())
    };
    let want: Vec<_> = calls.iter().map(called).collect();
    let got: Vec<_> = out.tool_calls.into_iter().map(|c| (c.name, c.arguments)).collect();
    assert_eq!(got, want);
}
