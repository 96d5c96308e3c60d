//! Rows that a planned step goes without.

use crate::{Batch, Scheduler};
use lockstep_flow::SlotId;

impl Scheduler {
    /// The sequence of `slot`, which has not run since it got its slot, waits for a later step; it
    /// keeps its slot and its pages. Takes effect on a step that is planned and not leased yet, and
    /// may leave it empty: [`Scheduler::withdraw_empty_step`].
    pub fn postpone(&mut self, slot: SlotId) {
        let Some(batch) = self.planned_step() else { return };
        let Some(at) = batch.rows.iter().position(|r| r.plan.slot == slot) else { return };
        let (row, decodes) = (batch.rows[at], (at as u32) < batch.decode_rows);
        assert!(self.pool.is_fresh(slot), "only a sequence that has not run waits");
        let padded = |b: &Batch| u64::from(b.bucket.tokens - b.live.tokens);
        let before = padded(batch);
        self.unplan(row.entry);
        let entry = self.entry_mut(row.entry);
        entry.issued = row.plan.first_position.0;
        entry.pending -= u32::from(row.plan.samples);
        let counters = &mut self.counters;
        counters.postponed_rows += 1;
        if decodes {
            counters.decode_rows -= 1;
            counters.undrafted_rows -= u64::from(self.config.drafts > 0 && row.drafts == 0);
        } else {
            counters.prefill_rows -= 1;
            counters.prefill_tokens -= u64::from(row.plan.n_tokens);
        }
        let at = (self.planned % self.batches.len() as u64) as usize;
        let batch = &mut self.batches[at];
        counters.padded_rows -= before;
        if !batch.rows.is_empty() {
            // What is left may fit a smaller bucket.
            let bucket = self.ladder.pick(batch.live);
            batch.bucket = bucket.expect("a part of a step fits where all of it did");
            counters.padded_rows += padded(batch);
        }
    }

    /// Takes back a step that is planned, not leased, and has no rows left; true where there was
    /// one.
    pub fn withdraw_empty_step(&mut self) -> bool {
        let empty = self.planned_step().is_some_and(|batch| batch.rows.is_empty());
        self.planned -= u64::from(empty);
        empty
    }
}
