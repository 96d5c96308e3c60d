//! What other threads may see of the engine.

use lockstep_flow::status::Health;
use lockstep_flow::{EngineStatus, GenerationReport, Refusal};
use lockstep_sched::Limits;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Shared between the step thread and everybody else.
#[derive(Debug)]
pub struct Shared {
    /// What no request can exceed.
    pub limits: Limits,
    /// Most live requests: running and queued. A flip may change it.
    pub live_max: AtomicU32,
    /// The live generation's number: a flip is one store to it.
    pub live_generation: AtomicU64,
    /// Manifests compared, by the step thread and by builders.
    pub manifest_checks: AtomicU64,
    /// Generations rejected, by either.
    pub rejected: AtomicU64,
    /// `max_queued_requests`, for words.
    pub queued_max: u32,
    /// Live requests: admitted and not ended.
    live: AtomicU32,
    /// Estimate for `Retry-After`.
    pub retry_after_s: AtomicU32,
    /// Why nothing new is taken.
    closed: Mutex<Option<String>>,
    status: Mutex<EngineStatus>,
}

impl Shared {
    /// Everything open and nothing live.
    pub fn new(limits: Limits, live_max: u32, status: EngineStatus) -> Shared {
        Shared {
            limits,
            live_max: AtomicU32::new(live_max),
            live_generation: AtomicU64::new(status.generation),
            manifest_checks: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            queued_max: status.queued_max,
            live: AtomicU32::new(0),
            retry_after_s: AtomicU32::new(1),
            closed: Mutex::new(None),
            status: Mutex::new(status),
        }
    }

    /// Takes `count` places or none; returns how many were taken before.
    pub fn enter(&self, count: u32) -> Result<u32, Refusal> {
        // Held until the places are taken: whoever closes then sees all that came before.
        let closed = lock(&self.closed);
        if let Some(why) = &*closed {
            return Err(Refusal::NotServing { why: why.clone() });
        }
        let limit = self.live_max();
        if count > limit {
            return Err(Refusal::TooManySequences { sequences: count, limit });
        }
        let more = |live: u32| (count <= limit.saturating_sub(live)).then(|| live + count);
        self.live.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map_err(|live| {
            Refusal::QueueFull {
                queued: live.saturating_sub(limit - self.queued_max),
                limit: self.queued_max,
                retry_after_s: self.retry_after_s.load(Ordering::Relaxed).max(1),
            }
        })
    }

    /// Most live requests now.
    pub fn live_max(&self) -> u32 {
        self.live_max.load(Ordering::Acquire)
    }

    /// Places taken.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }

    /// Gives places back.
    pub fn leave(&self, count: u32) {
        let before = self.live.fetch_sub(count, Ordering::AcqRel);
        assert!(before >= count, "a request left that never entered");
    }

    /// Takes nothing new from now on. The first reason stays.
    pub fn close(&self, why: &str) {
        lock(&self.closed).get_or_insert_with(|| why.into());
    }

    /// A copy of the last status.
    pub fn status(&self) -> EngineStatus {
        let mut status = lock(&self.status).clone();
        status.counters.manifest_checks = self.manifest_checks.load(Ordering::Relaxed);
        status.counters.generations_rejected = self.rejected.load(Ordering::Relaxed);
        status
    }

    /// Changes the report of a generation, where it is remembered.
    pub fn report(&self, number: u64, change: impl FnOnce(&mut GenerationReport)) {
        let mut status = lock(&self.status);
        if let Some(report) = status.generations.iter_mut().find(|r| r.number == number) {
            change(report);
        }
    }

    /// Why the engine has failed, where it has.
    pub fn failure(&self) -> Option<String> {
        match &lock(&self.status).health {
            Health::Failed { why } => Some(why.clone()),
            Health::Serving | Health::Draining => None,
        }
    }

    /// Changes the status in place.
    pub fn update(&self, change: impl FnOnce(&mut EngineStatus)) {
        change(&mut lock(&self.status));
    }
}

/// A panic while the lock is held leaves plain numbers behind: they stay readable.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
