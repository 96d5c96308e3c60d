//! Servers that are not ours, as far as their answers are recorded: what is said about them before
//! anything is touched, and what `init` finds out by itself.

use super::run;
use crate::common::{lockstep, temp_dir};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

/// Answers as llama-server does, for as long as the process lives.
fn llama_server() -> String {
    server(r#"{"data": [{"id": "m.gguf", "owned_by": "llamacpp"}]}"#)
}

/// A server that has nothing but this list of models.
fn server(models: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream, models));
        }
    });
    url
}

fn answer(mut stream: TcpStream, models: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    lines.map_while(Result::ok).take_while(|l| !l.is_empty()).for_each(drop);
    let (status, body) = match first.split(' ').nth(1).unwrap() {
        "/v1/models" => ("200 OK", models),
        _ => ("404 Not Found", r#"{"error": {"message": "File Not Found"}}"#),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client that leaves is its own business.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn change(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(lockstep());
    command.arg("change").args(arguments).arg("--json").current_dir(dir);
    command
}

#[test]
fn an_address_of_another_server_gives_a_hint_at_targets() {
    let dir = temp_dir("other-kind");
    let url = llama_server();
    let (code, done, _) = run(&mut change(&dir, &["--url", &url, "--set", "parallel=16"]));
    let words = done["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(code, 2, "{done}");
    assert!(words.contains("llama.cpp") && words.contains("--target"), "{words}");
    assert!(words.contains(&format!("change init --url {url}")), "{words}");
}

/// What was found: whatever answered with some JSON was another server of the OpenAI API, and `init`
/// wrote a target for it.
#[test]
fn json_that_lists_no_models_is_no_server_of_the_openai_api() {
    let dir = temp_dir("any-json");
    for models in [r#"{"hello": "w\u001b[31m"}"#, "[]", "7", r#"{"data": [{"name": "m"}]}"#] {
        let url = server(models);
        std::fs::create_dir_all(dir.join("targets")).unwrap();
        let target = format!(
            "kind = \"openai\"\nurl = \"{url}\"\n[launch]\nmethod = \"script\"\npath = \"x.sh\"\n"
        );
        std::fs::write(dir.join("targets/theirs.toml"), target).unwrap();
        let set = ["--set", "parallel=16", "--dry-run"];
        for arguments in [
            &[&["--url", &url][..], &set].concat()[..],
            &[&["--target", "theirs"][..], &set].concat(),
            &["init", "--url", &url, "--name", "new"],
        ] {
            let (code, done, said) = run(&mut change(&dir, arguments));
            let words = done["error"]["message"].as_str().unwrap();
            assert_eq!(code, 9, "{arguments:?}: {words}");
            let seen = format!("{url}/v1/models: answered with JSON, but with no list of models: ");
            assert!(words.starts_with(&seen), "{words} {said}");
            assert!(words.contains(&models[..1]) && !words.contains('\u{1b}'), "{words}");
        }
        assert!(!dir.join("targets/new.toml").exists());
    }
    // An empty list is one.
    let url = server(r#"{"data": []}"#);
    let (code, done, _) = run(&mut change(&dir, &["init", "--url", &url, "--name", "new"]));
    assert_eq!((code, &done["kind"]), (0, &"openai".into()), "{done}");
}

/// Nothing is said but the address: the script is found by the process that listens there.
#[test]
fn init_finds_the_script_that_started_a_server() {
    let dir = temp_dir("init");
    let server = r#"python3 -c '
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == "/v1/models"
        body = b"{\"data\": [{\"id\": \"m\", \"owned_by\": \"llamacpp\"}]}" if ok else b"{}"
        self.send_response(200 if ok else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
s = http.server.HTTPServer(("127.0.0.1", 0), H)
print(s.server_port, flush=True)
s.serve_forever()
' --parallel 4
true
"#;
    std::fs::write(dir.join("serve.sh"), format!("#!/bin/sh\n{server}")).unwrap();
    let mut child = Command::new("sh")
        .arg("serve.sh")
        .current_dir(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("http://127.0.0.1:{}", port.trim());
    let (code, done, said) = run(&mut change(&dir, &["init", "--url", &url]));
    let listener = lockstep_change::process::listener(port.trim().parse().unwrap(), &[]);
    listener.unwrap().end(false, std::time::Duration::from_secs(10)).unwrap();
    child.wait().unwrap();
    assert_eq!(code, 0, "{done} {said}");
    assert_eq!(
        (done["kind"].as_str(), done["launch"].as_str()),
        (Some("llama.cpp"), Some("script"))
    );
    let text = std::fs::read_to_string(dir.join("targets/llama-cpp.toml")).unwrap();
    let script = dir.join("serve.sh").canonicalize().unwrap();
    assert!(text.contains(&format!("path = \"{}\"", script.display())), "{text}");
    assert!(text.contains("program = \"python3\""), "{text}");
}
