//! The scheduler's state and the small operations that everything else is made of.

use crate::entry::Entry;
use crate::{Batch, Ladder, Run, SchedConfig, SchedCounters, SchedError, SeqRow, Update};
use core::hash::{BuildHasherDefault, Hasher};
use lockstep_flow::{Failure, FinishReason, Micros, RequestId, SlotId, Token};
use lockstep_pool::{Pool, PoolError, StepLease, StepTables};
use std::collections::{HashMap, VecDeque};

/// Spreads request numbers over a hash table the same way in every run.
#[derive(Default, Debug)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u64(&mut self, n: u64) {
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ (h >> 29);
    }
}

/// Queue, running set, steps in flight, and the pool that they share.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedConfig,
    pub(crate) ladder: Ladder,
    pub(crate) pool: Pool,
    pub(crate) entries: Vec<Option<Entry>>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) by_id: HashMap<RequestId, u32, BuildHasherDefault<IdHasher>>,
    /// By order of service.
    pub(crate) waiting: VecDeque<u32>,
    /// By order of service.
    pub(crate) running: Vec<u32>,
    /// By step modulo depth.
    pub(crate) batches: Vec<Batch>,
    /// Steps planned, leased and completed so far.
    pub(crate) planned: u64,
    pub(crate) leased: u64,
    pub(crate) completed: u64,
    pub(crate) updates: Vec<Update>,
    pub(crate) counters: SchedCounters,
    pub(crate) submitted: u64,
    /// When requests ended lately.
    pub(crate) ends: VecDeque<Micros>,
    pub(crate) closed: Option<String>,
}

impl Scheduler {
    /// An idle scheduler over a fresh pool.
    ///
    /// # Errors
    /// A knob out of its bounds, or a pool too small for the knobs.
    pub fn new(config: SchedConfig, ladder: Ladder, pool: Pool) -> Result<Scheduler, SchedError> {
        config.check()?;
        let of_pool = pool.config();
        let need = |what, found, min| {
            if found >= min {
                Ok(())
            } else {
                Err(SchedError::Config { what, found, min, max: u32::MAX })
            }
        };
        let running = config.running_requests_max;
        need("the pool's slots", of_pool.slots, running)?;
        need("the pool's rows_max", of_pool.rows_max, running)?;
        need("the pool's steps_in_flight_max", of_pool.steps_in_flight_max, config.depth)?;
        let tokens = ladder.mixed_tokens_max().min(ladder.echo_tokens_max());
        need("the tokens of the widest buckets", tokens, running + 1)?;
        let places = (running + config.queued_requests_max) as usize;
        let rows = running as usize;
        Ok(Scheduler {
            ladder,
            pool,
            entries: (0..places).map(|_| None).collect(),
            vacant: (0..places as u32).rev().collect(),
            by_id: HashMap::with_capacity_and_hasher(2 * places, Default::default()),
            waiting: VecDeque::with_capacity(places),
            running: Vec::with_capacity(rows),
            batches: (0..config.depth).map(|_| Batch::with_capacity(rows)).collect(),
            planned: 0,
            leased: 0,
            completed: 0,
            updates: Vec::with_capacity(places + 8 * rows),
            counters: SchedCounters::default(),
            submitted: 0,
            ends: VecDeque::with_capacity(crate::admit::ENDS + 1),
            closed: None,
            config,
        })
    }

    /// The knobs.
    pub const fn config(&self) -> &SchedConfig {
        &self.config
    }

    /// The buckets.
    pub const fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The pool, to be looked at.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool, for what is not this room's business (`flush_cache`, snapshots).
    pub const fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Totals since the start.
    pub const fn counters(&self) -> &SchedCounters {
        &self.counters
    }

    /// Requests with a slot.
    pub fn running(&self) -> u32 {
        self.running.len() as u32
    }

    /// Requests in the queue.
    pub fn queued(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Steps planned whose outcome is still to come.
    pub const fn steps_in_flight(&self) -> u32 {
        (self.planned - self.completed) as u32
    }

    /// True where nothing runs, waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.steps_in_flight() == 0
    }

    /// The model's end-of-text tokens.
    pub fn eos_tokens(&self) -> &[Token] {
        &self.config.eos_tokens
    }

    /// What has happened, in order, since the last call.
    pub fn drain_updates(&mut self) -> impl Iterator<Item = Update> + '_ {
        self.updates.drain(..)
    }

    /// Prompt and output tokens of a live request.
    pub fn tokens(&self, request: RequestId) -> Option<&[Token]> {
        self.entry_of(request).map(|e| &e.tokens[..])
    }

    /// The slot of a running request.
    pub fn slot(&self, request: RequestId) -> Option<SlotId> {
        self.entry_of(request).and_then(|e| e.slot)
    }

    /// The tokens of a row whose source is [`crate::TokenSource::Literal`]. Call it before the
    /// scheduler changes again; a row of a request that has ended meanwhile gives none.
    pub fn literal(&self, row: &SeqRow) -> &[Token] {
        if !self.is_live(row) {
            return &[];
        }
        let entry = self.entries[row.entry as usize].as_ref();
        let range = row.plan.first_position.index()..(row.plan.end() - row.drafts) as usize;
        entry.and_then(|e| e.tokens.get(range)).unwrap_or(&[])
    }

    /// The drafts that follow the tokens of a row, as [`Scheduler::literal`].
    pub fn drafts(&self, row: &SeqRow) -> &[Token] {
        if !self.is_live(row) {
            return &[];
        }
        let entry = self.entries[row.entry as usize].as_ref();
        entry.and_then(|e| e.drafts.as_slice().get(..row.drafts as usize)).unwrap_or(&[])
    }

    /// True where the row's request still runs and waits for this row: its outcome will count.
    pub fn is_live(&self, row: &SeqRow) -> bool {
        self.entries[row.entry as usize].as_ref().is_some_and(|e| {
            e.id == row.plan.request && e.epoch == row.epoch && e.slot == Some(row.plan.slot)
        })
    }

    /// The oldest step whose outcome is still to come.
    pub fn oldest_step(&self) -> Option<&Batch> {
        (self.planned > self.completed).then(|| self.batch(self.completed + 1))
    }

    /// The step planned last, until it is leased.
    pub fn planned_step(&self) -> Option<&Batch> {
        (self.planned > self.leased).then(|| self.batch(self.planned))
    }

    /// The step that a lease was signed for, until it is completed.
    pub fn step_of(&self, lease: &StepLease) -> Option<&Batch> {
        let step = lease.generation();
        (step > self.completed && step <= self.leased).then(|| self.batch(step))
    }

    pub(crate) fn batch(&self, step: u64) -> &Batch {
        &self.batches[(step % self.batches.len() as u64) as usize]
    }

    pub(crate) fn entry_of(&self, request: RequestId) -> Option<&Entry> {
        self.by_id.get(&request).and_then(|&i| self.entries[i as usize].as_ref())
    }

    pub(crate) fn entry(&self, index: u32) -> &Entry {
        self.entries[index as usize].as_ref().expect("a listed request has an entry")
    }

    pub(crate) fn entry_mut(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize].as_mut().expect("a listed request has an entry")
    }

    /// Fills the tables of the step just planned and has the pool sign for it. Where the pool
    /// refuses, its books and the scheduler's disagree: the step's requests fail with its words.
    ///
    /// # Errors
    /// No step is planned, or the pool's refusal.
    pub fn lease(&mut self, tables: &mut StepTables<'_>) -> Result<StepLease, SchedError> {
        if self.planned == self.leased {
            return Err(SchedError::NoStep);
        }
        let at = (self.planned % self.batches.len() as u64) as usize;
        let batch = &self.batches[at];
        match self.pool.lease(batch.rows.iter().map(|r| r.plan), batch.bucket, tables) {
            Ok(lease) => {
                assert_eq!(lease.generation(), batch.step, "one lease a step, in order");
                self.leased = self.planned;
                Ok(lease)
            }
            Err(e) => {
                self.fail_rows(at, &e.to_string());
                self.planned -= 1;
                Err(e.into())
            }
        }
    }

    /// Compares tables with the step just leased: the audit of what a step was given.
    ///
    /// # Errors
    /// The first entry that differs.
    pub fn verify_tables(
        &self,
        lease: &StepLease,
        tables: &mut StepTables<'_>,
    ) -> Result<(), PoolError> {
        let rows = self.batch(lease.generation()).rows.iter().map(|r| r.plan);
        self.pool.verify_tables(lease, rows, tables)
    }

    /// Fills tables again as the lease stands for them: what the audit found changed is put right
    /// before the step reads it.
    ///
    /// # Errors
    /// A lease that is not the last one, or tables of another shape.
    pub fn rewrite_tables(
        &self,
        lease: &StepLease,
        tables: &mut StepTables<'_>,
    ) -> Result<(), PoolError> {
        let rows = self.batch(lease.generation()).rows.iter().map(|r| r.plan);
        self.pool.rewrite_tables(lease, rows, tables)
    }

    pub(crate) fn fail_rows(&mut self, batch: usize, what: &str) {
        for i in 0..self.batches[batch].rows.len() {
            let row = self.batches[batch].rows[i];
            if self.is_live(&row) {
                self.fail(row.entry, Failure::Engine { what: what.into() });
            }
        }
        self.batches[batch].rows.clear();
    }

    pub(crate) fn finish(&mut self, index: u32, reason: FinishReason) {
        let entry = self.end(index);
        let (request, usage) = (entry.id, entry.usage());
        self.counters.finished += 1;
        self.updates.push(Update::Finished { request, reason, usage });
    }

    pub(crate) fn fail(&mut self, index: u32, failure: Failure) {
        // What the audit doubts is computed again by whoever asks for it next.
        self.entry_mut(index).caches &= !matches!(failure, Failure::Audit { .. });
        let entry = self.end(index);
        let (request, usage) = (entry.id, entry.usage());
        self.counters.failed += 1;
        self.updates.push(Update::Failed { request, failure, usage });
    }

    /// Takes a request out of everything; the steps in flight with rows of it go on without it.
    fn end(&mut self, index: u32) -> Entry {
        if self.entry(index).slot.is_some() {
            self.leave_slot(index);
            self.running.retain(|&i| i != index);
        } else {
            self.waiting.retain(|&i| i != index);
        }
        let entry = self.entries[index as usize].take().expect("a listed request has an entry");
        self.by_id.remove(&entry.id);
        self.vacant.push(index);
        entry
    }

    /// Gives up slot and pages; what is complete and whole goes to the prefix index.
    pub(crate) fn leave_slot(&mut self, index: u32) {
        self.unplan(index);
        self.publish(index);
        let entry = self.entries[index as usize].as_mut().expect("a listed request has an entry");
        let slot = entry.slot.take().expect("only a running request leaves a slot");
        (entry.issued, entry.pending, entry.drafts) = (0, 0, Run::default());
        entry.epoch += 1;
        self.pool.release(slot, entry.id).expect("a running request holds its slot");
    }

    pub(crate) fn publish(&mut self, index: u32) {
        let entry = self.entries[index as usize].as_ref().expect("a listed request has an entry");
        if let (Some(slot), true) = (entry.slot, entry.caches) {
            self.pool
                .publish(slot, entry.id, &entry.tokens, None)
                .expect("a running request knows the tokens of its completed positions");
        }
    }

    /// A step that is planned and not yet leased goes without this request.
    pub(crate) fn unplan(&mut self, index: u32) {
        if self.planned == self.leased {
            return;
        }
        let at = (self.planned % self.batches.len() as u64) as usize;
        let batch = &mut self.batches[at];
        let Some(at) = batch.rows.iter().position(|r| r.entry == index) else { return };
        batch.decode_rows -= u32::from((at as u32) < batch.decode_rows);
        let row = batch.rows.remove(at);
        batch.number();
        // Nothing of it was computed, so nothing of it was computed again.
        self.counters.recomputed_tokens -= row.recomputed_tokens();
        self.entry_mut(index).reached = row.reached;
    }
}
