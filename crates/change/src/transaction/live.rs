//! Our own server, live: a second generation beside the first, through the admin routes.

use super::Ground;
use super::lever::{Lever, Step};
use crate::backup::{self, Backup, digest};
use crate::edit::{self, TomlValue, diff::unified};
use crate::fault::ChangeError;
use crate::gate::Criterion;
use crate::journal::Entry;
use crate::readback;
use lockstep_flow::knobs::{self, Value as KnobValue};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ALL: &str = "/admin/generations";
/// How often a generation on its way is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longest time that building and verifying a generation may take.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The lever.
pub struct Live;

/// The word that stands beside a settings file while a change of it is watched.
pub const PENDING_SUFFIX: &str = ".change-pending";

/// The settings file as it was just before the new value was written to it: the backup, and what
/// somebody else may have written since.
const CONFIG_BEFORE: &str = "config.before";

/// Where `serve` looks for word of a change that was not over: beside its settings file.
pub fn pending_file(config: &std::path::Path) -> PathBuf {
    let mut name = config.as_os_str().to_owned();
    name.push(PENDING_SUFFIX);
    name.into()
}

fn one(g: &Ground<'_>, number: u64) -> Result<Value, ChangeError> {
    g.web.get_json(&format!("{ALL}/{number}"))
}

/// The file that the next start of this server reads, where it is on this machine.
fn config(g: &Ground<'_>) -> Option<PathBuf> {
    g.target.config.clone()
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

/// The newest generation of a list.
fn newest(all: &Value) -> u64 {
    all["data"].as_array().and_then(|d| d.last()).map_or(0, |r| number(&r["generation"]))
}

fn knobs_of(g: &Ground<'_>) -> Value {
    let typed = |written: &str, name: &str| match knobs::find(name).map(|k| k.parse(written)) {
        Some(Ok(KnobValue::Number(n))) => json!(n),
        Some(Ok(KnobValue::Flag(b))) => json!(b),
        _ => json!(written),
    };
    g.wishes
        .iter()
        .map(|w| (w.name.clone(), typed(&w.value, &w.name)))
        .collect::<Map<_, _>>()
        .into()
}

/// The generation that was staged by this change: from the journal, or from the server where the
/// crash came in between.
fn staged(g: &Ground<'_>) -> Result<Option<u64>, ChangeError> {
    if let Some(n) = g.journal.facts("staged").and_then(|f| f["generation"].as_u64()) {
        return Ok(Some(n));
    }
    let Some(before) = g.journal.facts("stage").map(|f| number(&f["newest"])) else {
        return Ok(None);
    };
    let all = g.web.get_json(ALL)?;
    let wanted = knobs_of(g);
    let ours = |r: &&Value| {
        number(&r["generation"]) > before
            && wanted.as_object().is_some_and(|w| w.iter().all(|(k, v)| r["knobs"][k] == *v))
    };
    Ok(all["data"].as_array().into_iter().flatten().find(ours).map(|r| number(&r["generation"])))
}

impl Lever for Live {
    fn files(&self, g: &Ground<'_>) -> Result<Vec<PathBuf>, ChangeError> {
        Ok(config(g).into_iter().collect())
    }

    fn stage(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        if let Some(words) = restarted(g)? {
            return Ok(Step::Back(vec![words]));
        }
        if let Some(n) = staged(g)? {
            return Ok(Step::On(json!({"generation": n, "old": live(g)?})));
        }
        let all = g.web.get_json(ALL)?;
        let newest = newest(&all);
        let old = number(&all["live"]);
        g.journal.append(&Entry::Intent("stage"), json!({"newest": newest, "old": old}))?;
        let report = match g.web.post_json(ALL, &json!({"knobs": knobs_of(g)})) {
            Err(ChangeError::Answer { what, .. }) => {
                return Ok(Step::Back(vec![format!("the server does not stage it: {what}")]));
            }
            other => other?,
        };
        Ok(Step::On(json!({"generation": number(&report["generation"]), "old": old})))
    }

    fn prove(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        if let Some(words) = restarted(g)? {
            return Ok(Step::Back(vec![words]));
        }
        let n = staged(g)?.ok_or_else(|| g.lost("the staged generation"))?;
        let begun = Instant::now();
        let mut said = String::new();
        let report = loop {
            let report = one(g, n)?;
            let state = report["state"].as_str().unwrap_or_default().to_owned();
            if state != said {
                (g.say)(&format!("generation {n} is {state}"));
                said.clone_from(&state);
            }
            match state.as_str() {
                "verified" | "live" => break report,
                "rejected" | "retired" => {
                    let why = report["reason"].as_str().unwrap_or("no reason given");
                    return Ok(Step::Back(vec![format!("generation {n} was {state}: {why}")]));
                }
                _ if begun.elapsed() > BUILD_LIMIT => {
                    return Ok(Step::Back(vec![format!("generation {n} is still {state}")]));
                }
                _ => std::thread::sleep(LOOK_EVERY),
            }
        };
        let evidence = report["evidence"].clone();
        let mut reasons = Vec::new();
        if evidence["differing_bits"] != 0 {
            reasons.push(format!("{} bits differ in its canary steps", evidence["differing_bits"]));
        }
        let shown = |size: u32| {
            report["buckets"].as_array().into_iter().flatten().any(|b| {
                b["bucket"] == format!("decode-{size}")
                    && b["captured"] == true
                    && number(&b["replays"]) > 0
                    && number(&b["compared_bits"]) > 0
            })
        };
        let unshown: Vec<u32> = g.new_buckets().into_iter().filter(|n| !shown(*n)).collect();
        if !unshown.is_empty() {
            reasons.push(format!("buckets {unshown:?} were not captured and compared"));
        }
        g.write_json("evidence.json", &report)?;
        let free = super::free_bytes(g.target);
        if let Some(free) = free.filter(|f| *f < g.target.reserve_bytes) {
            let reserve = g.target.reserve_bytes;
            reasons.push(format!("{free} bytes are free with both there; {reserve} must stay"));
        }
        if !reasons.is_empty() {
            return Ok(Step::Back(reasons));
        }
        let taken = number(&report["arena_bytes"]) + number(&report["shadow_bytes"]);
        Ok(Step::On(json!({"generation": n, "evidence": evidence, "staging_bytes": taken})))
    }

    fn flip(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        if let Some(words) = restarted(g)? {
            return Ok(Step::Back(vec![words]));
        }
        let n = staged(g)?.ok_or_else(|| g.lost("the staged generation"))?;
        let old = g.journal.facts("staged").map_or(0, |f| number(&f["old"]));
        let watch = g.target.watch_seconds;
        g.journal.append(&Entry::Intent("flip"), json!({"from": old, "to": n}))?;
        if let Some(config) = config(g) {
            let what = format!(
                "a change ({}) was being watched; it is not kept yet, so this start has the old \
                 setting; `lockstep change resume` or `lockstep change rollback` settles it",
                g.title
            );
            let word = json!({"what": what, "record": g.folder}).to_string();
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            backup::put(&pending_file(&config), word.as_bytes(), 0o644, owner)?;
        }
        if live(g)? != n {
            let path = format!("{ALL}/{n}/flip");
            match g.web.post_json(&path, &json!({"watch_seconds": watch})) {
                Err(ChangeError::Answer { what, .. }) => {
                    return Ok(Step::Back(vec![format!("the server does not flip: {what}")]));
                }
                other => other?,
            };
        }
        let gap = one(g, n)?["gap"].clone();
        Ok(Step::On(json!({"generation": n, "watch_seconds": watch, "gap": gap})))
    }

    fn look(&self, g: &mut Ground<'_>) -> Result<Vec<Criterion>, ChangeError> {
        let n = staged(g)?.ok_or_else(|| g.lost("the staged generation"))?;
        if let Some(words) = restarted(g)? {
            return Ok(vec![Criterion::new("restart", false, words)]);
        }
        let report = one(g, n)?;
        let state = report["state"].as_str().unwrap_or_default();
        let why = report["reason"].as_str().map_or(String::new(), |w| format!(": {w}"));
        let is_live =
            Criterion::new("live", state == "live", format!("generation {n} is {state}{why}"));
        let info = g.web.get_json("/server_info")?;
        Ok(vec![is_live, alarms(g, &info)])
    }

    fn keep(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        let n = staged(g)?.ok_or_else(|| g.lost("the staged generation"))?;
        if let Some(words) = restarted(g)? {
            return Ok(Step::Back(vec![words]));
        }
        let written = write_config(g)?;
        let old = g.journal.facts("staged").map_or(0, |f| number(&f["old"]));
        let begun = Instant::now();
        loop {
            let state = one(g, old)?["state"].as_str().unwrap_or_default().to_owned();
            if state != "draining" {
                break;
            }
            match g.web.post_json(&format!("{ALL}/{old}/retire"), &json!({})) {
                Ok(_) => break,
                // The watch window of the server closes a moment after ours.
                Err(e @ ChangeError::Answer { .. })
                    if begun.elapsed() > Duration::from_secs(30) =>
                {
                    return Err(e);
                }
                Err(ChangeError::Answer { .. }) => std::thread::sleep(LOOK_EVERY),
                Err(e) => return Err(e),
            }
        }
        forget_pending(g);
        Ok(Step::On(json!({"generation": n, "retired": old, "config": written})))
    }

    fn undo(&self, g: &mut Ground<'_>) -> Result<Value, ChangeError> {
        let left = restore_config(g)?;
        let words = restarted(g)?;
        if words.is_none()
            && let Some(n) = staged(g)?
        {
            take_back(g, n)?;
        }
        forget_pending(g);
        Ok(json!({"restarted": words, "live": live(g)?, "left": left}))
    }
}

/// What is raised beside the alarms that stood before the change; one that stays raised may hide a
/// finding of the audit, so those are counted.
fn alarms(g: &Ground<'_>, info: &Value) -> Criterion {
    let proposed = g.journal.facts("proposed").cloned().unwrap_or_default();
    let stood =
        |name: &str| proposed["alarms"].as_array().is_some_and(|a| a.contains(&json!(name)));
    let new = readback::alarms(info).filter(|(name, _)| !stood(name));
    let mut acts: Vec<String> = new.map(|(name, words)| format!("{name}: {words}")).collect();
    let (was, is) = (number(&proposed["audit_mismatches"]), audit_mismatches(info));
    if is > was {
        acts.push(format!("the audit has {is} findings, and had {was} before the change"));
    }
    let words = if acts.is_empty() { "none is raised".into() } else { acts.join("; ") };
    Criterion::new("alarms", acts.is_empty(), words)
}

/// Findings of the audit so far, from `/server_info`.
pub fn audit_mismatches(info: &Value) -> u64 {
    number(&info["lockstep"]["engine"]["counters"]["audit_mismatches"])
}

/// Puts the settings file back where this change wrote what stands in it. Files that hold what
/// somebody else wrote since they were copied are left alone; their names come back.
fn restore_config(g: &mut Ground<'_>) -> Result<Vec<PathBuf>, ChangeError> {
    let mut left = Vec::new();
    for backup in g.backups().into_iter().filter(|b| !b.is_in_place()) {
        if backup.holds(g.journal.facts("keep")) {
            match std::fs::read(g.folder.join(CONFIG_BEFORE)) {
                Ok(bytes) => backup.replace(&bytes)?,
                Err(_) => backup.restore()?,
            }
            if backup.is_in_place() {
                continue;
            }
        }
        (g.say)(&format!(
            "{} was changed by somebody else meanwhile, and is left as it is",
            backup.path.display()
        ));
        left.push(backup.path);
    }
    Ok(left)
}

fn live(g: &Ground<'_>) -> Result<u64, ChangeError> {
    Ok(number(&g.web.get_json(ALL)?["live"]))
}

/// Flips back from a generation and gives its memory back, from whatever state it is in.
fn take_back(g: &mut Ground<'_>, n: u64) -> Result<(), ChangeError> {
    let old = g.journal.facts("stage").map_or(0, |f| number(&f["old"]));
    let begun = Instant::now();
    loop {
        let state = one(g, n)?["state"].as_str().unwrap_or_default().to_owned();
        let path = match state.as_str() {
            "retired" | "rejected" => return Ok(()),
            "live" => format!("{ALL}/{old}/flip"),
            "verified" | "draining" => format!("{ALL}/{n}/retire"),
            _ if begun.elapsed() > BUILD_LIMIT => return Err(g.lost("the end of its building")),
            _ => {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
        };
        match g.web.post_json(&path, &json!({})) {
            Ok(_) => {}
            Err(e @ ChangeError::Answer { .. }) if begun.elapsed() > Duration::from_secs(60) => {
                return Err(e);
            }
            // It went on by itself in between, or the window is about to close.
            Err(ChangeError::Answer { .. }) => std::thread::sleep(LOOK_EVERY),
            Err(e) => return Err(e),
        }
    }
}

/// Words where the server is another process than the one that was changed.
fn restarted(g: &Ground<'_>) -> Result<Option<String>, ChangeError> {
    let was = g.journal.facts("proposed").and_then(|f| f["started"].as_u64());
    let is = g.web.get_json("/server_info")?["startup_time"].as_u64();
    // Starts are told in seconds: one in the same second has no such generation yet.
    let staged = g.journal.facts("staged").map_or(0, |f| number(&f["generation"]));
    let newest = newest(&g.web.get_json(ALL)?);
    Ok((was != is || newest < staged).then(|| {
        "the server was restarted while the change was on its way: it came up with the old \
         setting, since nothing is written to its settings file before a change is kept"
            .to_owned()
    }))
}

fn forget_pending(g: &Ground<'_>) {
    if let Some(config) = config(g) {
        // A word that stays says too much, and is no reason to fail.
        let _ = std::fs::remove_file(pending_file(&config));
    }
}

/// Writes what is kept to the settings file that the next start reads.
fn write_config(g: &mut Ground<'_>) -> Result<Value, ChangeError> {
    let Some(backup) = g.backups().into_iter().next() else {
        let why = "the server does not tell its settings file, or is on another machine";
        return Ok(json!({"written": false, "why": why}));
    };
    let path = backup.path.clone();
    // What somebody else wrote there since it was copied stays; only the knob's own value changes.
    let old = if path.exists() { backup::read(&path, edit::FILE_BYTES_MAX)? } else { Vec::new() };
    let mut new = old.clone();
    for wish in &g.wishes {
        let value = match knobs::find(&wish.name).map(|k| k.parse(&wish.value)) {
            Some(Ok(KnobValue::Number(_))) if wish.value.bytes().all(|b| b.is_ascii_digit()) => {
                TomlValue::Number(wish.value.parse().unwrap_or(u64::MAX))
            }
            Some(Ok(KnobValue::Flag(b))) => TomlValue::Flag(b),
            _ => TomlValue::Text(wish.value.clone()),
        };
        let edited = edit::set_toml(&new, &wish.name, &value);
        new = edited.map_err(|why| ChangeError::Edit { path: path.clone(), why })?.text;
    }
    if new != old {
        let shown = unified(&path.display().to_string(), &old, &new);
        g.write("config.diff", shown.as_bytes())?;
        if path.exists() {
            g.write(CONFIG_BEFORE, &old)?;
        }
        let facts = json!({"path": path, "sha256_after": digest(&new)});
        g.journal.append(&Entry::Intent("keep"), facts)?;
        Backup::replace(&backup, &new)?;
    }
    Ok(json!({"written": true, "path": path}))
}
