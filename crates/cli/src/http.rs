//! One question over HTTP, for a command that asks once and waits.

use crate::exit::{Exit, Failure};
use lockstep_check::client::{Client, NoAnswer, NoServer, Outcome, Phase, Reply, Target, Timeouts};
use std::time::Duration;

/// How long the question may take, its whole answer included.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(20),
    total: Duration::from_secs(20),
    plain: Duration::from_secs(20),
};

/// The server at an address, as every command reads it.
pub fn target(url: &str, api_key: Option<&str>) -> Result<Target, Failure> {
    let target = Target::parse(url).and_then(|t| t.with_api_key(api_key));
    Ok(target.map_err(|e| Failure::new(Exit::Usage, e))?.with_timeouts(TIMEOUTS))
}

/// Gets a path of a server, whatever the status.
pub fn get(target: Target, path: &str) -> Result<Reply, Failure> {
    let url = target.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|e| Failure::new(Exit::Unexpected, format!("no runtime: {e}")))?;
    let limits = target.timeouts;
    let asked = runtime.block_on(Client::new(target).get(path));
    // A name that is still being looked up ends with the process.
    runtime.shutdown_background();
    asked.map_err(|outcome| unanswered(&url, limits, &outcome))
}

fn unanswered(url: &str, limits: Timeouts, outcome: &Outcome) -> Failure {
    let exit = if outcome.is_silent() { Exit::NoServer } else { Exit::Unwell };
    let words = match outcome {
        Outcome::Connect { why } => NoServer { url, why }.to_string(),
        Outcome::Timeout { phase: Phase::Connect } => {
            let why = format!("no connection within {} s", limits.connect.as_secs());
            NoServer { url, why: &why }.to_string()
        }
        Outcome::Timeout { .. } => NoAnswer { url, seconds: limits.plain.as_secs() }.to_string(),
        other => format!("the server at {url} cannot be asked: {other}"),
    };
    Failure::new(exit, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    /// A server that answers each connection by `answer`.
    fn server(answer: fn(std::net::TcpStream)) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                answer(stream);
            }
        });
        target
    }

    /// What was found: `status` never ended on a server that sent a byte now and then; each read
    /// had its own limit.
    #[test]
    fn a_server_that_drips_bytes_does_not_hold_the_command() {
        let target = server(|mut stream| {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
            let mut sent = stream.write_all(head);
            while sent.is_ok() {
                std::thread::sleep(Duration::from_millis(20));
                sent = stream.write_all(b" ");
            }
        });
        let plain = Duration::from_secs(1);
        let begun = Instant::now();
        let words = format!("the server at {target} does not answer within 1 s");
        let failure = get(target.with_timeouts(Timeouts { plain, ..TIMEOUTS }), "/").unwrap_err();
        assert!(begun.elapsed() >= plain);
        assert_eq!(failure.message, words);
        assert_eq!(failure.exit, Exit::NoServer);
    }

    /// Garbage was once 8, "no server answers".
    #[test]
    fn what_does_not_speak_http_is_unwell() {
        let target = server(|mut stream| drop(stream.write_all(b"SSH-2.0-x\r\n\r\n")));
        let failure = get(target.with_timeouts(TIMEOUTS), "/").unwrap_err();
        assert_eq!(failure.exit, Exit::Unwell, "{}", failure.message);
        assert!(failure.message.contains("not the API: HTTP"), "{}", failure.message);
    }

    #[test]
    fn the_path_of_an_address_is_kept() {
        let target = server(|mut stream| {
            drop(stream.write_all(b"HTTP/1.1 503 Gone\r\nContent-Length: 4\r\n\r\nbody"));
        });
        let reply = get(target.with_timeouts(TIMEOUTS), "/x").unwrap();
        assert_eq!((reply.status, reply.body), (503, b"body".to_vec()));
    }
}
