//! The isolation ladder: the same load again with one thing changed at a time.

mod admin;

use crate::client::{Client, Target};
use crate::coverage::ServerKind;
use crate::dialogue::Want;
use crate::run::{
    Answer, Bench, Finding, Manner, Prefix, Streaming, Tally, close_calls, wave, write,
};
use crate::stats;
use admin::{Admin, Change};
use std::sync::{Arc, PoisonError, RwLock};

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
    let crowd = || Manner { churns: finding.options.churns, ..Manner::crowd(all) };
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
        ("no prefix from the cache".into(), Ok(Manner { prefix: uncached(finding), ..crowd() })),
        ("no streams".into(), Ok(Manner { streaming: Streaming::Off, churns: false, ..crowd() })),
        ("no aborts and no bursts".into(), Ok(Manner { churns: false, ..crowd() })),
        ("a quarter of the load".into(), Ok(Manner { at_once: all.div_ceil(4), ..crowd() })),
    ]
}

/// How a server of this kind is kept from its prefix cache.
fn uncached(finding: &Finding) -> Prefix {
    match finding.facts.kind {
        ServerKind::Lockstep | ServerKind::Sglang | ServerKind::Vllm => Prefix::Salted,
        ServerKind::LlamaCpp => Prefix::Declined,
        ServerKind::Other => Prefix::Words(format!("run {:016x}", finding.options.seed)),
    }
}

/// Climbs it.
pub async fn climb(bench: &Arc<Bench>, finding: &Finding) -> Vec<Rung> {
    let base = finding.tally();
    let base = (base.corrupted, base.judged());
    let mut ladder =
        Ladder { bench, finding, base, next_wave: finding.waves + 1, rungs: Vec::new() };
    for (change, manner) in manners(finding) {
        let result = match manner {
            Ok(manner) if !manner.prefix.is_comparable() => {
                ladder.incomparable(&change, &manner).await
            }
            Ok(manner) => ladder.repeat(bench, &change, &manner).await,
            Err(why) => RungResult::NotTried { why },
        };
        ladder.push(change, result);
    }
    ladder.completions().await;
    for change in Change::ALL {
        let result = ladder.changed(change).await;
        ladder.push(change.words().into(), result);
    }
    ladder.elsewhere().await;
    ladder.rungs
}

struct Ladder<'a> {
    bench: &'a Arc<Bench>,
    finding: &'a Finding,
    /// Damaged answers of the run, and its answers that count.
    base: (u64, u64),
    next_wave: u32,
    rungs: Vec<Rung>,
}

impl Ladder<'_> {
    fn push(&mut self, change: String, result: RungResult) {
        self.rungs.push(Rung { change, result });
    }

    /// The load as the run had it.
    fn crowd(&self) -> Manner {
        let sessions = self.bench.sessions.len();
        Manner { churns: self.finding.options.churns, ..Manner::crowd(sessions) }
    }

    /// The load again, until its answers tell, or there were enough waves of it.
    async fn repeat(&mut self, bench: &Arc<Bench>, change: &str, manner: &Manner) -> RungResult {
        let ids: Vec<u32> = (0..bench.sessions.len() as u32).collect();
        let mut tally = Tally::default();
        for _ in 0..WAVES_MAX {
            if bench.stop.is_stopped() {
                break;
            }
            bench.phase(&format!("changed: {change}"), steps(bench));
            let mut manner = manner.clone();
            if let Prefix::Words(words) = &mut manner.prefix {
                words.push_str(&format!(" wave {}", self.next_wave));
            }
            let mut answers = wave(bench, self.next_wave, &ids, &manner).await;
            self.next_wave += 1;
            if !bench.deterministic && manner.prefix.is_comparable() {
                // The run's own answers were looked at again too.
                close_calls(bench, &mut answers).await;
            }
            let counted =
                answers.iter().filter(|a| a.is_evidence || a.verdict.corruption().is_some());
            counted.for_each(|a| tally.count(&a.verdict));
            let stays = tally.corrupted > 0 && tally.judged() >= answers_needed(self.base);
            if stays || tally.judged() == 0 || self.p(&tally) < SIGNIFICANCE {
                break;
            }
        }
        if tally.judged() == 0 {
            let why = match bench.stop.is_stopped() {
                true => "the run was ended early",
                false => "no answer that counts came",
            };
            return RungResult::NotTried { why: why.into() };
        }
        RungResult::Tried { judged: tally.judged(), corrupted: tally.corrupted, p: self.p(&tally) }
    }

    /// How likely so little damage would be, had nothing changed.
    fn p(&self, tally: &Tally) -> f64 {
        stats::fisher_greater(self.base.0, self.base.1, tally.corrupted, tally.judged())
    }

    /// The load with other prompts, whose answers cannot be held against those alone: neither can
    /// the damage that was only a difference to them.
    async fn incomparable(&mut self, change: &str, manner: &Manner) -> RungResult {
        let whole = self.base;
        let divergent =
            |a: &&Answer| a.verdict.corruption().is_some_and(|c| c.class() == "divergent");
        let others = Tally::of(self.finding.evidence().filter(|a| !divergent(a)));
        self.base.0 = others.corrupted;
        let result = match self.base.0 {
            0 => RungResult::NotTried {
                why: "other prompts have other answers, and the damage was a difference to the \
                      answers alone"
                    .into(),
            },
            _ => self.repeat(self.bench, change, manner).await,
        };
        self.base = whole;
        result
    }

    /// The requests one at a time first, where what they gave before is no measure; then the load.
    async fn anew(&mut self, bench: &Arc<Bench>, change: &str) -> RungResult {
        let ids: Vec<u32> = (0..bench.sessions.len() as u32).collect();
        let passes = if bench.deterministic { 1 } else { 2 };
        bench.phase(&format!("changed: {change}, one at a time"), passes * steps(bench));
        let mut alone = Vec::new();
        for _ in 0..passes {
            alone.extend(wave(bench, 0, &ids, &Manner::alone()).await);
        }
        let answered = alone.iter().any(|a| a.verdict.is_answer());
        match alone.first().filter(|_| !answered) {
            Some(first) => RungResult::NotTried { why: format!("alone: {}", first.verdict) },
            None => self.repeat(bench, change, &self.crowd()).await,
        }
    }

    /// What can be said in a prompt, by way of `/v1/completions`.
    async fn completions(&mut self) {
        let name = "/v1/completions in place of chat";
        let all: u64 = steps(self.bench);
        let written = self.bench.stop.unless(write(&self.bench.client, &self.bench.sessions));
        let (sessions, prompts) = match written.await {
            Some(Ok(written)) => written,
            Some(Err(e)) => {
                let why = format!("its prompts cannot be written: {e}");
                return self.push(name.into(), RungResult::NotTried { why });
            }
            None => return self.push(name.into(), ended()),
        };
        let how = prompts.writer.words();
        let bench = Arc::new(self.bench.with(self.bench.client.clone(), sessions, Some(prompts)));
        let left_out = all - steps(&bench);
        let change = match left_out {
            0 => format!("{name} ({how})"),
            n => format!("{name} ({how}; {n} of {all} requests left out, for they call a tool)"),
        };
        // Held against the damage of the same requests, not of those that are left out.
        let whole = self.base;
        self.base = self.base_without_calls();
        let result = match self.base.0 {
            0 => RungResult::NotTried { why: "only calls of tools were damaged".into() },
            _ => self.anew(&bench, name).await,
        };
        self.base = whole;
        self.push(change, result);
    }

    fn base_without_calls(&self) -> (u64, u64) {
        let is_call = |a: &&Answer| {
            let steps = &self.bench.sessions[a.session as usize].steps;
            matches!(steps[a.step].want, Want::Calls(_))
        };
        let tally = Tally::of(self.finding.evidence().filter(|a| !is_call(a)));
        (tally.corrupted, tally.judged())
    }

    /// The load in a generation with one knob changed, and back.
    async fn changed(&mut self, change: Change) -> RungResult {
        if self.bench.stop.is_stopped() {
            return ended();
        }
        let entered = match Admin::of(self.bench.client.target(), self.finding, change) {
            Ok(admin) => admin.enter(change).await.map(|flipped| (admin, flipped)),
            Err(why) => Err(why),
        };
        let (admin, flipped) = match entered {
            Ok(entered) => entered,
            Err(why) => return RungResult::NotTried { why },
        };
        let bench = self.bench;
        let result = if change.changes_bits() {
            let client = bench.client.clone();
            let other = Arc::new(bench.with(client, bench.sessions.clone(), None));
            self.anew(&other, change.words()).await
        } else {
            self.repeat(bench, change.words(), &self.crowd()).await
        };
        match admin.leave(flipped).await {
            Ok(()) => result,
            Err(why) => RungResult::NotTried {
                why: format!("done, but the server could not be set back: {why}; do so by hand"),
            },
        }
    }

    /// Another way to the same model: what it said alone is what it has to say there.
    async fn elsewhere(&mut self) {
        let Some(url) = &self.finding.options.other_url else {
            let why = "name another worker, or what is behind the router, with --other-url".into();
            return self.push("another way to the model".into(), RungResult::NotTried { why });
        };
        let change = format!("by way of {url}");
        let result = match another(self.bench, url) {
            Ok(other) => self.repeat(&Arc::new(other), &change, &self.crowd()).await,
            Err(why) => RungResult::NotTried { why },
        };
        self.push(change, result);
    }
}

fn steps(bench: &Bench) -> u64 {
    bench.sessions.iter().map(|s| s.steps.len() as u64).sum()
}

/// Of a rung that was not reached.
fn ended() -> RungResult {
    RungResult::NotTried { why: "the run was ended early".into() }
}

/// Answers among which damage as often as the run's would show, nineteen times of twenty.
fn answers_needed((corrupted, judged): (u64, u64)) -> u64 {
    let rate = (corrupted as f64 / judged.max(1) as f64).clamp(1e-6, 0.999);
    (SIGNIFICANCE.ln() / (-rate).ln_1p()).ceil() as u64
}

/// The same sessions and calibration at another address.
fn another(bench: &Bench, url: &str) -> Result<Bench, String> {
    let of = bench.client.target();
    let target = Target::parse(url).map_err(|e| e.to_string())?;
    let target = Target {
        api_key: of.api_key.clone(),
        model: of.model.clone(),
        timeouts: of.timeouts,
        ..target
    };
    let calibration = bench.calibration.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut other = bench.with(Client::new(target), bench.sessions.clone(), None);
    other.calibration = RwLock::new(calibration);
    Ok(other)
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
