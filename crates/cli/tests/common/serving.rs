//! `lockstep serve` with the real model, as a child process.

use super::{lockstep, model, temp_dir};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts `lockstep serve` on a free port and waits for the line that says it is ready.
pub fn serve(test: &str, model: &Path, kv_memory: &str, flags: &[&str]) -> (Child, Value) {
    start(&temp_dir(test), model, kv_memory, flags, Stdio::null())
}

fn start(dir: &Path, model: &Path, kv_memory: &str, flags: &[&str], log: Stdio) -> (Child, Value) {
    let mut child = Command::new(lockstep())
        .args(["serve", "--json", "--port", "0", "--kv-memory", kv_memory, "--model"])
        .arg(model)
        .args(flags)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    (child, ready)
}

/// A running server; killed when dropped.
pub struct Serving {
    pub child: Child,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Serving {
    pub fn start(test: &str, flags: &[&str]) -> Serving {
        let (child, ready) = serve(test, &model(), "64MiB", flags);
        Serving { child, ready }
    }

    /// One of another model, which works in this folder, and its log so far.
    pub fn logged(dir: &Path, model: &Path, flags: &[&str]) -> (Serving, String) {
        let log = dir.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let (child, ready) = start(dir, model, "64MiB", flags, file.into());
        (Serving { child, ready }, std::fs::read_to_string(&log).unwrap())
    }

    pub fn url(&self) -> &str {
        self.ready["url"].as_str().unwrap()
    }

    pub fn send(&self, path: &str, body: &Value) -> TcpStream {
        let address = self.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    pub fn post(&self, path: &str, body: &Value) -> (String, Value) {
        let mut text = String::new();
        self.send(path, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}")))
    }

    /// A page as text.
    pub fn get(&self, path: &str) -> String {
        let address = self.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub fn status(&self) -> Value {
        let out = Command::new(lockstep()).args(["status", self.url(), "--json"]).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
