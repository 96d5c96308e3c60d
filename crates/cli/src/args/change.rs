//! The arguments of `change`.

use crate::exit::{self, Exit};
use clap::{Args, Subcommand, ValueHint};
use core::ops::RangeInclusive;
use std::path::PathBuf;

/// What stands below its help.
pub fn help() -> String {
    format!(
        "Predicts, measures a baseline, backs up, stages, proves, flips, runs the gates, watches, \
         and keeps the change or rolls it back; records/ holds the decision. A Lockstep server is \
         changed live; others by a restart through what starts them (targets/*.toml).\n\n\
         Examples:\n  \
         lockstep change --set decode.graph-max-bs=96 --dry-run\n  \
         lockstep change --set decode.graph-max-bs=96 --why \"decode runs wider\" --yes\n  \
         lockstep change init --url http://127.0.0.1:8080 --script serve.sh\n  \
         lockstep change --target llama-cpp --set parallel=16\n  \
         lockstep change log\n  lockstep change show 3\n  lockstep change undo 3 --yes\n  \
         lockstep change resume\n  lockstep change rollback\n  \
         lockstep change close 4 --why \"the machine is gone\"\n\n{}",
        exit::help_of(&[Exit::NoServer, Exit::Unwell, Exit::RolledBack, Exit::NotChanged])
    )
}

fn within(written: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let n = written.parse().ok().filter(|n| range.contains(n));
    n.ok_or_else(|| format!("it takes a number from {} to {}", range.start(), range.end()))
}

fn tolerance(written: &str) -> Result<f64, String> {
    within(written, lockstep_change::target::TOLERANCE_PERCENT)
}

fn p99_factor(written: &str) -> Result<f64, String> {
    within(written, lockstep_change::target::P99_FACTOR)
}

/// `change`.
#[derive(Args, Debug, Clone)]
pub struct ChangeArgs {
    /// The server's address; it is a Lockstep server unless a target says otherwise
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// A target: a name of targets/, or a file
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    pub target: Option<String>,
    /// What to change; may be given more than once. env.NAME=VALUE changes a variable
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", global = true)]
    pub why: Option<String>,
    /// Predict and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short, global = true)]
    pub yes: bool,
    /// The folder of records
    #[arg(long, value_name = "DIR", default_value = "records", global = true, value_hint = ValueHint::DirPath)]
    pub records: PathBuf,
    /// Settings file that a kept change is written to [default: what the server says it reads]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Seconds that the change is watched [default: the target's, 60]
    #[arg(long, value_name = "SECONDS", global = true, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub watch: Option<u64>,
    /// Concurrencies of the gates' load [default: 1, the old ceiling, the new one]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: Vec<u32>,
    /// Output tokens of a request of that load [default: the target's, 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tokens: Option<u32>,
    /// Runs of that load at each concurrency [default: the target's, 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Sessions of the corruption gate [default: the target's, or the largest concurrency, at least 24]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub sessions: Option<u32>,
    /// User turns of each of them [default: the target's, 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub rounds: Option<u32>,
    /// Tokens of an answer in them, at most [default: the target's, 400]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub answer_tokens: Option<u32>,
    /// Keep a change whose gate shows neither damage nor its absence
    #[arg(long)]
    pub accept_inconclusive: bool,
    /// Loss of throughput that is taken, in percent [default: the target's, 10]
    #[arg(long, value_name = "PERCENT", global = true, value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Growth of a request's 99th percentile that is taken [default: the target's, 2]
    #[arg(long, value_name = "FACTOR", value_parser = p99_factor)]
    pub p99_factor: Option<f64>,
    /// The server's API key [env: LOCKSTEP_SERVER_API_KEY]
    #[arg(
        long,
        env = "LOCKSTEP_SERVER_API_KEY",
        hide_env_values = true,
        hide_env = true,
        global = true
    )]
    pub api_key: Option<String>,
    /// Its admin key [env: LOCKSTEP_SERVER_ADMIN_KEY]
    #[arg(
        long,
        env = "LOCKSTEP_SERVER_ADMIN_KEY",
        hide_env_values = true,
        hide_env = true,
        global = true
    )]
    pub admin_key: Option<String>,
    /// Print the result as one JSON object, and what goes on as JSON lines on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Something else than a new change.
    #[command(subcommand)]
    pub command: Option<ChangeCmd>,
}

/// What there is beside a new change.
#[derive(Subcommand, Debug, Clone)]
pub enum ChangeCmd {
    /// Write a target's file from what a server says
    #[command(after_help = "Examples:\n  lockstep change init --url http://127.0.0.1:8080\n  \
                            lockstep change init --url http://127.0.0.1:8080 --script serve.sh\n  \
                            lockstep change init --url http://127.0.0.1:30000 --unit sglang.service")]
    Init(InitArgs),
    /// List the records
    #[command(after_help = "Examples:\n  lockstep change log\n  lockstep change log --json")]
    Log,
    /// Show a record
    #[command(after_help = "Examples:\n  lockstep change show\n  lockstep change show 3 --json")]
    Show(RecordArgs),
    /// Change back what a kept change changed, as a change of its own
    #[command(after_help = "Examples:\n  lockstep change undo 3 --dry-run\n  \
                            lockstep change undo 3 --yes")]
    Undo(UndoArgs),
    /// Go on with a change that ended in the middle
    #[command(after_help = "Examples:\n  lockstep change resume")]
    Resume(RecordArgs),
    /// Roll a change back that ended in the middle
    #[command(after_help = "Examples:\n  lockstep change rollback")]
    Rollback(RecordArgs),
    /// End a change that neither goes on nor back any more, and touch nothing
    #[command(after_help = "For a server that is gone for good, or a record whose journal is \
                            damaged. Nothing is asked of the server and none of its files is \
                            written; the record says so, and why.\n\nExamples:\n  \
                            lockstep change close 4 --why \"the machine is gone\"\n  \
                            lockstep change close 2026-11-30T01-20-03Z-parallel-16 --why \"looked\"")]
    Close(CloseArgs),
}

/// `change undo`.
#[derive(Args, Debug, Clone)]
pub struct UndoArgs {
    /// The record.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Predict and stop
    #[arg(long = "dry-run", id = "undo_dry_run")]
    pub dry_run: bool,
}

/// `change close`.
#[derive(Args, Debug, Clone)]
pub struct CloseArgs {
    /// Its number, or its record's name [default: the only one that is not over]
    #[arg(value_name = "RECORD")]
    pub record: Option<String>,
}

/// Which record.
#[derive(Args, Debug, Clone)]
pub struct RecordArgs {
    /// Its number [default: the newest that fits]
    pub number: Option<u64>,
}

/// `change init`.
#[derive(Args, Debug, Clone)]
pub struct InitArgs {
    /// The target's name [default: the server's kind]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What the server is, where it does not tell [lockstep, sglang, vllm, llama.cpp, openai]
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// The shell script that starts it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub script: Option<PathBuf>,
    /// The systemd unit that starts it
    #[arg(long, value_name = "UNIT", conflicts_with = "script")]
    pub unit: Option<String>,
    /// The unit is the user's own (systemctl --user)
    #[arg(long, requires = "unit")]
    pub user: bool,
    /// The router before it, to be drained through
    #[arg(long, value_name = "URL")]
    pub router: Option<String>,
    /// The server's program, where a script runs more than one
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
    /// Where its output goes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// The command that starts it, after --
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["script", "unit"])]
    pub command: Vec<String>,
}
