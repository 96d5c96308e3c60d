//! One place for a knob: name, type, default, bounds, doc and what it shapes.
//!
//! The command line, `lockstep.toml`, `/server_info`, the docs and the admin routes all read
//! [`KNOBS`]; a knob that is not in here does not exist.

use core::fmt;

/// What must be rebuilt or drained when a knob changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shapes {
    /// Shapes neither plans nor state.
    Nothing,
    /// Changes plans: needs a new generation, which can be flipped live.
    Plan,
    /// Changes where state lies: needs a restart.
    StateLayout,
    /// Changes bits: needs a restart.
    Numerics,
    /// Fixed for the life of the process.
    Process,
}

/// The type and bounds of a knob's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// A whole number in `min..=max`.
    Count { min: u64, max: u64 },
    /// Bytes, written as `4GiB`, `512MiB` or a plain number.
    Bytes { min: u64, max: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Free text.
    Text,
    /// `true` or `false`.
    Flag,
}

/// A knob as the operator sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Knob {
    /// `section.name-with-dashes`, as in `lockstep.toml` and the admin routes.
    pub name: &'static str,
    /// The flag of `serve`, without dashes.
    pub flag: &'static str,
    /// Type and bounds.
    pub kind: Kind,
    /// The default, in the same notation; empty where there is none.
    pub default: &'static str,
    /// What it shapes.
    pub shapes: Shapes,
    /// One line for `--help`, `/server_info` and the docs.
    pub doc: &'static str,
}

use Kind::{Bytes, Choice, Count, Flag, Text};
use Shapes::{Nothing, Numerics, Plan, Process, StateLayout};

macro_rules! knob {
    ($name:literal, $flag:literal, $kind:expr, $default:literal, $shapes:expr, $doc:literal) => {
        Knob {
            name: $name,
            flag: $flag,
            kind: $kind,
            default: $default,
            shapes: $shapes,
            doc: $doc,
        }
    };
}

/// Every knob of `serve`.
pub const KNOBS: &[Knob] = &[
    knob!("server.host", "host", Text, "127.0.0.1", Process, "Address to listen on."),
    knob!(
        "server.port",
        "port",
        Count { min: 0, max: 65535 },
        "30001",
        Process,
        "Port to listen on; 0 takes a free one."
    ),
    knob!(
        "server.api-key",
        "api-key",
        Text,
        "",
        Process,
        "Bearer token that clients must send; none by default."
    ),
    knob!(
        "server.admin-key",
        "admin-key",
        Text,
        "",
        Process,
        "Bearer token of the admin routes; needed unless bound to loopback."
    ),
    knob!(
        "server.served-model-name",
        "served-model-name",
        Text,
        "",
        Process,
        "Name in /v1/models; by default the known model's or the file's."
    ),
    knob!(
        "server.max-connections",
        "max-connections",
        Count { min: 1, max: 1 << 16 },
        "4096",
        Process,
        "Client connections held at once; more wait in the listen queue."
    ),
    knob!(
        "server.request-timeout",
        "request-timeout",
        Count { min: 0, max: 86_400 },
        "0",
        Process,
        "Seconds after which a request ends with an error; 0 never."
    ),
    knob!(
        "server.drain-timeout",
        "drain-timeout",
        Count { min: 0, max: 86_400 },
        "30",
        Process,
        "Seconds that accepted requests get to finish after SIGTERM."
    ),
    knob!(
        "server.log-interval",
        "log-interval",
        Count { min: 0, max: 3600 },
        "10",
        Process,
        "Seconds between the decode log lines of a busy server; 0 prints none."
    ),
    knob!(
        "model.load-format",
        "load-format",
        Choice(&["auto", "dummy"]),
        "auto",
        Process,
        "dummy makes seeded weights of the shapes in a folder's config.json."
    ),
    knob!(
        "model.path",
        "model",
        Text,
        "smollm2-135m-instruct",
        Process,
        "A GGUF file, a Hugging Face folder, or a known model's name."
    ),
    knob!(
        "model.context-length",
        "context-length",
        Count { min: 0, max: 1 << 20 },
        "0",
        StateLayout,
        "Longest sequence in tokens; 0 takes the model's own."
    ),
    knob!(
        "decode.graph-max-bs",
        "graph-max-bs",
        Count { min: 1, max: 4096 },
        "32",
        Plan,
        "Largest decode batch with a captured bucket."
    ),
    knob!(
        "decode.lanes",
        "lanes",
        Count { min: 1, max: 8 },
        "8",
        Plan,
        "Lanes a plan may use; 1 serialises everything (overlap off), same bits."
    ),
    knob!(
        "decode.eager",
        "eager",
        Flag,
        "false",
        Nothing,
        "Run every step op by op instead of as a captured replay; slower, same bits."
    ),
    knob!(
        "decode.pipelined",
        "pipelined",
        Flag,
        "true",
        Process,
        "Launch a decode step before the last one's tokens are seen (on a GPU); same bits."
    ),
    knob!(
        "decode.mtp-drafts",
        "mtp-drafts",
        Count { min: 0, max: 4 },
        "0",
        StateLayout,
        "Tokens that a model's prediction block drafts a step; same tokens, fewer steps. 0 is off."
    ),
    knob!(
        "sched.max-running-requests",
        "max-running-requests",
        Count { min: 1, max: 4096 },
        "256",
        Plan,
        "Sequences that decode at once."
    ),
    knob!(
        "sched.max-queued-requests",
        "max-queued-requests",
        Count { min: 0, max: 1 << 20 },
        "1024",
        Nothing,
        "Requests that may wait; beyond it 429 with Retry-After."
    ),
    knob!(
        "sched.chunked-prefill-size",
        "chunked-prefill-size",
        Count { min: 16, max: 8192 },
        "512",
        Plan,
        "Most prompt tokens of one step."
    ),
    knob!(
        "sched.prefix-cache",
        "prefix-cache",
        Flag,
        "true",
        Nothing,
        "Keep finished prompts' KV for later requests with the same prefix."
    ),
    knob!(
        "pool.kv-memory",
        "kv-memory",
        Bytes { min: 1 << 20, max: 1 << 44 },
        "1GiB",
        StateLayout,
        "Bytes of the token pool."
    ),
    knob!(
        "pool.kv-dtype",
        "kv-dtype",
        Choice(&["auto", "f32", "f16", "bf16", "fp8"]),
        "auto",
        Numerics,
        "Element type of KV rows; auto is f32 for f32 weights and DeepSeek-V4 (which also takes bf16 \
         and fp8, and no f16), else f16."
    ),
    knob!(
        "pool.index-dtype",
        "index-dtype",
        Choice(&["auto", "f32", "bf16", "fp8", "fp4"]),
        "auto",
        Numerics,
        "Element type of DeepSeek-V4's index keys; fp8 and fp4 behind a Hadamard turn; auto is f32."
    ),
    knob!(
        "device.kind",
        "device",
        Choice(&["cpu", "cuda"]),
        "cpu",
        Process,
        "What runs the plans; cuda needs a build with the feature of that name."
    ),
    knob!(
        "device.threads",
        "threads",
        Count { min: 0, max: 256 },
        "0",
        Process,
        "Compute threads; 0 takes one a core."
    ),
    knob!(
        "device.isa",
        "isa",
        Choice(&["auto", "avx512", "avx2", "portable"]),
        "auto",
        Process,
        "Instruction set of the CPU kernels; same bits on each."
    ),
    knob!(
        "audit.rate",
        "audit-rate",
        Count { min: 0, max: 1 << 30 },
        "1000",
        Nothing,
        "One step in this many is audited; 0 turns the audit off, visibly."
    ),
    knob!(
        "audit.on-mismatch",
        "audit-on-mismatch",
        Choice(&["quarantine", "stop"]),
        "quarantine",
        Nothing,
        "What an audit mismatch does: take what failed out of service, or stop admission too."
    ),
    knob!(
        "generations.watch",
        "generation-watch",
        Count { min: 0, max: 86_400 },
        "60",
        Process,
        "Seconds after a flip in which a finding of the audit flips back, and nothing is retired."
    ),
    knob!(
        "generations.memory",
        "generation-memory",
        Bytes { min: 0, max: 1 << 44 },
        "0",
        Process,
        "Bytes that the arenas of a staged generation may take; 0 is what the machine has."
    ),
    knob!(
        "generations.verify-first",
        "verify-first",
        Flag,
        "true",
        Process,
        "Verify the buckets of the first generation while it serves: canary steps between others."
    ),
];

/// Why a value was not taken.
#[derive(Clone, PartialEq, Debug)]
pub struct KnobError {
    /// The knob.
    pub name: &'static str,
    /// What was given.
    pub found: String,
    /// What would work.
    pub expected: String,
}

impl fmt::Display for KnobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_secret(self.name) {
            return write!(f, "{} (not shown) is not {}", self.name, self.expected);
        }
        write!(f, "{} is '{}'; it takes {}", self.name, shown(&self.found), self.expected)
    }
}

impl core::error::Error for KnobError {}

/// Whether a setting of this name holds what nobody but its owner should see.
pub fn is_secret(name: &str) -> bool {
    name.ends_with("-key")
}

/// As much of what somebody wrote as an error shows.
pub(crate) fn shown(written: &str) -> String {
    const CHARACTERS: usize = 200;
    match written.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}...", &written[..end]),
        None => written.into(),
    }
}

/// Finds a knob by its dotted name.
pub fn find(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|k| k.name == name)
}

impl Knob {
    /// What this knob takes, in words.
    pub fn expected(&self) -> String {
        match self.kind {
            Count { min, max } => format!("a whole number from {min} to {max}"),
            Bytes { min, max } => {
                format!("bytes from {min} to {max}, as in 512MiB or 4GiB")
            }
            Choice(words) => format!("one of {}", words.join(", ")),
            Text => "text without spaces around it, and not empty".into(),
            Flag => "true or false".into(),
        }
    }

    /// Checks a value in the operator's notation and returns it in its plain form: a number for
    /// counts and bytes, the word itself otherwise.
    pub fn parse(&self, value: &str) -> Result<Value, KnobError> {
        let bad = || KnobError { name: self.name, found: value.into(), expected: self.expected() };
        match self.kind {
            Count { min, max } => {
                let n: u64 = value.parse().map_err(|_| bad())?;
                if (min..=max).contains(&n) { Ok(Value::Number(n)) } else { Err(bad()) }
            }
            Bytes { min, max } => {
                let n = parse_bytes(value).ok_or_else(bad)?;
                if (min..=max).contains(&n) { Ok(Value::Number(n)) } else { Err(bad()) }
            }
            Choice(words) => words
                .iter()
                .find(|w| **w == value)
                .map(|w| Value::Text((*w).into()))
                .ok_or_else(bad),
            // An empty one is not "none": a key that came out empty would open the server.
            Text if value.is_empty() || value.trim() != value => Err(bad()),
            Text if value.chars().any(char::is_control) => Err(bad()),
            Text => Ok(Value::Text(value.into())),
            Flag => value.parse().map(Value::Flag).map_err(|_| bad()),
        }
    }
}

/// A parsed value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Of a count or of bytes.
    Number(u64),
    /// Of a choice or of text.
    Text(String),
    /// Of a flag.
    Flag(bool),
}

/// `512MiB`, `4GiB`, `1500000`, `2GB` -> bytes. Fractions are taken (`1.5GiB`).
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1u64,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    let number = number.trim();
    if let Ok(n) = number.parse::<u64>() {
        return n.checked_mul(scale);
    }
    let n: f64 = number.parse().ok()?;
    let bytes = n * scale as f64;
    (bytes.is_finite() && (0.0..1.8e19).contains(&bytes)).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_and_every_name_is_unique() {
        for (i, knob) in KNOBS.iter().enumerate() {
            if !(knob.default.is_empty() && knob.kind == Text) {
                knob.parse(knob.default).unwrap_or_else(|e| panic!("{e}"));
            }
            for other in &KNOBS[i + 1..] {
                assert_ne!(knob.name, other.name);
                assert_ne!(knob.flag, other.flag);
            }
        }
    }

    /// `--api-key "$KEY"` with an unset variable once started an open server.
    #[test]
    fn an_empty_text_is_refused() {
        for knob in KNOBS.iter().filter(|k| k.kind == Text) {
            for bad in ["", " ", "a ", "\tb", "a\nb", "\u{0}"] {
                let e = knob.parse(bad).unwrap_err();
                assert!(e.to_string().contains("not empty"), "{e}");
                // A key was once printed.
                assert!(!is_secret(knob.name) || e.to_string().contains("not shown"), "{e}");
            }
            assert_eq!(knob.parse("a b"), Ok(Value::Text("a b".into())));
        }
    }

    #[test]
    fn bytes_take_units() {
        assert_eq!(parse_bytes("4GiB"), Some(4 << 30));
        assert_eq!(parse_bytes("1.5gib"), Some(3 << 29));
        assert_eq!(parse_bytes("12"), Some(12));
        assert_eq!(parse_bytes("2 MB"), Some(2_000_000));
        assert_eq!(parse_bytes("99999999999TiB"), None);
        assert_eq!(parse_bytes("-1"), None);
        assert_eq!(parse_bytes("1 parsec"), None);
    }

    #[test]
    fn a_bad_value_says_what_would_work() {
        let e = find("decode.graph-max-bs").unwrap().parse("lots").unwrap_err();
        assert_eq!(
            e.to_string(),
            "decode.graph-max-bs is 'lots'; it takes a whole number from 1 to 4096"
        );
    }
}
