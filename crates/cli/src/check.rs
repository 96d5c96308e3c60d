//! `lockstep check`: arguments and wiring of the corruption gate.

use crate::exit::{self, ENDED, Exit, Failure, INTERRUPTED};
use crate::out;
use crate::results::{self, CANNOT, Results};
use clap::{Args, ValueEnum, ValueHint};
use lockstep_check::Stop;
use lockstep_check::bench::FILE_BYTES_MAX;
use lockstep_check::client::{Client, Target, Timeouts};
use lockstep_check::dialogue::Kind;
use lockstep_check::report;
use lockstep_check::run::{
    CheckError, Claim, Conclusion, Finding, Options, Profile, Progress, Watch, check,
};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The server's address
    #[arg(default_value = "http://127.0.0.1:30001")]
    pub url: String,
    /// How much is done: quick is a smoke test, gate covers every captured batch size, soak repeats
    /// the gate until --time-limit
    #[arg(long, value_enum, default_value_t = ProfileArg::Gate)]
    pub profile: ProfileArg,
    /// Sessions at once [default: 96; 24 with --profile quick]
    #[arg(long, value_name = "N")]
    pub sessions: Option<u32>,
    /// User turns of a session [default: 3; 2 with --profile quick]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Tokens of records and notes that the longest session gathers
    #[arg(long, value_name = "TOKENS", default_value_t = 320)]
    pub context: u32,
    /// Tokens of an answer, at most
    #[arg(long, value_name = "TOKENS", default_value_t = 2000)]
    pub max_tokens: u32,
    /// Makes the sessions, their arrivals and their aborts
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Go on until the rate of corruption is known to be below this (95%), or is not: 0.1%, 0.001
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub bound: Option<f64>,
    /// Seconds that a soak takes, and that --bound may take at most
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub time_limit: u64,
    /// Seconds that an answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Whether an answer must be the one that the same request gave alone, letter for letter; auto
    /// asks the server
    #[arg(long, value_enum, default_value_t = ClaimArg::Auto)]
    pub deterministic: ClaimArg,
    /// Passes over all sessions, one at a time, before the load [default: 1, or 2 where the server
    /// is not deterministic]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub calibrations: Option<u32>,
    /// Kinds of sessions: report, lookup, echo, list [default: those that the model can do]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// A file or pipe to which the server writes its decode log, to know the batch sizes from;
    /// journal:UNIT follows the journal of a unit of systemd
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub decode_log: Option<PathBuf>,
    /// Take a run for clean that did not go through every batch size, and fill none that the load
    /// missed; the report says CLEAN (partial coverage) and which it missed
    #[arg(long)]
    pub accept_partial_coverage: bool,
    /// On damage, repeat with one thing changed at a time and say which change removes it
    #[arg(long)]
    pub isolate: bool,
    /// For --isolate: another way to the same model, such as a worker behind the router or the one
    /// of another role
    #[arg(long, value_name = "URL")]
    pub other_url: Option<String>,
    /// Judge the corrupted sessions of a report again, alone and then amid the same load
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub replay: Option<PathBuf>,
    /// The model's name; by default the first that the server lists
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Its API key [env: LOCKSTEP_SERVER_API_KEY]
    #[arg(long, env = "LOCKSTEP_SERVER_API_KEY", hide_env_values = true, hide_env = true)]
    pub api_key: Option<String>,
    /// The key of its admin routes, for --isolate [env: LOCKSTEP_SERVER_ADMIN_KEY]
    #[arg(long, env = "LOCKSTEP_SERVER_ADMIN_KEY", hide_env_values = true, hide_env = true)]
    pub admin_key: Option<String>,
    /// Write the report as one page with plots to FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// Write the JSON report to FILE, for --replay
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Words of `--profile`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum ProfileArg {
    Quick,
    Gate,
    Soak,
}

/// Words of `--deterministic`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum ClaimArg {
    Auto,
    Yes,
    No,
}

/// What its exit codes mean; they are its own, for scripts that gate on it.
const CODES: [(u8, &str); 5] = [
    (
        0,
        "clean, and every captured batch size was exercised (or what was not is accepted by \
         --accept-partial-coverage)",
    ),
    (1, "corrupted"),
    (2, "inconclusive: too little evidence or coverage, or ended early; it says which"),
    (
        CANNOT,
        "it could not run: no server, one that went away before the load, or a wrong command line \
         (2 elsewhere); or it is clean and a report could not be written",
    ),
    (INTERRUPTED, "a second Ctrl-C ended it at once"),
];

/// What stands below its help.
pub fn help() -> String {
    format!(
        "Sends multi-turn sessions with known answers, first one at a time, then all at once, to \
         any server of the OpenAI API, and tells apart what the server damaged, what the model got \
         wrong by itself, errors, timeouts and refusals. Ctrl-C ends with what was found.\n\n\
         Examples:\n  lockstep check\n  \
         lockstep check http://10.0.0.5:30000 --sessions 96 --rounds 3\n  \
         lockstep check http://127.0.0.1:8000 --bound 0.1% --time-limit 7200\n  \
         lockstep check --profile quick --sessions 8 --context 64 --max-tokens 200\n  \
         lockstep check --profile quick --max-tokens 300 --json\n  \
         lockstep check --isolate --html report.html --save report.json\n  \
         lockstep check --replay report.json\n\n{}",
        exit::listed("Exit codes of check:", &CODES)
    )
}

/// `0.1%` or `0.001`.
fn rate(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |n| (n, 100.0));
    let rate = number.trim().parse::<f64>().map(|n| n / scale).ok();
    rate.filter(|r| *r > 0.0 && *r < 1.0)
        .ok_or_else(|| format!("'{text}' is no rate between 0 and 1; write 0.1% or 0.001"))
}

/// What is wrong with what was asked for.
fn cannot(words: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, words)
}

/// Why there is no finding.
fn failed(e: CheckError) -> Failure {
    let exit = match &e {
        CheckError::Options(_) | CheckError::Log { .. } => Exit::Usage,
        CheckError::Silent { .. } => Exit::NoServer,
        CheckError::Lost(lost) if lost.outcome.is_some() => Exit::NoServer,
        CheckError::Lost(_) => Exit::Unwell,
        CheckError::Server { outcome, .. } if outcome.is_silent() => Exit::NoServer,
        CheckError::Server { .. } | CheckError::NoAnswer { .. } => Exit::Unwell,
        CheckError::Ended => return Failure { code: ENDED, ..Failure::new(Exit::Unexpected, e) },
    };
    Failure::new(exit, e)
}

/// Runs it. Its exit codes are its own.
pub fn run(args: &CheckArgs) -> ExitCode {
    match checked(args) {
        Ok(finding) => {
            let verdict = match finding.conclude() {
                Conclusion::Clean => 0,
                Conclusion::Corrupted { .. } => 1,
                Conclusion::Inconclusive { .. } => 2,
            };
            ExitCode::from(publish(args, &finding).code(verdict))
        }
        Err(failure) => {
            if args.json {
                // What cannot be printed there is said below.
                let _ = out::try_line(failure.to_json_of(CANNOT));
            }
            out::complain(format_args!("lockstep: {}", failure.message));
            ExitCode::from(CANNOT)
        }
    }
}

fn checked(args: &CheckArgs) -> Result<Finding, Failure> {
    let options = options(args)?;
    let client = client(args)?;
    for path in [&args.save, &args.html].into_iter().flatten() {
        results::can_write(path).map_err(cannot)?;
    }
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Failure::new(Exit::Unexpected, format!("no threads for the client: {e}")))?;
    let bar = bar(args.json);
    let stop = Stop::default();
    let found = runtime.block_on(async {
        let ended = stop.clone();
        crate::interrupt::once(move || ended.stop());
        check(client, options, watch(&bar), stop).await
    });
    bar.finish_and_clear();
    found.map_err(failed)
}

fn publish(args: &CheckArgs, finding: &Finding) -> Results {
    let json = report::json(finding).to_string();
    let mut results = Results::default();
    if let Some(path) = &args.save {
        results.file(path, &format!("{json}\n"));
    }
    if let Some(path) = &args.html {
        results.file(path, &report::html(finding));
    }
    if args.json {
        results.line(&json);
    } else {
        results.page(&report::summary(finding), |line| Some(hang(line)));
    }
    results
}

/// Where a line of the summary goes on: its labels are thirteen columns wide.
fn hang(line: &str) -> usize {
    if line.starts_with("  ") && !line.starts_with("     ") { 4 } else { 13 }
}

fn client(args: &CheckArgs) -> Result<Client, Failure> {
    let total = Duration::from_secs(args.timeout);
    // A request may wait in the server's queue for as long.
    let timeouts = Timeouts { total, idle: total, ..Timeouts::default() };
    let target = Target::parse(&args.url)
        .and_then(|t| t.with_api_key(args.api_key.as_deref()))
        .map_err(cannot)?;
    Ok(Client::new(target.with_model(args.model.as_deref()).with_timeouts(timeouts)))
}

fn options(args: &CheckArgs) -> Result<Options, Failure> {
    let profile = match args.profile {
        ProfileArg::Quick => Profile::Quick,
        ProfileArg::Gate => Profile::Gate,
        ProfileArg::Soak => Profile::Soak,
    };
    let mut options = match &args.replay {
        Some(path) => replayed(path)?,
        None => Options::of(profile),
    };
    if args.replay.is_none() {
        options.sessions = args.sessions.unwrap_or(options.sessions);
        options.sizes.rounds = args.rounds.unwrap_or(options.sizes.rounds);
        options.sizes.context_tokens = args.context;
        options.sizes.answer_tokens_max = args.max_tokens;
        options.seed = args.seed;
        options.bound = args.bound;
        options.accept_partial_coverage = args.accept_partial_coverage;
        options.calibrations = args.calibrations.unwrap_or(0);
        options.kinds = kinds(&args.kinds)?;
        options.deterministic = match args.deterministic {
            ClaimArg::Auto => Claim::Auto,
            ClaimArg::Yes => Claim::Yes,
            ClaimArg::No => Claim::No,
        };
    }
    options.time_limit = Duration::from_secs(args.time_limit);
    options.decode_log = args.decode_log.clone();
    options.isolate = args.isolate;
    if let Some(url) = &args.other_url {
        Target::parse(url).map_err(cannot)?;
    }
    options.other_url = args.other_url.clone();
    options.admin_key = args.admin_key.clone();
    options.validate().map_err(cannot)?;
    Ok(options)
}

fn kinds(names: &[String]) -> Result<Vec<Kind>, Failure> {
    let find = |name: &String| {
        Kind::find(name).ok_or_else(|| {
            let all = Kind::ALL.map(Kind::name).join(", ");
            cannot(format!("no kind of session is called '{name}'; there are: {all}"))
        })
    };
    names.iter().map(find).collect()
}

fn replayed(path: &Path) -> Result<Options, Failure> {
    let text = results::read(path, FILE_BYTES_MAX).map_err(cannot)?;
    report::replay(&text).map_err(|e| cannot(format!("{} {e}", path.display())))
}

/// The view of a running check; hidden where nobody sees it.
fn bar(is_quiet: bool) -> indicatif::ProgressBar {
    if is_quiet || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(0);
    let style = indicatif::ProgressStyle::with_template(
        "{spinner} {prefix}  {bar:24} {pos}/{len}  {elapsed}\n  {msg}",
    );
    bar.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn watch(bar: &indicatif::ProgressBar) -> Watch {
    let bar = bar.clone();
    Arc::new(move |p: &Progress| {
        bar.set_length(p.total);
        bar.set_position(p.done);
        bar.set_prefix(p.phase.clone());
        let t = &p.tally;
        bar.set_message(format!(
            "{} in flight; {} ok, {} wrong, {} corrupted, {} errors, {} timeouts, {} refused",
            p.in_flight, t.ok, t.wrong, t.corrupted, t.errors, t.timeouts, t.refused
        ));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shares_or_percent() {
        assert_eq!(rate("0.1%"), Ok(0.001));
        assert_eq!(rate("0.25"), Ok(0.25));
        for bad in ["", "%", "0", "100%", "-1%", "NaN", "x"] {
            assert!(rate(bad).unwrap_err().contains("0.1%"), "{bad}");
        }
    }

    /// A request that waited for more than a minute was once a timeout, whatever was asked.
    #[test]
    fn an_answer_may_take_as_long_as_the_timeout_says() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            check: CheckArgs,
        }
        let line = <Line as clap::Parser>::parse_from(["x", "--timeout", "300"]);
        let timeouts = client(&line.check).unwrap().target().timeouts;
        assert_eq!((timeouts.idle.as_secs(), timeouts.total.as_secs()), (300, 300));
    }

    #[test]
    fn an_unknown_kind_is_told_what_there_is() {
        let words = kinds(&["song".into()]).unwrap_err().message;
        assert!(words.contains("report, lookup, echo, list"), "{words}");
    }
}
