//! A check from beginning to end: calibrate, load, cover, look again, isolate.

mod answer;
mod confirm;
mod fill;
mod finding;
mod load;
mod lost;
mod options;
mod prompt;
mod request;
mod sample;
mod token;
mod weigh;

pub use answer::{Answer, Tally};
pub use confirm::close_calls;
pub use finding::{Conclusion, Finding, KindTrial, Slice};
pub use load::{Bench, Manner, Prefix, Progress, Streaming, Watch, wave};
pub use lost::{Lost, absence};
pub use options::{
    CONTEXT_TOKENS_MAX, Claim, Options, OptionsError, Profile, ROUNDS_MAX, SESSIONS_MAX,
};
pub use prompt::{Prompts, Writer, write};

use crate::calibration::Calibration;
use crate::client::{Client, NoAnswer, NoModel, NoServer, Outcome, Target};
use crate::coverage::{self, Bucket, Coverage, DecodeLog, Facts};
use crate::dialogue::{Kind, Rng, Session, make};
use crate::judge::Registry;
use crate::stop::Stop;
use crate::{isolate, stats};
use core::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Sessions of each kind that are tried before the kinds are chosen.
const TRIAL_SESSIONS: u32 = 3;
/// Times that a bucket is held before it is given up.
const FILLS_MAX: u32 = 3;

/// Why there is no finding.
#[derive(Clone, PartialEq, Debug)]
pub enum CheckError {
    /// The options make no sense.
    Options(OptionsError),
    /// The server does not answer.
    Server { url: String, outcome: Outcome },
    /// It takes a connection, and does not even list its models.
    Silent { url: String, seconds: u64 },
    /// It went away, or became another process, before there was any load.
    Lost(Lost),
    /// Not one request was answered alone.
    NoAnswer { url: String, first: String },
    /// The decode log cannot be read.
    Log { path: PathBuf, why: String },
    /// The end was asked for before there was anything to report.
    Ended,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Options(e) => e.fmt(f),
            CheckError::Server { url, outcome: outcome @ Outcome::Status { .. } } => {
                NoModel { url, outcome }.fmt(f)
            }
            CheckError::Server { url, outcome: Outcome::Connect { why } } => {
                NoServer { url, why }.fmt(f)
            }
            CheckError::Silent { url, seconds } => NoAnswer { url, seconds: *seconds }.fmt(f),
            CheckError::Server { url, outcome } => {
                write!(f, "the server at {url} cannot be asked: {outcome}")
            }
            CheckError::Lost(lost) => lost.fmt(f),
            CheckError::NoAnswer { url, first } => write!(
                f,
                "the server at {url} answered no request, even one at a time; the first: {first}"
            ),
            CheckError::Log { path, why } => {
                write!(f, "the decode log {} cannot be read: {why}", path.display())
            }
            CheckError::Ended => f.write_str(
                "ended before a session was answered; there is nothing to report or to save",
            ),
        }
    }
}

impl core::error::Error for CheckError {}

impl From<OptionsError> for CheckError {
    fn from(e: OptionsError) -> CheckError {
        CheckError::Options(e)
    }
}

/// Checks a server. Runs on a tokio runtime with timers and network. Once `stop` asks for the end,
/// what was found so far is the finding.
pub async fn check(
    client: Client,
    options: Options,
    watch: Watch,
    stop: Stop,
) -> Result<Finding, CheckError> {
    options.validate()?;
    let url = client.target().to_string();
    let log = options.decode_log.as_deref().map(|path| {
        DecodeLog::open(path).map_err(|e| CheckError::Log { path: path.into(), why: e.to_string() })
    });
    let mut log = log.transpose()?;
    if let Err(Outcome::Timeout { .. }) = client.models().await {
        return Err(CheckError::Silent { url, seconds: client.models_limit().as_secs() });
    }
    let failed = |outcome| CheckError::Server { url: url.clone(), outcome };
    let client = client.discover().await.map_err(failed)?;
    let observed = observed(&client, &options)?;
    let facts = coverage::facts(&observed).await.map_err(failed)?;
    let deterministic = match options.deterministic {
        Claim::Yes => true,
        Claim::No => false,
        Claim::Auto => facts.claims_determinism,
    };
    let began = Instant::now();
    let origin = coverage::snapshot(&observed, facts.kind).await;
    let kinds = choose_kinds(&client, &options, &watch, &stop).await;
    if stop.is_stopped() {
        return Err(CheckError::Ended);
    }
    let (kinds, tried) = kinds?;
    let sessions = sessions(&options, &kinds);
    let bench = Arc::new(bench(client, sessions, &options, deterministic, watch, stop));
    let alone = calibrate(&bench, &options, deterministic).await;
    if bench.stop.is_stopped() && alone.is_empty() {
        return Err(CheckError::Ended);
    }
    let before = coverage::snapshot(&observed, facts.kind).await;
    if let Some(lost) = lost::find(&bench, tried, &alone, &origin, &before).await {
        return Err(CheckError::Lost(lost));
    }
    if alone.iter().all(|a| !a.verdict.is_answer()) {
        let first = alone.first().map_or("nothing was asked".into(), |a| a.verdict.to_string());
        return Err(CheckError::NoAnswer { url, first });
    }
    let calibration_s = began.elapsed().as_secs_f64();
    // What ran alone until here exercised nothing that a crowd does: it is no coverage.
    if let Some(log) = &mut log {
        log.skip();
    }
    let sampler = sample::Sampler::start(observed.clone(), facts.kind, log);
    let answers = Vec::new();
    let mut run = Run { bench, observed, options, facts, before, sampler, answers, waves: 0 };
    run.load().await;
    let coverage = run.cover().await;
    let close_calls = if deterministic {
        token::name(&run.bench, &mut run.answers).await;
        0
    } else {
        close_calls(&run.bench, &mut run.answers).await
    };
    let is_ended_early = run.bench.stop.is_stopped();
    let load_s = began.elapsed().as_secs_f64() - calibration_s;
    let mut finding = run.finding(&url, deterministic, kinds, &alone, coverage, close_calls);
    finding.seconds = (calibration_s, load_s);
    finding.is_ended_early = is_ended_early;
    let is_damaged = matches!(finding.conclude(), Conclusion::Corrupted { .. });
    let climbs = finding.options.isolate && is_damaged;
    if climbs && absence(&run.bench.client).await.is_none() {
        finding.ladder = isolate::climb(&run.bench, &finding).await;
    }
    Ok(finding)
}

fn bench(
    client: Client,
    sessions: Vec<Session>,
    options: &Options,
    deterministic: bool,
    watch: Watch,
    stop: Stop,
) -> Bench {
    Bench {
        client,
        registry: Registry::of(&sessions),
        sessions,
        prompts: None,
        calibration: RwLock::new(Calibration::default()),
        tokens_max: options.sizes.answer_tokens_max,
        deterministic,
        seed: options.seed,
        began: Instant::now(),
        load_began: OnceLock::new(),
        in_flight: AtomicU32::new(0),
        in_flight_peak: AtomicU32::new(0),
        order: AtomicU32::new(0),
        aborts: AtomicU32::new(0),
        progress: Mutex::new(Progress::default()),
        watch,
        stop,
        lost: OnceLock::new(),
        unconnected: AtomicU32::new(0),
    }
}

/// Tries a few sessions of each kind alone. Kinds of which the model gets nothing right are left
/// out, so that the run is made of what can prove something. Beside them: how many answers it took.
async fn choose_kinds(
    client: &Client,
    options: &Options,
    watch: &Watch,
    stop: &Stop,
) -> Result<(Vec<KindTrial>, u64), CheckError> {
    if !options.kinds.is_empty() {
        let named = |kind| KindTrial { kind, tried: 0, right: 0, is_used: true };
        return Ok((options.kinds.iter().copied().map(named).collect(), 0));
    }
    let mut sessions = Vec::new();
    for kind in Kind::ALL {
        for _ in 0..TRIAL_SESSIONS {
            sessions.push(make(
                Rng::derive(options.seed, 7),
                sessions.len() as u32,
                kind,
                options.sizes,
            ));
        }
    }
    let watch = Arc::clone(watch);
    let bench = Arc::new(bench(client.clone(), sessions, options, false, watch, stop.clone()));
    let ids: Vec<u32> = (0..bench.sessions.len() as u32).collect();
    bench.phase("trying kinds of sessions", steps(&bench, &ids));
    let answers = wave(&bench, 0, &ids, &Manner::alone()).await;
    let tried = Tally::of(&answers).judged();
    if let Some(lost) = lost::away(&bench, tried).await {
        return Err(CheckError::Lost(lost));
    }
    let mut trials: Vec<KindTrial> = Vec::new();
    for kind in Kind::ALL {
        let mine = |a: &&Answer| bench.sessions[a.session as usize].kind == kind;
        // Words that only have to be there say nothing of what a model can do.
        let telling = |a: &&Answer| {
            let step = &bench.sessions[a.session as usize].steps[a.step];
            step.want != crate::dialogue::Want::Words
        };
        let tally = Tally::of(answers.iter().filter(mine).filter(telling));
        let tried = answers.iter().filter(mine).filter(telling).count() as u64;
        trials.push(KindTrial { kind, tried, right: tally.ok, is_used: tally.ok > 0 });
    }
    if trials.iter().all(|t| !t.is_used) {
        trials.iter_mut().for_each(|t| t.is_used = true);
    }
    Ok((trials, tried))
}

/// Sessions of the kinds that are used, in turn: four of a kind, for two of them share lines.
fn sessions(options: &Options, kinds: &[KindTrial]) -> Vec<Session> {
    let used: Vec<Kind> = kinds.iter().filter(|k| k.is_used).map(|k| k.kind).collect();
    let kind = |id: u32| used[(id / 4) as usize % used.len()];
    (0..options.sessions).map(|id| make(options.seed, id, kind(id), options.sizes)).collect()
}

fn steps(bench: &Bench, ids: &[u32]) -> u64 {
    ids.iter().map(|id| bench.sessions[*id as usize].steps.len() as u64).sum()
}

async fn calibrate(bench: &Arc<Bench>, options: &Options, deterministic: bool) -> Vec<Answer> {
    let passes = match options.calibrations {
        0 if deterministic => 1,
        0 => 2,
        n => n,
    };
    let ids: Vec<u32> = if options.only.is_empty() {
        (0..bench.sessions.len() as u32).collect()
    } else {
        options.only.iter().copied().filter(|id| (*id as usize) < bench.sessions.len()).collect()
    };
    bench.phase("calibrating, one at a time", u64::from(passes) * steps(bench, &ids));
    let mut answers = Vec::new();
    for _ in 0..passes {
        if bench.stop.is_stopped() {
            break;
        }
        answers.extend(wave(bench, 0, &ids, &Manner::alone()).await);
    }
    answers
}

/// The server whose batches are looked at: the one that is asked, where no other is named.
fn observed(client: &Client, options: &Options) -> Result<Client, CheckError> {
    let Some(url) = &options.observed_url else { return Ok(client.clone()) };
    let asked = client.target();
    let other = Target::parse(url).and_then(|t| t.with_api_key(asked.api_key.as_deref()));
    let other = other.map_err(|e| OptionsError::Range {
        what: "the observed server",
        found: url.clone(),
        expected: e.to_string(),
    })?;
    Ok(Client::new(other.with_timeouts(asked.timeouts)))
}

/// A run after its calibration.
struct Run {
    bench: Arc<Bench>,
    observed: Client,
    options: Options,
    facts: Facts,
    before: coverage::Snapshot,
    sampler: sample::Sampler,
    answers: Vec<Answer>,
    waves: u32,
}

impl Run {
    /// Waves until there are enough.
    async fn load(&mut self) {
        let ids: Vec<u32> = (0..self.bench.sessions.len() as u32).collect();
        let began = *self.bench.load_began.get_or_init(Instant::now);
        while !self.bench.stop.is_stopped() {
            self.waves += 1;
            let name = format!("wave {}, {} sessions at once", self.waves, ids.len());
            self.bench.phase(&name, steps(&self.bench, &ids));
            let churns = self.options.churns;
            let manner = Manner { churns, ..Manner::crowd(ids.len()) };
            let answers = wave(&self.bench, self.waves, &ids, &manner).await;
            let tally = Tally::of(&answers);
            self.answers.extend(answers);
            // Where all of them failed, the next ones would too.
            let is_mute = tally.judged() + tally.refused == 0;
            let is_over = self.bench.stop.is_stopped() || is_mute;
            if is_over || !self.goes_on(began.elapsed()) {
                return;
            }
        }
    }

    fn goes_on(&self, spent: Duration) -> bool {
        let evidence = self.answers.iter().filter(|a| a.is_evidence);
        let tally = Tally::of(evidence);
        if spent >= self.options.time_limit || (spent > Duration::ZERO && tally.judged() == 0) {
            return false;
        }
        if self.options.profile == Profile::Soak {
            return true;
        }
        // A bound is reached, or refuted, or neither yet.
        self.options.bound.is_some_and(|bound| {
            let reached = stats::upper_bound(tally.corrupted, tally.judged()) <= bound;
            let refuted = stats::lower_bound(tally.corrupted, tally.judged()) > bound;
            !reached && !refuted
        })
    }

    async fn coverage(&mut self) -> Coverage {
        let mut after = coverage::snapshot(&self.observed, self.facts.kind).await;
        let peak = self.bench.in_flight_peak.load(Relaxed);
        let samples = self.sampler.samples();
        let gone = self.gone(&after, &samples).await;
        if let (false, Some((last, _))) = (after.is_told(), &samples.last) {
            after = last.clone();
        }
        let (before, sessions) = (&self.before, self.options.sessions);
        let coverage = coverage::between(&self.facts, before, &after, &samples, sessions, peak);
        Coverage { gone, ..coverage }
    }

    /// Words where the server is not there any more, or is another process than before the load.
    async fn gone(
        &self,
        after: &coverage::Snapshot,
        samples: &coverage::Samples,
    ) -> Option<String> {
        let began = *self.bench.load_began.get_or_init(Instant::now);
        let last = samples.last.as_ref().map(|(told, at)| {
            let running = told.running.map_or(String::new(), |n| format!(", {n} requests running"));
            let seconds = at.saturating_duration_since(began).as_secs_f64();
            format!("; last heard of {seconds:.1} s into the load{running}")
        });
        let last = last.unwrap_or_default();
        if after.is_told() && coverage::is_restarted(&self.before, after, samples) {
            return Some("the server ended and was started again while it was checked".into());
        }
        let absence = if after.is_told() { None } else { absence(&self.observed).await };
        match absence {
            Some(outcome @ Outcome::Timeout { .. }) => {
                Some(format!("the server answers no more ({outcome}){last}"))
            }
            Some(outcome) => Some(format!("the server went away under load ({outcome}){last}")),
            None => self.was_away(),
        }
    }

    /// Words where requests found nobody, and somebody is there: a server that tells neither when it
    /// started nor a count that begins again.
    fn was_away(&self) -> Option<String> {
        let requests = match self.bench.unconnected.load(Relaxed) {
            0 => return None,
            1 => "1 request".to_owned(),
            n => format!("{n} requests"),
        };
        Some(format!(
            "the server was away under load: {requests} found no connection, and it answers now; \
             was it started again?"
        ))
    }

    /// Holds each bucket that the load has missed, and judges sessions in it.
    async fn cover(&mut self) -> Coverage {
        if self.sampler.samples().log_lines == Some(0) {
            self.bench.phase("waiting for a line of the decode log", 0);
            self.sampler.wait_for_log(&self.bench.stop).await;
        }
        let mut coverage = self.coverage().await;
        if self.options.accept_partial_coverage {
            return coverage;
        }
        for attempt in 0..FILLS_MAX {
            let held = &self.options.held;
            let is_held = |b: &&Bucket| {
                held.is_empty() || held.iter().any(|n| (b.rows_min..=b.rows).contains(n))
            };
            let missing: Vec<_> = coverage.missing().into_iter().filter(is_held).cloned().collect();
            let is_over = self.bench.stop.is_stopped() || coverage.gone.is_some();
            if missing.is_empty() || is_over {
                break;
            }
            for bucket in &missing {
                if self.bench.stop.is_stopped() {
                    break;
                }
                let (judged, held) = fill::shape(bucket);
                self.waves += 1;
                let start = (attempt as usize + self.waves as usize) * judged;
                let count = self.bench.sessions.len();
                let mut ids: Vec<u32> = (0..judged).map(|i| ((start + i) % count) as u32).collect();
                ids.sort_unstable();
                ids.dedup();
                let name = format!("filling the batch to {}", bucket.rows);
                self.bench.phase(&name, steps(&self.bench, &ids));
                // What others had running before the load is part of the batch.
                let held = held.saturating_sub(self.before.running.unwrap_or(0) as usize);
                let holders = fill::hold(&self.bench, held, self.facts.capacity_tokens).await;
                self.bench.begin(held as u32);
                let manner = Manner { churns: false, ..Manner::crowd(judged) };
                self.answers.extend(wave(&self.bench, self.waves, &ids, &manner).await);
                self.bench.in_flight.fetch_sub(held as u32, Relaxed);
                drop(holders);
            }
            coverage = self.coverage().await;
        }
        coverage
    }

    fn finding(
        &mut self,
        url: &str,
        deterministic: bool,
        kinds: Vec<KindTrial>,
        alone: &[Answer],
        coverage: Coverage,
        close_calls: u64,
    ) -> Finding {
        let bench = &self.bench;
        let calibration = bench.calibration.read().unwrap_or_else(PoisonError::into_inner);
        if !self.options.only.is_empty() {
            let only = &self.options.only;
            self.answers.retain(|a| only.contains(&a.session));
        }
        Finding {
            url: url.into(),
            model: bench.client.target().model.clone().unwrap_or_default(),
            options: self.options.clone(),
            facts: self.facts.clone(),
            deterministic,
            kinds,
            session_kinds: bench.sessions.iter().map(|s| s.kind).collect(),
            calibrated: (calibration.requests(), calibration.reliable()),
            base_rate: calibration.base_rate(),
            alone: Tally::of(alone),
            answers: core::mem::take(&mut self.answers),
            aborts: bench.aborts.load(Relaxed),
            waves: self.waves,
            close_calls,
            in_flight_peak: bench.in_flight_peak.load(Relaxed),
            coverage,
            ladder: Vec::new(),
            began_unix_s: began_unix_s(bench.began),
            seconds: (0.0, 0.0),
            is_ended_early: false,
        }
    }
}

/// When something began, by this machine's clock; for people only, since that may jump.
fn began_unix_s(began: Instant) -> u64 {
    let at = SystemTime::now().checked_sub(began.elapsed()).unwrap_or(UNIX_EPOCH);
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
