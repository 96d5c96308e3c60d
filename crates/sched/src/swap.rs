//! What a change of generation asks of the scheduler: canary steps beside the serving ones, and
//! another ladder under running requests.

use crate::{Ladder, SchedConfig, SchedError, Scheduler};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, Micros};
use lockstep_pool::{RowPlan, StepLease, StepTables};

impl Scheduler {
    /// Has the pool sign for a step of rows that no request of this scheduler has, in sequences
    /// that the caller has begun in the pool. It takes the number of a step, so that leases and
    /// steps stay one to one. End it with [`Scheduler::end_canary`] before the next plan.
    ///
    /// # Errors
    /// A step is planned or in flight, or the pool refuses.
    pub fn lease_canary(
        &mut self,
        rows: &[RowPlan],
        bucket: BucketKey,
        tables: &mut StepTables<'_>,
    ) -> Result<StepLease, SchedError> {
        self.between_steps()?;
        let lease = self.pool.lease(rows.iter().copied(), bucket, tables)?;
        self.planned += 1;
        self.leased = self.planned;
        assert_eq!(lease.generation(), self.planned, "one lease a step, in order");
        Ok(lease)
    }

    /// The canary step is not running any more. Nothing that it wrote counts: its sequences close
    /// no page and nothing of them goes to the prefix index.
    ///
    /// # Errors
    /// The lease is not the canary step's.
    pub fn end_canary(&mut self, lease: StepLease) -> Result<(), SchedError> {
        if lease.generation() != self.completed + 1 || lease.generation() > self.leased {
            return Err(SchedError::NoStep);
        }
        self.pool.abandon(lease).map_err(|(_, e)| e)?;
        self.completed += 1;
        Ok(())
    }

    /// Sends the youngest running request back to the queue, where there is one: its pages are free
    /// or in the prefix index then, and it resumes with the same bits. For pages that are needed
    /// while steps are held.
    ///
    /// # Errors
    /// A step is planned or in flight.
    pub fn preempt_youngest(&mut self) -> Result<bool, SchedError> {
        self.between_steps()?;
        let youngest = self.running.last().copied();
        if let Some(index) = youngest {
            self.send_back(index);
        }
        Ok(youngest.is_some())
    }

    /// Pages that the running requests will take for the tokens that they have, and one more.
    pub fn pages_ahead(&self) -> u32 {
        let missing = |&index: &u32| {
            let entry = self.entry(index);
            let has = entry.slot.map_or(0, |s| self.pool.extent_tokens(s) / PAGE_TOKENS);
            entry.pages_wanted().saturating_sub(has)
        };
        self.running.iter().map(missing).sum()
    }

    /// True where the pool has not the pages that the running requests and the first of the queue
    /// would take: whoever holds pages for anything else gives them back.
    pub fn lacks_pages(&self) -> bool {
        let places = self.config.running_requests_max.saturating_sub(self.running());
        let first = self.waiting.front().filter(|_| places > 0);
        // As `has_room_for` has it: a page of growth for each that runs.
        let first = first.map_or(0, |&i| self.entry(i).pages_wanted() + 1 + self.running());
        self.pages_ahead() + first > self.pool.free_pages() + self.pool.cached_pages()
    }

    /// Ends what has passed its deadline while no step is planned.
    ///
    /// # Errors
    /// A step is planned or in flight.
    pub fn expire_held(&mut self, now: Micros) -> Result<(), SchedError> {
        self.between_steps()?;
        self.expire(now);
        Ok(())
    }

    /// Exchanges the buckets, and the limits of a step that go with them, between two steps.
    /// Running requests go on; where more run than `running_requests_max`, the youngest go back
    /// to the queue and resume with the same bits.
    ///
    /// # Errors
    /// A step is planned or in flight, a limit is out of its bounds, or more than the pool was
    /// made for; nothing has changed then.
    pub fn set_ladder(
        &mut self,
        buckets: Vec<BucketKey>,
        running_requests_max: u32,
        chunked_prefill_tokens: u32,
    ) -> Result<(), SchedError> {
        self.between_steps()?;
        let eos_tokens = Vec::new();
        let of = &self.config;
        SchedConfig { running_requests_max, chunked_prefill_tokens, eos_tokens, ..*of }.check()?;
        let max = self.pool.config().rows_max;
        if running_requests_max > max {
            let (what, found) = ("running_requests_max", running_requests_max);
            return Err(SchedError::Config { what, found, min: 1, max });
        }
        self.ladder = Ladder::new(buckets, running_requests_max)?;
        self.config.running_requests_max = running_requests_max;
        self.config.chunked_prefill_tokens = chunked_prefill_tokens;
        while self.running() > running_requests_max {
            let youngest = *self.running.last().expect("more run than may");
            self.send_back(youngest);
        }
        Ok(())
    }

    fn between_steps(&self) -> Result<(), SchedError> {
        if self.planned == self.completed {
            return Ok(());
        }
        Err(SchedError::InFlight { steps: self.steps_in_flight() })
    }
}
