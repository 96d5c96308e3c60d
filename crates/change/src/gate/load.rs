//! Requests, in closed loops.

use super::{Load, Measured, Point};
use crate::fault::ChangeError;
use crate::web::Web;
use lockstep_check::client::{Client, Exchange, Outcome, Reading};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// Differences that are kept with their texts.
const DIFFERING_MAX: usize = 8;
/// Prompts of unlike lengths, so that rows of a batch are unlike too.
const PROMPTS: [&str; 12] = [
    "The capital of France is",
    "Once upon a time there was a small dog who",
    "Water boils at",
    "List three colours of the rainbow and say where each of them can be seen in a garden in June:",
    "def fibonacci(n):",
    "In the year 1969, two people walked on the moon for the first time. What they said and did there",
    "The opposite of hot is",
    "A recipe for bread: take flour, water, salt and yeast. First",
    "7 times 8 is",
    "Dear Sir or Madam, I am writing to you because of the order that I placed on Monday. It",
    "The quick brown fox",
    "To make tea, one needs",
];

/// The prompt of the n-th request.
fn prompt(n: u64) -> &'static str {
    PROMPTS[(n % PROMPTS.len() as u64) as usize]
}

fn body(prompt: &str, tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
           "stream": true, "stream_options": {"include_usage": true}})
}

async fn client(web: &Web) -> Result<Client, ChangeError> {
    web.api().discover().await.map_err(|e| ChangeError::Unreachable {
        url: web.url().into(),
        why: format!("its models cannot be listed: {e}"),
    })
}

/// Asks for one token: a server is ready when it has answered something.
///
/// # Errors
/// It has not.
pub fn probe(web: &Web) -> Result<(), ChangeError> {
    web.runtime().block_on(async {
        let client = client(web).await?;
        let e = client.completions(&body(PROMPTS[0], 1), Reading::default()).await;
        let what = e.outcome.to_string();
        if e.is_done() { Ok(()) } else { Err(ChangeError::Answer { url: web.url().into(), what }) }
    })
}

/// One greedy answer to each prompt, one request at a time.
///
/// # Errors
/// A request is not answered.
pub fn sample(web: &Web, tokens: u32) -> Result<BTreeMap<String, String>, ChangeError> {
    web.runtime().block_on(async {
        let client = client(web).await?;
        let mut answers = BTreeMap::new();
        for prompt in PROMPTS {
            let e = client.completions(&body(prompt, tokens), Reading::default()).await;
            if !e.is_done() || e.text.is_empty() {
                let what =
                    if e.is_done() { "an empty answer".into() } else { e.outcome.to_string() };
                let what = format!("the prompt '{prompt}' gave {what}");
                return Err(ChangeError::Answer { url: web.url().into(), what });
            }
            answers.insert(prompt.to_owned(), e.text);
        }
        Ok(answers)
    })
}

/// Runs a load and keeps what came back. `say` is told of each concurrency.
///
/// # Errors
/// The server cannot be asked at all; requests that fail are counted.
pub fn measure(web: &Web, load: &Load, say: &mut dyn FnMut(&str)) -> Result<Measured, ChangeError> {
    let mut m = Measured { alone: sample(web, load.tokens)?, ..Measured::default() };
    for &concurrency in &load.concurrency {
        let (point, answers) = web.runtime().block_on(async {
            let client = client(web).await?;
            let requests = u64::from(concurrency) * u64::from(load.rounds);
            let requests = requests.max(PROMPTS.len() as u64);
            let tokens = load.tokens;
            Ok::<_, ChangeError>(loops(client, concurrency, requests, move |_| tokens).await)
        })?;
        say(&format!(
            "at {concurrency}: {:.1} tokens/s, {} of {} answered",
            point.tokens_per_second(),
            point.requests - point.failed - point.refused - point.timeouts,
            point.requests
        ));
        for (prompt, text) in answers {
            let alone = m.alone.get(prompt).cloned().unwrap_or_default();
            m.compared += 1;
            if alone != text && m.differing.len() < DIFFERING_MAX {
                m.differing.push((prompt.to_owned(), alone, text));
            }
        }
        m.points.push(point);
    }
    Ok(m)
}

/// One burst of `size` requests that end one after the other, so that every batch size below it
/// is decoded on the way down.
///
/// # Errors
/// The server cannot be asked, or a request fails.
pub fn cover(web: &Web, size: u32) -> Result<(), ChangeError> {
    let (point, _) = web.runtime().block_on(async {
        let client = client(web).await?;
        // Four fewer rows a step: buckets are eight rows apart, or closer where they are small.
        let tokens = move |n: u64| 16 + u32::try_from(n).unwrap_or(0).min(4096) / 2;
        Ok::<_, ChangeError>(loops(client, size, u64::from(size), tokens).await)
    })?;
    match point.why {
        Some(what) => Err(ChangeError::Answer { url: web.url().into(), what }),
        None => Ok(()),
    }
}

/// Runs `requests` requests, `concurrency` at a time.
async fn loops(
    client: Client,
    concurrency: u32,
    requests: u64,
    tokens: impl Fn(u64) -> u32 + Copy + Send + 'static,
) -> (Point, Vec<(&'static str, String)>) {
    let begun = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        let (client, next) = (client.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            let mut done = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= requests {
                    return done;
                }
                let body = body(prompt(n), tokens(n));
                done.push((n, client.completions(&body, Reading::default()).await));
            }
        });
    }
    let mut all: Vec<(u64, Exchange)> = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.unwrap_or_default());
    }
    let seconds = begun.elapsed().as_secs_f64();
    all.sort_by_key(|(n, _)| *n);
    (point(concurrency, seconds, &all), answers(all))
}

fn answers(all: Vec<(u64, Exchange)>) -> Vec<(&'static str, String)> {
    let done = all.into_iter().filter(|(_, e)| e.is_done());
    done.map(|(n, e)| (prompt(n), e.text)).collect()
}

fn point(concurrency: u32, seconds: f64, all: &[(u64, Exchange)]) -> Point {
    let count =
        |is: fn(&Outcome) -> bool| all.iter().filter(|(_, e)| is(&e.outcome)).count() as u64;
    let refused = count(|o| matches!(o, Outcome::Refused { .. }));
    let timeouts = count(|o| matches!(o, Outcome::Timeout { .. }));
    let done = count(|o| matches!(o, Outcome::Done));
    let bad = all.iter().find(|(_, e)| !e.is_done());
    let mut times: Vec<f64> = all
        .iter()
        .filter(|(_, e)| e.is_done())
        .map(|(_, e)| e.ended_after.as_secs_f64() * 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (share * times.len() as f64).ceil() as usize;
        times.get(rank.clamp(1, times.len().max(1)) - 1).copied().unwrap_or(0.0)
    };
    Point {
        concurrency,
        requests: all.len() as u64,
        refused,
        timeouts,
        failed: all.len() as u64 - done - refused - timeouts,
        why: bad.map(|(_, e)| e.outcome.to_string()),
        tokens: all.iter().filter(|(_, e)| e.is_done()).map(|(_, e)| e.output_tokens()).sum(),
        seconds,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
    }
}
