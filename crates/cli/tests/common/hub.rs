//! A server that plays the hub.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// How it behaves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Manner {
    /// Gives the file, or the rest of it.
    Whole,
    /// Closes the connection after 40 million bytes, each time.
    BreaksOff,
    /// Closes it once, and answers every range with the whole file.
    BreaksOffOnceWithoutRanges,
    /// Gives 2 MiB and then nothing, without closing.
    Stalls,
    /// 404.
    NotFound,
    /// The right length, other bytes.
    OtherBytes,
    /// Sends the client to another name of itself.
    Redirects,
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub from: u64,
    pub authorization: Option<String>,
}

#[derive(Debug)]
struct State {
    manner: Mutex<Manner>,
    asked: Mutex<Vec<Asked>>,
    file: Vec<u8>,
    address: SocketAddr,
}

/// The server; its threads end with the process.
pub struct Hub(Arc<State>);

impl Hub {
    pub fn start(manner: Manner) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            manner: Mutex::new(manner),
            asked: Mutex::default(),
            file: std::fs::read(super::model()).unwrap(),
            address: listener.local_addr().unwrap(),
        });
        let hub = Hub(Arc::clone(&state));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(&state, stream));
            }
        });
        hub
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    pub fn set(&self, manner: Manner) {
        *self.0.manner.lock().unwrap() = manner;
    }

    pub fn requests(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Asked {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let mut asked = Asked { path, from: 0, authorization: None };
    for line in lines.map(Result::unwrap).take_while(|l| !l.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let from = value.strip_prefix("bytes=").unwrap().trim_end_matches('-');
                asked.from = from.parse().unwrap();
            }
            "authorization" => asked.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    asked
}

fn serve(state: &State, mut stream: TcpStream) {
    let asked = read(&stream);
    let manner = *state.manner.lock().unwrap();
    let (first, from) = {
        let mut all = state.asked.lock().unwrap();
        all.push(asked.clone());
        (all.len() == 1, asked.from as usize)
    };
    let size = state.file.len();
    // A client that leaves is its own business.
    let _ = match manner {
        Manner::NotFound => {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        }
        Manner::Redirects if first => {
            let port = state.address.port();
            let to = format!("http://localhost:{port}{}", asked.path);
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes())
        }
        Manner::OtherBytes => send(&mut stream, &vec![0; size], from, size),
        Manner::BreaksOff => send(&mut stream, &state.file, from, (from + 40_000_000).min(size)),
        Manner::BreaksOffOnceWithoutRanges => {
            send(&mut stream, &state.file, 0, if first { size / 2 } else { size })
        }
        Manner::Stalls => send(&mut stream, &state.file, from, from + (2 << 20)).map(|()| {
            loop {
                std::thread::park();
            }
        }),
        Manner::Whole | Manner::Redirects => send(&mut stream, &state.file, from, size),
    };
}

/// Promises everything from `from`, sends until `to`.
fn send(stream: &mut TcpStream, file: &[u8], from: usize, to: usize) -> std::io::Result<()> {
    let size = file.len();
    let head = match from {
        0 => format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"),
        _ => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{size}\r\n\
             Content-Length: {}\r\n\r\n",
            size - 1,
            size - from
        ),
    };
    stream.write_all(head.as_bytes())?;
    stream.write_all(&file[from..to])
}
