//! A server behind a router: out of its rotation and idle before it is restarted, back in when it
//! has answered. The router here does what SGLang's model gateway (smg 1.13) was seen to do, so that
//! a change can die at any line of its journal; `tests/peer/test_router.py` has the gateway itself.

use super::restart::{SET, by_script, end, running};
use super::{read, run};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a worker that was removed stays listed. The gateway's own five seconds need not pass
/// while a server restarts; these do.
const LETS_GO_AFTER: Duration = Duration::from_secs(3);

#[derive(Default)]
struct State {
    workers: Vec<Value>,
    /// When each of the workers that are leaving is gone, by its id.
    leaving: Vec<(Value, Instant)>,
    asked: Vec<String>,
    /// A script, and how many questions are answered with 503 once the old setting stands in it
    /// again after a worker was removed.
    away: Option<(PathBuf, u32)>,
}

impl State {
    fn is_away(&mut self) -> bool {
        let is_removed = self.asked.iter().any(|a| a.starts_with("DELETE"));
        let Some((script, left)) = &mut self.away else { return false };
        let is = *left > 0 && is_removed && read(script).contains("RUNNING=4");
        *left -= u32::from(is);
        is
    }

    fn let_go(&mut self) {
        let gone = |(id, at): &(Value, Instant)| (Instant::now() >= *at).then(|| id.clone());
        let gone: Vec<Value> = self.leaving.iter().filter_map(gone).collect();
        self.workers.retain(|w| !gone.contains(&w["id"]));
        self.leaving.retain(|(id, _)| !gone.contains(id));
    }
}

struct Router(Arc<Mutex<State>>, String);

impl Router {
    fn start() -> Router {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(&shared, stream);
            }
        });
        Router(state, url)
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.clone()
    }
}

fn answer(state: &Mutex<State>, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return;
        }
        if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut state = state.lock().unwrap();
    state.let_go();
    let (status, answer) = match (method, path.strip_prefix("/workers")) {
        _ if state.is_away() => ("503 Service Unavailable", json!({"error": "restarting"})),
        ("GET", Some("")) => {
            ("200 OK", json!({"workers": state.workers, "total": state.workers.len()}))
        }
        ("POST", Some("")) => {
            let mut worker: Value = serde_json::from_slice(&body).unwrap();
            if state.workers.iter().any(|w| w["url"] == worker["url"]) {
                ("409 Conflict", json!({"code": "WORKER_ALREADY_EXISTS"}))
            } else {
                state.asked.push(format!("POST {worker}"));
                worker["id"] = json!(format!("w-{}", state.asked.len()));
                (worker["status"], worker["is_healthy"]) = (json!("ready"), json!(true));
                state.workers.push(worker);
                ("202 Accepted", json!({"status": "accepted"}))
            }
        }
        ("DELETE", Some(id)) => {
            let id = id.trim_start_matches('/').to_owned();
            state.asked.push(format!("DELETE {id}"));
            for worker in state.workers.iter_mut().filter(|w| w["id"] == json!(id)) {
                (worker["status"], worker["is_healthy"]) = (json!("draining"), json!(false));
            }
            state.leaving.push((json!(id), Instant::now() + LETS_GO_AFTER));
            ("202 Accepted", json!({"status": "accepted"}))
        }
        _ => ("404 Not Found", json!({})),
    };
    let answer = answer.to_string();
    let length = answer.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client that leaves is its own business.
    let _ = stream.write_all(format!("{head}{answer}").as_bytes());
}

#[test]
fn a_worker_is_drained_through_its_router_and_put_back() {
    let router = Router::start();
    let site = by_script("routed", &format!("router = \"{}\"\n", router.1), |_, _| ":".into());
    let before = read(&site.dir.join("serve.sh"));
    // A router that does not know the server is no way to drain it: nothing is touched.
    let (code, done, _) = run(&mut site.change(&SET));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done}");
    assert!(done["reasons"].to_string().contains("among its workers"), "{done}");
    assert_eq!((read(&site.dir.join("serve.sh")), router.asked().len()), (before, 0));

    let worker = json!({"id": "w-1", "url": site.url, "worker_type": "regular", "priority": 50,
                        "is_healthy": true, "status": "ready", "labels":
                        {"zone": "a", "max_running_requests": "4"}});
    // Another server of this machine at the same port of another address, which is left alone.
    let url = site.url.replace("127.0.0.1", "127.0.0.2");
    let other = json!({"id": "w-0", "url": url, "is_healthy": true, "status": "ready"});
    router.0.lock().unwrap().workers.extend([other, worker]);
    let (code, done, said) = run(&mut site.change(&SET));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(running(&site), 8);
    let again = json!({"url": site.url, "worker_type": "regular", "priority": 50,
                       "labels": {"zone": "a"}});
    assert_eq!(router.asked(), ["DELETE w-1".to_owned(), format!("POST {again}")]);
    let record = site.dir.join(done["record"].as_str().unwrap());
    let journal = read(&record.join("journal.jsonl"));
    let at = |word: &str| journal.find(word).unwrap_or_else(|| panic!("{word}: {journal}"));
    let idle = at("\"word\":\"drained\",\"facts\":{\"router\":");
    assert!(journal[idle..].contains("\"idle\":true"), "{journal}");
    assert!(at("\"word\":\"drain\"") < idle && idle < at("\"word\":\"started\""), "{journal}");
    end(site);
}

/// A bug of the first version: where the router did not answer when the worker was to be drained on
/// the way back, it stayed out of rotation, and the change was rolled back, and verified.
#[test]
fn a_router_s_503_on_the_way_back_does_not_leave_the_worker_out() {
    let router = Router::start();
    let never = |_: u16, _: &Path| "exec sleep 1000".to_owned();
    let site = by_script("routed-back", &format!("router = \"{}\"\n", router.1), never);
    let path = site.dir.join("targets/ours.toml");
    std::fs::write(&path, read(&path).replace("seconds = 300", "seconds = 15")).unwrap();
    let worker = json!({"id": "w-1", "url": site.url, "is_healthy": true, "status": "ready"});
    {
        let mut state = router.0.lock().unwrap();
        state.workers.push(worker);
        // That of the drain, and the first one of those that put it back.
        state.away = Some((site.dir.join("serve.sh"), 2));
    }
    let (code, done, said) = run(&mut site.change(&SET));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
    assert!(said.contains("not drained: ") && said.contains("rotation of"), "{said}");
    assert_eq!(running(&site), 4);
    let state = router.0.lock().unwrap();
    assert_eq!(state.away.as_ref().map(|(_, left)| *left), Some(0));
    assert_eq!((state.workers.len(), &state.workers[0]["url"]), (1, &json!(site.url)));
    assert_eq!(state.workers[0]["status"], "ready");
    drop(state);
    end(site);
}

/// Killed around its drain: announced (7), the worker out of rotation and not said (8), said, and
/// back in rotation and not said (10). The router has the worker again in the end, once.
#[test]
fn a_drain_killed_in_the_middle_is_settled() {
    let router = Router::start();
    let site =
        by_script("routed-killed", &format!("router = \"{}\"\n", router.1), |_, _| ":".into());
    let worker = json!({"id": "w-1", "url": site.url, "worker_type": "regular",
                        "is_healthy": true, "status": "ready"});
    router.0.lock().unwrap().workers.push(worker);
    let mut is = 4;
    for (death, way) in [
        ("after-7", "resume"),
        ("before-8", "rollback"),
        ("after-8", "resume"),
        ("before-10", "resume"),
    ] {
        let wanted = if is == 4 { 8 } else { 4 };
        let set = format!("sched.max-running-requests={wanted}");
        let mut change = site.change(&["--target", "ours", "--set", &set, "--yes"]);
        let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
        assert_eq!(out.status.code(), None, "{death}: {out:?}");
        let (code, done, said) = run(&mut site.change(&[way]));
        assert_eq!(code, 0, "{death}: {done} {said}");
        is = if way == "resume" { wanted } else { is };
        assert_eq!(running(&site), is, "{death}");
        let workers = router.0.lock().unwrap().workers.clone();
        assert_eq!(workers[0]["status"], "ready", "{death}");
        let urls: Vec<&Value> = workers.iter().map(|w| &w["url"]).collect();
        assert_eq!(urls, [&json!(site.url)], "{death}");
        assert_eq!(workers[0]["worker_type"], "regular", "{death}");
    }
    end(site);
}

/// What was found: on its way back a change waited two minutes for a worker that took connections
/// and never answered, and as long again for its load, and said nothing.
#[test]
fn a_mute_worker_is_not_waited_for_on_the_way_back() {
    let router = Router::start();
    let site = by_script("routed-mute", &format!("router = \"{}\"\n", router.1), |_, _| ":".into());
    let worker = json!({"id": "w-1", "url": site.url, "is_healthy": true, "status": "ready"});
    router.0.lock().unwrap().workers.push(worker);
    let mut change = site.change(&SET);
    // Flipped: the worker is in rotation again.
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", "after-10").output().unwrap();
    assert_eq!(out.status.code(), None, "{out:?}");
    let journal = site.dir.join(site.log()[0]["record"].as_str().unwrap()).join("journal.jsonl");
    let drains = || read(&journal).matches("\"word\":\"drained\"").count();
    let before = drains();
    let pid = lockstep_change::process::serving(&site.url).unwrap().pid.to_string();
    let send = |name: &str| {
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    };
    send("STOP");
    let (code, done, said) = std::thread::scope(|scope| {
        scope.spawn(|| {
            // It ends by itself once it is asked to, which comes after the drain.
            crate::common::wait_until("it is drained", || drains() > before);
            send("CONT");
        });
        run(&mut site.change(&["rollback"]))
    });
    assert_eq!((code, &done["state"]), (0, &json!("rolled_back")), "{done} {said}");
    let mute =
        format!("does not tell its models: the server at {} does not answer within 15 s", site.url);
    assert!(said.contains(&mute), "{said}");
    assert_eq!(running(&site), 4);
    assert_eq!(router.0.lock().unwrap().workers[0]["status"], "ready");
    end(site);
}
