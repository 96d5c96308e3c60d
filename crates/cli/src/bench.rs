//! `lockstep bench`: arguments and wiring of the load generator.

use crate::exit::{self, ENDED, Exit, Failure, INTERRUPTED};
use crate::out;
use crate::results::{self, CANNOT, Results};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use indicatif::{ProgressBar, ProgressStyle};
use lockstep_check::bench::{
    self, Arrivals, CONCURRENCY_MAX, Dataset, FILE_BYTES_MAX, Pair, Point, Progress, Server,
    Settings, Slo, Workload,
};
use lockstep_check::client::{Call, Client, Target, Timeouts};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The interval is as narrow as asked.
const DONE: u8 = 0;
/// It is not, or the run was ended early.
const INCONCLUSIVE: u8 = 2;

/// What `--help` shows below the flags.
pub fn help() -> String {
    let about = "Prompts are random token ids of the exact length where the server takes them, else words that \
     it has counted. Every load is warmed up, then run until the 95% interval of its tokens a \
     second is narrower than --ci, or --max-repeats runs are done. Ctrl-C ends with what is there.\n\n\
     Examples:\n  \
     lockstep bench\n  \
     lockstep bench http://host:8000/v1 -c 1,8,32,64,96 --input 320 --output 256\n  \
     lockstep bench --rate 2,4,8 --dataset sharegpt-like --slo-ttft-ms 500\n  \
     lockstep bench --dataset multi-turn --turns 6 --html bench.html\n  \
     lockstep bench http://a:30001 --compare http://b:8000 -c 16 --json both.jsonl\n  \
     lockstep bench show both.jsonl --html both.html\n\n";
    let codes = [
        (DONE, "done, and every interval is as narrow as asked"),
        (INCONCLUSIVE, "inconclusive: an interval is wider, or the run was ended early"),
        (
            CANNOT,
            "could not run: no server, no answers, or a wrong command line; or a result could not \
             be written",
        ),
        (INTERRUPTED, "a second Ctrl-C ended it at once"),
    ];
    format!("{about}{}", exit::listed("Exit codes of bench:", &codes))
}

/// `bench`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Look at an earlier result
    #[command(subcommand)]
    show: Option<BenchCmd>,
    /// The server's address
    #[arg(default_value = "http://127.0.0.1:30001")]
    url: String,
    /// Requests at once, one load each
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,32",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CONCURRENCY_MAX)))]
    concurrency: Vec<u32>,
    /// Requests a second instead, arriving at random (Poisson), one load each
    #[arg(long, value_name = "R,...", value_delimiter = ',', value_parser = rate, conflicts_with = "concurrency")]
    rate: Vec<f64>,
    /// Prompt tokens of a request (of a turn's message in multi-turn)
    #[arg(long, value_name = "TOKENS", default_value_t = 320, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    input: u32,
    /// Output tokens of a request
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    output: u32,
    /// What requests are like: fixed, sharegpt-like, multi-turn, shared-prefix
    #[arg(long, value_name = "NAME", default_value = "fixed")]
    dataset: Dataset,
    /// Tokens that prompts of a group share, in shared-prefix [default: three quarters of --input]
    #[arg(long, value_name = "TOKENS")]
    prefix: Option<u32>,
    /// Groups of shared-prefix
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    groups: u32,
    /// Turns of a conversation, in multi-turn
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    turns: u32,
    /// Requests a run [default: twice the concurrency; half a minute of a rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Option<u32>,
    /// Stop repeating when the 95% interval of tokens a second is within this of the mean: 3%, 0.03
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    ci: f64,
    /// Runs of a load, at least
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    min_repeats: u32,
    /// Runs of a load, at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_repeats: u32,
    /// Go without the warm-up before each load
    #[arg(long)]
    no_warmup: bool,
    /// A good request has its first token within this
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_ttft_ms: Option<f64>,
    /// A good request takes at most this an output token after the first
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_tpot_ms: Option<f64>,
    /// A good request ends within this
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_e2e_ms: Option<f64>,
    /// A second server, measured in turns with the first (A B B A); ratios are its over the first's
    #[arg(long, value_name = "URL")]
    compare: Option<String>,
    /// Which endpoint: completions, chat [default: completions, where the server has it]
    #[arg(long, value_enum)]
    endpoint: Option<Endpoint>,
    /// The model's name; by default the first that the server lists
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Its API key [env: LOCKSTEP_SERVER_API_KEY]
    #[arg(long, env = "LOCKSTEP_SERVER_API_KEY", hide_env_values = true, hide_env = true)]
    api_key: Option<String>,
    /// Makes prompts, lengths and arrivals
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Seconds that a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Where results go.
    #[command(flatten)]
    output_to: OutputArgs,
}

/// `bench show`.
#[derive(Subcommand, Debug)]
enum BenchCmd {
    /// Show a file of an earlier `bench --json`, or of SGLang's bench_serving
    #[command(after_help = "Examples:\n  lockstep bench show bench.jsonl\n  \
                      lockstep bench show sglang.jsonl --html sglang.html --csv -")]
    Show(ShowArgs),
}

/// `bench show`.
#[derive(Args, Debug)]
struct ShowArgs {
    /// The file, one JSON object a line
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where results go.
    #[command(flatten)]
    output_to: OutputArgs,
}

/// Where results go beside the table.
#[derive(Args, Debug)]
struct OutputArgs {
    /// Write one JSON object a load to FILE; - is standard output, without the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Write a CSV table to FILE; - is standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    csv: Option<PathBuf>,
    /// Write one page with plots to FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Endpoint {
    Completions,
    Chat,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && n > 0.0 => Ok(n),
        _ => Err("a number above 0 would work".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    positive(text).and_then(|r| match r {
        0.001..=100_000.0 => Ok(r),
        _ => Err("from 0.001 to 100000 requests a second would work".into()),
    })
}

fn share(text: &str) -> Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => positive(percent).map(|p| p / 100.0),
        None => positive(text),
    };
    value.ok().filter(|v| *v < 1.0).ok_or_else(|| "a share such as 3% or 0.03 would work".into())
}

/// Runs the command; the exit codes are its own.
pub fn run(args: &BenchArgs) -> ExitCode {
    let result = match &args.show {
        Some(BenchCmd::Show(show)) => show_file(show),
        None => measure(args),
    };
    let output = match &args.show {
        Some(BenchCmd::Show(show)) => &show.output_to,
        None => &args.output_to,
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if output.is_json_on_stdout() {
                // What cannot be printed there is said below.
                let _ = out::try_line(failure.to_json_of(CANNOT));
            }
            out::complain(format_args!("lockstep: {}", failure.message));
            ExitCode::from(CANNOT)
        }
    }
}

/// What is wrong with what was asked for.
fn cannot(words: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, words)
}

impl OutputArgs {
    fn is_json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    fn is_stdout_taken(&self) -> bool {
        self.is_json_on_stdout() || self.csv.as_deref() == Some(Path::new("-"))
    }

    /// Finds out before anything is measured whether the files can be written.
    fn check(&self) -> Result<(), String> {
        let mut files = [&self.json, &self.csv, &self.html].into_iter().flatten();
        files.try_for_each(|path| match path.as_path() == Path::new("-") {
            true => Ok(()),
            false => results::can_write(path),
        })
    }

    /// Writes everything that was asked for. `pairs` are comparisons.
    fn write(&self, points: &[Point], pairs: &[Pair]) -> Results {
        let mut results = Results::default();
        if let Some(path) = &self.json {
            results.file(path, &bench::lines(points, pairs));
        }
        if let Some(path) = &self.csv {
            results.file(path, &bench::csv(points));
        }
        if let Some(path) = &self.html {
            results.file(path, &bench::page(points, pairs));
        }
        if self.is_stdout_taken() {
            return results;
        }
        let mut table = vec![bench::table(points).trim_end().to_owned()];
        table.extend(pairs.iter().map(|(p, r)| bench::compared(p, r).trim_end().to_owned()));
        table.extend(bench::notes(points, pairs));
        table.extend(bench::overhead(points));
        results.page(&table.join("\n"), |line| out::is_prose(line).then_some(2));
        results
    }
}

fn show_file(args: &ShowArgs) -> Result<u8, Failure> {
    let text = results::read(&args.file, FILE_BYTES_MAX).map_err(cannot)?;
    let (points, pairs) =
        bench::read(&text).map_err(|e| cannot(format!("{}: {e}", args.file.display())))?;
    Ok(args.output_to.write(&points, &pairs).code(DONE))
}

fn settings(args: &BenchArgs, context_tokens: Option<u32>) -> Settings {
    let concurrency_max = CONCURRENCY_MAX;
    let loads = if args.rate.is_empty() {
        args.concurrency.iter().map(|&concurrency| Arrivals::Closed { concurrency }).collect()
    } else {
        args.rate.iter().map(|&rate| Arrivals::Open { rate, concurrency_max }).collect()
    };
    Settings {
        loads,
        workload: Workload {
            dataset: args.dataset,
            input_tokens: args.input,
            output_tokens: args.output,
            prefix_tokens: args.prefix.unwrap_or(args.input / 4 * 3),
            groups: args.groups,
            turns: args.turns,
            context_tokens,
        },
        requests: args.requests,
        seed: args.seed,
        ci: args.ci,
        repeats_min: args.min_repeats,
        repeats_max: args.max_repeats,
        slo: Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms, e2e_ms: args.slo_e2e_ms },
        has_warmup: !args.no_warmup,
    }
}

/// Refuses flags that contradict each other, each with what would work.
fn consistent(args: &BenchArgs) -> Result<(), String> {
    let (min, max) = (args.min_repeats, args.max_repeats);
    if min > max {
        return Err(format!(
            "--min-repeats {min} is more than --max-repeats {max}; raise the one or lower the other"
        ));
    }
    if let Some(prefix) = args.prefix {
        let (input, dataset) = (args.input, args.dataset);
        if dataset != Dataset::SharedPrefix {
            return Err(format!("--prefix is of --dataset shared-prefix, and this is {dataset}"));
        }
        if prefix >= input {
            return Err(format!(
                "--prefix {prefix} leaves nothing of --input {input} for a request's own; at most \
                 {} would work",
                input.saturating_sub(1)
            ));
        }
    }
    let Some(requests) = args.requests.filter(|_| args.rate.is_empty()) else { return Ok(()) };
    let turns = if args.dataset == Dataset::MultiTurn { args.turns } else { 1 };
    let most = requests.div_ceil(turns);
    match args.concurrency.iter().max() {
        Some(&c) if c > most => Err(format!(
            "-c {c} is never reached with --requests {requests}{}; at least --requests {}, or at \
             most -c {most}, would work",
            if turns > 1 { format!(" in conversations of {turns}") } else { String::new() },
            u64::from(c) * u64::from(turns)
        )),
        _ => Ok(()),
    }
}

fn measure(args: &BenchArgs) -> Result<u8, Failure> {
    consistent(args).and_then(|()| args.output_to.check()).map_err(cannot)?;
    raise_file_limit();
    // One thread: waking another one for each chunk would cost more than reading it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|e| Failure::new(Exit::Unexpected, format!("no runtime: {e}")))?;
    let progress = Progress::default();
    let shown = show_progress(&progress);
    let result = runtime.block_on(measure_all(args, &progress));
    drop(shown);
    let (points, pairs) = result?;
    if points.iter().all(|p| p.totals.completed == 0) {
        let why = bench::notes(&points, &pairs).join("\n");
        if progress.is_stopped() {
            return Err(ended(format!("ended before a request was answered in full\n{why}")));
        }
        let words = format!("not one request was answered in full\n{why}");
        return Err(Failure::new(Exit::Unwell, words));
    }
    if progress.is_stopped() {
        out::complain(format_args!(
            "lockstep: ended early: what follows is of the runs that were whole, and of a load's \
             first run where none was"
        ));
    }
    let results = args.output_to.write(&points, &pairs);
    let is_narrow = if args.compare.is_some() {
        pairs.iter().all(|(_, c)| c.is_conclusive)
    } else {
        points.iter().all(|p| p.extra.as_ref().is_some_and(|e| e.is_conclusive))
    };
    let is_whole = !progress.is_stopped();
    Ok(results.code(if is_narrow && is_whole { DONE } else { INCONCLUSIVE }))
}

/// What an operator ended before there was anything to show.
fn ended(words: impl std::fmt::Display) -> Failure {
    Failure { code: ENDED, ..Failure::new(Exit::Unexpected, words) }
}

type Measured = (Vec<Point>, Vec<Pair>);

async fn measure_all(args: &BenchArgs, progress: &Progress) -> Result<Measured, Failure> {
    let stopped = progress.clone();
    crate::interrupt::once(move || stopped.stop());
    let first = server(args, &args.url, progress).await?;
    let (mut points, mut pairs) = (Vec::new(), Vec::new());
    match &args.compare {
        None => {
            let settings = settings(args, first.context_tokens);
            bench::sweep(&first, &settings, progress, |p| points.push(p)).await;
        }
        Some(url) => {
            let second = server(args, url, progress).await?;
            let context = [first.context_tokens, second.context_tokens].into_iter().flatten().min();
            let settings = settings(args, context);
            bench::compare([&first, &second], &settings, progress, |both, ratios| {
                points.extend(both.clone());
                pairs.push((both, ratios));
            })
            .await;
        }
    }
    Ok((points, pairs))
}

async fn server(args: &BenchArgs, url: &str, progress: &Progress) -> Result<Server, Failure> {
    let target = Target::parse(url).map_err(cannot)?;
    let target = target
        .with_api_key(args.api_key.as_deref())
        .map_err(cannot)?
        .with_model(args.model.as_deref())
        .with_timeouts(Timeouts {
            total: Duration::from_secs(args.timeout),
            // A request may wait in the server's queue for as long.
            idle: Duration::from_secs(args.timeout),
            ..Timeouts::default()
        });
    let call = match (args.dataset, args.endpoint) {
        // A conversation is made of messages.
        (Dataset::MultiTurn, _) | (_, Some(Endpoint::Chat)) => Some(Call::Chat),
        (_, Some(Endpoint::Completions)) => Some(Call::Completions),
        (_, None) => None,
    };
    tokio::select! {
        server = Server::probe(Client::new(target), call) => server.map_err(|e| {
            let exit = if e.is_silent() { Exit::NoServer } else { Exit::Unwell };
            Failure::new(exit, e)
        }),
        () = progress.stopped() => Err(ended("ended before the server had answered")),
    }
}

/// A thousand streams are a thousand files; the usual limit is 1,024.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, connections beyond it fail with words.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum },
    );
}

/// Shows progress in a terminal until it is dropped.
fn show_progress(progress: &Progress) -> Option<Shown> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::new(0);
    let template = "{spinner} {msg} [{bar:24}] {pos}/{len} {elapsed}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let progress = progress.clone();
    let thread = std::thread::spawn(move || {
        let tick = Duration::from_millis(200);
        while stopped.recv_timeout(tick) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let look = progress.look();
            bar.set_length(look.requests);
            bar.set_position(look.ended);
            let bad = match (look.refused, look.failed) {
                (0, 0) => String::new(),
                (refused, failed) => format!(", {refused} refused, {failed} failed"),
            };
            bar.set_message(format!("{}, {} under way{bad}", look.what, look.live));
            bar.tick();
        }
        bar.finish_and_clear();
    });
    Some(Shown { stop: Some(stop), thread: Some(thread) })
}

struct Shown {
    stop: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it has said its words already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_in_both_ways() {
        assert_eq!((share("3%"), share("0.03")), (Ok(0.03), Ok(0.03)));
        for bad in ["3", "0", "-1%", "x", "nan", "inf%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert!(rate("0.5").is_ok() && rate("0").is_err() && rate("inf").is_err());
    }
}
