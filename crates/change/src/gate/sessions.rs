//! The corruption gate: sessions with known answers, through every new bucket.

use super::Criterion;
use crate::fault::ChangeError;
use crate::target::Sessions;
use crate::web::Web;
use lockstep_check::coverage::{Coverage, Source};
use lockstep_check::run::{Conclusion, Finding, Progress, Watch, check};
use lockstep_check::{Stop, report};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// What the gate found.
pub struct Gate {
    /// Coverage of the new buckets, then what the answers show.
    pub criteria: Vec<Criterion>,
    /// The finding for machines, which `lockstep check --replay` reads.
    pub json: Value,
    /// As a page.
    pub html: String,
    /// For a person in ten seconds.
    pub summary: String,
}

/// Runs the sessions, and looks at the batches of the server at `observed`, where that is another
/// than the one that is asked; `fresh` are the buckets that the change brings, ascending.
///
/// # Errors
/// The gate cannot be run: the server answers nothing.
pub fn gate(
    web: &Web,
    observed: Option<&str>,
    sessions: &Sessions,
    concurrency: &[u32],
    fresh: &[u32],
    say: &mut dyn FnMut(&str),
) -> Result<Gate, ChangeError> {
    let client = web.client(sessions.timeout_seconds);
    let mut options = sessions.options(concurrency);
    options.observed_url = observed.map(str::to_owned);
    // Buckets that were there before the change are no business of its gate.
    options.held = fresh.to_vec();
    options.accept_partial_coverage = fresh.is_empty();
    let ran = web.runtime().block_on(async {
        let (send, mut phases) = unbounded_channel();
        let run = check(client, options, watch(send), Stop::default());
        tokio::pin!(run);
        loop {
            tokio::select! {
                done = &mut run => return done,
                Some(phase) = phases.recv() => say(&phase),
            }
        }
    });
    let mut finding = ran.map_err(|e| ChangeError::Gate { what: e.to_string() })?;
    // The buckets that matter here are judged by themselves.
    finding.options.accept_partial_coverage = true;
    let summary = report::summary(&finding);
    let (json, html) = (report::json(&finding), report::html(&finding));
    let mut criteria = Vec::new();
    if !fresh.is_empty() {
        criteria.push(covered(&finding.coverage, fresh, sessions.accept_inconclusive));
    }
    criteria.push(judged(&finding, sessions.accept_inconclusive));
    Ok(Gate { criteria, json, html, summary })
}

/// Tells each phase once, as it begins.
fn watch(send: UnboundedSender<String>) -> Watch {
    let last = Mutex::new(String::new());
    Arc::new(move |p: &Progress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != p.phase {
            last.clone_from(&p.phase);
            // Nobody listening is no reason to stop.
            let _ = send.send(format!("check: {}", p.phase));
        }
    })
}

fn covered(coverage: &Coverage, fresh: &[u32], accepts_unknown: bool) -> Criterion {
    let seen =
        |n: u32| coverage.buckets.iter().any(|b| (b.rows_min..=b.rows).contains(&n) && b.seen > 0);
    let unseen: Vec<u32> = fresh.iter().copied().filter(|n| !seen(*n)).collect();
    let known = match coverage.source {
        Source::Exactly => "as the server counts",
        Source::Inferred => "by samples of what ran, since the server does not count steps",
        Source::Unknown => "the server tells nothing of its batches",
    };
    let peak = coverage.peak_running;
    let (passed, words) = match (coverage.source, unseen.is_empty()) {
        (Source::Unknown, _) => (
            accepts_unknown,
            format!(
                "{known}, so it is not known whether {fresh:?} were reached; turn its metrics on"
            ),
        ),
        (_, true) => (
            true,
            format!(
                "each of {fresh:?} was reached under load, {known}; at most {peak} ran at once"
            ),
        ),
        (_, false) => (
            false,
            format!(
                "{unseen:?} of {fresh:?} were not reached, {known}; at most {peak} ran at once"
            ),
        ),
    };
    Criterion::new("coverage", passed, words)
}

fn judged(finding: &Finding, accepts_inconclusive: bool) -> Criterion {
    let tally = finding.tally();
    let counted = format!(
        "{} of {} answers that count are damaged; {} errors, {} timeouts",
        tally.corrupted,
        tally.judged(),
        finding.all().errors,
        finding.all().timeouts
    );
    let (passed, words) = match finding.conclude() {
        Conclusion::Clean => (true, counted),
        Conclusion::Corrupted { why } => (false, format!("{counted}; {}", report::printable(&why))),
        Conclusion::Inconclusive { why } => {
            (accepts_inconclusive, format!("{counted}; inconclusive: {}", why.join("; ")))
        }
    };
    Criterion::new("check", passed, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_check::coverage::{Bucket, ServerKind};

    fn coverage(source: Source, seen: &[(u32, u32, u64)]) -> Coverage {
        let bucket = |(rows_min, rows, seen): &(u32, u32, u64)| Bucket {
            rows: *rows,
            rows_min: *rows_min,
            is_captured: Some(true),
            seen: *seen,
            is_required: true,
        };
        Coverage {
            server: ServerKind::Other,
            source,
            buckets: seen.iter().map(bucket).collect(),
            peak_running: 20,
            decode_steps: None,
            gone: None,
            is_log_silent: false,
            notes: Vec::new(),
        }
    }

    /// The story's own gap: 96 sessions, of which 20 ever ran together.
    #[test]
    fn a_new_bucket_that_nothing_reached_fails() {
        let seen = [(17, 24, 3), (25, 32, 0), (33, 40, 0)];
        let c = covered(&coverage(Source::Exactly, &seen), &[24, 32, 40], false);
        assert!(!c.passed && c.words.starts_with("[32, 40] of [24, 32, 40]"), "{}", c.words);
        assert!(covered(&coverage(Source::Inferred, &seen), &[24], false).passed);
        assert!(!covered(&coverage(Source::Unknown, &seen), &[24], false).passed);
        assert!(covered(&coverage(Source::Unknown, &seen), &[24], true).passed);
    }
}
