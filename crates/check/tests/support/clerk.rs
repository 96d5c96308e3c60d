//! A server that knows the protocol by heart: it reads the records out of the messages and answers
//! exactly, at once. Beside it a model is slow; what is proven on thousands of answers here is
//! proven on fewer with a model elsewhere.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How good a clerk, and how it shows itself.
#[derive(Clone, Copy, Default, Debug)]
pub struct Clerk {
    /// One in so many requests is always answered with a made-up value; 0: none.
    pub forgets_one_in: u64,
    /// One in so many answers, by count, has a made-up value; 0: none.
    pub stumbles_one_in: u32,
    /// Slots, shown as llama.cpp does; 0: it shows nothing.
    pub slots: u32,
    /// Requests above this are refused; 0: none are.
    pub refuses_above: u32,
    /// It counts answers by how many were asked for at once, as our server counts steps.
    pub counts_steps: bool,
    /// How long an answer takes.
    pub takes: Duration,
    /// It writes prompts out as ids (a byte is an id), as ours and vLLM do.
    pub tokenizes: bool,
    /// How likely it says that each piece of its answer was, where it is asked; 0: it does not say.
    pub tells_p: f64,
    /// It knows no `/v1/completions`.
    pub only_chats: bool,
    /// One in so many answers, by count and in company alone, has more words than it needs; 0: none.
    pub chats_one_in: u32,
}

struct Desk {
    clerk: Clerk,
    busy: AtomicU32,
    answered: AtomicU32,
    steps: [AtomicU32; 64],
    /// Times that it was started.
    starts: AtomicU32,
    /// Requests that fail next, as a proxy's do while nobody is behind it.
    failing: AtomicU32,
}

/// Starts it on a free port; it ends with the process. Returns host:port.
pub fn start(clerk: Clerk) -> String {
    open(clerk).address
}

/// The same, with the means to end it and to start it again.
pub fn open(clerk: Clerk) -> Door {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let steps = [const { AtomicU32::new(0) }; 64];
    let none = || AtomicU32::new(0);
    let (busy, answered, starts, failing) = (none(), none(), none(), none());
    let desk = Arc::new(Desk { clerk, busy, answered, steps, starts, failing });
    let door = Door { address, desk, is_closed: Arc::default(), listening: Mutex::default() };
    door.listen(listener);
    door
}

/// Where a clerk listens, or does not for a while.
pub struct Door {
    pub address: String,
    desk: Arc<Desk>,
    is_closed: Arc<AtomicBool>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Door {
    fn listen(&self, listener: TcpListener) {
        self.desk.starts.fetch_add(1, Relaxed);
        self.is_closed.store(false, Relaxed);
        let (desk, is_closed) = (Arc::clone(&self.desk), Arc::clone(&self.is_closed));
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if is_closed.load(Relaxed) {
                    return;
                }
                let desk = Arc::clone(&desk);
                std::thread::spawn(move || drop(serve(&desk, stream)));
            }
        });
        *self.listening.lock().unwrap() = Some(listening);
    }

    /// Ends it: nothing listens any more when this is back.
    pub fn close(&self) {
        let Some(listening) = self.listening.lock().unwrap().take() else { return };
        self.is_closed.store(true, Relaxed);
        drop(TcpStream::connect(&self.address));
        listening.join().unwrap();
    }

    /// Starts it again, where it was.
    pub fn open_again(&self) {
        self.listen(TcpListener::bind(&self.address).unwrap());
    }

    /// It was started again behind a proxy, of which one request has a 502.
    pub fn restart_behind_a_proxy(&self) {
        self.desk.starts.fetch_add(1, Relaxed);
        self.desk.failing.store(1, Relaxed);
    }
}

fn serve(desk: &Desk, stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0usize;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = first.split(' ').nth(1).unwrap_or("");
    let slots = desk.clerk.slots;
    match path {
        "/v1/models" => whole(&mut stream, 200, &json!({"data": [{"id": "clerk"}]})),
        "/server_info" if desk.clerk.counts_steps => {
            let bucket = |(at, steps): (usize, &AtomicU32)| {
                json!({"decode": true, "seqs": at + 1, "mode": "captured",
                    "replays": steps.load(Relaxed)})
            };
            let buckets: Vec<Value> = desk.steps.iter().enumerate().map(bucket).collect();
            let engine = json!({"engine": {"buckets": buckets}});
            let started = desk.starts.load(Relaxed);
            whole(&mut stream, 200, &json!({"startup_time": started, "lockstep": engine}))
        }
        "/props" if slots > 0 => whole(&mut stream, 200, &json!({"total_slots": slots})),
        "/slots" if slots > 0 => {
            let busy = desk.busy.load(Relaxed).min(slots);
            let all: Vec<Value> = (0..slots).map(|i| json!({"is_processing": i < busy})).collect();
            whole(&mut stream, 200, &json!(all))
        }
        "/tokenize" if desk.clerk.tokenizes => {
            let request: Value = serde_json::from_slice(&body).unwrap();
            let ids: Vec<u8> = request["messages"].to_string().into_bytes();
            whole(&mut stream, 200, &json!({"tokens": ids, "count": ids.len()}))
        }
        "/v1/completions" if desk.clerk.only_chats => {
            whole(&mut stream, 404, &json!({"error": {"message": "not here"}}))
        }
        "/v1/chat/completions" | "/v1/completions" => {
            let busy = desk.busy.fetch_add(1, Relaxed) + 1;
            if let Some(steps) = desk.steps.get(busy as usize - 1) {
                steps.fetch_add(1, Relaxed);
            }
            let result = answer(desk, &mut stream, &body, busy);
            desk.busy.fetch_sub(1, Relaxed);
            result
        }
        _ => whole(&mut stream, 404, &json!({"error": {"message": "not here"}})),
    }
}

fn whole(stream: &mut TcpStream, status: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn answer(desk: &Desk, stream: &mut TcpStream, body: &[u8], busy: u32) -> io::Result<()> {
    let clerk = desk.clerk;
    if desk.failing.swap(0, Relaxed) > 0 {
        return whole(stream, 502, &json!({"error": {"message": "nobody is behind this"}}));
    }
    if clerk.refuses_above > 0 && busy > clerk.refuses_above {
        return whole(stream, 429, &json!({"error": {"message": "full"}}));
    }
    std::thread::sleep(clerk.takes);
    let request: Value = serde_json::from_slice(body).unwrap();
    let messages = if request["prompt"].is_null() {
        request["messages"].clone()
    } else {
        spoken(&request["prompt"])
    };
    let (mut text, mut calls) = right_answer(&messages);
    let n = desk.answered.fetch_add(1, Relaxed) + 1;
    let hash = messages
        .to_string()
        .bytes()
        .fold(7u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    let forgets = clerk.forgets_one_in > 0 && (hash >> 20).is_multiple_of(clerk.forgets_one_in);
    let stumbles = clerk.stumbles_one_in > 0 && n.is_multiple_of(clerk.stumbles_one_in);
    if forgets || stumbles {
        text = "It is ZZZZ9999.".into();
        calls.iter_mut().for_each(|(_, value)| *value = "ZZZZ9999".into());
        text.truncate(if calls.is_empty() { 15 } else { 0 });
    }
    // The one before may not have been counted out yet.
    if busy > 2 && clerk.chats_one_in > 0 && n.is_multiple_of(clerk.chats_one_in) {
        text.insert_str(0, "Sure: ");
    }
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    if request["stream"] == true {
        let is_chat = request["prompt"].is_null();
        return streamed(stream, &text, &calls, finish, is_chat);
    }
    if !request["prompt"].is_null() {
        let choice = json!({"index": 0, "text": text, "finish_reason": "stop"});
        return whole(stream, 200, &json!({"choices": [choice]}));
    }
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        let call = |(at, (key, value)): (usize, &(String, String))| {
            json!({"id": format!("c{at}"), "type": "function", "function": {"name": "report",
                "arguments": json!({"key": key, "value": value}).to_string()}})
        };
        message["tool_calls"] = calls.iter().enumerate().map(call).collect();
    }
    let mut choice = json!({"index": 0, "message": message, "finish_reason": finish});
    if request["logprobs"] == true && clerk.tells_p > 0.0 {
        let logprob = clerk.tells_p.ln();
        let token = |piece: String| json!({"token": piece, "logprob": logprob});
        let tokens: Vec<Value> = pieces(&text).into_iter().map(token).collect();
        choice["logprobs"] = json!({"content": tokens});
    }
    whole(stream, 200, &json!({"choices": [choice]}))
}

/// An answer comes in pieces of three bytes.
fn pieces(text: &str) -> Vec<String> {
    text.as_bytes().chunks(3).map(|p| String::from_utf8_lossy(p).into_owned()).collect()
}

fn streamed(
    stream: &mut TcpStream,
    text: &str,
    calls: &[(String, String)],
    finish: &str,
    is_chat: bool,
) -> io::Result<()> {
    let mut deltas = vec![json!({"role": "assistant", "content": ""})];
    deltas.extend(pieces(text).into_iter().map(|p| json!({"content": p})));
    for (at, (key, value)) in calls.iter().enumerate() {
        deltas.push(json!({"tool_calls": [{"index": at, "id": format!("c{at}"),
            "type": "function", "function": {"name": "report", "arguments": ""}}]}));
        let arguments = json!({"key": key, "value": value}).to_string();
        deltas.extend(
            pieces(&arguments)
                .into_iter()
                .map(|p| json!({"tool_calls": [{"index": at, "function": {"arguments": p}}]})),
        );
    }
    let mut body = String::new();
    for delta in deltas {
        let choice = match is_chat {
            true => json!({"index": 0, "delta": delta, "finish_reason": null}),
            false => json!({"index": 0, "text": delta["content"], "finish_reason": null}),
        };
        body.push_str(&format!("data: {}\n\n", json!({"choices": [choice]})));
    }
    let last = json!({"index": 0, "delta": {}, "finish_reason": finish});
    body.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [last]})));
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The messages that a prompt was made of: ids that are bytes of them, or speakers' words.
fn spoken(prompt: &Value) -> Value {
    if let Some(ids) = prompt.as_array() {
        let bytes: Vec<u8> = ids.iter().map(|id| id.as_u64().unwrap() as u8).collect();
        return serde_json::from_slice(&bytes).unwrap();
    }
    let mut messages: Vec<Value> = Vec::new();
    for said in prompt.as_str().unwrap().split("\n\n") {
        let (speaker, words) = said.split_once(':').unwrap();
        let words = words.trim_start_matches(' ');
        let mut message = json!({"role": speaker.to_lowercase(), "content": words});
        let call = |line: &str| {
            let arguments = line.strip_prefix("report(")?.strip_suffix(')')?;
            Some(json!({"function": {"name": "report", "arguments": arguments}}))
        };
        let calls: Vec<Value> = words.lines().filter_map(call).collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
    }
    // The last speaker has yet to speak.
    messages.pop();
    messages.into()
}

/// Text and calls that are right.
fn right_answer(messages: &Value) -> (String, Vec<(String, String)>) {
    let messages = messages.as_array().unwrap();
    let content = |m: &Value| m["content"].as_str().unwrap_or("").to_owned();
    let told: String =
        messages.iter().filter(|m| m["role"] == "user").map(|m| content(m) + "\n").collect();
    let value = |key: &str| {
        let of = |l: &str| l.strip_prefix(key)?.strip_prefix(" = ").map(str::to_owned);
        told.lines().find_map(of).unwrap_or_default()
    };
    let tag = told.lines().find_map(|l| l.strip_prefix("Tag ")).unwrap_or("").trim_end_matches('.');
    let last = messages.last().unwrap();
    if last["role"] == "tool" {
        let said = messages.iter().rev().find(|m| m["tool_calls"].is_array()).unwrap();
        let results = messages.iter().rev().take_while(|m| m["role"] == "tool").map(content);
        let mut results: Vec<String> = results.collect();
        results.reverse();
        let line = |(call, result): (&Value, &String)| {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            let text = |name: &str| arguments[name].as_str().unwrap().to_owned();
            format!("{} is {}, {result}", text("key"), text("value"))
        };
        let lines = said["tool_calls"].as_array().unwrap().iter().zip(&results).map(line);
        return (lines.collect::<Vec<_>>().join(".\n") + ".", Vec::new());
    }
    let text = content(last);
    let asked = text.lines().next_back().unwrap_or("").to_owned();
    if let Some(keys) = asked.strip_prefix("Report ") {
        let keys = keys.trim_end_matches('.').split(", ");
        return (String::new(), keys.map(|k| (k.to_owned(), value(k))).collect());
    }
    if let Some((_, list)) = text.split_once("Repeat this list exactly:\n") {
        return (list.to_owned(), Vec::new());
    }
    let said = match asked.as_str() {
        "Which tag?" => format!("The tag is {tag}."),
        "Wait." => "Noted.".into(),
        other => match other.strip_prefix("What is the value of ") {
            Some(key) => value(key.trim_end_matches('?')),
            None => other.rsplit(' ').next().unwrap_or("").to_owned(),
        },
    };
    (said, Vec::new())
}
