//! `lockstep change` on real servers: kept and rolled back, live and by restart, killed at every
//! line of its journal.

mod clock;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod live;
mod pairs;
#[path = "../../../check/tests/support/proxy.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod proxy;
mod records;
mod restart;
mod routed;
mod small;
mod theirs;
mod units;

use common::{lockstep, temp_dir};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with settings, a server on it, a target, and the folder of records.
pub struct Site {
    pub dir: PathBuf,
    pub model: PathBuf,
    pub server: Option<Child>,
    pub url: String,
}

pub const SETTINGS: &str = "# ours\n[decode]\ngraph-max-bs = 4 # small\n[sched]\n\
                            max-running-requests = 8\n[pool]\nkv-memory = \"64MiB\"\n";

/// Gates that take seconds on the small model. Its times are noise, so they are not judged.
pub const GATES: &str = "[gates]\nconcurrency = [4]\nrounds = 1\nrepeats = 1\ninput = 8\n\
                         tokens = 2\ntolerance-percent = 99\np99-factor-max = 1000\n[check]\n\
                         sessions = 24\nrounds = 1\ncontext = 16\ntokens = 4\n\
                         kinds = [\"echo\"]\n[watch]\nseconds = 0\n";

impl Site {
    /// A site whose server takes a free port.
    pub fn new(test: &str, flags: &[&str]) -> Site {
        let dir = temp_dir(test);
        std::fs::write(dir.join("lockstep.toml"), SETTINGS).unwrap();
        let model = small::chat_model(&dir, "llama");
        let mut site = Site { dir, model, server: None, url: String::new() };
        site.start(&[&["--port", "0"], flags].concat());
        site
    }

    pub fn start(&mut self, flags: &[&str]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("server.log"))
            .unwrap();
        let mut child = Command::new(lockstep())
            .args(["serve", "--json", "--model"])
            .arg(&self.model)
            .args(flags)
            .current_dir(&self.dir)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.url = ready["url"].as_str().unwrap().to_owned();
        self.server = Some(child);
        let url = self.url.clone();
        self.write_target(&url);
    }

    /// `targets/ours.toml`: the server at `url`, changed live.
    pub fn write_target(&self, url: &str) {
        std::fs::create_dir_all(self.dir.join("targets")).unwrap();
        let text =
            format!("kind = \"lockstep\"\nurl = \"{url}\"\n[launch]\nmethod = \"live\"\n{GATES}");
        std::fs::write(self.dir.join("targets/ours.toml"), text).unwrap();
    }

    /// An answer of the server's own.
    pub fn post(&self, path: &str, body: &str) -> Value {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Ends the server and starts it again at the same address.
    pub fn again(&mut self) {
        self.stop();
        let port = self.url.rsplit(':').next().unwrap().to_owned();
        self.start(&["--port", &port]);
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.server.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// `lockstep change` with these arguments.
    pub fn change(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(lockstep());
        command.arg("change").args(arguments).arg("--json").current_dir(&self.dir);
        command
    }

    /// A change of the server, live.
    pub fn set(&self, set: &str, more: &[&str]) -> Command {
        self.change(&[&["--target", "ours", "--set", set, "--yes"], more].concat())
    }

    pub fn settings(&self) -> String {
        std::fs::read_to_string(self.dir.join("lockstep.toml")).unwrap()
    }

    pub fn status(&self) -> Value {
        let out = Command::new(lockstep()).args(["status", &self.url, "--json"]).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }

    pub fn buckets(&self) -> Value {
        self.status()["internal_states"][0]["decode_cuda_graph_bs"].clone()
    }

    pub fn log(&self) -> Vec<Value> {
        let out = self.change(&["log"]).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }

    /// Generations of the server, as numbers and states.
    pub fn generations(&self) -> Vec<String> {
        let status = self.status();
        let all = status["lockstep"]["engine"]["generations"].as_array().unwrap().clone();
        all.iter()
            .map(|g| format!("{} {}", g["generation"], g["state"].as_str().unwrap()))
            .collect()
    }

    pub fn records(&self) -> PathBuf {
        self.dir.join("records")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Exit code and the JSON on standard output.
pub fn run(command: &mut Command) -> (i32, Value, String) {
    let out = command.output().unwrap();
    let code = out.status.code().unwrap_or(-1);
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    (code, json(&out), errors)
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or(Value::Null)
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
