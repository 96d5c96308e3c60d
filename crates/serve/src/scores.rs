//! Log-probabilities, in the shapes of the two endpoints.

use crate::choice::Scored;
use lockstep_flow::{Token, TokenLogprob};
use lockstep_text::TextModel;
use serde_json::{Map, Value, json};

/// JSON has no minus infinity; clients know this number in its place.
const FLOOR: f32 = -9999.0;

/// How tokens are shown.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Knows their text.
    pub text: &'a TextModel,
    /// As `token_id:N` instead.
    pub as_ids: bool,
}

fn number(logprob: f32) -> Value {
    json!(if logprob.is_finite() { logprob.max(FLOOR) } else { FLOOR })
}

impl Names<'_> {
    fn name(&self, token: Token) -> String {
        if self.as_ids { format!("token_id:{token}") } else { self.text.token_text(token) }
    }

    fn chat_token(&self, token: Token, logprob: f32) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("token".into(), self.name(token).into());
        entry.insert("logprob".into(), number(logprob));
        entry.insert("bytes".into(), json!(self.text.token_bytes(token)));
        entry
    }

    /// `{"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}]}`.
    pub fn chat(&self, scored: &[Scored]) -> Value {
        let entry = |s: &Scored| {
            let mut entry = self.chat_token(s.token.token, s.token.logprob);
            let top = s.token.top.iter().map(|(t, l)| Value::Object(self.chat_token(*t, *l)));
            entry.insert("top_logprobs".into(), top.collect());
            Value::Object(entry)
        };
        json!({"content": scored.iter().map(entry).collect::<Vec<Value>>(), "refusal": null})
    }

    /// A dictionary from token to log-probability. Two tokens can have the same text (bytes that
    /// are no character); the likelier one, which comes first, keeps it.
    fn top(&self, entry: &TokenLogprob) -> Value {
        let mut map = Map::new();
        for (token, logprob) in &entry.top {
            map.entry(self.name(*token)).or_insert_with(|| number(*logprob));
        }
        // OpenAI's own answers hold the token itself even where it is not among the best.
        map.entry(self.name(entry.token)).or_insert_with(|| number(entry.logprob));
        Value::Object(map)
    }
}

/// The four parallel lists of `/v1/completions`.
#[derive(Default, Debug)]
pub struct Lists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl Lists {
    /// Adds a prompt's first token, which nothing predicts.
    pub fn first(&mut self, names: &Names<'_>, token: Token) {
        self.tokens.push(names.name(token).into());
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
        self.text_offset.push(json!(0));
    }

    /// Adds a token.
    pub fn push(&mut self, names: &Names<'_>, entry: &TokenLogprob, at_char: usize) {
        self.tokens.push(names.name(entry.token).into());
        self.token_logprobs.push(number(entry.logprob));
        self.top_logprobs.push(names.top(entry));
        self.text_offset.push(json!(at_char));
    }

    /// The object on the wire.
    pub fn to_json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
