//! Prefill and decode on workers of their own behind a router, as SGLang's answers are recorded: what
//! a change of one of them is told before anything is touched.

use super::{read, run};
use crate::common::{lockstep, temp_dir};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Answers by path; they may be set later, since they hold addresses.
#[derive(Clone)]
struct Recorded {
    url: String,
    answers: Arc<Mutex<Vec<(&'static str, Value)>>>,
}

impl Recorded {
    fn start() -> Recorded {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let recorded = Recorded { url, answers: Arc::default() };
        let shared = recorded.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.answer(stream));
            }
        });
        recorded
    }

    fn says(&self, path: &'static str, answer: Value) {
        self.answers.lock().unwrap().push((path, answer));
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let Some(Ok(first)) = lines.next() else { return };
        lines.map_while(Result::ok).take_while(|l| !l.is_empty()).for_each(drop);
        let path = first.split(' ').nth(1).unwrap();
        let answers = self.answers.lock().unwrap().clone();
        let found = answers.into_iter().find(|(p, _)| *p == path);
        let (status, body) = match found {
            Some((_, answer)) => ("200 OK", answer.to_string()),
            None => ("404 Not Found", json!({"detail": "Not Found"}).to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        // A client that leaves is its own business.
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    }
}

/// `/server_info` of SGLang 0.5.23.
fn info(role: &str, max_bs: Option<u32>, command: &str) -> Value {
    let sizes: Vec<u32> =
        [1, 2, 4, 8, 12, 16, 24, 32].into_iter().filter(|_| max_bs.is_some()).collect();
    json!({
        "version": "0.5.23", "model_path": "deepseek-ai/DeepSeek-V4-Flash",
        "served_model_name": "deepseek-v4-flash", "disaggregation_mode": role,
        "max_running_requests": 256, "max_queued_requests": 32, "max_total_num_tokens": 786_432,
        "cuda_graph_max_bs_decode": max_bs, "launch_command": command,
        "internal_states": [{
            "effective_max_running_requests_per_dp": 256, "decode_cuda_graph_bs": sizes,
            "decode_cuda_graph_memory_gb": max_bs.map(|_| 0.57),
        }],
    })
}

fn models() -> Value {
    json!({"object": "list", "data": [{"id": "deepseek-v4-flash", "owned_by": "sglang"}]})
}

struct Pair {
    router: Recorded,
    prefill: Recorded,
    decode: [Recorded; 2],
}

/// A router, a prefill worker, two decode workers.
fn deployment() -> Pair {
    let pair = Pair {
        router: Recorded::start(),
        prefill: Recorded::start(),
        decode: [Recorded::start(), Recorded::start()],
    };
    let launch = "python -m sglang.launch_server --disaggregation-mode";
    let flags = "--max-queued-requests 32";
    pair.prefill.says("/server_info", info("prefill", None, &format!("{launch} prefill {flags}")));
    for decode in &pair.decode {
        let command = format!("{launch} decode {flags} --cuda-graph-max-bs-decode 32");
        decode.says("/server_info", info("decode", Some(32), &command));
    }
    for server in [&pair.prefill, &pair.decode[0], &pair.decode[1], &pair.router] {
        server.says("/v1/models", models());
    }
    let worker = |id: &str, at: &Recorded, role: &str| json!({"id": id, "url": at.url, "worker_type": role, "is_healthy": true, "runtime": "sglang"});
    let workers = json!([
        worker("w-1", &pair.prefill, "prefill"),
        worker("w-2", &pair.decode[0], "decode"),
        worker("w-3", &pair.decode[1], "decode"),
    ]);
    pair.router.says("/workers", json!({"workers": workers, "total": 3}));
    // What a gateway passes on is its first prefill worker's.
    pair.router.says("/get_server_info", info("prefill", None, ""));
    pair
}

fn change(dir: &Path, arguments: &[&str]) -> (i32, Value, String) {
    let mut command = Command::new(lockstep());
    command.arg("change").args(arguments).arg("--json").current_dir(dir);
    run(&mut command)
}

fn words<'a>(prediction: &'a Value, id: &str) -> Vec<&'a str> {
    let all = prediction["findings"].as_array().unwrap_or_else(|| panic!("{prediction}"));
    all.iter().filter(|f| f["id"] == id).map(|f| f["words"].as_str().unwrap()).collect()
}

#[test]
fn a_decode_worker_s_change_is_told_what_its_role_means() {
    let (dir, pair) = (temp_dir("pair"), deployment());
    std::fs::write(
        dir.join("serve.sh"),
        "exec python -m sglang.launch_server --disaggregation-mode decode \\\n  \
         --max-queued-requests 32 --cuda-graph-max-bs-decode 32\n",
    )
    .unwrap();
    let (url, router) = (&pair.decode[0].url, &pair.router.url);
    let init =
        ["init", "--url", url, "--router", router, "--script", "serve.sh", "--name", "decode"];
    let (code, done, said) = change(&dir, &init);
    assert_eq!((code, done["kind"].as_str()), (0, Some("sglang")), "{done} {said}");
    let target = read(&dir.join("targets/decode.toml"));
    for (server, role) in [(&pair.prefill, "prefill"), (&pair.decode[1], "decode")] {
        let entry = format!("[[workers]]\nurl = \"{}\"\nrole = \"{role}\"\n", server.url);
        assert!(target.contains(&entry), "{target}");
    }

    let set = ["--target", "decode", "--set", "decode.graph-max-bs=96", "--dry-run"];
    let (code, p, said) = change(&dir, &set);
    assert_eq!(code, 0, "{p} {said}");
    assert_eq!(p["buckets"]["new"], json!([40, 48, 56, 64, 72, 80, 88, 96]));
    assert!(words(&p, "requests-through-router")[0].contains(router.as_str()), "{p}");
    assert!(words(&p, "others-carry")[0].contains(&pair.decode[1].url), "{p}");
    let differ = format!("{} has 32", pair.decode[1].url);
    assert!(words(&p, "workers-differ")[0].contains(&differ), "{p}");
    // The queue limit does nothing on any of the three workers.
    let dead = words(&p, "sglang-queue-limit-in-pd");
    assert_eq!(dead.len(), 3, "{p}");
    assert!(
        dead.iter().any(|w| w.starts_with(&format!("at {} (prefill)", pair.prefill.url))),
        "{p}"
    );

    // The same limit set on purpose; and decode graphs at the prefill worker.
    let limit = ["--target", "decode", "--set", "max-queued-requests=64", "--dry-run"];
    let (_, p, _) = change(&dir, &limit);
    assert!(words(&p, "sglang-queue-limit-in-pd")[0].contains("does nothing"), "{p}");
    let text = target
        .replace(url.as_str(), "X")
        .replace(&pair.prefill.url, url)
        .replace('X', &pair.prefill.url);
    std::fs::write(
        dir.join("targets/prefill.toml"),
        text.replace("role = \"prefill\"", "role = \"decode\""),
    )
    .unwrap();
    let set = ["--target", "prefill", "--set", "cuda-graph-max-bs-decode=96", "--dry-run"];
    let (_, p, _) = change(&dir, &set);
    assert!(
        words(&p, "sglang-decode-graphs-in-prefill")[0].contains("does nothing in this role"),
        "{p}"
    );
    assert!(words(&p, "only-worker")[0].contains("only prefill worker"), "{p}");
}

/// A router that lists a worker as something else, and a worker without a router: neither is begun.
#[test]
fn a_role_that_does_not_fit_is_not_begun() {
    let (dir, pair) = (temp_dir("pair-wrong"), deployment());
    std::fs::write(dir.join("serve.sh"), "exec sglang --cuda-graph-max-bs-decode 32\n").unwrap();
    let target = |more: &str| {
        format!(
            "kind = \"sglang\"\nurl = \"{}\"\n{more}[launch]\nmethod = \"script\"\npath = \"serve.sh\"\n",
            pair.decode[0].url
        )
    };
    std::fs::create_dir_all(dir.join("targets")).unwrap();
    let listed = format!("workers = [{{url = \"{}\", role = \"prefill\"}}]\n", pair.decode[0].url);
    let router = format!("router = \"{}\"\n", pair.router.url);
    for (more, said) in [
        (format!("{router}{listed}"), "runs as decode, and is listed as prefill"),
        (String::new(), "answers no request by itself"),
    ] {
        std::fs::write(dir.join("targets/d.toml"), target(&more)).unwrap();
        let set = ["--target", "d", "--set", "cuda-graph-max-bs-decode=96", "--yes"];
        let (code, done, words) = change(&dir, &set);
        assert_eq!(code, 12, "{done} {words}");
        assert!(done["error"]["message"].as_str().unwrap().contains(said), "{done}");
        assert!(!dir.join("records").exists(), "nothing was begun");
    }
}

/// A version that does not list its captured sizes, under systemd: they are in the unit's journal,
/// which a program called `journalctl` has here.
#[test]
fn what_a_unit_s_server_captured_is_read_from_its_journal() {
    let (dir, server) = (temp_dir("unit-journal"), Recorded::start());
    server.says("/v1/models", models());
    server.says(
        "/server_info",
        json!({"version": "0.5.16", "model_path": "m", "disaggregation_mode": "null",
               "cuda_graph_max_bs_decode": 4, "max_running_requests": 64,
               "internal_states": [{"memory_usage": {"graph": 0.5}}]}),
    );
    let journal = "#!/bin/sh\necho \"$@\" >> calls\necho 'server_args=ServerArgs(x)'\n\
                   echo 'Capture target decode CUDA graph begin. bs=[4, 2, 1], avail mem=15.01 GB'\n";
    std::fs::create_dir_all(dir.join("bin")).unwrap();
    std::fs::create_dir_all(dir.join("targets")).unwrap();
    std::fs::write(dir.join("bin/journalctl"), journal).unwrap();
    std::fs::set_permissions(dir.join("bin/journalctl"), PermissionsExt::from_mode(0o755)).unwrap();
    let target = format!(
        "kind = \"sglang\"\nurl = \"{}\"\n[launch]\nmethod = \"systemd\"\nunit = \"s.service\"\n\
         user = true\n",
        server.url
    );
    std::fs::write(dir.join("targets/s.toml"), target).unwrap();
    let set = ["change", "--set", "decode.graph-max-bs=8", "--dry-run", "--json"];
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    let (code, p, said) =
        run(Command::new(lockstep()).args(set).env("PATH", path).current_dir(&dir));
    assert_eq!(code, 0, "{p} {said}");
    assert_eq!(p["buckets"], json!({"before": [1, 2, 4], "after": [1, 2, 4, 8], "new": [8]}));
    // Twice the largest batch: at most as much again as 0.5 GB.
    assert_eq!(p["memory"]["kept_bytes"], 1u64 << 29);
    assert!(read(&dir.join("calls")).starts_with("--user-unit s.service "), "{p}");
}
