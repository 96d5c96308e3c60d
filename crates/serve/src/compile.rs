//! Grammars are compiled away from everything else.
//!
//! What a client sends as a schema or a grammar decides how deep and how long the compiler
//! recurses: a chain of a few hundred references once overflowed the stack and ended the process,
//! and a handful of patterns held the threads that every request needs. So a compilation has a
//! thread of its own, with a stack for the deepest source that is taken, and few companions. It
//! ends by itself: its work is counted, and what is not counted is ended by the clock
//! (`lockstep_flow::limits`). The hardest sources known take 0.7 s.

use crate::app::App;
use crate::error::ApiError;
use crate::prepare::text_error;
use lockstep_flow::{Refusal, TokenMask};
use lockstep_text::GrammarSpec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Address space of a compilation's stack; only what is touched becomes memory.
const STACK_BYTES: usize = 1 << 30;

/// How long a request waits for its grammar: a guard against work that nothing counts.
const COMPILE_LIMIT: Duration = Duration::from_secs(10);

/// Compilations at once, those included whose requests no longer wait.
const COMPILING_MAX: usize = 4;

/// How long a request waits for one of those places: several of the hardest ones.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

static COMPILING: AtomicUsize = AtomicUsize::new(0);

/// A place among the compilations; given back when the compilation ends, whoever waits.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let until = Instant::now() + PLACE_LIMIT;
        let more = |n: usize| (n < COMPILING_MAX).then_some(n + 1);
        loop {
            if COMPILING.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
                return Some(Place);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        COMPILING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Compiles `spec`, which came from `field`, for `count` sequences. Blocks for up to [`COMPILE_LIMIT`].
///
/// # Errors
/// 422 where it does not compile, or not in time; 503 where slow ones take all places.
pub fn grammars(
    app: &App,
    field: &str,
    spec: &GrammarSpec,
    after_reasoning: Option<&str>,
    count: usize,
) -> Result<Vec<Box<dyn TokenMask>>, ApiError> {
    let place = Place::take().ok_or_else(|| {
        let why = format!("{COMPILING_MAX} grammars that take long are being compiled; retry");
        ApiError::Refused { refusal: Refusal::NotServing { why }, param: "" }
    })?;
    let (done, wait) = sync_channel(1);
    let (text, spec) = (Arc::clone(&app.text), spec.clone());
    let after = after_reasoning.map(str::to_owned);
    let work = move || {
        let made = text.grammars(&spec, after.as_deref(), count);
        drop(place);
        // A request that has stopped waiting has been answered.
        let _ = done.send(made);
    };
    std::thread::Builder::new()
        .name("grammar".into())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(|e| ApiError::Internal { what: format!("no thread for a grammar: {e}") })?;
    match wait.recv_timeout(COMPILE_LIMIT) {
        Ok(made) => made.map_err(|e| text_error(field, &e)),
        Err(RecvTimeoutError::Timeout) => {
            let seconds = COMPILE_LIMIT.as_secs();
            let what = format!("takes more than {seconds} s to compile: make it smaller");
            Err(ApiError::unsupported(field, what))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let what = "made the grammar compiler fail: simplify it".to_owned();
            Err(ApiError::unsupported(field, what))
        }
    }
}
