//! A watcher that asks the server how many requests run, while the load runs.

use crate::client::Client;
use crate::coverage::{DecodeLine, DecodeLog, Samples, ServerKind, Snapshot, snapshot};
use crate::stop::Stop;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Between two looks. Servers that count exactly are looked at for the gauge only.
const EVERY: Duration = Duration::from_millis(150);
/// How long after a load its decode log may speak of it for the first time: our own server writes
/// a line every ten seconds, unless told otherwise, and the journal passes it on.
const LOG_LATE_MAX: Duration = Duration::from_secs(12);

/// The watcher; it ends when it is dropped.
pub struct Sampler {
    samples: Arc<Mutex<Samples>>,
    task: JoinHandle<()>,
}

impl Sampler {
    /// Starts to look.
    pub fn start(client: Client, kind: ServerKind, mut log: Option<DecodeLog>) -> Sampler {
        let log_lines = log.as_ref().map(|_| 0);
        let samples = Arc::new(Mutex::new(Samples { log_lines, ..Samples::default() }));
        let shared = Arc::clone(&samples);
        let task = tokio::spawn(async move {
            loop {
                let lines = log.as_mut().map(DecodeLog::lines).unwrap_or_default();
                let told = snapshot(&client, kind).await;
                take(&shared, &lines, told);
                tokio::time::sleep(EVERY).await;
            }
        });
        Sampler { samples, task }
    }

    /// Waits for the first line of a decode log that is followed: its writer may sum up a load
    /// only when that is over. What asks for the end, or [`LOG_LATE_MAX`], ends that too.
    pub async fn wait_for_log(&self, stop: &Stop) {
        let end = Instant::now() + LOG_LATE_MAX;
        while self.samples().log_lines == Some(0) && !stop.is_stopped() && Instant::now() < end {
            tokio::time::sleep(EVERY).await;
        }
    }

    /// What was seen so far.
    pub fn samples(&self) -> Samples {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn take(samples: &Mutex<Samples>, lines: &[DecodeLine], told: Snapshot) {
    let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().for_each(|line| samples.take_line(line));
    samples.take_told(told, Instant::now());
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}
