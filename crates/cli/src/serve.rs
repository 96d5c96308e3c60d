//! `lockstep serve`: settings, model, engine, sockets, signals.

use crate::args::ServeArgs;
use crate::build::{self, Built};
use crate::exit::{Exit, Failure, INTERRUPTED};
use crate::lab::Lab;
use crate::resolve::ModelFiles;
use crate::{notify, resolve, settings, store};
use lockstep_flow::settings::Source;
use lockstep_flow::{EngineStatus, Settings};
use lockstep_serve::{Bound, ServeConfig, ServeError};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Threads that serve sockets; the others are the device's.
const SOCKET_THREADS: usize = 2;
/// Threads that tokenize, render and compile grammars, at most.
const WORK_THREADS: usize = 4;

fn unexpected(doing: &str, e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Unexpected, format!("{doing}: {e}"))
}

fn start_log(json: bool) {
    // LOCKSTEP_LOG takes tracing's filters: debug, lockstep_serve=trace, ...
    let asked = std::env::var("LOCKSTEP_LOG").ok().filter(|text| !text.is_empty());
    let filter = asked.as_deref().map_or_else(|| Ok("info".into()), EnvFilter::try_new);
    let fault = filter.as_ref().err().map(ToString::to_string);
    let filter = filter.unwrap_or_else(|_| "info".into());
    // A log that cannot be written must not end the server, and its errors have nowhere to go.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    if json {
        log.json().init();
    } else {
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        log.with_target(false).with_ansi(colours).init();
    }
    if let Some(fault) = fault {
        tracing::warn!("LOCKSTEP_LOG is no filter ({fault}); logging at info");
    }
}

/// A connection is a descriptor: the soft limit of many systems (1024) is below the default queue.
fn raise_descriptor_limit(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(wanted, |max| wanted.min(max));
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        if let Err(e) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!("the limit of open files stays as it is: {e}");
        }
    }
}

/// Serves until a signal.
pub fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    start_log(args.json);
    let begun = Instant::now();
    let Some((lab, knobs)) = Lab::of(&args.lab, &args.knobs)? else { return Ok(Exit::Done) };
    let loaded = settings::load(args.config.as_deref(), std::env::vars_os(), &knobs)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(file) = &loaded.file {
        tracing::info!("settings from {}", file.display());
    }
    let settings_file = loaded.file.clone().unwrap_or_else(|| settings::FILE.into());
    let settings_file = std::path::absolute(&settings_file).unwrap_or(settings_file);
    let settings = loaded.settings;
    raise_descriptor_limit(settings.number("server.max-connections") + 256);
    let runtime = runtime()?;
    let bound = bind(&runtime, &settings)?;
    tracing::info!(
        "listening on http://{}, loading {}",
        bound.address(),
        settings.text("model.path")
    );
    // Fetching ends with a signal like any program; the store is made for that.
    let files = resolve::model(&settings, store)?;
    if let Some(words) = &files.stands_in {
        tracing::warn!(event = "model_fallback", "{words}");
    }
    let loading = Arc::new(AtomicBool::new(true));
    let stopped = runtime.block_on(async { signals(Arc::clone(&loading)) })?;
    let built = build::build(&settings, &files, &lab)?;
    loading.store(false, Ordering::SeqCst);
    let config = ServeConfig {
        aliases: files.aliases.clone(),
        launch_command: Some(launch_command(&files)),
        settings_file: Some(settings_file),
        settings,
    };
    lab.begin();
    ready(args.json, bound.address(), &built, &config, begun);
    notify::manager("READY=1");
    let drained = runtime.block_on(async {
        let Built { engine, text } = built;
        bound.serve(config, engine, text, stopped).await
    });
    tracing::info!("stopped: {drained}");
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(Exit::Done)
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .worker_threads(SOCKET_THREADS)
        .max_blocking_threads(WORK_THREADS)
        .thread_name("lockstep-http")
        .enable_all()
        .build()
        .map_err(|e| unexpected("starting the threads of the server", e))
}

fn bind(runtime: &Runtime, settings: &Settings) -> Result<Bound, Failure> {
    let host = settings.text("server.host");
    let port = settings.number("server.port") as u16;
    let bound = runtime.block_on(Bound::bind(host, port));
    bound.map_err(|e: ServeError| Failure::new(Exit::Listen, e))
}

/// Ends with the first SIGINT or SIGTERM; a second one ends the process at once, whatever it does.
/// While `loading` the first one does: there is nothing to drain.
fn signals(loading: Arc<AtomicBool>) -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let listen = |kind| signal(kind).map_err(|e| unexpected("listening for signals", e));
    let mut interrupt: Signal = listen(SignalKind::interrupt())?;
    let mut terminate: Signal = listen(SignalKind::terminate())?;
    let (first, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        next().await;
        if loading.load(Ordering::SeqCst) {
            tracing::info!("stopped: a signal came while it was loading");
            std::process::exit(i32::from(Exit::Done as u8));
        }
        // Nobody waits any more only where the server has ended by itself.
        notify::manager("STOPPING=1");
        let _ = first.send(());
        next().await;
        tracing::warn!("stopped: a second signal ends it at once, with whatever was running");
        std::process::exit(i32::from(INTERRUPTED));
    });
    Ok(async move {
        let _ = stopped.await;
    })
}

/// What was chosen, for people, for machines, and for parsers of SGLang's log.
fn ready(json: bool, at: SocketAddr, built: &Built, config: &ServeConfig, begun: Instant) {
    let s = built.engine.status();
    let kv_bytes: u64 = s.pools.iter().map(|p| p.bytes_total).sum();
    tracing::info!(
        "max_total_num_tokens={}, chunked_prefill_size={}, max_running_requests={}, \
         max_queued_requests={}, context_len={}, kv_memory={} bytes",
        s.capacity_tokens(),
        s.chunked_prefill_tokens,
        s.running_max,
        s.queued_max,
        s.model.context_max_tokens,
        kv_bytes,
    );
    tell_of_eager(&s, &config.settings);
    let open = config.settings.text_opt("server.api-key").is_none();
    if open && !at.ip().is_loopback() {
        tracing::warn!("anyone who reaches {at} can use this server: there is no --api-key");
    }
    let name = config.model_name(&s.model);
    let seconds = begun.elapsed().as_secs_f64();
    if json {
        let report = json!({
            "event": "ready",
            "url": format!("http://{at}"),
            "model": name,
            "capacity_tokens": s.capacity_tokens(),
            "seconds": seconds,
            "lab": s.lab.as_ref().map(|lab| &lab.drill),
        });
        announce(&report.to_string());
    } else {
        announce(&format!("serving {name} at http://{at} after {seconds:.2} s"));
    }
}

/// One line on standard output. A server goes on where nobody reads it (any more).
fn announce(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Warns where somebody chose one of the two limits; of the defaults, which leave a gap on purpose,
/// it only tells. Where batches really grow past the ceiling, the alarm of this name is raised.
fn tell_of_eager(s: &EngineStatus, settings: &Settings) {
    let largest = s.captured_decode_sizes().last().copied().unwrap_or(0);
    if s.running_max <= largest {
        return;
    }
    let is_chosen = |name| settings.get(name).source != Source::Default;
    if ["decode.graph-max-bs", "sched.max-running-requests"].into_iter().any(is_chosen) {
        tracing::warn!(
            event = "eager_above_ceiling",
            max_running_requests = s.running_max,
            largest_captured = largest,
            "max_running_requests is {} and the largest captured decode bucket {largest}: larger \
             batches run eagerly, which is slower, so requests stay longer and batches grow; \
             raise --graph-max-bs or lower --max-running-requests to avoid it",
            s.running_max,
        );
    } else {
        tracing::info!(
            "up to {} requests run at once; decode batches of more than {largest} run eagerly \
             until --graph-max-bs is raised",
            s.running_max,
        );
    }
}

/// The command line without secrets.
fn launch_command(files: &ModelFiles) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut hide = false;
    for word in std::env::args() {
        let secret = word.starts_with("--api-key") || word.starts_with("--admin-key");
        words.push(match word.split_once('=') {
            Some((flag, _)) if secret => format!("{flag}=(set)"),
            _ if hide => "(set)".into(),
            _ => word.clone(),
        });
        hide = secret && !word.contains('=');
    }
    tracing::debug!("serving {}", files.path.display());
    words.join(" ")
}
