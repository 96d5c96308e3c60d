//! Ends calls into the grammar engine that take too long.
//!
//! The engine counts some of its work (derivatives, parser items) and stops at a limit, but not
//! all of it: completing the items of an ambiguous grammar takes time that grows with the cube of
//! a row's length and is counted nowhere. Every call is therefore watched by the clock, and asked
//! to stop by the handle that the engine's inner loops look at.

use llguidance::CancellationHandle;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often running calls are looked at; a call may exceed its limit by this.
const TICK: Duration = Duration::from_millis(10);

/// Ticks without a call after which the thread sleeps until there is one.
const TICKS_AWAKE: u32 = 100;

#[derive(Default)]
struct Calls {
    running: Vec<(u64, Instant, CancellationHandle)>,
    next: u64,
    asleep: bool,
    over: bool,
}

#[derive(Default)]
struct Inner {
    calls: Mutex<Calls>,
    wake: Condvar,
}

impl Inner {
    /// A panic while the lock is held leaves a list of handles behind, which stays usable.
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut quiet = 0;
        let mut calls = self.calls();
        while !calls.over {
            quiet = if calls.running.is_empty() { quiet + 1 } else { 0 };
            calls.asleep = quiet > TICKS_AWAKE;
            calls = match calls.asleep {
                true => self.wake.wait(calls).unwrap_or_else(PoisonError::into_inner),
                false => {
                    let waited = self.wake.wait_timeout(calls, TICK);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            if std::mem::take(&mut calls.asleep) {
                quiet = 0;
            }
            let now = Instant::now();
            for (_, _, handle) in calls.running.iter().filter(|(_, until, _)| *until <= now) {
                handle.cancel();
            }
        }
    }
}

/// The thread that watches; it ends when this is dropped.
pub(super) struct Watch(Arc<Inner>);

impl Watch {
    pub(super) fn start() -> io::Result<Watch> {
        let inner = Arc::new(Inner::default());
        let watching = Arc::clone(&inner);
        std::thread::Builder::new().name("grammar-watch".into()).spawn(move || watching.run())?;
        Ok(Watch(inner))
    }

    /// Cancels `handle` where what is returned still lives after `limit`.
    pub(super) fn over(&self, handle: &CancellationHandle, limit: Duration) -> Watched<'_> {
        let mut calls = self.0.calls();
        let number = calls.next;
        calls.next += 1;
        calls.running.push((number, Instant::now() + limit, handle.clone()));
        if calls.asleep {
            self.0.wake.notify_one();
        }
        Watched { inner: &self.0, number }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.calls().over = true;
        self.0.wake.notify_one();
    }
}

/// A call that is being watched.
pub(super) struct Watched<'a> {
    inner: &'a Inner,
    number: u64,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.inner.calls().running.retain(|(number, ..)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outlives_its_limit_is_cancelled_and_nothing_else() {
        let watch = Watch::start().unwrap();
        let (slow, quick) = (CancellationHandle::default(), CancellationHandle::default());
        // Over well before its limit, which has passed when the slow one's has.
        drop(watch.over(&quick, Duration::from_millis(300)));
        let _patient = watch.over(&quick, Duration::from_secs(3600));
        let _slow = watch.over(&slow, Duration::from_millis(301));
        while !slow.is_cancelled() {
            std::thread::yield_now();
        }
        assert!(!quick.is_cancelled());
    }
}
