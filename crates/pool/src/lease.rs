//! Leases: what the pool signs for a step, and what it checks before it signs.

use crate::pool::Pool;
use crate::tables::{Compare, Table, TableSink, Write};
use crate::{PageState, PoolError, StepTables};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, PageId, Position, RequestId, SlotId};

/// Which tokens of a row are projected to logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// None: a prefill chunk that is not a prompt's last.
    None,
    /// The row's last token.
    Last,
    /// Every token (log-probabilities of the prompt).
    All,
    /// Every token, and each samples: the row's first token is the sequence's last one, the others
    /// are drafts of what follows it.
    Drafts,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowPlan {
    /// Whose.
    pub request: RequestId,
    /// Its slot.
    pub slot: SlotId,
    /// Position of the row's first token: where the sequence's last row ended.
    pub first_position: Position,
    /// Tokens of the row, at least one.
    pub n_tokens: u32,
    /// Which of them get logits.
    pub logits: Logits,
    /// True where a token is sampled from the last of them and becomes `last_token[slot]`.
    pub samples: bool,
}

impl RowPlan {
    /// The next `n_tokens` of a sequence from position `first` on, and a token drawn from the last.
    pub const fn drawing(request: RequestId, slot: SlotId, first: u32, n_tokens: u32) -> RowPlan {
        let first_position = Position(first);
        RowPlan { request, slot, first_position, n_tokens, logits: Logits::Last, samples: true }
    }

    /// Logit rows that this row takes.
    pub const fn logit_rows(&self) -> u32 {
        match self.logits {
            Logits::None => 0,
            Logits::Last => 1,
            Logits::All | Logits::Drafts => self.n_tokens,
        }
    }

    /// The position after the row's last token.
    pub const fn end(&self) -> u32 {
        self.first_position.0 + self.n_tokens
    }
}

/// The pool's signature for one step: the obligations that its plan's proof leaves open hold for
/// the tables that were filled with it. Only [`Pool::lease`] makes one, it cannot be copied, and
/// only [`Pool::complete`] or [`Pool::abandon`] ends it; until then no page that the step can
/// reach changes hands.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "pages stay leased until the lease is given back"]
pub struct StepLease {
    pool: u32,
    generation: u64,
    bucket: BucketKey,
    live: BucketKey,
}

impl StepLease {
    /// Number of the lease: 1 for a pool's first, then one more each.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The bucket whose tables were filled.
    pub const fn bucket(&self) -> BucketKey {
        self.bucket
    }

    /// Live tokens, sequences and logit rows; what is above them in the bucket is padding.
    pub const fn live(&self) -> BucketKey {
        self.live
    }
}

impl lockstep_flow::Lease for StepLease {
    fn bucket(&self) -> BucketKey {
        self.bucket
    }

    fn step(&self) -> u64 {
        self.generation
    }
}

/// What a step in flight will have written once it is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasedRow {
    pub slot: u32,
    pub epoch: u64,
    pub first: u32,
    pub end: u32,
}

const PAGE: u32 = PAGE_TOKENS;

impl Pool {
    /// Checks the obligations of a step, fills its tables and signs for it.
    ///
    /// `rows` become sequence rows 0.. in this order, their tokens token rows 0.. in this order.
    ///
    /// # Errors
    /// Names the first obligation that does not hold; no table entry is written then and nothing
    /// is leased.
    pub fn lease<I>(
        &mut self,
        rows: I,
        bucket: BucketKey,
        tables: &mut StepTables<'_>,
    ) -> Result<StepLease, PoolError>
    where
        I: Iterator<Item = RowPlan> + Clone,
    {
        tables.check(bucket, self.config.pages_per_seq_max)?;
        let (in_flight, max) = (self.steps_in_flight(), self.config.steps_in_flight_max);
        if in_flight >= max {
            return Err(PoolError::TooManySteps { in_flight, max });
        }
        let mut live = BucketKey { tokens: 0, seqs: 0, logit_rows: 0 };
        self.attempt += 1;
        for row in rows.clone() {
            self.check_row(&row)?;
            live.tokens = live.tokens.saturating_add(row.n_tokens);
            live.seqs += 1;
            live.logit_rows = live.logit_rows.saturating_add(row.logit_rows());
            if !bucket.holds(live.tokens, live.seqs, live.logit_rows)
                || live.seqs > self.config.rows_max
            {
                let BucketKey { tokens, seqs, logit_rows } = live;
                return Err(PoolError::BucketTooSmall { bucket, tokens, seqs, logit_rows });
            }
        }
        self.fill(rows.clone(), bucket, live, &mut Write(tables))?;
        self.issued += 1;
        let generation = self.issued;
        let at = (generation % self.leased.len() as u64) as usize;
        self.leased[at].clear();
        for row in rows {
            let seq = &mut self.seqs[row.slot.index()];
            seq.written = row.end();
            seq.last_lease = generation;
            self.leased[at].push(LeasedRow {
                slot: row.slot.0,
                epoch: seq.epoch,
                first: row.first_position.0,
                end: row.end(),
            });
        }
        Ok(StepLease { pool: self.config.id, generation, bucket, live })
    }

    /// Compares tables with what a lease of `rows` stands for: the audit of what a step was given.
    /// Call it before the pool changes again.
    ///
    /// # Errors
    /// The first entry that differs.
    pub fn verify_tables<I>(
        &self,
        lease: &StepLease,
        rows: I,
        tables: &mut StepTables<'_>,
    ) -> Result<(), PoolError>
    where
        I: Iterator<Item = RowPlan> + Clone,
    {
        self.check_last(lease, tables)?;
        self.fill(rows, lease.bucket, lease.live, &mut Compare(tables))
    }

    /// Fills tables again as a lease of `rows` stands for them. Call it before the pool changes
    /// again.
    ///
    /// # Errors
    /// A lease that is not the last one, or tables of another shape.
    pub fn rewrite_tables<I>(
        &self,
        lease: &StepLease,
        rows: I,
        tables: &mut StepTables<'_>,
    ) -> Result<(), PoolError>
    where
        I: Iterator<Item = RowPlan> + Clone,
    {
        self.check_last(lease, tables)?;
        self.fill(rows, lease.bucket, lease.live, &mut Write(tables))
    }

    fn check_last(&self, lease: &StepLease, tables: &StepTables<'_>) -> Result<(), PoolError> {
        if lease.pool != self.config.id || lease.generation != self.issued {
            let (expected, found) = (self.issued, lease.generation);
            return Err(PoolError::WrongLease { expected, found });
        }
        tables.check(lease.bucket, self.config.pages_per_seq_max)
    }

    /// Of the row that a step out has of the slot, only positions under `end` will count: the tokens
    /// from there on were drafts that nothing came of. The next lease writes from `end`.
    ///
    /// # Errors
    /// The lease is not the oldest out, or the step has no row of the slot that begins under `end`
    /// and reaches it.
    pub fn keep(&mut self, lease: &StepLease, slot: SlotId, end: u32) -> Result<(), PoolError> {
        let (expected, found) = (self.completed + 1, lease.generation);
        if lease.pool != self.config.id || found != expected {
            return Err(PoolError::WrongLease { expected, found });
        }
        let at = (found % self.leased.len() as u64) as usize;
        let row = self.leased[at].iter_mut().find(|row| row.slot == slot.0);
        let Some(row) = row.filter(|row| row.first < end && end <= row.end) else {
            let (expected, found) = (Position(self.seqs[slot.index()].written), Position(end));
            return Err(PoolError::NotContiguous { slot, expected, found });
        };
        row.end = end;
        Ok(())
    }

    /// The step is complete: what it wrote counts, and pages that waited for it are free.
    ///
    /// # Errors
    /// A lease of another pool or one that is not the oldest out, given back with the error.
    pub fn complete(&mut self, lease: StepLease) -> Result<(), (StepLease, PoolError)> {
        self.end_lease(lease, true)
    }

    /// The step has stopped without a usable result: its pages are free again, and nothing that
    /// it wrote counts. It must not be running any more.
    ///
    /// # Errors
    /// As [`Pool::complete`].
    pub fn abandon(&mut self, lease: StepLease) -> Result<(), (StepLease, PoolError)> {
        self.end_lease(lease, false)
    }

    fn end_lease(&mut self, lease: StepLease, usable: bool) -> Result<(), (StepLease, PoolError)> {
        let expected = self.completed + 1;
        if lease.pool != self.config.id || lease.generation != expected {
            let found = lease.generation;
            return Err((lease, PoolError::WrongLease { expected, found }));
        }
        assert!(lease.generation <= self.issued, "a lease that was never issued");
        self.completed = lease.generation;
        let at = (lease.generation % self.leased.len() as u64) as usize;
        for i in 0..self.leased[at].len() {
            let row = self.leased[at][i];
            let seq = &mut self.seqs[row.slot as usize];
            let same = seq.request.is_some() && seq.epoch == row.epoch;
            // A row after an abandoned one does not count: there is a gap before it.
            if usable && same && seq.completed == row.first {
                seq.completed = row.end;
                if seq.last_lease == lease.generation {
                    // Less than the lease was for where drafts were not kept.
                    seq.written = row.end;
                }
                self.close_pages(row.slot, row.first, row.end);
            }
        }
        self.leased[at].clear();
        self.settle();
        Ok(())
    }

    fn check_row(&mut self, row: &RowPlan) -> Result<(), PoolError> {
        let slot = row.slot;
        self.seq_of(slot, row.request)?;
        let seq = &mut self.seqs[slot.index()];
        if core::mem::replace(&mut seq.attempt, self.attempt) == self.attempt {
            return Err(PoolError::SlotTwice { slot });
        }
        let seq = &self.seqs[slot.index()];
        if row.n_tokens == 0 {
            return Err(PoolError::EmptyRow { slot });
        }
        let shared_tokens = seq.shared * PAGE;
        if row.first_position.0 < shared_tokens {
            let position = row.first_position;
            return Err(PoolError::SharedWrite { slot, position, shared_tokens });
        }
        if row.first_position.0 != seq.written {
            let (expected, found) = (Position(seq.written), row.first_position);
            return Err(PoolError::NotContiguous { slot, expected, found });
        }
        let capacity_tokens = seq.pages * PAGE;
        let end = row.first_position.0.checked_add(row.n_tokens);
        if end.is_none_or(|end| end > capacity_tokens) {
            let end = Position(end.unwrap_or(u32::MAX));
            return Err(PoolError::NotExtended { slot, end, capacity_tokens });
        }
        self.check_pages(row)
    }

    /// Every page of the row's table is one that it may read, and those it writes are its own.
    fn check_pages(&mut self, row: &RowPlan) -> Result<(), PoolError> {
        let seq = &self.seqs[row.slot.index()];
        let stride = self.config.pages_per_seq_max as usize;
        let table = &self.block_tables[row.slot.index() * stride..][..seq.pages as usize];
        for (index, &page) in table.iter().enumerate() {
            let state = self.states.get(PageId(page));
            let good = match state {
                PageState::Shared(n) => n > 0 && index < seq.shared as usize,
                PageState::Owned(r) => r == row.request && index >= seq.shared as usize,
                _ => false,
            };
            if !good {
                let (slot, index, page) = (row.slot, index as u32, PageId(page));
                return Err(PoolError::ForeignPage { slot, index, page, state });
            }
        }
        let written = (row.first_position.0 / PAGE) as usize..=((row.end() - 1) / PAGE) as usize;
        for &page in &table[written] {
            if self.digests.is_closed(page) {
                return Err(PoolError::ClosedWrite { page: PageId(page) });
            }
            let mark = &mut self.write_marks[page as usize];
            if core::mem::replace(mark, self.attempt) == self.attempt {
                return Err(PoolError::WrittenTwice { page: PageId(page) });
            }
        }
        Ok(())
    }

    fn fill<I, S>(
        &self,
        rows: I,
        bucket: BucketKey,
        live: BucketKey,
        to: &mut S,
    ) -> Result<(), PoolError>
    where
        I: Iterator<Item = RowPlan>,
        S: TableSink,
    {
        let stride = self.config.pages_per_seq_max as usize;
        let (mut token, mut logit) = (0usize, 0usize);
        for (s, row) in rows.enumerate() {
            let slot = row.slot.index();
            let pages = self.seqs[slot].pages as usize;
            let table = &self.block_tables[slot * stride..][..pages];
            to.copy(Table::Blocks, s * stride, table)?;
            to.zero(Table::Blocks, s * stride + pages, (s + 1) * stride)?;
            to.put(Table::Slots, s, row.slot.0)?;
            to.put(Table::FirstTokens, s, token as u32)?;
            to.put(Table::TokenCounts, s, row.n_tokens)?;
            to.put(Table::KvLens, s, row.end())?;
            for i in 0..row.logit_rows() {
                let last = i + 1 == row.logit_rows() && row.logits != Logits::Drafts;
                let at = row.n_tokens - row.logit_rows() + i;
                to.put(Table::LogitTokens, logit, token as u32 + at)?;
                let slot = if last && row.samples { row.slot.0 } else { 0 };
                to.put(Table::LogitSlots, logit, slot)?;
                logit += 1;
            }
            for position in row.first_position.0..row.end() {
                let page = table[(position / PAGE) as usize];
                to.put(Table::WriteSlots, token, page * PAGE + position % PAGE)?;
                to.put(Table::Positions, token, position)?;
                to.put(Table::SeqOfToken, token, s as u32)?;
                token += 1;
            }
        }
        self.pad(bucket, live, to)
    }

    fn pad<S: TableSink>(
        &self,
        bucket: BucketKey,
        live: BucketKey,
        to: &mut S,
    ) -> Result<(), PoolError> {
        let stride = self.config.pages_per_seq_max as usize;
        let (t, s, r) = (bucket.tokens as usize, bucket.seqs as usize, bucket.logit_rows as usize);
        let (live_t, live_s, live_r) =
            (live.tokens as usize, live.seqs as usize, live.logit_rows as usize);
        to.zero(Table::Blocks, live_s * stride, s * stride)?;
        to.zero(Table::Slots, live_s, s)?;
        to.zero(Table::Positions, live_t, t)?;
        let spare = t - live_t;
        for i in 0..spare {
            to.put(Table::WriteSlots, live_t + i, (i as u32) % PAGE)?;
            to.put(Table::SeqOfToken, live_t + i, ((live_s + i).min(s - 1)) as u32)?;
        }
        for i in live_s..s {
            let first = i - live_s;
            let count = if i + 1 == s { spare.saturating_sub(first) } else { 1 };
            let count = count.min(spare.saturating_sub(first));
            to.put(Table::FirstTokens, i, (live_t + first).min(t - 1) as u32)?;
            to.put(Table::TokenCounts, i, count as u32)?;
            to.put(Table::KvLens, i, u32::from(count > 0))?;
        }
        for i in live_r..r {
            to.put(Table::LogitTokens, i, (t - 1) as u32)?;
        }
        to.zero(Table::LogitSlots, live_r, r)
    }
}
