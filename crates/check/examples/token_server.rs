//! A server of canned tokens at a fixed rate, which has no model: what is measured against it is
//! the client.
//!
//! `cargo run --release -p lockstep-check --example token_server -- PORT MILLISECONDS` listens on
//! 127.0.0.1 and streams `max_tokens` chunks of `/v1/completions`, one every so many milliseconds.

use std::io::{Error, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
const MODELS: &str = r#"{"object":"list","data":[{"id":"canned","owned_by":"nobody"}]}"#;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u16>());
    let (Some(Ok(port)), Some(Ok(milliseconds))) = (args.next(), args.next()) else {
        return Err(Error::new(ErrorKind::InvalidInput, "usage: token_server PORT MILLISECONDS"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        println!("http://{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            let period = Duration::from_millis(u64::from(milliseconds).max(1));
            tokio::spawn(async move {
                // A client that leaves ends its stream.
                let _ = converse(stream, period).await;
            });
        }
    })
}

async fn converse(mut stream: TcpStream, period: Duration) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    while let Some(request) = read_request(&mut stream).await? {
        if request.starts_with("GET ") {
            let length = MODELS.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{MODELS}");
            stream.write_all(head.as_bytes()).await?;
            continue;
        }
        let field = |name: &str| -> Option<u64> {
            let rest = request.split_once(name)?.1;
            rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
        };
        let tokens = field("\"max_tokens\":").unwrap_or(16);
        let prompt = request.split_once("\"prompt\":[").map_or("", |(_, r)| r);
        let prompt = prompt.split_once(']').map_or("", |(ids, _)| ids).split(',').count();
        stream.write_all(HEAD.as_bytes()).await?;
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for at in 0..tokens {
            ticks.tick().await;
            let finish = if at + 1 == tokens { "\"length\"" } else { "null" };
            write_event(
                &mut stream,
                &format!(
                    "{{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\
                 \"model\":\"canned\",\"choices\":[{{\"index\":0,\"text\":\" word\",\
                 \"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":null}}"
                ),
            )
            .await?;
        }
        write_event(&mut stream, &format!(
            "{{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"canned\",\
             \"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens}}}}}"
        ))
        .await?;
        write_event(&mut stream, "[DONE]").await?;
        stream.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn write_event(stream: &mut TcpStream, data: &str) -> Result<(), Error> {
    let length = data.len() + "data: \n\n".len();
    stream.write_all(format!("{length:x}\r\ndata: {data}\n\n\r\n").as_bytes()).await
}

/// A whole request as text; `None` where the client has left.
async fn read_request(stream: &mut TcpStream) -> Result<Option<String>, Error> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
            let length: usize = length.and_then(|l| l.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Ok(Some(text.into_owned()));
            }
        }
        let read = stream.read(&mut piece).await?;
        if read == 0 || bytes.len() > 1 << 20 {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..read]);
    }
}
