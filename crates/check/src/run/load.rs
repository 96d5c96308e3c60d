//! Sessions at once: arrivals in bursts, streamed and not, aborts and retries.

use super::answer::{Answer, Tally};
use super::request;
use crate::calibration::{Basis, Calibration};
use crate::client::{Abort, Client, Exchange, Outcome, Reading};
use crate::dialogue::{Rng, Session};
use crate::judge::{Corruption, Knowledge, Owner, Registry, Reply, Verdict, Wrong, judge};
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

/// How requests are sent: what the isolation ladder changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manner {
    /// Sessions at once.
    pub at_once: usize,
    /// Whether answers are streamed.
    pub streaming: Streaming,
    /// Whether some are aborted first, and sessions come in bursts.
    pub churns: bool,
    /// In front of every request, so that no prefix is in a cache; empty: none.
    pub salt: String,
}

impl Manner {
    /// One at a time, nothing else.
    pub fn alone() -> Manner {
        Manner { at_once: 1, streaming: Streaming::Off, churns: false, salt: String::new() }
    }

    /// So many at once, with everything.
    pub fn crowd(at_once: usize) -> Manner {
        Manner { at_once, streaming: Streaming::Mixed, churns: true, salt: String::new() }
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

/// Is told where a run stands, after every answer.
pub type Watch = Arc<dyn Fn(&Progress) + Send + Sync>;

/// What all sessions of a run share.
pub struct Bench {
    /// The server.
    pub client: Client,
    /// The sessions; their ids are their places.
    pub sessions: Vec<Session>,
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
}

impl Bench {
    /// Begins a phase.
    pub fn phase(&self, name: &str, total: u64) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = progress.tally;
        *progress = Progress { phase: name.into(), total, tally, ..Progress::default() };
        (self.watch)(&progress);
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
        if bench.stop.is_stopped() {
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
            abort(bench, session, step, 1 + rng.below(6) as u32, &manner.salt).await;
        }
        for _ in 0..=REFUSALS_MAX {
            let (answer, wait) = ask(bench, wave, session, step, streamed, &manner.salt).await;
            let is_refused = answer.verdict == Verdict::Refused;
            bench.note(&answer.verdict, wave > 0);
            answers.push(answer);
            if !is_refused {
                break;
            }
            tokio::time::sleep(wait.min(REFUSAL_WAIT_MAX)).await;
        }
    }
}

/// Sends a request and leaves in the middle of its stream.
async fn abort(bench: &Bench, session: u32, step: usize, chunks: u32, salt: &str) {
    let session = &bench.sessions[session as usize];
    let body = request::body(session, step, bench.tokens_max, true, salt);
    let reading = Reading { abort: Some(Abort::Chunks(chunks)), ..Reading::default() };
    bench.in_flight.fetch_add(1, Relaxed);
    bench.client.chat(&body, reading).await;
    bench.in_flight.fetch_sub(1, Relaxed);
    bench.aborts.fetch_add(1, Relaxed);
}

async fn ask(
    bench: &Bench,
    wave: u32,
    id: u32,
    step: usize,
    streamed: bool,
    salt: &str,
) -> (Answer, Duration) {
    let session = &bench.sessions[id as usize];
    let body = request::body(session, step, bench.tokens_max, streamed, salt);
    let in_flight = bench.in_flight.fetch_add(1, Relaxed) + 1;
    bench.in_flight_peak.fetch_max(in_flight, Relaxed);
    let order = bench.order.fetch_add(1, Relaxed);
    let began = bench.load_began.get().unwrap_or(&bench.began);
    let asked = began.elapsed();
    let exchange = send(bench, &body).await;
    bench.in_flight.fetch_sub(1, Relaxed);
    let took = began.elapsed() - asked;
    let wait = retry_after(&exchange.outcome);
    let reply = request::reply(exchange);
    let (verdict, is_evidence) = match &reply {
        Err(verdict) => (verdict.clone(), false),
        Ok(reply) if wave == 0 => (calibrate(bench, session, step, reply), false),
        Ok(reply) => verdict(bench, session, step, reply, salt.is_empty()),
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
    let exchange = bench.client.chat(body, Reading::default()).await;
    match exchange.outcome {
        Outcome::Cut { .. } if exchange.first_byte_after.is_none() => {
            bench.client.chat(body, Reading::default()).await
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

fn calibrate(bench: &Bench, session: &Session, step: usize, reply: &Reply) -> Verdict {
    let known = Knowledge {
        session,
        want: &session.steps[step].want,
        registry: &bench.registry,
        alone: None,
        deterministic: false,
    };
    let verdict = judge(reply, known);
    let mut calibration = bench.calibration.write().unwrap_or_else(PoisonError::into_inner);
    calibration.take(session.id, step, &verdict, Some(reply));
    verdict
}

/// The verdict on an answer under load, and whether it counts.
fn verdict(
    bench: &Bench,
    session: &Session,
    step: usize,
    reply: &Reply,
    is_comparable: bool,
) -> (Verdict, bool) {
    let calibration = bench.calibration.read().unwrap_or_else(PoisonError::into_inner);
    let basis = calibration.basis(session.id, step);
    let alone = match basis {
        Basis::Right(alone) => Some(alone).filter(|_| is_comparable),
        _ => None,
    };
    let known = Knowledge {
        session,
        want: &session.steps[step].want,
        registry: &bench.registry,
        alone,
        deterministic: bench.deterministic,
    };
    let verdict = judge(reply, known);
    match basis {
        Basis::Right(_) => (verdict, true),
        Basis::Weak(alone) if bench.deterministic && is_comparable => {
            (same_as_alone(verdict, alone, reply), true)
        }
        _ => (excused(verdict), false),
    }
}

/// The model cannot do this, but the server claims that it fails in the same way each time.
fn same_as_alone(verdict: Verdict, alone: &Reply, reply: &Reply) -> Verdict {
    match crate::judge::first_difference(&alone.transcript(), &reply.transcript()) {
        Some(divergent) if !is_stranger(&verdict) => Verdict::Corrupted(divergent),
        _ => excused(verdict),
    }
}

fn is_stranger(verdict: &Verdict) -> bool {
    matches!(verdict.corruption(), Some(Corruption::Swapped { of: Owner::Session(_), .. }))
}

/// What a model that cannot do this may do by itself, which is anything but knowing a code that
/// only another session was told.
fn excused(verdict: Verdict) -> Verdict {
    if is_stranger(&verdict) {
        return verdict;
    }
    match verdict {
        Verdict::Corrupted(c) => {
            Verdict::Wrong(Wrong::Weak { what: format!("{}: {c}", c.class()) })
        }
        other => other,
    }
}
