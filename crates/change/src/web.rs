//! Asking servers, for code that waits.

use crate::fault::ChangeError;
use lockstep_check::client::{Client, Outcome, Phase, Reply, Target as Address, Timeouts};
use serde_json::Value;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long an operator's question may take.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(120),
    total: Duration::from_secs(180),
    plain: Duration::from_secs(180),
};

/// How long the first questions may take: nothing is on its way yet that an answer may wait for.
const FIRST: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(15),
    total: Duration::from_secs(15),
    plain: Duration::from_secs(15),
};

/// A server's operator endpoints, and its API.
pub struct Web {
    runtime: Runtime,
    admin: Client,
    api: Client,
    url: String,
    keys: Keys,
    timeouts: Timeouts,
}

/// Keys of a server.
#[derive(Clone, Default, Debug)]
pub struct Keys {
    /// For requests.
    pub api: Option<String>,
    /// For the admin routes; the API key where it is none.
    pub admin: Option<String>,
}

impl Web {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// The address or a key cannot be sent.
    pub fn new(url: &str, keys: &Keys) -> Result<Web, ChangeError> {
        Web::within(url, keys, TIMEOUTS)
    }

    /// The same for the first questions, whose answers are not waited for as long.
    ///
    /// # Errors
    /// As for [`Web::new`].
    pub fn first(url: &str, keys: &Keys) -> Result<Web, ChangeError> {
        Web::within(url, keys, FIRST)
    }

    fn within(url: &str, keys: &Keys, timeouts: Timeouts) -> Result<Web, ChangeError> {
        let fault = |why: String| ChangeError::Address { why };
        let address = |key: Option<&str>| -> Result<Address, ChangeError> {
            let address = Address::parse(url).map_err(|e| fault(e.to_string()))?;
            let address = address.with_api_key(key).map_err(|e| fault(e.to_string()))?;
            Ok(address.with_timeouts(timeouts))
        };
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|e| {
                ChangeError::Program { program: "the client".into(), what: e.to_string() }
            })?;
        let admin = Client::new(address(keys.admin.as_deref().or(keys.api.as_deref()))?);
        let api = Client::new(address(keys.api.as_deref())?);
        Ok(Web { runtime, admin, api, url: url.into(), keys: keys.clone(), timeouts })
    }

    /// Another server, with the same keys and patience.
    ///
    /// # Errors
    /// The address cannot be sent.
    pub fn beside(&self, url: &str) -> Result<Web, ChangeError> {
        Web::within(url, &self.keys, self.timeouts)
    }

    /// The same server for a question whose answer is not waited for as long.
    ///
    /// # Errors
    /// As for [`Web::new`].
    pub fn hasty(&self) -> Result<Web, ChangeError> {
        Web::within(&self.url, &self.keys, FIRST)
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The runtime that its questions run on.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A client of the API; it shares its connections.
    pub fn api(&self) -> Client {
        self.api.clone()
    }

    /// A client of the API for load, whose answers may take so many seconds.
    pub fn client(&self, seconds: u64) -> Client {
        let limit = Duration::from_secs(seconds.max(1));
        let timeouts = Timeouts { idle: limit, total: limit, ..TIMEOUTS };
        Client::new(self.api.target().clone().with_timeouts(timeouts))
    }

    /// GET, whatever the status.
    ///
    /// # Errors
    /// No answer.
    pub fn get(&self, path: &str) -> Result<Reply, ChangeError> {
        let asked = self.runtime.block_on(self.admin.get(path));
        asked.map_err(|outcome| self.unanswered(path, outcome))
    }

    /// GET of JSON with status 200.
    ///
    /// # Errors
    /// Anything else.
    pub fn get_json(&self, path: &str) -> Result<Value, ChangeError> {
        let reply = self.well(path, self.runtime.block_on(self.admin.get(path)))?;
        self.json(path, reply)
    }

    /// POST of JSON, answered with a status of 2xx and JSON.
    ///
    /// # Errors
    /// Anything else, with the server's words.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, ChangeError> {
        let reply = self.post(path, body)?;
        self.json(path, reply)
    }

    /// POST of JSON, answered with a status of 2xx.
    ///
    /// # Errors
    /// Anything else, with the server's words.
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply, ChangeError> {
        let asked = self.runtime.block_on(self.admin.post(path, body));
        self.well(path, asked)
    }

    /// DELETE, answered with a status of 2xx.
    ///
    /// # Errors
    /// Anything else, with the server's words.
    pub fn delete(&self, path: &str) -> Result<Reply, ChangeError> {
        let asked = self.runtime.block_on(self.admin.delete(path));
        self.well(path, asked)
    }

    fn well(&self, path: &str, asked: Result<Reply, Outcome>) -> Result<Reply, ChangeError> {
        let reply = asked.map_err(|outcome| self.unanswered(path, outcome))?;
        if (200..300).contains(&reply.status) {
            return Ok(reply);
        }
        let what = format!("answered {}: {}", reply.status, reply.words());
        Err(ChangeError::Answer { url: self.at(path), what })
    }

    fn json(&self, path: &str, reply: Reply) -> Result<Value, ChangeError> {
        reply.json().ok_or_else(|| {
            let what = format!("answered with something else than JSON: {}", reply.words());
            ChangeError::Answer { url: self.at(path), what }
        })
    }

    fn unanswered(&self, path: &str, outcome: Outcome) -> ChangeError {
        let limit = match outcome {
            Outcome::Timeout { phase: Phase::FirstByte } => self.timeouts.idle,
            Outcome::Timeout { phase: Phase::Idle | Phase::Total } => self.timeouts.total,
            _ => return self.unreachable(path, outcome),
        };
        ChangeError::Silent { url: self.at(""), seconds: limit.as_secs() }
    }

    /// What came of asking for `path`, where no answer did.
    pub fn unreachable(&self, path: &str, outcome: Outcome) -> ChangeError {
        let url = match outcome {
            Outcome::Connect { .. } => self.at(""),
            _ => self.at(path),
        };
        ChangeError::Unreachable { url, outcome }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.api.target())
    }
}
