//! The same requests as plain prompts of `/v1/completions`. What the chat endpoint adds to a model
//! is gone by this way: templates of the request's own, parsers of calls and of reasoning.

use super::request;
use crate::client::{Client, Outcome, Reply};
use crate::dialogue::{Session, Want};
use serde_json::{Value, json};

/// Where the next speaker begins, an answer to a prompt of [`Writer::Words`] has ended.
const SPEAKERS: [&str; 3] = ["\nUser:", "\nTool:", "\nSystem:"];

/// Who turns messages into a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// The server, as token ids: `/tokenize` with messages (ours, vLLM).
    Ids,
    /// The server, as text: `/apply-template` (llama.cpp).
    Template,
    /// This client, with a speaker's name before each message: for servers that do neither.
    Words,
}

impl Writer {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Writer::Ids => "as token ids of the server's own template",
            Writer::Template => "as text of the server's own template",
            Writer::Words => "in words, for the server writes no template out",
        }
    }
}

/// Prompts of all sessions' requests.
#[derive(Clone, PartialEq, Debug)]
pub struct Prompts {
    /// Who wrote them.
    pub writer: Writer,
    /// By session and by request, as text or as ids.
    by_session: Vec<Vec<Value>>,
}

impl Prompts {
    /// The body of a step's request.
    pub fn body(&self, session: &Session, step: usize, tokens_max: u32, stream: bool) -> Value {
        let mut body = json!({
            "prompt": self.by_session[session.id as usize][step],
            "temperature": 0,
            "max_tokens": tokens_max,
            "stream": stream,
        });
        if self.writer == Writer::Words {
            body["stop"] = json!(SPEAKERS);
        }
        body
    }
}

/// Sessions as they can be asked by way of `/v1/completions`, with their prompts: what is right at
/// a step that calls a tool is no text, so that those steps are left out.
pub async fn write(
    client: &Client,
    sessions: &[Session],
) -> Result<(Vec<Session>, Prompts), Outcome> {
    let sessions: Vec<Session> = sessions.iter().map(without_calls).collect();
    let first = sessions.iter().find(|s| !s.steps.is_empty());
    let writer = match first {
        Some(session) => writer(client, session).await?,
        None => Writer::Words,
    };
    let mut by_session = Vec::new();
    for session in &sessions {
        let mut prompts = Vec::new();
        for step in 0..session.steps.len() {
            prompts.push(prompt(client, writer, session, step).await?);
        }
        by_session.push(prompts);
    }
    Ok((sessions, Prompts { writer, by_session }))
}

fn without_calls(session: &Session) -> Session {
    let mut session = session.clone();
    session.steps.retain(|step| !matches!(step.want, Want::Calls(_)));
    session
}

/// The best writer that the server has.
async fn writer(client: &Client, session: &Session) -> Result<Writer, Outcome> {
    for writer in [Writer::Ids, Writer::Template] {
        let answer = asked(client, writer, session, 0).await?;
        if written(writer, &answer).is_some() {
            return Ok(writer);
        }
    }
    Ok(Writer::Words)
}

async fn prompt(
    client: &Client,
    writer: Writer,
    session: &Session,
    step: usize,
) -> Result<Value, Outcome> {
    if writer == Writer::Words {
        return Ok(in_words(&session.messages[..session.steps[step].messages]).into());
    }
    let answer = asked(client, writer, session, step).await?;
    let status = answer.status;
    written(writer, &answer).ok_or_else(|| Outcome::Status { status, message: answer.words() })
}

/// Has the server write a prompt.
async fn asked(
    client: &Client,
    writer: Writer,
    session: &Session,
    step: usize,
) -> Result<Reply, Outcome> {
    let chat = request::body(session, step, 1, false, "");
    let mut body = json!({"messages": chat["messages"], "add_generation_prompt": true});
    if let Some(model) = &client.target().model {
        body["model"] = model.as_str().into();
    }
    if let Some(tools) = chat.get("tools") {
        body["tools"] = tools.clone();
    }
    let path = if writer == Writer::Ids { "/tokenize" } else { "/apply-template" };
    client.post(path, &body).await
}

/// The prompt in an answer; `None` where there is none: llama.cpp's `/tokenize` reads no messages
/// and answers with an empty list.
fn written(writer: Writer, answer: &Reply) -> Option<Value> {
    let json = answer.json().filter(|_| answer.status == 200)?;
    match writer {
        Writer::Ids => {
            let ids = json["tokens"].as_array().filter(|ids| !ids.is_empty())?;
            ids.iter().all(Value::is_u64).then(|| json["tokens"].clone())
        }
        Writer::Template => {
            json["prompt"].as_str().filter(|text| !text.is_empty()).map(Value::from)
        }
        Writer::Words => None,
    }
}

/// Messages with their speakers' names, up to where the assistant speaks next.
fn in_words(messages: &[Value]) -> String {
    let mut text = String::new();
    for message in messages {
        let speaker = match message["role"].as_str() {
            Some("system") => "System",
            Some("user") => "User",
            Some("tool") => "Tool",
            _ => "Assistant",
        };
        let content = message["content"].as_str().unwrap_or("");
        let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
            let part = |name: &str| call["function"][name].as_str().unwrap_or("");
            format!("{}({})", part("name"), part("arguments"))
        });
        let said: Vec<String> =
            [content.to_owned()].into_iter().filter(|c| !c.is_empty()).chain(calls).collect();
        text.push_str(&format!("{speaker}: {}\n\n", said.join("\n")));
    }
    text + "Assistant:"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::{Kind, Sizes, make};

    const SIZES: Sizes = Sizes { context_tokens: 200, rounds: 3, answer_tokens_max: 100 };

    #[test]
    fn words_hold_all_that_was_said_and_end_where_the_assistant_speaks() {
        for kind in Kind::ALL {
            let session = without_calls(&make(3, 5, kind, SIZES));
            assert!(!session.steps.is_empty());
            for step in &session.steps {
                assert!(!matches!(step.want, Want::Calls(_)));
                let text = in_words(&session.messages[..step.messages]);
                assert!(text.starts_with("System: ") && text.ends_with("\n\nAssistant:"), "{text}");
                if let Want::Codes(codes) = &step.want {
                    assert!(codes.iter().all(|code| text.contains(code)), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_prompt_is_only_what_looks_like_one() {
        let reply = |status, body: &str| Reply { status, body: body.into(), redirect: None };
        let ids = written(Writer::Ids, &reply(200, r#"{"tokens": [1, 2], "count": 2}"#));
        assert_eq!(ids, Some(json!([1, 2])));
        for (status, body) in
            [(200, r#"{"tokens": []}"#), (200, r#"{"tokens": ["a"]}"#), (404, r#"{"tokens": [1]}"#)]
        {
            assert_eq!(written(Writer::Ids, &reply(status, body)), None, "{body}");
        }
        let text = written(Writer::Template, &reply(200, r#"{"prompt": "<s>a"}"#));
        assert_eq!(text, Some(json!("<s>a")));
        assert_eq!(written(Writer::Template, &reply(200, "{}")), None);
    }
}
