//! Steps on their way. Where the device can, the next step is launched before the host has seen the
//! tokens of the one that runs: it takes them on the device, where the sampler has left them, and
//! the host ends the older step meanwhile (events, stopping rules, digests, the status).
//!
//! Most steps go on like that. One that has to know how the last one ended, or has to run alone,
//! waits: the step in flight is ended first, and a counter says why. A request that turns out to
//! have ended keeps its pages until the step that computed a token too many is over.

use crate::core::{Core, Turn};
use lockstep_device::DeviceError;
use lockstep_flow::status::WaitReason;
use lockstep_flow::{Failure, Micros};
use lockstep_pool::StepLease;
use std::collections::VecDeque;

/// A step that was launched, or has run, and is still to be ended.
#[derive(Debug)]
struct Flight {
    /// Its bucket.
    at: usize,
    lease: StepLease,
    began: Micros,
    decode: bool,
    /// It has to be waited for.
    launched: bool,
}

/// Steps on their way, the oldest first.
#[derive(Debug)]
pub struct Flights {
    /// Most of them at the end of a turn, and one more.
    depth: u32,
    flying: VecDeque<Flight>,
    /// By parity of the step: first logit row of each of its sequence rows.
    logit_first: [Vec<u32>; 2],
    /// When the last one ended.
    landed: Micros,
    /// Steps that were launched behind another.
    pub pipelined: u64,
    waited: [u64; WaitReason::ALL.len()],
}

impl Flights {
    /// For steps of at most `rows` sequences, of which `depth` may be on their way.
    pub fn new(depth: u32, rows: usize) -> Flights {
        Flights {
            depth,
            flying: VecDeque::with_capacity(depth as usize + 1),
            logit_first: [Vec::with_capacity(rows + 1), Vec::with_capacity(rows + 1)],
            landed: Micros(0),
            pipelined: 0,
            waited: [0; WaitReason::ALL.len()],
        }
    }

    /// True where no step is on its way.
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// A step waits for the one in flight.
    pub fn waited(&mut self, reason: WaitReason) {
        self.waited[reason as usize] += 1;
    }

    /// Steps that waited, in the order of [`WaitReason::ALL`].
    pub fn waits(&self) -> &[u64] {
        &self.waited
    }

    /// First logit row of each sequence row of a step.
    pub fn logit_first(&self, step: u64) -> &[u32] {
        &self.logit_first[(step % 2) as usize]
    }

    /// The same, to be filled.
    pub fn logit_first_mut(&mut self, step: u64) -> &mut Vec<u32> {
        &mut self.logit_first[(step % 2) as usize]
    }
}

impl Core {
    /// Why the next step waits until the host has ended the one in flight; none where there is
    /// none in flight, or the next may be launched behind it.
    pub(crate) fn waits_for_host(&self, now: Micros) -> Option<WaitReason> {
        if self.flights.is_empty() {
            None
        } else if self.tap.is_some() {
            Some(WaitReason::Tap)
        } else if self.watch_acts(now) {
            Some(WaitReason::Generation)
        } else if self.canary_is_due() {
            Some(WaitReason::Canary)
        } else {
            self.sched.waits_for_outcome()
        }
    }

    /// Why a step of the bucket cannot run beside another.
    pub(crate) fn runs_alone(&self, at: usize, audited: bool) -> Option<WaitReason> {
        match (self.twin_of(at, audited), self.eager_reason(at)) {
            (Some(_), _) => Some(WaitReason::Audit),
            (None, Some(_)) => Some(WaitReason::Eager),
            (None, None) => None,
        }
    }

    /// Launches the step just leased, and ends the one before it where there is one.
    ///
    /// # Errors
    /// The device has failed; every live request has been told.
    pub(crate) fn fly(
        &mut self,
        at: usize,
        lease: StepLease,
        (now, audited): (Micros, bool),
    ) -> Result<(), DeviceError> {
        self.fill(at);
        let decode = self.step().decode_rows as usize == self.step().rows.len();
        if !self.generation.buckets[at].checked {
            self.check_manifest(at);
        }
        self.audit_step(at, &lease, audited);
        let (twin, alone) = (self.twin_of(at, audited), self.runs_alone(at, audited));
        if let Some(reason) = alone
            // Its manifest or its tables were wrong, and the bucket has just left service.
            && let Err(e) = self.ground(reason)
        {
            return Err(self.crash(Some(lease), e));
        }
        let ran = match (twin, alone) {
            (Some(twin), _) => self.run_beside_twin(at, twin, &lease, now),
            (None, Some(_)) => self.run(at, &lease),
            (None, None) => self.launch(at, &lease),
        };
        if let Err(e) = ran {
            return Err(self.crash(Some(lease), e));
        }
        let launched = alone.is_none();
        self.flights.flying.push_back(Flight { at, lease, began: now, decode, launched });
        let most = if launched { self.flights.depth as usize - 1 } else { 0 };
        while self.flights.flying.len() > most {
            self.land()?;
        }
        Ok(())
    }

    fn launch(&mut self, at: usize, lease: &StepLease) -> Result<(), DeviceError> {
        let bucket = &self.generation.buckets[at];
        let (exec, key) = (bucket.exec, bucket.key);
        self.device.launch(exec, lease)?;
        self.flights.pipelined += u64::from(!self.flights.is_empty());
        self.count(at, key.tokens, None);
        Ok(())
    }

    /// Ends the oldest step on its way, where there is one: waits for it, and hands out what came
    /// of it.
    ///
    /// # Errors
    /// The device has failed; every live request has been told.
    pub(crate) fn land(&mut self) -> Result<(), DeviceError> {
        let Some(flight) = self.flights.flying.pop_front() else { return Ok(()) };
        let Flight { at, began, decode, launched, .. } = flight;
        let exec = self.generation.buckets[at].exec;
        if launched && let Err(e) = self.device.await_step(exec) {
            self.flights.flying.push_front(Flight { launched: false, ..flight });
            return Err(self.crash(None, e));
        }
        self.collect(at);
        self.show_logits(at);
        let end = self.clock.now();
        self.sched
            .complete(flight.lease, &self.outcomes, end)
            .expect("the oldest step in flight is the oldest that was leased");
        self.deliver(Some(at));
        let c = &mut self.counters;
        let times = if decode { &mut c.decode_times } else { &mut c.prefill_times };
        times.add(end.since(began.max(self.flights.landed)));
        self.flights.landed = end;
        self.audit_complete(end)?;
        self.check_manifests();
        if self.flights.is_empty() {
            self.watch_over(end);
        }
        Ok(())
    }

    /// Ends the step in flight where no other can be launched; idle where there is none.
    pub(crate) fn land_alone(&mut self) -> Result<Turn, DeviceError> {
        if self.flights.is_empty() {
            return Ok(Turn::Idle);
        }
        self.land()?;
        Ok(Turn::Stepped)
    }

    /// Ends whatever is on its way, for something that has to come between two steps.
    ///
    /// # Errors
    /// As [`Core::land`].
    pub(crate) fn ground(&mut self, reason: WaitReason) -> Result<(), DeviceError> {
        while !self.flights.is_empty() {
            self.flights.waited(reason);
            self.land()?;
        }
        Ok(())
    }

    /// The device has failed: nothing on its way comes to anything. `next` was leased and not
    /// launched.
    pub(crate) fn crash(&mut self, next: Option<StepLease>, e: DeviceError) -> DeviceError {
        let what = e.to_string();
        self.shared.close(&what);
        let now = self.clock.now();
        while let Some(Flight { at, lease, launched, .. }) = self.flights.flying.pop_front() {
            if launched {
                // It fails as well, or what it wrote is not used: here it only has to be over.
                let _ = self.device.await_step(self.generation.buckets[at].exec);
            }
            self.fail_leased(lease, &what, now);
        }
        if let Some(lease) = next {
            self.fail_leased(lease, &what, now);
        }
        self.abort_all(&Failure::Engine { what });
        e
    }

    fn fail_leased(&mut self, lease: StepLease, what: &str, now: Micros) {
        let failed = self.sched.fail_step(lease, what, now);
        failed.expect("steps fail in the order in which they were leased");
    }
}
