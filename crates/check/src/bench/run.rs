//! One run: a set of sessions sent to one server, by a number of workers or at a rate.

use super::meter::{Meter, Metered};
use super::probe::{Server, body};
use super::progress::Progress;
use super::sample::{Class, Sample};
use super::seeded::Seeded;
use super::workload::{Planned, Session};
use crate::client::{Call, Exchange, Outcome, Reading};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// Requests under way at once, at most, whatever is asked.
pub const CONCURRENCY_MAX: u32 = 4096;
/// How long a worker leaves a server alone after a refusal that names no time.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// At most, whatever the server asks for.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The stream of random numbers of arrivals.
const ARRIVALS_STREAM: u64 = 1 << 62;

/// How requests arrive.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// So many workers, each sending its next request when its last one ended.
    Closed { concurrency: u32 },
    /// A Poisson process of so many requests a second, whatever the server does; no more than
    /// `concurrency_max` at once.
    Open { rate: f64, concurrency_max: u32 },
}

/// What a run saw.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Every request that was sent.
    pub samples: Vec<Sample>,
    /// From the first request to the end of the last.
    pub duration_s: f64,
    /// The part in which the load was as asked, where there was one: `(from, to)`.
    pub steady_s: Option<(f64, f64)>,
    /// What the client itself cost.
    pub metered: Metered,
    /// It was ended before its time.
    pub is_partial: bool,
}

struct Prepared {
    planned: Planned,
    /// The encoded request; of a conversation, nothing.
    bytes: Bytes,
    prompt: Value,
}

fn prepare(server: &Server, sessions: &[Session], seed: u64) -> VecDeque<Vec<Prepared>> {
    let one = |planned: &Planned, is_alone: bool| {
        let prompt = server.form.prompt(planned, seed);
        if !is_alone {
            return Prepared { planned: *planned, bytes: Bytes::new(), prompt };
        }
        let body = body(server.call, &prompt, planned.output_tokens, &server.length_fields);
        let bytes = server.client.encode(&body);
        Prepared { planned: *planned, bytes, prompt: Value::Null }
    };
    sessions.iter().map(|s| s.iter().map(|p| one(p, s.len() == 1)).collect()).collect()
}

/// What the workers of a run share.
struct Shared {
    server: Server,
    progress: Progress,
    queue: Mutex<VecDeque<Vec<Prepared>>>,
    samples: Mutex<Vec<Sample>>,
    /// When a worker first found no work.
    dry_s: Mutex<Option<f64>>,
    began_at: Instant,
}

impl Shared {
    fn next(&self) -> Option<Vec<Prepared>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn keep(&self, sample: Sample) {
        self.progress.request_ends(sample.class);
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
    }

    /// Sends the requests of a session, one after the other; the last exchange comes back.
    async fn session(&self, session: Vec<Prepared>, due_s: f64) -> Option<Exchange> {
        let is_alone = session.len() == 1;
        let (mut messages, mut last) = (Vec::new(), None);
        let mut due_s = due_s;
        for prepared in session {
            let planned = prepared.planned;
            let bytes = if is_alone {
                prepared.bytes
            } else {
                messages.push(json!({"role": "user", "content": prepared.prompt}));
                let said = Value::Array(messages.clone());
                let fields = &self.server.length_fields;
                let body = body(Call::Chat, &said, planned.output_tokens, fields);
                self.server.client.encode(&body)
            };
            self.progress.request_begins();
            let call = if is_alone { self.server.call } else { Call::Chat };
            let exchange = self.server.client.exchange(call, bytes, Reading::default()).await;
            let mut sample = Sample::of(&exchange, &planned, self.began_at, due_s);
            if !is_alone {
                sample.input_asked = 0;
                messages.push(json!({"role": "assistant", "content": exchange.text}));
            }
            let is_done = sample.class == Class::Done;
            due_s = sample.ended_s;
            self.keep(sample);
            last = Some(exchange);
            if !is_done {
                // Nobody goes on with a conversation that has lost an answer.
                break;
            }
        }
        last
    }

    async fn worker(self: Arc<Shared>) {
        while let Some(session) = self.next() {
            let due_s = self.began_at.elapsed().as_secs_f64();
            let last = self.session(session, due_s).await;
            if let Some(Outcome::Refused { retry_after_s, .. }) = last.map(|e| e.outcome) {
                let asked = retry_after_s.map_or(REFUSED_PAUSE, Duration::from_secs);
                sleep(asked.min(REFUSED_PAUSE_MAX)).await;
            }
        }
        let now = self.began_at.elapsed().as_secs_f64();
        self.dry_s.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
    }
}

/// Sends `sessions` and waits for all of them, or for the wish to end.
pub async fn run(
    server: &Server,
    sessions: &[Session],
    arrivals: Arrivals,
    seed: u64,
    progress: &Progress,
) -> Run {
    let shared = Arc::new(Shared {
        server: server.clone(),
        progress: progress.clone(),
        queue: Mutex::new(prepare(server, sessions, seed)),
        samples: Mutex::default(),
        dry_s: Mutex::default(),
        began_at: Instant::now(),
    });
    let meter = Meter::start();
    let mut tasks = JoinSet::new();
    let all = async {
        match arrivals {
            Arrivals::Closed { concurrency } => {
                for _ in 0..concurrency.clamp(1, CONCURRENCY_MAX) {
                    tasks.spawn(shared.clone().worker());
                }
            }
            Arrivals::Open { rate, concurrency_max } => {
                let first = sessions.first().and_then(|s| s.first()).map_or(0, |p| p.stream);
                let mut gaps = Seeded::new(seed, ARRIVALS_STREAM ^ first);
                arrive(&shared, &mut tasks, rate, concurrency_max, &mut gaps).await;
            }
        }
        while tasks.join_next().await.is_some() {}
    };
    let is_partial = tokio::select! {
        () = all => false,
        () = progress.stopped() => true,
    };
    tasks.abort_all();
    let metered = meter.stop();
    let samples =
        core::mem::take(&mut *shared.samples.lock().unwrap_or_else(PoisonError::into_inner));
    let dry_s = *shared.dry_s.lock().unwrap_or_else(PoisonError::into_inner);
    let duration_s = samples.iter().map(|s| s.ended_s).fold(0.0, f64::max);
    let steady_s = steady(&samples, arrivals, dry_s).filter(|_| !is_partial);
    Run { samples, duration_s, steady_s, metered, is_partial }
}

/// Starts sessions at the times of a Poisson process.
async fn arrive(
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<()>,
    rate: f64,
    concurrency_max: u32,
    gaps: &mut Seeded,
) {
    let places = Arc::new(Semaphore::new(concurrency_max.clamp(1, CONCURRENCY_MAX) as usize));
    let mut due_s = 0.0;
    while let Some(session) = shared.next() {
        sleep_until((shared.began_at + Duration::from_secs_f64(due_s)).into()).await;
        let (shared, places) = (shared.clone(), places.clone());
        tasks.spawn(async move {
            // Nobody closes it.
            let _place = places.acquire().await;
            shared.session(session, due_s).await;
        });
        due_s += gaps.exponential() / rate;
    }
}

/// When the load was as asked. Closed: from when every worker's first request had its first
/// output until a worker found no work. Open: from a fifth of the arrivals to the last.
fn steady(samples: &[Sample], arrivals: Arrivals, dry_s: Option<f64>) -> Option<(f64, f64)> {
    let mut by_begin: Vec<&Sample> = samples.iter().collect();
    by_begin.sort_unstable_by(|a, b| a.began_s.total_cmp(&b.began_s));
    let (from, to) = match arrivals {
        Arrivals::Closed { concurrency } => {
            let firsts = by_begin.get(..concurrency as usize)?;
            let firsts: Option<Vec<f64>> = firsts.iter().map(|s| s.first_s).collect();
            let ended = samples.iter().map(|s| s.ended_s).fold(f64::INFINITY, f64::min);
            let to = dry_s.unwrap_or(ended);
            (firsts?.into_iter().fold(0.0, f64::max), to)
        }
        Arrivals::Open { .. } => {
            (by_begin.get(by_begin.len() / 5)?.began_s, by_begin.last()?.began_s)
        }
    };
    (to - from > 0.0).then_some((from, to))
}
