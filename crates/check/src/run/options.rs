//! What is asked of a check.

use crate::dialogue::{Kind, Sizes};
use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// A few sessions, once: a smoke test.
    Quick,
    /// All sessions together, coverage of every bucket.
    Gate,
    /// The gate again and again for a stated time.
    Soak,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 3] = [Profile::Quick, Profile::Gate, Profile::Soak];

    /// Its word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Quick => "quick",
            Profile::Gate => "gate",
            Profile::Soak => "soak",
        }
    }

    /// Sessions and rounds where none are stated.
    pub const fn sessions_and_rounds(self) -> (u32, u32) {
        match self {
            Profile::Quick => (24, 2),
            Profile::Gate | Profile::Soak => (96, 3),
        }
    }
}

/// Whether the server is held to give the same alone and in a crowd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// As the server says of itself.
    Auto,
    /// It is.
    Yes,
    /// It is not.
    No,
}

impl Claim {
    /// Its word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Claim::Auto => "auto",
            Claim::Yes => "yes",
            Claim::No => "no",
        }
    }
}

/// What is asked of a check.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Sessions at once.
    pub sessions: u32,
    /// How long they are.
    pub sizes: Sizes,
    /// Makes the sessions, their arrivals and their aborts.
    pub seed: u64,
    /// How much is done.
    pub profile: Profile,
    /// Whether sessions arrive in bursts and some requests are left in the middle of their stream.
    pub churns: bool,
    /// The kinds of sessions; empty: those that the model can do.
    pub kinds: Vec<Kind>,
    /// Whether answers are compared with those alone, text for text.
    pub deterministic: Claim,
    /// Sequential passes before the load; 0: one where the server claims determinism, else two.
    pub calibrations: u32,
    /// Goes on until the rate of corruption is known to be below this, or is not.
    pub bound: Option<f64>,
    /// How long a soak takes, and a bound at most.
    pub time_limit: Duration,
    /// A file to which the server writes its decode log.
    pub decode_log: Option<PathBuf>,
    /// Batch sizes whose buckets are held where the load does not reach them; empty: every bucket's.
    pub held: Vec<u32>,
    /// Whether a run without coverage of every bucket may be clean.
    pub accept_partial_coverage: bool,
    /// Whether damage is narrowed down by changing one thing at a time.
    pub isolate: bool,
    /// The server whose batches are looked at, where requests reach it through another: a worker
    /// with one side of a request, whose router tells of other workers.
    pub observed_url: Option<String>,
    /// Another way to the same model, for the isolation ladder: a worker behind the router.
    pub other_url: Option<String>,
    /// A key for the admin routes, for the isolation ladder.
    pub admin_key: Option<String>,
    /// Only these sessions are judged; the others are load. Empty: all are.
    pub only: Vec<u32>,
}

/// Sessions of a run, at most.
pub const SESSIONS_MAX: u32 = 4096;
/// Turns of a session, at most.
pub const ROUNDS_MAX: u32 = 64;
/// Tokens of a session's records, at most.
pub const CONTEXT_TOKENS_MAX: u32 = 1 << 20;

/// What cannot be asked.
#[derive(Clone, PartialEq, Debug)]
pub enum OptionsError {
    /// A number out of its range.
    Range { what: &'static str, found: String, expected: String },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsError::Range { what, found, expected } => {
                write!(f, "{what} is {found}; it takes {expected}")
            }
        }
    }
}

impl core::error::Error for OptionsError {}

impl Options {
    /// The defaults of a profile.
    pub fn of(profile: Profile) -> Options {
        let (sessions, rounds) = profile.sessions_and_rounds();
        Options {
            sessions,
            sizes: Sizes { context_tokens: 320, rounds, answer_tokens_max: 2000 },
            seed: 1,
            profile,
            churns: true,
            kinds: Vec::new(),
            deterministic: Claim::Auto,
            calibrations: 0,
            bound: None,
            time_limit: Duration::from_secs(3600),
            decode_log: None,
            held: Vec::new(),
            accept_partial_coverage: false,
            isolate: false,
            observed_url: None,
            other_url: None,
            admin_key: None,
            only: Vec::new(),
        }
    }

    /// Refuses what would make no sense or too much of it, before anything is made.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let range = |what, found: u32, most: u32| {
            if (1..=most).contains(&found) {
                return Ok(());
            }
            let expected = format!("a whole number from 1 to {most}");
            Err(OptionsError::Range { what, found: found.to_string(), expected })
        };
        range("--sessions", self.sessions, SESSIONS_MAX)?;
        range("--rounds", self.sizes.rounds, ROUNDS_MAX)?;
        range("--context", self.sizes.context_tokens, CONTEXT_TOKENS_MAX)?;
        range("--max-tokens", self.sizes.answer_tokens_max, CONTEXT_TOKENS_MAX)?;
        if self.bound.is_some_and(|b| !(b > 0.0 && b < 1.0)) {
            let found = self.bound.unwrap_or(0.0).to_string();
            let expected = "a rate between 0 and 1, as in 0.1% or 0.001".into();
            return Err(OptionsError::Range { what: "--bound", found, expected });
        }
        Ok(())
    }
}
