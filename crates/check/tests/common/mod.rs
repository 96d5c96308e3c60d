//! A server that says exactly what a test has written down, byte for byte and piece by piece:
//! what no well-behaved server would send has to come from somewhere.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What to do with a request.
#[derive(Clone)]
pub enum Act {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Wait.
    Wait(Duration),
    /// Close the connection.
    Close,
}

/// The address of a running script, and what it has seen.
pub struct Script {
    pub url: String,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    pub closed_by_client: Arc<AtomicUsize>,
}

/// Serves each request with the acts of its number; the last ones again after that.
pub async fn serve(acts: Vec<Vec<Act>>) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let script = Script {
        url: format!("http://{}", listener.local_addr().unwrap()),
        connections: Arc::default(),
        requests: Arc::default(),
        closed_by_client: Arc::default(),
    };
    let (connections, requests) = (script.connections.clone(), script.requests.clone());
    let closed = script.closed_by_client.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(converse(stream, acts.clone(), requests.clone(), closed.clone()));
        }
    });
    script
}

async fn converse(
    mut stream: TcpStream,
    acts: Vec<Vec<Act>>,
    requests: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
) {
    while read_request(&mut stream).await {
        let at = requests.fetch_add(1, Ordering::SeqCst).min(acts.len() - 1);
        for act in &acts[at] {
            match act {
                Act::Send(bytes) => {
                    if stream.write_all(bytes).await.is_err() {
                        closed.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                }
                Act::Wait(time) => tokio::time::sleep(*time).await,
                Act::Close => return,
            }
        }
    }
    closed.fetch_add(1, Ordering::SeqCst);
}

/// Reads one request with its body; false where the client has gone.
async fn read_request(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    loop {
        let head = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|l| l.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |l| l.trim().parse().unwrap());
            if bytes.len() >= head + 4 + length {
                return true;
            }
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
            _ => return false,
        }
    }
}

/// A 200 with a chunked event stream, its events one HTTP chunk each.
pub fn stream_of(events: &[&str], is_ended: bool) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                      transfer-encoding: chunked\r\n\r\n"
        .to_vec();
    for event in events {
        let event = format!("data: {event}\n\n");
        bytes.extend(format!("{:x}\r\n{event}\r\n", event.len()).bytes());
    }
    if is_ended {
        bytes.extend(b"0\r\n\r\n");
    }
    bytes
}

/// A whole answer of a status.
pub fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// A chunk of a completion with one token.
pub fn token(text: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":null}}]}}"#)
}

/// The last chunk of a completion.
pub const FINISH: &str = r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#;
/// The usage chunk.
pub const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}"#;
