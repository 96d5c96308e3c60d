//! What a failed page takes with it.

use crate::{Scheduler, Update};
use lockstep_flow::{Failure, PageId};

impl Scheduler {
    /// A page is not what it was when it closed. Every running request that reads it ends with
    /// `failure`, and nothing of theirs goes to the prefix index; one that has not run since it
    /// got its slot has read nothing yet, and goes back to its place in the queue. The page and
    /// what was computed from it leave the index, and nobody is given the page while there are
    /// others. Returns how many requests ended. A step that is planned and not leased goes
    /// without them.
    pub fn condemn_page(&mut self, page: PageId, failure: &Failure) -> u32 {
        let mut ended = 0;
        while let Some(index) = self.reader_of(page) {
            let slot = self.entry(index).slot.expect("a running request has a slot");
            if self.pool.is_fresh(slot) {
                self.send_back(index);
            } else {
                self.fail(index, failure.clone());
                ended += 1;
            }
        }
        self.pool.condemn(page);
        ended
    }

    fn reader_of(&self, page: PageId) -> Option<u32> {
        let reads = |i: &u32| {
            let slot = self.entry(*i).slot;
            slot.is_some_and(|slot| self.pool.block_table(slot).contains(&page.0))
        };
        self.running.iter().copied().find(reads)
    }

    /// A running request gives up its slot and waits again, in its old place.
    pub(crate) fn send_back(&mut self, index: u32) {
        self.running.retain(|&i| i != index);
        self.leave_slot(index);
        let entry = self.entry_mut(index);
        entry.preemptions += 1;
        let request = entry.id;
        self.counters.preemptions += 1;
        self.queue(index);
        self.updates.push(Update::Preempted { request });
    }
}
