//! Looking at where a step's time goes on the GPU. For measurements only: what a probed step leaves
//! in state is not what the plan means.

use crate::CudaError;
use crate::captured::Captured;
use crate::driver::{Driver, Graph, Timer, Wait};
use crate::exec::Exec;
use lockstep_flow::BucketKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time of all ops of one name, whatever the layer.
#[derive(Clone, Debug)]
pub struct OpTime {
    /// The op's name without its layer.
    pub name: String,
    /// Ops of that name.
    pub ops: usize,
    /// Microseconds of all of them, one behind the other.
    pub us: f32,
}

/// One probed step.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its bucket.
    pub bucket: BucketKey,
    /// Microseconds of a replay of the whole graph.
    pub replay_us: f32,
    /// Microseconds by op.
    pub ops: Vec<OpTime>,
}

/// Asks for a report of the next replay and takes it.
#[derive(Default, Debug)]
pub struct Probe {
    wanted: Mutex<bool>,
    replays: AtomicU64,
    replay_ns: AtomicU64,
    reports: Mutex<Vec<Report>>,
    captures: Mutex<Captured>,
}

/// How often a graph is timed; the least time counts.
const ROUNDS: u32 = 5;

impl Probe {
    /// Asks for a report.
    pub fn ask(&self) {
        *self.wanted.lock().unwrap_or_else(|e| e.into_inner()) = true;
    }

    /// Decode steps replayed since the last call, and the time from their inputs to their outputs, in
    /// microseconds each: what is left of a step is the host's work around it.
    pub fn replays(&self) -> (u64, f64) {
        let count = self.replays.swap(0, Ordering::Relaxed);
        let ns = self.replay_ns.swap(0, Ordering::Relaxed);
        (count, ns as f64 / 1e3 / count.max(1) as f64)
    }

    /// What the device's own captures have come to; those of staged generations are not in it.
    pub fn captures(&self) -> Captured {
        *self.captures.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn captured(&self, so_far: Captured) {
        *self.captures.lock().unwrap_or_else(|e| e.into_inner()) = so_far;
    }

    pub(crate) fn replayed(&self, time: Duration) {
        self.replays.fetch_add(1, Ordering::Relaxed);
        self.replay_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The reports so far.
    pub fn take(&self) -> Vec<Report> {
        core::mem::take(&mut *self.reports.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Reports on `exec`, whose inputs are on the GPU, where a report was asked for.
    pub(crate) fn see(
        &self,
        driver: &Arc<Driver>,
        timer: &Timer,
        exec: &Exec,
    ) -> Result<(), CudaError> {
        let mut wanted = self.wanted.lock().unwrap_or_else(|e| e.into_inner());
        if !core::mem::take(&mut *wanted) {
            return Ok(());
        }
        let least = |run: &dyn Fn() -> Result<(), CudaError>| -> Result<f32, CudaError> {
            let mut least = f32::INFINITY;
            for _ in 0..ROUNDS {
                timer.mark(driver, 0)?;
                run()?;
                timer.mark(driver, 1)?;
                driver.synchronize()?;
                least = least.min(timer.ms()? * 1e3);
            }
            Ok(least)
        };
        // SAFETY: as in a replay; the lease of the step that has just run still stands.
        let replay_us = least(&|| unsafe { exec.graph.launch() })?;
        let plan = exec.proven.plan();
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, step) in exec.steps.iter().enumerate() {
            let name = &plan.op(step.last).name;
            let short = name.strip_prefix("layers.").and_then(|n| n.split_once('.'));
            let short = short.map_or(name.as_str(), |n| n.1);
            // Token ids are a transient, whose bytes others own by now: their reader comes after
            // their writer, or not at all.
            let short = if short == "embed" { "gather_tokens" } else { short };
            groups.entry(short.into()).or_default().push(i);
        }
        let mut ops = Vec::new();
        for (name, members) in groups {
            let mut graph = Graph::new()?;
            let mut last = None;
            for i in &members {
                let launch = &exec.steps[*i].launch;
                let before: Vec<_> = last.iter().map(|n| (*n, Wait::End)).collect();
                // SAFETY: as in a replay, for some of its kernels.
                last = Some(unsafe { graph.kernel(&launch.shape, &launch.args, &before)? });
            }
            let graph = graph.instantiate(driver)?;
            // SAFETY: as above.
            let us = least(&|| unsafe { graph.launch() })?;
            ops.push(OpTime { name, ops: members.len(), us });
        }
        // So that the step ends with what it means, as far as the host sees.
        // SAFETY: as above.
        unsafe { exec.graph.launch()? };
        driver.synchronize()?;
        ops.sort_by(|a, b| b.us.total_cmp(&a.us));
        let report = Report { bucket: plan.bucket, replay_us, ops };
        self.reports.lock().unwrap_or_else(|e| e.into_inner()).push(report);
        Ok(())
    }
}
