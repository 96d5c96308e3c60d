//! A router before a server: out of its rotation before the server is restarted, and back in when
//! it has answered.
//!
//! Two surfaces are known: the list of workers of SGLang's model gateway (`GET`, `POST /workers`,
//! `DELETE /workers/ID`; smg 1.13, sglang-router 0.2 and 0.3), and the older router's
//! `/list_workers`, `/remove_worker`, `/add_worker` (sglang-router 0.1). What the gateway's newer
//! version does, as seen: a removed worker gets no new request, but stays listed as `draining` for
//! five seconds whether or not it has requests, and one that is added again meanwhile is refused
//! (409); one that is added is looked at before it is listed, again 30 s later where it did not
//! answer.

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
/// How long a router may take to list a worker again: to let go of it, to look at it, and to look
/// again half a minute later.
const BACK_PATIENCE: Duration = Duration::from_secs(90);
/// What of a worker's entry is its own, and is given when it is added again.
const KEPT: [&str; 15] = [
    "url",
    "worker_type",
    "runtime",
    "runtime_type",
    "connection_mode",
    "models",
    "model_id",
    "priority",
    "cost",
    "labels",
    "http2",
    "max_connection_attempts",
    "bootstrap_host",
    "bootstrap_port",
    "disable_health_check",
];

/// Labels that a gateway fills in with what a worker told it when it was added. Given back, they
/// would stand for what the worker tells then: for the old limit after a change of the limit.
const TOLD: [&str; 12] = [
    "architectures",
    "context_length",
    "disaggregation_mode",
    "dp_size",
    "is_generation",
    "max_model_len",
    "max_running_requests",
    "model_path",
    "tokenizer_path",
    "tp_size",
    "version",
    "weight_version",
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

/// Whether a listed worker gets requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It does.
    Serving,
    /// It was taken out, and is listed a while longer.
    Leaving,
    /// Not now: the router has not looked at it yet, or did not like what it saw.
    Waiting,
}

/// A worker that a router lists.
#[derive(Clone, PartialEq, Debug)]
pub struct Listed {
    /// Its entry.
    pub entry: Entry,
    /// Whether it gets requests.
    pub standing: Standing,
    /// Requests that the router has at it, where it says so.
    load: Option<u64>,
}

impl Entry {
    /// Leaves out what the gateway found out by asking the worker, whose models have these names:
    /// it asks again when the worker is added.
    pub fn forget(&mut self, models: &[String]) {
        let Some(body) = self.add.1.as_object_mut() else { return };
        let is_told = |v: &Value| v.as_str().is_some_and(|v| models.iter().any(|m| m == v));
        if body.get("model_id").is_some_and(is_told) {
            body.remove("model_id");
            body.remove("models");
        }
        if let Some(labels) = body.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|name, v| {
                !(TOLD.contains(&name.as_str()) || name == "served_model_name" && is_told(v))
            });
            if labels.is_empty() {
                body.remove("labels");
            }
        }
    }

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
pub fn find(router: &Web, url: &str) -> Result<Option<Listed>, ChangeError> {
    match router.get_json("/workers") {
        Ok(all) => Ok(all["workers"].as_array().into_iter().flatten().find_map(|w| listed(w, url))),
        Err(ChangeError::Answer { .. }) => {
            let all = router.get_json("/list_workers")?;
            let ours = all["urls"].as_array().into_iter().flatten();
            let ours = ours.filter_map(Value::as_str).find(|u| is_same(u, url));
            let entry = |u: &str| Entry {
                remove: format!("/remove_worker?url={u}"),
                add: (format!("/add_worker?url={u}"), json!({})),
                is_old: true,
            };
            Ok(ours.map(|u| Listed { entry: entry(u), standing: Standing::Serving, load: None }))
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

fn listed(worker: &Value, url: &str) -> Option<Listed> {
    let id = worker["id"].as_str()?;
    worker["url"].as_str().filter(|u| is_same(u, url))?;
    let kept = worker.as_object()?.iter();
    let kept = kept.filter(|(name, v)| KEPT.contains(&name.as_str()) && !v.is_null());
    let body: Map<String, Value> = kept.map(|(name, v)| (name.clone(), v.clone())).collect();
    let remove = format!("/workers/{id}");
    let entry = Entry { remove, add: ("/workers".into(), body.into()), is_old: false };
    let standing = match worker["status"].as_str() {
        Some("draining") => Standing::Leaving,
        _ if worker["is_healthy"] == false => Standing::Waiting,
        _ => Standing::Serving,
    };
    Some(Listed { entry, standing, load: worker["load"].as_u64() })
}

/// Takes the worker out of rotation and waits until it has nothing left to do, or `patience` is
/// over: true where it was idle.
///
/// # Errors
/// The router does not take it out.
pub fn drain(
    router: &Web,
    worker: &Web,
    found: &Listed,
    patience: Duration,
) -> Result<bool, ChangeError> {
    let entry = &found.entry;
    if found.standing == Standing::Leaving {
        // Taken out before a crash.
    } else if entry.is_old {
        router.post(&entry.remove, &json!({}))?;
    } else {
        router.delete(&entry.remove)?;
    }
    let begun = Instant::now();
    let mut idle = 0;
    while begun.elapsed() < patience {
        // The router takes it out when it comes to that, and counts what it has there.
        let there = find(router, worker.url()).ok().flatten();
        let is_out = there.as_ref().is_none_or(|l| l.standing == Standing::Leaving);
        let at_router = there.and_then(|l| l.load).unwrap_or(0);
        match running(worker) {
            // One that does not tell, or is not there, has nothing more that could be waited for.
            None if is_out && at_router == 0 => return Ok(false),
            Some(0) if is_out && at_router == 0 => idle += 1,
            _ => idle = 0,
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
    let (mut is_asked, mut refused) = (false, None);
    loop {
        let standing = find(router, url)?.map(|l| l.standing);
        match standing {
            Some(Standing::Serving) => return Ok(()),
            // It can be added when the router has let go of it; added, it is looked at first.
            Some(Standing::Leaving | Standing::Waiting) => {}
            None if is_asked => {}
            None => match (router.post(&entry.add.0, &entry.add.1), refused.take()) {
                (Ok(_), _) => is_asked = true,
                // Refused once it may have been let go of between the two questions.
                (Err(e @ ChangeError::Answer { .. }), None) => refused = Some(e),
                (Err(e), _) => return Err(e),
            },
        }
        if begun.elapsed() > BACK_PATIENCE {
            let state = match standing {
                None => "does not list",
                Some(Standing::Leaving) => "does not let go of",
                Some(_) => "lists as not healthy",
            };
            let what = format!("{state} {url}; requests do not reach it: add it by hand");
            return Err(ChangeError::Answer { url: router.url().into(), what });
        }
        std::thread::sleep(LOOK_EVERY);
    }
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

    /// As smg 1.13 lists them: what is the worker's own is given back, what the gateway found out
    /// of the moment is not.
    #[test]
    fn a_worker_is_found_and_described() {
        let mut worker = json!({"id": "01a22c45", "model_id": "m", "url": "http://127.0.0.1:30002",
            "models": [{"id": "m", "model_type": ["chat"]}], "worker_type": "decode",
            "connection_mode": "http", "runtime_type": "generic", "labels": {"zone": "a"},
            "priority": 50, "cost": 1.0, "max_connection_attempts": 20, "bootstrap_port": null,
            "is_healthy": true, "status": "ready", "load": 3, "http2": false});
        let found = listed(&worker, "http://localhost:30002/").unwrap();
        assert_eq!((found.standing, found.load), (Standing::Serving, Some(3)));
        assert_eq!(found.entry.remove, "/workers/01a22c45");
        let mut body = worker.clone();
        for word in ["id", "bootstrap_port", "is_healthy", "status", "load"] {
            body.as_object_mut().unwrap().remove(word);
        }
        assert_eq!(found.entry.add, ("/workers".to_owned(), body));
        assert_eq!(Entry::from_json(&found.entry.to_json()), Some(found.entry.clone()));
        assert_eq!(listed(&worker, "http://localhost:30003"), None);
        (worker["status"], worker["is_healthy"]) = (json!("draining"), json!(false));
        let standing = |w: &Value| listed(w, "http://127.0.0.1:30002").unwrap().standing;
        assert_eq!(standing(&worker), Standing::Leaving);
        worker["status"] = json!("pending");
        assert_eq!(standing(&worker), Standing::Waiting);
    }

    /// A bug of the first version: the gateway was given its own findings back, so that a worker
    /// whose limit was raised stood there with the old one.
    #[test]
    fn what_a_gateway_found_out_is_not_given_back() {
        let add = |body: Value| Entry {
            remove: "/workers/1".into(),
            add: ("/workers".into(), body),
            is_old: false,
        };
        let url = "http://127.0.0.1:18403";
        let labels = json!({"max_running_requests": "256", "served_model_name": "m",
                            "version": "0.1.0", "zone": "a"});
        let mut ours = add(json!({"url": url, "model_id": "m", "models": [{"id": "m"}],
                                  "labels": labels}));
        ours.forget(&["m".to_owned()]);
        assert_eq!(ours, add(json!({"url": url, "labels": {"zone": "a"}})));
        // A name that the operator gave it stays.
        let body = json!({"url": url, "model_id": "alias", "models": [{"id": "alias"}],
                          "labels": {"served_model_name": "alias"}});
        let mut theirs = add(body.clone());
        theirs.forget(&["m".to_owned()]);
        assert_eq!(theirs, add(body));
    }

    /// As sglang-router 0.3.2 lists them, without a status.
    #[test]
    fn an_earlier_gateway_s_worker_is_read() {
        let worker = json!({"id": "8d8b6b05", "url": "http://127.0.0.1:18401", "model_id": "unknown",
            "priority": 50, "cost": 1.0, "worker_type": "regular", "is_healthy": true, "load": 0,
            "connection_mode": "HTTP", "disable_health_check": false});
        let found = listed(&worker, "http://127.0.0.1:18401").unwrap();
        assert_eq!((found.standing, found.load), (Standing::Serving, Some(0)));
    }
}
