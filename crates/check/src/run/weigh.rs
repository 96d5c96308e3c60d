//! What an answer weighs, given what the same request gave alone.

use super::load::Bench;
use crate::calibration::Basis;
use crate::dialogue::Session;
use crate::judge::{
    Corruption, Knowledge, Owner, Reply, Verdict, Wrong, first_difference, judge, slip,
};
use std::sync::PoisonError;

/// The verdict on an answer alone, which the calibration keeps.
pub fn alone(bench: &Bench, session: &Session, step: usize, reply: &Reply) -> Verdict {
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
pub fn under_load(
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
        Basis::Weak(alone) if is_comparable => (slipped(excused(verdict), alone, reply), false),
        _ => (excused(verdict), false),
    }
}

/// The model cannot do this, but what it says instead it says again: with a symbol changed, or a
/// piece twice or lost, it is damage if it turns out that the model was sure of what it says.
fn slipped(verdict: Verdict, alone: &Reply, reply: &Reply) -> Verdict {
    match slip(&alone.text, &reply.text) {
        Some(altered) if verdict.corruption().is_none() => Verdict::Corrupted(altered),
        _ => verdict,
    }
}

/// The model cannot do this, but the server claims that it fails in the same way each time.
fn same_as_alone(verdict: Verdict, alone: &Reply, reply: &Reply) -> Verdict {
    match first_difference(&alone.transcript(), &reply.transcript()) {
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
