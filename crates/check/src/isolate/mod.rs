//! The isolation ladder: the same load again with one thing changed at a time.

mod admin;

use crate::client::{Client, Target};
use crate::coverage::ServerKind;
use crate::run::{Bench, Finding, Manner, Streaming, Tally, wave};
use crate::stats;
use admin::Admin;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// Waves of a rung, at most.
const WAVES_MAX: u32 = 4;
/// How unlikely the fall must be, to be one.
const SIGNIFICANCE: f64 = 0.05;

/// A change and what came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Rung {
    /// What was changed.
    pub change: String,
    /// What came of it.
    pub result: RungResult,
}

/// What came of a change.
#[derive(Clone, PartialEq, Debug)]
pub enum RungResult {
    /// It could not be made, and why.
    NotTried { why: String },
    /// It was: answers that count, damaged ones among them, and how likely so few would be, had
    /// nothing changed.
    Tried { judged: u64, corrupted: u64, p: f64 },
}

impl Rung {
    /// In words.
    pub fn words(&self) -> String {
        match &self.result {
            RungResult::NotTried { why } => format!("not tried: {why}"),
            RungResult::Tried { judged, corrupted, p } => {
                let verdict = match (corrupted, *p < SIGNIFICANCE) {
                    (0, true) => "removes it",
                    (_, true) => "lessens it",
                    (0, false) => "unclear: too few answers",
                    (_, false) => "does not remove it",
                };
                let p = stats::shown(*p);
                format!("{verdict} ({corrupted} of {judged} corrupted, p = {p})")
            }
        }
    }

    /// Whether the change removes the damage.
    pub fn removes(&self) -> bool {
        matches!(self.result, RungResult::Tried { corrupted: 0, p, .. } if p < SIGNIFICANCE)
    }
}

/// What is changed on the client's side.
fn manners(finding: &Finding) -> Vec<(String, Result<Manner, String>)> {
    let all = finding.session_kinds.len();
    let crowd = || Manner::crowd(all);
    let sizes = finding.coverage.buckets.iter().map(|b| b.rows as usize);
    let exact =
        sizes.filter(|rows| *rows <= all && finding.coverage.server != ServerKind::Other).max();
    let exact = exact.map_or_else(
        || Err("the server does not tell its buckets".into()),
        |at_once| Ok(Manner { at_once, churns: false, ..crowd() }),
    );
    vec![
        ("nothing".into(), Ok(crowd())),
        ("one session at a time".into(), Ok(Manner::alone())),
        ("as many sessions as the largest bucket holds".into(), exact),
        (
            "a prefix of its own for every wave".into(),
            Ok(Manner { salt: format!("run {:016x}", finding.options.seed), ..crowd() }),
        ),
        ("no streams".into(), Ok(Manner { streaming: Streaming::Off, churns: false, ..crowd() })),
        ("no aborts and no bursts".into(), Ok(Manner { churns: false, ..crowd() })),
        ("a quarter of the load".into(), Ok(Manner { at_once: all.div_ceil(4), ..crowd() })),
    ]
}

/// Climbs it.
pub async fn climb(bench: &Arc<Bench>, finding: &Finding) -> Vec<Rung> {
    let base = finding.tally();
    let base = (base.corrupted, base.judged());
    let mut rungs = Vec::new();
    let mut next_wave = finding.waves + 1;
    for (change, manner) in manners(finding) {
        let result = match manner {
            _ if bench.stop.is_stopped() => ended(),
            Ok(manner) => repeat(bench, &change, &manner, base, &mut next_wave).await,
            Err(why) => RungResult::NotTried { why },
        };
        rungs.push(Rung { change, result });
    }
    for (change, knob, value) in admin::KNOBS {
        let result = match Admin::of(bench.client.target(), finding) {
            _ if bench.stop.is_stopped() => ended(),
            Ok(admin) => flipped(bench, &admin, change, knob, value, base, &mut next_wave).await,
            Err(why) => RungResult::NotTried { why },
        };
        rungs.push(Rung { change: (*change).into(), result });
    }
    if let Some(url) = &finding.options.other_url {
        let result = match elsewhere(bench, url) {
            _ if bench.stop.is_stopped() => ended(),
            Ok(other) => {
                let manner = Manner::crowd(other.sessions.len());
                repeat(&other, url, &manner, base, &mut next_wave).await
            }
            Err(why) => RungResult::NotTried { why },
        };
        rungs.push(Rung { change: format!("by way of {url}"), result });
    }
    rungs
}

/// Of a rung that was not reached.
fn ended() -> RungResult {
    RungResult::NotTried { why: "the run was ended early".into() }
}

/// Answers that a clean rung needs, so that its cleanness means something.
fn answers_needed((corrupted, judged): (u64, u64)) -> u64 {
    let rate = (corrupted as f64 / judged.max(1) as f64).clamp(1e-6, 0.999);
    (SIGNIFICANCE.ln() / (-rate).ln_1p()).ceil() as u64
}

async fn repeat(
    bench: &Arc<Bench>,
    change: &str,
    manner: &Manner,
    base: (u64, u64),
    next_wave: &mut u32,
) -> RungResult {
    let ids: Vec<u32> = (0..bench.sessions.len() as u32).collect();
    let steps: usize = bench.sessions.iter().map(|s| s.steps.len()).sum();
    let mut tally = Tally::default();
    for _ in 0..WAVES_MAX {
        bench.phase(&format!("changed: {change}"), steps as u64);
        let mut manner = manner.clone();
        if !manner.salt.is_empty() {
            manner.salt.push_str(&format!(" wave {next_wave}"));
        }
        let answers = wave(bench, *next_wave, &ids, &manner).await;
        *next_wave += 1;
        let counted = answers.iter().filter(|a| a.is_evidence || a.verdict.corruption().is_some());
        counted.for_each(|a| tally.count(&a.verdict));
        let is_enough = tally.judged() >= answers_needed(base) || tally.judged() == 0;
        if is_enough || bench.stop.is_stopped() {
            break;
        }
    }
    if tally.judged() == 0 {
        return RungResult::NotTried { why: "no answer that counts came".into() };
    }
    let p = stats::fisher_greater(base.0, base.1, tally.corrupted, tally.judged());
    RungResult::Tried { judged: tally.judged(), corrupted: tally.corrupted, p }
}

/// Repeats the load in a generation with one knob changed, and goes back.
async fn flipped(
    bench: &Arc<Bench>,
    admin: &Admin,
    change: &str,
    knob: &str,
    value: &str,
    base: (u64, u64),
    next_wave: &mut u32,
) -> RungResult {
    let generation = match admin.enter(knob, value).await {
        Ok(generation) => generation,
        Err(why) => return RungResult::NotTried { why },
    };
    let manner = Manner::crowd(bench.sessions.len());
    let result = repeat(bench, change, &manner, base, next_wave).await;
    match admin.leave(generation).await {
        Ok(()) => result,
        Err(why) => RungResult::NotTried {
            why: format!("done, but the server could not be set back: {why}; do so by hand"),
        },
    }
}

/// The same sessions and calibration at another address.
fn elsewhere(bench: &Bench, url: &str) -> Result<Arc<Bench>, String> {
    let of = bench.client.target();
    let target = Target::parse(url).map_err(|e| e.to_string())?;
    let target = Target {
        api_key: of.api_key.clone(),
        model: of.model.clone(),
        timeouts: of.timeouts,
        ..target
    };
    let calibration = bench.calibration.read().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Arc::new(Bench {
        client: Client::new(target),
        sessions: bench.sessions.clone(),
        registry: bench.registry.clone(),
        calibration: RwLock::new(calibration),
        tokens_max: bench.tokens_max,
        deterministic: bench.deterministic,
        seed: bench.seed,
        began: Instant::now(),
        load_began: OnceLock::new(),
        in_flight: AtomicU32::new(0),
        in_flight_peak: AtomicU32::new(0),
        order: AtomicU32::new(0),
        aborts: AtomicU32::new(0),
        progress: Mutex::default(),
        watch: Arc::clone(&bench.watch),
        stop: bench.stop.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(judged: u64, corrupted: u64) -> Rung {
        let p = stats::fisher_greater(30, 300, corrupted, judged);
        Rung { change: "x".into(), result: RungResult::Tried { judged, corrupted, p } }
    }

    #[test]
    fn a_rung_says_only_what_its_answers_show() {
        assert!(tried(100, 0).words().starts_with("removes it"));
        assert!(tried(100, 0).removes());
        assert!(tried(5, 0).words().starts_with("unclear"));
        assert!(tried(300, 5).words().starts_with("lessens"));
        assert!(tried(300, 28).words().starts_with("does not"));
        assert_eq!(answers_needed((30, 300)), 29);
        assert!(answers_needed((0, 0)) > 1_000_000);
    }
}
