//! One knob changed on a server of ours, by its admin routes: a generation with the change is
//! staged, verified and flipped to, and flipped back from.

use crate::client::{Client, Target};
use crate::coverage::ServerKind;
use crate::run::Finding;
use serde_json::{Value, json};

/// How long the old generation stays to go back to.
const WATCH_SECONDS: u64 = 3600;

/// A change of the server itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// No captured step is replayed.
    Eager,
    /// Nothing overlaps.
    OneLane,
    /// What sparse attention chooses its keys by is kept in another type.
    IndexKeys,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 3] = [Change::Eager, Change::OneLane, Change::IndexKeys];

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Change::Eager => "every step op by op (eager)",
            Change::OneLane => "one lane (overlap off)",
            Change::IndexKeys => "another type of index keys",
        }
    }

    /// The knob of ours that makes it.
    pub const fn knob(self) -> &'static str {
        match self {
            Change::Eager => "decode.eager",
            Change::OneLane => "decode.lanes",
            Change::IndexKeys => "pool.index-dtype",
        }
    }

    /// Whether answers may differ by it, so that they have to be calibrated anew.
    pub const fn changes_bits(self) -> bool {
        matches!(self, Change::IndexKeys)
    }

    /// What makes it at a restart of a server of this kind, where it has such a setting.
    pub const fn by_restart(self, kind: ServerKind) -> Option<&'static str> {
        match (self, kind) {
            (Change::Eager, ServerKind::Sglang) => Some("--disable-decode-cuda-graph"),
            (Change::Eager, ServerKind::Vllm) => Some("--enforce-eager"),
            (Change::Eager, ServerKind::LlamaCpp) => Some("GGML_CUDA_DISABLE_GRAPHS=1"),
            (Change::OneLane, ServerKind::Sglang) => {
                Some("--disable-overlap-schedule or SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0")
            }
            (Change::OneLane, ServerKind::Vllm) => Some("--no-async-scheduling"),
            (Change::IndexKeys, ServerKind::Sglang) => {
                Some("--enable-deepseek-v4-fp4-indexer (or without it)")
            }
            (Change::IndexKeys, ServerKind::Vllm) => {
                Some("--attention-config '{\"use_fp4_indexer_cache\": true}' (or without it)")
            }
            _ => None,
        }
    }
}

/// The admin routes of a server.
pub struct Admin {
    client: Client,
}

/// The generation that was left, and the one that is live instead.
#[derive(Clone, Copy, Debug)]
pub struct Flipped {
    old: u64,
    new: u64,
}

impl Admin {
    /// Of the server that was checked, or why it cannot make the change while it runs.
    pub fn of(target: &Target, finding: &Finding, change: Change) -> Result<Admin, String> {
        let kind = finding.facts.kind;
        if kind != ServerKind::Lockstep {
            let restart = change.by_restart(kind).map_or_else(String::new, |setting| {
                format!("; restart it with {setting} and check again with --replay")
            });
            let named = if kind == ServerKind::Other { "such a" } else { kind.name() };
            return Err(format!("a running {named} server cannot be changed so{restart}"));
        }
        let key = finding.options.admin_key.clone().or_else(|| target.api_key.clone());
        let target = Target { api_key: key, ..target.clone() };
        Ok(Admin { client: Client::new(target) })
    }

    /// Makes the change live.
    pub async fn enter(&self, change: Change) -> Result<Flipped, String> {
        let value = self.value(change).await?;
        let list = self.client.get("/admin/generations").await.map_err(|e| e.to_string())?;
        let live = list.json().unwrap_or(Value::Null);
        let old = live["live"].as_u64().filter(|_| list.status == 200);
        let old = old.ok_or_else(|| format!("{}: {}", list.status, list.words()))?;
        let body = json!({"knobs": {change.knob(): value}, "wait": true});
        let staged = self.post("", &body).await.map_err(|why| match (change, &value) {
            (Change::IndexKeys, Value::String(dtype)) => format!(
                "{why}; --index-dtype {dtype} is another type: check again then, with --replay"
            ),
            _ => why,
        })?;
        let new = staged["generation"].as_u64().ok_or("it named no generation")?;
        self.post(&format!("/{new}/flip"), &json!({"watch_seconds": WATCH_SECONDS})).await?;
        Ok(Flipped { old, new })
    }

    /// Goes back and gives the changed generation's memory back.
    pub async fn leave(&self, flipped: Flipped) -> Result<(), String> {
        let Flipped { old, new } = flipped;
        self.post(&format!("/{old}/flip"), &json!({"watch_seconds": 0})).await?;
        // It may be retired by itself by now.
        let _ = self.post(&format!("/{new}/retire"), &json!({})).await;
        Ok(())
    }

    /// What the knob has to become, or why nothing would change.
    async fn value(&self, change: Change) -> Result<Value, String> {
        let now = self.setting(change.knob()).await;
        match change {
            Change::Eager if now == true => Err("it runs so already".into()),
            Change::Eager => Ok(json!(true)),
            Change::OneLane if now == 1 => Err("it runs so already".into()),
            Change::OneLane => Ok(json!(1)),
            Change::IndexKeys => {
                let model = self.client.get("/model_info").await.map_err(|e| e.to_string())?;
                let model = model.json().unwrap_or(Value::Null);
                if !model["architectures"][0].as_str().unwrap_or("").starts_with("deepseek_v4") {
                    return Err("its model has no index keys".into());
                }
                let is_exact = now == "auto" || now == "f32";
                Ok(json!(if is_exact { "bf16" } else { "f32" }))
            }
        }
    }

    /// A knob's value in force; null where the server does not tell.
    async fn setting(&self, knob: &str) -> Value {
        let Ok(info) = self.client.get("/server_info").await else { return Value::Null };
        let info = info.json().unwrap_or(Value::Null);
        let knobs = info["lockstep"]["knobs"].as_array();
        let found = knobs.and_then(|all| all.iter().find(|k| k["name"] == knob));
        found.map_or(Value::Null, |k| k["value"].clone())
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("/admin/generations{path}");
        let reply = self.client.post(&path, body).await.map_err(|e| e.to_string())?;
        if !(200..300).contains(&reply.status) {
            return Err(format!("{path} answered {}: {}", reply.status, reply.words()));
        }
        Ok(reply.json().unwrap_or(Value::Null))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever cannot have a change made is told what would make it, where there is such a thing.
    #[test]
    fn restarts_are_named_for_servers_that_have_them() {
        let named = |change: Change, kind| change.by_restart(kind).unwrap_or("");
        assert!(named(Change::Eager, ServerKind::Vllm).contains("--enforce-eager"));
        assert!(named(Change::OneLane, ServerKind::Sglang).contains("overlap"));
        assert!(named(Change::IndexKeys, ServerKind::Sglang).contains("indexer"));
        for change in Change::ALL {
            assert_eq!(named(change, ServerKind::Other), "");
            assert!(lockstep_flow::knobs::find(change.knob()).is_some(), "{change:?}");
        }
    }
}
