//! `lockstep serve --device cuda` over HTTP: how soon it is ready, what a change of buckets costs
//! the streams, and, where a real model was given, chats and their answers beside the CPU device's.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, Rng, cpu, gpu, greedy, margin, model};
use crate::http::{Server, serve};
use crate::speed;
use lockstep_device::Device;
use lockstep_engine::Knobs;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds from the start of the process to ready.
const READY_S: f64 = 10.0;
/// Milliseconds that a change of generations may add between two steps.
const GAP_MS: f64 = 50.0;
/// Clients that stream while buckets change.
const CLIENTS: usize = 32;
/// Ceilings of captured batches, one generation after the other.
const CEILINGS: [u32; 3] = [96, 16, 96];
/// |GPU - CPU| / |CPU| over all logits of the same contexts: the GPU rounds weights and the rows
/// that they multiply to bf16, the CPU those rows to 8 bits.
const DISTANCE_MAX: f64 = 0.05;
/// Greedy tokens are compared up to where the best two logits of either device are this near.
const MARGIN: f32 = 0.15;

type Answer = Result<(), String>;

pub fn run(binary: &Path, real: Option<&Path>, shape: &str, table: &mut Table) {
    let say = |what: &str, done: Answer, table: &mut Table| {
        if let Err(e) = done {
            table.verdict(false, format!("served {what}: {e}"));
        }
    };
    let done = ready(binary, shape, table);
    say(shape, done, table);
    let done = changes(binary, table);
    say("changes", done, table);
    if let Some(real) = real {
        let done = chats(binary, real, table);
        say("chats", done, table);
    }
}

fn start(binary: &Path, name: &str, args: &[&str]) -> Result<Server, String> {
    let log = std::env::var_os("OUT").map_or_else(std::env::temp_dir, Into::into);
    let mut all = vec!["--device", "cuda"];
    all.extend(args);
    serve(binary, &all, &log.join(format!("serve-{name}.log")))
}

/// A server of seeded weights: every answer is by ids.
fn dummy(binary: &Path, shape: &str, args: &[&str]) -> Result<Server, String> {
    let folder = speed::folder(shape).ok_or(format!("there is no shape {shape}"))?;
    let folder = folder.display().to_string();
    let mut all = vec!["--model", &folder, "--load-format", "dummy", "--context-length", "4096"];
    all.extend(args);
    start(binary, shape, &all)
}

fn ready(binary: &Path, shape: &str, table: &mut Table) -> Answer {
    let more = ["--graph-max-bs", "96", "--max-running-requests", "96", "--kv-memory", "16GiB"];
    let server = dummy(binary, shape, &more)?;
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0});
    let asked = Instant::now();
    server.ask("POST", "/v1/completions", Some(&body))?;
    table.verdict(
        server.seconds < READY_S,
        format!(
            "served {shape}: {:.2} s from the start of the process to ready, its first token {:.1} ms \
             after it was asked for",
            server.seconds,
            asked.elapsed().as_secs_f64() * 1e3
        ),
    );
    Ok(())
}

/// What a stream gave: tokens with their log-probabilities, as written.
type Given = Vec<String>;

fn request(client: usize, turn: usize) -> Value {
    let mut rng = Rng(0x5e4e + ((client as u64) << 32) + turn as u64);
    let len = 20 + rng.below(100) as usize;
    json!({
        "prompt": rng.prompt(len, 150_000),
        "max_tokens": 96 + 3 * client,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": 1000 * client + turn,
        "stream": true,
        "logprobs": 1,
        "return_tokens_as_token_ids": true,
    })
}

fn stream(server: &Server, client: usize, turn: usize) -> Result<Given, String> {
    let events = server.stream("/v1/completions", &request(client, turn))?;
    let mut given = Given::new();
    for event in &events {
        let scores = &event["choices"][0]["logprobs"];
        let list = |key: &str| scores[key].as_array().cloned().unwrap_or_default();
        for (token, score) in list("tokens").iter().zip(&list("token_logprobs")) {
            given.push(format!("{token} {score}"));
        }
    }
    Ok(given)
}

/// All streams of a run by client and turn.
#[derive(Default)]
struct Streams {
    given: BTreeMap<(usize, usize), Given>,
    fault: Option<String>,
}

/// Streams until told to stop, or exactly as many turns of each client as another run had.
fn load(server: &Server, stop: &AtomicBool, turns: Option<&[usize]>) -> Streams {
    let all = Mutex::new(Streams::default());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let all = &all;
            scope.spawn(move || {
                let mut turn = 0;
                let more = |turn| match turns {
                    Some(turns) => turn < turns[client],
                    None => !stop.load(Ordering::Relaxed),
                };
                while more(turn) {
                    let done = stream(server, client, turn);
                    let mut all = all.lock().expect("nobody panics with it");
                    match done {
                        Ok(given) => _ = all.given.insert((client, turn), given),
                        Err(e) => {
                            all.fault = Some(e);
                            return;
                        }
                    }
                    turn += 1;
                }
            });
        }
    });
    all.into_inner().expect("nobody panics with it")
}

fn changes(binary: &Path, table: &mut Table) -> Answer {
    let args = ["--graph-max-bs", "32", "--max-running-requests", "96", "--kv-memory", "8GiB"];
    let server = dummy(binary, "qwen3-0.6b", &args)?;
    let stop = AtomicBool::new(false);
    let (disturbed, changed) = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&server, &stop, None));
        let changed = change(&server);
        stop.store(true, Ordering::Relaxed);
        (loading.join().expect("it does not panic"), changed)
    });
    changed?;
    let turns: Vec<usize> =
        (0..CLIENTS).map(|c| disturbed.given.range((c, 0)..(c + 1, 0)).count()).collect();
    let calm = load(&server, &stop, Some(&turns));
    if let Some(fault) = disturbed.fault.or(calm.fault) {
        return Err(fault);
    }
    let same = disturbed.given.iter().filter(|(key, given)| calm.given.get(key) == Some(given));
    let (same, count) = (same.count(), disturbed.given.len());
    let tokens: usize = disturbed.given.values().map(Vec::len).sum();
    let list = server.ask("GET", "/admin/generations", None)?;
    let gaps: Vec<f64> = list["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|g| g["generation"].as_u64() > Some(1))
        .filter_map(|g| g["gap"]["longest_ms"].as_f64())
        .collect();
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    table.verdict(
        same == count && tokens > 0 && gaps.len() == CEILINGS.len() && longest < GAP_MS,
        format!(
            "served changes: {} generations flipped to under {CLIENTS} streams; the longest time one \
             took between two steps {longest:.2} ms; {same} of {count} streams ({tokens} tokens with \
             log-probabilities) as undisturbed",
            gaps.len(),
        ),
    );
    Ok(())
}

/// Stages, flips and retires one generation after the other.
fn change(server: &Server) -> Answer {
    std::thread::sleep(Duration::from_secs(1));
    for ceiling in CEILINGS {
        let body = json!({"knobs": {"decode.graph-max-bs": ceiling}, "wait": true});
        let staged = server.ask("POST", "/admin/generations", Some(&body))?;
        let number = staged["generation"].as_u64().ok_or("a generation without a number")?;
        let flip = format!("/admin/generations/{number}/flip");
        server.ask("POST", &flip, Some(&json!({"watch_seconds": 0})))?;
        std::thread::sleep(Duration::from_millis(700));
        let retire = format!("/admin/generations/{}/retire", number - 1);
        server.ask("POST", &retire, Some(&json!({})))?;
    }
    Ok(())
}

const QUESTIONS: [&str; 6] = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three fruits and say what colour each has.",
    "Translate 'good morning' into Spanish.",
    "How many legs do two spiders have together?",
];

fn chats(binary: &Path, real: &Path, table: &mut Table) -> Answer {
    let path = real.display().to_string();
    let server = start(binary, "real", &["--model", &path, "--graph-max-bs", "8"])?;
    let mut prompts = Vec::new();
    let (mut alike, mut pieces, mut first) = (0, 0, String::new());
    for question in QUESTIONS {
        let messages = json!([{"role": "user", "content": question}]);
        let mut body = json!({"messages": messages, "max_tokens": 48, "temperature": 0});
        let whole = server.ask("POST", "/v1/chat/completions", Some(&body))?;
        let whole =
            whole["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_string();
        body["stream"] = json!(true);
        let events = server.stream("/v1/chat/completions", &body)?;
        let piece = |e: &Value| e["choices"][0]["delta"]["content"].as_str().map(str::to_string);
        let streamed: String = events.iter().filter_map(piece).collect();
        alike += usize::from(!whole.is_empty() && whole == streamed);
        pieces += events.len();
        if first.is_empty() {
            first = whole;
        }
        let tokens = server.ask("POST", "/tokenize", Some(&json!({"messages": messages})))?;
        let ids = tokens["tokens"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        prompts.push(ids.map(|id| id as u32).collect::<Vec<u32>>());
    }
    table.verdict(
        alike == QUESTIONS.len(),
        format!(
            "served chats: {alike} of {} streamed as whole, {pieces} pieces; ready in {:.2} s; \
             {first:?}",
            QUESTIONS.len(),
            server.seconds
        ),
    );
    drop(server);
    beside_the_cpu(real, &prompts, table);
    Ok(())
}

fn answers(device: Box<dyn Device>, real: &Path, prompts: &[Vec<u32>]) -> Vec<Outcome> {
    let knobs = Knobs {
        graph_max_bs: 8,
        running_max: 8,
        chunk_tokens: 256,
        kv_bytes: 256 << 20,
        context_tokens: 1024,
        prefix_cache: false,
        audit_rate: 0,
        ..Knobs::default()
    };
    let mut params = greedy(64);
    (params.prompt_logprobs, params.logprobs) = (true, Some(0));
    let ask = |p: &Vec<u32>| Ask { prompt: p.clone(), params: params.clone() };
    let asks: Vec<Ask> = prompts.iter().map(ask).collect();
    Bed::new(device, model(real, false), knobs, Keep::Rows).run(&asks, 0)
}

/// The same prompts on both devices: logits of the contexts that both have had, and greedy tokens.
fn beside_the_cpu(real: &Path, prompts: &[Vec<u32>], table: &mut Table) {
    let on_gpu = answers(Box::new(gpu()), real, prompts);
    let on_cpu = answers(Box::new(cpu()), real, prompts);
    let (mut off, mut all, mut rows) = (0f64, 0f64, 0);
    let (mut same, mut compared, mut tokens) = (0, 0, 0);
    for ((a, b), prompt) in on_gpu.iter().zip(&on_cpu).zip(prompts) {
        let alike = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
        // The logits that chose token i stand at the position before it.
        let chose = |i: usize| (prompt.len() - 1 + i) as u32;
        let near = |o: &Outcome, i| o.rows.get(&chose(i)).is_none_or(|row| margin(row) < MARGIN);
        let clear = (0..alike).take_while(|i| !near(a, *i) && !near(b, *i)).count();
        let parts_clearly =
            clear == alike && alike < b.tokens.len() && !near(a, alike) && !near(b, alike);
        compared += clear + usize::from(parts_clearly);
        (same, tokens) = (same + clear, tokens + b.tokens.len());
        for (position, on_cpu) in b.rows.range(..=chose(alike)) {
            let Some(on_gpu) = a.rows.get(position) else { continue };
            rows += 1;
            for (a, b) in on_gpu.iter().zip(on_cpu) {
                off += (f64::from(*a) - f64::from(*b)).powi(2);
                all += f64::from(*b).powi(2);
            }
        }
    }
    let distance = (off / all).sqrt();
    table.verdict(
        rows > 0 && distance < DISTANCE_MAX && compared > 0 && same == compared,
        format!(
            "served model: GPU within {distance:.1e} of the CPU device over {rows} rows of logits (bar \
             {DISTANCE_MAX}); greedy {same} of {compared} tokens alike up to the first margin under \
             {MARGIN} of each answer ({tokens} made)"
        ),
    );
}
