//! A client of any server that speaks the OpenAI API over HTTP/1.1.
//!
//! It keeps connections alive, reads streams however they are cut up, tells apart every way an
//! answer can go wrong, and bounds whatever a server can make it hold. It runs on any tokio
//! runtime.

mod answer;
mod connection;
mod exchange;
mod reader;
mod redirect;
mod sse;
mod target;

pub use answer::{TOOL_CALLS_MAX, shorten};
pub use exchange::{
    Abort, ChunkTime, Exchange, NoAnswer, NoModel, NoServer, Outcome, Phase, ProtocolFault,
    Reading, Token, ToolCall, Usage,
};
pub use sse::{Event, EventTooLarge, SseReader};
pub use target::{Target, TargetError, Timeouts};

use answer::{NO_WORDS, error_words};
use connection::{Connection, Pool, SendError};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of an answer, at most.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Retries of a request that met a connection which had been closed before it was sent.
const UNSENT_MAX: usize = 3;
/// How long a list of models may take: no request's answer is waited for behind it.
const MODELS_TIMEOUT: Duration = Duration::from_secs(20);

/// Which endpoint generates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Call {
    /// The path.
    pub fn path(self) -> &'static str {
        match self {
            Call::Chat => "/v1/chat/completions",
            Call::Completions => "/v1/completions",
        }
    }
}

/// A plain answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Where it leads instead, in words.
    pub redirect: Option<String>,
}

impl Reply {
    /// The body as JSON; `None` where it is something else.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The server's words in an error's body, or where it leads instead.
    pub fn words(&self) -> String {
        self.redirect.clone().unwrap_or_else(|| error_words(&self.body))
    }
}

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    target: Arc<Target>,
    pool: Arc<Pool>,
}

impl Client {
    /// A client of `target`. Opens nothing yet.
    pub fn new(target: Target) -> Client {
        Client { target: Arc::new(target), pool: Arc::new(Pool::default()) }
    }

    /// The server.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The same client for the first model of `/v1/models`, where its target names none.
    pub async fn discover(self) -> Result<Client, Outcome> {
        if self.target.model.is_some() {
            return Ok(self);
        }
        let reply = self.models().await?;
        let models = reply.json().unwrap_or(Value::Null);
        let id = models["data"][0]["id"].as_str().map(str::to_owned);
        let Some(id) = id.filter(|_| reply.status == 200) else {
            return Err(Outcome::Status { status: reply.status, message: reply.words() });
        };
        let target = Target { model: Some(id), ..(*self.target).clone() };
        Ok(Client { target: Arc::new(target), pool: self.pool })
    }

    /// `/v1/models`, whatever the status, within [`Client::models_limit`].
    pub async fn models(&self) -> Result<Reply, Outcome> {
        let late = Err(Outcome::Timeout { phase: Phase::Total });
        timeout(self.models_limit(), self.get("/v1/models")).await.unwrap_or(late)
    }

    /// How long a list of models is waited for.
    pub fn models_limit(&self) -> Duration {
        self.target.timeouts.total.min(self.target.timeouts.plain).min(MODELS_TIMEOUT)
    }

    /// GET, whatever the status. The whole answer has to be here in time, however it is cut up.
    pub async fn get(&self, path: &str) -> Result<Reply, Outcome> {
        let limit = self.target.timeouts.total.min(self.target.timeouts.plain);
        self.plain(Method::GET, path, Bytes::new(), limit).await
    }

    /// POST of JSON, whatever the status.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply, Outcome> {
        let limit = self.target.timeouts.total;
        self.plain(Method::POST, path, body.to_string().into(), limit).await
    }

    /// DELETE, whatever the status.
    pub async fn delete(&self, path: &str) -> Result<Reply, Outcome> {
        self.plain(Method::DELETE, path, Bytes::new(), self.target.timeouts.total).await
    }

    /// One chat completion. A body without `model` gets the target's.
    pub async fn chat(&self, body: &Value, reading: Reading) -> Exchange {
        self.exchange(Call::Chat, self.encode(body), reading).await
    }

    /// One text completion. A body without `model` gets the target's.
    pub async fn completions(&self, body: &Value, reading: Reading) -> Exchange {
        self.exchange(Call::Completions, self.encode(body), reading).await
    }

    /// A body as it is sent.
    pub fn encode(&self, body: &Value) -> Bytes {
        let mut body = body.clone();
        if let (Some(fields), Some(model)) = (body.as_object_mut(), &self.target.model) {
            fields.entry("model").or_insert_with(|| model.as_str().into());
        }
        body.to_string().into()
    }

    /// One completion from a body that is encoded already. Its outcome says how it went: this
    /// never fails otherwise. Dropping the future closes the connection.
    pub async fn exchange(&self, call: Call, body: Bytes, reading: Reading) -> Exchange {
        let mut exchange = Exchange::begin();
        let work = self.converse(call, body, reading, &mut exchange);
        let result = timeout(self.target.timeouts.total, work).await;
        exchange.outcome = match result {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(outcome)) => outcome,
            Err(_) => Outcome::Timeout { phase: Phase::Total },
        };
        if exchange.ended_after == Duration::ZERO || !exchange.is_done() {
            exchange.ended_after = exchange.began_at.elapsed();
        }
        exchange
    }

    async fn converse(
        &self,
        call: Call,
        body: Bytes,
        reading: Reading,
        exchange: &mut Exchange,
    ) -> Result<(), Outcome> {
        let began_at = exchange.began_at;
        let on_sent = |e: &mut Exchange| e.sent_after = Some(began_at.elapsed());
        let request = self.request(Method::POST, call.path(), body)?;
        let (connection, response) = self.send(request, || on_sent(exchange)).await?;
        exchange.first_byte_after = Some(began_at.elapsed());
        exchange.status = Some(response.status().as_u16());
        if response.status() != StatusCode::OK {
            return Err(self.refusal(call.path(), response).await);
        }
        if reader::read(response, self.target.timeouts.idle, reading, exchange).await? {
            self.pool.give(connection);
        }
        Ok(())
    }

    /// Sends a request on a live connection and waits for the head of its answer.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        mut on_sent: impl FnMut(),
    ) -> Result<(Connection, Response<Incoming>), Outcome> {
        let limits = self.target.timeouts;
        for _ in 0..UNSENT_MAX {
            let taken = timeout(limits.connect, self.pool.take(&self.target.authority)).await;
            let mut connection = taken
                .map_err(|_| Outcome::Timeout { phase: Phase::Connect })?
                .map_err(|why| Outcome::Connect { why })?;
            on_sent();
            let spare = connection.is_used().then(|| request.clone());
            match timeout(limits.idle, connection.send(request)).await {
                Ok(Ok(response)) => return Ok((connection, response)),
                Ok(Err(SendError::Unsent(back))) => request = *back,
                Ok(Err(SendError::Sent(e))) => match spare {
                    // Closed since its last answer, before a byte of this one: as good as unsent.
                    Some(spare) if is_closed(&e) => {
                        self.pool.close();
                        request = spare;
                    }
                    _ => return Err(http_fault(&e)),
                },
                Err(_) => return Err(Outcome::Timeout { phase: Phase::FirstByte }),
            }
        }
        let why = "the server closes connections before they are used".to_owned();
        Err(Outcome::Connect { why })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Outcome> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.target.prefix))
            .header(HOST, &self.target.authority)
            .header(ACCEPT_ENCODING, "identity");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.target.api_key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(Full::new(body)).map_err(|e| Outcome::Connect { why: e.to_string() })
    }

    async fn plain(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Reply, Outcome> {
        let request = self.request(method, path, body)?;
        let whole = async {
            let (connection, response) = self.send(request, || ()).await?;
            let status = response.status().as_u16();
            let redirect = redirect::words(&self.target, path, &response);
            let body = collect(response.into_body(), ANSWER_BYTES_MAX).await?;
            self.pool.give(connection);
            Ok(Reply { status, body, redirect })
        };
        timeout(limit, whole).await.unwrap_or(Err(Outcome::Timeout { phase: Phase::Total }))
    }

    async fn refusal(&self, path: &str, response: Response<Incoming>) -> Outcome {
        let status = response.status().as_u16();
        let retry_after_s = retry_after(response.headers());
        let redirect = redirect::words(&self.target, path, &response);
        let read =
            timeout(self.target.timeouts.idle, collect(response.into_body(), ERROR_BYTES_MAX));
        let message = match read.await {
            Ok(Ok(body)) => redirect.unwrap_or_else(|| error_words(&body)),
            _ => redirect.unwrap_or_else(|| NO_WORDS.to_owned()),
        };
        match status {
            429 | 503 => Outcome::Refused { status, retry_after_s, message },
            _ => Outcome::Status { status, message },
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

async fn collect(body: Incoming, bytes_max: usize) -> Result<Vec<u8>, Outcome> {
    let whole = Limited::new(body, bytes_max).collect().await.map_err(|e| {
        if e.is::<LengthLimitError>() {
            return Outcome::Protocol { fault: ProtocolFault::TooLarge { bytes_max } };
        }
        Outcome::Cut { why: e.to_string() }
    })?;
    Ok(whole.to_bytes().into())
}

/// Whether a connection ended before a byte of the answer came.
fn is_closed(e: &hyper::Error) -> bool {
    let io = std::error::Error::source(e).and_then(|s| s.downcast_ref::<std::io::Error>());
    let is_reset = io.is_some_and(|e| {
        matches!(e.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    });
    e.is_incomplete_message() || is_reset
}

/// What an error of HTTP means for the exchange.
fn http_fault(e: &hyper::Error) -> Outcome {
    let why = std::error::Error::source(e).map_or(e.to_string(), |s| format!("{e}: {s}"));
    if e.is_parse() || e.is_parse_too_large() {
        Outcome::Protocol { fault: ProtocolFault::Http { why } }
    } else {
        Outcome::Cut { why }
    }
}
