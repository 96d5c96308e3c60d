//! `lockstep change`: arguments into a change, what goes on into lines.

use crate::args::{ChangeArgs, ChangeCmd, InitArgs, RecordArgs};
use crate::exit::{Exit, Failure};
use crate::out;
use lockstep_change::discover::{Found, discover};
use lockstep_change::journal::State;
use lockstep_change::predict::Prediction;
use lockstep_change::record::{self, Broken, Closed, Listing, Record};
use lockstep_change::target::{FOLDER, Gates, Kind, Launch, Target, Worker};
use lockstep_change::transaction::{self, Ask, Done};
use lockstep_change::web::{Keys, Web};
use lockstep_change::{ChangeError, clock, readback, router};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

impl From<ChangeError> for Failure {
    fn from(e: ChangeError) -> Failure {
        let exit = match &e {
            ChangeError::Target { .. }
            | ChangeError::Setting { .. }
            | ChangeError::Address { .. }
            | ChangeError::Records { .. }
            | ChangeError::Kind { .. } => Exit::Usage,
            ChangeError::Unreachable { outcome, .. } if !outcome.is_silent() => Exit::Unwell,
            ChangeError::Unreachable { .. } | ChangeError::Silent { .. } => Exit::NoServer,
            ChangeError::Answer { .. } => Exit::Unwell,
            ChangeError::Blocked { .. }
            | ChangeError::Unconfirmed
            | ChangeError::Locked { .. }
            | ChangeError::Unfinished { .. }
            | ChangeError::Broken { .. }
            | ChangeError::NoRecord { .. } => Exit::NotChanged,
            _ => Exit::Unexpected,
        };
        Failure::new(exit, e)
    }
}

/// The command.
pub fn run(args: &ChangeArgs) -> Result<Exit, Failure> {
    let args = &absolute(args);
    let records = &args.records;
    match &args.command {
        Some(ChangeCmd::Init(init)) => write_target(args, init),
        Some(ChangeCmd::Log) => log(args, &record::list(records)?),
        Some(ChangeCmd::Show(r)) => show(args, r),
        Some(ChangeCmd::Undo(u)) => {
            let args = ChangeArgs { dry_run: args.dry_run || u.dry_run, ..args.clone() };
            undo(&args, &u.record)
        }
        Some(ChangeCmd::Resume(r)) => {
            let say = &mut |words: &str| say(args.json, words);
            let done =
                transaction::resume(records, r.number, &keys(args), say).map_err(unsettled)?;
            ended(args, done)
        }
        Some(ChangeCmd::Rollback(r)) => {
            let say = &mut |words: &str| say(args.json, words);
            let done = transaction::roll_back(records, r.number, &keys(args), say);
            let done = done.map_err(unsettled)?;
            ended(args, done).map(|exit| if exit == Exit::RolledBack { Exit::Done } else { exit })
        }
        Some(ChangeCmd::Close(c)) => {
            // With nothing to close, no why is asked for.
            transaction::is_there(records, c.record.as_deref())?;
            let why = args.why.as_deref().map(str::trim).filter(|w| !w.is_empty());
            let why = why.ok_or_else(|| {
                let words = "the record keeps why a change was closed; say --why TEXT";
                Failure::new(Exit::Usage, words)
            })?;
            let say = &mut |words: &str| say(args.json, words);
            ended(args, transaction::close(records, c.record.as_deref(), why, say)?)
        }
        None => begin(args, target(args)?, &args.set, None),
    }
}

/// A change that could not be settled, with what is left where that stays so.
fn unsettled(e: ChangeError) -> Failure {
    let mut failure = Failure::from(e);
    if matches!(failure.exit, Exit::NoServer | Exit::Unwell) {
        failure.message += "; where that stays so (the server is gone for good), `lockstep change \
                            close --why TEXT` ends the change and touches nothing";
    }
    failure
}

/// Records name their files by whole paths: one may be resumed from another folder.
fn absolute(args: &ChangeArgs) -> ChangeArgs {
    let mut args = args.clone();
    args.records = std::path::absolute(&args.records).unwrap_or(args.records);
    args
}

fn keys(args: &ChangeArgs) -> Keys {
    Keys { api: args.api_key.clone(), admin: args.admin_key.clone() }
}

/// The server that is meant: an address, a target's file by its name, or the only target there is.
fn target(args: &ChangeArgs) -> Result<Target, Failure> {
    let mut target = match (&args.url, &args.target) {
        (Some(url), _) => Target::direct(url),
        (None, Some(name)) => {
            let path = PathBuf::from(name);
            let by_name = Path::new(FOLDER).join(format!("{name}.toml"));
            match [path, by_name].into_iter().find(|p| p.is_file()) {
                Some(path) => Target::read(&path)?,
                None => return Err(no_target(name)),
            }
        }
        (None, None) => only_target()?,
    };
    if let Some(config) = &args.config {
        target.config = Some(std::path::absolute(config).unwrap_or_else(|_| config.clone()));
    }
    if let Some(seconds) = args.watch {
        target.watch_seconds = seconds;
    }
    gates(args, &mut target.gates);
    Ok(target)
}

/// What the command line says of the gates beats the target.
fn gates(args: &ChangeArgs, gates: &mut Gates) {
    if !args.concurrency.is_empty() {
        gates.concurrency.clone_from(&args.concurrency);
    }
    gates.tokens = args.tokens.unwrap_or(gates.tokens);
    gates.repeats = args.repeats.unwrap_or(gates.repeats);
    gates.tolerance_percent = args.tolerance.unwrap_or(gates.tolerance_percent);
    gates.p99_factor_max = args.p99_factor.unwrap_or(gates.p99_factor_max);
    let check = &mut gates.check;
    check.sessions = args.sessions.or(check.sessions);
    check.rounds = args.rounds.unwrap_or(check.rounds);
    check.tokens = args.answer_tokens.unwrap_or(check.tokens);
    check.accept_inconclusive |= args.accept_inconclusive;
}

/// Files of targets.
fn targets() -> Vec<PathBuf> {
    let files =
        std::fs::read_dir(FOLDER).into_iter().flatten().filter_map(|f| Some(f.ok()?.path()));
    let mut all: Vec<PathBuf> =
        files.filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    all.sort();
    all
}

fn names(targets: &[PathBuf]) -> String {
    let name = |p: &PathBuf| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    targets.iter().map(name).collect::<Vec<String>>().join(", ")
}

fn no_target(name: &str) -> Failure {
    let there = match names(&targets()) {
        none if none.is_empty() => "`lockstep change init` writes one".to_owned(),
        all => format!("{FOLDER}/ has {all}"),
    };
    let words =
        format!("--target '{name}': there is neither that file nor {FOLDER}/{name}.toml; {there}");
    Failure::new(Exit::Usage, words)
}

fn only_target() -> Result<Target, Failure> {
    let all = targets();
    match all.as_slice() {
        [one] => Ok(Target::read(one)?),
        [] => Ok(Target::direct("http://127.0.0.1:30001")),
        several => {
            let words = format!("{FOLDER}/ has {}; say --target NAME", names(several));
            Err(Failure::new(Exit::Usage, words))
        }
    }
}

fn begin(
    args: &ChangeArgs,
    target: Target,
    sets: &[String],
    undoes: Option<u64>,
) -> Result<Exit, Failure> {
    let pair = |set: &String| {
        let (name, value) = set.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    let pairs: Option<Vec<(String, String)>> = sets.iter().map(pair).collect();
    let wrong =
        || Failure::new(Exit::Usage, "--set takes NAME=VALUE, as in decode.graph-max-bs=96");
    let sets = pairs.filter(|p| !p.is_empty()).ok_or_else(wrong)?;
    let mut confirm = |p: &Prediction| confirm(args, p);
    let mut words = |words: &str| say(args.json, words);
    let done = transaction::begin(Ask {
        target,
        sets,
        why: args.why.clone().unwrap_or_default(),
        records: args.records.clone(),
        keys: keys(args),
        dry_run: args.dry_run,
        build: build(),
        undoes,
        confirm: &mut confirm,
        say: &mut words,
    })?;
    ended(args, done)
}

/// This program: its version, the digest of its file, the tree that it was built from.
fn build() -> Value {
    let sha256 = std::env::current_exe()
        .and_then(std::fs::read)
        .ok()
        .map(|bytes| Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect::<String>());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "sha256": sha256,
        "tree": concat!(env!("LOCKSTEP_BUILD_COMMIT"), " ", env!("LOCKSTEP_BUILD_TREE")),
    })
}

/// What goes on, as it goes on: for people on standard error, so that standard output is the
/// result alone.
fn say(json: bool, words: &str) {
    // Nobody reading it is no reason to stop a change half way.
    if json {
        out::complain(json!({ "event": "change", "words": words }));
    } else {
        out::complain(words);
    }
}

fn confirm(args: &ChangeArgs, p: &Prediction) -> bool {
    if !args.json {
        out::page(p.page().trim_end(), 10);
    }
    if args.yes {
        return true;
    }
    if !std::io::stdin().is_terminal() || args.json {
        return false;
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "go on? [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn ended(args: &ChangeArgs, done: Done) -> Result<Exit, Failure> {
    let (number, folder, state, reasons) = match done {
        Done::Predicted(p) => {
            if args.json {
                out::line(p.to_json());
            } else {
                out::page(p.page().trim_end(), 10);
            }
            return Ok(if p.blockers().is_empty() { Exit::Done } else { Exit::NotChanged });
        }
        Done::Ended { number, folder, state, reasons } => (number, folder, state, reasons),
    };
    if args.json {
        out::line(json!({"number": number, "state": state.as_str(), "reasons": reasons,
                         "record": folder}));
    } else {
        let why =
            if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        let word = match state {
            State::Kept => "kept",
            State::Closed => "closed",
            _ => "rolled back",
        };
        out::line(format_args!(
            "change {number} is {word}{why}\n{}",
            folder.join("decision.md").display()
        ));
    }
    Ok(if state == State::RolledBack { Exit::RolledBack } else { Exit::Done })
}

fn log(args: &ChangeArgs, listing: &Listing) -> Result<Exit, Failure> {
    let Listing { records: all, broken, closed } = listing;
    if args.json {
        let one = |r: &Record| {
            json!({"number": r.number, "title": r.title, "state": r.state.as_str(), "why": r.why,
                   "target": r.target, "url": r.url, "unix_ms": r.unix_ms, "reasons": r.reasons,
                   "record": r.folder})
        };
        let bad = |b: &Broken| {
            json!({"number": b.number, "title": b.title, "state": "damaged", "url": b.url,
                   "reasons": [b.what], "record": b.folder})
        };
        let unread = |c: &Closed| {
            json!({"number": null, "state": "unreadable", "reasons": [c.why.to_string()],
                   "record": c.folder})
        };
        let all = all.iter().map(one).chain(broken.iter().map(bad));
        let all = all.chain(closed.iter().map(unread));
        out::line(Value::from(all.collect::<Vec<Value>>()));
        return Ok(Exit::Done);
    }
    if all.is_empty() && broken.is_empty() && closed.is_empty() {
        out::line(format_args!("no change in {}", args.records.display()));
    }
    for r in all {
        let why = r.reasons.first().map_or(String::new(), |w| format!(": {w}"));
        let time = clock::time(r.unix_ms);
        out::line(out::harmless(&format!(
            "{:>4}  {time}  {:<11}  {}  {}{why}",
            r.number, r.state, r.target, r.title
        )));
    }
    for b in broken {
        let number = b.number.map_or("?".into(), |n| n.to_string());
        let url = b.url.as_deref().unwrap_or("of a server that cannot be told");
        out::line(out::harmless(&format!(
            "{number:>4}  {:<20}  damaged      {url}  {}: {}; `lockstep change close {} --why \
             TEXT` ends it",
            "", b.title, b.what, b.name
        )));
    }
    for c in closed {
        out::line(out::harmless(&format!("   ?  {:<20}  unreadable   {}: {}", "", c.name, c.why)));
    }
    Ok(Exit::Done)
}

fn number(args: &ChangeArgs, r: &RecordArgs) -> Result<Record, Failure> {
    match r.number {
        Some(n) => Ok(record::find(&args.records, n)?),
        None => {
            let mut all = record::list(&args.records)?;
            let newest = all.records.pop();
            Ok(newest.ok_or_else(|| all.has_no("no change", &args.records))?)
        }
    }
}

fn show(args: &ChangeArgs, r: &RecordArgs) -> Result<Exit, Failure> {
    let r = number(args, r)?;
    if args.json {
        out::line(record::whole(&r.folder)?);
        return Ok(Exit::Done);
    }
    let text = record::decision(&r.folder)?;
    // One that is not over, or that met a full disk, has no page yet.
    if let Err(why) = record::write(&r.folder) {
        crate::out::complain(format_args!("lockstep: {why}"));
    }
    out::line(text.trim_end());
    Ok(Exit::Done)
}

/// The old values as a change of its own.
fn undo(args: &ChangeArgs, r: &RecordArgs) -> Result<Exit, Failure> {
    let r = number(args, r)?;
    if r.state != State::Kept {
        let words =
            format!("change {} is {}: only one that was kept can be undone", r.number, r.state);
        return Err(Failure::new(Exit::NotChanged, words));
    }
    if r.before.is_empty() {
        let words = format!("change {} does not know what was there before", r.number);
        return Err(Failure::new(Exit::NotChanged, words));
    }
    let mut target = Target::read(&r.folder.join("target.toml"))?;
    target.name.clone_from(&r.target);
    target.file.clone_from(&r.target_file);
    if let Some(seconds) = args.watch {
        target.watch_seconds = seconds;
    }
    // Fewer buckets or slots are slower where they are full: that is what is asked for.
    gates(args, &mut target.gates);
    let sets: Vec<String> =
        r.before.iter().map(|(name, value)| format!("{name}={value}")).collect();
    begin(args, target, &sets, Some(r.number))
}

/// How the server is started, where the command line says so.
fn said(init: &InitArgs) -> Option<Found> {
    let launch = match (&init.script, &init.unit) {
        (Some(path), _) => {
            Launch::Script { path: std::path::absolute(path).unwrap_or_else(|_| path.clone()) }
        }
        (None, Some(unit)) => {
            Launch::Systemd { unit: unit.clone(), file: None, is_user: init.user }
        }
        (None, None) if !init.command.is_empty() => {
            Launch::Command { words: init.command.clone(), folder: std::env::current_dir().ok() }
        }
        (None, None) => return None,
    };
    Some(Found { launch, program: None, log: None })
}

/// The other workers of a router, as it lists them now.
fn others(web: &Web, url: &str, router: Option<&str>) -> Vec<Worker> {
    let listed = router.map(|r| web.beside(r).and_then(|r| router::workers(&r)));
    match listed {
        None => Vec::new(),
        Some(Ok(all)) => router::apart(all, url).1,
        // It is asked again before each change.
        Some(Err(e)) => {
            say(false, &format!("the router does not tell its workers: {e}"));
            Vec::new()
        }
    }
}

fn write_target(args: &ChangeArgs, init: &InitArgs) -> Result<Exit, Failure> {
    let url = args.url.clone().unwrap_or_else(|| "http://127.0.0.1:30001".into());
    let web = Web::first(&url, &keys(args))?;
    let kind = match &init.kind {
        Some(word) => Kind::parse(word).ok_or_else(|| {
            let all: Vec<&str> = Kind::ALL.iter().map(|k| k.as_str()).collect();
            Failure::new(Exit::Usage, format!("--kind is '{word}'; it takes {}", all.join(", ")))
        })?,
        None => readback::detect(&web)?,
    };
    let found = said(init).or_else(|| {
        // A Lockstep server is changed live, however it was started.
        if kind == Kind::Lockstep { None } else { discover(&url) }
    });
    let how = match (kind, found.is_some(), said(init).is_some()) {
        (Kind::Lockstep, false, _) => "live, through its admin routes",
        (_, true, false) => "as its process shows",
        (_, true, true) => "as was said",
        (_, false, _) => {
            "in a way that is not known: say it with --script, --unit, or a command after --"
        }
    };
    let live = if kind == Kind::Lockstep { Launch::Live } else { Launch::Unknown };
    let found = found.unwrap_or(Found { launch: live, program: None, log: None });
    let workers = others(&web, &url, init.router.as_deref());
    let name = init.name.clone().unwrap_or_else(|| kind.as_str().replace('.', "-"));
    let log = init.log.as_ref().map(|l| std::path::absolute(l).unwrap_or_else(|_| l.clone()));
    let target = Target {
        name,
        kind,
        launch: found.launch,
        log: log.or(found.log),
        program: init.program.clone().or(found.program),
        router: init.router.clone(),
        workers,
        ..Target::direct(&url)
    };
    let path = transaction::write_target(Path::new(FOLDER), &target)?;
    if args.json {
        out::line(json!({"target": path, "kind": kind.as_str(), "launch": target.launch.method()}));
    } else {
        out::line(format_args!(
            "{}: {}, changed by {} ({how})",
            path.display(),
            kind.words(),
            target.launch.method()
        ));
    }
    Ok(Exit::Done)
}
