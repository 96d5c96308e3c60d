//! What the pool can be asked without changing it.

use crate::pool::{Pool, PoolCounters};
use crate::{PageState, PoolConfig, SubPool, SubPoolUsage};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{PageId, SlotId, Token};

impl Pool {
    /// The sizes that it was made with.
    pub const fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// What has happened since the start.
    pub const fn counters(&self) -> &PoolCounters {
        &self.counters
    }

    /// Steps leased and not yet given back.
    pub const fn steps_in_flight(&self) -> u32 {
        (self.issued - self.completed) as u32
    }

    /// Pages on the free list.
    pub fn free_pages(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages that only the prefix index holds: given up when they are needed.
    pub fn cached_pages(&self) -> u32 {
        self.index.idle()
    }

    /// Pages that are free once the steps in flight are complete.
    pub fn quarantined_pages(&self) -> u32 {
        self.quarantine.len() as u32
    }

    /// Who holds a page.
    pub fn page_state(&self, page: PageId) -> PageState {
        self.states.get(page)
    }

    /// True where a sequence could get a slot now.
    pub fn has_slot(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Positions of the sequence in `slot` whose KV is complete.
    pub fn completed_tokens(&self, slot: SlotId) -> u32 {
        self.seqs.get(slot.index()).map_or(0, |s| s.completed)
    }

    /// Positions that the pages of the sequence in `slot` hold.
    pub fn extent_tokens(&self, slot: SlotId) -> u32 {
        self.seqs.get(slot.index()).map_or(0, |s| s.pages * PAGE_TOKENS)
    }

    /// The block table of the sequence in `slot`.
    pub fn block_table(&self, slot: SlotId) -> &[u32] {
        let pages = self.seqs.get(slot.index()).map_or(0, |s| s.pages);
        self.table(slot, pages)
    }

    /// What each sub-pool holds: the operator's `token usage`.
    pub fn usage(&self) -> Vec<SubPoolUsage> {
        let total = u64::from(self.config.pages - 1);
        let cached = u64::from(self.cached_pages());
        let used = total - cached - u64::from(self.free_pages());
        let of = |s: &SubPool| SubPoolUsage {
            name: s.name.clone(),
            used_bytes: used * s.bytes_per_page,
            cached_bytes: cached * s.bytes_per_page,
            total_bytes: total * s.bytes_per_page,
        };
        self.config.sub_pools.iter().map(of).collect()
    }

    fn table(&self, slot: SlotId, pages: u32) -> &[u32] {
        let stride = self.config.pages_per_seq_max as usize;
        &self.block_tables[slot.index() * stride..][..pages as usize]
    }

    /// How many tokens of `tokens` the prefix index has, in whole pages.
    pub fn peek(&self, adapter: u32, tokens: &[Token]) -> u32 {
        let mut parent = PageId::PADDING;
        let mut pages = 0;
        for run in tokens.chunks_exact(PAGE_TOKENS as usize) {
            let Some(page) = self.index.child(parent, adapter, run) else { break };
            parent = page;
            pages += 1;
        }
        pages * PAGE_TOKENS
    }
}
