//! The binary as its users meet it: help, exit codes, settings, status.

mod common;

use common::{lockstep, temp_dir, tiny};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(lockstep());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LOCKSTEP_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir(dir).envs(env.iter().copied()).output().unwrap()
}

fn words(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

#[test]
fn every_command_helps_with_examples_and_exit_codes() {
    let dir = temp_dir("help");
    for args in [&["serve"][..], &["pull"], &["status"], &["plan", "show"], &["version"]] {
        let out = run(&dir, &[args, &["--help"]].concat(), &[]);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        assert!(words(&out).contains("Examples:"), "{}", words(&out));
    }
    let out = words(&run(&dir, &["--help"], &[]));
    assert!(out.contains("Exit codes:") && out.contains("NO_COLOR"), "{out}");
    let serve = words(&run(&dir, &["serve", "--help"], &[]));
    // Lines are broken where the terminal ends.
    let serve = serve.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["--graph-max-bs <N>", "[default: 32]", "[auto, f32, f16, bf16, fp8]", "LOCKSTEP_"]
    {
        assert!(serve.contains(part), "{part} in {serve}");
    }
}

/// `lockstep help` was once an unrecognized subcommand.
#[test]
fn help_is_a_command_with_topics() {
    let dir = temp_dir("help-topics");
    let lines = |args: &[&str]| {
        let out = run(&dir, args, &[]);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", words(&out));
        words(&out)
    };
    assert_eq!(lines(&["help"]), lines(&["--help"]));
    assert_eq!(lines(&["help", "status"]), lines(&["status", "--help"]));
    assert_eq!(lines(&["help", "plan", "show"]), lines(&["plan", "show", "--help"]));
    // `help --help` was once an unrecognized subcommand.
    assert_eq!(lines(&["help", "--help"]), lines(&["help"]));
    assert_eq!(lines(&["plan", "help", "-h"]), lines(&["plan", "help"]));
    let out = run(&dir, &["help", "nothing"], &[]);
    assert!(out.status.code() == Some(2) && words(&out).contains("nothing"), "{}", words(&out));
}

#[test]
fn a_wrong_command_line_is_2() {
    let dir = temp_dir("usage");
    for args in [
        &[][..],
        &["fly"],
        &["serve", "--no-such-flag"],
        &["serve", "--port"],
        &["serve", "--port", "many"],
        &["serve", "--graph-max-bs=0"],
        &["status", "https://example.org"],
    ] {
        let out = run(&dir, args, &[("HOME", "none")]);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", words(&out));
    }
    let out = words(&run(&dir, &["serve", "--graph-max-bs", "lots"], &[]));
    assert!(out.contains("it takes a whole number from 1 to 4096"), "{out}");
}

/// What was found: 2 for a bad address from `status`, 3 from `check` and `bench`, whose 2 is a
/// verdict, and neither their help nor the table of codes said so.
#[test]
fn a_bad_address_ends_every_command_as_a_wrong_flag_does() {
    let dir = temp_dir("bad-address");
    for (command, code) in [
        (&["status"][..], 2),
        (&["change", "--set", "decode.graph-max-bs=8", "--url"], 2),
        (&["change", "init", "--url"], 2),
        (&["check"], 3),
        (&["bench"], 3),
    ] {
        for wrong in ["ftp://a", "a:0", "http://"] {
            let out = run(&dir, &[command, &[wrong]].concat(), &[]);
            assert_eq!(out.status.code(), Some(code), "{command:?} {wrong}: {}", words(&out));
        }
        let flag = run(&dir, &[command, &["--no-such-flag"]].concat(), &[]);
        assert_eq!(flag.status.code(), Some(code), "{command:?}: {}", words(&flag));
        if code == 3 {
            let help = words(&run(&dir, &[command, &["--help"]].concat(), &[]));
            let (_, codes) = help.split_once("Exit codes").unwrap();
            assert!(codes.contains("wrong command line"), "{codes}");
        }
    }
}

/// A server that answers whatever is asked with these bytes.
fn says(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 65_536]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// What was found: `status` printed whatever stood in a server's error, lines, escapes and all, and
/// other commands a reason that was empty; a redirect was a number.
#[test]
fn what_a_server_says_in_an_error_is_one_short_line() {
    let dir = temp_dir("errors-of-servers");
    let answer = |status: &str, more: &str, body: &str| {
        let length = body.len();
        says(format!(
            "HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ))
    };
    let long = "y".repeat(5000);
    let json = format!(r#"{{"error": {{"message": "one\ntwo \u001b[31m{long}"}}}}"#);
    let raw = format!("one\ntwo \u{1b}[31m{long}");
    let there = "Location: http://192.0.2.7:8080/base";
    for (url, want) in [
        (answer("500 X", "", &json), r"one two \u{1b}[31myyy"),
        (answer("500 X", "", &raw), r"one two \u{1b}[31myyy"),
        (answer("404 X", "", ""), "404: no words with it"),
        (
            answer("302 X", &format!("{there}/v1/models\r\n"), ""),
            "it redirects to http://192.0.2.7",
        ),
    ] {
        for (command, code) in [
            (&["status"][..], 9),
            (&["check"], 3),
            (&["bench"], 3),
            (&["change", "init", "--url"], 9),
        ] {
            let out = run(&dir, &[command, &[&url]].concat(), &[]);
            let said = words(&out);
            assert_eq!(out.status.code(), Some(code), "{command:?}: {said}");
            assert!(said.contains(want) && said.trim_end().lines().count() == 1, "{said}");
            assert!(said.len() < 800 && !said.contains('\u{1b}'), "{said}");
            let is_plain_list = !matches!(command, ["status"]);
            if want.starts_with("it redirects") && is_plain_list {
                let address = "'http://192.0.2.7:8080/base' is the address to give";
                assert!(said.contains(address) && !said.contains("--model"), "{said}");
            }
        }
    }
}

/// What was found: a pool of 900 GiB was taken on any machine, with a warning.
#[test]
fn a_pool_beyond_the_machine_s_memory_is_refused() {
    let dir = temp_dir("pool-beyond-memory");
    let recall = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recall");
    // Sequences enough to use so much.
    let args = ["serve", "--model", recall, "--port", "0", "--max-running-requests", "4096"];
    let too_much = [&args[..], &["--kv-memory", "15TiB"]].concat();
    for (args, env) in
        [(&too_much[..], None), (&args[..], Some(("LOCKSTEP_POOL_KV_MEMORY", "15TiB")))]
    {
        let out = run(&dir, args, env.as_slice());
        let said = words(&out);
        assert_eq!(out.status.code(), Some(6), "{said}");
        assert!(said.contains("--kv-memory (pool.kv-memory in lockstep.toml"), "{said}");
        assert!(said.contains("it is 15360.0 GiB"), "{said}");
        assert!(said.contains("this machine's memory has "), "{said}");
    }
}

/// A flag that does not exist was once answered in words alone, `--json` or not.
#[test]
fn a_wrong_command_line_is_json_for_machines_too() {
    let dir = temp_dir("usage-json");
    for args in [&["serve", "--json", "--no-such-flag"][..], &["drill", "--json", "--runs", "0"]] {
        let out = run(&dir, args, &[]);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let e: Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        assert_eq!((&e["error"]["code"], &e["error"]["exit"]), (&"usage".into(), &2.into()));
        assert!(e["error"].as_object().unwrap().contains_key("detail"), "{e}");
        assert!(e["error"]["message"].as_str().unwrap().contains(args[2]), "{e}");
        assert!(String::from_utf8_lossy(&out.stderr).starts_with("error: "), "{out:?}");
    }
    let out = run(&dir, &["version", "--json", "--help"], &[]);
    assert!(out.status.success() && words(&out).contains("Examples:"), "help is no error");
}

/// A GGUF file without a tokenizer once failed with the words of a folder called `.`.
#[test]
fn a_file_without_a_tokenizer_is_named() {
    let dir = temp_dir("no-tokenizer");
    let path = tiny("gguf/llama-F16.gguf");
    let out = run(&dir, &["serve", "--port", "0", "--model", path.to_str().unwrap()], &[]);
    assert_eq!(out.status.code(), Some(5), "{}", words(&out));
    let said = words(&out);
    assert!(said.contains("llama-F16.gguf has no tokenizer"), "{said}");
}

/// A settings file once cleared the terminal of whoever read its error.
#[test]
fn control_characters_of_a_settings_file_do_not_reach_the_terminal() {
    let dir = temp_dir("control");
    for text in [
        "a\u{1b}]0;title\u{7}b = 1\n",
        "[decode]\ngraph-max-bs = \"\\u001b[2J\"\n",
        "[decode]\n\"\\u009b2J\" = 1\n",
    ] {
        std::fs::write(dir.join("lockstep.toml"), text).unwrap();
        let out = run(&dir, &["serve"], &[]);
        let said = words(&out);
        assert_eq!(out.status.code(), Some(3), "{said}");
        assert!(said.contains('\u{fffd}'), "{said}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
    }
}

#[test]
fn a_wrong_setting_is_3_and_names_its_place() {
    let dir = temp_dir("settings");
    std::fs::write(dir.join("lockstep.toml"), "[decode]\ngraph-max-sb = 96\n").unwrap();
    let out = run(&dir, &["serve", "--json"], &[]);
    assert_eq!(out.status.code(), Some(3));
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let message = said["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("lockstep.toml:2: "), "{message}");
    assert!(message.contains("did you mean 'decode.graph-max-bs'?"), "{message}");
    // A named file takes its place; a missing one is an error.
    std::fs::write(dir.join("good.toml"), "[server]\nport = 0\n").unwrap();
    let args = ["serve", "--config", "good.toml", "--model", "none.gguf"];
    assert_eq!(run(&dir, &args, &[]).status.code(), Some(4));
    let out = run(&dir, &["serve", "--config", "missing.toml"], &[]);
    assert_eq!(out.status.code(), Some(3), "{}", words(&out));
    let out = run(&temp_dir("env"), &["serve"], &[("LOCKSTEP_POOL_KV_MEMORY", "much")]);
    assert_eq!(out.status.code(), Some(3));
    assert!(words(&out).contains("LOCKSTEP_POOL_KV_MEMORY"), "{}", words(&out));
}

/// What was found: a rolled-back change, a corrupted server and every other verdict ended with 0,
/// "done", where a reader (`| head -1`) had closed standard output.
#[test]
fn a_verdict_that_nobody_reads_keeps_its_exit_code() {
    let dir = temp_dir("unread-verdict");
    for args in [
        &["status", "http://127.0.0.1:9", "--json"][..],
        &["check", "http://127.0.0.1:9", "--json"],
        &["plan", "show", "--model", "nowhere-to-be-found", "--json"],
        &["serve", "--port", "x", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let unread = Command::new(lockstep()).args(args).current_dir(&dir).stdout(writer).status();
        let code = run(&dir, args, &[]).status.code();
        assert_ne!(code, Some(0), "{args:?}");
        assert_eq!(unread.unwrap().code(), code, "{args:?}");
    }
    // What prints until it is told to stop is told so by that.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let watch = ["status", "http://127.0.0.1:9", "--watch=1"];
    let ended = Command::new(lockstep()).args(watch).current_dir(&dir).stdout(writer).status();
    assert_eq!(ended.unwrap().code(), Some(0));
}

/// What was found: `lockstep serve 2>&1 | head -1` on a long complaint ended with 101, a panic.
#[test]
fn a_complaint_that_nobody_reads_keeps_its_exit_code() {
    let dir = temp_dir("unread");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(lockstep())
        .args(["serve", "--model", "nowhere-to-be-found"])
        .current_dir(&dir)
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(
        ended.code(),
        run(&dir, &["serve", "--model", "nowhere-to-be-found"], &[]).status.code()
    );
    assert_ne!(ended.code(), Some(101));
}

#[test]
fn a_model_that_is_not_one_is_4_or_5() {
    let dir = temp_dir("models");
    std::fs::write(dir.join("noise.gguf"), b"GGUF but not really").unwrap();
    std::fs::create_dir(dir.join("folder")).unwrap();
    for (model, code) in [("none.gguf", 4), ("noise.gguf", 5), ("folder", 5)] {
        let out = run(&dir, &["serve", "--port", "0", "--model", model], &[]);
        assert_eq!(out.status.code(), Some(code), "{model}: {}", words(&out));
        assert!(words(&out).contains(model), "{}", words(&out));
    }
}

fn tokenizer() -> std::path::PathBuf {
    let data = "../text/tests/data/folder/tokenizer.json";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(data)
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Each command once had words of its own for a server that is not there.
#[test]
fn every_command_says_the_same_of_a_server_that_is_not_there() {
    // No port that was free a moment ago: another test could have it by now.
    let nobody = "127.0.0.1:1";
    let (dir, url) = (temp_dir("nobody"), format!("http://{nobody}"));
    for command in [
        &["status", &url][..],
        &["bench", &url],
        &["check", &url],
        &["change", "--url", &url, "--set", "audit.rate=1"],
        &["change", "init", "--url", &url],
    ] {
        let out = run(&dir, command, &[]);
        let said = words(&out);
        let wanted = format!("no server answers at {url}: Connection refused");
        assert!(said.contains(&wanted), "{command:?}: {said}");
        let code = if ["bench", "check"].contains(&command[0]) { 3 } else { 8 };
        assert_eq!(out.status.code(), Some(code), "{command:?}");
        // `check --json` once called it a wrong setting, and `bench --json -` had no code.
        let json: &[&str] = if command[0] == "bench" { &["--json", "-"] } else { &["--json"] };
        let out = run(&dir, &[command, json].concat(), &[]);
        let e: Value = serde_json::from_slice(&out.stdout).unwrap();
        let failure = e["error"].as_object().unwrap();
        assert_eq!((&failure["code"], &failure["exit"]), (&"no_server".into(), &code.into()));
        assert!(failure.contains_key("detail"), "{e}");
    }
}

/// What was found: a table of `bench` was lost where a file could not be written after it.
#[test]
fn a_table_is_shown_where_a_file_cannot_be_written() {
    let dir = temp_dir("full-table");
    let point = r#"{"backend": "lockstep", "max_concurrency": 4, "completed": 8, "duration": 2.0,
        "total_input_tokens": 80, "total_output_tokens": 64, "request_throughput": 4.0,
        "output_throughput": 32.0, "mean_ttft_ms": 12.0}"#;
    std::fs::write(dir.join("old.jsonl"), point.replace('\n', " ")).unwrap();
    let show = ["bench", "show", "old.jsonl", "--html", "/dev/full", "--csv", "new.csv"];
    let out = run(&dir, &show, &[]);
    assert_eq!(out.status.code(), Some(3), "{}", words(&out));
    assert!(words(&out).contains("/dev/full cannot be written: "), "{}", words(&out));
    assert!(String::from_utf8_lossy(&out.stdout).contains("TTFT ms"), "{}", words(&out));
    assert!(std::fs::metadata(dir.join("new.csv")).unwrap().len() > 0);
    // Standard output is one place of several.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let show = ["bench", "show", "old.jsonl", "--html", "new.html"];
    let ended = Command::new(lockstep()).args(show).current_dir(&dir).stdout(full).status();
    assert_eq!(ended.unwrap().code(), Some(3));
    assert!(std::fs::metadata(dir.join("new.html")).unwrap().len() > 0);
}

/// Opening a named pipe waits for a writer: `serve` once did, for ever.
#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let dir = temp_dir("pipes");
    fifo(&dir.join("fifo.gguf"));
    let serve = |args: &[&str]| run(&dir, &[&["serve", "--port", "0"], args].concat(), &[]);
    let out = serve(&["--model", "fifo.gguf"]);
    assert_eq!(out.status.code(), Some(5), "{}", words(&out));
    assert!(words(&out).contains("fifo.gguf is neither a file nor a folder"), "{}", words(&out));
    fifo(&dir.join("fifo.toml"));
    let out = serve(&["--config", "fifo.toml"]);
    assert_eq!(out.status.code(), Some(3), "{}", words(&out));
    let out = run(&dir, &["pull", "--from", "fifo.gguf"], &[("LOCKSTEP_MODELS", "store")]);
    assert_eq!(out.status.code(), Some(4), "{}", words(&out));
    let llama = tiny("llama");
    for pipe in ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"] {
        let folder = dir.join(format!("with-{pipe}"));
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(&llama).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        let _ = std::fs::remove_file(folder.join(pipe));
        if pipe == "chat_template.jinja" {
            std::fs::copy(tokenizer(), folder.join("tokenizer.json")).unwrap();
        }
        fifo(&folder.join(pipe));
        let out = serve(&["--model", folder.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(5), "{pipe}: {}", words(&out));
        assert!(words(&out).contains(pipe), "{}", words(&out));
        assert!(words(&out).contains("regular file"), "{}", words(&out));
    }
}

/// Each of these once started, or named something that no operator knows.
#[test]
fn a_knob_that_cannot_work_is_named_as_the_operator_knows_it() {
    let dir = temp_dir("knobs");
    let llama = tiny("llama");
    let llama = llama.to_str().unwrap();
    let serve = |args: &[&str], env: &[(&str, &str)]| {
        run(&dir, &[&["serve", "--port", "0", "--model", llama], args].concat(), env)
    };
    for (flag, value) in [
        ("--context-length", "1"),
        ("--context-length", "1048576"),
        ("--api-key", ""),
        ("--admin-key", ""),
        ("--admin-key", " x"),
        ("--served-model-name", ""),
        ("--host", ""),
        ("--model", ""),
    ] {
        let out = serve(&[flag, value], &[]);
        assert_eq!(out.status.code(), Some(2), "{flag} '{value}': {}", words(&out));
        assert!(words(&out).contains(flag), "{flag} '{value}': {}", words(&out));
    }
    let out = serve(&[], &[("LOCKSTEP_MODEL_CONTEXT_LENGTH", "1")]);
    assert_eq!(out.status.code(), Some(3), "{}", words(&out));
    assert!(words(&out).contains("LOCKSTEP_MODEL_CONTEXT_LENGTH"), "{}", words(&out));
    let out = serve(&[], &[("LOCKSTEP_SERVER_API_KEY", "")]);
    assert_eq!(out.status.code(), Some(3), "{}", words(&out));
}

/// A filter that does not parse was once taken for none.
#[test]
fn a_log_filter_that_does_not_parse_is_said() {
    let dir = temp_dir("logfilter");
    let out =
        run(&dir, &["serve", "--model", "none.gguf", "--port", "0"], &[("LOCKSTEP_LOG", "a[=")]);
    assert_eq!(out.status.code(), Some(4));
    assert!(words(&out).contains("LOCKSTEP_LOG is no filter"), "{}", words(&out));
}

#[test]
fn a_busy_port_is_7_before_anything_is_loaded() {
    let dir = temp_dir("busy");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let out = run(&dir, &["serve", "--port", &port, "--model", "none.gguf"], &[]);
    assert_eq!(out.status.code(), Some(7), "{}", words(&out));
    assert!(words(&out).contains("choose --port"), "{}", words(&out));
}

/// Answers one connection with these bytes.
fn answering(bytes: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 512];
        let _ = stream.read(&mut head).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
    });
    url
}

#[test]
fn status_tells_no_server_from_an_unwell_one() {
    let dir = temp_dir("status");
    let out = run(&dir, &["status", "http://127.0.0.1:1"], &[]);
    assert_eq!(out.status.code(), Some(8), "{}", words(&out));
    assert!(words(&out).contains("is it running there?"), "{}", words(&out));
    for (answer, code) in [
        ("HTTP/1.0 503 Unavailable\r\n\r\n{\"error\": {\"message\": \"draining\"}}", 9),
        ("HTTP/1.0 200 OK\r\n\r\n{\"model_path\": \"x\"}", 9),
        ("HTTP/1.0 200 OK\r\n\r\nhello", 9),
        ("SSH-2.0-nothing\r\n", 9),
        (
            "HTTP/1.0 200 OK\r\n\r\n{\"lockstep\": {\"engine\": {\"health\": \"serving\", \
             \"running\": 3, \"running_max\": 8}}}",
            0,
        ),
        ("HTTP/1.0 200 OK\r\n\r\n{\"lockstep\": {\"engine\": {\"health\": \"draining\"}}}", 9),
    ] {
        let out = run(&dir, &["status", &answering(answer)], &[]);
        assert_eq!(out.status.code(), Some(code), "{answer}: {}", words(&out));
        if code == 0 {
            assert!(words(&out).contains("running 3 of 8"), "{}", words(&out));
        }
    }
}

#[test]
fn version_is_one_line_or_one_object() {
    let dir = temp_dir("version");
    let out = run(&dir, &["version", "--json"], &[]);
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(said["name"], "lockstep");
    let line = words(&run(&dir, &["version"], &[]));
    assert_eq!(line, format!("lockstep {}\n", said["version"].as_str().unwrap()));
}
