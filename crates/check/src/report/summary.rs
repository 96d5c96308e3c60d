//! The report that a person reads in ten seconds.

use crate::coverage::Coverage;
use crate::run::{Conclusion, Finding};
use crate::stats;
use std::fmt::Write as _;

/// Corrupted answers that are shown, at most.
const SHOWN_MAX: usize = 5;

fn percent(rate: f64) -> String {
    match 100.0 * rate {
        0.0 => "0%".into(),
        p if p < 0.01 => format!("{p:.4}%"),
        p if p < 1.0 => format!("{p:.2}%"),
        p => format!("{p:.1}%"),
    }
}

/// So many of a thing.
fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The summary. Writing to a String cannot fail.
pub fn summary(f: &Finding) -> String {
    let mut s = String::new();
    let tally = f.tally();
    let judged = tally.judged();
    let conclusion = f.conclude();
    let (low, high) = stats::interval(tally.corrupted, judged);
    let _ = match &conclusion {
        Conclusion::Clean => writeln!(
            s,
            "CLEAN{}  0 of {judged} answers corrupted; the rate is below {} (95%)",
            if f.accepted_gap().is_some() { " (partial coverage)" } else { "" },
            percent(stats::upper_bound(0, judged))
        ),
        Conclusion::Corrupted { why } if tally.corrupted == 0 => {
            writeln!(s, "CORRUPTED  under load {why}")
        }
        Conclusion::Corrupted { .. } => writeln!(
            s,
            "CORRUPTED  {} of {judged} answers, {} (95%: {} to {}), in {} of {} sessions",
            tally.corrupted,
            percent(tally.corrupted as f64 / judged.max(1) as f64),
            percent(low),
            percent(high),
            f.corrupted_sessions().len(),
            f.session_kinds.len()
        ),
        Conclusion::Inconclusive { why } => {
            let _ = writeln!(
                s,
                "INCONCLUSIVE  {} of {judged} answers corrupted, but that proves too little:",
                tally.corrupted
            );
            why.iter().try_for_each(|w| writeln!(s, "  - {w}"))
        }
    };
    damage(&mut s, f);
    let _ = writeln!(
        s,
        "answers      {} ok, {} wrong but plausible, {} corrupted, {} errors, {} timeouts, {} \
         refused{}",
        tally.ok,
        tally.wrong,
        tally.corrupted,
        f.all().errors,
        f.all().timeouts,
        f.all().refused,
        if f.close_calls > 0 {
            format!("; {} set aside", counted(f.close_calls, "close call"))
        } else {
            String::new()
        }
    );
    bound(&mut s, f);
    calibration(&mut s, f);
    let _ = writeln!(
        s,
        "load         {} in {}, up to {} at once, {} aborted, {:.0} s{}",
        counted(f.session_kinds.len() as u64, "session"),
        counted(f.waves.into(), "wave"),
        counted(f.in_flight_peak.into(), "request"),
        counted(f.aborts.into(), "stream"),
        f.seconds.1,
        if f.is_ended_early { "; ended early" } else { "" }
    );
    coverage(&mut s, &f.coverage);
    if let (Conclusion::Corrupted { .. }, Some(gone)) = (&conclusion, &f.coverage.gone) {
        let _ = writeln!(s, "             {gone}");
    }
    for rung in &f.ladder {
        let _ = writeln!(s, "changed      {}: {}", rung.change, rung.words());
    }
    s
}

/// What the asked bound takes; where none was asked, what two usual ones would.
fn bound(s: &mut String, f: &Finding) {
    let tally = f.tally();
    let bounds = f.options.bound.map_or(vec![0.01, 0.001], |bound| vec![bound]);
    let takes = |bound: &f64| {
        let needed = stats::tries_needed(tally.corrupted, *bound)?;
        Some(format!("below {} takes {needed} answers", percent(*bound)))
    };
    let words: Vec<String> = bounds.iter().filter_map(takes).collect();
    let flag = if f.options.bound.is_none() { " (--bound)" } else { "" };
    let all = words.join(", ");
    let _ = writeln!(s, "bound        {all} with {} corrupted{flag}", tally.corrupted);
}

fn damage(s: &mut String, f: &Finding) {
    let corrupted = f.corrupted();
    if corrupted.is_empty() {
        return;
    }
    let classes: Vec<String> = f.classes().iter().map(|(c, n)| format!("{c} {n}")).collect();
    let _ = writeln!(s, "classes      {}", classes.join(", "));
    if let Some((ms, answers, _)) = f.first_damage() {
        let _ = writeln!(s, "first        after {:.1} s, {answers} answers", ms as f64 / 1000.0);
    }
    for a in corrupted.iter().take(SHOWN_MAX) {
        let _ = writeln!(
            s,
            "  session {} request {} ({} in flight): {}",
            a.session,
            a.step + 1,
            a.in_flight,
            printable(&a.verdict.to_string())
        );
    }
    if corrupted.len() > SHOWN_MAX {
        let _ = writeln!(s, "  and {} more, in the report", corrupted.len() - SHOWN_MAX);
    }
}

fn calibration(s: &mut String, f: &Finding) {
    let (requests, reliable) = f.calibrated;
    let how = if f.deterministic {
        "; compared letter for letter with the answers alone".to_owned()
    } else {
        let (wrong, of) = f.base_rate;
        format!("; again alone {wrong} of {of} wrong, under load p = {:.2}", f.wrong_p())
    };
    let _ = writeln!(
        s,
        "calibration  {reliable} of {requests} requests right alone ({}){how}, {:.0} s",
        percent(reliable as f64 / requests.max(1) as f64),
        f.seconds.0
    );
    let left: Vec<String> = f
        .kinds
        .iter()
        .filter(|k| !k.is_used)
        .map(|k| format!("{} ({} of {} right)", k.kind.name(), k.right, k.tried))
        .collect();
    if !left.is_empty() {
        let _ = writeln!(s, "             left out, the model cannot do it: {}", left.join(", "));
    }
}

fn coverage(s: &mut String, c: &Coverage) {
    let required: Vec<_> = c.buckets.iter().filter(|b| b.is_required).collect();
    let seen = required.iter().filter(|b| b.seen > 0).count();
    let _ = write!(
        s,
        "coverage     {}: {seen} of {} {}, largest batch {}",
        c.source.name(),
        required.len(),
        if c.buckets.iter().any(|b| b.is_captured.is_some()) { "buckets" } else { "batch sizes" },
        required.iter().filter(|b| b.seen > 0).map(|b| b.rows).max().unwrap_or(c.peak_running)
    );
    if let Some((captured, eager)) = c.decode_steps {
        let _ = write!(s, "; decode steps {captured} captured, {eager} eager");
    }
    let _ = writeln!(s);
    let missing: Vec<String> = c.missing().iter().map(|b| b.rows.to_string()).collect();
    if !missing.is_empty() {
        let _ = writeln!(s, "             missed: {}", missing.join(", "));
    } else if let Some(gap) = c.gap().filter(|_| c.gone.is_none()) {
        let _ = writeln!(s, "             missed: not known; {gap}");
    }
    for note in &c.notes {
        let _ = writeln!(s, "             {}", printable(note));
    }
}

/// A server's words, without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}
