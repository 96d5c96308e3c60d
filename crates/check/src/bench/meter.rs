//! What the client itself costs: processor time, and how late its event loop is.

use std::fs;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Between two looks at the event loop.
const LOOK: Duration = Duration::from_millis(10);
/// Looks that are kept: a quarter of an hour.
const LOOKS_MAX: usize = 100_000;

/// Processor time of all threads of this process so far, where the system tells (Linux).
pub fn cpu_time() -> Option<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end between the two reads.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanoseconds))
}

/// Measures from its start to [`Meter::stop`].
pub struct Meter {
    cpu: Option<Duration>,
    looks: JoinHandle<()>,
    lags: std::sync::Arc<std::sync::Mutex<Vec<f64>>>,
}

/// What a meter saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metered {
    /// Processor time.
    pub cpu: Option<Duration>,
    /// How late the event loop was at each look, in milliseconds. A timer's own grain is 1 ms.
    pub lags_ms: Vec<f64>,
}

impl Meter {
    /// Starts to measure, on the runtime that it is called on.
    pub fn start() -> Meter {
        let lags: std::sync::Arc<std::sync::Mutex<Vec<f64>>> = Default::default();
        let to = lags.clone();
        let looks = tokio::spawn(async move {
            loop {
                let due = Instant::now() + LOOK;
                sleep(LOOK).await;
                let late = Instant::now().saturating_duration_since(due);
                let Ok(mut lags) = to.lock() else { return };
                if lags.len() < LOOKS_MAX {
                    lags.push(late.as_secs_f64() * 1e3);
                }
            }
        });
        Meter { cpu: cpu_time(), looks, lags }
    }

    /// Ends and says what was seen.
    pub fn stop(self) -> Metered {
        self.looks.abort();
        let cpu = match (self.cpu, cpu_time()) {
            // Threads that ended in between take their time along.
            (Some(from), Some(to)) => to.checked_sub(from),
            _ => None,
        };
        let lags_ms = self.lags.lock().map(|mut l| core::mem::take(&mut *l)).unwrap_or_default();
        Metered { cpu, lags_ms }
    }
}
