//! A knob's value that turned out not to work, in the operator's words.

use crate::exit::{Exit, Failure};
use crate::memory;
use crate::settings::variable;
use lockstep_device::DeviceError;
use lockstep_engine::EngineError;
use lockstep_flow::Settings;
use lockstep_flow::settings::Source;
use lockstep_sched::SchedError;

/// Which knob a bound of the scheduler comes from.
fn knob_of_bound(what: &str) -> Option<&'static str> {
    Some(match what {
        "running_requests_max" => "sched.max-running-requests",
        "queued_requests_max" => "sched.max-queued-requests",
        "chunked_prefill_tokens" => "sched.chunked-prefill-size",
        "context_tokens_max" => "model.context-length",
        _ => return None,
    })
}

/// Names the knob as the command line, the settings file and the environment do. The exit code is
/// that of where its value came from; a default that does not work is the machine's or the
/// model's doing.
fn failure(settings: &Settings, name: &str, what: &str) -> Failure {
    let setting = settings.get(name);
    let knob = setting.knob;
    let exit = match setting.source {
        Source::Flag => Exit::Usage,
        Source::File | Source::Env | Source::Change => Exit::Settings,
        Source::Default => Exit::Resources,
    };
    let (flag, variable) = (knob.flag, variable(knob));
    let words = format!("--{flag} ({} in lockstep.toml, {variable}): {what}", knob.name);
    Failure::new(exit, words)
}

/// A failure to start the engine.
pub fn of_engine(settings: &Settings, e: EngineError) -> Failure {
    match &e {
        EngineError::Knob { name, found, expected } => {
            failure(settings, name, &format!("it is {found}; it must be {expected}"))
        }
        EngineError::KvMemory { kv_bytes, page_bytes, pages_min } => {
            let needed = page_bytes * u64::from(*pages_min);
            let what = format!(
                "it is {kv_bytes} bytes, and this model needs {needed} at least ({pages_min} \
                 pages of {page_bytes})"
            );
            failure(settings, "pool.kv-memory", &what)
        }
        EngineError::Sched(SchedError::Config { what, found, min, max }) => {
            match knob_of_bound(what) {
                Some(name) => {
                    failure(settings, name, &format!("it is {found}; it takes {min} to {max}"))
                }
                None => Failure::new(Exit::Unexpected, e),
            }
        }
        EngineError::Sched(SchedError::LadderTooSmall { .. }) => {
            failure(settings, "sched.max-running-requests", &e.to_string())
        }
        EngineError::Device(e) => of_device(settings, e),
        EngineError::Model(_) => Failure::new(Exit::BadModel, e),
        EngineError::Refused { .. } | EngineError::Sched(_) => Failure::new(Exit::Unexpected, e),
        _ => Failure::new(Exit::Resources, e),
    }
}

/// A token pool that is larger than all the memory there is.
pub fn pool_beyond_memory(settings: &Settings, pool_bytes: u64, memory_bytes: u64) -> Failure {
    let asked = settings.number("pool.kv-memory");
    let used = match asked.saturating_sub(pool_bytes) >> 20 {
        0 => String::new(),
        _ => format!(", of which this model's sequences can use {}", memory::shown(pool_bytes)),
    };
    let what = format!(
        "it is {}{used}, and this machine's memory has {}; a value well below that would work",
        memory::shown(asked),
        memory::shown(memory_bytes)
    );
    let words = failure(settings, "pool.kv-memory", &what).message;
    Failure::new(Exit::Resources, words)
}

/// A failure of the device.
pub fn of_device(settings: &Settings, e: &DeviceError) -> Failure {
    let named =
        |name| Failure::new(Exit::Resources, failure(settings, name, &e.to_string()).message);
    match e {
        DeviceError::Isa(_) => named("device.isa"),
        DeviceError::Threads(_) => named("device.threads"),
        DeviceError::OutOfMemory { what, .. } if what.ends_with("_pages") => {
            named("pool.kv-memory")
        }
        _ => Failure::new(Exit::Resources, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str, source: Source) -> Settings {
        let mut settings = Settings::default();
        let knob = lockstep_flow::knobs::find(name).unwrap();
        settings.set(knob, value, source).unwrap();
        settings
    }

    #[test]
    fn a_pool_too_small_says_what_the_model_needs() {
        let e = EngineError::KvMemory { kv_bytes: 1 << 20, page_bytes: 737_408, pages_min: 3 };
        let failure = of_engine(&with("pool.kv-memory", "1MiB", Source::Flag), e);
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.starts_with("--kv-memory "), "{}", failure.message);
        assert!(failure.message.contains("needs 2212224 at least"), "{}", failure.message);
    }

    /// What was found: a server with `--kv-memory 900GiB` started on a machine of 24, with a warning.
    #[test]
    fn a_pool_beyond_the_memory_is_refused_with_both_sizes() {
        let settings = with("pool.kv-memory", "900GiB", Source::Flag);
        let failure = pool_beyond_memory(&settings, 900 << 30, 24 << 30);
        assert_eq!((failure.exit, failure.code), (Exit::Resources, "resources"));
        let words = failure.message;
        assert!(
            words.contains("it is 900.0 GiB, and this machine's memory has 24.0 GiB"),
            "{words}"
        );
        let words = pool_beyond_memory(&settings, 216 << 30, 24 << 30).message;
        assert!(words.contains("of which this model's sequences can use 216.0 GiB"), "{words}");
    }

    /// `--context-length 1` once said that `context_tokens_max` is 1, and exited with 1.
    #[test]
    fn a_bound_of_the_scheduler_names_its_knob() {
        for (what, flag, name) in [
            ("context_tokens_max", "context-length", "model.context-length"),
            ("running_requests_max", "max-running-requests", "sched.max-running-requests"),
            ("queued_requests_max", "max-queued-requests", "sched.max-queued-requests"),
            ("chunked_prefill_tokens", "chunked-prefill-size", "sched.chunked-prefill-size"),
        ] {
            let e = || EngineError::Sched(SchedError::Config { what, found: 1, min: 2, max: 9 });
            for (source, exit) in [(Source::Flag, Exit::Usage), (Source::File, Exit::Settings)] {
                let failure = of_engine(&with(name, "64", source), e());
                assert_eq!(failure.exit, exit);
                let starts = format!("--{flag} ({name} in lockstep.toml, LOCKSTEP_");
                assert!(failure.message.starts_with(&starts), "{}", failure.message);
                assert!(!failure.message.contains(what), "{}", failure.message);
            }
        }
    }
}
