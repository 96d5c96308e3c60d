//! A proxy that damages answers on purpose: what a broken server would do, at a known rate.
//!
//! It speaks just enough HTTP/1.1: one request a connection, whole answers read before they are
//! damaged, everything else passed on as it comes. `GET /faults` says how many it put in.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done to an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Another session's answer comes instead, one that tells a code of it. (A tag of four symbols
    /// is too short to tell a stranger's from one that a model made up.)
    Swap,
    /// One symbol of a code is another.
    Alter,
    /// A piece of a stream is left out, or some symbols of a whole answer.
    Drop,
    /// A piece comes twice.
    Duplicate,
    /// It stops half way and keeps the connection.
    Stall,
    /// It stops half way and closes the connection.
    Cut,
    /// A special token stands in the text.
    Leak,
    /// Status 500.
    Error,
}

impl Fault {
    pub const ALL: [(Fault, &'static str); 8] = [
        (Fault::Swap, "swap"),
        (Fault::Alter, "alter"),
        (Fault::Drop, "drop"),
        (Fault::Duplicate, "duplicate"),
        (Fault::Stall, "stall"),
        (Fault::Cut, "cut"),
        (Fault::Leak, "leak"),
        (Fault::Error, "error"),
    ];

    pub fn find(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|(_, n)| *n == name).map(|(f, _)| f)
    }
}

/// A fault, and in how many answers it is: one in `one_in`, once `after` answers have passed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub fault: Fault,
    pub one_in: u64,
    pub after: u64,
    pub seed: u64,
}

/// A proxy that runs until the process ends.
pub struct Proxy {
    pub address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Faults put in so far.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Relaxed)
    }

    /// Begins to damage after this many more answers; none before.
    pub fn after(&self, answers: u64) {
        self.shared.after.store(self.shared.seen.load(Relaxed) + answers, Relaxed);
    }
}

/// Whether an answer is streamed, and whether it calls tools.
type Form = (bool, bool);
/// Who asked for an answer, and its body.
type Kept = (String, Vec<u8>);

struct Shared {
    upstream: String,
    plan: Plan,
    after: AtomicU64,
    seen: AtomicU64,
    faults: AtomicU64,
    draws: AtomicU64,
    /// The last whole answer of each form.
    last: Mutex<HashMap<Form, Kept>>,
}

/// Starts a proxy on a free port in front of `upstream` (host:port).
pub fn start(upstream: &str, plan: Plan) -> io::Result<Proxy> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let shared = Arc::new(Shared {
        upstream: upstream.into(),
        plan,
        after: AtomicU64::new(plan.after),
        seen: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        draws: AtomicU64::new(plan.seed),
        last: Mutex::default(),
    });
    let of_thread = Arc::clone(&shared);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&of_thread);
            // A client that leaves ends its connection's thread with an error; so be it.
            std::thread::spawn(move || drop(serve(&shared, stream)));
        }
    });
    Ok(Proxy { address, shared })
}

impl Shared {
    fn draw(&self) -> u64 {
        let mut z = self.draws.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }
}

fn serve(shared: &Shared, client: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let Some((head, body)) = read_request(&mut reader)? else { return Ok(()) };
    let mut client = client;
    if head.starts_with("GET /faults ") {
        let text = json!({"faults": shared.faults.load(Relaxed)}).to_string();
        return respond(&mut client, "200 OK", "application/json", text.as_bytes());
    }
    let mut upstream = TcpStream::connect(&shared.upstream)?;
    upstream.set_read_timeout(Some(Duration::from_secs(600)))?;
    upstream.write_all(head.as_bytes())?;
    upstream.write_all(&body)?;
    if !head.starts_with("POST /v1/chat/completions") {
        io::copy(&mut upstream, &mut client)?;
        return Ok(());
    }
    let seen = shared.seen.fetch_add(1, Relaxed);
    let due =
        seen >= shared.after.load(Relaxed) && shared.draw().is_multiple_of(shared.plan.one_in);
    if !due && shared.plan.fault != Fault::Swap {
        io::copy(&mut upstream, &mut client)?;
        return Ok(());
    }
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    damage(shared, &mut client, &body, &answer, due)
}

/// Head (made to close) and body of a request.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut head = String::new();
    let mut length = 0usize;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    let mut body = vec![0; length.min(64 << 20)];
    reader.read_exact(&mut body)?;
    Ok(Some((head, body)))
}

fn respond(client: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )?;
    client.write_all(body)
}

/// Status line, content type and body of a whole answer, its chunks put together.
fn take_apart(answer: &[u8]) -> Option<(String, String, Vec<u8>)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.lines().next()?.split_once(' ')?.1.to_owned();
    let field = |name: &str| {
        head.lines().find_map(|l| {
            let (n, v) = l.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| v.trim().to_owned())
        })
    };
    let kind = field("content-type").unwrap_or_default();
    let mut rest = &answer[end + 4..];
    if field("transfer-encoding").is_none_or(|t| !t.eq_ignore_ascii_case("chunked")) {
        return Some((status, kind, rest.to_vec()));
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..line]).into_owned();
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let from = line + 2;
        if size == 0 || rest.len() < from + size + 2 {
            break;
        }
        body.extend_from_slice(&rest[from..from + size]);
        rest = &rest[from + size + 2..];
    }
    Some((status, kind, body))
}

/// Who asks: the first user message's beginning.
fn asker(request: &Value) -> String {
    let first = request["messages"][1]["content"].as_str().unwrap_or("");
    first.chars().take(60).collect()
}

fn damage(
    shared: &Shared,
    client: &mut TcpStream,
    request: &[u8],
    answer: &[u8],
    due: bool,
) -> io::Result<()> {
    let Some((status, kind, body)) = take_apart(answer) else { return Ok(()) };
    let request: Value = serde_json::from_slice(request).unwrap_or(Value::Null);
    let streamed = request["stream"] == true;
    let mut body = body;
    if !status.starts_with("200") {
        return respond(client, &status, &kind, &body);
    }
    let done = match shared.plan.fault {
        Fault::Swap => {
            let form = (streamed, String::from_utf8_lossy(&body).contains("\"arguments\""));
            let mut last = shared.last.lock().unwrap();
            let other = last.get(&form).filter(|(who, _)| due && *who != asker(&request)).cloned();
            if tells_a_code(&said(&body, streamed)) {
                last.insert(form, (asker(&request), body.clone()));
            }
            other.map(|(_, other)| body = other).is_some()
        }
        Fault::Error if due => {
            shared.faults.fetch_add(1, Relaxed);
            let words = br#"{"error":{"message":"injected"}}"#;
            return respond(client, "500 Internal Server Error", "application/json", words);
        }
        Fault::Stall | Fault::Cut if due => {
            shared.faults.fetch_add(1, Relaxed);
            return half(shared, client, &kind, &body);
        }
        _ if due => edit(shared, &mut body, streamed),
        _ => false,
    };
    shared.faults.fetch_add(u64::from(done), Relaxed);
    respond(client, &status, &kind, &body)
}

/// Half an answer, and then nothing.
fn half(shared: &Shared, client: &mut TcpStream, kind: &str, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    write!(client, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n")?;
    client.write_all(&body[..length / 2])?;
    client.flush()?;
    if shared.plan.fault == Fault::Stall {
        // Until the client gives up.
        let _ = client.read(&mut [0; 1]);
    }
    Ok(())
}

/// Changes the text of an answer. False where it has none that could be.
fn edit(shared: &Shared, body: &mut Vec<u8>, streamed: bool) -> bool {
    let text = String::from_utf8_lossy(body).into_owned();
    let edited = if streamed { edit_stream(shared, &text) } else { edit_whole(shared, &text) };
    match edited {
        Some(text) => *body = text.into_bytes(),
        None => return false,
    }
    true
}

fn edit_whole(shared: &Shared, text: &str) -> Option<String> {
    let mut answer: Value = serde_json::from_str(text).ok()?;
    let message = &mut answer["choices"][0]["message"];
    let field = match message["tool_calls"].as_array_mut().filter(|c| !c.is_empty()) {
        Some(calls) if shared.plan.fault != Fault::Leak => {
            let at = shared.below(calls.len());
            &mut calls[at]["function"]["arguments"]
        }
        _ => &mut message["content"],
    };
    *field = edit_text(shared, field.as_str().unwrap_or(""))?.into();
    Some(answer.to_string())
}

/// The text that a chunk adds.
fn addition(chunk: &mut Value) -> Option<&mut Value> {
    let delta = chunk.get_mut("choices")?.get_mut(0)?.get_mut("delta")?;
    let has_content = delta.get("content").and_then(Value::as_str).is_some_and(|t| !t.is_empty());
    if has_content {
        return delta.get_mut("content");
    }
    let arguments =
        delta.get_mut("tool_calls")?.get_mut(0)?.get_mut("function")?.get_mut("arguments")?;
    arguments.as_str().is_some_and(|t| !t.is_empty()).then_some(arguments)
}

/// All that an answer says, its calls' arguments included.
fn said(body: &[u8], streamed: bool) -> String {
    let text = String::from_utf8_lossy(body);
    if !streamed {
        return text.into_owned();
    }
    let chunk = |event: &str| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok();
    let added = |mut chunk: Value| addition(&mut chunk)?.as_str().map(str::to_owned);
    text.split("\n\n").filter_map(chunk).filter_map(added).collect()
}

fn tells_a_code(text: &str) -> bool {
    text.as_bytes().split(|b| !is_symbol(*b)).any(|run| run.len() >= 6)
}

fn edit_stream(shared: &Shared, text: &str) -> Option<String> {
    let mut events: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
    let parse = |event: &str| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok();
    let has_symbol = |event: &&String| {
        let mut chunk = parse(event);
        let piece = chunk.as_mut().and_then(addition).and_then(|v| v.as_str().map(str::to_owned));
        piece.is_some_and(|p| shared.plan.fault == Fault::Leak || p.bytes().any(is_symbol))
    };
    let usable: Vec<usize> =
        events.iter().enumerate().filter(|(_, e)| has_symbol(e)).map(|(at, _)| at).collect();
    let at = *usable.get(shared.below(usable.len()))?;
    match shared.plan.fault {
        Fault::Drop if usable.len() > 1 => drop(events.remove(at)),
        Fault::Duplicate => events.insert(at, events[at].clone()),
        _ => {
            let mut chunk = parse(&events[at])?;
            let piece = addition(&mut chunk)?;
            *piece = edit_text(shared, piece.as_str()?)?.into();
            events[at] = format!("data: {chunk}");
        }
    }
    Some(events.join("\n\n"))
}

fn is_symbol(byte: u8) -> bool {
    b"346789CDGHKQWXYZ".contains(&byte)
}

fn edit_text(shared: &Shared, text: &str) -> Option<String> {
    if shared.plan.fault == Fault::Leak {
        return Some(format!("{text}<|im_end|>"));
    }
    let bytes = text.as_bytes();
    let symbols: Vec<usize> = (0..bytes.len()).filter(|at| is_symbol(bytes[*at])).collect();
    let at = *symbols.get(shared.below(symbols.len()))?;
    let end = (at..bytes.len().min(at + 2)).take_while(|i| is_symbol(bytes[*i])).last()? + 1;
    Some(match shared.plan.fault {
        Fault::Drop => format!("{}{}", &text[..at], &text[end..]),
        Fault::Duplicate => format!("{}{}", &text[..end], &text[at..]),
        _ => {
            let other = if bytes[at] == b'7' { 'W' } else { '7' };
            format!("{}{other}{}", &text[..at], &text[at + 1..])
        }
    })
}
