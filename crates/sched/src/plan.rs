//! The choice of the next step.

use crate::{Batch, Scheduler, SeqRow, TokenSource, Update};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{Micros, Position};
use lockstep_pool::{Logits, RowPlan};

/// Requests of the queue that one plan looks at beyond those it starts.
const SCAN: usize = 64;

/// What a step can still take.
#[derive(Debug)]
struct Budget {
    /// Token rows given out.
    used: u32,
    /// Prompt tokens left.
    prefill: u32,
    /// Running requests that decode and have not been given their row yet.
    decode_ahead: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// No prefill row yet.
    Open,
    /// Logits for last tokens only.
    Plain,
    /// Logits for every token.
    Echo,
}

impl Scheduler {
    /// Chooses the next step and commits to it; `None` where there is nothing to do or `depth`
    /// steps are in flight. Call [`Scheduler::lease`] next.
    pub fn plan(&mut self, now: Micros) -> Option<&Batch> {
        self.expire(now);
        assert_eq!(self.planned, self.leased, "the step planned before has not been leased");
        if self.planned - self.completed >= self.batches.len() as u64 {
            return None;
        }
        let step = self.planned + 1;
        let at = (step % self.batches.len() as u64) as usize;
        let mut batch = core::mem::replace(&mut self.batches[at], Batch::with_capacity(0));
        assert!(batch.rows.is_empty(), "a batch is reused before its step is complete");
        (batch.step, batch.decode_rows) = (step, 0);
        let mut budget = self.budget();
        self.rows_of_running(&mut batch, &mut budget);
        self.rows_of_queue(&mut batch, &mut budget);
        self.trim(&mut batch);
        let some = !batch.rows.is_empty();
        if some {
            batch.number();
            batch.bucket = self.ladder.pick(batch.live).expect("the ladder covers every step");
            self.commit(&batch);
            self.planned = step;
        }
        self.batches[at] = batch;
        some.then(|| self.batch(step))
    }

    fn budget(&self) -> Budget {
        let decode_ahead =
            self.running.iter().filter(|&&i| self.entry(i).remaining() == 1).count() as u32;
        Budget {
            used: 0,
            prefill: self.config.chunked_prefill_tokens,
            decode_ahead,
            kind: Kind::Open,
        }
    }

    /// Rows for what runs already, oldest first, so that the oldest gets its pages first and a
    /// request preempted for it has no row yet.
    fn rows_of_running(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let mut i = 0;
        while i < self.running.len() {
            let index = self.running[i];
            budget.decode_ahead -= u32::from(self.entry(index).remaining() == 1);
            if let Some(mut row) = self.next_row(index, budget) {
                let room = self.make_room(i, &row, budget);
                let first = row.plan.first_position.0;
                if first < room {
                    shorten(&mut row, room - first);
                    place(batch, row, budget);
                } else {
                    self.counters.stalled_rows += 1;
                }
            }
            i += 1;
        }
    }

    /// Token rows that a step can still give, the decode rows to come kept back. A row with logits
    /// for every token binds the step to the buckets that have as many.
    fn tokens_left(&self, budget: &Budget, all: bool) -> u32 {
        let cap = if all || budget.kind == Kind::Echo {
            self.ladder.echo_tokens_max()
        } else {
            self.ladder.mixed_tokens_max()
        };
        cap.saturating_sub(budget.used + budget.decode_ahead)
    }

    /// The row that a request would take next, within the budget.
    fn next_row(&self, index: u32, budget: &Budget) -> Option<SeqRow> {
        let entry = self.entry(index);
        let (first, remaining) = (entry.issued, entry.remaining());
        let all = entry.wants_all_logits();
        let left = self.tokens_left(budget, all);
        let mut n = remaining.min(left);
        let drafts = match (n, remaining, all) {
            (1, 1, false) => entry.drafts_wanted().min(left - 1),
            _ => 0,
        };
        if remaining > 1 {
            n = n.min(budget.prefill);
            if budget.kind == Kind::Plain && all {
                return None;
            }
        }
        if entry.echo && first + 1 < entry.prompt_tokens {
            let edge = if all { entry.prompt_tokens } else { entry.reported };
            n = n.min(edge - first);
        }
        if n == 0 {
            return None;
        }
        let samples = first + n == entry.total();
        let plan = RowPlan {
            request: entry.id,
            slot: entry.slot.expect("only a running request takes a row"),
            first_position: Position(first),
            n_tokens: n + drafts,
            logits: match (all, drafts) {
                (true, _) => Logits::All,
                (false, 0) => last_if(samples),
                (false, _) => Logits::Drafts,
            },
            samples,
        };
        let source = if entry.pending > 0 { TokenSource::LastToken } else { TokenSource::Literal };
        Some(SeqRow {
            plan,
            source,
            output_index: entry.produced(),
            drafts,
            token_row: 0,
            logit_row: 0,
            reached: entry.reached,
            entry: index,
            epoch: entry.epoch,
        })
    }

    /// Gets pages for a row of the `i`th running request; returns the positions it has room for.
    /// Where it cannot get even one more, younger requests are preempted, the youngest first,
    /// unless pages are about to come free anyway.
    fn make_room(&mut self, i: usize, row: &SeqRow, budget: &mut Budget) -> u32 {
        let RowPlan { request, slot, first_position, .. } = row.plan;
        loop {
            let room = self.pool.extend(slot, request, row.plan.end());
            let room = room.expect("a running request holds its slot and fits a block table");
            let waits = self.pool.quarantined_pages() > 0 || self.pool.cached_pages() > 0;
            if room > first_position.0 || waits || self.running.len() == i + 1 {
                return room;
            }
            let victim = self.running[self.running.len() - 1];
            budget.decode_ahead -= u32::from(self.entry(victim).remaining() == 1);
            self.preempt(victim);
        }
    }

    fn preempt(&mut self, index: u32) {
        assert_eq!(self.running.last(), Some(&index), "the youngest is preempted");
        self.send_back(index);
    }

    /// Starts requests of the queue in order of arrival, as far as slots, pages and the step's
    /// budget go. One that shares more of its prompt with a running prefill than the prefix index
    /// has yet is passed over until that is there.
    fn rows_of_queue(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let mut passed = 0;
        while passed < self.waiting.len().min(SCAN) {
            let index = self.waiting[passed];
            let full = self.running.len() >= self.config.running_requests_max as usize
                || !self.pool.has_slot()
                || budget.prefill == 0
                || self.tokens_left(budget, self.entry(index).wants_all_logits()) == 0;
            if full {
                return;
            }
            if self.waits_for_prefix(index) {
                passed += 1;
                continue;
            }
            let blocked = budget.kind == Kind::Plain && self.entry(index).wants_all_logits();
            if blocked || !self.has_room_for(index) {
                return;
            }
            self.waiting.remove(passed);
            self.start(index);
            let Some(mut row) = self.next_row(index, budget) else { return };
            let room = self.pool.extend(row.plan.slot, row.plan.request, row.plan.end());
            let room = room.expect("a running request holds its slot and fits a block table");
            let first = row.plan.first_position.0;
            if room <= first {
                self.counters.stalled_rows += 1;
                return;
            }
            shorten(&mut row, room - first);
            place(batch, row, budget);
        }
    }

    /// True where the pool has, or will soon have, pages for all tokens of a waiting request on
    /// top of what the running ones still need, and one page of growth for each. Where nothing
    /// runs, everything is there.
    pub(crate) fn has_room_for(&self, index: u32) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let pool = &self.pool;
        let waiting = pool.quarantined_pages() + pool.set_aside_pages();
        let have = pool.free_pages() + pool.cached_pages() + waiting;
        let mut need = self.entry(index).pages_wanted() + 1;
        for &i in &self.running {
            let entry = self.entry(i);
            let slot = entry.slot.expect("a running request has a slot");
            need += entry.pages_wanted().saturating_sub(pool.extent_tokens(slot) / PAGE_TOKENS);
        }
        need + self.running.len() as u32 <= have
    }

    fn start(&mut self, index: u32) {
        let Scheduler { pool, entries, .. } = self;
        let entry = entries[index as usize].as_mut().expect("a listed request has an entry");
        let begun = pool
            .begin(entry.id, entry.adapter, entry.cacheable())
            .expect("a free slot was checked for");
        entry.slot = Some(begun.slot);
        entry.issued = begun.cached_tokens;
        entry.waits_for = None;
        let order = entry.order;
        if !core::mem::replace(&mut entry.started, true) {
            entry.cached_tokens = begun.cached_tokens;
            let (request, cached_tokens) = (entry.id, begun.cached_tokens);
            self.counters.started += 1;
            self.updates.push(Update::Started { request, cached_tokens });
        }
        let at = self.running.partition_point(|&i| self.entry(i).order < order);
        self.running.insert(at, index);
    }

    /// True while a running request is prefilling whole pages that this one starts with too and
    /// that the prefix index does not have yet.
    fn waits_for_prefix(&mut self, index: u32) -> bool {
        if let Some((other, id, pages)) = self.entry(index).waits_for {
            let still = self.entries[other as usize].as_ref().is_some_and(|e| {
                e.id == id
                    && e.slot.is_some_and(|s| self.pool.completed_tokens(s) < pages * PAGE_TOKENS)
            });
            if still {
                return true;
            }
            self.entry_mut(index).waits_for = None;
        }
        let entry = self.entry(index);
        let wanted = entry.cacheable();
        if wanted.len() < PAGE_TOKENS as usize {
            return false;
        }
        let known = self.pool.peek(entry.adapter, wanted) / PAGE_TOKENS;
        let found = self.running.iter().find_map(|&other| {
            let o = self.entry(other);
            let slot = o.slot?;
            if !o.caches || o.adapter != entry.adapter {
                return None;
            }
            let common = wanted.iter().zip(&o.tokens).take_while(|(a, b)| a == b).count();
            let pages = common as u32 / PAGE_TOKENS;
            let ahead = self.pool.completed_tokens(slot) < pages * PAGE_TOKENS;
            (pages > known && ahead).then_some((other, o.id, pages))
        });
        self.entry_mut(index).waits_for = found;
        self.counters.prefix_waits += u64::from(found.is_some());
        found.is_some()
    }

    /// Cuts prefill, the youngest first, to what fills the bucket below, where this and a bucket
    /// for the rest are enough cheaper than the bucket that holds both.
    fn trim(&self, batch: &mut Batch) {
        batch.number();
        let live = batch.live;
        let Some(bucket) = self.ladder.pick(live) else { return };
        let target = self.ladder.below(live);
        let decode_rows = &batch.rows[..batch.decode_rows as usize];
        let decode_tokens: u32 = decode_rows.iter().map(|r| r.plan.n_tokens).sum();
        if bucket.is_decode() || target <= decode_tokens {
            return;
        }
        let mut excess = live.tokens - target;
        let parts = target + self.ladder.above(excess).unwrap_or(bucket.tokens);
        let saved = bucket.tokens.saturating_sub(parts);
        if saved * 100 <= self.config.padding_max_percent * bucket.tokens {
            return;
        }
        while excess > 0 {
            let last = batch.rows.len() - 1;
            let row = &mut batch.rows[last];
            if row.plan.n_tokens <= excess {
                excess -= row.plan.n_tokens;
                batch.rows.pop();
            } else {
                let n_tokens = row.plan.n_tokens - excess;
                shorten(row, n_tokens);
                excess = 0;
            }
        }
    }

    fn commit(&mut self, batch: &Batch) {
        let counters = &mut self.counters;
        counters.steps += 1;
        counters.padded_rows += u64::from(batch.bucket.tokens - batch.live.tokens);
        for (i, row) in batch.rows.iter().enumerate() {
            let entry = self.entries[row.entry as usize].as_mut().expect("a row has an entry");
            let end = row.plan.end();
            if (i as u32) < batch.decode_rows {
                counters.decode_rows += 1;
                counters.undrafted_rows += u64::from(self.config.drafts > 0 && row.drafts == 0);
            } else {
                counters.prefill_rows += 1;
                counters.prefill_tokens += u64::from(row.plan.n_tokens);
            }
            counters.recomputed_tokens += row.recomputed_tokens();
            entry.reached = entry.reached.max(end - row.drafts);
            entry.issued = end;
            entry.pending += u32::from(row.plan.samples);
        }
    }
}

/// Cuts a row; where it has drafts, one token is left in any case, and cutting takes drafts alone.
fn shorten(row: &mut SeqRow, n_tokens: u32) {
    if n_tokens < row.plan.n_tokens && row.drafts > 0 {
        assert!(n_tokens > 0, "a row that is placed has room for its token");
        row.plan.n_tokens = n_tokens;
        row.drafts = n_tokens - 1;
        if row.drafts == 0 {
            row.plan.logits = Logits::Last;
        }
    } else if n_tokens < row.plan.n_tokens {
        row.plan.n_tokens = n_tokens;
        row.plan.samples = false;
        if row.plan.logits == Logits::Last {
            row.plan.logits = Logits::None;
        }
    }
}

fn last_if(samples: bool) -> Logits {
    if samples { Logits::Last } else { Logits::None }
}

/// Decode rows in front, prefill rows behind, each in the order they come.
fn place(batch: &mut Batch, row: SeqRow, budget: &mut Budget) {
    let n = row.plan.n_tokens;
    budget.used += n;
    let decodes = n == 1 + row.drafts && row.plan.samples && row.plan.logits != Logits::All;
    if decodes {
        batch.rows.insert(batch.decode_rows as usize, row);
        batch.decode_rows += 1;
    } else {
        budget.prefill -= n.min(budget.prefill);
        budget.kind = match (budget.kind, row.plan.logits) {
            (Kind::Open, Logits::All) => Kind::Echo,
            (Kind::Open, _) => Kind::Plain,
            (kind, _) => kind,
        };
        batch.rows.push(row);
    }
}
