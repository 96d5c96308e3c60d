//! How far a benchmark is, for whoever shows it, and the wish that it end.

use crate::stop::Stop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared between the benchmark and what shows it.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    what: Mutex<String>,
    requests: AtomicU64,
    ended: AtomicU64,
    live: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    stop: Stop,
}

/// What [`Progress::look`] sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What is being done, in words.
    pub what: String,
    /// Requests of this run, those that ended, and those under way.
    pub requests: u64,
    /// Requests of this run that ended.
    pub ended: u64,
    /// Requests under way.
    pub live: u64,
    /// Refused so far.
    pub refused: u64,
    /// Failed so far.
    pub failed: u64,
}

impl Progress {
    /// A look from outside.
    pub fn look(&self) -> Look {
        let s = &self.shared;
        Look {
            what: s.what.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            requests: s.requests.load(Relaxed),
            ended: s.ended.load(Relaxed),
            live: s.live.load(Relaxed),
            refused: s.refused.load(Relaxed),
            failed: s.failed.load(Relaxed),
        }
    }

    /// Asks the benchmark to end with what it has.
    pub fn stop(&self) {
        self.shared.stop.stop();
    }

    /// Whether it was asked to.
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.is_stopped()
    }

    /// Returns once it was asked to.
    pub async fn stopped(&self) {
        self.shared.stop.stopped().await;
    }

    pub(super) fn begin(&self, what: String, requests: u64) {
        let s = &self.shared;
        *s.what.lock().unwrap_or_else(PoisonError::into_inner) = what;
        s.requests.store(requests, Relaxed);
        s.ended.store(0, Relaxed);
        s.live.store(0, Relaxed);
    }

    pub(super) fn request_begins(&self) {
        self.shared.live.fetch_add(1, Relaxed);
    }

    pub(super) fn request_ends(&self, class: super::sample::Class) {
        use super::sample::Class;
        let s = &self.shared;
        s.ended.fetch_add(1, Relaxed);
        let live = s.live.load(Relaxed);
        s.live.store(live.saturating_sub(1), Relaxed);
        let counter = match class {
            Class::Done => return,
            Class::Refused => &s.refused,
            _ => &s.failed,
        };
        counter.fetch_add(1, Relaxed);
    }
}
