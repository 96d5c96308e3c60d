//! The state machine's driver: one step a state, back where a step says so or cannot be taken.

use super::Ground;
use super::lever::{self, Lever, Step};
use crate::backup;
use crate::edit::FILE_BYTES_MAX;
use crate::fault::ChangeError;
use crate::gate::{self, Criterion, Load, Measured};
use crate::journal::{Entry, State};
use crate::readback;
use crate::target::Kind;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often a watched server is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Goes on from wherever the journal says that the change stands, to its end.
///
/// # Errors
/// The change is neither kept nor rolled back: the journal cannot be written, or the way back
/// failed. It can be resumed.
pub fn drive(g: &mut Ground<'_>) -> Result<State, ChangeError> {
    let lever = lever::of(&g.target.launch);
    loop {
        let state = g.journal.state().unwrap_or(State::Proposed);
        if state.is_over() {
            return Ok(state);
        }
        if let Some(reasons) = going_back(g) {
            back(g, lever.as_ref(), &reasons)?;
            continue;
        }
        let taken = step(g, lever.as_ref(), state);
        match taken {
            Ok((next, Step::On(facts))) => {
                (g.say)(&format!("{next}"));
                g.journal.reach(next, facts)?;
            }
            Ok((_, Step::Back(reasons))) => back(g, lever.as_ref(), &reasons)?,
            Err(e) => back(g, lever.as_ref(), &[e.to_string()])?,
        }
    }
}

/// The reasons of a way back that was begun and is not over.
fn going_back(g: &Ground<'_>) -> Option<Vec<String>> {
    let facts = g.journal.facts("roll_back")?;
    let list = facts["reasons"].as_array()?;
    Some(list.iter().filter_map(|r| r.as_str().map(str::to_owned)).collect())
}

/// Takes the old setting up again and looks whether it is so.
pub fn back(g: &mut Ground<'_>, lever: &dyn Lever, reasons: &[String]) -> Result<(), ChangeError> {
    for reason in reasons {
        (g.say)(&format!("rolling back: {reason}"));
    }
    let touched = |r: &crate::journal::Record| r.kind == "intent" && r.word != "roll_back";
    if !g.journal.records().iter().any(touched) {
        let facts = json!({"reasons": reasons, "touched": false});
        return g.journal.reach(State::RolledBack, facts);
    }
    if going_back(g).is_none() {
        // A disk that is full must not keep the old setting from coming back.
        let noted = g.journal.append(&Entry::Intent("roll_back"), json!({"reasons": reasons}));
        if let Err(e) = noted {
            (g.say)(&format!("the journal cannot be written ({e}); rolling back all the same"));
        }
    }
    let facts = lever.undo(g)?;
    let verified = verify_back(g)?;
    (g.say)("rolled back, and verified");
    let facts = json!({"reasons": reasons, "undo": facts, "verified": verified});
    g.journal.reach(State::RolledBack, facts)
}

/// Reads back that the old settings run, that files are as they were, and that answers are too.
fn verify_back(g: &mut Ground<'_>) -> Result<Value, ChangeError> {
    let r = readback::read(&g.web, g.target)?;
    let proposed = g.journal.facts("proposed").cloned().unwrap_or_default();
    for wish in &g.wishes {
        let was = proposed["before"][&wish.name].as_str();
        let is = r.value(&wish.name);
        if was.is_some() && was != is {
            let what = format!(
                "after the rollback {} is {}, and was {} before the change",
                wish.name,
                is.unwrap_or("unknown"),
                was.unwrap_or("unknown")
            );
            return Err(ChangeError::Answer { url: g.target.url.clone(), what });
        }
    }
    if let Some(b) = g.backups().iter().find(|b| !b.is_in_place()) {
        return Err(ChangeError::Damaged { path: b.path.clone() });
    }
    let baseline = g.read_json("baseline.json").and_then(|v| Measured::from_json(&v));
    let Some(before) = baseline else { return Ok(json!({"settings": true, "files": true})) };
    let after =
        Measured { alone: gate::sample(&g.web, g.target.gates.tokens)?, ..Measured::default() };
    let before = Measured { points: Vec::new(), ..before };
    let all = gate::compare(g.target.kind, &g.target.gates, &before, &after);
    match all.iter().find(|c| !c.passed) {
        Some(c) => Err(ChangeError::Answer { url: g.target.url.clone(), what: c.words.clone() }),
        None => Ok(json!({"settings": true, "files": true, "answers": true})),
    }
}

fn step(g: &mut Ground<'_>, lever: &dyn Lever, state: State) -> Result<(State, Step), ChangeError> {
    Ok(match state {
        State::Proposed => (State::Checked, check(g)?),
        State::Checked => (State::BackedUp, back_up(g, lever)?),
        State::BackedUp => (State::Staged, lever.stage(g)?),
        State::Staged => (State::Proven, lever.prove(g)?),
        State::Proven => (State::Flipped, lever.flip(g)?),
        State::Flipped => (State::Watched, watch(g, lever)?),
        State::Watched | State::Kept | State::RolledBack => (State::Kept, lever.keep(g)?),
    })
}

/// The load of the gates: what the target says, else one, the old ceiling and the new one.
pub fn load(g: &Ground<'_>) -> Load {
    let gates = &g.target.gates;
    let concurrency = if gates.concurrency.is_empty() {
        let proposed = g.journal.facts("proposed").cloned().unwrap_or_default();
        let list = proposed["concurrency"].as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|n| u32::try_from(n.as_u64()?).ok()).collect()
    } else {
        gates.concurrency.clone()
    };
    Load { concurrency, rounds: gates.rounds, tokens: gates.tokens }
}

/// The baseline, before anything is touched.
fn check(g: &mut Ground<'_>) -> Result<Step, ChangeError> {
    let load = load(g);
    (g.say)(&format!("measuring the baseline at concurrency {:?}", load.concurrency));
    let measured = gate::measure(&g.web, &load, g.say)?;
    g.write_json("baseline.json", &measured.to_json())?;
    let bad: u64 = measured.points.iter().map(|p| p.failed + p.refused + p.timeouts).sum();
    if bad > 0 {
        let why = measured.points.iter().find_map(|p| p.why.clone()).unwrap_or_default();
        let words = format!(
            "{bad} requests of the baseline were not answered ({why}): put that right first"
        );
        return Ok(Step::Back(vec![words]));
    }
    if g.target.kind == Kind::Lockstep && !measured.differing.is_empty() {
        let words = "answers under load differ from those given alone before the change already";
        return Ok(Step::Back(vec![words.into()]));
    }
    Ok(Step::On(json!({"baseline": "baseline.json"})))
}

fn back_up(g: &mut Ground<'_>, lever: &dyn Lever) -> Result<Step, ChangeError> {
    let folder = g.folder.join("backup");
    let mut files = Vec::new();
    for path in lever.files(g)? {
        files.push(backup::take(&path, &folder, FILE_BYTES_MAX)?.to_json());
    }
    Ok(Step::On(json!({"files": files})))
}

/// The gates, then the rest of the watch window.
fn watch(g: &mut Ground<'_>, lever: &dyn Lever) -> Result<Step, ChangeError> {
    // Not the wall clock: it may jump.
    let begun = Instant::now();
    let mut criteria = lever.look(g)?;
    if failed(&criteria).is_empty() {
        criteria.extend(coverage(g)?);
        (g.say)("running the gates");
        let measured = gate::measure(&g.web, &load(g), g.say)?;
        g.write_json("after.json", &measured.to_json())?;
        let baseline = g.read_json("baseline.json").and_then(|v| Measured::from_json(&v));
        let before = baseline.ok_or_else(|| g.lost("the baseline of this record"))?;
        criteria.extend(gate::compare(g.target.kind, &g.target.gates, &before, &measured));
        criteria.extend(lever.look(g)?);
    }
    let window = Duration::from_secs(g.target.watch_seconds);
    while failed(&criteria).is_empty() && begun.elapsed() < window {
        std::thread::sleep(LOOK_EVERY.min(window - begun.elapsed().min(window)));
        criteria.extend(lever.look(g)?.into_iter().filter(|c| !c.passed));
    }
    let list: Vec<Value> = criteria.iter().map(Criterion::to_json).collect();
    let seconds = begun.elapsed().as_secs_f64();
    g.write_json("verdict.json", &json!({"criteria": list, "watched_seconds": seconds}))?;
    let reasons = failed(&criteria);
    if reasons.is_empty() {
        Ok(Step::On(json!({"criteria": criteria.len(), "watched_seconds": seconds})))
    } else {
        Ok(Step::Back(reasons))
    }
}

fn failed(criteria: &[Criterion]) -> Vec<String> {
    criteria.iter().filter(|c| !c.passed).map(|c| format!("{}: {}", c.name, c.words)).collect()
}

/// Drives every new bucket and reads back that each was replayed.
fn coverage(g: &mut Ground<'_>) -> Result<Vec<Criterion>, ChangeError> {
    let fresh = g.new_buckets();
    let Some(largest) = fresh.last().copied() else { return Ok(Vec::new()) };
    if g.target.kind != Kind::Lockstep {
        let words = format!(
            "buckets {fresh:?} are new; this server does not tell which bucket a step took, so a \
             load at {largest} was run and nothing more is known"
        );
        gate::cover(&g.web, largest)?;
        return Ok(vec![Criterion::new("coverage", true, words)]);
    }
    (g.say)(&format!("driving every new bucket up to {largest}"));
    let mut unused = fresh.clone();
    // A prefill in between may merge two sizes: what was not reached is tried again.
    for _ in 0..3 {
        gate::cover(&g.web, largest)?;
        let info = g.web.get_json("/server_info")?;
        let buckets = info["lockstep"]["engine"]["buckets"].as_array().cloned().unwrap_or_default();
        let replays = |n: u32| {
            let name = format!("decode-{n}");
            buckets.iter().find(|b| b["bucket"] == name).and_then(|b| b["replays"].as_u64())
        };
        unused.retain(|n| replays(*n).unwrap_or(0) == 0);
        if unused.is_empty() {
            break;
        }
    }
    let words = if unused.is_empty() {
        format!("each of {fresh:?} was replayed by this load")
    } else {
        format!("{unused:?} of {fresh:?} were not reached")
    };
    Ok(vec![Criterion::new("coverage", unused.is_empty(), words)])
}
