//! Coverage: through which captured batch sizes the load really went, and how that is known.
//!
//! A run whose largest batch was 20 says nothing of the buckets from 24 on, however many sessions
//! were at hand.

mod log;
mod metrics;
mod server;

pub use log::{DecodeLine, DecodeLog};
pub use server::{Facts, ServerKind, Snapshot, facts, snapshot};

use std::collections::BTreeMap;
use std::time::Instant;

/// How the batch sizes are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The server counts the steps of each bucket.
    Exactly,
    /// From samples of how many requests ran.
    Inferred,
    /// From nothing but this client's own requests in flight.
    Unknown,
}

impl Source {
    /// Its word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Exactly => "exactly",
            Source::Inferred => "inferred",
            Source::Unknown => "unknown",
        }
    }
}

/// A batch size that is captured on its own, or a range that stands for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Rows that it holds.
    pub rows: u32,
    /// Fewest rows that make it the one.
    pub rows_min: u32,
    /// Whether it is captured; `None` where the server does not say.
    pub is_captured: Option<bool>,
    /// Steps that ran through it; where coverage is inferred, samples that fell into it.
    pub seen: u64,
    /// Whether a clean run must have been through it.
    pub is_required: bool,
}

/// What a run exercised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// Which server it is.
    pub server: ServerKind,
    /// How it is known.
    pub source: Source,
    /// The decode buckets, ascending.
    pub buckets: Vec<Bucket>,
    /// Most requests that ran at once, as far as is known.
    pub peak_running: u32,
    /// Decode steps that replayed a capture, and that ran eagerly, where the server counts them.
    pub decode_steps: Option<(u64, u64)>,
    /// The server was not there to the end, in words.
    pub gone: Option<String>,
    /// A decode log was given, and it had no line of a decode step.
    pub is_log_silent: bool,
    /// What a reader should know beside.
    pub notes: Vec<String>,
}

impl Coverage {
    /// Required buckets that nothing went through.
    pub fn missing(&self) -> Vec<&Bucket> {
        self.buckets.iter().filter(|b| b.is_required && b.seen == 0).collect()
    }

    /// Why a clean run is not a pass, or nothing.
    pub fn gap(&self) -> Option<String> {
        let largest = self.buckets.iter().filter(|b| b.is_required).map(|b| b.rows).max();
        let missing: Vec<String> = self.missing().iter().map(|b| b.rows.to_string()).collect();
        if !missing.is_empty() {
            return Some(format!(
                "only up to {} of {}: no step through {}",
                self.buckets.iter().filter(|b| b.seen > 0).map(|b| b.rows).max().unwrap_or(0),
                largest.unwrap_or(0),
                missing.join(", ")
            ));
        }
        (self.source == Source::Unknown).then(|| self.why_unknown().into())
    }

    fn why_unknown(&self) -> &'static str {
        if self.gone.is_some() {
            "it went away before it had told of its batches"
        } else if self.is_log_silent {
            "the decode log had no line like `Decode batch, #running-req: 3` while the load ran: is \
             it the log of this server, and is the server told to write one (ours: --log-interval \
             1, SGLang: --decode-log-interval 1)?"
        } else {
            "the server tells nothing of its batches: turn its metrics on, or give its decode log \
             with --decode-log"
        }
    }
}

/// Of so many times that a count is told, a server that is started again makes it fall once.
const FALLS_ARE_RARE: u64 = 10;

/// What is gathered while a run lasts.
#[derive(Clone, Default, Debug)]
pub struct Samples {
    /// Samples by requests that ran.
    pub running: BTreeMap<u32, u64>,
    /// Lines of a decode log whose step was captured, and was not.
    pub logged: (u64, u64),
    /// Lines of a decode log, where one is read.
    pub log_lines: Option<u64>,
    /// What the server told last, and when.
    pub last: Option<(Snapshot, Instant)>,
    /// Of a count that only grows.
    pub grown: Growth,
}

/// How a count that only grows went.
#[derive(Clone, Copy, Default, Debug)]
pub struct Growth {
    /// Times that it was told.
    times: u64,
    /// What it was last.
    last: Option<u64>,
    /// Times that it had fallen.
    fell: u64,
}

impl Growth {
    fn take(&mut self, now: u64) {
        self.times += 1;
        self.fell += u64::from(self.last.is_some_and(|last| now < last));
        self.last = Some(now);
    }

    /// Whether the count began again. Where it falls often, several servers answer at one address,
    /// each with its own.
    fn has_begun_again(self) -> bool {
        self.fell > 0 && self.fell * FALLS_ARE_RARE <= self.times
    }
}

impl Samples {
    /// Takes one.
    pub fn take(&mut self, running: u32) {
        *self.running.entry(running).or_default() += 1;
    }

    /// Takes what the server told.
    pub fn take_told(&mut self, told: Snapshot, at: Instant) {
        told.running.into_iter().for_each(|n| self.take(n));
        told.grows.into_iter().for_each(|n| self.grown.take(n));
        if told.is_told() {
            self.last = Some((told, at));
        }
    }

    /// Takes a step of a decode log.
    pub fn take_line(&mut self, line: &DecodeLine) {
        self.take(line.running);
        *self.log_lines.get_or_insert(0) += 1;
        match line.is_captured {
            Some(true) => self.logged.0 += 1,
            Some(false) => self.logged.1 += 1,
            None => {}
        }
    }

    fn within(&self, low: u32, high: u32) -> u64 {
        if low > high { 0 } else { self.running.range(low..=high).map(|(_, n)| n).sum() }
    }

    fn peak(&self) -> u32 {
        self.running.keys().next_back().copied().unwrap_or(0)
    }
}

/// Puts together what was seen between two snapshots. `sessions` is how many the run had at once,
/// `client_peak` the most requests that it had in flight.
pub fn between(
    facts: &Facts,
    before: &Snapshot,
    after: &Snapshot,
    samples: &Samples,
    sessions: u32,
    client_peak: u32,
) -> Coverage {
    let mut notes = facts.notes.clone();
    let is_exact = !after.bucket_steps.is_empty();
    let source = if is_exact {
        Source::Exactly
    } else if samples.running.is_empty() {
        Source::Unknown
    } else {
        Source::Inferred
    };
    let is_new = is_restarted(before, after, samples);
    if is_new {
        notes.push("the server was started again meanwhile: only steps since are counted".into());
    } else if before.generation != after.generation {
        notes.push(
            "the server changed its generation meanwhile: only steps since are counted".into(),
        );
    }
    let peak_running = if source == Source::Unknown { client_peak } else { samples.peak() };
    let reachable = facts.running_max.unwrap_or(u32::MAX);
    let sizes = ladder(facts, sessions);
    let mut low = 1;
    let mut buckets = Vec::new();
    for (rows, is_captured) in sizes {
        let seen = match source {
            Source::Exactly => steps_between(before, after, is_new, rows),
            Source::Inferred => samples.within(low, rows),
            Source::Unknown => u64::from((low..=rows).contains(&client_peak) || client_peak > rows),
        };
        // What is never captured has no capture to damage it; what the server never fills neither.
        let is_required = is_captured != Some(false) && low <= reachable;
        buckets.push(Bucket { rows, rows_min: low, is_captured, seen, is_required });
        low = rows + 1;
    }
    let (captured, eager) = samples.logged;
    if captured + eager > 0 {
        notes.push(format!(
            "of the steps in its decode log {captured} were captured and {eager} ran eagerly"
        ));
    }
    let decode_steps = match (before.passes, after.passes) {
        (Some(b), Some(a)) => Some((a.0.saturating_sub(b.0), a.1.saturating_sub(b.1))),
        _ => None,
    };
    let decode_steps = decode_steps.filter(|_| !is_new);
    let is_log_silent = samples.log_lines == Some(0);
    Coverage {
        server: facts.kind,
        source,
        buckets,
        peak_running,
        decode_steps,
        gone: None,
        is_log_silent,
        notes,
    }
}

/// Whether two snapshots, with what was told between them, are of two processes.
pub fn is_restarted(before: &Snapshot, after: &Snapshot, samples: &Samples) -> bool {
    let said = before.started.zip(after.started).is_some_and(|(was, is)| was != is);
    said || samples.grown.has_begun_again()
}

fn steps_between(before: &Snapshot, after: &Snapshot, is_new: bool, rows: u32) -> u64 {
    let of = |s: &Snapshot| s.bucket_steps.get(&rows).copied().unwrap_or(0);
    if before.generation == after.generation && !is_new {
        of(after).saturating_sub(of(before))
    } else {
        of(after)
    }
}

/// The captured sizes where the server lists them; else powers of two up to what can run at once.
fn ladder(facts: &Facts, sessions: u32) -> Vec<(u32, Option<bool>)> {
    if !facts.buckets.is_empty() {
        return facts.buckets.clone();
    }
    let most = facts.running_max.unwrap_or(sessions).min(sessions).max(1);
    let powers = (0..32).map(|i| 1u32 << i).take_while(|rows| *rows < most);
    powers.chain([most]).map(|rows| (rows, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(buckets: &[u32], running_max: Option<u32>) -> Facts {
        Facts {
            buckets: buckets.iter().map(|b| (*b, Some(*b <= 32))).collect(),
            running_max,
            ..Facts::unknown()
        }
    }

    fn exact(steps: &[(u32, u64)]) -> Snapshot {
        Snapshot { bucket_steps: steps.iter().copied().collect(), ..Snapshot::default() }
    }

    /// The case that this module is for: 96 sessions of which 20 ever ran together.
    #[test]
    fn twenty_of_ninety_six_is_a_gap() {
        let facts = Facts {
            buckets: [1, 2, 4, 8, 12, 16, 24, 32, 40, 96].map(|b| (b, Some(true))).to_vec(),
            ..Facts::unknown()
        };
        let mut samples = Samples::default();
        (1..=20).for_each(|n| samples.take(n));
        let (none, n) = (Snapshot::default(), 96);
        let c = between(&facts, &none, &none, &samples, n, n);
        assert_eq!((c.source, c.peak_running), (Source::Inferred, 20));
        let gap = c.gap().unwrap();
        assert!(gap.starts_with("only up to 24 of 96: no step through 32, 40, 96"), "{gap}");
    }

    #[test]
    fn counted_steps_are_exact_and_eager_buckets_not_required() {
        let facts = facts(&[1, 2, 4, 40], None);
        let (before, after) = (exact(&[(1, 5), (2, 7)]), exact(&[(1, 9), (2, 8), (4, 1)]));
        let c = between(&facts, &before, &after, &Samples::default(), 4, 4);
        assert_eq!(c.source, Source::Exactly);
        let seen: Vec<u64> = c.buckets.iter().map(|b| b.seen).collect();
        assert_eq!(seen, [4, 1, 1, 0]);
        assert_eq!(c.gap(), None);
        let c = between(&facts, &after, &after, &Samples::default(), 4, 4);
        assert_eq!(c.missing().len(), 3);
    }

    #[test]
    fn what_cannot_run_is_not_required() {
        let mut samples = Samples::default();
        (1..=4).for_each(|n| samples.take(n));
        let none = Snapshot::default();
        let c = between(&facts(&[], Some(4)), &none, &none, &samples, 96, 96);
        assert_eq!(c.buckets.iter().map(|b| b.rows).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(c.gap(), None);
        let c = between(&facts(&[], None), &none, &none, &Samples::default(), 96, 96);
        assert!(c.gap().unwrap().contains("or give its decode log with --decode-log"));
    }

    /// A server that ended and was started again under a run was seen for ours alone, which says
    /// when it started.
    #[test]
    fn a_count_that_begins_again_tells_of_a_restart() {
        let after = |counts: &[u64]| {
            let mut samples = Samples::default();
            for n in counts {
                let told = Snapshot { grows: Some(*n), ..Snapshot::default() };
                samples.take_told(told, Instant::now());
            }
            let none = Snapshot::default();
            is_restarted(&none, &none, &samples)
        };
        let counts: Vec<u64> = (0..20).chain(3..20).collect();
        assert!(after(&counts));
        assert!(!after(&counts[..20]) && !after(&[]));
        // Two servers at one address.
        let turns: Vec<u64> = (0..20).flat_map(|n| [n, 1000 + n]).collect();
        assert!(!after(&turns));
    }

    /// A journal that was followed and stayed silent once read as if no log had been given.
    #[test]
    fn a_silent_decode_log_is_named() {
        let none = Snapshot::default();
        let silent = Samples { log_lines: Some(0), ..Samples::default() };
        let c = between(&facts(&[], None), &none, &none, &silent, 4, 4);
        assert!(c.gap().unwrap().starts_with("the decode log had no line"), "{:?}", c.gap());
    }
}
