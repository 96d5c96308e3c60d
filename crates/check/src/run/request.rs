//! Requests as they are sent, and answers as they are judged.

use crate::client::{Exchange, Outcome};
use crate::dialogue::{Kind, Session, tools};
use crate::judge::{Call, Reply, Verdict};
use serde_json::{Value, json};

/// The body of a step's request. A `salt` stands in front of everything, so that no prefix is
/// shared with a request of another salt.
pub fn body(session: &Session, step: usize, tokens_max: u32, stream: bool, salt: &str) -> Value {
    let mut messages = session.messages[..session.steps[step].messages].to_vec();
    if !salt.is_empty() {
        let system = messages[0]["content"].as_str().unwrap_or("").to_owned();
        messages[0]["content"] = format!("({salt}) {system}").into();
    }
    let mut body = json!({
        "messages": messages,
        "temperature": 0,
        "max_tokens": tokens_max,
        "stream": stream,
    });
    if session.kind == Kind::Report {
        body["tools"] = tools();
    }
    body
}

/// What came of it: an answer to judge, or a verdict right away.
pub fn reply(exchange: Exchange) -> Result<Reply, Verdict> {
    match &exchange.outcome {
        Outcome::Done if exchange.finish_reason.is_none() && !exchange.has_done_marker => {
            Err(Verdict::Error { what: "the answer ended without a finish_reason".into() })
        }
        Outcome::Done => Ok(Reply {
            text: exchange.text,
            reasoning: exchange.reasoning,
            calls: exchange
                .tool_calls
                .into_iter()
                .map(|c| Call { name: c.name, arguments: c.arguments })
                .collect(),
            finish: exchange.finish_reason,
        }),
        Outcome::Aborted => Err(Verdict::Aborted),
        Outcome::Refused { .. } => Err(Verdict::Refused),
        Outcome::Timeout { .. } => Err(Verdict::Timeout),
        other => Err(Verdict::Error { what: other.to_string() }),
    }
}
