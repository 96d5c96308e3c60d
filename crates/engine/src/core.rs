//! The step loop's state and one turn of it: plan, lease, inputs, replay.

use crate::active::{Active, ActiveMap};
use crate::audit::Audit;
use crate::canary::CanaryState;
use crate::counters::{BucketCounters, EAGER_REASONS, StepCounters};
use crate::drain::Held;
use crate::first::FirstRun;
use crate::flight::Flights;
use crate::flip::{Spent, Watch};
use crate::generation::{Bucket, Generation, Io};
use crate::handle::Command;
use crate::inputs;
use crate::masks::{Done, Guide, Masks, Verdict};
use crate::publish::Shared;
use crate::tap::Tap;
use crate::yard::Yard;
use lockstep_device::{Device, DeviceError, ExecId, Mode};
use lockstep_flow::status::{EagerReason, Health};
use lockstep_flow::{
    Clock, Event, EventKind, EventSink, Failure, MaskError, Request, RequestId, Usage,
};
use lockstep_pool::{StepLease, StepTables};
use lockstep_sched::{Batch, Outcome, Scheduler, Update};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Everything that the step thread owns.
pub struct Core {
    pub(crate) device: Box<dyn Device>,
    pub(crate) sched: Scheduler,
    /// The live generation.
    pub(crate) generation: Box<Generation>,
    /// The one that was live before, until it is retired.
    pub(crate) draining: Option<Box<Generation>>,
    /// The one that is on its way up.
    pub(crate) staged: Option<Box<Generation>>,
    pub(crate) canary: CanaryState,
    pub(crate) first: FirstRun,
    pub(crate) watch: Option<Watch>,
    /// Steps are held for another generation.
    pub(crate) held: Option<Held>,
    pub(crate) spent: Spent,
    pub(crate) yard: Arc<Yard>,
    /// Live token rows of the last step.
    pub(crate) last_rows: u32,
    /// Sequences of the last decode step.
    pub(crate) decoded: u32,
    /// Of the live generation's buckets.
    pub(crate) bucket_counters: Vec<BucketCounters>,
    pub(crate) eager_reasons: [u64; EAGER_REASONS.len()],
    pub(crate) counters: StepCounters,
    pub(crate) active: ActiveMap,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shared: Arc<Shared>,
    /// Every step op by op.
    pub(crate) eager: bool,
    pub(crate) audit: Audit,
    pub(crate) tap: Option<Tap>,
    pub(crate) masks: Masks,
    pub(crate) vocab: u32,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) updates: Vec<Update>,
    /// Steps that were launched and whose results the host has not seen.
    pub(crate) flights: Flights,
    pub(crate) gone: Vec<RequestId>,
}

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A step ran, or the rows of one were found to have to wait.
    Stepped,
    /// There was nothing to do.
    Idle,
}

impl Core {
    /// A core over a sealed generation.
    pub fn new(
        device: Box<dyn Device>,
        sched: Scheduler,
        generation: Generation,
        yard: Arc<Yard>,
        (eager, audit): (bool, Audit),
        replies: Sender<Command>,
    ) -> Core {
        let rows = generation.buckets.iter().map(|b| b.key.seqs).max().unwrap_or(1) as usize;
        let config = sched.config();
        let (shared, clock) = (yard.shared.clone(), yard.clock.clone());
        let (vocab, live_max) = (config.vocab, shared.live_max() as usize);
        Core {
            device,
            bucket_counters: vec![BucketCounters::default(); generation.buckets.len()],
            generation: Box::new(generation),
            draining: None,
            staged: None,
            canary: CanaryState::default(),
            first: FirstRun::default(),
            watch: None,
            held: None,
            spent: Spent::default(),
            yard,
            last_rows: 0,
            decoded: 0,
            eager_reasons: [0; EAGER_REASONS.len()],
            counters: StepCounters::default(),
            active: ActiveMap::with_capacity(live_max),
            clock,
            eager,
            audit,
            tap: None,
            masks: Masks::new(replies, live_max),
            vocab,
            outcomes: Vec::with_capacity(rows),
            updates: Vec::with_capacity(live_max + 8 * rows),
            flights: Flights::new(sched.config().depth, rows),
            gone: Vec::with_capacity(rows),
            sched,
            shared,
        }
    }

    /// Takes a request that has a place.
    pub fn submit(&mut self, mut request: Request, sink: Box<dyn EventSink>) {
        let id = request.id;
        match self.sched.submit(&request, self.clock.now()) {
            Ok(_) => {
                self.counters.prompt_tokens += request.prompt.len() as u64;
                if request.grammar.is_some() {
                    self.masks.wake();
                }
                let guide = request.grammar.take().map(|grammar| Guide::begin(grammar, self.vocab));
                let (guide, refused) = match guide.transpose() {
                    Ok(guide) => (guide, None),
                    Err(e) => (None, Some(e)),
                };
                self.active.insert(id, Active::new(request, guide, sink));
                if let Some(e) = refused {
                    self.stop_grammar(id, e);
                }
            }
            Err(refusal) => {
                // The handle checks the same limits before it sends a request here, so this is
                // the engine closing in between: the ticket is out, so it ends with an event.
                let what = refusal.to_string();
                self.turn_away(id, sink, Failure::Engine { what });
            }
        }
    }

    /// Ends a request that has a place and never reached the scheduler.
    pub fn turn_away(&self, request: RequestId, mut sink: Box<dyn EventSink>, failure: Failure) {
        let kind = EventKind::Failed { failure, usage: Usage::default() };
        sink.emit(Event { request, kind });
        self.shared.leave(1);
    }

    /// Ends every request without the scheduler, which a panic may have left half-changed.
    pub fn give_up(&mut self, what: &str) {
        self.shared.close(what);
        self.shared.update(|status| {
            (status.running, status.queued) = (0, 0);
            status.health = Health::Failed { why: what.into() };
        });
        for (request, mut active) in self.active.drain() {
            let failure = Failure::Engine { what: what.into() };
            let kind = EventKind::Failed { failure, usage: Usage::default() };
            // A sink that panics here has had its event; the others still get theirs.
            let _ = catch_unwind(AssertUnwindSafe(|| active.emit(request, kind)));
            self.shared.leave(1);
        }
    }

    /// Ends a request with `failure`.
    pub fn abort(&mut self, id: RequestId, failure: Failure) {
        self.sched.abort(id, failure);
        self.deliver(None);
    }

    /// Ends every request with `failure`.
    pub fn abort_all(&mut self, failure: &Failure) {
        self.sched.abort_all(failure);
        self.deliver(None);
    }

    /// One turn: at most one step is launched, and where one has to wait for the one in flight,
    /// that one is ended instead.
    ///
    /// # Errors
    /// The device has failed; every live request has been told.
    pub fn turn(&mut self) -> Result<Turn, DeviceError> {
        let now = self.clock.now();
        if let Some(reason) = self.waits_for_host(now) {
            self.flights.waited(reason);
            self.land()?;
            return Ok(Turn::Stepped);
        }
        if self.flights.is_empty() {
            self.watch_over(now);
            if self.is_held(now) {
                return Ok(Turn::Idle);
            }
        }
        self.yield_canary_pages();
        let planned = self.sched.plan(now).is_some();
        self.deliver(None);
        if !planned {
            return self.land_alone();
        }
        self.note_gap();
        self.audit_reads(now)?;
        if self.sched.withdraw_empty_step() {
            self.land_alone()?;
            return Ok(Turn::Stepped);
        }
        let at = self.bucket_of_step();
        let audited = self.choose_audit(at, now);
        // Before the step is leased: what ends here is no row of it then.
        if let Some(reason) = self.runs_alone(at, audited) {
            self.ground(reason)?;
            if self.sched.withdraw_empty_step() {
                self.put_audit_off(audited);
                return Ok(Turn::Stepped);
            }
        }
        match self.lease(at) {
            Ok(lease) => self.fly(at, lease, (now, audited))?,
            Err(_) => {
                // The scheduler has failed the step's requests with the pool's words.
                self.counters.lease_refusals += 1;
                self.deliver(None);
                self.land_alone()?;
            }
        }
        Ok(Turn::Stepped)
    }

    /// The step that is being made ready, or was launched last.
    pub(crate) fn step(&self) -> &Batch {
        self.sched.newest_step().expect("a step is planned")
    }

    fn bucket_of_step(&self) -> usize {
        let key = self.step().bucket;
        let found = self.generation.buckets.iter().position(|b| b.key == key);
        found.expect("the scheduler's ladder is the generation's bucket list")
    }

    /// Has the pool fill the step's tables and sign for them.
    fn lease(&mut self, at: usize) -> Result<StepLease, lockstep_sched::SchedError> {
        let Bucket { exec, io, .. } = self.generation.buckets[at];
        let (mut tables, source) = tables(self.device.as_mut(), exec, &io);
        let lease = self.sched.lease(&mut tables)?;
        let batch = self.sched.newest_step().expect("just leased");
        inputs::token_sources(&self.sched, batch, source);
        Ok(lease)
    }

    /// Writes what the tables do not have: live counts and what sampling reads.
    pub(crate) fn fill(&mut self, at: usize) {
        let Bucket { exec, io, .. } = self.generation.buckets[at];
        let batch = self.sched.newest_step().expect("a step is leased");
        let live = bytemuck::cast_slice_mut::<u8, u32>(self.device.input_mut(exec, io.live_counts));
        live.copy_from_slice(&[batch.live.tokens, batch.live.seqs, batch.live.logit_rows]);
        let logit_first = self.flights.logit_first_mut(batch.step);
        logit_first.clear();
        let mut logit = 0;
        for row in &batch.rows {
            logit_first.push(logit);
            let rows = row.plan.logit_rows();
            if let (true, Some(active)) = (rows > 0, self.active.get_mut(&row.plan.request)) {
                let (vocab, eos) = (self.vocab, self.sched.eos_tokens());
                let to = inputs::SamplingRows { exec, io: &io, first: logit, vocab, eos };
                if !to.write(self.device.as_mut(), row, active) {
                    self.gone.push(row.plan.request);
                }
            }
            logit += rows;
        }
    }

    /// Why a step of the bucket runs op by op, where it does.
    pub(crate) fn eager_reason(&self, at: usize) -> Option<EagerReason> {
        let bucket = &self.generation.buckets[at];
        match (self.eager, bucket.quarantined, bucket.mode) {
            (true, _, _) => Some(EagerReason::Configured),
            (false, true, _) => Some(EagerReason::Quarantined),
            (false, false, Mode::Eager) => Some(EagerReason::AboveGraphMaxBs),
            (false, false, Mode::Captured) => None,
        }
    }

    /// Runs the step to its end.
    pub(crate) fn run(&mut self, at: usize, lease: &StepLease) -> Result<(), DeviceError> {
        let bucket = &self.generation.buckets[at];
        let (exec, key) = (bucket.exec, bucket.key);
        let reason = self.eager_reason(at);
        match reason {
            None => self.device.replay(exec, lease)?,
            Some(_) => self.device.eager(exec, lease)?,
        }
        self.count(at, key.tokens, reason);
        Ok(())
    }

    pub(crate) fn show_logits(&mut self, at: usize) {
        let Some(tap) = &mut self.tap else { return };
        let batch = self.sched.oldest_step().expect("a step is in flight");
        let bucket = &self.generation.buckets[at];
        tap.show(self.device.as_ref(), bucket, batch, &self.outcomes);
    }

    /// Takes a grammar back from the workers.
    pub fn masked(&mut self, done: Done) {
        let Done { request, guide, verdict } = done;
        self.masks.returned(request);
        let Some(active) = self.active.get_mut(&request) else { return self.masks.retire(guide) };
        active.guide = Some(guide);
        match verdict {
            Ok(verdict) => {
                let now = self.clock.now();
                self.sched.settle(request, verdict == Verdict::Complete, now);
            }
            Err(e) => return self.stop_grammar(request, e),
        }
        self.deliver(None);
    }

    fn stop_grammar(&mut self, request: RequestId, e: MaskError) {
        self.counters.grammar_stopped += u64::from(e.is_of_the_grammar());
        self.abort(request, Failure::Grammar(e));
    }

    /// How long a step still waits for masks that have just been begun.
    pub fn mask_patience(&self) -> Option<Duration> {
        self.masks.patience(self.clock.now()).map(|left| Duration::from_micros(left.0))
    }

    /// Is there nothing live that may step, and no canary step to run?
    pub fn is_idle(&self) -> bool {
        (self.sched.is_idle() || self.held.is_some()) && !self.canary_is_due()
    }
}

/// A step's tables, and where its token sources go, as slices of the executable's inputs.
pub(crate) fn tables<'a>(
    device: &'a mut dyn Device,
    exec: ExecId,
    io: &Io,
) -> (StepTables<'a>, &'a mut [u32]) {
    let inputs = [
        io.block_table,
        io.write_slots,
        io.positions,
        io.token_seq,
        io.seq_slots,
        io.logit_rows,
        io.logit_slots,
        io.token_source,
    ];
    let [blocks, write, positions, seqs, slots, rows, logit_slots, source] =
        device.inputs_mut(exec, inputs).map(bytemuck::cast_slice_mut::<u8, u32>);
    let tables = StepTables {
        block_tables: blocks,
        write_slots: write,
        positions,
        seq_of_token: seqs,
        slots,
        logit_tokens: rows,
        logit_slots,
        first_tokens: None,
        token_counts: None,
        kv_lens: None,
    };
    (tables, source)
}
