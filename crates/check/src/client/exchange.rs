//! One request and what came of it.

use core::fmt;
use std::time::{Duration, Instant};

/// How an exchange ended. Classes are kept apart: a refusal is not an error, a cut not a timeout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The whole answer is here.
    Done,
    /// This client stopped reading, as it was asked to.
    Aborted,
    /// 429 or 503: the server declines for now.
    Refused { status: u16, retry_after_s: Option<u64>, message: String },
    /// Any other status but 200.
    Status { status: u16, message: String },
    /// An error in the middle of a stream.
    Failed { message: String },
    /// Nothing came in time.
    Timeout { phase: Phase },
    /// The connection or the body ended before the answer did.
    Cut { why: String },
    /// The answer is not what the API promises.
    Protocol { fault: ProtocolFault },
    /// No connection.
    Connect { why: String },
}

/// What took too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// To a connection.
    Connect,
    /// To the first byte of an answer.
    FirstByte,
    /// Between two reads.
    Idle,
    /// All in all.
    Total,
}

/// How an answer breaks the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProtocolFault {
    /// Not JSON, or not of the promised shape: what the parser said, and the beginning of it.
    Json { why: String, found: String },
    /// More than may be read.
    TooLarge { bytes_max: usize },
    /// A choice that was not asked for.
    Choice { index: u64 },
    /// More tool calls than may be.
    ToolCalls { max: usize },
    /// No choice in a whole answer.
    NoChoice,
    /// HTTP itself.
    Http { why: String },
}

/// What every command says of a server that takes a connection and lists no model.
#[derive(Clone, Copy, Debug)]
pub struct NoModel<'a> {
    /// Where.
    pub url: &'a str,
    /// What came in the place of a list.
    pub outcome: &'a Outcome,
}

impl fmt::Display for NoModel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoModel { url, outcome } = self;
        write!(f, "{url} names no model at /v1/models ({outcome})")?;
        match outcome {
            // Another address is to be given, which it says.
            Outcome::Status { status: 300..400, .. } => Ok(()),
            _ => f.write_str("; name one with --model, if a server of the OpenAI API is there"),
        }
    }
}

/// What every command says where nothing listens.
#[derive(Clone, Copy, Debug)]
pub struct NoServer<'a> {
    /// Where.
    pub url: &'a str,
    /// The system's words.
    pub why: &'a str,
}

impl fmt::Display for NoServer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoServer { url, why } = self;
        write!(f, "no server answers at {url}: {why}; is it running there?")?;
        // What an address that names no port comes to.
        let authority = url.split("://").last().and_then(|rest| rest.split('/').next());
        if authority.is_some_and(|a| a.ends_with(":80")) {
            f.write_str(" (port 80 is asked where an address names none)")?;
        }
        Ok(())
    }
}

impl Outcome {
    /// Whether nothing answered, rather than a server with other words or something else than one.
    pub fn is_silent(&self) -> bool {
        matches!(self, Outcome::Connect { .. } | Outcome::Timeout { .. } | Outcome::Cut { .. })
    }
}

/// What every command says of a server that takes a connection and no more.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer<'a> {
    /// Where.
    pub url: &'a str,
    /// How long was waited.
    pub seconds: u64,
}

impl fmt::Display for NoAnswer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoAnswer { url, seconds } = self;
        write!(f, "the server at {url} does not answer within {seconds} s")
    }
}

impl fmt::Display for ProtocolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolFault::Json { why, found } => write!(f, "{why}, in {found:?}"),
            ProtocolFault::TooLarge { bytes_max } => write!(f, "more than {bytes_max} bytes"),
            ProtocolFault::Choice { index } => write!(f, "choice {index}, which nobody asked for"),
            ProtocolFault::ToolCalls { max } => write!(f, "more than {max} tool calls"),
            ProtocolFault::NoChoice => f.write_str("an answer without a choice"),
            ProtocolFault::Http { why } => write!(f, "HTTP: {why}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Aborted => f.write_str("aborted by this client"),
            Outcome::Refused { status, message, .. } => write!(f, "refused ({status}): {message}"),
            Outcome::Status { status, message } => write!(f, "status {status}: {message}"),
            Outcome::Failed { message } => write!(f, "failed in the stream: {message}"),
            Outcome::Timeout { phase } => f.write_str(match phase {
                Phase::Connect => "timeout: no connection",
                Phase::FirstByte => "timeout: no first byte",
                Phase::Idle => "timeout: the stream stalled",
                Phase::Total => "timeout: longer than an exchange may take",
            }),
            Outcome::Cut { why } => write!(f, "cut: {why}"),
            Outcome::Protocol { fault } => write!(f, "not the API: {fault}"),
            Outcome::Connect { why } => write!(f, "no connection: {why}"),
        }
    }
}

/// A tool call as it stands in the answer.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ToolCall {
    /// Its id; empty where the server gives none.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as text, parsed by nobody.
    pub arguments: String,
}

/// A token of the answer, where the server tells.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Token {
    /// Its id.
    pub id: Option<u32>,
    /// Its text; empty where only ids are told.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: Option<f64>,
}

/// The `usage` of an answer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// Prompt tokens from a prefix cache, where the server tells.
    pub cached_tokens: Option<u64>,
}

/// When a chunk with output came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkTime {
    /// Since the exchange began.
    pub after: Duration,
    /// Tokens in it: counted where the server lists them, else 1.
    pub tokens: u32,
}

/// A request and all that is known of its answer, whatever the outcome.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    /// How it ended.
    pub outcome: Outcome,
    /// The HTTP status, once there is one.
    pub status: Option<u16>,
    /// Content, or the text of a completion.
    pub text: String,
    /// Reasoning that the server set apart.
    pub reasoning: String,
    /// Tool calls, in the order of their indices.
    pub tool_calls: Vec<ToolCall>,
    /// Why the answer ended, in the server's word.
    pub finish_reason: Option<String>,
    /// Counts of tokens.
    pub usage: Option<Usage>,
    /// Tokens with ids or logprobs, where they were asked for and told.
    pub tokens: Vec<Token>,
    /// The server's own measurements (llama.cpp's `timings`), as they stand.
    pub timings: Option<serde_json::Value>,
    /// `[DONE]` came.
    pub has_done_marker: bool,
    /// When the exchange began, before any connection was looked for.
    pub began_at: Instant,
    /// When the request was handed to a connection.
    pub sent_after: Option<Duration>,
    /// When the head of the answer came.
    pub first_byte_after: Option<Duration>,
    /// When the first output came.
    pub first_token_after: Option<Duration>,
    /// When the last of the answer came.
    pub ended_after: Duration,
    /// Chunks with output; of an answer that is not streamed, one.
    pub chunks: Vec<ChunkTime>,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// The first of them, as many as were asked for.
    pub raw: Vec<u8>,
}

impl Exchange {
    /// An exchange that begins now.
    pub(crate) fn begin() -> Exchange {
        Exchange {
            outcome: Outcome::Done,
            status: None,
            text: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
            finish_reason: None,
            usage: None,
            tokens: Vec::new(),
            timings: None,
            has_done_marker: false,
            began_at: Instant::now(),
            sent_after: None,
            first_byte_after: None,
            first_token_after: None,
            ended_after: Duration::ZERO,
            chunks: Vec::new(),
            body_bytes: 0,
            raw: Vec::new(),
        }
    }

    /// Whether the whole answer is here.
    pub fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    /// Output tokens: the server's count, else what the chunks held.
    pub fn output_tokens(&self) -> u64 {
        self.usage.map_or_else(
            || self.chunks.iter().map(|c| u64::from(c.tokens)).sum(),
            |u| u.completion_tokens,
        )
    }
}

/// What to do with an answer beside reading it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Stop reading and close the connection there.
    pub abort: Option<Abort>,
    /// Bytes of the body to keep in [`Exchange::raw`].
    pub raw_bytes_max: usize,
}

/// Where to stop reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abort {
    /// After so many chunks with output.
    Chunks(u32),
    /// After so many bytes of the body.
    Bytes(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_server_redirects_no_model_s_name_helps() {
        let said = |status| {
            let outcome = Outcome::Status { status, message: "it redirects".into() };
            NoModel { url: "http://a:1", outcome: &outcome }.to_string()
        };
        assert!(said(302).ends_with("(status 302: it redirects)"));
        assert!(said(404).contains("--model"));
    }

    /// What was found: `status HOST` said that nothing answers at HOST, and not at which port.
    #[test]
    fn the_port_that_an_address_does_not_name_is_said() {
        let said = |url| NoServer { url, why: "refused" }.to_string();
        for url in ["http://a:80", "http://a:80/x", "http://[::1]:80"] {
            assert!(said(url).ends_with("(port 80 is asked where an address names none)"));
        }
        for url in ["http://a:8080", "http://a:30001/x:80"] {
            assert!(said(url).ends_with("is it running there?"));
        }
    }
}
