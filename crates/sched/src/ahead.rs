//! Whether the next step may be planned before the host has seen the last one's tokens.

use crate::Scheduler;
use lockstep_flow::status::WaitReason;

impl Scheduler {
    /// Why the next step is better planned once the outcome of the one in flight is known: where
    /// it would hold more than one more token of each running request, or leave somebody out that
    /// a moment later could be in it. None where every running request goes on by one token, with
    /// the token that the device is sampling.
    pub fn waits_for_outcome(&self) -> Option<WaitReason> {
        for &i in &self.running {
            let entry = self.entry(i);
            if !entry.lookahead {
                return Some(WaitReason::Grammar);
            }
            if entry.remaining() > 1 {
                return Some(WaitReason::Prefill);
            }
        }
        let places = self.running.len() < self.config.running_requests_max as usize;
        if let Some(&first) = self.waiting.front()
            && places
            && self.pool.has_slot()
            && self.has_room_for(first)
        {
            return Some(WaitReason::Admission);
        }
        let pages = self.pool.free_pages() + self.pool.cached_pages();
        (self.pages_ahead() > pages).then_some(WaitReason::Pages)
    }

    /// The step planned last whose outcome is still to come.
    pub fn newest_step(&self) -> Option<&crate::Batch> {
        (self.planned > self.completed).then(|| self.batch(self.planned))
    }
}
