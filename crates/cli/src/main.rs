//! The `lockstep` binary: arguments and wiring.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod build;
mod change;
mod check;
mod device;
mod doctor;
mod drill;
mod exit;
mod http;
mod interrupt;
mod knob_fault;
#[cfg_attr(not(feature = "lab"), path = "no_lab.rs")]
mod lab;
mod memory;
mod notify;
mod out;
mod overlap_race;
mod plan;
mod pull;
mod resolve;
mod results;
mod serve;
mod settings;
mod status;

use args::{Cli, Cmd, PlanCmd, PullArgs, VersionArgs};
use clap::{CommandFactory, Parser};
use exit::{Exit, Failure};
use pull::Store;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(asked(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(e) => return misused(&e),
    };
    let (json, result) = match cli.command {
        Cmd::Serve(args) => (args.json, serve::run(&args)),
        Cmd::Pull(args) => (args.json, pull_command(&args)),
        Cmd::Status(args) => (args.json, status::run(&args)),
        Cmd::Bench(args) => return bench::run(&args),
        Cmd::Check(args) => return check::run(&args),
        Cmd::Plan(PlanCmd::Show(args)) => (args.json, plan::show(&args)),
        Cmd::Drill(args) => (args.json, drill::run(&args)),
        Cmd::Doctor(args) => (args.json, doctor::run(&args)),
        Cmd::Change(args) => (args.json, change::run(&args)),
        Cmd::Version(args) => (args.json, version(&args)),
    };
    let exit = match result {
        Ok(exit) => exit,
        Err(failure) => {
            if json {
                out::line(failure.to_json());
            }
            out::complain(format_args!("lockstep: {}", failure.message));
            failure.exit
        }
    };
    ExitCode::from(exit as u8)
}

/// The command line. `help --help` asks for help, which is what `help` gives.
fn asked(mut words: Vec<OsString>) -> Vec<OsString> {
    let [_, commands @ .., help, flag] = words.as_slice() else { return words };
    let root = Cli::command();
    let known = commands.iter().try_fold(&root, |at, word| at.find_subcommand(word));
    if help == "help" && (flag == "--help" || flag == "-h") && known.is_some() {
        words.pop();
    }
    words
}

/// Help and version are what was asked for; anything else is an error, for machines as JSON too.
fn misused(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        // Where nobody reads it there is nobody to tell.
        let _ = e.print();
        return ExitCode::from(Exit::Done as u8);
    }
    // A measurement's or a gate's 2 means inconclusive.
    let exit = match std::env::args_os().nth(1) {
        Some(command) if command == "bench" || command == "check" => results::CANNOT,
        _ => Exit::Usage as u8,
    };
    if std::env::args_os().any(|arg| arg == "--json" || arg == "--json=-") {
        let words = e.render().to_string();
        let message = words.trim_start_matches("error: ").trim_end();
        let failure = Failure::new(Exit::Usage, message);
        // What cannot be printed there is printed below.
        let _ = out::try_line(failure.to_json_of(exit));
    }
    let _ = e.print();
    ExitCode::from(exit)
}

fn version(args: &VersionArgs) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        out::line(json!({"name": "lockstep", "version": version, "lab": lab::BUILT}));
    } else {
        out::line(format_args!(
            "lockstep {version}{}",
            if lab::BUILT { " (lab build)" } else { "" }
        ));
    }
    Ok(Exit::Done)
}

/// The store, or why there is none.
fn store() -> Result<Store, Failure> {
    Store::locate(|name| std::env::var_os(name)).ok_or_else(|| {
        Failure::new(
            Exit::NoModel,
            "neither LOCKSTEP_MODELS nor XDG_CACHE_HOME nor HOME is set, so there is no place for \
             models; set one of them, or serve a file with --model",
        )
    })
}

fn pull_command(args: &PullArgs) -> Result<Exit, Failure> {
    let known = resolve::to_fetch(&args.model)?;
    let obtained = pull::obtain(known, &store()?, args.from.as_deref())
        .map_err(|e| Failure { detail: e.detail(), ..Failure::new(Exit::NoModel, &e) })?;
    if args.json {
        let report = json!({
            "model": known.name,
            "path": obtained.path,
            "source": obtained.source,
            "bytes": known.bytes,
            "sha256": known.sha256,
            "licence": known.licence,
        });
        out::line(&report);
    } else {
        let how = match obtained.source {
            "store" if args.from.is_some() => "was there already, the same as --from".into(),
            "store" => "was there already".into(),
            source => format!("fetched ({source})"),
        };
        out::line(format_args!(
            "{}: {how}, SHA-256 verified\n{}",
            known.name,
            obtained.path.display()
        ));
    }
    Ok(Exit::Done)
}
