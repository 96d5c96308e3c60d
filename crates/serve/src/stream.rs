//! An answer, at once or as server-sent events. Both are made of the same deltas.

use crate::choice::{Choice, Delta};
use crate::error::ApiError;
use crate::run::Run;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use lockstep_flow::{EventKind, Usage};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How an endpoint words its answers.
pub trait Shape: Send + Unpin + 'static {
    /// Chunks that come before anything of a choice; called once a choice, at its first event.
    fn opening(&mut self, index: usize, choice: &Choice) -> Option<Value>;
    /// True where the opening waits until the prompt's log-probabilities are there.
    fn opens_late(&self) -> bool;
    /// A chunk with more of a choice.
    fn chunk(&mut self, index: usize, delta: Delta) -> Value;
    /// The last chunk, where the client asked for it.
    fn usage_chunk(&mut self, usage: &Cost) -> Option<Value>;
}

/// Tokens of a whole answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cost {
    /// Of the prompts, each counted once whatever its number of choices.
    pub prompt_tokens: u64,
    /// Of those, from the prefix cache.
    pub cached_tokens: u64,
    /// Of all choices.
    pub completion_tokens: u64,
    /// Drafts that were checked, and of those the accepted ones.
    pub drafts: (u64, u64),
}

impl Cost {
    /// Sums up. Every `per_prompt` choices in a row share a prompt.
    pub fn of(choices: &[Choice], per_prompt: usize, hidden_tokens: u32) -> Cost {
        let mut cost = Cost::default();
        for (index, choice) in choices.iter().enumerate() {
            let usage = choice.usage();
            let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = usage;
            cost.drafts.0 += u64::from(usage.drafted_tokens);
            cost.drafts.1 += u64::from(usage.accepted_tokens);
            if index.is_multiple_of(per_prompt) {
                cost.prompt_tokens += u64::from(prompt_tokens);
                cost.cached_tokens += u64::from(cached_tokens);
            }
            cost.completion_tokens += u64::from(completion_tokens.saturating_sub(hidden_tokens));
        }
        cost
    }

    /// OpenAI's `usage` object.
    pub fn to_json(self) -> Value {
        let mut usage = serde_json::json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        });
        if let (drafted @ 1.., accepted) = self.drafts {
            usage["completion_tokens_details"] = serde_json::json!({
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            });
        }
        usage
    }
}

/// A running answer.
pub struct Answer {
    /// Its sequences.
    pub run: Run,
    /// One a sequence.
    pub choices: Vec<Choice>,
    /// Choices in a row that share a prompt.
    pub per_prompt: usize,
    /// Drop what is generated: the client asked for none (`max_tokens: 0` with `echo`), and a
    /// sequence makes at least one.
    pub prompt_only: bool,
}

impl Answer {
    /// What it cost.
    pub fn cost(&self) -> Cost {
        Cost::of(&self.choices, self.per_prompt, u32::from(self.prompt_only))
    }

    fn take(&mut self, index: usize, event: EventKind) -> Result<Delta, ApiError> {
        let (mut delta, complete) = self.choices[index].take(event)?;
        if complete {
            self.run.end(index);
        }
        if self.prompt_only {
            let finish = delta.finish.map(|_| crate::choice::Finish::Length);
            delta = Delta { finish, ..Delta::default() };
        }
        Ok(delta)
    }

    /// Runs it to its end: what each choice made.
    pub async fn collect(&mut self) -> Result<Vec<Delta>, ApiError> {
        let mut made: Vec<Delta> = self.choices.iter().map(|_| Delta::default()).collect();
        while let Some((index, event)) = self.run.next().await {
            let delta = self.take(index, event)?;
            made[index].merge(delta);
        }
        Ok(made)
    }

    /// Runs it as server-sent events.
    pub fn into_stream<S: Shape>(self, shape: S) -> Response {
        let opened = vec![false; self.choices.len()];
        let body = Body::new(Events { answer: Some(self), shape, opened, page: Vec::new() });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            // Tells nginx not to gather the events.
            (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        (headers, body).into_response()
    }
}

/// Bytes after which events that are ready are sent on rather than gathered.
const PAGE_BYTES: usize = 32 << 10;

/// The body of a stream. Dropped with its connection, and with it the sequences.
struct Events<S> {
    /// `None` once the last event is out.
    answer: Option<Answer>,
    shape: S,
    opened: Vec<bool>,
    /// What has not been sent yet.
    page: Vec<u8>,
}

impl<S: Shape> Events<S> {
    fn put(&mut self, value: &Value) {
        self.page.extend_from_slice(b"data: ");
        self.page.extend_from_slice(value.to_string().as_bytes());
        self.page.extend_from_slice(b"\n\n");
    }

    fn open(&mut self, answer: &Answer, index: usize, event: &EventKind) {
        let late = self.shape.opens_late()
            && matches!(event, EventKind::Started { .. } | EventKind::Prompt { .. });
        if !self.opened[index] && !late {
            self.opened[index] = true;
            if let Some(chunk) = self.shape.opening(index, &answer.choices[index]) {
                self.put(&chunk);
            }
        }
    }

    /// Takes an event; an error ends the stream with its own event.
    fn step(&mut self, answer: &mut Answer, index: usize, event: EventKind) -> Result<(), ()> {
        self.open(answer, index, &event);
        match answer.take(index, event) {
            Ok(delta) if delta.is_empty() => Ok(()),
            Ok(delta) => {
                let chunk = self.shape.chunk(index, delta);
                self.put(&chunk);
                Ok(())
            }
            Err(e) => {
                self.put(&e.to_json());
                self.page.extend_from_slice(b"data: [DONE]\n\n");
                Err(())
            }
        }
    }

    fn close(&mut self, answer: &Answer) {
        if let Some(chunk) = self.shape.usage_chunk(&answer.cost()) {
            self.put(&chunk);
        }
        self.page.extend_from_slice(b"data: [DONE]\n\n");
    }
}

impl<S: Shape> HttpBody for Events<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        while let Some(mut answer) = this.answer.take() {
            match answer.run.poll_next(cx) {
                Poll::Ready(Some((index, event))) => {
                    if this.step(&mut answer, index, event).is_ok() {
                        this.answer = Some(answer);
                    }
                }
                Poll::Ready(None) => this.close(&answer),
                Poll::Pending => {
                    this.answer = Some(answer);
                    if this.page.is_empty() {
                        return Poll::Pending;
                    }
                    break;
                }
            }
            if this.page.len() >= PAGE_BYTES {
                break;
            }
        }
        if this.page.is_empty() {
            return Poll::Ready(None);
        }
        let page = std::mem::take(&mut this.page);
        Poll::Ready(Some(Ok(Frame::data(page.into()))))
    }
}
