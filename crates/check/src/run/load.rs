//! Sessions at once: arrivals in bursts, streamed and not, aborts and retries.

use super::answer::{Answer, Tally};
use super::prompt::Prompts;
use super::{lost, request, weigh};
use crate::calibration::Calibration;
use crate::client::{Abort, Client, Exchange, Outcome, Reading};
use crate::dialogue::{Rng, Session};
use crate::judge::{Registry, Verdict};
use crate::stop::Stop;
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A request in so many is aborted in its stream first, and then sent again.
const ABORT_ONE_IN: u64 = 6;
/// Longest pause between two bursts of arrivals, in milliseconds.
const BURST_GAP_MS: u64 = 250;
/// A refused request is sent again so often.
const REFUSALS_MAX: u32 = 5;
/// Longest that a refused request waits before it is sent again.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(5);

/// Whether answers are streamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Streaming {
    /// Every other one.
    Mixed,
    /// None.
    Off,
}

/// How requests are kept from the prefix cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prefix {
    /// They are not.
    Cached,
    /// By another `cache_salt` for each (ours, SGLang, vLLM); the prompt stays what it is.
    Salted,
    /// By `cache_prompt: false` (llama.cpp).
    Declined,
    /// By words in front of everything, which are others in every wave. The answer is to another
    /// prompt then, and cannot be held against the one alone.
    Words(String),
}

impl Prefix {
    fn words(&self) -> &str {
        match self {
            Prefix::Words(words) => words,
            _ => "",
        }
    }

    /// Whether the prompt is the one of the calibration.
    pub fn is_comparable(&self) -> bool {
        !matches!(self, Prefix::Words(_))
    }
}

/// How requests are sent: what the isolation ladder changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manner {
    /// Sessions at once.
    pub at_once: usize,
    /// Whether answers are streamed.
    pub streaming: Streaming,
    /// Whether some are aborted first, and sessions come in bursts.
    pub churns: bool,
    /// Whether a request may take its prefix from a cache.
    pub prefix: Prefix,
}

impl Manner {
    /// One at a time, nothing else.
    pub fn alone() -> Manner {
        Manner { at_once: 1, streaming: Streaming::Off, churns: false, prefix: Prefix::Cached }
    }

    /// So many at once, with everything.
    pub fn crowd(at_once: usize) -> Manner {
        Manner { at_once, streaming: Streaming::Mixed, churns: true, prefix: Prefix::Cached }
    }
}

/// Where a run stands.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// What is done now.
    pub phase: String,
    /// Answers of this phase.
    pub done: u64,
    /// Answers that this phase will have.
    pub total: u64,
    /// Requests in flight.
    pub in_flight: u32,
    /// Everything since the start of the load.
    pub tally: Tally,
}

/// Is told where a run stands, before every request and after every answer.
pub type Watch = Arc<dyn Fn(&Progress) + Send + Sync>;

/// What all sessions of a run share.
pub struct Bench {
    /// The server.
    pub client: Client,
    /// The sessions; their ids are their places.
    pub sessions: Vec<Session>,
    /// What is sent to `/v1/completions` in place of their messages; `None`: these are sent.
    pub prompts: Option<Prompts>,
    /// Whose code is whose.
    pub registry: Registry,
    /// What the model can do alone.
    pub calibration: RwLock<Calibration>,
    /// Tokens of an answer, at most.
    pub tokens_max: u32,
    /// Whether answers must be those alone.
    pub deterministic: bool,
    /// Draws arrivals, streams and aborts.
    pub seed: u64,
    /// When this was made.
    pub began: Instant,
    /// When the load began.
    pub load_began: OnceLock<Instant>,
    /// Requests in flight.
    pub in_flight: AtomicU32,
    /// Most that ever were.
    pub in_flight_peak: AtomicU32,
    /// Requests so far.
    pub order: AtomicU32,
    /// Streams that were aborted on purpose.
    pub aborts: AtomicU32,
    /// Where it stands.
    pub progress: Mutex<Progress>,
    /// Is told.
    pub watch: Watch,
    /// Ends every wave early.
    pub stop: Stop,
    /// How the server was found to be away while it was asked one at a time; ends that too.
    pub lost: OnceLock<Outcome>,
    /// Requests under load that found no connection.
    pub unconnected: AtomicU32,
}

impl Bench {
    /// The same run with another server, other sessions or another way of asking; what it counts
    /// begins anew.
    pub fn with(&self, client: Client, sessions: Vec<Session>, prompts: Option<Prompts>) -> Bench {
        Bench {
            client,
            sessions,
            prompts,
            registry: self.registry.clone(),
            calibration: RwLock::default(),
            tokens_max: self.tokens_max,
            deterministic: self.deterministic,
            seed: self.seed,
            began: Instant::now(),
            load_began: OnceLock::new(),
            in_flight: AtomicU32::new(0),
            in_flight_peak: AtomicU32::new(0),
            order: AtomicU32::new(0),
            aborts: AtomicU32::new(0),
            progress: Mutex::default(),
            watch: Arc::clone(&self.watch),
            stop: self.stop.clone(),
            lost: OnceLock::new(),
            unconnected: AtomicU32::new(0),
        }
    }

    /// Whether nothing more is to be asked.
    fn is_over(&self) -> bool {
        self.stop.is_stopped() || self.lost.get().is_some()
    }

    /// Takes in a request that nothing answered: of one that was alone, whether the server is there
    /// at all. Requests of a crowd are counted, and whoever sent them looks when it is over.
    async fn unanswered(&self, outcome: &Outcome, is_alone: bool) {
        if is_alone {
            if let Some(outcome) = lost::absence(&self.client).await {
                // A first one stays.
                let _ = self.lost.set(outcome);
            }
        } else if matches!(outcome, Outcome::Connect { .. }) {
            self.unconnected.fetch_add(1, Relaxed);
        }
    }

    /// Sends a request as it stands, by the way that this run asks.
    pub async fn exchange(&self, body: &Value, reading: Reading) -> Exchange {
        match self.prompts {
            None => self.client.chat(body, reading).await,
            Some(_) => self.client.completions(body, reading).await,
        }
    }

    /// The body of a request.
    pub fn body(&self, session: &Session, step: usize, streamed: bool, prefix: &Prefix) -> Value {
        let mut body = match &self.prompts {
            None => request::body(session, step, self.tokens_max, streamed, prefix.words()),
            Some(prompts) => prompts.body(session, step, self.tokens_max, streamed),
        };
        match prefix {
            Prefix::Salted => {
                // No two requests of a session have the same counts before them.
                let (order, aborts) = (self.order.load(Relaxed), self.aborts.load(Relaxed));
                let salt = format!("{:x} {order} {aborts} {}", self.seed, session.id);
                body["cache_salt"] = salt.into();
            }
            Prefix::Declined => body["cache_prompt"] = false.into(),
            Prefix::Cached | Prefix::Words(_) => {}
        }
        body
    }

    /// Begins a phase.
    pub fn phase(&self, name: &str, total: u64) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = progress.tally;
        let in_flight = self.in_flight.load(Relaxed);
        *progress = Progress { phase: name.into(), done: 0, total, in_flight, tally };
        (self.watch)(&progress);
    }

    /// Counts requests that begin, says so, and how many are in flight with them.
    pub fn begin(&self, requests: u32) -> u32 {
        let in_flight = self.in_flight.fetch_add(requests, Relaxed) + requests;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.in_flight = self.in_flight.load(Relaxed);
        (self.watch)(&progress);
        in_flight
    }

    fn note(&self, verdict: &Verdict, is_load: bool) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.done += 1;
        progress.in_flight = self.in_flight.load(Relaxed);
        if is_load {
            progress.tally.count(verdict);
        }
        (self.watch)(&progress);
    }
}

/// Runs the sessions `which` once, or as far as they came when the end was asked for. `wave` 0 is a calibration: it draws nothing and judges by what
/// is right alone.
pub async fn wave(bench: &Arc<Bench>, wave: u32, which: &[u32], manner: &Manner) -> Vec<Answer> {
    let mut rng = Rng::new(Rng::derive(bench.seed, 1000 + u64::from(wave)));
    let mut order = which.to_vec();
    if wave > 0 {
        rng.shuffle(&mut order);
    }
    let seats = Arc::new(Semaphore::new(manner.at_once.max(1)));
    let mut tasks = JoinSet::new();
    let mut answers = Vec::new();
    let mut burst = 0;
    for session in order {
        if manner.churns && burst == 0 {
            burst = 1 + rng.index(manner.at_once.div_ceil(3).max(1));
            tokio::time::sleep(Duration::from_millis(rng.below(BURST_GAP_MS))).await;
        }
        burst = burst.saturating_sub(1);
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { break };
        if bench.is_over() {
            break;
        }
        let (bench, manner) = (Arc::clone(bench), manner.clone());
        tasks.spawn(async move {
            let answers = run_session(&bench, wave, session, &manner).await;
            drop(seat);
            answers
        });
        while let Some(Ok(done)) = tasks.try_join_next() {
            answers.extend(done);
        }
    }
    while let Some(done) = tasks.join_next().await {
        answers.extend(done.unwrap_or_default());
    }
    answers.sort_by_key(|a| a.order);
    answers
}

async fn run_session(bench: &Bench, wave: u32, session: u32, manner: &Manner) -> Vec<Answer> {
    let mut answers = Vec::new();
    // What is under way when a run is ended early is neither right nor wrong.
    bench.stop.unless(run_steps(bench, wave, session, manner, &mut answers)).await;
    answers
}

async fn run_steps(
    bench: &Bench,
    wave: u32,
    session: u32,
    manner: &Manner,
    answers: &mut Vec<Answer>,
) {
    let draws = Rng::derive(bench.seed, u64::from(wave) << 32 | u64::from(session));
    let mut rng = Rng::new(draws);
    for step in 0..bench.sessions[session as usize].steps.len() {
        let streamed = manner.streaming == Streaming::Mixed && rng.below(2) == 0;
        if manner.churns && rng.below(ABORT_ONE_IN) == 0 {
            abort(bench, session, step, 1 + rng.below(6) as u32, &manner.prefix).await;
        }
        for _ in 0..=REFUSALS_MAX {
            let (answer, wait) = ask(bench, wave, session, step, streamed, &manner.prefix).await;
            let is_refused = answer.verdict == Verdict::Refused;
            bench.note(&answer.verdict, wave > 0);
            answers.push(answer);
            if bench.is_over() {
                return;
            }
            if !is_refused {
                break;
            }
            tokio::time::sleep(wait.min(REFUSAL_WAIT_MAX)).await;
        }
    }
}

/// Sends a request and leaves in the middle of its stream.
async fn abort(bench: &Bench, session: u32, step: usize, chunks: u32, prefix: &Prefix) {
    let session = &bench.sessions[session as usize];
    let body = bench.body(session, step, true, prefix);
    let reading = Reading { abort: Some(Abort::Chunks(chunks)), ..Reading::default() };
    bench.begin(1);
    bench.exchange(&body, reading).await;
    bench.in_flight.fetch_sub(1, Relaxed);
    bench.aborts.fetch_add(1, Relaxed);
}

async fn ask(
    bench: &Bench,
    wave: u32,
    id: u32,
    step: usize,
    streamed: bool,
    prefix: &Prefix,
) -> (Answer, Duration) {
    let session = &bench.sessions[id as usize];
    let body = bench.body(session, step, streamed, prefix);
    let in_flight = bench.begin(1);
    bench.in_flight_peak.fetch_max(in_flight, Relaxed);
    let order = bench.order.fetch_add(1, Relaxed);
    let began = bench.load_began.get().unwrap_or(&bench.began);
    let asked = began.elapsed();
    let exchange = send(bench, &body).await;
    bench.in_flight.fetch_sub(1, Relaxed);
    let took = began.elapsed() - asked;
    let wait = retry_after(&exchange.outcome);
    if exchange.outcome.is_silent() {
        bench.unanswered(&exchange.outcome, wave == 0).await;
    }
    let reply = request::reply(exchange);
    let (verdict, is_evidence) = match &reply {
        Err(verdict) => (verdict.clone(), false),
        Ok(reply) if wave == 0 => (weigh::alone(bench, session, step, reply), false),
        Ok(reply) => weigh::under_load(bench, session, step, reply, prefix.is_comparable()),
    };
    let kept = verdict != Verdict::Ok;
    let answer = Answer {
        wave,
        session: id,
        step,
        order,
        in_flight,
        streamed,
        is_evidence,
        verdict,
        reply: reply.ok().filter(|_| kept),
        asked_ms: millis(asked),
        took_ms: millis(took),
    };
    (answer, wait)
}

/// Sends a request, and once more where the connection was closed before a byte came back: servers
/// close connections that they kept, and a request that meets it was read by nobody.
async fn send(bench: &Bench, body: &Value) -> Exchange {
    let exchange = bench.exchange(body, Reading::default()).await;
    match exchange.outcome {
        Outcome::Cut { .. } if exchange.first_byte_after.is_none() => {
            bench.exchange(body, Reading::default()).await
        }
        _ => exchange,
    }
}

fn retry_after(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Refused { retry_after_s: Some(s), .. } => Duration::from_secs(*s),
        _ => Duration::from_millis(500),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
