//! One knob changed on a server of ours, by its admin routes: a generation with the change is
//! staged, verified and flipped to, and flipped back from.

use crate::client::{Client, Target};
use crate::coverage::ServerKind;
use crate::run::Finding;
use serde_json::{Value, json};

/// Changes that its admin routes allow: in words, the knob, its value.
pub const KNOBS: &[(&str, &str, &str)] = &[
    ("every step op by op (eager)", "decode.eager", "true"),
    ("one lane (overlap off)", "decode.lanes", "1"),
];

/// How long the old generation stays to go back to.
const WATCH_SECONDS: u64 = 3600;

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
    /// Of the server that was checked, or why it has none.
    pub fn of(target: &Target, finding: &Finding) -> Result<Admin, String> {
        if finding.facts.kind != ServerKind::Lockstep {
            let kind = finding.facts.kind.name();
            return Err(format!("a running {kind} server cannot be changed so"));
        }
        let key = finding.options.admin_key.clone().or_else(|| target.api_key.clone());
        let target = Target { api_key: key, ..target.clone() };
        Ok(Admin { client: Client::new(target) })
    }

    /// Makes the change live.
    pub async fn enter(&self, knob: &str, value: &str) -> Result<Flipped, String> {
        // The routes take numbers and flags as JSON, and refuse them as strings.
        let value: Value = serde_json::from_str(value).map_err(|e| e.to_string())?;
        let list = self.client.get("/admin/generations").await.map_err(|e| e.to_string())?;
        let live = list.json().unwrap_or(Value::Null);
        let old = live["live"].as_u64().filter(|_| list.status == 200);
        let old = old.ok_or_else(|| format!("{}: {}", list.status, list.words()))?;
        let staged = self.post("", &json!({"knobs": {knob: value}, "wait": true})).await?;
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

    async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("/admin/generations{path}");
        let reply = self.client.post(&path, body).await.map_err(|e| e.to_string())?;
        if !(200..300).contains(&reply.status) {
            return Err(format!("{path} answered {}: {}", reply.status, reply.words()));
        }
        Ok(reply.json().unwrap_or(Value::Null))
    }
}
