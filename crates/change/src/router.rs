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

use crate::address::pick;
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

    /// Where the worker is, as the router writes it.
    pub fn url(&self) -> &str {
        let after = self.add.0.split_once("?url=").map_or("", |(_, url)| url);
        self.add.1["url"].as_str().unwrap_or(after)
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
/// The router does not answer, has neither list, or several workers that may be meant.
pub fn find(router: &Web, url: &str) -> Result<Option<Listed>, ChangeError> {
    let all = match list(router, false) {
        Err(ChangeError::Answer { .. }) => list(router, true)?,
        other => other?,
    };
    one(router, all, url, true)
}

/// The worker of a known entry as it is listed now. What else is listed is not taken for it: while
/// it is out of rotation, another address of its port may be the only one that is left.
///
/// # Errors
/// The router does not answer.
pub fn again(router: &Web, entry: &Entry) -> Result<Option<Listed>, ChangeError> {
    one(router, list(router, entry.is_old)?, entry.url(), false)
}

fn list(router: &Web, is_old: bool) -> Result<Vec<Listed>, ChangeError> {
    if is_old {
        let all = router.get_json("/list_workers")?;
        let all = all["urls"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let entry = |u: &str| Entry {
            remove: format!("/remove_worker?url={u}"),
            add: (format!("/add_worker?url={u}"), json!({})),
            is_old,
        };
        let listed = |u| Listed { entry: entry(u), standing: Standing::Serving, load: None };
        return Ok(all.map(listed).collect());
    }
    let all = router.get_json("/workers")?;
    Ok(all["workers"].as_array().into_iter().flatten().filter_map(listed).collect())
}

fn one(
    router: &Web,
    mut all: Vec<Listed>,
    url: &str,
    is_loose: bool,
) -> Result<Option<Listed>, ChangeError> {
    let urls: Vec<&str> = all.iter().map(|l| l.entry.url()).collect();
    let picked = pick(&urls, url, is_loose).map_err(|several| {
        let several: Vec<&str> = several.into_iter().map(|at| urls[at]).collect();
        let what = format!(
            "has several workers that may be {url} ({}); the one that is meant has to be written \
             in the target as it is there",
            several.join(", ")
        );
        ChangeError::Answer { url: router.url().into(), what }
    });
    Ok(picked?.map(|at| all.swap_remove(at)))
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

/// The worker at `url` apart from the others of a list; none where it is not sure which it is.
pub fn apart(mut all: Vec<Worker>, url: &str) -> (Option<Worker>, Vec<Worker>) {
    let urls: Vec<&str> = all.iter().map(|w| w.url.as_str()).collect();
    let own = pick(&urls, url, true).ok().flatten().map(|at| all.remove(at));
    // It may be listed more than once.
    all.retain(|w| own.as_ref().is_none_or(|own| w.url != own.url));
    (own, all)
}

fn listed(worker: &Value) -> Option<Listed> {
    let id = worker["id"].as_str()?;
    worker["url"].as_str()?;
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
        // The router takes it out when it comes to that, and counts what it has there. One that
        // does not say so has not.
        let there = again(router, entry);
        let leaves =
            |l: &Option<Listed>| l.as_ref().is_none_or(|l| l.standing == Standing::Leaving);
        let is_out = there.as_ref().is_ok_and(leaves);
        let at_router = there.ok().flatten().and_then(|l| l.load).unwrap_or(0);
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
pub fn put_back(router: &Web, entry: &Entry) -> Result<(), ChangeError> {
    put_back_within(router, entry, BACK_PATIENCE)
}

fn put_back_within(router: &Web, entry: &Entry, patience: Duration) -> Result<(), ChangeError> {
    let begun = Instant::now();
    let mut is_asked = false;
    loop {
        let state = match again(router, entry).map(|found| found.map(|l| l.standing)) {
            Ok(Some(Standing::Serving)) => return Ok(()),
            // It can be added when the router has let go of it; added, it is looked at first.
            Ok(Some(Standing::Leaving)) => "does not let go of it".into(),
            Ok(Some(Standing::Waiting)) => "lists it as not healthy".into(),
            Ok(None) if is_asked => "does not list it".into(),
            Ok(None) => match router.post(&entry.add.0, &entry.add.1) {
                Ok(_) => {
                    is_asked = true;
                    "does not list it".into()
                }
                // It may have been let go of between the two questions.
                Err(e) => format!("does not take it ({e})"),
            },
            Err(e) => {
                // One that was away may have lost what it was asked for.
                is_asked = false;
                format!("does not tell its workers ({e})")
            }
        };
        if begun.elapsed() > patience {
            let url = entry.url();
            let what = format!(
                "{url} is not in rotation: the router {state}; requests do not reach it: add it by \
                 hand"
            );
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
    use crate::web::Keys;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    /// A gateway of so many workers, which lets go of a removed one at once and does not answer
    /// (503) the questions of these numbers, counted from 0.
    struct Gateway(Web, Arc<Mutex<Vec<Value>>>);

    impl Gateway {
        fn start(urls: &[&str], is_away: impl Fn(usize) -> bool + Send + 'static) -> Gateway {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let web =
                Web::new(&format!("http://{}", listener.local_addr().unwrap()), &Keys::default());
            let one = |(n, url): (usize, &&str)| json!({"id": format!("w-{n}"), "url": url});
            let all = Arc::new(Mutex::new(urls.iter().enumerate().map(one).collect::<Vec<_>>()));
            let shared = Arc::clone(&all);
            std::thread::spawn(move || {
                for (n, mut stream) in listener.incoming().flatten().enumerate() {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let (mut head, mut length) = (String::new(), 0);
                    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {
                        let line =
                            head.trim_end().lines().last().unwrap_or("").to_ascii_lowercase();
                        if let Some(n) = line.strip_prefix("content-length:") {
                            length = n.trim().parse().unwrap();
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let mut all = shared.lock().unwrap();
                    let status = if is_away(n) { "503 Service Unavailable" } else { "200 OK" };
                    if is_away(n) || head.starts_with("GET /workers ") {
                    } else if let Some(rest) = head.strip_prefix("DELETE /workers/") {
                        all.retain(|w| w["id"] != rest[..rest.find(' ').unwrap()]);
                    } else {
                        assert!(head.starts_with("POST /workers "), "{head}");
                        let mut worker: Value = serde_json::from_slice(&body).unwrap();
                        worker["id"] = json!("w-again");
                        all.push(worker);
                    }
                    let answer = json!({"workers": *all}).to_string();
                    let length = answer.len();
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
                }
            });
            Gateway(web.unwrap(), all)
        }

        fn urls(&self) -> Vec<String> {
            let all = self.1.lock().unwrap();
            all.iter().map(|w| w["url"].as_str().unwrap().to_owned()).collect()
        }
    }

    /// A bug of the first version: with another server of this machine at the same port of another
    /// address listed first, that one was drained; and once the own one is out, the other must not
    /// stand for it when it is looked whether it is back.
    #[test]
    fn another_address_s_worker_is_not_drained_in_its_place() {
        // Nobody listens at the worker's port: it does not tell what it runs, and is not waited for.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let [own, other] = [1, 2].map(|n| format!("http://127.0.0.{n}:{port}"));
        let gateway = Gateway::start(&[&other, &own], |_| false);
        let worker = gateway.0.beside(&own).unwrap();
        let found = find(&gateway.0, &own).unwrap().unwrap();
        assert_eq!(found.entry.url(), own);
        drain(&gateway.0, &worker, &found, Duration::from_secs(20)).unwrap();
        assert_eq!(gateway.urls(), [other.as_str()]);
        assert_eq!(again(&gateway.0, &found.entry).unwrap(), None);
        put_back(&gateway.0, &found.entry).unwrap();
        assert_eq!(gateway.urls(), [other.clone(), own.clone()]);
        let third = format!("http://127.0.0.3:{port}");
        let said = find(&gateway.0, &third).unwrap_err().to_string();
        assert!(said.contains(&format!("({other}, {own})")), "{said}");
    }

    /// A bug of the first version: a router that answered one question with 503 was taken for one
    /// that does not take the worker back.
    #[test]
    fn one_503_does_not_keep_a_worker_out_of_rotation() {
        let url = "http://127.0.0.1:9";
        let worker = json!({"id": "w-1", "url": url});
        let entry = listed(&worker).unwrap().entry;
        // The first look, the first POST, and the look after the second POST.
        let gateway = Gateway::start(&[], |n| [0, 2, 5].contains(&n));
        put_back_within(&gateway.0, &entry, Duration::from_secs(60)).unwrap();
        assert_eq!(gateway.urls(), [url]);
        // One that stays away is an error, and says what is left to do.
        let gateway = Gateway::start(&[], |_| true);
        let said = put_back_within(&gateway.0, &entry, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("503") && said.contains("add it by hand"), "{said}");
    }

    /// As smg 1.13 lists them: what is the worker's own is given back, what the gateway found out
    /// of the moment is not.
    #[test]
    fn a_worker_is_found_and_described() {
        let mut worker = json!({"id": "01a22c45", "model_id": "m", "url": "http://127.0.0.1:30002",
            "models": [{"id": "m", "model_type": ["chat"]}], "worker_type": "decode",
            "connection_mode": "http", "runtime_type": "generic", "labels": {"zone": "a"},
            "priority": 50, "cost": 1.0, "max_connection_attempts": 20, "bootstrap_port": null,
            "is_healthy": true, "status": "ready", "load": 3, "http2": false});
        let found = listed(&worker).unwrap();
        assert_eq!(found.entry.url(), "http://127.0.0.1:30002");
        assert_eq!((found.standing, found.load), (Standing::Serving, Some(3)));
        assert_eq!(found.entry.remove, "/workers/01a22c45");
        let mut body = worker.clone();
        for word in ["id", "bootstrap_port", "is_healthy", "status", "load"] {
            body.as_object_mut().unwrap().remove(word);
        }
        assert_eq!(found.entry.add, ("/workers".to_owned(), body));
        assert_eq!(Entry::from_json(&found.entry.to_json()), Some(found.entry.clone()));
        (worker["status"], worker["is_healthy"]) = (json!("draining"), json!(false));
        let standing = |w: &Value| listed(w).unwrap().standing;
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
        let found = listed(&worker).unwrap();
        assert_eq!((found.standing, found.load), (Standing::Serving, Some(0)));
    }
}
