//! The first generation is verified while it serves: there was nothing to serve beside it before,
//! and a start that waited for every bucket's canary steps would take several times as long.
//!
//! A while after the start the buckets are taken one by one, the largest arena first: the canary
//! steps that a staged generation's buckets run ([`crate::canary`]), in the live arena. A bucket that
//! has passed is marked verified; one that has not leaves service. They run one after the other
//! where nothing is to be served, and beside requests so seldom that those do not notice ([`REST`]);
//! what pages their rows have goes back as soon as a request has too few.

use crate::canary::{Asker, Job};
use crate::core::Core;
use crate::yard::POISON;
use lockstep_flow::Micros;
use lockstep_flow::generation::BucketEvidence;

/// When it begins: the first requests after a start have the machine for themselves.
const AFTER: Micros = Micros::from_millis(2_000);
/// Nothing runs for so long before it counts as idle: between the requests of a client that sends
/// one after the other, a canary step would be in the next one's way.
const IDLE: Micros = Micros::from_millis(250);
/// While requests run, a canary step is followed by this many times its time without one: half a
/// per cent of the step thread's time goes to them, however slow they are.
const REST: u64 = 200;
/// Turns until a bucket is tried again for whose rows the pool had no page.
const LATER: u32 = 512;
/// Bytes that may be poisoned between two serving steps.
const POISON_BYTES_MAX: u64 = 16 << 20;

/// When a canary step may run that nobody waits for.
#[derive(Default)]
struct Pace {
    /// When something ran or waited last.
    busy_at: Micros,
    /// Until when none runs beside requests.
    rest_until: Micros,
}

impl Pace {
    fn may_step(&self, idle: bool, now: Micros) -> bool {
        if idle { now.since(self.busy_at) >= IDLE } else { now >= self.rest_until }
    }

    /// A turn of the loop with something to serve.
    fn busy(&mut self, now: Micros) {
        self.busy_at = now;
    }

    /// A canary step beside requests has ended.
    fn stepped(&mut self, took: Micros, now: Micros) {
        self.rest_until = Micros(now.0 + REST * took.0);
    }
}

/// The verification of the generation that an engine started with.
#[derive(Default)]
pub struct FirstRun {
    /// Its buckets that are still to be verified, the next one last.
    left: Vec<usize>,
    /// Its number; 0 where none is to be verified.
    number: u64,
    pace: Pace,
    /// Turns until the next bucket is taken.
    later: u32,
}

impl FirstRun {
    /// A bucket is taken again, as the next one.
    pub fn again(&mut self, bucket: usize) {
        self.left.push(bucket);
    }
}

impl Core {
    /// From here on the buckets of the live generation are verified beside the steps.
    pub fn verify_first(&mut self) {
        let blueprint = &self.generation.blueprint;
        let mut left = blueprint.capture_order();
        left.reverse();
        self.first = FirstRun { left, number: blueprint.number, ..FirstRun::default() };
    }

    /// A server that is about to end verifies no more: nobody would wait for it but the end.
    pub fn leave_first_unverified(&mut self) {
        self.put_off_own_canary();
        self.first.left.clear();
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
    pub fn own_may_step(&self) -> bool {
        self.first.pace.may_step(self.sched.is_idle(), self.clock.now())
    }

    /// A canary step has taken so long: of those that nobody waits for, the next one is far off
    /// where requests run.
    pub fn own_stepped(&mut self, took: Micros) {
        if !self.sched.is_idle() {
            self.first.pace.stepped(took, self.clock.now());
        }
    }

    /// Takes the next bucket, where it is time for one.
    pub fn begin_own_canary(&mut self) {
        if !self.sched.is_idle() {
            self.first.pace.busy(self.clock.now());
        }
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
        if matches!(self.canary.job, Some(Job { asker: Asker::Live, .. })) {
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
        let mut verified = false;
        self.shared.report(self.first.number, |r| {
            let mut buckets = r.buckets.to_vec();
            if let Some(b) = buckets.iter_mut().find(|b| b.key == evidence.key) {
                *b = evidence;
            }
            r.buckets = buckets.into();
            r.reason = failure.or(r.reason.take());
            verified = done && r.verified_buckets() == r.buckets.len();
            if verified {
                r.verified_at = Some(now);
            }
        });
        self.generation.verified |= verified;
        if done {
            self.release_canaries();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine of two cores, a canary step after every eighth serving step once took more
    /// than half of the throughput: steps of 20 ms, canary steps of 100.
    #[test]
    fn canary_steps_beside_requests_take_half_a_percent_of_the_time() {
        let (mut pace, mut now, mut spent) = (Pace::default(), 0, 0);
        while now < 600_000_000 {
            now += 20_000;
            pace.busy(Micros(now));
            if pace.may_step(false, Micros(now)) {
                now += 100_000;
                spent += 100_000;
                pace.stepped(Micros(100_000), Micros(now));
            }
        }
        let share = now / spent;
        assert!((199..=210).contains(&share), "one part in {share}");
    }

    #[test]
    fn what_comes_again_in_a_moment_is_not_idle() {
        let mut pace = Pace::default();
        pace.busy(Micros::from_millis(1000));
        assert!(!pace.may_step(true, Micros::from_millis(1100)));
        assert!(pace.may_step(true, Micros::from_millis(1250)));
        // An idle moment lasts until something comes.
        pace.stepped(Micros::from_millis(100), Micros::from_millis(1350));
        assert!(pace.may_step(true, Micros::from_millis(1360)));
        assert!(!pace.may_step(false, Micros::from_millis(1360)));
    }
}
