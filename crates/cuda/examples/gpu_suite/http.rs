//! A server as a child process, and a client: no more of HTTP than the suite needs.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that an answer or a piece of one may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running `lockstep serve`; it ends with this.
pub struct Server {
    child: Child,
    /// Host and port.
    pub address: String,
    /// Seconds from starting the process to its line that it is ready.
    pub seconds: f64,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on a free port; its log goes beside `log`.
pub fn serve(binary: &Path, args: &[&str], log: &Path) -> Result<Server, String> {
    let log = std::fs::File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let start = Instant::now();
    let mut child = Command::new(binary)
        .args(["serve", "--json", "--port", "0", "--log-interval", "0"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|e| format!("{}: {e}", binary.display()))?;
    let out = child.stdout.take().ok_or("a server without an output")?;
    let mut server = Server { child, address: String::new(), seconds: 0.0 };
    for line in BufReader::new(out).lines() {
        let line = line.map_err(|e| e.to_string())?;
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        if said["event"] == "ready" {
            let url = said["url"].as_str().unwrap_or_default();
            server.address = url.trim_start_matches("http://").to_string();
            server.seconds = start.elapsed().as_secs_f64();
            return Ok(server);
        }
    }
    Err("the server ended before it was ready: its log says why".into())
}

impl Server {
    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        Ok(stream)
    }

    /// An answer of JSON.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let mut text = String::new();
        let sent = self.send(method, path, body);
        sent.and_then(|mut s| s.read_to_string(&mut text)).map_err(|e| format!("{path}: {e}"))?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(format!("{path}: no answer"))?;
        let ok = head.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        if !ok {
            return Err(format!("{path}: {}: {body}", head.lines().next().unwrap_or_default()));
        }
        serde_json::from_str(body).map_err(|e| format!("{path}: {e}"))
    }

    /// The events of a stream.
    pub fn stream(&self, path: &str, body: &Value) -> Result<Vec<Value>, String> {
        let sent = self.send("POST", path, Some(body)).map_err(|e| format!("{path}: {e}"))?;
        let mut events = Vec::new();
        for line in BufReader::new(sent).lines() {
            let line = line.map_err(|e| format!("{path}: {e}"))?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(events);
            }
            let event: Value = serde_json::from_str(data).map_err(|e| format!("{path}: {e}"))?;
            if !event["error"].is_null() {
                return Err(format!("{path}: {event}"));
            }
            events.push(event);
        }
        Err(format!("{path}: the stream broke off after {} events", events.len()))
    }
}
