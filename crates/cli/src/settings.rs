//! Settings in layers: default < lockstep.toml < LOCKSTEP_* < flag.

use crate::args::KnobFlags;
use crate::exit::{Exit, Failure};
use core::fmt;
use lockstep_change::edit::toml_fault;
use lockstep_flow::knobs::{KNOBS, Kind, Knob, KnobError};
use lockstep_flow::settings::{Settings, Source, UnknownKnob, find_or_nearest, nearest};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml_edit::{Document, Item, TableLike, Value};

/// The file that is read where `--config` names none.
pub const FILE: &str = "lockstep.toml";
/// Bytes of a settings file, at most.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Variables with the prefix that are not knobs.
const OTHER_VARIABLES: [&str; 2] = ["LOCKSTEP_LOG", "LOCKSTEP_MODELS"];

/// Why the settings do not stand.
#[derive(Debug)]
pub enum SettingsError {
    /// The file cannot be read.
    Read { path: PathBuf, why: std::io::Error },
    /// A folder, a pipe or a device where the file should be.
    NotAFile { path: PathBuf },
    /// The file is absurdly large.
    TooLarge { path: PathBuf, bytes: u64 },
    /// The file is not TOML.
    Syntax { path: PathBuf, what: String },
    /// A key that is no knob.
    Unknown { path: PathBuf, line: usize, unknown: UnknownKnob },
    /// A value of a TOML type that no knob has.
    Shape { path: PathBuf, line: usize, name: String, found: &'static str, expected: String },
    /// A bad value in the file.
    InFile { path: PathBuf, line: usize, why: KnobError },
    /// A bad value in a variable.
    InEnv { variable: String, why: KnobError },
    /// A variable that is not UTF-8.
    EnvText { variable: String },
    /// A bad value of a flag.
    InFlag { flag: &'static str, why: KnobError },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SettingsError as E;
        match self {
            E::Read { path, why } => write!(f, "{} cannot be read: {why}", path.display()),
            E::NotAFile { path } => {
                write!(f, "{} is not a file; --config takes a TOML file", path.display())
            }
            E::TooLarge { path, bytes } => write!(
                f,
                "{} has {bytes} bytes; a settings file has at most {FILE_BYTES_MAX}",
                path.display()
            ),
            E::Syntax { path, what } => write!(f, "{} is not TOML: {what}", path.display()),
            E::Unknown { path, line, unknown } => {
                write!(f, "{}:{line}: {unknown}", path.display())
            }
            E::Shape { path, line, name, found, expected } => {
                write!(f, "{}:{line}: {name} is {found}; it takes {expected}", path.display())
            }
            E::InFile { path, line, why } => write!(f, "{}:{line}: {why}", path.display()),
            E::InEnv { variable, why } => write!(f, "{variable}: {why}"),
            E::EnvText { variable } => write!(f, "{variable} is not UTF-8 text"),
            E::InFlag { flag, why } => write!(f, "--{flag}: {why}"),
        }
    }
}

impl core::error::Error for SettingsError {}

impl From<SettingsError> for Failure {
    fn from(e: SettingsError) -> Failure {
        let exit = match e {
            SettingsError::InFlag { .. } => Exit::Usage,
            _ => Exit::Settings,
        };
        Failure::new(exit, e)
    }
}

/// The variable of a knob: `LOCKSTEP_DECODE_GRAPH_MAX_BS` of `decode.graph-max-bs`.
pub fn variable(knob: &Knob) -> String {
    format!("LOCKSTEP_{}", knob.name.to_ascii_uppercase().replace(['.', '-'], "_"))
}

/// What the layers gave, and what looks like a mistake but need not be one.
#[derive(Debug)]
pub struct Loaded {
    /// One value a knob.
    pub settings: Settings,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Words for the operator.
    pub warnings: Vec<String>,
}

/// Reads every layer. `config` is `--config`; `env` gives the environment.
pub fn load(
    config: Option<&Path>,
    env: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    flags: &KnobFlags,
) -> Result<Loaded, SettingsError> {
    let mut settings = Settings::default();
    let file = config.map(Path::to_path_buf).or_else(|| {
        let here = PathBuf::from(FILE);
        here.exists().then_some(here)
    });
    if let Some(path) = &file {
        from_file(path, &mut settings)?;
    }
    let mut warnings = from_env(env, &mut settings)?;
    warnings.extend(pending(file.as_deref().unwrap_or(Path::new(FILE))));
    for (knob, written) in &flags.0 {
        settings
            .set(knob, written, Source::Flag)
            .map_err(|why| SettingsError::InFlag { flag: knob.flag, why })?;
    }
    Ok(Loaded { settings, file, warnings })
}

/// Word of a change that was being watched when the server ended, left beside the settings file
/// by whoever made it.
fn pending(file: &Path) -> Option<String> {
    let mut name = file.as_os_str().to_owned();
    name.push(".change-pending");
    let meta =
        std::fs::metadata(&name).ok().filter(|m| m.is_file() && m.len() <= FILE_BYTES_MAX)?;
    let text = std::fs::read_to_string(&name).ok().filter(|_| meta.len() > 0)?;
    let word: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(word["what"].as_str()?.to_owned())
}

fn from_file(path: &Path, settings: &mut Settings) -> Result<(), SettingsError> {
    let read = |why| SettingsError::Read { path: path.into(), why };
    let meta = std::fs::metadata(path).map_err(read)?;
    if !meta.is_file() {
        // Opening a named pipe would wait for a writer, which may never come.
        return Err(SettingsError::NotAFile { path: path.into() });
    }
    let bytes = meta.len();
    if bytes > FILE_BYTES_MAX {
        return Err(SettingsError::TooLarge { path: path.into(), bytes });
    }
    let text = std::fs::read_to_string(path).map_err(read)?;
    let document = Document::parse(text.as_str())
        .map_err(|e| SettingsError::Syntax { path: path.into(), what: toml_fault(&text, &e) })?;
    FileLayer { path, text: &text, settings }.table("", document.as_table())
}

struct FileLayer<'a> {
    path: &'a Path,
    text: &'a str,
    settings: &'a mut Settings,
}

impl FileLayer<'_> {
    fn line(&self, span: Option<Range<usize>>) -> usize {
        let start = span.map_or(0, |s| s.start).min(self.text.len());
        self.text.as_bytes()[..start].iter().filter(|b| **b == b'\n').count() + 1
    }

    fn table(&mut self, prefix: &str, table: &dyn TableLike) -> Result<(), SettingsError> {
        for (key, item) in table.iter() {
            let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            let span = table.key(key).and_then(|k| k.span()).or_else(|| item.span());
            match item.as_table_like() {
                Some(inner) if lockstep_flow::knobs::find(&name).is_none() => {
                    let known = KNOBS.iter().any(|k| k.name.starts_with(&format!("{name}.")));
                    if !known && inner.is_empty() {
                        return Err(self.unknown(&name, span));
                    }
                    self.table(&name, inner)?;
                }
                _ => self.value(&name, item, span)?,
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str, span: Option<Range<usize>>) -> SettingsError {
        let unknown = match find_or_nearest(name) {
            Err(unknown) => unknown,
            Ok(knob) => UnknownKnob { name: name.into(), nearest: Some(knob.name) },
        };
        SettingsError::Unknown { path: self.path.into(), line: self.line(span), unknown }
    }

    fn value(
        &mut self,
        name: &str,
        item: &Item,
        span: Option<Range<usize>>,
    ) -> Result<(), SettingsError> {
        let Some(knob) = lockstep_flow::knobs::find(name) else {
            return Err(self.unknown(name, span));
        };
        let line = self.line(span);
        // A number where a name belongs is a slip, and would be looked up as a host or a file.
        let is_text = knob.kind == Kind::Text;
        let written = match item.as_value() {
            Some(Value::String(s)) => s.value().clone(),
            Some(Value::Integer(i)) if !is_text => i.value().to_string(),
            Some(Value::Boolean(b)) if !is_text => b.value().to_string(),
            other => {
                return Err(SettingsError::Shape {
                    path: self.path.into(),
                    line,
                    name: name.into(),
                    found: other.map_or("a table", type_name),
                    expected: if is_text { "text in quotes".into() } else { knob.expected() },
                });
            }
        };
        self.settings.set(knob, &written, Source::File).map_err(|why| SettingsError::InFile {
            path: self.path.into(),
            line,
            why,
        })
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a fractional number",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "an array",
        Value::InlineTable(_) => "a table",
    }
}

/// Takes the knobs' variables. One with our prefix that is no knob is only warned about: the
/// environment is shared with programs that we do not know.
fn from_env(
    env: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    settings: &mut Settings,
) -> Result<Vec<String>, SettingsError> {
    let names: Vec<(String, &'static Knob)> = KNOBS.iter().map(|k| (variable(k), k)).collect();
    let mut warnings = Vec::new();
    for (name, value) in env {
        let Some(name) = name.to_str().filter(|n| n.starts_with("LOCKSTEP_")) else { continue };
        let Some((_, knob)) = names.iter().find(|(n, _)| n == name) else {
            let other = OTHER_VARIABLES.contains(&name) || name.starts_with("LOCKSTEP_TEST_");
            if !other && let Some(near) = nearest(name, names.iter().map(|(n, _)| n.as_str())) {
                warnings.push(format!("{name} sets nothing; did you mean {near}?"));
            }
            continue;
        };
        let variable = name.to_owned();
        let Some(value) = value.to_str() else { return Err(SettingsError::EnvText { variable }) };
        settings
            .set(knob, value, Source::Env)
            .map_err(|why| SettingsError::InEnv { variable, why })?;
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        let owned: Vec<(OsString, OsString)> =
            pairs.iter().map(|(k, v)| (k.into(), v.into())).collect();
        owned.into_iter()
    }

    /// Settings from a file's text alone; the file lies in a folder of its own.
    fn file(test: &str, text: &str) -> Result<Settings, String> {
        let dir = std::env::temp_dir().join(format!("lockstep-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(FILE);
        std::fs::write(&path, text).unwrap();
        let loaded = load(Some(&path), env(&[]), &KnobFlags::default());
        std::fs::remove_dir_all(&dir).unwrap();
        let text = path.display().to_string();
        loaded.map(|l| l.settings).map_err(|e| e.to_string().replace(&text, FILE))
    }

    #[test]
    fn a_file_sets_knobs_by_section_or_by_dotted_key() {
        let text = "[decode]\ngraph-max-bs = 96\n[pool]\nkv-memory = \"2GiB\"\n\
                    [sched]\nprefix-cache = false\n";
        let s = file("sections", text).unwrap();
        assert_eq!(s.number("decode.graph-max-bs"), 96);
        assert_eq!(s.number("pool.kv-memory"), 2 << 30);
        assert!(!s.flag("sched.prefix-cache"));
        assert_eq!(s.get("pool.kv-memory").source, Source::File);
        let s = file("dotted", "decode.graph-max-bs = 8\nserver = { port = 1 }\n").unwrap();
        assert_eq!((s.number("decode.graph-max-bs"), s.number("server.port")), (8, 1));
    }

    #[test]
    fn mistakes_in_a_file_name_the_line_and_the_remedy() {
        for (test, text, said) in [
            (
                "typo",
                "[decode]\n\ngraph-max-sb = 96\n",
                "lockstep.toml:3: there is no knob 'decode.graph-max-sb'; did you mean \
                 'decode.graph-max-bs'?",
            ),
            (
                "section",
                "[sched]\n[decoed]\ngraph-max-bs = 1\n",
                "lockstep.toml:3: there is no knob 'decoed.graph-max-bs'; did you mean \
                 'decode.graph-max-bs'?",
            ),
            (
                "range",
                "[decode]\ngraph-max-bs = 0\n",
                "lockstep.toml:2: decode.graph-max-bs is '0'; it takes a whole number from 1 to \
                 4096",
            ),
            (
                "shape",
                "[decode]\ngraph-max-bs = [1, 2]\n",
                "lockstep.toml:2: decode.graph-max-bs is an array; it takes a whole number from 1 \
                 to 4096",
            ),
            (
                "a-host-that-is-a-number",
                "[server]\nhost = 5\n",
                "lockstep.toml:2: server.host is a whole number; it takes text in quotes",
            ),
            (
                "a-key-that-is-a-boolean",
                "[server]\napi-key = true\n",
                "lockstep.toml:2: server.api-key is a boolean; it takes text in quotes",
            ),
            (
                "subtable",
                "[decode.graph-max-bs]\nx = 1\n",
                "lockstep.toml:1: decode.graph-max-bs is a table; it takes a whole number from 1 \
                 to 4096",
            ),
        ] {
            assert_eq!(file(test, text).unwrap_err(), said);
        }
        assert!(file("syntax", "[decode\n").unwrap_err().contains("is not TOML"));
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_default() {
        let bs = lockstep_flow::knobs::find("decode.graph-max-bs").unwrap();
        let vars = [("LOCKSTEP_DECODE_GRAPH_MAX_BS", "16"), ("LOCKSTEP_SERVER_PORT", "5")];
        let none = KnobFlags::default();
        let s = load(None, env(&vars), &none).unwrap().settings;
        assert_eq!((s.number("decode.graph-max-bs"), s.number("server.port")), (16, 5));
        let flags = KnobFlags(vec![(bs, "48".into())]);
        let s = load(None, env(&vars), &flags).unwrap().settings;
        assert_eq!(s.number("decode.graph-max-bs"), 48);
        assert_eq!(s.get("decode.graph-max-bs").source, Source::Flag);
        assert_eq!(s.get("server.port").source, Source::Env);
        assert_eq!(s.get("server.host").source, Source::Default);
    }

    #[test]
    fn a_misspelt_variable_is_warned_about() {
        let vars = [("LOCKSTEP_SERVER_PROT", "5"), ("LOCKSTEP_MODELS", "x"), ("PATH", "y")];
        let warnings = load(None, env(&vars), &KnobFlags::default()).unwrap().warnings;
        assert_eq!(
            warnings,
            ["LOCKSTEP_SERVER_PROT sets nothing; did you mean LOCKSTEP_SERVER_PORT?"]
        );
        let e = load(None, env(&[("LOCKSTEP_SERVER_PORT", "x")]), &KnobFlags::default());
        assert!(e.unwrap_err().to_string().starts_with("LOCKSTEP_SERVER_PORT: server.port is 'x'"));
    }

    #[test]
    fn a_change_that_was_not_over_is_told() {
        let dir = std::env::temp_dir().join(format!("lockstep-pending-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(FILE);
        std::fs::write(&path, "[decode]\nlanes = 1\n").unwrap();
        let pending = dir.join(format!("{FILE}.change-pending"));
        std::fs::write(&pending, r#"{"what": "a change was being watched", "record": "x"}"#)
            .unwrap();
        let warnings = load(Some(&path), env(&[]), &KnobFlags::default()).unwrap().warnings;
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(warnings, ["a change was being watched"]);
    }

    #[test]
    fn a_named_file_must_exist() {
        let missing = Path::new("no-such-folder/lockstep.toml");
        let e = load(Some(missing), env(&[]), &KnobFlags::default()).unwrap_err();
        assert!(matches!(e, SettingsError::Read { .. }));
    }
}
