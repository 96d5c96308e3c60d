//! The first generation is verified while it serves: there was nothing to serve beside it before,
//! and a start that waited for every bucket's canary steps would take several times as long.
//!
//! A while after the start the buckets are taken one by one, the largest arena first: the canary
//! steps that a staged generation's buckets run ([`crate::canary`]), in the live arena, between
//! two serving steps. A bucket that has passed is marked verified; one that has not leaves service.
//! Steps of others are not held up: while requests run, one step in [`EVERY`] may be followed by a
//! canary step.

use crate::canary::{Asker, Job};
use crate::core::Core;
use crate::yard::POISON;
use lockstep_flow::Micros;
use lockstep_flow::generation::BucketEvidence;

/// When it begins: the first requests after a start have the machine for themselves.
const AFTER: Micros = Micros::from_millis(2_000);
/// Turns of the loop from one canary step to the next, while requests run.
const EVERY: u32 = 8;
/// Turns until a bucket is tried again for whose rows the pool had no page.
const LATER: u32 = 512;
/// Bytes that may be poisoned between two serving steps.
const POISON_BYTES_MAX: u64 = 16 << 20;

/// The verification of the generation that an engine started with.
#[derive(Default)]
pub struct FirstRun {
    /// Its buckets that are still to be verified, the next one last.
    left: Vec<usize>,
    /// Its number; 0 where none is to be verified.
    number: u64,
    /// Turns until the next canary step, while requests run.
    turns: u32,
    /// Turns until the next bucket is taken.
    later: u32,
}

impl Core {
    /// From here on the buckets of the live generation are verified beside the steps.
    pub fn verify_first(&mut self) {
        let blueprint = &self.generation.blueprint;
        let mut left = blueprint.capture_order();
        left.reverse();
        self.first = FirstRun { left, number: blueprint.number, turns: EVERY, later: 0 };
    }

    fn own_is_due(&mut self) -> bool {
        let first = &mut self.first;
        let live = first.number == self.generation.number() && self.staged.is_none();
        let live = live && self.held.is_none();
        if first.left.is_empty() || !live || self.clock.now() < AFTER {
            return false;
        }
        first.later = first.later.saturating_sub(1);
        first.later == 0
    }

    /// True where a canary step of the live generation may run now.
    pub fn own_may_step(&mut self) -> bool {
        if self.sched.is_idle() {
            return true;
        }
        self.first.turns -= 1;
        if self.first.turns > 0 {
            return false;
        }
        self.first.turns = EVERY;
        true
    }

    /// Takes the next bucket, where it is time for one.
    pub fn begin_own_canary(&mut self) {
        if self.canary.job.is_some() || !self.own_is_due() {
            return;
        }
        let Some(bucket) = self.first.left.pop() else { return };
        let status = self.shared.status();
        let known = status.generation_report(self.first.number);
        let key = self.generation.buckets[bucket].key;
        let evidence = known.and_then(|r| r.buckets.iter().find(|b| b.key == key).copied());
        let Some(evidence) = evidence else { return };
        self.canary.job = Some(Job::new(bucket, evidence, Asker::Live));
    }

    /// True where the canary step of `job` begins in an arena full of a pattern: a staged one's
    /// builder has filled it, the live one is filled here, where that takes no time.
    ///
    /// # Errors
    /// The device's, in words.
    pub fn is_poisoned(&mut self, job: &Job) -> Result<bool, String> {
        let bytes = job.evidence.arena_bytes;
        match job.asker {
            Asker::Builder(_) => Ok(true),
            Asker::Live if bytes > POISON_BYTES_MAX && !self.sched.is_idle() => Ok(false),
            Asker::Live => {
                let home = self.generation.arena;
                let mut arena = self.device.lend(home).map_err(|e| e.to_string())?;
                arena.fill(bytes, POISON);
                self.device.install(arena).map_err(|e| e.to_string())?;
                Ok(true)
            }
        }
    }

    /// A set of rows found no page: the bucket comes last, and what the canaries have goes back,
    /// since a request may be waiting for just that.
    pub fn own_canary_waits(&mut self, job: Job) {
        self.release_canaries();
        self.first.left.insert(0, job.bucket);
        self.first.later = LATER;
    }

    /// Whatever is asked of generations goes before: the bucket under way is taken again later.
    pub fn put_off_own_canary(&mut self) {
        let own = |job: &mut Job| matches!(job.asker, Asker::Live);
        if let Some(job) = self.canary.job.take_if(own) {
            self.first.left.push(job.bucket);
            self.release_canaries();
        }
    }

    /// A bucket has run its canary steps: it is verified, or leaves service.
    pub fn end_own_canary(&mut self, at: usize, evidence: BucketEvidence, failure: Option<String>) {
        if failure.is_some() {
            self.generation.buckets[at].quarantined = true;
        }
        let done = self.first.left.is_empty();
        let now = self.clock.now();
        self.shared.report(self.first.number, |r| {
            let mut buckets = r.buckets.to_vec();
            if let Some(b) = buckets.iter_mut().find(|b| b.key == evidence.key) {
                *b = evidence;
            }
            r.buckets = buckets.into();
            r.reason = failure.or(r.reason.take());
            if done && r.verified_buckets() == r.buckets.len() {
                r.verified_at = Some(now);
            }
        });
        if done {
            self.generation.verified = true;
            self.release_canaries();
        }
    }
}
