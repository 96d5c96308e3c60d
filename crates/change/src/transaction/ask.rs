//! From a wish to a change that is over: begun, resumed, or rolled back by hand.

use super::restart::launch_file;
use super::steps::{back, drive, touched};
use super::{Ground, free_bytes, lever, write_file};
use crate::address::{is_here, is_same};
use crate::backup;
use crate::clock::{stamp, unix_ms};
use crate::deployment::{around, front};
use crate::fault::{ChangeError, ChangeError as E};
use crate::journal::{Journal, State};
use crate::lock::Lock;
use crate::predict::{Finding, Grounds, Prediction, Wish, predict};
use crate::process;
use crate::readback::{self, Readback};
use crate::record::{self, Broken, Record};
use crate::rules;
use crate::target::{Kind, Launch, Target};
use crate::web::{Keys, Web};
use lockstep_check::client::Outcome;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Letters of a record's folder after the time, at most.
const WHAT_MAX: usize = 60;

/// What is asked for.
pub struct Ask<'a> {
    /// The server.
    pub target: Target,
    /// Names with the values wanted.
    pub sets: Vec<(String, String)>,
    /// Why, in the operator's words.
    pub why: String,
    /// The folder of records.
    pub records: PathBuf,
    /// The server's keys.
    pub keys: Keys,
    /// Stop after the prediction.
    pub dry_run: bool,
    /// This program: version, digest, tree.
    pub build: Value,
    /// The change that this one undoes.
    pub undoes: Option<u64>,
    /// Asked once, with the prediction.
    pub confirm: &'a mut dyn FnMut(&Prediction) -> bool,
    /// Told of what goes on.
    pub say: &'a mut dyn FnMut(&str),
}

/// How it ended.
#[derive(Debug)]
pub enum Done {
    /// Nothing was touched.
    Predicted(Box<Prediction>),
    /// Kept, or rolled back.
    Ended {
        /// The record's number.
        number: u64,
        /// Its folder.
        folder: PathBuf,
        /// Kept or rolled back.
        state: State,
        /// Why it was rolled back.
        reasons: Vec<String>,
    },
}

/// Predicts, asks, and runs the transaction to its end.
///
/// # Errors
/// It was not begun, or is neither kept nor rolled back: the error says what to do.
pub fn begin(ask: Ask<'_>) -> Result<Done, ChangeError> {
    record::is_folder(&ask.records)?;
    let first = Web::first(&ask.target.url, &ask.keys)?;
    // Before anything else, also where no server answers: an earlier change may be why.
    let may_be_taken = !ask.dry_run && ask.records.is_dir();
    let taken = may_be_taken.then(|| take(&ask.records, &ask.target.url, ask.say)).transpose()?;
    let r = readback::read(&first, &ask.target)?;
    let wishes = wishes(&ask, &r)?;
    let mut target = ask.target.absolute();
    if target.kind == Kind::Lockstep && target.config.is_none() && is_here(&target.url) {
        target.config = r.raw["lockstep"]["settings_file"].as_str().map(PathBuf::from);
    }
    let grounds = grounds(&first, &target, &r, &wishes, &ask.records)?;
    let mut prediction = predict(&target, &r, &wishes, &grounds);
    if ask.dry_run {
        if let Err(unfinished) = refuse_unfinished(&ask.records, &target.url, ask.say) {
            let words = format!("{unfinished}, unless it goes on right now");
            let (id, source) = ("unfinished".into(), "the folder of records".into());
            prediction.findings.insert(0, Finding { id, words, source, blocks: true });
        }
        return Ok(Done::Predicted(Box::new(prediction)));
    }
    let reasons = prediction.blockers();
    if !reasons.is_empty() {
        return Err(ChangeError::Blocked { reasons });
    }
    let _lock = match taken {
        Some(lock) => lock,
        None => take(&ask.records, &target.url, ask.say)?,
    };
    let web = Web::new(&target.url, &ask.keys)?;
    if !(ask.confirm)(&prediction) {
        return Err(ChangeError::Unconfirmed);
    }
    let number = record::list(&ask.records)?.next_number();
    let title = title(&wishes);
    let folder = folder(&ask.records, &title)?;
    let journal = Journal::create(&folder)?;
    let front = front(&target, r.role.as_deref()).map(|url| web.beside(url)).transpose()?;
    let mut g =
        Ground { target: &target, web, front, wishes, title, folder, journal, say: ask.say };
    g.write("target.toml", target.to_toml().as_bytes())?;
    g.write_json("before.json", &r.to_json())?;
    g.write_json("prediction.json", &prediction.to_json())?;
    let before: serde_json::Map<String, Value> =
        g.wishes.iter().filter_map(|w| Some((w.name.clone(), json!(r.value(&w.name)?)))).collect();
    let wishes: Vec<Value> = g
        .wishes
        .iter()
        .map(|w| json!({"name": w.name, "flags": w.flags, "value": w.value}))
        .collect();
    let facts = json!({
        "number": number, "title": g.title, "why": ask.why, "target": target.name,
        "target_file": target.file, "url": target.url, "before": before, "wishes": wishes,
        "new_buckets": prediction.new_buckets(), "started": r.started, "build": ask.build,
        "server": {"kind": r.kind.as_str(), "version": r.version, "model": r.model, "role": r.role},
        "alarms": r.alarms, "audit_mismatches": super::live::audit_mismatches(&r.raw),
        "concurrency": concurrency(&r, &g.wishes, &prediction), "undoes": ask.undoes,
    });
    (g.say)(&format!("change {number}: {} in {}", g.title, g.folder.display()));
    g.journal.reach(State::Proposed, facts)?;
    finish(&mut g, number)
}

/// Goes on with a change that ended in the middle.
///
/// # Errors
/// As for [`begin`]; there is no such change.
pub fn resume(
    records: &Path,
    number: Option<u64>,
    keys: &Keys,
    say: &mut dyn FnMut(&str),
) -> Result<Done, ChangeError> {
    settle(records, number, keys, say, |g, fault| {
        // Flipping starts it anew. One that runs with the new setting may be busy: a single request
        // that fails takes nothing back, and its operator decides.
        let is_flipped = matches!(g.journal.state(), Some(State::Flipped | State::Watched));
        let starts = g.journal.facts("flip").is_some() && !is_flipped;
        let is_gone = |e: &E| matches!(e, E::Unreachable { outcome: Outcome::Connect { .. }, .. });
        let goes_on = |e: &E| restarts(g) && (starts || is_gone(e));
        fault.filter(|e| !goes_on(e)).map_or(Ok(()), Err)
    })
}

/// Rolls a change back that ended in the middle.
///
/// # Errors
/// The old setting could not be taken up again, or there is no such change.
pub fn roll_back(
    records: &Path,
    number: Option<u64>,
    keys: &Keys,
    say: &mut dyn FnMut(&str),
) -> Result<Done, ChangeError> {
    let wish = "an operator asked for it".to_owned();
    settle(records, number, keys, say, |g, fault| {
        let is_silent = |e: &E| matches!(e, E::Silent { .. });
        match fault.filter(|e| is_silent(e) && !restarts(g) && touched(g)) {
            Some(silent) => Err(silent),
            None => back(g, lever::of(&g.target.launch).as_ref(), &[wish]),
        }
    })
}

/// Whether a server that does not answer is started anew on the way back.
fn restarts(g: &Ground<'_>) -> bool {
    !matches!(g.target.launch, Launch::Live | Launch::Unknown)
}

/// Takes a change up that is not over, does `first`, and goes on from there to its end. `first` is
/// told why the server does not tell its state now, if it does not: where it takes connections and
/// never answers, every step would wait minutes for it.
fn settle(
    records: &Path,
    number: Option<u64>,
    keys: &Keys,
    say: &mut dyn FnMut(&str),
    first: impl FnOnce(&mut Ground<'_>, Option<ChangeError>) -> Result<(), ChangeError>,
) -> Result<Done, ChangeError> {
    let url = unfinished(records, number)?.0.url;
    let _lock = Lock::take(records, &url)?;
    // Whoever had the lock may have settled it.
    let (record, target) = unfinished(records, number)?;
    let mut g = ground(&record, &target, keys, say)?;
    (g.say)(&format!("change {}: {}, which is {}", record.number, record.title, record.state));
    let fault = readback::read(&Web::first(&g.target.url, keys)?, &target).err();
    // The command line names no server here: the one at the record's address is another one now.
    let fault = fault.map(|e| match e {
        E::Kind { url, found } => {
            E::Answer { url, what: format!("{found} answers there, and no Lockstep server") }
        }
        e => e,
    });
    first(&mut g, fault)?;
    finish(&mut g, record.number)
}

/// Runs to the end and writes the record.
fn finish(g: &mut Ground<'_>, number: u64) -> Result<Done, ChangeError> {
    let state = drive(g)?;
    let facts = g.journal.facts("rolled_back");
    let list = facts.and_then(|f| f["reasons"].as_array()).cloned().unwrap_or_default();
    let reasons = list.iter().filter_map(|r| r.as_str().map(str::to_owned)).collect();
    // The journal has it; a page that is not there takes nothing of that away.
    if let Err(why) = record::write(&g.folder) {
        (g.say)(&format!("{why}; `lockstep change show {number}` writes it again"));
    }
    Ok(Done::Ended { number, folder: g.folder.clone(), state, reasons })
}

fn wishes(ask: &Ask<'_>, r: &Readback) -> Result<Vec<Wish>, ChangeError> {
    let mut all: Vec<Wish> = Vec::new();
    for (name, value) in &ask.sets {
        let known = r.kind != Kind::Lockstep || name.starts_with("env.");
        if !known {
            let found = lockstep_flow::settings::find_or_nearest(name);
            let knob = found.map_err(|e| ChangeError::Setting {
                name: name.clone(),
                what: format!("is unknown: {e}"),
            })?;
            // There is nothing to predict of a value that cannot be.
            knob.parse(value).map_err(|e| ChangeError::Setting {
                name: name.clone(),
                what: format!("is '{value}'; it takes {}", e.expected),
            })?;
        }
        let (name, flags) = rules::spelled(r.kind, &r.version, name);
        if all.iter().any(|w| w.name == name) {
            return Err(ChangeError::Setting { name, what: "is asked for twice".into() });
        }
        all.push(Wish { name, flags, value: value.clone() });
    }
    if all.is_empty() {
        let what = "is asked for; say --set NAME=VALUE".into();
        return Err(ChangeError::Setting { name: "nothing".into(), what });
    }
    Ok(all)
}

fn grounds(
    web: &Web,
    target: &Target,
    r: &Readback,
    wishes: &[Wish],
    records: &Path,
) -> Result<Grounds, ChangeError> {
    let generation = match target.kind {
        Kind::Lockstep => {
            let live = r.raw["lockstep"]["engine"]["generation"].as_u64().unwrap_or(1);
            Some(web.get_json(&format!("/admin/generations/{live}"))?)
        }
        _ => None,
    };
    let earlier = record::list(records)?.records;
    let of_kind = earlier.iter().filter(|e| e.kind == target.kind.as_str());
    let past = of_kind.filter_map(|e| e.predicted_and_measured).collect();
    let same =
        earlier.iter().filter(|e| e.downtime_seconds.is_some() && is_same(&e.url, &target.url));
    let restarts = same.filter_map(|e| e.downtime_seconds).collect();
    let around = around(target, web);
    let holder = process::serving(&target.url).and_then(|p| process::program(p.pid));
    let file = match &target.launch {
        Launch::Live => target.config.clone(),
        Launch::Unknown => None,
        _ => wishes.first().and_then(|w| launch_file(target, &w.name).ok()),
    };
    let irreplaceable = file.and_then(|f| Some((backup::irreplaceable(&f)?.to_string(), f)));
    let free_bytes = free_bytes(target);
    Ok(Grounds { generation, free_bytes, past, restarts, around, holder, irreplaceable })
}

/// One, the old ceiling and the new one.
fn concurrency(r: &Readback, wishes: &[Wish], p: &Prediction) -> Vec<u32> {
    let running = |text: Option<&str>| text.and_then(|t| t.parse::<u32>().ok());
    const LIMITS: [&str; 4] =
        ["parallel", "max-running-requests", "max-num-seqs", "sched.max-running-requests"];
    let mut all = vec![1];
    for wish in wishes.iter().filter(|w| LIMITS.contains(&w.name.as_str())) {
        all.extend(running(r.value(&wish.name)));
        all.extend(running(Some(&wish.value)));
    }
    if p.buckets_after != p.buckets_before {
        all.extend(p.buckets_before.last());
        all.extend(p.buckets_after.last());
    }
    if all.len() == 1 {
        all.extend(r.buckets.last().copied().or(Some(4)));
    }
    all.retain(|n| (1..=512).contains(n));
    all.sort_unstable();
    all.dedup();
    all
}

fn title(wishes: &[Wish]) -> String {
    let one = |w: &Wish| format!("{}={}", w.name, w.value);
    wishes.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A new folder; its name sorts by time and says what.
fn folder(records: &Path, title: &str) -> Result<PathBuf, ChangeError> {
    let word = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let what: String = title.chars().map(word).take(WHAT_MAX).collect();
    let base = format!("{}-{what}", stamp(unix_ms()));
    for n in 1..1000 {
        let name = if n == 1 { base.clone() } else { format!("{base}-{n}") };
        let path = records.join(name);
        match std::fs::create_dir(&path) {
            Ok(()) => {
                crate::journal::sync_folder(records)?;
                return Ok(path);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(ChangeError::Write { path, why }),
        }
    }
    Err(record::Listing::default().has_no("no free name for a record", records))
}

/// Makes this the only change of a server, where none before it is unsettled.
fn take(records: &Path, url: &str, say: &mut dyn FnMut(&str)) -> Result<Lock, ChangeError> {
    let lock = Lock::take(records, url)?;
    refuse_unfinished(records, url, say)?;
    Ok(lock)
}

/// Refuses where a change of this server is not over, or does not tell whether it is. Records of
/// other servers are in nobody's way, but one that is damaged is said.
fn refuse_unfinished(
    records: &Path,
    url: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(), ChangeError> {
    let all = record::list(records)?;
    for closed in all.closed {
        say(&format!("{closed}; this change goes on"));
    }
    for broken in all.broken {
        match &broken.url {
            Some(of) if is_same(of, url) => return Err(broken.into()),
            Some(_) => {}
            None => say(&format!(
                "{}; which server it was of cannot be told, and this change goes on",
                ChangeError::from(broken)
            )),
        }
    }
    match all.records.into_iter().find(|r| !r.state.is_over() && is_same(&r.url, url)) {
        Some(r) => {
            Err(ChangeError::Unfinished { record: r.name, number: r.number, state: r.state })
        }
        None => Ok(()),
    }
}

fn unfinished(records: &Path, number: Option<u64>) -> Result<(Record, Target), ChangeError> {
    let fits = |r: &Record| !r.state.is_over() && number.is_none_or(|n| n == r.number);
    let mut all = record::list(records)?;
    let found = core::mem::take(&mut all.records).into_iter().rev().find(fits);
    let is_meant = |b: &Broken| number.is_none_or(|n| b.number == Some(n));
    if let Some(at) = all.broken.iter().position(|b| found.is_none() && is_meant(b)) {
        return Err(all.broken.swap_remove(at).into());
    }
    let asked = number
        .map_or("no change that is not over".into(), |n| format!("no change {n} that is not over"));
    let record = found.ok_or_else(|| all.has_no(asked, records))?;
    let mut target = Target::read(&record.folder.join("target.toml"))?;
    target.name.clone_from(&record.target);
    target.file.clone_from(&record.target_file);
    Ok((record, target))
}

fn ground<'a>(
    record: &Record,
    target: &'a Target,
    keys: &Keys,
    say: &'a mut dyn FnMut(&str),
) -> Result<Ground<'a>, ChangeError> {
    let journal = Journal::open(&record.folder)?;
    let facts = journal.facts("proposed").cloned().unwrap_or_default();
    let wish = |w: &Value| {
        let flags = w["flags"].as_array()?.iter().filter_map(|f| f.as_str().map(str::to_owned));
        Some(Wish {
            name: w["name"].as_str()?.into(),
            flags: flags.collect(),
            value: w["value"].as_str()?.into(),
        })
    };
    let wishes = facts["wishes"].as_array().into_iter().flatten().filter_map(wish).collect();
    let web = Web::new(&target.url, keys)?;
    let front = front(target, facts["server"]["role"].as_str());
    let front = front.map(|url| web.beside(url)).transpose()?;
    let (title, folder) = (record.title.clone(), record.folder.clone());
    Ok(Ground { target, web, front, wishes, title, folder, journal, say })
}

/// Writes a target's file where there is none.
///
/// # Errors
/// There is one, or it cannot be written.
pub fn write_target(folder: &Path, target: &Target) -> Result<PathBuf, ChangeError> {
    let path = folder.join(format!("{}.toml", target.name));
    let fault = |why| ChangeError::Write { path: path.clone(), why };
    std::fs::create_dir_all(folder).map_err(fault)?;
    if path.exists() {
        return Err(ChangeError::Target {
            path,
            what: "is there already".into(),
            would_work: "take it away first, or name another (--name)".into(),
        });
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    write_file(folder, &name, target.to_toml().as_bytes())?;
    Ok(path)
}
