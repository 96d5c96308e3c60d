//! The report for machines, which is also what `--replay` reads.

use super::summary::printable;
use crate::dialogue::{Kind, Sizes};
use crate::isolate::RungResult;
use crate::judge::{Corruption, Reply};
use crate::run::{Answer, Claim, Conclusion, Finding, Options, Profile, Slice};
use crate::stats;
use core::fmt;
use serde_json::{Value, json};

/// Characters of an answer that are kept.
const EVIDENCE_CHARS_MAX: usize = 4000;

/// The whole finding.
pub fn json(f: &Finding) -> Value {
    let tally = f.tally();
    let judged = tally.judged();
    let (low, high) = stats::interval(tally.corrupted, judged);
    let conclusion = f.conclude();
    let why = match &conclusion {
        Conclusion::Clean => Vec::new(),
        Conclusion::Corrupted { why } => vec![why.clone()],
        Conclusion::Inconclusive { why } => why.clone(),
    };
    let first = f.first_damage().map(|(ms, answers, a)| {
        json!({"seconds": ms as f64 / 1000.0, "answers": answers, "session": a.session})
    });
    json!({
        "conclusion": conclusion.name(),
        "why": why,
        "ended_early": f.is_ended_early,
        "began_unix_s": f.began_unix_s,
        "lockstep_version": env!("CARGO_PKG_VERSION"),
        "url": f.url,
        "model": f.model,
        "server": {"kind": f.facts.kind.name(), "version": f.facts.version,
            "claims_determinism": f.facts.claims_determinism},
        "options": options(&f.options),
        "deterministic": f.deterministic,
        "answers": {"judged": judged, "ok": tally.ok, "wrong": tally.wrong,
            "corrupted": tally.corrupted, "errors": f.all().errors,
            "timeouts": f.all().timeouts, "refused": f.all().refused,
            "close_calls": f.close_calls, "aborted_on_purpose": f.aborts},
        "corrupted": {"classes": f.classes(), "sessions": f.corrupted_sessions(),
            "rate": if judged == 0 { Value::Null } else {
                json!(tally.corrupted as f64 / judged as f64)
            },
            "interval_95": [low, high],
            "upper_bound_95": stats::upper_bound(tally.corrupted, judged),
            "first": first,
            "answers_needed_for": needed(tally.corrupted, f.options.bound)},
        "wrong_p": f.wrong_p(),
        "calibration": {"requests": f.calibrated.0, "reliable": f.calibrated.1,
            "repeated": f.base_rate.1, "repeated_wrong": f.base_rate.0,
            "errors": f.alone.errors, "timeouts": f.alone.timeouts, "seconds": f.seconds.0},
        "kinds": f.kinds.iter().map(|k| json!({"kind": k.kind.name(), "tried": k.tried,
            "right": k.right, "used": k.is_used})).collect::<Vec<_>>(),
        "load": {"sessions": f.session_kinds.len(), "waves": f.waves, "seconds": f.seconds.1,
            "in_flight_peak": f.in_flight_peak},
        "coverage": coverage(f),
        "by_order": slices(&f.by_order()),
        "by_in_flight": slices(&f.by_in_flight()),
        "ladder": ladder(f),
        "evidence": f.corrupted().iter().map(|a| evidence(a, f)).collect::<Vec<_>>(),
        "not_right": f.answers.iter().filter(|a| a.verdict.corruption().is_none())
            .filter(|a| a.verdict.class() != "ok").take(200)
            .map(|a| evidence(a, f)).collect::<Vec<_>>(),
    })
}

fn needed(hits: u64, bound: Option<f64>) -> Value {
    let bounds = [Some(0.01), Some(0.001), bound];
    let one = |b: f64| (format!("{b}"), json!(stats::tries_needed(hits, b)));
    Value::Object(bounds.into_iter().flatten().map(one).collect())
}

fn coverage(f: &Finding) -> Value {
    let c = &f.coverage;
    let buckets = c.buckets.iter().map(|b| {
        json!({"rows": b.rows, "rows_min": b.rows_min, "captured": b.is_captured,
            "seen": b.seen, "required": b.is_required})
    });
    json!({
        "source": c.source.name(),
        "gap": c.gap(),
        "gone": c.gone,
        "peak_running": c.peak_running,
        "decode_steps": c.decode_steps.map(|(captured, eager)| {
            json!({"captured": captured, "eager": eager})
        }),
        "buckets": buckets.collect::<Vec<_>>(),
        "notes": c.notes,
    })
}

fn slices(slices: &[Slice]) -> Value {
    let one = |s: &Slice| json!({"label": s.label, "judged": s.judged, "right": s.right, "corrupted": s.corrupted});
    slices.iter().map(one).collect()
}

fn ladder(f: &Finding) -> Value {
    let one = |r: &crate::isolate::Rung| {
        let mut value = json!({"change": r.change, "words": r.words(), "removes": r.removes()});
        if let RungResult::Tried { judged, corrupted, p } = r.result {
            value["judged"] = judged.into();
            value["corrupted"] = corrupted.into();
            value["p"] = p.into();
        }
        value
    };
    f.ladder.iter().map(one).collect()
}

fn evidence(a: &Answer, f: &Finding) -> Value {
    let kept =
        |reply: &Reply| reply.transcript().chars().take(EVIDENCE_CHARS_MAX).collect::<String>();
    json!({
        "session": a.session,
        "kind": f.session_kinds.get(a.session as usize).map(|k| k.name()),
        "request": a.step,
        "wave": a.wave,
        "order": a.order,
        "in_flight": a.in_flight,
        "streamed": a.streamed,
        "asked_s": a.asked_ms as f64 / 1000.0,
        "took_s": a.took_ms as f64 / 1000.0,
        "class": a.verdict.corruption().map_or(a.verdict.class(), Corruption::class),
        "verdict": printable(&a.verdict.to_string()),
        "first_token": token(a),
        "answer": a.reply.as_ref().map(kept),
    })
}

/// Where a divergent answer leaves the one alone, where the server told its tokens.
fn token(a: &Answer) -> Value {
    match a.verdict.corruption() {
        Some(Corruption::Divergent { token: Some(t), .. }) => {
            json!({"at": t.at, "alone": t.alone, "found": t.found})
        }
        _ => Value::Null,
    }
}

fn options(o: &Options) -> Value {
    json!({
        "profile": o.profile.name(),
        "sessions": o.sessions,
        "rounds": o.sizes.rounds,
        "context": o.sizes.context_tokens,
        "max_tokens": o.sizes.answer_tokens_max,
        "seed": o.seed,
        "bound": o.bound,
        "calibrations": o.calibrations,
        "deterministic": match o.deterministic {
            Claim::Auto => "auto",
            Claim::Yes => "yes",
            Claim::No => "no",
        },
    })
}

/// Why a report cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// Not JSON.
    Json { why: String },
    /// A field is missing or of another kind.
    Field { name: &'static str },
    /// It has no corrupted session.
    Nothing,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Json { why } => write!(f, "is no JSON: {why}"),
            ReplayError::Field { name } => {
                write!(f, "has no usable '{name}'; it takes a report that --json printed")
            }
            ReplayError::Nothing => f.write_str("names no corrupted session, nothing to replay"),
        }
    }
}

impl core::error::Error for ReplayError {}

/// What a report's run was asked, with its corrupted sessions as the only ones to judge; all of
/// them where the run was ended early and had found none.
pub fn replay(text: &str) -> Result<Options, ReplayError> {
    let report: Value =
        serde_json::from_str(text).map_err(|e| ReplayError::Json { why: e.to_string() })?;
    let o = &report["options"];
    let number = |name: &'static str| {
        let n = o[name].as_u64().and_then(|n| u32::try_from(n).ok());
        n.ok_or(ReplayError::Field { name })
    };
    let profile = Profile::ALL.into_iter().find(|p| o["profile"] == p.name());
    let kinds = report["kinds"].as_array().ok_or(ReplayError::Field { name: "kinds" })?;
    let used = kinds.iter().filter(|k| k["used"] == true);
    let kinds: Vec<Kind> = used.filter_map(|k| Kind::find(k["kind"].as_str()?)).collect();
    let sessions = report["corrupted"]["sessions"].as_array();
    let only: Vec<u32> = sessions
        .ok_or(ReplayError::Field { name: "corrupted.sessions" })?
        .iter()
        .filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect();
    let is_cut = report["ended_early"] == true;
    if only.is_empty() && !is_cut {
        return Err(ReplayError::Nothing);
    }
    if kinds.is_empty() {
        return Err(ReplayError::Field { name: "kinds" });
    }
    let mut options = Options::of(profile.ok_or(ReplayError::Field { name: "profile" })?);
    options.sessions = number("sessions")?;
    options.sizes = Sizes {
        context_tokens: number("context")?,
        rounds: number("rounds")?,
        answer_tokens_max: number("max_tokens")?,
    };
    options.seed = o["seed"].as_u64().ok_or(ReplayError::Field { name: "seed" })?;
    options.deterministic = match report["deterministic"].as_bool() {
        Some(true) => Claim::Yes,
        Some(false) => Claim::No,
        None => Claim::Auto,
    };
    options.kinds = kinds;
    options.accept_partial_coverage = !only.is_empty();
    options.only = only;
    options.bound = o["bound"].as_f64().filter(|_| options.only.is_empty());
    Ok(options)
}
