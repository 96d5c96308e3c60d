//! Servers that read their settings at their start: what starts them is edited, and they are
//! restarted. The edited file lies in the record until the moment of the restart.

use super::lever::{Lever, Step};
use super::{Ground, units};
use crate::backup::{self, digest};
use crate::edit::{self, EditError, Syntax, Wanted, diff::unified};
use crate::fault::ChangeError;
use crate::gate::{self, Criterion};
use crate::journal::Entry as Line;
use crate::process::{self, Process};
use crate::readback;
use crate::router::{self, Entry};
use crate::target::{Launch, Target};
use crate::web::Web;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server may take to end before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// How long a server that its router sends nothing any more may take to end what it has.
const DRAIN_PATIENCE: Duration = Duration::from_secs(120);
/// How often a starting server is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The lever.
pub struct Restart;

impl Lever for Restart {
    fn files(&self, g: &Ground<'_>) -> Result<Vec<PathBuf>, ChangeError> {
        Ok(vec![launch_file(g.target, &g.wishes[0].name)?])
    }

    fn stage(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        let backup = g.backups().into_iter().next().ok_or_else(|| g.lost("the backup"))?;
        let old = backup::read(&backup.path, edit::FILE_BYTES_MAX)?;
        let new = match edited(g, &backup.path, &old) {
            Err(ChangeError::Edit { why, .. }) => return Ok(Step::Back(vec![why.to_string()])),
            other => other?,
        };
        let diff = unified(&backup.path.display().to_string(), &old, &new);
        (g.say)(diff.trim_end());
        g.write("launch.diff", diff.as_bytes())?;
        g.write("staged", &new)?;
        Ok(Step::On(json!({"path": backup.path, "sha256_before": backup.sha256,
                           "sha256_after": digest(&new)})))
    }

    fn prove(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        let staged = g.folder.join("staged");
        let text = backup::read(&staged, edit::FILE_BYTES_MAX)?;
        let says = g.journal.facts("staged").map(|f| f["sha256_after"].clone()).unwrap_or_default();
        if says != digest(&text) {
            return Ok(Step::Back(vec!["the staged file is not what was staged".into()]));
        }
        let fault = match &g.target.launch {
            Launch::Script { .. } => units::run("sh", &["-n".as_ref(), staged.as_os_str()]).err(),
            _ => None,
        };
        if let Some(e) = fault {
            return Ok(Step::Back(vec![format!("the edited file is refused: {e}")]));
        }
        if let Some(url) = &g.target.router
            && router::find(&g.web.beside(url)?, &g.target.url)?.is_none()
        {
            return Ok(Step::Back(vec![not_listed(g).to_string()]));
        }
        Ok(Step::On(json!({"file": "staged", "reads": "as asked"})))
    }

    fn flip(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        let backup = g.backups().into_iter().next().ok_or_else(|| g.lost("the backup"))?;
        let new = backup::read(&g.folder.join("staged"), edit::FILE_BYTES_MAX)?;
        let is = std::fs::read(&backup.path).map(|b| digest(&b)).unwrap_or_default();
        if is != backup.sha256 && is != digest(&new) {
            let words = "was changed by somebody else since it was copied";
            return Ok(Step::Back(vec![format!("{} {words}", backup.path.display())]));
        }
        let facts = json!({"path": backup.path, "sha256_after": digest(&new)});
        g.journal.append(&Line::Intent("flip"), facts)?;
        backup.replace(&new)?;
        (g.say)("restarting");
        let seconds = match restart(g, false) {
            Ok(seconds) => seconds,
            Err(e) => return Ok(Step::Back(vec![e.to_string()])),
        };
        let r = readback::read(&g.web, g.target)?;
        g.write_json("after_readback.json", &r.to_json())?;
        let mut reasons = Vec::new();
        for wish in &g.wishes {
            match r.value(&wish.name) {
                Some(is) if is != wish.value => reasons.push(format!(
                    "the server runs with {} {is}, {} was asked for",
                    wish.name, wish.value
                )),
                _ => {}
            }
        }
        let missing: Vec<u32> =
            g.new_buckets().into_iter().filter(|n| !r.buckets.contains(n)).collect();
        if !r.buckets.is_empty() && !missing.is_empty() {
            reasons.push(format!("buckets {missing:?} were not captured, only {:?}", r.buckets));
        }
        if !reasons.is_empty() {
            return Ok(Step::Back(reasons));
        }
        let told = g.wishes.iter().all(|w| r.value(&w.name).is_some());
        Ok(Step::On(json!({
            "downtime_seconds": seconds, "read_back": told, "buckets": r.buckets,
            "graph_bytes": r.graph_bytes, "pool_tokens": r.pool_tokens,
        })))
    }

    fn look(&self, g: &mut Ground<'_>) -> Result<Vec<Criterion>, ChangeError> {
        let (passed, words) = match g.web.get("/v1/models") {
            Ok(reply) => (reply.status == 200, format!("/v1/models answers {}", reply.status)),
            Err(e) => (false, e.to_string()),
        };
        Ok(vec![Criterion::new("answers", passed, words)])
    }

    fn keep(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError> {
        let staged = g.journal.facts("staged").cloned().unwrap_or_default();
        let path = PathBuf::from(staged["path"].as_str().unwrap_or_default());
        let is = std::fs::read(&path).map(|b| digest(&b)).unwrap_or_default();
        if staged["sha256_after"] != is {
            let words = format!("{} was changed by somebody else meanwhile", path.display());
            return Ok(Step::Back(vec![words]));
        }
        Ok(Step::On(json!({"path": path, "sha256": is})))
    }

    fn undo(&self, g: &mut Ground<'_>) -> Result<Value, ChangeError> {
        let flipped = g.journal.records().iter().any(|r| r.kind == "intent" && r.word == "flip");
        let (mut restored, mut left) = (false, Vec::new());
        for backup in g.backups().into_iter().filter(|b| !b.is_in_place()) {
            let path = backup.path.display().to_string();
            if !flipped {
                (g.say)(&format!("{path} was changed by somebody else, and is left as it is"));
                left.push(path);
                continue;
            }
            if !backup.holds(g.journal.facts("flip")) {
                // The new value may be in it, and the server must not start with that.
                let theirs = backup::read(&backup.path, edit::FILE_BYTES_MAX)?;
                g.write("found", &theirs)?;
                (g.say)(&format!(
                    "{path} was changed by somebody else after the flip: it is put back as it was \
                     copied, and what was found lies in the record (found)"
                ));
            }
            backup.restore()?;
            restored = true;
        }
        if !flipped {
            return Ok(json!({"restored": restored, "restarted": false, "left": left}));
        }
        (g.say)("restarting with the old setting");
        let seconds = restart(g, true)?;
        Ok(json!({"restored": restored, "restarted": true, "downtime_seconds": seconds}))
    }
}

/// The file whose text starts the server, and says what is wished.
///
/// # Errors
/// The target names none, or the manager of its unit does not tell.
pub fn launch_file(target: &Target, wish: &str) -> Result<PathBuf, ChangeError> {
    let none = |what: &str| ChangeError::Target {
        path: target.file.clone().unwrap_or_default(),
        what: what.into(),
        would_work: "name it in the target".into(),
    };
    match &target.launch {
        Launch::Script { path } => Ok(path.clone()),
        Launch::Systemd { file: Some(file), .. } => Ok(file.clone()),
        Launch::Systemd { unit, file: None, is_user } => units::file(unit, *is_user, wish),
        Launch::Command { .. } => target.file.clone().ok_or_else(|| none("it has no file")),
        Launch::Live | Launch::Unknown => Err(none("how the server is started is not said")),
    }
}

/// The file's text with every wish in it.
fn edited(g: &Ground<'_>, path: &Path, old: &[u8]) -> Result<Vec<u8>, ChangeError> {
    let mut text = old.to_vec();
    for wish in &g.wishes {
        let flags: Vec<&str> = wish.flags.iter().map(String::as_str).collect();
        let wanted = Wanted { spellings: &flags, program: g.target.program.as_deref() };
        let syntax = match g.target.launch {
            Launch::Systemd { .. } => Syntax::Unit,
            Launch::Command { .. } => Syntax::Toml,
            _ => Syntax::Shell,
        };
        let done = match (wish.name.strip_prefix("env."), syntax) {
            // A command's words have no variables of their own.
            (Some(name), Syntax::Toml) => {
                Err(EditError::NotFound { flag: format!("{name}="), hidden_at: None })
            }
            (Some(name), _) => edit::set_variable(&text, syntax, name, &wish.value),
            (None, Syntax::Toml) => edit::set_command(&text, &wanted, &wish.value),
            (None, _) => edit::set_flag(&text, syntax, &wanted, &wish.value),
        };
        text = done.map_err(|why| ChangeError::Edit { path: path.into(), why })?.text;
    }
    Ok(text)
}

/// Takes the server out of its router's rotation, restarts it, and puts it back. Seconds without
/// service of the server itself.
fn restart(g: &mut Ground<'_>, is_way_back: bool) -> Result<f64, ChangeError> {
    let routed = match take_out(g) {
        // The old setting comes back whether or not a router is there to be told; what was taken
        // out on the way there is put back all the same.
        Err(e) if is_way_back => {
            (g.say)(&format!("not drained: {e}"));
            let router = g.target.router.as_ref().map(|url| g.web.beside(url)).transpose()?;
            router.zip(drained(g))
        }
        other => other?,
    };
    let seconds = cycle(g)?;
    if let Some((router, entry)) = routed {
        router::put_back(&router, &entry)?;
        (g.say)(&format!("{} is in the rotation of {} again", g.target.url, router.url()));
    }
    if let Some(front) = &g.front {
        // The first real answer of a worker with one side of it comes through its router.
        let begun = Instant::now();
        while let Err(e) = gate::probe(front) {
            if begun.elapsed() > Duration::from_secs(g.target.ready_seconds) {
                return Err(e);
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
    Ok(seconds)
}

/// The router and the worker's entry there, which is taken out.
fn take_out(g: &mut Ground<'_>) -> Result<Option<(Web, Entry)>, ChangeError> {
    let target = g.target;
    let Some(url) = &target.router else { return Ok(None) };
    let router = g.web.beside(url)?;
    let known = drained(g);
    let found = match &known {
        Some(entry) => router::again(&router, entry)?,
        None => router::find(&router, &target.url)?,
    };
    let Some(mut found) = found else {
        // Taken out before a crash.
        let entry = known.ok_or_else(|| not_listed(g))?;
        return Ok(Some((router, entry)));
    };
    // One that is mute is not waited for: what it would tell is only left out of its entry.
    let hasty = g.web.hasty()?;
    let models = models(&hasty);
    let is_mute = matches!(models, Err(ChangeError::Silent { .. }));
    if let Err(e) = &models {
        (g.say)(&format!("it does not tell its models: {e}"));
    }
    found.entry.forget(&models.unwrap_or_default());
    g.journal.append(&Line::Intent("drain"), found.entry.to_json())?;
    (g.say)(&format!("draining through {url}"));
    let worker = if is_mute { &hasty } else { &g.web };
    let is_idle = router::drain(&router, worker, &found, DRAIN_PATIENCE)?;
    if !is_idle {
        (g.say)("it does not tell that it is idle; it is restarted all the same");
    }
    g.journal.append(&Line::Note("drained"), json!({"router": url, "idle": is_idle}))?;
    Ok(Some((router, found.entry)))
}

/// The entry that this change took out of rotation, or was about to.
fn drained(g: &Ground<'_>) -> Option<Entry> {
    g.journal.facts("drain").and_then(Entry::from_json)
}

/// The names of a worker's models.
fn models(worker: &Web) -> Result<Vec<String>, ChangeError> {
    let all = worker.get_json("/v1/models")?;
    let all = all["data"].as_array().into_iter().flatten();
    Ok(all.filter_map(|m| m["id"].as_str().map(str::to_owned)).collect())
}

fn not_listed(g: &Ground<'_>) -> ChangeError {
    ChangeError::Answer {
        url: g.target.router.clone().unwrap_or_default(),
        what: format!("does not have {} among its workers", g.target.url),
    }
}

/// Ends the server, starts it again and waits for a real answer. Seconds without service.
fn cycle(g: &mut Ground<'_>) -> Result<f64, ChangeError> {
    let begun = Instant::now();
    let limit = Duration::from_secs(g.target.ready_seconds);
    let mut started = None;
    if let Launch::Systemd { unit, is_user, .. } = &g.target.launch {
        units::restart(unit, *is_user, limit)?;
    } else {
        if let Some(server) = process::serving(&g.target.url) {
            server.end(false, END_PATIENCE)?;
        }
        // What this change started and what never came to listen, or does not yet.
        for earlier in process::marked(&g.folder) {
            earlier.end(false, END_PATIENCE)?;
        }
        let process = launch(g)?;
        let facts = json!({"pid": process.pid, "ticks": process.ticks});
        g.journal.append(&Line::Note("started"), facts)?;
        started = Some(process);
    }
    loop {
        match answers(g) {
            Ok(()) => return Ok(begun.elapsed().as_secs_f64()),
            Err(e) if begun.elapsed() > limit => {
                let what = format!("was not ready after {} s: {e}", limit.as_secs());
                return Err(ChangeError::Answer { url: g.target.url.clone(), what });
            }
            Err(_) if started.is_some_and(|p: Process| !p.is_alive()) => {
                let what = "ended before it was ready; its last words are in its log".into();
                return Err(ChangeError::Program {
                    program: log_of(g).display().to_string(),
                    what,
                });
            }
            Err(_) => {
                if let Launch::Systemd { unit, is_user, .. } = &g.target.launch {
                    units::look(unit, *is_user)?;
                }
                std::thread::sleep(ASK_EVERY);
            }
        }
    }
}

/// Health alone says nothing: a server is ready when it has answered something. A worker with one
/// side of a request cannot; its own check makes a token.
fn answers(g: &Ground<'_>) -> Result<(), ChangeError> {
    if g.front.is_none() {
        return gate::probe(&g.web);
    }
    let path = "/health_generate";
    let reply = g.web.get(path)?;
    let what = format!("answered {}: {}", reply.status, reply.words());
    let url = format!("{}{path}", g.target.url);
    if reply.status == 200 { Ok(()) } else { Err(ChangeError::Answer { url, what }) }
}

fn log_of(g: &Ground<'_>) -> PathBuf {
    g.target.log.clone().unwrap_or_else(|| g.folder.join("server.log"))
}

fn launch(g: &Ground<'_>) -> Result<Process, ChangeError> {
    let log = log_of(g);
    let log = std::path::absolute(&log).unwrap_or(log);
    match &g.target.launch {
        Launch::Script { path } => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
            let file = path.display().to_string();
            // A script without its bit is started as its owner would: by the shell.
            use std::os::unix::fs::PermissionsExt;
            let runs = std::fs::metadata(&path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0);
            let words = if runs { vec![file] } else { vec!["sh".into(), file] };
            process::start(&words, &folder, &log, &g.folder)
        }
        Launch::Command { folder, .. } => {
            // The words may have been edited since the target was read.
            let file = g.target.file.clone().ok_or_else(|| g.lost("the target's file"))?;
            let Launch::Command { words, .. } = Target::read(&file)?.launch else {
                return Err(g.lost("launch.command"));
            };
            let folder = folder.clone().unwrap_or_else(|| PathBuf::from("."));
            process::start(&words, &folder, &log, &g.folder)
        }
        _ => Err(g.lost("a way to start the server")),
    }
}
