//! What a server understands, asked with a few short requests before anything is measured.

use super::prompt::{Form, words};
use super::seeded::Seeded;
use crate::client::{Call, Client, Exchange, NoAnswer, NoModel, NoServer, Outcome, Reading, Usage};
use core::fmt;
use serde_json::{Value, json};

/// A server that is ready to be measured.
#[derive(Clone)]
pub struct Server {
    /// The client.
    pub client: Client,
    /// The endpoint that generates.
    pub call: Call,
    /// How prompts are given.
    pub form: Form,
    /// Fields that make answers of an exact length, those which it takes.
    pub length_fields: Vec<&'static str>,
    /// Streams end with `usage`.
    pub has_usage: bool,
    /// Prompt and answer together, at most, where the server tells.
    pub context_tokens: Option<u32>,
    /// Who made it, in its own words (`owned_by`).
    pub owned_by: String,
}

/// Why a server cannot be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeError {
    /// It takes a connection, and does not even list its models.
    Silent { url: String, seconds: u64 },
    /// No model, or no list of them.
    Model { url: String, outcome: Outcome },
    /// No short request was answered.
    Generate { url: String, path: &'static str, outcome: Outcome },
    /// Words cannot be counted: the server tells no `usage`.
    Count { url: String },
}

impl ProbeError {
    /// Whether nothing that speaks HTTP answered.
    pub fn is_silent(&self) -> bool {
        match self {
            ProbeError::Silent { .. } => true,
            ProbeError::Model { outcome, .. } => outcome.is_silent(),
            ProbeError::Generate { .. } | ProbeError::Count { .. } => false,
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Model { url, outcome: Outcome::Connect { why } } => {
                NoServer { url, why }.fmt(f)
            }
            ProbeError::Silent { url, seconds } => NoAnswer { url, seconds: *seconds }.fmt(f),
            ProbeError::Model { url, outcome } => NoModel { url, outcome }.fmt(f),
            ProbeError::Generate { url, path, outcome } => {
                write!(f, "{url} does not answer a short request at {path}: {outcome}")
            }
            ProbeError::Count { url } => write!(
                f,
                "{url} takes no token ids and reports no usage, so that prompts have no length \
                 that is known; use an endpoint that does one of the two"
            ),
        }
    }
}

impl core::error::Error for ProbeError {}

/// Largest ids that are tried, in turn.
const VOCABULARIES: [u32; 9] = [32_000, 16_000, 8_000, 4_000, 2_000, 1_000, 500, 300, 128];
/// Tokens of the short prompts.
const PROBE_IDS: u32 = 16;
/// Output tokens of a short request: enough that an early end shows.
const PROBE_OUTPUT: u32 = 4;
/// Words of the two prompts that calibrate.
const FEW_MANY: (u32, u32) = (32, 160);

/// The body of a request; `prompt` is ids or text.
pub fn body(call: Call, prompt: &Value, output_tokens: u32, length_fields: &[&str]) -> Value {
    let mut body = json!({
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    match call {
        Call::Completions => body["prompt"] = prompt.clone(),
        Call::Chat if prompt.is_array() => body["messages"] = prompt.clone(),
        Call::Chat => body["messages"] = json!([{"role": "user", "content": prompt}]),
    }
    for &field in length_fields {
        body[field] = match field {
            "min_tokens" => output_tokens.into(),
            _ => true.into(),
        };
    }
    body
}

impl Server {
    /// Asks `client`'s server. Without `call`, `/v1/completions` is tried first.
    pub async fn probe(client: Client, call: Option<Call>) -> Result<Server, ProbeError> {
        let url = client.target().to_string();
        let seconds = client.models_limit().as_secs();
        let failed = |outcome| match outcome {
            Outcome::Timeout { .. } => ProbeError::Silent { url: url.clone(), seconds },
            outcome => ProbeError::Model { url: url.clone(), outcome },
        };
        let (context_tokens, owned_by) = models(&client).await.map_err(failed)?;
        let client = client.discover().await.map_err(failed)?;
        let mut server = Server {
            client,
            call: call.unwrap_or(Call::Completions),
            form: Form::Words { extra: 0.0, per_word: 1.0 },
            length_fields: Vec::new(),
            has_usage: false,
            context_tokens,
            owned_by,
        };
        if server.call == Call::Completions && server.try_ids().await? {
            return server.with_length_fields().await;
        }
        match server.calibrate().await {
            // A server that only chats.
            Err(ProbeError::Generate { outcome: Outcome::Status { .. }, .. }) if call.is_none() => {
                server.call = Call::Chat;
                server.calibrate().await?;
            }
            result => result?,
        }
        server.with_length_fields().await
    }

    fn failed(&self, outcome: Outcome) -> ProbeError {
        let url = self.client.target().to_string();
        ProbeError::Generate { url, path: self.call.path(), outcome }
    }

    async fn short(&self, prompt: &Value, output_tokens: u32, fields: &[&str]) -> Exchange {
        let body = body(self.call, prompt, output_tokens, fields);
        let bytes = self.client.encode(&body);
        self.client.exchange(self.call, bytes, Reading::default()).await
    }

    /// Whether ids are taken; finds a range of them that the vocabulary has.
    async fn try_ids(&mut self) -> Result<bool, ProbeError> {
        for high in VOCABULARIES {
            let mut ids: Vec<Value> = (1..PROBE_IDS).map(|i| (high / 2 + i).into()).collect();
            ids.push((high - 1).into());
            let exchange = self.short(&ids.into(), 1, &[]).await;
            match exchange.outcome {
                Outcome::Done => {
                    let low = high / 8;
                    self.has_usage = exchange.usage.is_some();
                    let counted = exchange.usage.map_or(u64::from(PROBE_IDS), |u| u.prompt_tokens);
                    let extra = counted.saturating_sub(u64::from(PROBE_IDS)) as u32;
                    self.form = Form::Ids { low, high, extra };
                    // A server that joins ids to a text counts something else entirely.
                    return Ok(extra <= 2 && counted >= u64::from(PROBE_IDS));
                }
                Outcome::Status { status: 400..=499, .. } | Outcome::Status { status: 500, .. } => {
                }
                outcome => return Err(self.failed(outcome)),
            }
        }
        Ok(false)
    }

    async fn calibrate(&mut self) -> Result<(), ProbeError> {
        let mut counts = [(FEW_MANY.0, 0), (FEW_MANY.1, 0)];
        for (count, tokens) in &mut counts {
            let text = words(&mut Seeded::new(1, u64::from(*count)), *count);
            let exchange = self.short(&text.into(), 1, &[]).await;
            let usage = match (exchange.outcome, exchange.usage) {
                (Outcome::Done, Some(Usage { prompt_tokens: n @ 1.., .. })) => n,
                (Outcome::Done, _) => {
                    return Err(ProbeError::Count { url: self.client.target().to_string() });
                }
                (outcome, _) => return Err(self.failed(outcome)),
            };
            *tokens = usage;
        }
        self.has_usage = true;
        self.form = Form::calibrated(counts[0], counts[1]);
        Ok(())
    }

    /// Finds which fields for an exact output length are taken.
    async fn with_length_fields(mut self) -> Result<Server, ProbeError> {
        let planned = super::workload::Planned {
            input_tokens: PROBE_IDS * 2,
            output_tokens: PROBE_OUTPUT,
            prefix: None,
            stream: 1,
        };
        let prompt = self.form.prompt(&planned, 1);
        let mut last = Outcome::Done;
        for fields in [&["ignore_eos", "min_tokens"][..], &["ignore_eos"], &["min_tokens"], &[]] {
            let exchange = self.short(&prompt, PROBE_OUTPUT, fields).await;
            match exchange.outcome {
                Outcome::Done => {
                    self.length_fields = fields.to_vec();
                    return Ok(self);
                }
                outcome => last = outcome,
            }
        }
        Err(self.failed(last))
    }
}

/// What `/v1/models` says beside the name; nothing where there is no such list.
async fn models(client: &Client) -> Result<(Option<u32>, String), Outcome> {
    let reply = match client.models().await {
        // It would not answer a second time either.
        Err(late @ Outcome::Timeout { .. }) => return Err(late),
        reply => reply.ok().and_then(|r| r.json()).unwrap_or(Value::Null),
    };
    let first = &reply["data"][0];
    let context = first["max_model_len"].as_u64().and_then(|n| u32::try_from(n).ok());
    let owner: String = first["owned_by"].as_str().unwrap_or("unknown").chars().take(64).collect();
    Ok((context, owner.replace(char::is_control, " ")))
}
