//! The state machine's driver: one step a state, back where a step says so or cannot be taken.

use super::Ground;
use super::lever::{self, Lever, Step};
use crate::backup::{self, Backup};
use crate::clock::unix_ms;
use crate::edit::FILE_BYTES_MAX;
use crate::fault::ChangeError;
use crate::gate::{self, Criterion, Load, Measured};
use crate::journal::{Entry, State};
use crate::readback;
use lockstep_check::bench;
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

/// Whether anything was done that a way back has to undo.
pub fn touched(g: &Ground<'_>) -> bool {
    let touches = |r: &crate::journal::Record| r.kind == "intent" && r.word != "roll_back";
    g.journal.records().iter().any(touches)
}

/// Takes the old setting up again and looks whether it is so.
pub fn back(g: &mut Ground<'_>, lever: &dyn Lever, reasons: &[String]) -> Result<(), ChangeError> {
    for reason in reasons {
        (g.say)(&format!("rolling back: {reason}"));
    }
    if !touched(g) {
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
    let verified = verify_back(g, &facts)?;
    (g.say)("rolled back, and verified");
    let facts = json!({"reasons": reasons, "undo": facts, "verified": verified});
    g.journal.reach(State::RolledBack, facts)
}

/// Reads back that the old settings run, that files are as they were but for those that somebody
/// else has changed since, and that answers are too.
fn verify_back(g: &mut Ground<'_>, undone: &Value) -> Result<Value, ChangeError> {
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
    let left: Vec<&str> =
        undone["left"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_left = |b: &Backup| left.iter().any(|l| b.path.as_os_str() == *l);
    if let Some(b) = g.backups().iter().find(|b| !b.is_in_place() && !is_left(b)) {
        return Err(ChangeError::Damaged { path: b.path.clone() });
    }
    let files = if left.is_empty() { json!(true) } else { json!({"left": left}) };
    let baseline = g.read_json("baseline.json").and_then(|v| Measured::from_json(&v));
    let Some(before) = baseline else { return Ok(json!({"settings": true, "files": files})) };
    let after = Measured {
        alone: gate::sample(g.requests(), g.target.gates.tokens)?,
        ..Measured::default()
    };
    let before = Measured { points: Vec::new(), ..before };
    let all = gate::compare(g.target.kind, &g.target.gates, &before, &after);
    match all.iter().find(|c| !c.passed) {
        Some(c) => Err(ChangeError::Answer { url: g.target.url.clone(), what: c.words.clone() }),
        None => Ok(json!({"settings": true, "files": files, "answers": true})),
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
        State::Watched | State::Kept | State::RolledBack | State::Closed => {
            (State::Kept, lever.keep(g)?)
        }
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
    Load {
        concurrency,
        rounds: gates.rounds,
        repeats: gates.repeats,
        input: gates.input,
        tokens: gates.tokens,
        timeout_seconds: gates.check.timeout_seconds,
        seed: unix_ms(),
    }
}

/// Measures the load and keeps it in the record: `NAME.json` with the answers alone, and the bench
/// as lines and as a page.
fn measure(g: &mut Ground<'_>, name: &str, when: &str) -> Result<Measured, ChangeError> {
    let load = load(g);
    let web = g.front.as_ref().unwrap_or(&g.web);
    let measured = gate::measure(web, &load, g.say)?;
    g.write_json(&format!("{name}.json"), &measured.to_json())?;
    g.write(&format!("bench-{when}.jsonl"), measured.to_lines().as_bytes())?;
    let page = bench::page(&measured.points, &[]);
    g.write(&format!("bench-{when}.html"), page.as_bytes())?;
    Ok(measured)
}

/// The baseline, before anything is touched.
fn check(g: &mut Ground<'_>) -> Result<Step, ChangeError> {
    let concurrency = load(g).concurrency;
    (g.say)(&format!("measuring the baseline at concurrency {concurrency:?}"));
    let measured = measure(g, "baseline", "before")?;
    let (bad, why) = measured.unanswered();
    if bad > 0 {
        let words = format!(
            "{bad} requests of the baseline were not answered ({why}): put that right first"
        );
        return Ok(Step::Back(vec![words]));
    }
    Ok(Step::On(json!({"baseline": "baseline.json", "bench": "bench-before.jsonl"})))
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
        criteria.extend(corruption_gate(g)?);
    }
    if failed(&criteria).is_empty() {
        (g.say)("measuring the same load as before the change");
        let measured = measure(g, "after", "after")?;
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

/// Sessions with known answers through every new bucket; the finding is kept in the record.
fn corruption_gate(g: &mut Ground<'_>) -> Result<Vec<Criterion>, ChangeError> {
    let (fresh, concurrency) = (g.new_buckets(), load(g).concurrency);
    (g.say)("running the corruption gate");
    // Batches are those of the worker itself, whoever passes the requests on.
    let observed = g.front.as_ref().map(|_| g.web.url());
    let web = g.front.as_ref().unwrap_or(&g.web);
    let sessions = &g.target.gates.check;
    let found = gate::gate(web, observed, sessions, &concurrency, &fresh, g.say)?;
    g.write_json("check.json", &found.json)?;
    g.write("check.html", found.html.as_bytes())?;
    g.write("check.txt", found.summary.as_bytes())?;
    (g.say)(found.summary.trim_end());
    Ok(found.criteria)
}
