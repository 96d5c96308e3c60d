//! What a check found, and what it means.

use super::answer::{Answer, Tally};
use super::options::Options;
use crate::coverage::{Coverage, Facts};
use crate::dialogue::Kind;
use crate::isolate::Rung;
use crate::judge::{Corruption, Verdict};
use crate::stats;
use std::collections::{BTreeMap, BTreeSet};

/// Fewer answers than this that count are no evidence of anything.
const EVIDENCE_MIN: u64 = 20;
/// How unlikely a difference to the calibration must be, to be one.
const SIGNIFICANCE: f64 = 0.01;
/// A run in which so large a share of the answers is missing was no run under load.
const MISSING_SHARE_MAX: f64 = 0.1;

/// What a check ends with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Conclusion {
    /// No damage, and the load went everywhere it had to.
    Clean,
    /// Damage; the first words say what.
    Corrupted { why: String },
    /// Neither is shown, and why.
    Inconclusive { why: Vec<String> },
}

impl Conclusion {
    /// Its word in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Conclusion::Clean => "clean",
            Conclusion::Corrupted { .. } => "corrupted",
            Conclusion::Inconclusive { .. } => "inconclusive",
        }
    }
}

/// A kind of session that was left out or kept, with what its trial said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KindTrial {
    /// The kind.
    pub kind: Kind,
    /// Requests tried.
    pub tried: u64,
    /// Right ones.
    pub right: u64,
    /// Whether the run has such sessions.
    pub is_used: bool,
}

/// A rate in a part of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Which part.
    pub label: String,
    /// Answers that count.
    pub judged: u64,
    /// Right ones.
    pub right: u64,
    /// Damaged ones.
    pub corrupted: u64,
}

/// What a check found.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// Where.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// What was asked.
    pub options: Options,
    /// What the server says of itself.
    pub facts: Facts,
    /// Whether answers had to be those alone, text for text.
    pub deterministic: bool,
    /// What each kind's trial said.
    pub kinds: Vec<KindTrial>,
    /// The kind of each session.
    pub session_kinds: Vec<Kind>,
    /// Requests alone: how many, and how many of them the model can do.
    pub calibrated: (u64, u64),
    /// Wrong answers among repeated calibrations of what the model can do, and their number.
    pub base_rate: (u64, u64),
    /// Answers alone, by class.
    pub alone: Tally,
    /// Every answer under load.
    pub answers: Vec<Answer>,
    /// Streams aborted on purpose.
    pub aborts: u32,
    /// Waves that were run.
    pub waves: u32,
    /// Damage that fell away when it was looked at again: close calls of the model.
    pub close_calls: u64,
    /// Most requests of this client at once.
    pub in_flight_peak: u32,
    /// Where the load went.
    pub coverage: Coverage,
    /// What the isolation ladder said.
    pub ladder: Vec<Rung>,
    /// When it began, in seconds since 1970.
    pub began_unix_s: u64,
    /// Seconds: calibration, load.
    pub seconds: (f64, f64),
    /// The end was asked for before all was done.
    pub is_ended_early: bool,
}

impl Finding {
    /// Answers that count.
    pub fn evidence(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|a| a.is_evidence || a.verdict.corruption().is_some())
    }

    /// Their classes.
    pub fn tally(&self) -> Tally {
        Tally::of(self.evidence())
    }

    /// The classes of all answers under load, those that do not count included.
    pub fn all(&self) -> Tally {
        Tally::of(&self.answers)
    }

    /// Damaged answers, in the order in which they were asked for.
    pub fn corrupted(&self) -> Vec<&Answer> {
        self.answers.iter().filter(|a| a.verdict.corruption().is_some()).collect()
    }

    /// Sessions with a damaged answer.
    pub fn corrupted_sessions(&self) -> BTreeSet<u32> {
        self.corrupted().iter().map(|a| a.session).collect()
    }

    /// Damaged answers by class; classes that did not come are absent.
    pub fn classes(&self) -> BTreeMap<&'static str, u64> {
        let mut classes = BTreeMap::new();
        for corruption in self.answers.iter().filter_map(|a| a.verdict.corruption()) {
            *classes.entry(corruption.class()).or_default() += 1;
        }
        classes
    }

    /// How likely so many plausible wrong answers would be, if the load changed nothing.
    pub fn wrong_p(&self) -> f64 {
        let tally = Tally::of(self.answers.iter().filter(|a| a.is_evidence));
        let (base_wrong, base) = self.base_rate;
        if base == 0 {
            return 1.0;
        }
        stats::fisher_greater(tally.wrong, tally.judged(), base_wrong, base)
    }

    /// Milliseconds of load, and answers that count, until the first damage was known.
    pub fn first_damage(&self) -> Option<(u64, u64, &Answer)> {
        let known_ms = |a: &Answer| a.asked_ms + a.took_ms;
        let first = self.corrupted().into_iter().min_by_key(|a| known_ms(a))?;
        let at = known_ms(first);
        let before = self.evidence().filter(|a| known_ms(a) <= at).count() as u64;
        Some((at, before, first))
    }

    /// What it all means. Damage beats everything; then come reasons why its absence proves little.
    pub fn conclude(&self) -> Conclusion {
        let tally = self.tally();
        if tally.corrupted > 0 {
            let first = self.corrupted().first().map(|a| a.verdict.to_string());
            return Conclusion::Corrupted { why: first.unwrap_or_default() };
        }
        let p = self.wrong_p();
        if !self.deterministic && p < SIGNIFICANCE {
            let why = format!(
                "{} of {} answers are wrong that are right alone (p = {})",
                tally.wrong,
                tally.judged(),
                stats::shown(p)
            );
            return Conclusion::Corrupted { why };
        }
        let why = self.doubts(&tally);
        if why.is_empty() { Conclusion::Clean } else { Conclusion::Inconclusive { why } }
    }

    /// What coverage lacks that was accepted beforehand: a run without damage is clean all the same.
    pub fn accepted_gap(&self) -> Option<String> {
        self.coverage.gap().filter(|_| self.options.accept_partial_coverage)
    }

    fn doubts(&self, tally: &Tally) -> Vec<String> {
        let mut why = Vec::new();
        let judged = tally.judged();
        why.extend(self.coverage.gone.clone());
        if self.is_ended_early {
            why.push(format!("it was ended early, after {judged} answers under load that count"));
        }
        if !self.options.only.is_empty() {
            why.push(format!(
                "all {judged} answers of the replayed sessions are whole this time; damage that \
                 comes now and then needs more runs"
            ));
        } else if judged < EVIDENCE_MIN {
            why.push(format!(
                "only {judged} answers count, fewer than {EVIDENCE_MIN}: alone the model got {} of \
                 {} requests right",
                self.calibrated.1, self.calibrated.0
            ));
        }
        let all = Tally::of(&self.answers);
        let missing = all.errors + all.timeouts;
        let asked = missing + all.judged();
        if missing as f64 > MISSING_SHARE_MAX * asked as f64 {
            why.push(format!(
                "{missing} of {asked} requests brought no answer ({} errors, {} timeouts)",
                all.errors, all.timeouts
            ));
        }
        if let Some(gap) = self.coverage.gap().filter(|_| !self.options.accept_partial_coverage) {
            why.push(gap);
        }
        if let Some(bound) = self.options.bound {
            let reached = stats::upper_bound(tally.corrupted, judged);
            if reached > bound {
                let needed = stats::tries_needed(tally.corrupted, bound).unwrap_or(u64::MAX);
                why.push(format!(
                    "the rate is known to be below {:.2}% only, not {:.2}%: that takes {needed} \
                     answers, and {judged} were had",
                    100.0 * reached,
                    100.0 * bound
                ));
            }
        }
        why
    }

    /// Accuracy by order of arrival, in tenths of the run.
    pub fn by_order(&self) -> Vec<Slice> {
        let evidence: Vec<&Answer> = self.evidence().filter(|a| a.verdict.is_answer()).collect();
        let size = evidence.len().div_ceil(10).max(1);
        let label = |at: usize, n: usize| format!("{}-{}", at * size + 1, at * size + n);
        evidence
            .chunks(size)
            .enumerate()
            .map(|(at, part)| slice(label(at, part.len()), part))
            .collect()
    }

    /// Accuracy by requests in flight, in powers of two.
    pub fn by_in_flight(&self) -> Vec<Slice> {
        let mut parts: BTreeMap<u32, Vec<&Answer>> = BTreeMap::new();
        for a in self.evidence().filter(|a| a.verdict.is_answer()) {
            parts.entry(a.in_flight.max(1).ilog2()).or_default().push(a);
        }
        let label = |power: u32| {
            let (low, high) = (1u64 << power, (2u64 << power) - 1);
            if low == high { low.to_string() } else { format!("{low}-{high}") }
        };
        parts.into_iter().map(|(power, part)| slice(label(power), &part)).collect()
    }
}

fn slice(label: String, part: &[&Answer]) -> Slice {
    let tally = Tally::of(part.iter().copied());
    Slice { label, judged: tally.judged(), right: tally.ok, corrupted: tally.corrupted }
}

/// Whether a verdict may be the model's own close call, so that it is looked at again.
pub fn may_be_close_call(verdict: &Verdict) -> bool {
    use crate::judge::Owner;
    matches!(
        verdict.corruption(),
        Some(Corruption::Altered { .. } | Corruption::Swapped { of: Owner::Key, .. })
    )
}
