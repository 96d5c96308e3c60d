//! The JSON of answers, whole or in chunks, folded into an [`Exchange`].

use super::exchange::{ChunkTime, Exchange, Outcome, ProtocolFault, Token, ToolCall, Usage};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// Tool calls of one answer, at most.
pub const TOOL_CALLS_MAX: usize = 1024;
/// Characters of a server's words that are kept in an error.
const WORDS_MAX: usize = 300;

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<UsageBody>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    timings: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, alias = "message")]
    delta: Option<Message>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<CallBody>>,
}

#[derive(Deserialize)]
struct CallBody {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<FunctionBody>,
}

#[derive(Deserialize)]
struct FunctionBody {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<TokenBody>>,
    #[serde(default)]
    tokens: Option<Vec<String>>,
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Deserialize)]
struct TokenBody {
    #[serde(default)]
    id: Option<u32>,
    #[serde(default)]
    token: String,
    #[serde(default)]
    logprob: Option<f64>,
}

#[derive(Deserialize)]
struct UsageBody {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// What is said of an error without a body.
pub(crate) const NO_WORDS: &str = "no words with it";

/// The server's words in an error body: `error.message`, `message`, `detail`, or the text itself.
pub(crate) fn error_words(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let candidates =
        [&parsed["error"]["message"], &parsed["error"], &parsed["message"], &parsed["detail"]];
    let said = candidates.into_iter().find_map(Value::as_str).map(str::to_owned);
    let said = shorten(&said.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        html_words(&text).unwrap_or_else(|| text.into_owned())
    }));
    if said.is_empty() { NO_WORDS.into() } else { said }
}

/// What a page for browsers says in its title, or that it is one; nothing of any other text.
fn html_words(text: &str) -> Option<String> {
    let start: String = text.trim_start().chars().take(16).collect::<String>().to_ascii_lowercase();
    if !["<!doctype", "<html", "<head", "<body"].iter().any(|tag| start.starts_with(tag)) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title>").and_then(|at| {
        // Lower case of ASCII keeps every byte in its place.
        let from = at + "<title>".len();
        Some(text[from..from + lower[from..].find("</title>")?].trim().to_owned())
    });
    Some(match title.filter(|t| !t.is_empty()) {
        Some(title) => format!("a web page, titled {title:?}"),
        None => "a web page".into(),
    })
}

/// The beginning of a text in one line, its control characters written out.
pub fn shorten(text: &str) -> String {
    let mut short = String::new();
    for (at, c) in text.trim().chars().enumerate() {
        if at == WORDS_MAX {
            short.push_str("...");
            break;
        }
        match c {
            '\n' | '\r' | '\t' => short.push(' '),
            c if c.is_control() => short.extend(c.escape_unicode()),
            c => short.push(c),
        }
    }
    short
}

/// Folds one JSON text into `exchange`: a chunk of a stream or a whole answer. An outcome ends
/// the exchange.
pub(crate) fn fold(
    exchange: &mut Exchange,
    json: &[u8],
    after: Duration,
    is_chunk: bool,
) -> Result<(), Outcome> {
    let body: Body = serde_json::from_slice(json).map_err(|e| Outcome::Protocol {
        fault: ProtocolFault::Json {
            why: e.to_string(),
            found: shorten(&String::from_utf8_lossy(json)),
        },
    })?;
    if let Some(error) = body.error {
        let message = error["message"].as_str().or(error.as_str()).map(str::to_owned);
        let message = shorten(&message.unwrap_or_else(|| error.to_string()));
        return Err(Outcome::Failed { message });
    }
    if let Some(usage) = body.usage {
        exchange.usage = Some(Usage {
            prompt_tokens: usage.prompt_tokens.unwrap_or(0),
            completion_tokens: usage.completion_tokens.unwrap_or(0),
            cached_tokens: usage.prompt_tokens_details.and_then(|d| d.cached_tokens),
        });
    }
    exchange.timings = body.timings.or(exchange.timings.take());
    let choices = body.choices.unwrap_or_default();
    if choices.is_empty() && !is_chunk {
        return Err(Outcome::Protocol { fault: ProtocolFault::NoChoice });
    }
    for choice in choices {
        match choice.index.unwrap_or(0) {
            0 => fold_choice(exchange, choice, after, is_chunk)?,
            index => return Err(Outcome::Protocol { fault: ProtocolFault::Choice { index } }),
        }
    }
    Ok(())
}

fn fold_choice(
    exchange: &mut Exchange,
    choice: Choice,
    after: Duration,
    is_chunk: bool,
) -> Result<(), Outcome> {
    let is_last = choice.finish_reason.is_some();
    // A completion's chunk with no text is a token that ends inside a character.
    let mut has_output = choice.text.as_ref().is_some_and(|t| !t.is_empty() || !is_last);
    append(&mut exchange.text, choice.text);
    if let Some(message) = choice.delta {
        has_output |= append(&mut exchange.text, message.content);
        has_output |= append(&mut exchange.reasoning, message.reasoning_content);
        has_output |= append(&mut exchange.reasoning, message.reasoning);
        let calls = message.tool_calls.unwrap_or_default();
        has_output |= !calls.is_empty();
        for (at, call) in calls.into_iter().enumerate() {
            fold_call(&mut exchange.tool_calls, call, at, is_chunk)?;
        }
    }
    exchange.finish_reason = choice.finish_reason.or(exchange.finish_reason.take());
    let listed = fold_tokens(&mut exchange.tokens, choice.logprobs, choice.token_ids);
    if has_output || listed > 0 {
        exchange.first_token_after.get_or_insert(after);
        let whole = exchange.usage.map_or(1, |u| u.completion_tokens as u32);
        let tokens = if !is_chunk { whole } else { listed.max(1) };
        exchange.chunks.push(ChunkTime { after, tokens });
    }
    Ok(())
}

fn append(to: &mut String, text: Option<String>) -> bool {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return false };
    to.push_str(&text);
    true
}

fn fold_call(
    calls: &mut Vec<ToolCall>,
    body: CallBody,
    position: usize,
    is_chunk: bool,
) -> Result<(), Outcome> {
    // Servers that leave the index out send a call whole, or its pieces one after the other.
    let guess = match (is_chunk, body.id.as_ref()) {
        (false, _) => position,
        (true, Some(id)) => calls.iter().position(|c| &c.id == id).unwrap_or(calls.len()),
        (true, None) => calls.len().saturating_sub(1),
    };
    let at = body.index.map_or(guess, |i| usize::try_from(i).unwrap_or(usize::MAX));
    if at >= TOOL_CALLS_MAX {
        let fault = ProtocolFault::ToolCalls { max: TOOL_CALLS_MAX };
        return Err(Outcome::Protocol { fault });
    }
    if calls.len() <= at {
        calls.resize_with(at + 1, ToolCall::default);
    }
    let call = &mut calls[at];
    if let Some(id) = body.id.filter(|id| !id.is_empty()) {
        call.id = id;
    }
    if let Some(function) = body.function {
        append(&mut call.name, function.name);
        match function.arguments {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => call.arguments.push_str(&text),
            Some(other) => call.arguments.push_str(&other.to_string()),
        }
    }
    Ok(())
}

/// `token_id:17`, as servers write a token when they are asked for ids.
fn id_in(text: &str) -> Option<u32> {
    text.strip_prefix("token_id:")?.parse().ok()
}

fn fold_tokens(to: &mut Vec<Token>, probs: Option<Logprobs>, ids: Option<Vec<u32>>) -> u32 {
    let from = to.len();
    if let Some(probs) = probs {
        let logprobs = probs.token_logprobs.unwrap_or_default();
        for (at, text) in probs.tokens.unwrap_or_default().into_iter().enumerate() {
            let logprob = logprobs.get(at).copied().flatten();
            to.push(Token { id: id_in(&text), text, logprob });
        }
        for t in probs.content.unwrap_or_default() {
            to.push(Token { id: t.id.or(id_in(&t.token)), text: t.token, logprob: t.logprob });
        }
    }
    for (at, id) in ids.unwrap_or_default().into_iter().enumerate() {
        match to.get_mut(from + at) {
            Some(token) => token.id = Some(id),
            None => to.push(Token { id: Some(id), ..Token::default() }),
        }
    }
    u32::try_from(to.len() - from).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folded(chunks: &[&str]) -> Exchange {
        let mut exchange = Exchange::begin();
        for (at, chunk) in chunks.iter().enumerate() {
            let after = Duration::from_millis(at as u64);
            fold(&mut exchange, chunk.as_bytes(), after, true).unwrap();
        }
        exchange
    }

    #[test]
    fn a_chat_stream_with_reasoning_tool_calls_and_usage() {
        let e = folded(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Hé"}}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"}"}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}"#,
        ]);
        assert_eq!((e.text.as_str(), e.reasoning.as_str()), ("Hé", "hm"));
        assert_eq!(e.tool_calls.len(), 2);
        let call = ToolCall { id: "b".into(), name: "g".into(), arguments: "{}".into() };
        assert_eq!(e.tool_calls[1], call);
        assert_eq!(e.finish_reason.as_deref(), Some("tool_calls"));
        assert_eq!(e.first_token_after, Some(Duration::from_millis(1)), "the role is no token");
        assert_eq!(e.chunks.len(), 4);
        assert_eq!(e.output_tokens(), 9);
        assert_eq!(e.usage.unwrap().cached_tokens, Some(3));
    }

    #[test]
    fn a_completion_stream_counts_tokens_that_end_inside_a_character() {
        let e = folded(&[
            r#"{"choices":[{"text":"a","index":0,"finish_reason":null}]}"#,
            r#"{"choices":[{"text":"","index":0,"finish_reason":null}]}"#,
            r#"{"choices":[{"text":"","index":0,"finish_reason":"length"}]}"#,
        ]);
        assert_eq!(e.chunks.len(), 2);
    }

    #[test]
    fn ids_come_from_any_of_the_three_shapes() {
        let e = folded(&[
            r#"{"choices":[{"text":"a","logprobs":{"tokens":["token_id:5"],"token_logprobs":[-0.5]}}]}"#,
            r#"{"choices":[{"delta":{"content":"b"},"logprobs":{"content":[{"id":6,"token":"b","logprob":-1.0}]}}]}"#,
            r#"{"choices":[{"text":"cd","token_ids":[7,8]}]}"#,
        ]);
        let ids: Vec<_> = e.tokens.iter().map(|t| t.id.unwrap()).collect();
        assert_eq!(ids, [5, 6, 7, 8]);
        assert_eq!(e.tokens[0].logprob, Some(-0.5));
        assert_eq!(e.chunks[2].tokens, 2);
    }

    #[test]
    fn faults_keep_their_class() {
        let outcome = |json: &str, is_chunk| {
            fold(&mut Exchange::begin(), json.as_bytes(), Duration::ZERO, is_chunk).unwrap_err()
        };
        let failed = outcome(r#"{"error":{"message":"no\u001b[2J"}}"#, true);
        assert_eq!(failed, Outcome::Failed { message: "no\\u{1b}[2J".into() });
        assert!(matches!(outcome("{\"choices\"", true), Outcome::Protocol { .. }));
        let none = Outcome::Protocol { fault: ProtocolFault::NoChoice };
        assert_eq!(outcome(r#"{"choices":[]}"#, false), none);
        let other = r#"{"choices":[{"index":1,"text":"x"}]}"#;
        let fault = ProtocolFault::Choice { index: 1 };
        assert_eq!(outcome(other, true), Outcome::Protocol { fault });
        let far = r#"{"choices":[{"delta":{"tool_calls":[{"index":99999999999}]}}]}"#;
        let fault = ProtocolFault::ToolCalls { max: TOOL_CALLS_MAX };
        assert_eq!(outcome(far, true), Outcome::Protocol { fault });
    }

    #[test]
    fn error_bodies_of_many_servers_are_read() {
        assert_eq!(error_words(br#"{"error":{"message":"a"}}"#), "a");
        assert_eq!(error_words(br#"{"error":"b"}"#), "b");
        assert_eq!(error_words(br#"{"detail":"c"}"#), "c");
        assert_eq!(error_words(b" plain\n"), "plain");
        assert_eq!(error_words(b"a\nb \x1b[31mc\0"), "a b \\u{1b}[31mc\\u{0}");
        for nothing in [&b""[..], b" \n", br#"{"error":{"message":""}}"#] {
            assert_eq!(error_words(nothing), "no words with it");
        }
        assert!(error_words(&[b'x'; 5000]).len() < 400);
    }

    /// A 404 of a web server once put its whole page on the terminal.
    #[test]
    fn an_html_error_is_its_title_and_not_its_markup() {
        let page = "<!DOCTYPE HTML>\n<html lang=\"en\"><head><title>Error <b>404</b></TITLE></head><body>x";
        assert_eq!(error_words(page.as_bytes()), "a web page, titled \"Error <b>404</b>\"");
        assert_eq!(error_words(b" <html>\n"), "a web page");
        assert_eq!(error_words("<HTML><title>K\u{212a}".as_bytes()), "a web page");
        assert_eq!(error_words(b"<3 no"), "<3 no");
    }

    fn words() -> impl Strategy<Value = String> {
        let parts = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"choices\"",
            "\"delta\"",
            "\"index\"",
            "\"text\"",
            "0",
            "\"tool_calls\"",
            "\"usage\"",
            "null",
            "-1",
            "1e999",
            "\"a\"",
            "\"error\"",
            "\"content\"",
        ];
        proptest::collection::vec(proptest::sample::select(parts.to_vec()), 0..30)
            .prop_map(|w| w.concat())
    }

    proptest! {
        #[test]
        fn nothing_that_comes_panics(json in words(), bytes in any::<Vec<u8>>(), chunk: bool) {
            let mut exchange = Exchange::begin();
            let _ = fold(&mut exchange, json.as_bytes(), Duration::ZERO, chunk);
            let _ = fold(&mut exchange, &bytes, Duration::ZERO, chunk);
            let _ = error_words(&bytes);
        }
    }
}
