//! A router before a server: out of its rotation before the server is restarted, and back in when
//! it has answered.
//!
//! Two surfaces are known: the list of workers of SGLang's model gateway (`GET`, `POST /workers`,
//! `DELETE /workers/ID`), and the older router's `/list_workers`, `/remove_worker`, `/add_worker`.

use crate::address::is_same;
use crate::fault::ChangeError;
use crate::target::Worker;
use crate::web::Web;
use lockstep_check::coverage;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// How often a worker that is being drained is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A worker has to be idle in so many looks, one after the other: a request may be on its way to it.
const IDLE_LOOKS: u32 = 5;
/// What of a worker's entry is its own, and is given when it is added again.
const KEPT: [&str; 12] = [
    "url",
    "worker_type",
    "runtime",
    "connection_mode",
    "models",
    "model_id",
    "priority",
    "cost",
    "labels",
    "bootstrap_host",
    "bootstrap_port",
    "disable_health_check",
];

/// A worker's entry at a router, as the router has it.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// What removes it: a path with DELETE, or with POST where the router is of the older kind.
    remove: String,
    /// What adds it again.
    add: (String, Value),
    is_old: bool,
}

impl Entry {
    /// For the journal.
    pub fn to_json(&self) -> Value {
        json!({"remove": self.remove, "add": self.add.0, "body": self.add.1, "old": self.is_old})
    }

    /// From the journal.
    pub fn from_json(v: &Value) -> Option<Entry> {
        let text = |name: &str| v[name].as_str().map(str::to_owned);
        let add = (text("add")?, v["body"].clone());
        Some(Entry { remove: text("remove")?, add, is_old: v["old"] == true })
    }
}

/// The entry of the worker at `url`; nothing where the router does not have it.
///
/// # Errors
/// The router does not answer, or has neither list.
pub fn find(router: &Web, url: &str) -> Result<Option<Entry>, ChangeError> {
    match router.get_json("/workers") {
        Ok(all) => Ok(all["workers"].as_array().into_iter().flatten().find_map(|w| entry(w, url))),
        Err(ChangeError::Answer { .. }) => {
            let all = router.get_json("/list_workers")?;
            let ours = all["urls"].as_array().into_iter().flatten();
            let ours = ours.filter_map(Value::as_str).find(|u| is_same(u, url));
            Ok(ours.map(|u| Entry {
                remove: format!("/remove_worker?url={u}"),
                add: (format!("/add_worker?url={u}"), json!({})),
                is_old: true,
            }))
        }
        Err(e) => Err(e),
    }
}

/// Every worker that the router has, with its role where the router tells.
///
/// # Errors
/// The router does not answer, or has neither list.
pub fn workers(router: &Web) -> Result<Vec<Worker>, ChangeError> {
    let one = |w: &Value| {
        let role = w["worker_type"].as_str().filter(|t| Worker::ROLES.contains(t));
        Some(Worker { url: w["url"].as_str()?.to_owned(), role: role.map(str::to_owned) })
    };
    let bare = |u: &Value| Some(Worker { url: u.as_str()?.to_owned(), role: None });
    match router.get_json("/workers") {
        Ok(all) => Ok(all["workers"].as_array().into_iter().flatten().filter_map(one).collect()),
        Err(ChangeError::Answer { .. }) => {
            let all = router.get_json("/list_workers")?;
            Ok(all["urls"].as_array().into_iter().flatten().filter_map(bare).collect())
        }
        Err(e) => Err(e),
    }
}

fn entry(worker: &Value, url: &str) -> Option<Entry> {
    let id = worker["id"].as_str()?;
    worker["url"].as_str().filter(|u| is_same(u, url))?;
    let kept = worker.as_object()?.iter();
    let kept = kept.filter(|(name, v)| KEPT.contains(&name.as_str()) && !v.is_null());
    let body: Map<String, Value> = kept.map(|(name, v)| (name.clone(), v.clone())).collect();
    let remove = format!("/workers/{id}");
    Some(Entry { remove, add: ("/workers".into(), body.into()), is_old: false })
}

/// Takes the worker out of rotation and waits until it has nothing left to do, or `patience` is
/// over: true where it was idle.
///
/// # Errors
/// The router does not take it out.
pub fn drain(
    router: &Web,
    worker: &Web,
    entry: &Entry,
    patience: Duration,
) -> Result<bool, ChangeError> {
    if entry.is_old {
        router.post(&entry.remove, &json!({}))?;
    } else {
        router.delete(&entry.remove)?;
    }
    let begun = Instant::now();
    let mut idle = 0;
    while begun.elapsed() < patience {
        match running(worker) {
            // One that does not tell, or is not there, has nothing that could be waited for.
            None => return Ok(false),
            Some(0) => idle += 1,
            Some(_) => idle = 0,
        }
        if idle >= IDLE_LOOKS {
            return Ok(true);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(false)
}

/// Puts the worker back into rotation and looks that it is there.
///
/// # Errors
/// It is not: requests do not reach it.
pub fn put_back(router: &Web, url: &str, entry: &Entry) -> Result<(), ChangeError> {
    let begun = Instant::now();
    if find(router, url)?.is_none() {
        router.post(&entry.add.0, &entry.add.1)?;
    }
    // The gateway takes it in when it has looked at it itself.
    while find(router, url)?.is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            let what = format!("does not list {url} again; add it by hand");
            return Err(ChangeError::Answer { url: router.url().into(), what });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn running(worker: &Web) -> Option<u32> {
    worker.runtime().block_on(async {
        let client = worker.api();
        let facts = coverage::facts(&client).await.ok()?;
        coverage::snapshot(&client, facts.kind).await.running
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As SGLang's model gateway lists them: what is its own is given back, what the gateway found
    /// out is not.
    #[test]
    fn a_worker_is_found_and_described() {
        let worker = json!({"id": "w-1", "url": "http://127.0.0.1:30002", "worker_type": "decode",
                            "bootstrap_port": null, "priority": 50, "is_healthy": true, "load": 3});
        let found = entry(&worker, "http://localhost:30002/").unwrap();
        assert_eq!(found.remove, "/workers/w-1");
        let body =
            json!({"url": "http://127.0.0.1:30002", "worker_type": "decode", "priority": 50});
        assert_eq!(found.add, ("/workers".to_owned(), body));
        assert_eq!(Entry::from_json(&found.to_json()), Some(found));
        assert_eq!(entry(&worker, "http://localhost:30003"), None);
    }
}
