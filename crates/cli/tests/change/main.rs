//! `lockstep change` on real servers: kept and rolled back, live and by restart, killed at every
//! line of its journal.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod live;
mod restart;
mod units;

use common::{lockstep, model, temp_dir};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with settings, a server on it, and the folder of records.
pub struct Site {
    pub dir: PathBuf,
    pub server: Option<Child>,
    pub url: String,
}

pub const SETTINGS: &str = "# ours\n[decode]\ngraph-max-bs = 4 # small\n[sched]\n\
                            max-running-requests = 8\n[pool]\nkv-memory = \"64MiB\"\n";

impl Site {
    /// A site whose server takes a free port.
    pub fn new(test: &str, flags: &[&str]) -> Site {
        let dir = temp_dir(test);
        std::fs::write(dir.join("lockstep.toml"), SETTINGS).unwrap();
        let mut site = Site { dir, server: None, url: String::new() };
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
            .arg(model())
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

    /// `lockstep change` with a small load; more arguments after it.
    pub fn change(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(lockstep());
        command.arg("change").args(arguments).arg("--json").current_dir(&self.dir);
        command
    }

    /// A change of the server, live.
    pub fn set(&self, set: &str, more: &[&str]) -> Command {
        let load = ["--watch", "0", "--concurrency", "4", "--tokens", "2"];
        let gates = ["--tolerance", "95", "--p99-factor", "100"];
        let what = ["--url", &self.url, "--set", set, "--yes"];
        self.change(&[&what[..], &load, &gates, more].concat())
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
