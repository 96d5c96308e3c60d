//! The OpenAI endpoints: what is asked for comes back, whole and streamed alike.

mod common;

use common::Server;
use serde_json::{Value, json};

fn chat(words: &str) -> Value {
    json!({"messages": [{"role": "user", "content": words}], "temperature": 0})
}

fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A choice's text in a stream.
fn streamed(events: &[Value], index: u64) -> String {
    let of = |e: &Value| {
        let choice = e["choices"].as_array()?.iter().find(|c| c["index"] == index)?.clone();
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        text.map(str::to_owned)
    };
    events.iter().filter_map(of).collect()
}

/// A stop string in what `min_tokens` asks for is text.
#[test]
fn stop_strings_count_after_min_tokens() {
    let server = Server::start();
    let tokens = |text: &str| {
        let body = json!({"prompt": text, "add_special_tokens": false});
        server.post("/tokenize", &body).json()["count"].clone()
    };
    let content = |min: Value| {
        let body = json!({"messages": [{"role": "user", "content": "[[a. b. c.]]"}],
            "temperature": 0, "stop": ["."], "min_tokens": min});
        server.post("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(content(json!(0)), "a");
    assert_eq!(content(tokens("a.")), "a. b");
    assert_eq!(content(tokens("a. b.")), "a. b. c");
}

#[test]
fn chat_answers_what_the_engine_made() {
    let server = Server::start();
    let answer = server.post("/v1/chat/completions", &chat("[[hello there]]"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "toy");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "hello there");
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &body["usage"];
    let sum =
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    assert!(body["seed"].is_u64() && body["system_fingerprint"].is_string());
    assert!(answer.header("x-request-id").is_some());
}

#[test]
fn stream_and_whole_agree() {
    let server = Server::start();
    for (n, more) in [
        (1, json!({"seed": 7, "temperature": 1.0, "max_tokens": 60})),
        (3, json!({"seed": 8, "temperature": 1.0, "max_tokens": 40, "n": 3})),
        (2, json!({"seed": 9, "temperature": 1.0, "max_tokens": 80, "n": 2, "stop": ["e", "in"]})),
        (1, json!({"seed": 3, "max_tokens": 50, "logprobs": true, "top_logprobs": 2})),
    ] {
        let body = with(chat("any bytes at all"), more);
        let whole = server.post("/v1/chat/completions", &body).json();
        let stream = with(body, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let events = server.post("/v1/chat/completions", &stream).events();
        for index in 0..n {
            let choice = &whole["choices"][index as usize];
            assert_eq!(choice["message"]["content"], streamed(&events, index), "{whole}");
            let finish = events.iter().find_map(|e| {
                let c = e["choices"].as_array()?.iter().find(|c| c["index"] == index)?;
                c["finish_reason"].as_str()
            });
            assert_eq!(choice["finish_reason"].as_str(), finish);
            let scores: Vec<&Value> = events
                .iter()
                .flat_map(|e| e["choices"].as_array().unwrap())
                .filter(|c| c["index"] == index)
                .flat_map(|c| c["logprobs"]["content"].as_array().into_iter().flatten())
                .collect();
            let all: Vec<&Value> =
                choice["logprobs"]["content"].as_array().into_iter().flatten().collect();
            assert_eq!(scores, all);
        }
        let usage = events.last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        assert!(events[..events.len() - 1].iter().all(|e| e["usage"].is_null()));
    }
}

#[test]
fn a_seed_fixes_the_answer_and_its_absence_does_not() {
    let server = Server::start();
    let ask = |more: Value| {
        let body = with(chat("x"), with(json!({"temperature": 1, "max_tokens": 30}), more));
        server.post("/v1/chat/completions", &body).json()
    };
    let text = |v: &Value| v["choices"][0]["message"]["content"].clone();
    let (a, b, c) = (ask(json!({"seed": 1})), ask(json!({"seed": 1})), ask(json!({"seed": 2})));
    assert_eq!(text(&a), text(&b));
    assert_ne!(text(&a), text(&c));
    let free = ask(json!({}));
    assert_eq!(text(&ask(json!({"seed": free["seed"]}))), text(&free));
}

#[test]
fn the_stream_begins_with_the_role_and_ends_with_the_reason() {
    let server = Server::start();
    let body = with(chat("[[ab]]"), json!({"stream": true}));
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!((&last["finish_reason"], &last["delta"]), (&json!("stop"), &json!({})));
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk"));
    assert!(events.iter().all(|e| e["id"] == events[0]["id"]));
    assert!(events.iter().all(|e| e.get("usage").is_none()));
}

#[test]
fn stop_strings_end_the_text_and_the_sequence() {
    let server = Server::start();
    let body = with(chat("[[one two three]]"), json!({"stop": "two"}));
    let body = server.post("/v1/chat/completions", &body).json();
    assert_eq!(body["choices"][0]["message"]["content"], "one ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 6);
    let keep = with(
        chat("[[one two three]]"),
        json!({"stop": ["two"], "include_stop_str_in_output": true}),
    );
    let keep = server.post("/v1/chat/completions", &keep).json();
    assert_eq!(keep["choices"][0]["message"]["content"], "one two");
    common::wait_until("the stopped sequences have ended", || {
        let c = server.toy_counters();
        c.cancelled + c.finished == 2
    });
}

#[test]
fn max_tokens_ends_with_length() {
    let server = Server::start();
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = with(chat("[[abcdef]]"), json!({field: 3}));
        let body = server.post("/v1/chat/completions", &body).json();
        assert_eq!(body["choices"][0]["message"]["content"], "abc");
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 3);
    }
}

#[test]
fn characters_are_never_cut() {
    let server = Server::start();
    let body = with(chat("[[é😀ü]]"), json!({"stream": true}));
    let events = server.post("/v1/chat/completions", &body).events();
    assert_eq!(streamed(&events, 0), "é😀ü");
    assert!(!events.iter().any(|e| e.to_string().contains('\u{fffd}')));
    let cut = with(chat("[[a😀]]"), json!({"max_tokens": 3}));
    let cut = server.post("/v1/chat/completions", &cut).json();
    assert_eq!(cut["choices"][0]["message"]["content"], "a\u{fffd}");
}

#[test]
fn chat_logprobs_have_their_shape() {
    let server = Server::start();
    let body = with(chat("[[hi]]"), json!({"logprobs": true, "top_logprobs": 2}));
    let body = server.post("/v1/chat/completions", &body).json();
    let scores = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(scores.len(), 2);
    assert_eq!(scores[0]["token"], "h");
    assert_eq!(scores[0]["bytes"], json!([104]));
    assert!(scores[0]["logprob"].as_f64().unwrap() < 0.0);
    let top = scores[0]["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[0]["token"]), (2, &json!("h")));
    let plain = server.post("/v1/chat/completions", &chat("[[hi]]")).json();
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    let ids = with(chat("[[hi]]"), json!({"logprobs": true, "return_tokens_as_token_ids": true}));
    let ids = server.post("/v1/chat/completions", &ids).json();
    let first = ids["choices"][0]["logprobs"]["content"][0]["token"].clone();
    assert!(first.as_str().unwrap().starts_with("token_id:"), "{first}");
}

#[test]
fn completions_take_every_kind_of_prompt() {
    let server = Server::start();
    let ask = |prompt: Value| {
        server.post("/v1/completions", &json!({"prompt": prompt, "temperature": 0})).json()
    };
    let ids = server.post("/tokenize", &json!({"prompt": "say [[yes]]"})).json()["tokens"].clone();
    let one = ask(json!("say [[yes]]"));
    assert_eq!(one["object"], "text_completion");
    assert_eq!(one["choices"][0]["text"], "yes");
    assert_eq!(ask(ids.clone())["choices"], one["choices"]);
    let two = ask(json!(["say [[yes]]", "[[no]]"]));
    let texts: Vec<&Value> =
        two["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, [&json!("yes"), &json!("no")]);
    assert_eq!(two["choices"][1]["index"], 1);
    let lists = ask(json!([ids, ids]));
    assert_eq!(lists["choices"][1]["text"], "yes");
    assert_eq!(lists["usage"]["prompt_tokens"], 2 * ids.as_array().unwrap().len());
}

#[test]
fn completions_make_sixteen_tokens_by_default() {
    let server = Server::start();
    let words = "[[abcdefghijklmnopqrstuvwxyz]]";
    let body = server.post("/v1/completions", &json!({"prompt": words})).json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[test]
fn echo_gives_the_prompt_back_with_its_logprobs() {
    let server = Server::start();
    let body = json!({"prompt": "he [[ok]]", "echo": true, "logprobs": 1, "temperature": 0});
    let whole = server.post("/v1/completions", &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "he [[ok]]ok");
    let lists = &choice["logprobs"];
    let tokens: Vec<&str> =
        lists["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), "he [[ok]]ok");
    assert_eq!(tokens[0], "he");
    assert_eq!(lists["token_logprobs"][0], Value::Null);
    assert_eq!(lists["top_logprobs"][0], Value::Null);
    assert!(lists["token_logprobs"][1].is_f64());
    let offsets: Vec<u64> =
        lists["text_offset"].as_array().unwrap().iter().map(|o| o.as_u64().unwrap()).collect();
    assert_eq!(offsets, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let events = server.post("/v1/completions", &with(body, json!({"stream": true}))).events();
    assert_eq!(streamed(&events, 0), "he [[ok]]ok");
    let all: Vec<Value> = events
        .iter()
        .flat_map(|e| e["choices"][0]["logprobs"]["text_offset"].as_array().unwrap().clone())
        .collect();
    assert_eq!(json!(all), lists["text_offset"]);
}

#[test]
fn echo_alone_scores_a_prompt() {
    let server = Server::start();
    let body = json!({"prompt": "he said", "echo": true, "logprobs": 0, "max_tokens": 0});
    let body = server.post("/v1/completions", &body).json();
    assert_eq!(body["choices"][0]["text"], "he said");
    assert_eq!(body["usage"]["completion_tokens"], 0);
    assert_eq!(body["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 6);
    let without = json!({"prompt": "x", "max_tokens": 0});
    assert_eq!(server.post("/v1/completions", &without).status, 400);
}

#[test]
fn best_of_keeps_the_likeliest() {
    let server = Server::start();
    let ask = |more: Value| {
        let body = json!({"prompt": "p", "max_tokens": 12, "seed": 5});
        server.post("/v1/completions", &with(body, more)).json()
    };
    let all = ask(json!({"n": 4, "logprobs": 0}));
    let mean = |c: &Value| {
        let l = c["logprobs"]["token_logprobs"].as_array().unwrap();
        l.iter().map(|v| v.as_f64().unwrap()).sum::<f64>() / l.len() as f64
    };
    let choices = all["choices"].as_array().unwrap();
    let best = choices.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap();
    let one = ask(json!({"best_of": 4}));
    assert_eq!(one["choices"].as_array().unwrap().len(), 1);
    assert_eq!(one["choices"][0]["text"], best["text"]);
    assert_eq!(one["choices"][0]["logprobs"], Value::Null);
    assert_eq!(one["usage"]["completion_tokens"], 48);
    let stream = json!({"prompt": "p", "best_of": 2, "stream": true});
    let (status, _, param) = server.post("/v1/completions", &stream).error();
    assert_eq!((status, param.as_deref()), (400, Some("best_of")));
}

#[test]
fn models_are_listed_and_found() {
    let server = Server::with(Default::default(), &[("server.served-model-name", "org/name")]);
    let list = server.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "org/name");
    assert_eq!(list["data"][0]["max_model_len"], 2048);
    assert_eq!(server.get("/v1/models/org/name").json()["id"], "org/name");
    let (status, code, _) = server.get("/v1/models/other").error();
    assert_eq!((status, code.as_str()), (404, "model_not_found"));
    for name in ["org/name", "toy-alias"] {
        let body = with(chat("[[x]]"), json!({"model": name}));
        let body = server.post("/v1/chat/completions", &body).json();
        assert_eq!(body["model"], "org/name");
    }
    let body = with(chat("[[x]]"), json!({"model": "gpt-5"}));
    let (status, code, param) = server.post("/v1/chat/completions", &body).error();
    assert_eq!((status, code.as_str(), param.as_deref()), (404, "model_not_found", Some("model")));
}

#[test]
fn text_parts_and_earlier_turns_reach_the_prompt() {
    let server = Server::start();
    let messages = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say"}, {"type": "text", "text": "[[ok]]"}]},
    ]);
    let body = json!({"messages": messages, "temperature": 0});
    let body = server.post("/v1/chat/completions", &body).json();
    assert_eq!(body["choices"][0]["message"]["content"], "ok");
    let tokens = server.post("/tokenize", &json!({"messages": messages})).json();
    assert_eq!(tokens["count"], body["usage"]["prompt_tokens"]);
    let text = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    let text = text["prompt"].as_str().unwrap().to_owned();
    assert!(text.starts_with("<|im_start|>system\nbe brief<|im_end|>"), "{text}");
    assert!(text.ends_with("say\n[[ok]]<|im_end|>\n<|im_start|>assistant\n"), "{text}");
}
