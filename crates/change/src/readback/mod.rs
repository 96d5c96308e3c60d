//! What a server says about itself: settings in force, buckets, memory. Read back from the server
//! and its log, never from the file that starts it.

mod llama;
mod lockstep;
mod sglang;
mod vllm;

pub use lockstep::{alarms, generation_buckets};

use crate::fault::ChangeError;
use crate::target::{Kind, Launch, Target};
use crate::web::Web;
use lockstep_check::client::shorten;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;

/// Bytes of a log's end that are read.
const LOG_BYTES: u64 = 4 << 20;
/// Lines of a unit's journal that are asked for.
const JOURNAL_LINES: u32 = 20_000;

/// A setting in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InForce {
    /// Its value, in the operator's notation.
    pub value: String,
    /// Who said so, where the server tells.
    pub source: Option<String>,
}

/// What was read back.
#[derive(Clone, PartialEq, Debug)]
pub struct Readback {
    /// Whose server.
    pub kind: Kind,
    /// Its version; empty where it does not tell.
    pub version: String,
    /// The model's name.
    pub model: String,
    /// Settings by the names that `--set` takes.
    pub settings: BTreeMap<String, InForce>,
    /// Captured decode batch sizes, ascending; empty where the server does not tell.
    pub buckets: Vec<u32>,
    /// Most sequences at once.
    pub running_max: Option<u64>,
    /// Tokens that the KV pool holds.
    pub pool_tokens: Option<u64>,
    /// Bytes that captured buckets take.
    pub graph_bytes: Option<u64>,
    /// `prefill` or `decode` of a disaggregated worker.
    pub role: Option<String>,
    /// Seconds since 1970 of the server's start, where it tells: another one is another process.
    pub started: Option<u64>,
    /// Its command line, where it tells.
    pub command: String,
    /// Alarms to act on that are raised, where it has alarms.
    pub alarms: Vec<String>,
    /// The answers themselves.
    pub raw: Value,
}

impl Readback {
    /// Nothing known yet.
    pub fn none(kind: Kind) -> Readback {
        Readback {
            kind,
            version: String::new(),
            model: String::new(),
            settings: BTreeMap::new(),
            buckets: Vec::new(),
            running_max: None,
            pool_tokens: None,
            graph_bytes: None,
            role: None,
            started: None,
            command: String::new(),
            alarms: Vec::new(),
            raw: Value::Null,
        }
    }

    /// A setting's value.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|s| s.value.as_str())
    }

    /// For the record.
    pub fn to_json(&self) -> Value {
        let settings: serde_json::Map<String, Value> = self
            .settings
            .iter()
            .map(|(name, s)| (name.clone(), json!({"value": s.value, "source": s.source})))
            .collect();
        json!({
            "kind": self.kind.as_str(), "version": self.version, "model": self.model,
            "settings": settings, "buckets": self.buckets, "running_max": self.running_max,
            "pool_tokens": self.pool_tokens, "graph_bytes": self.graph_bytes, "role": self.role,
            "started": self.started, "command": self.command, "alarms": self.alarms,
            "raw": self.raw,
        })
    }

    fn set(&mut self, name: &str, value: &Value) {
        let value = match value {
            Value::Null => return,
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        self.settings.insert(name.to_owned(), InForce { value, source: None });
    }
}

/// Asks a server what it runs with.
///
/// # Errors
/// It does not answer, or is another kind of server.
pub fn read(web: &Web, target: &Target) -> Result<Readback, ChangeError> {
    let log = log(target)?;
    match target.kind {
        Kind::Lockstep => {
            let info = match web.get_json("/server_info") {
                Err(ChangeError::Answer { .. }) => None,
                other => lockstep::read(other?),
            };
            info.map_or_else(|| Err(other_kind(web)), Ok)
        }
        Kind::Sglang => {
            let info = match web.get_json("/server_info") {
                // Its name up to 0.5.1x.
                Err(ChangeError::Answer { .. }) => web.get_json("/get_server_info")?,
                other => other?,
            };
            Ok(sglang::read(info, &log))
        }
        Kind::Vllm => {
            let version = web.get_json("/version")?;
            let models = web.get_json("/v1/models")?;
            // There in its development mode only.
            let info = web.get_json("/server_info?config_format=json").unwrap_or(Value::Null);
            Ok(vllm::read(&version, &models, info, &log))
        }
        Kind::LlamaCpp => {
            let props = web.get_json("/props")?;
            let slots = web.get_json("/slots").unwrap_or(Value::Null);
            Ok(llama::read(props, slots, &log))
        }
        Kind::OpenAi => {
            let models = models(web)?;
            let mut r = Readback::none(Kind::OpenAi);
            r.model = models["data"][0]["id"].as_str().unwrap_or_default().into();
            r.raw = models;
            Ok(r)
        }
    }
}

/// An answer that is not Lockstep's: whose it is.
fn other_kind(web: &Web) -> ChangeError {
    match detect(web) {
        Ok(kind) if kind != Kind::Lockstep => {
            ChangeError::Kind { url: web.url().into(), found: kind.words() }
        }
        Ok(_) => ChangeError::Answer {
            url: web.url().into(),
            what: "/server_info has none of a Lockstep server's fields".into(),
        },
        Err(e) => e,
    }
}

/// What kind of server answers there.
///
/// # Errors
/// None does.
pub fn detect(web: &Web) -> Result<Kind, ChangeError> {
    let models = web.get_json("/v1/models")?;
    if web.get_json("/server_info").is_ok_and(|i| i["lockstep"].is_object()) {
        return Ok(Kind::Lockstep);
    }
    let owner = models["data"][0]["owned_by"].as_str().unwrap_or_default();
    Ok(match owner {
        "sglang" => Kind::Sglang,
        "vllm" => Kind::Vllm,
        "llamacpp" => Kind::LlamaCpp,
        _ if web.get_json("/props").is_ok_and(|p| p["build_info"].is_string()) => Kind::LlamaCpp,
        _ => {
            listed(web, &models)?;
            Kind::OpenAi
        }
    })
}

/// The list of models of a server of the OpenAI API.
fn models(web: &Web) -> Result<Value, ChangeError> {
    let models = web.get_json("/v1/models")?;
    listed(web, &models)?;
    Ok(models)
}

/// Any server may answer with some JSON: one of the OpenAI API lists its models, each with an id.
fn listed(web: &Web, models: &Value) -> Result<(), ChangeError> {
    let all = models["data"].as_array();
    if all.is_some_and(|all| all.iter().all(|m| m["id"].is_string())) {
        return Ok(());
    }
    let what = format!(
        "answered with JSON, but with no list of models: {}; neither a Lockstep, SGLang, vLLM or \
         llama.cpp server nor another one of the OpenAI API is there",
        shorten(&models.to_string())
    );
    Err(ChangeError::Answer { url: format!("{}/v1/models", web.api().target()), what })
}

/// What the server has written lately: to the target's log, else to the journal of its unit.
fn log(target: &Target) -> Result<String, ChangeError> {
    match (&target.log, &target.launch) {
        (Some(path), _) => tail(path),
        (None, Launch::Systemd { unit, is_user, .. }) => Ok(journal(unit, *is_user)),
        _ => Ok(String::new()),
    }
}

/// The end of a unit's journal; nothing where there is no journal to be read.
fn journal(unit: &str, is_user: bool) -> String {
    let of = if is_user { "--user-unit" } else { "--unit" };
    let lines = JOURNAL_LINES.to_string();
    let mut ask = Command::new("journalctl");
    ask.args([of, unit, "--lines", &lines, "--output", "cat", "--no-pager", "--quiet"]);
    let out = ask.output().map(|out| out.stdout).unwrap_or_default();
    let from = out.len().saturating_sub(LOG_BYTES as usize);
    String::from_utf8_lossy(&out[from..]).into_owned()
}

/// The end of a log.
fn tail(path: &Path) -> Result<String, ChangeError> {
    let fault = |why| ChangeError::Read { path: path.into(), why };
    let mut file = match std::fs::File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        other => other.map_err(fault)?,
    };
    let length = file.metadata().map_err(fault)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES))).map_err(fault)?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes).map_err(fault)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a log says since the last start that it tells of: what an earlier one captured, and this
/// one may not have, is not this server's.
fn since_start<'a>(log: &'a str, start: &str) -> &'a str {
    log.rfind(start).map_or(log, |at| &log[at..])
}

/// The number right after the last place of `before` in a text.
fn number_after(text: &str, before: &str) -> Option<f64> {
    let rest = text.rfind(before).map(|at| &text[at + before.len()..])?.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}

/// The numbers of the last `before[1, 2, 4]` in a text.
fn list_after(text: &str, before: &str) -> Option<Vec<u32>> {
    let rest = text.rfind(before).map(|at| &text[at + before.len()..])?;
    let inner = rest.strip_prefix('[')?.split_once(']')?.0;
    let mut list: Vec<u32> =
        inner.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    list.sort_unstable();
    Some(list)
}

fn numbers(list: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let mut list: Vec<u32> = list.as_array().into_iter().flatten().filter_map(one).collect();
    list.sort_unstable();
    list
}

#[cfg(test)]
mod tests;
