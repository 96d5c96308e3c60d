//! Whatever a client sends, it gets the documented status in OpenAI's shape, and the server goes
//! on serving.

mod common;

use common::{Server, ToyConfig};
use serde_json::{Value, json};
use std::io::Write;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Sends bytes and checks `(status, code, param)`; then that a good request still works.
fn refused(server: &Server, path: &str, body: &[u8], want: (u16, &str, Option<&str>)) {
    let answer = server.client().post_bytes(path, body);
    let (status, code, param) = answer.error();
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    assert_eq!((status, code.as_str(), param.as_deref()), want, "{shown}: {}", answer.text());
}

fn still_serves(server: &Server) {
    let good = json!({"messages": [{"role": "user", "content": "[[ok]]"}], "temperature": 0});
    assert_eq!(server.post(CHAT, &good).json()["choices"][0]["message"]["content"], "ok");
}

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

#[test]
fn malformed_json_is_400() {
    let server = Server::start();
    let deep = format!("{{\"messages\":{}", "[".repeat(100_000));
    let wide = format!("{{\"logit_bias\":[{}0]}}", "0,".repeat(5 << 20));
    for body in [
        &b""[..],
        b"   ",
        b"{",
        b"[]",
        b"null",
        b"\"text\"",
        b"12",
        b"{\"messages\": NaN}",
        b"{\"temperature\": Infinity}",
        b"{\"temperature\": 1e999}",
        b"{\"messages\": [}",
        b"{} trailing",
        b"{'messages': 1}",
        b"{\"messages\": \"\xff\xfe\"}",
        b"{\"messages\": \"\\ud800\"}",
        b"\x00\x01\x02",
        deep.as_bytes(),
        wide.as_bytes(),
    ] {
        for path in [CHAT, TEXT, "/tokenize", "/detokenize", "/abort_request"] {
            refused(&server, path, body, (400, "invalid_json", None));
        }
    }
    still_serves(&server);
}

#[test]
fn wrong_fields_are_400_and_named() {
    let server = Server::start();
    let bad = (400, "invalid_value");
    for (field, body) in [
        ("messages", json!({})),
        ("messages", json!({"messages": null})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "hello"})),
        ("messages[0]", json!({"messages": ["hello"]})),
        ("messages[0].role", json!({"messages": [{"content": "x"}]})),
        ("messages[0].role", json!({"messages": [{"role": 3, "content": "x"}]})),
        ("messages[0].role", json!({"messages": [{"role": "robot", "content": "x"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        ("messages[0].content", json!({"messages": user(json!(5))})),
        ("messages[0].content[0]", json!({"messages": user(json!([{"text": "x"}]))})),
        ("messages[0].content[0]", json!({"messages": user(json!([{"type": "text"}]))})),
        ("model", json!({"messages": user(json!("x")), "model": 5})),
        ("temperature", json!({"messages": user(json!("x")), "temperature": "warm"})),
        ("temperature", json!({"messages": user(json!("x")), "temperature": 1e300})),
        ("top_p", json!({"messages": user(json!("x")), "top_p": -1})),
        ("n", json!({"messages": user(json!("x")), "n": 1_000_000_000})),
        ("n", json!({"messages": user(json!("x")), "n": 1.5})),
        ("seed", json!({"messages": user(json!("x")), "seed": 1e30})),
        ("max_tokens", json!({"messages": user(json!("x")), "max_tokens": 0})),
        ("max_tokens", json!({"messages": user(json!("x")), "max_tokens": -1})),
        ("max_tokens", json!({"messages": user(json!("x")), "max_tokens": 1e18})),
        ("stop", json!({"messages": user(json!("x")), "stop": [["x"]]})),
        ("stop", json!({"messages": user(json!("x")), "stop": "x".repeat(5000)})),
        ("logprobs", json!({"messages": user(json!("x")), "logprobs": 5})),
        ("top_logprobs", json!({"messages": user(json!("x")), "top_logprobs": 5})),
        (
            "top_logprobs",
            json!({"messages": user(json!("x")), "logprobs": true, "top_logprobs": 21}),
        ),
        ("stream", json!({"messages": user(json!("x")), "stream": "true"})),
        ("stream_options", json!({"messages": user(json!("x")), "stream_options": {}})),
        (
            "stream_options.include_usage",
            json!({"messages": user(json!("x")), "stream": true,
                   "stream_options": {"include_usage": 1}}),
        ),
        ("logit_bias", json!({"messages": user(json!("x")), "logit_bias": [1]})),
        ("logit_bias", json!({"messages": user(json!("x")), "logit_bias": {"99999": 1}})),
        (
            "chat_template_kwargs",
            json!({"messages": user(json!("x")), "chat_template_kwargs": "x"}),
        ),
        (
            "add_generation_prompt",
            json!({"messages": user(json!("x")), "add_generation_prompt": true,
                   "continue_final_message": true}),
        ),
    ] {
        refused(&server, CHAT, body.to_string().as_bytes(), (bad.0, bad.1, Some(field)));
    }
    for (field, code, body) in [
        ("prompt", bad.1, json!({})),
        ("prompt", bad.1, json!({"prompt": 5})),
        ("prompt", bad.1, json!({"prompt": {"a": 1}})),
        ("prompt", "empty_prompt", json!({"prompt": ""})),
        ("prompt", "empty_prompt", json!({"prompt": []})),
        ("prompt", "empty_prompt", json!({"prompt": [[]]})),
        ("prompt", bad.1, json!({"prompt": ["a", 1]})),
        ("prompt", bad.1, json!({"prompt": [1, "a"]})),
        ("prompt", bad.1, json!({"prompt": [[1], "a"]})),
        ("prompt", bad.1, json!({"prompt": [1.5]})),
        ("prompt", bad.1, json!({"prompt": [-1]})),
        ("prompt", bad.1, json!({"prompt": [1e99]})),
        ("prompt", "token_out_of_range", json!({"prompt": [4_000_000_000u64]})),
        ("prompt", "too_many_sequences", json!({"prompt": vec!["x"; 3000]})),
        ("prompt", "too_many_sequences", json!({"prompt": vec!["x"; 100], "n": 128})),
        ("logprobs", bad.1, json!({"prompt": "x", "logprobs": true})),
        ("logprobs", bad.1, json!({"prompt": "x", "logprobs": 21})),
        ("echo", bad.1, json!({"prompt": "x", "echo": "yes"})),
        ("best_of", bad.1, json!({"prompt": "x", "best_of": 0})),
        ("best_of", bad.1, json!({"prompt": "x", "n": 3, "best_of": 2})),
        ("max_tokens", bad.1, json!({"prompt": "x", "max_tokens": 0})),
    ] {
        refused(&server, TEXT, body.to_string().as_bytes(), (400, code, Some(field)));
    }
    still_serves(&server);
}

#[test]
fn what_is_understood_and_cannot_be_done_is_422() {
    let server = Server::start();
    let image = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    let body = json!({"messages": user(image)}).to_string();
    let want = (422, "unsupported", Some("messages[0].content[0]"));
    refused(&server, CHAT, body.as_bytes(), want);
}

/// These were once accepted and dropped, so that the answer was to something else.
#[test]
fn fields_that_would_change_the_answer_are_400_and_named() {
    let server = Server::start();
    let bodies = [
        (CHAT, json!({"messages": user(json!("[[ok]]")), "temperature": 0})),
        (TEXT, json!({"prompt": "[[ok]]", "temperature": 0, "max_tokens": 9})),
    ];
    for (field, value, neutral) in [
        ("ebnf", json!("root ::= \"a\""), json!(null)),
        ("structural_tag", json!("{}"), json!("")),
        ("bad_words", json!(["a"]), json!([])),
        ("lora_path", json!("x"), json!(null)),
        ("modalities", json!(["text", "audio"]), json!(["text"])),
        ("audio", json!({"voice": "a"}), json!(null)),
        ("prediction", json!({"type": "content"}), json!(null)),
        ("functions", json!([{"name": "f"}]), json!([])),
        ("function_call", json!({"name": "f"}), json!("auto")),
        ("suffix", json!("y"), json!("")),
        ("logits_processors", json!(["p"]), json!([])),
        ("no_repeat_ngram_size", json!(3), json!(0)),
        ("truncate_prompt_tokens", json!(5), json!(null)),
        ("use_beam_search", json!(true), json!(false)),
        ("return_hidden_states", json!(true), json!(false)),
        ("stop_regex", json!("a+"), json!(null)),
        ("reasoning_effort", json!("high"), json!("none")),
        ("temprature", json!(0), json!(null)),
    ] {
        for (path, good) in &bodies {
            let with = |value: &Value| {
                let mut body = good.clone();
                body[field] = value.clone();
                body
            };
            let want = (400, "unsupported_parameter", Some(field));
            refused(&server, path, with(&value).to_string().as_bytes(), want);
            let answer = server.post(path, &with(&neutral));
            assert_eq!(answer.status, 200, "{field} {neutral}: {}", answer.text());
        }
    }
    for field in ["tools", "functions", "tool_choice", "top_logprobs", "messages"] {
        let mut body = bodies[1].1.clone();
        body[field] = json!([{"type": "function"}]);
        let want = (400, "unsupported_parameter", Some(field));
        refused(&server, TEXT, body.to_string().as_bytes(), want);
    }
    let body = json!({"prompt": "x", "max_tokens": 4, "min_tokens": 5});
    let want = (400, "invalid_value", Some("min_tokens"));
    refused(&server, TEXT, body.to_string().as_bytes(), want);
}

#[test]
fn bad_tool_calls_of_earlier_turns_are_400_and_named() {
    let server = Server::start();
    for (path, calls) in [
        ("", json!("call")),
        ("[0]", json!([5])),
        ("[0].function", json!([{"id": "1", "type": "function"}])),
        ("[0].function.arguments", json!([{"function": {"name": "f", "arguments": [1]}}])),
    ] {
        let body = json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": calls},
        ]});
        let field = format!("messages[1].tool_calls{path}");
        let want = (400, "invalid_value", Some(field.as_str()));
        refused(&server, CHAT, body.to_string().as_bytes(), want);
    }
    still_serves(&server);
}

#[test]
fn what_can_never_fit_is_400_with_the_reason() {
    let server = Server::with(ToyConfig { pages: 4, context: 256, ..Default::default() }, &[]);
    let long = (400, "context_length_exceeded");
    let body = json!({"prompt": "x".repeat(300)});
    refused(&server, TEXT, body.to_string().as_bytes(), (long.0, long.1, Some("prompt")));
    let body = json!({"prompt": "x", "max_tokens": 256});
    refused(&server, TEXT, body.to_string().as_bytes(), (long.0, long.1, Some("max_tokens")));
    let body = json!({"messages": user(json!("y".repeat(250)))});
    refused(&server, CHAT, body.to_string().as_bytes(), (long.0, long.1, Some("messages")));
    let body = json!({"prompt": "x", "max_tokens": 200});
    let pool = (400, "kv_pool_too_small", Some("prompt"));
    refused(&server, TEXT, body.to_string().as_bytes(), pool);
    // Far too much text is refused without tokenizing it.
    let body = json!({"prompt": "word ".repeat(3 << 20)});
    refused(&server, TEXT, body.to_string().as_bytes(), (long.0, long.1, Some("prompt")));
    // Without max_tokens a chat takes what context and pool leave.
    let body = json!({"messages": user(json!("z")), "ignore_eos": true});
    let usage = server.post(CHAT, &body).json()["usage"].clone();
    assert_eq!(usage["total_tokens"], 128);
}

/// What was found: of a `max_tokens` too large for the context `param` named the prompt, and its
/// range was another one at each endpoint, up to a number that no model holds.
#[test]
fn a_number_of_tokens_that_cannot_be_is_named_by_its_own_field_in_the_same_words() {
    let server = Server::with(ToyConfig { pages: 4, context: 256, ..Default::default() }, &[]);
    for field in ["max_tokens", "max_completion_tokens"] {
        let ask = |path: &str, value: Value| {
            let body = match path {
                CHAT => json!({"messages": user(json!("z")), field: value}),
                _ => json!({"prompt": "z", field: value}),
            };
            let answer = server.client().post_bytes(path, body.to_string().as_bytes());
            let (status, code, param) = answer.error();
            assert_eq!((status, param.as_deref()), (400, Some(field)), "{}", answer.text());
            (code, answer.json()["error"]["message"].as_str().unwrap().to_owned())
        };
        for (path, zero) in [(CHAT, ""), (TEXT, ", or 0 together with echo")] {
            for value in [json!(0), json!(-1), json!(1.5), json!(1e12)] {
                let (code, said) = ask(path, value);
                let range = format!("'{field}' must be a whole number from 1 to 256{zero}, found ");
                assert!(code == "invalid_value" && said.starts_with(&range), "{path}: {said}");
            }
            let (code, said) = ask(path, json!(1000));
            let words = format!("and {field} is 1000; together they exceed the context of 256");
            assert!(code == "context_length_exceeded" && said.contains(&words), "{path}: {said}");
        }
    }
}

#[test]
fn routes_and_methods_that_do_not_exist() {
    let server = Server::start();
    for path in ["/v1", "/v1/chat", "/v1/embeddings", "/v1/chat/completions/", "/%2e%2e/x"] {
        let (status, code, _) = server.get(path).error();
        assert_eq!((status, code.as_str()), (404, "route_not_found"), "{path}");
    }
    for (method, path, allow) in [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("PUT", "/health", "GET,HEAD"),
    ] {
        let mut client = server.client();
        client.send(method, path, &[], b"");
        let answer = client.answer();
        assert_eq!(answer.header("allow"), Some(allow), "{path}");
        let (status, code, _) = answer.error();
        assert_eq!((status, code.as_str()), (405, "method_not_allowed"));
    }
}

#[test]
fn a_model_name_that_is_no_text_is_404_in_the_usual_shape() {
    let server = Server::start();
    for path in ["/v1/models/%ff", "/v1/models/%C3%28", "/v1/models/a%ff/b", "/v1/models/none"] {
        let (status, code, param) = server.get(path).error();
        assert_eq!((status, code.as_str()), (404, "model_not_found"), "{path}");
        assert_eq!(param.as_deref(), Some("model"));
    }
    for path in ["/v1/loads?include=%ff", "/v1/loads?format=%ff", "/v1/loads?include"] {
        assert_eq!(server.get(path).error().0, 400, "{path}");
    }
}

/// A body in a coding was once read as if it were in none, and called invalid JSON.
#[test]
fn codings_and_expectations_that_are_not_met_are_refused() {
    let server = Server::start();
    let body = b"{\"messages\": [{\"role\": \"user\", \"content\": \"[[ok]]\"}]}";
    for (header, value, want) in [
        ("Content-Encoding", "gzip", (415, "unsupported_content_encoding")),
        ("Content-Encoding", "identity, br", (415, "unsupported_content_encoding")),
        ("Expect", "foo", (417, "unsupported_expectation")),
    ] {
        let mut client = server.client();
        client.send("POST", CHAT, &[(header, value)], body);
        let (status, code, _) = client.answer().error();
        assert_eq!((status, code.as_str()), want, "{header}: {value}");
        assert!(client.is_closed());
    }
    let mut client = server.client();
    client.send("POST", CHAT, &[("Transfer-Encoding", "gzip, chunked")], b"0\r\n\r\n");
    assert_eq!(client.answer().error().0, 501);
    let mut client = server.client();
    client.send("POST", CHAT, &[("Content-Encoding", "identity")], body);
    assert_eq!(client.answer().status, 200);
    still_serves(&server);
}

/// A client that announced too much and then waited for the answer once had it after ten seconds.
#[test]
fn a_body_announced_too_large_is_refused_before_it_is_sent() {
    let server = Server::start();
    let mut client = server.client();
    client.stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    client.send("POST", CHAT, &[("Content-Length", "1000000000000")], b"");
    let (status, code, _) = client.answer().error();
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    still_serves(&server);
}

#[test]
fn a_body_that_is_too_large_is_413() {
    let server = Server::start();
    // Announced: refused without being kept, and the client that sends it anyway sees why.
    let mut client = server.client();
    let size = (32 << 20) + 1;
    client.send("POST", CHAT, &[("Content-Length", &size.to_string())], b"");
    let block = vec![b' '; 1 << 20];
    for _ in 0..32 {
        client.stream.write_all(&block).unwrap();
    }
    client.stream.write_all(b" ").unwrap();
    let (status, code, _) = client.answer().error();
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    assert!(client.is_closed());
    // Not announced: counted as it comes.
    let mut client = server.client();
    client.send("POST", CHAT, &[("Transfer-Encoding", "chunked")], b"");
    for _ in 0..33 {
        client.stream.write_all(b"100000\r\n").unwrap();
        client.stream.write_all(&block).unwrap();
        client.stream.write_all(b"\r\n").unwrap();
    }
    client.stream.write_all(b"0\r\n\r\n").unwrap();
    let (status, code, _) = client.answer().error();
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    still_serves(&server);
}

#[test]
fn a_head_that_is_no_http_closes_the_connection() {
    let server = Server::start();
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(),
        b"GET /health HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n".to_vec(),
    ] {
        let mut client = server.client();
        // The server may have closed before all of it is written.
        let _ = client.stream.write_all(&bytes);
        let mut left = 1 << 20;
        while !client.is_closed() {
            left -= 1;
            assert!(left > 0, "the server goes on talking");
        }
    }
    still_serves(&server);
}

/// What `docs/requests.md` says of heads that the HTTP library refuses by itself.
#[test]
fn heads_beyond_the_library_s_limits_are_414_and_431() {
    let server = Server::start();
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(bytes - 1));
    let lines = |count: usize| format!("GET /health HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(count));
    let wide = format!("GET /health HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 17));
    for (head, status, is_refused) in [
        (target(65_534), 404, false),
        (target(65_535), 414, true),
        (lines(100), 200, false),
        (lines(101), 431, true),
        (wide, 431, true),
    ] {
        let mut client = server.client();
        // The server may have closed before all of it is written.
        let _ = client.stream.write_all(head.as_bytes());
        let answer = client.answer();
        assert_eq!(answer.status, status, "{} bytes, {}", head.len(), &head[..30]);
        if is_refused {
            assert!(answer.body.is_empty(), "{answer:?}");
            assert!(client.is_closed());
        }
    }
    still_serves(&server);
}

#[test]
fn a_body_that_breaks_off_leaves_nothing_behind() {
    let server = Server::start();
    for _ in 0..50 {
        let mut client = server.client();
        client.send("POST", CHAT, &[("Content-Length", "1000")], b"{\"messages\": [");
    }
    still_serves(&server);
    assert_eq!(server.toy_counters().admitted, 1);
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let server = Server::start();
    let mut slow: Vec<common::Client> = (0..200).map(|_| server.client()).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        let part = &b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le"[..at % 40];
        client.stream.write_all(part).unwrap();
    }
    still_serves(&server);
}

#[test]
fn unknown_fields_are_ignored() {
    let server = Server::start();
    let body = json!({
        "messages": [{"role": "user", "content": "[[ok]]", "name": "a", "cache_control": {}}],
        "user": "u", "metadata": {"a": 1}, "store": false, "service_tier": "auto",
        "made_up": [1, {"x": null}], "temperature": 0,
    });
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], "ok");
}

mod mutated {
    use super::common::Server;
    use super::{CHAT, TEXT};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Good bodies to start from.
    fn seeds() -> Vec<(&'static str, Value)> {
        let messages = json!([{"role": "user", "content": "say [[hi]]"}]);
        vec![
            (CHAT, json!({"messages": messages, "max_tokens": 4, "stream": true, "n": 2})),
            (
                CHAT,
                json!({"messages": messages, "max_tokens": 4, "logprobs": true, "seed": 3,
                          "logit_bias": {"5": 1}, "stop": ["a", "b"]}),
            ),
            (TEXT, json!({"prompt": ["a", "b"], "max_tokens": 3, "echo": true, "logprobs": 2})),
            (TEXT, json!({"prompt": [[5, 6], [7]], "max_tokens": 3, "temperature": 0.5})),
            ("/tokenize", json!({"messages": messages, "return_token_strs": true})),
            ("/detokenize", json!({"tokens": [1, 2, 200], "skip_special_tokens": true})),
        ]
    }

    /// Bytes changed, removed, doubled or replaced by bits of JSON.
    fn mutate(mut body: Vec<u8>, edits: &[(usize, u8, u8)]) -> Vec<u8> {
        const BITS: [&[u8]; 8] =
            [b"null", b"-1", b"1e400", b"[[", b"{}", b"\"\\u0000\"", b"99999999999999999999", b","];
        for &(at, what, byte) in edits {
            if body.is_empty() {
                break;
            }
            let at = at % body.len();
            match what % 4 {
                0 => body[at] = byte,
                1 => drop(body.drain(at..(at + byte as usize % 9).min(body.len()))),
                2 => body.insert(at, byte),
                _ => {
                    let bit = BITS[byte as usize % BITS.len()];
                    body.splice(at..(at + 1).min(body.len()), bit.iter().copied());
                }
            }
        }
        body
    }

    #[test]
    fn any_body_gets_an_answer() {
        let server = Server::start();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 400,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let edits = proptest::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..6);
        let all = seeds();
        runner
            .run(&(0..all.len(), edits), |(seed, edits)| {
                let (path, body) = &all[seed];
                let body = mutate(body.to_string().into_bytes(), &edits);
                let answer = server.client().post_bytes(path, &body);
                let known = [200, 400, 404, 422, 429].contains(&answer.status);
                prop_assert!(known, "{}: {}", answer.status, answer.text());
                if answer.status != 200 {
                    answer.error();
                }
                Ok(())
            })
            .unwrap();
        super::still_serves(&server);
    }
}
