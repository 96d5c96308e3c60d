//! What a change must pass: the corruption gate's sessions, and the load before and after.

use super::{count, counts, number, words};
use core::ops::RangeInclusive;
use lockstep_check::dialogue::{Kind as SessionKind, Sizes};
use lockstep_check::run::{CONTEXT_TOKENS_MAX, Options, Profile, ROUNDS_MAX, SESSIONS_MAX};
use toml_edit::{Item, Table};

/// Losses of throughput that can be asked for; a negative one is a gain. The command line and a
/// target take the same, since a record's target is read again.
pub const TOLERANCE_PERCENT: RangeInclusive<f64> = -1e6..=100.0;
/// Growths of the 99th percentile that can be asked for.
pub const P99_FACTOR: RangeInclusive<f64> = 0.0..=1e6;
/// Sessions of the gate where a target names none, at least.
const SESSIONS_MIN: u32 = 24;

/// What a change must pass.
#[derive(Clone, PartialEq, Debug)]
pub struct Gates {
    /// Concurrencies of the load; empty takes 1, the old ceiling and the new one.
    pub concurrency: Vec<u32>,
    /// Requests of a run, as a multiple of its concurrency.
    pub rounds: u32,
    /// Runs at each concurrency; their mean is compared.
    pub repeats: u32,
    /// Prompt tokens of each request.
    pub input: u32,
    /// Output tokens of each request.
    pub tokens: u32,
    /// Loss of throughput that is not one, in percent of the baseline, at any concurrency.
    pub tolerance_percent: f64,
    /// Requests that may fail, in percent.
    pub errors_percent_max: f64,
    /// Growth of the 99th percentile of a request's time that is taken, as a factor.
    pub p99_factor_max: f64,
    /// Sessions of the corruption gate.
    pub check: Sessions,
}

/// The sessions of the corruption gate.
#[derive(Clone, PartialEq, Debug)]
pub struct Sessions {
    /// Sessions at once; without a number as many as the largest concurrency of the load, and no
    /// fewer than 24.
    pub sessions: Option<u32>,
    /// User turns of each.
    pub rounds: u32,
    /// Tokens of records that the longest one gathers.
    pub context: u32,
    /// Tokens of an answer, at most.
    pub tokens: u32,
    /// Kinds of sessions; empty: those that the model can do.
    pub kinds: Vec<SessionKind>,
    /// Seconds that an answer may take.
    pub timeout_seconds: u64,
    /// Whether a run that shows neither damage nor its absence may pass.
    pub accept_inconclusive: bool,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates {
            concurrency: Vec::new(),
            rounds: 2,
            repeats: 3,
            input: 64,
            tokens: 32,
            tolerance_percent: 10.0,
            errors_percent_max: 0.0,
            p99_factor_max: 2.0,
            check: Sessions::default(),
        }
    }
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions {
            sessions: None,
            rounds: 2,
            context: 320,
            tokens: 400,
            kinds: Vec::new(),
            timeout_seconds: 600,
            accept_inconclusive: false,
        }
    }
}

impl Sessions {
    /// What is asked of the gate, for a load of these concurrencies.
    pub fn options(&self, concurrency: &[u32]) -> Options {
        let most = concurrency.iter().copied().max().unwrap_or(1).max(SESSIONS_MIN);
        let mut options = Options::of(Profile::Gate);
        options.sessions = self.sessions.unwrap_or(most).min(SESSIONS_MAX);
        options.sizes = Sizes {
            context_tokens: self.context,
            rounds: self.rounds,
            answer_tokens_max: self.tokens,
        };
        options.kinds.clone_from(&self.kinds);
        options
    }
}

impl Gates {
    /// Takes a key of `[gates]` or `[check]`; false where it is none.
    pub(super) fn key(&mut self, name: &str, item: &Item) -> Result<bool, String> {
        let check = &mut self.check;
        let at_least_one = |max: u32| -> Result<u32, String> {
            let n = count(name, item, max.into())?;
            u32::try_from(n)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("{name} takes a whole number from 1 to {max}"))
        };
        match name {
            "gates.concurrency" => self.concurrency = counts(name, item)?,
            "gates.rounds" => self.rounds = at_least_one(1000)?,
            "gates.repeats" => self.repeats = at_least_one(100)?,
            "gates.input" => self.input = at_least_one(1 << 20)?,
            "gates.tokens" => self.tokens = at_least_one(4096)?,
            "gates.tolerance-percent" => {
                self.tolerance_percent = number(name, item, TOLERANCE_PERCENT)?;
            }
            "gates.errors-percent-max" => {
                self.errors_percent_max = number(name, item, 0.0..=100.0)?
            }
            "gates.p99-factor-max" => self.p99_factor_max = number(name, item, P99_FACTOR)?,
            "check.sessions" => check.sessions = Some(at_least_one(SESSIONS_MAX)?),
            "check.rounds" => check.rounds = at_least_one(ROUNDS_MAX)?,
            "check.context" => check.context = at_least_one(CONTEXT_TOKENS_MAX)?,
            "check.tokens" => check.tokens = at_least_one(CONTEXT_TOKENS_MAX)?,
            "check.kinds" => check.kinds = kinds(name, item)?,
            "check.timeout-seconds" => check.timeout_seconds = at_least_one(86_400)?.into(),
            "check.accept-inconclusive" => {
                let flag = item.as_bool();
                check.accept_inconclusive =
                    flag.ok_or_else(|| format!("{name} takes true or false"))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// As tables of a target's file: `[gates]`, `[check]`.
    pub(super) fn to_tables(&self) -> (Table, Table) {
        let mut gates = Table::new();
        let whole = |n: u32| toml_edit::value(i64::from(n));
        if !self.concurrency.is_empty() {
            let list: toml_edit::Array = self.concurrency.iter().map(|n| i64::from(*n)).collect();
            gates["concurrency"] = toml_edit::value(list);
        }
        gates["rounds"] = whole(self.rounds);
        gates["repeats"] = whole(self.repeats);
        gates["input"] = whole(self.input);
        gates["tokens"] = whole(self.tokens);
        gates["tolerance-percent"] = toml_edit::value(self.tolerance_percent);
        gates["errors-percent-max"] = toml_edit::value(self.errors_percent_max);
        gates["p99-factor-max"] = toml_edit::value(self.p99_factor_max);
        let mut check = Table::new();
        if let Some(sessions) = self.check.sessions {
            check["sessions"] = whole(sessions);
        }
        check["rounds"] = whole(self.check.rounds);
        check["context"] = whole(self.check.context);
        check["tokens"] = whole(self.check.tokens);
        if !self.check.kinds.is_empty() {
            let list: toml_edit::Array = self.check.kinds.iter().map(|k| k.name()).collect();
            check["kinds"] = toml_edit::value(list);
        }
        let seconds = i64::try_from(self.check.timeout_seconds).unwrap_or(i64::MAX);
        check["timeout-seconds"] = toml_edit::value(seconds);
        check["accept-inconclusive"] = toml_edit::value(self.check.accept_inconclusive);
        (gates, check)
    }
}

fn kinds(name: &str, item: &Item) -> Result<Vec<SessionKind>, String> {
    let known = || {
        let all: Vec<&str> = SessionKind::ALL.iter().map(|k| k.name()).collect();
        format!("{name} takes a list of {}", all.join(", "))
    };
    let list = words(name, item).map_err(|_| known())?;
    list.iter().map(|w| SessionKind::find(w).ok_or_else(known)).collect()
}
