//! What is changed: a server, how it is started, and what a change of it must pass.

mod gates;
mod worker;

pub use gates::{Gates, P99_FACTOR, Sessions, TOLERANCE_PERCENT};
pub use worker::Worker;

use crate::edit::toml_fault;
use crate::fault::ChangeError;
use core::ops::RangeInclusive;
use lockstep_check::client::Target as Address;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, TableLike};

/// The folder of targets.
pub const FOLDER: &str = "targets";

/// Whose server it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Ours.
    Lockstep,
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// llama-server.
    LlamaCpp,
    /// Anything that speaks the OpenAI API.
    OpenAi,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] =
        [Kind::Lockstep, Kind::Sglang, Kind::Vllm, Kind::LlamaCpp, Kind::OpenAi];

    /// The word in a target's file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Lockstep => "lockstep",
            Kind::Sglang => "sglang",
            Kind::Vllm => "vllm",
            Kind::LlamaCpp => "llama.cpp",
            Kind::OpenAi => "openai",
        }
    }

    /// Whose it is, for a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Kind::Lockstep => "Lockstep",
            Kind::Sglang => "SGLang",
            Kind::Vllm => "vLLM",
            Kind::LlamaCpp => "llama.cpp's server",
            Kind::OpenAi => "another server of the OpenAI API",
        }
    }

    /// The kind of a word.
    pub fn parse(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.as_str() == word)
    }
}

/// How a server is started, and so how a change gets into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Launch {
    /// Through Lockstep's admin routes; nothing restarts.
    Live,
    /// A systemd unit: its drop-ins are edited where they say what is run.
    Systemd {
        /// The unit's name.
        unit: String,
        /// The file that is edited; without one, the last that says what is run.
        file: Option<PathBuf>,
        /// Whether it is the calling user's own manager that runs it (`systemctl --user`).
        is_user: bool,
    },
    /// A shell script, which this command starts and whose server it ends.
    Script { path: PathBuf },
    /// A command that this command starts and ends; its words stand in the target's own file.
    Command { words: Vec<String>, folder: Option<PathBuf> },
    /// Unknown: such a target can be asked and checked, not changed.
    Unknown,
}

impl Launch {
    /// The word in a target's file.
    pub const fn method(&self) -> &'static str {
        match self {
            Launch::Live => "live",
            Launch::Systemd { .. } => "systemd",
            Launch::Script { .. } => "script",
            Launch::Command { .. } => "command",
            Launch::Unknown => "unknown",
        }
    }
}

/// A server that can be changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// The file's name without `.toml`, or the address.
    pub name: String,
    /// The target's file, where it has one.
    pub file: Option<PathBuf>,
    /// Whose it is.
    pub kind: Kind,
    /// Where requests go.
    pub url: String,
    /// The router before it, to be drained through.
    pub router: Option<String>,
    /// The other workers behind that router; those that the router names are known anyway.
    pub workers: Vec<Worker>,
    /// How it is started.
    pub launch: Launch,
    /// The program's name, where a script runs more than one.
    pub program: Option<String>,
    /// `lockstep.toml` of a Lockstep server.
    pub config: Option<PathBuf>,
    /// Seconds until it must answer after a start.
    pub ready_seconds: u64,
    /// Where its output goes, and is read back from.
    pub log: Option<PathBuf>,
    /// What a change must pass.
    pub gates: Gates,
    /// Bytes of memory that must stay free.
    pub reserve_bytes: u64,
    /// Seconds that a change is watched.
    pub watch_seconds: u64,
}

impl Target {
    /// A Lockstep server that is reached directly.
    pub fn direct(url: &str) -> Target {
        Target {
            name: url.trim_start_matches("http://").to_owned(),
            file: None,
            kind: Kind::Lockstep,
            url: url.to_owned(),
            router: None,
            workers: Vec::new(),
            launch: Launch::Live,
            program: None,
            config: None,
            ready_seconds: 300,
            log: None,
            gates: Gates::default(),
            reserve_bytes: 0,
            watch_seconds: 60,
        }
    }

    /// The same with whole paths: it may be gone on with from another folder.
    pub fn absolute(mut self) -> Target {
        let whole = |path: &mut PathBuf| {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        };
        match &mut self.launch {
            Launch::Script { path } => whole(path),
            Launch::Systemd { file: Some(file), .. } => whole(file),
            Launch::Command { folder, .. } => whole(folder.get_or_insert_with(|| ".".into())),
            Launch::Live | Launch::Systemd { .. } | Launch::Unknown => {}
        }
        self.log.as_mut().map(whole);
        self.config.as_mut().map(whole);
        self
    }

    /// Reads a target's file.
    ///
    /// # Errors
    /// It is no TOML, has a key that nobody reads, or a value that does not fit.
    pub fn read(path: &Path) -> Result<Target, ChangeError> {
        let text = std::fs::read_to_string(path)
            .map_err(|why| ChangeError::Read { path: path.into(), why })?;
        let fault = |what: String| ChangeError::Target {
            path: path.into(),
            what,
            would_work: "`lockstep change init` writes one to begin with".into(),
        };
        let document: DocumentMut = text.parse().map_err(|e| fault(toml_fault(&text, &e)))?;
        let file = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut target = Target { name, file: Some(file), ..Target::direct("") };
        let mut reader = Reader {
            target: &mut target,
            method: String::new(),
            words: Vec::new(),
            is_user: false,
        };
        let root = document.as_table();
        reader.table("", root).map_err(fault)?;
        reader.finish().map_err(fault)?;
        Ok(target)
    }
}

struct Reader<'a> {
    target: &'a mut Target,
    method: String,
    words: Vec<(String, String)>,
    is_user: bool,
}

impl Reader<'_> {
    fn table(&mut self, prefix: &str, table: &dyn TableLike) -> Result<(), String> {
        for (key, item) in table.iter() {
            let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            match item.as_table_like() {
                Some(inner) if prefix.is_empty() => self.table(&name, inner)?,
                _ => self.key(&name, item)?,
            }
        }
        Ok(())
    }

    fn key(&mut self, name: &str, item: &Item) -> Result<(), String> {
        let t = &mut *self.target;
        match name {
            "kind" => {
                let word = text(name, item)?;
                t.kind = Kind::parse(&word).ok_or_else(|| {
                    let all: Vec<&str> = Kind::ALL.iter().map(|k| k.as_str()).collect();
                    format!("kind is '{word}'; it takes {}", all.join(", "))
                })?;
            }
            "url" => t.url = url(name, item)?,
            "router" => t.router = Some(url(name, item)?),
            "workers" => t.workers = worker::read(item)?,
            "config" => t.config = Some(text(name, item)?.into()),
            "launch.method" => self.method = text(name, item)?,
            "launch.program" => t.program = Some(text(name, item)?),
            "launch.command" => {
                let words = words(name, item)?;
                if words.is_empty() {
                    return Err("launch.command takes a list of words, the program first".into());
                }
                t.launch = Launch::Command { words, folder: None };
            }
            "launch.user" => {
                self.is_user = item.as_bool().ok_or("launch.user takes true or false")?;
            }
            "launch.path" | "launch.unit" | "launch.folder" => {
                self.words.push((name.to_owned(), text(name, item)?));
            }
            "ready.seconds" => t.ready_seconds = count(name, item, 86_400)?,
            "ready.log" => t.log = Some(text(name, item)?.into()),
            "limits.reserve-bytes" => t.reserve_bytes = count(name, item, 1 << 50)?,
            "watch.seconds" => t.watch_seconds = count(name, item, 86_400)?,
            other if t.gates.key(other, item)? => {}
            other => return Err(format!("'{other}' is no key of a target")),
        }
        Ok(())
    }

    fn finish(self) -> Result<(), String> {
        let word = |name: &str| self.words.iter().find(|(n, _)| n == name).map(|(_, w)| w.clone());
        let needs = |name: &str| {
            word(name).ok_or_else(|| format!("launch.method '{}' needs {name}", self.method))
        };
        let t = self.target;
        let folder = word("launch.folder").map(PathBuf::from);
        t.launch = match (self.method.as_str(), std::mem::replace(&mut t.launch, Launch::Unknown)) {
            ("live", _) if t.kind == Kind::Lockstep => Launch::Live,
            ("live", _) => return Err("only Lockstep servers are changed live".into()),
            ("systemd", _) => Launch::Systemd {
                unit: needs("launch.unit")?,
                file: word("launch.path").map(PathBuf::from),
                is_user: self.is_user,
            },
            ("script", _) => Launch::Script { path: needs("launch.path")?.into() },
            ("command", Launch::Command { words, .. }) => Launch::Command { words, folder },
            ("command", _) => return Err("launch.method 'command' needs launch.command".into()),
            ("unknown" | "", _) => Launch::Unknown,
            (other, _) => {
                return Err(format!(
                    "launch.method is '{other}'; it takes live, systemd, script, command, unknown"
                ));
            }
        };
        if t.url.is_empty() {
            return Err("url is missing".into());
        }
        Ok(())
    }
}

fn text(name: &str, item: &Item) -> Result<String, String> {
    let text = item.as_str().filter(|t| !t.is_empty());
    text.map(str::to_owned).ok_or_else(|| format!("{name} takes text"))
}

/// An address, as the client reads it.
fn url(name: &str, item: &Item) -> Result<String, String> {
    let url = text(name, item)?;
    Address::parse(&url).map_err(|e| format!("{name}: {e}"))?;
    Ok(url)
}

fn count(name: &str, item: &Item, max: u64) -> Result<u64, String> {
    let n = item.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|n| *n <= max);
    n.ok_or_else(|| format!("{name} takes a whole number from 0 to {max}"))
}

fn counts(name: &str, item: &Item) -> Result<Vec<u32>, String> {
    let wrong = || format!("{name} takes a list of whole numbers from 1 to 4096");
    let list = item.as_array().ok_or_else(wrong)?;
    let one = |v: &toml_edit::Value| {
        v.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=4096).contains(n))
    };
    list.iter().map(one).collect::<Option<Vec<u32>>>().ok_or_else(wrong)
}

fn words(name: &str, item: &Item) -> Result<Vec<String>, String> {
    let list = item.as_array().map(|a| a.iter().map(|v| v.as_str().map(str::to_owned)));
    let list = list.and_then(Iterator::collect::<Option<Vec<String>>>);
    list.ok_or_else(|| format!("{name} takes a list of words"))
}

fn number(name: &str, item: &Item, range: RangeInclusive<f64>) -> Result<f64, String> {
    let n = item.as_float().or_else(|| item.as_integer().map(|n| n as f64));
    let n = n.filter(|n| range.contains(n));
    n.ok_or_else(|| format!("{name} takes a number from {} to {}", range.start(), range.end()))
}

impl Target {
    /// The target as a file to begin with, every gate written out.
    pub fn to_toml(&self) -> String {
        let mut d = DocumentMut::new();
        let text = |t: &str| toml_edit::value(t);
        d["kind"] = text(self.kind.as_str());
        d["url"] = text(&self.url);
        if let Some(router) = &self.router {
            d["router"] = text(router);
        }
        if let Some(config) = &self.config {
            d["config"] = text(&config.display().to_string());
        }
        if !self.workers.is_empty() {
            d["workers"] = worker::tables(&self.workers);
        }
        let mut launch = toml_edit::Table::new();
        launch["method"] = text(self.launch.method());
        match &self.launch {
            Launch::Systemd { unit, file, is_user } => {
                launch["unit"] = text(unit);
                if *is_user {
                    launch["user"] = toml_edit::value(true);
                }
                if let Some(file) = file {
                    launch["path"] = text(&file.display().to_string());
                }
            }
            Launch::Script { path } => launch["path"] = text(&path.display().to_string()),
            Launch::Command { words, folder } => {
                let words: toml_edit::Array = words.iter().map(String::as_str).collect();
                launch["command"] = toml_edit::value(words);
                if let Some(folder) = folder {
                    launch["folder"] = text(&folder.display().to_string());
                }
            }
            Launch::Live | Launch::Unknown => {}
        }
        if let Some(program) = &self.program {
            launch["program"] = text(program);
        }
        d["launch"] = Item::Table(launch);
        let mut ready = toml_edit::Table::new();
        ready["seconds"] = toml_edit::value(self.ready_seconds as i64);
        if let Some(log) = &self.log {
            ready["log"] = text(&log.display().to_string());
        }
        d["ready"] = Item::Table(ready);
        let (gates, check) = self.gates.to_tables();
        d["gates"] = Item::Table(gates);
        d["check"] = Item::Table(check);
        if self.reserve_bytes > 0 {
            let mut limits = toml_edit::Table::new();
            limits["reserve-bytes"] = toml_edit::value(self.reserve_bytes as i64);
            d["limits"] = Item::Table(limits);
        }
        let mut watch = toml_edit::Table::new();
        watch["seconds"] = toml_edit::value(self.watch_seconds as i64);
        d["watch"] = Item::Table(watch);
        d.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    fn read(test: &str, text: &str) -> Result<Target, String> {
        let path = folder(test).join("llama.toml");
        std::fs::write(&path, text).unwrap();
        Target::read(&path).map_err(|e| e.to_string())
    }

    #[test]
    fn a_target_is_read_back_as_it_was_written() {
        let target = Target {
            name: "llama".into(),
            kind: Kind::LlamaCpp,
            launch: Launch::Script { path: "serve.sh".into() },
            program: Some("llama-server".into()),
            log: Some("serve.log".into()),
            router: Some("http://127.0.0.1:30000".into()),
            workers: vec![
                Worker { url: "http://127.0.0.1:8081".into(), role: Some("prefill".into()) },
                Worker { url: "http://127.0.0.1:8082".into(), role: None },
            ],
            gates: Gates {
                concurrency: vec![1, 16],
                // A gain is asked for.
                tolerance_percent: -4900.0,
                check: Sessions { sessions: Some(8), ..Sessions::default() },
                ..Gates::default()
            },
            ..Target::direct("http://127.0.0.1:8080")
        };
        let back = read("target-back", &target.to_toml()).unwrap();
        assert_eq!(Target { file: None, ..back }, target);
    }

    #[test]
    fn a_mistake_is_named() {
        let said = |text: &str| read("target-bad", text).unwrap_err();
        assert!(said("kind = \"lama\"\n").contains("it takes lockstep, sglang, vllm, llama.cpp"));
        assert!(
            said("kind = \"vllm\"\nurl = \"a:1\"\n[launch]\nmethod = \"live\"\n").contains("only")
        );
        let kinds = "url = \"a:1\"\n[check]\nkinds = [\"song\"]\n";
        assert!(said(kinds).contains("a list of report, lookup, echo, list"));
        assert!(said("url = \"a:1\"\n[check]\nsessions = 0\n").contains("from 1 to 4096"));
        assert!(said("url = \"a:1\"\n[gate]\nrounds = 1\n").contains("'gate.rounds' is no key"));
        assert!(said("url = \"a:1\"\n[launch]\nmethod = \"script\"\n").contains("launch.path"));
        assert!(said("[launch]\nmethod = \"unknown\"\n").contains("url is missing"));
        assert!(said("url = \"u:secret@a:1\"\n").contains("url: '...@a:1' has a user"));
        assert!(said("url = \"a:1\"\nrouter = \"https://a\"\n").contains("router: "));
        let workers = |text: &str| said(&format!("url = \"a:1\"\n{text}"));
        assert!(workers("workers = [1]\n").contains("workers takes tables"));
        assert!(workers("[[workers]]\nrole = \"decode\"\n").contains("workers.url is missing"));
        assert!(workers("workers = [{url = \"a\", role = \"x\"}]\n").contains("prefill, decode"));
        assert!(workers("[[workers]]\nurl = \"a\"\nprot = 1\n").contains("'workers.prot' is no"));
    }
}
