//! The pool: sequences come, grow, share and go.

use crate::closed::Digests;
use crate::index::{PrefixIndex, owner};
use crate::lease::LeasedRow;
use crate::{PageStates, PoolConfig, PoolError, SnapshotId, Until};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{PageId, Position, RequestId, SlotId, Token};

/// A running sequence, or an empty slot.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seq {
    pub request: Option<RequestId>,
    pub adapter: u32,
    /// Counts the sequences that this slot has had, so that a late completion is known as such.
    pub epoch: u64,
    /// Entries of its block table.
    pub pages: u32,
    /// Of those, how many from the front are shared.
    pub shared: u32,
    /// Positions under this are written by steps that have been leased.
    pub written: u32,
    /// Positions under this are written by steps that have completed.
    pub completed: u32,
    /// The newest lease with a row of it.
    pub last_lease: u64,
    /// The newest attempt at a lease with a row of it.
    pub attempt: u64,
}

/// A sequence that has just got its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// Where it lives.
    pub slot: SlotId,
    /// Tokens whose KV the prefix index had: whole pages.
    pub cached_tokens: u32,
    /// The slot state to restore with them, where the model keeps any.
    pub snapshot: Option<SnapshotId>,
}

/// What has happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolCounters {
    /// Tokens that were looked for in the prefix index.
    pub prefix_query_tokens: u64,
    /// Tokens that it had.
    pub prefix_hit_tokens: u64,
    /// Pages that went into the index.
    pub pages_shared: u64,
    /// Pages given up because the index had the same tokens already.
    pub pages_merged: u64,
    /// Cached pages given up for a running sequence.
    pub pages_evicted: u64,
    /// Pages that had to wait for a step in flight before they were free.
    pub pages_quarantined: u64,
}

/// Pages, slots, the prefix index and the leases over them.
#[derive(Debug)]
pub struct Pool {
    pub(crate) config: PoolConfig,
    pub(crate) states: PageStates,
    /// Taken from the back.
    pub(crate) free: Vec<u32>,
    /// Waiting for a lease.
    pub(crate) quarantine: Vec<u32>,
    /// Condemned, the oldest first.
    pub(crate) set_aside: Vec<u32>,
    pub(crate) digests: Digests,
    pub(crate) index: PrefixIndex,
    /// By slot; slot 0 stays empty.
    pub(crate) seqs: Vec<Seq>,
    /// `[slots + 1][pages_per_seq_max]`.
    pub(crate) block_tables: Vec<u32>,
    pub(crate) free_slots: Vec<u32>,
    pub(crate) leaving_slots: Vec<u32>,
    /// By page: the newest lease that could touch it when it was last let go.
    pub(crate) stamps: Vec<u64>,
    /// By page: the newest attempt at a lease that writes it.
    pub(crate) write_marks: Vec<u64>,
    pub(crate) attempt: u64,
    pub(crate) issued: u64,
    pub(crate) completed: u64,
    /// By generation modulo its length: rows of the steps in flight.
    pub(crate) leased: Vec<Vec<LeasedRow>>,
    /// Snapshots whose node is gone.
    pub(crate) orphans: Vec<SnapshotId>,
    pub(crate) counters: PoolCounters,
}

impl Pool {
    /// A pool of free pages. All memory of the step path is taken here.
    ///
    /// # Errors
    /// A size out of its bounds.
    pub fn new(config: PoolConfig) -> Result<Pool, PoolError> {
        config.check()?;
        let (pages, slots) = (config.pages as usize, config.slots as usize);
        let rows = config.rows_max as usize;
        let steps = config.steps_in_flight_max as usize;
        Ok(Pool {
            states: PageStates::new(config.pages),
            free: (1..config.pages).rev().collect(),
            quarantine: Vec::with_capacity(pages),
            set_aside: Vec::with_capacity(pages),
            digests: Digests::default(),
            index: PrefixIndex::new(config.pages),
            seqs: vec![Seq::default(); slots + 1],
            block_tables: vec![0; (slots + 1) * config.pages_per_seq_max as usize],
            free_slots: (1..=config.slots).rev().collect(),
            leaving_slots: Vec::with_capacity(slots),
            stamps: vec![0; pages],
            write_marks: vec![0; pages],
            attempt: 0,
            issued: 0,
            completed: 0,
            leased: (0..steps).map(|_| Vec::with_capacity(rows)).collect(),
            orphans: Vec::with_capacity(pages),
            counters: PoolCounters::default(),
            config,
        })
    }

    pub(crate) fn seq_of(&self, slot: SlotId, asked: RequestId) -> Result<&Seq, PoolError> {
        let found = self.seqs.get(slot.index()).and_then(|s| s.request);
        if slot == SlotId::PADDING || found != Some(asked) {
            return Err(PoolError::NotInSlot { slot, asked, found });
        }
        Ok(&self.seqs[slot.index()])
    }

    /// Gives `request` a slot, with as many whole pages of `prefix` as the index has (none where
    /// `prefix` is empty). Pass at most all tokens but the last: one must be computed.
    ///
    /// # Errors
    /// No slot is free.
    pub fn begin(
        &mut self,
        request: RequestId,
        adapter: u32,
        prefix: &[Token],
    ) -> Result<Begun, PoolError> {
        let Some(slot) = self.free_slots.pop() else {
            let leased = self.leaving_slots.len() as u32;
            return Err(PoolError::NoSlot { slots: self.config.slots, leased });
        };
        let slot = SlotId(slot);
        let stride = self.config.pages_per_seq_max as usize;
        let limit = (prefix.len() / PAGE_TOKENS as usize).min(stride);
        let base = slot.index() * stride;
        let mut parent = PageId::PADDING;
        let (mut found, mut usable, mut snapshot) = (0, 0, None);
        for run in prefix.chunks_exact(PAGE_TOKENS as usize).take(limit) {
            let Some(page) = self.index.child(parent, adapter, run) else { break };
            self.block_tables[base + found] = page.0;
            found += 1;
            parent = page;
            if !self.config.slot_snapshots {
                usable = found;
            } else if let Some(id) = self.index.snapshot(page) {
                (usable, snapshot) = (found, Some(id));
            }
        }
        for i in 0..usable {
            self.acquire(PageId(self.block_tables[base + i]));
        }
        let cached_tokens = usable as u32 * PAGE_TOKENS;
        self.counters.prefix_query_tokens += prefix.len() as u64;
        self.counters.prefix_hit_tokens += u64::from(cached_tokens);
        let seq = &mut self.seqs[slot.index()];
        assert!(seq.request.is_none(), "slot {slot} is on the free list and has a request");
        *seq = Seq {
            request: Some(request),
            adapter,
            epoch: seq.epoch + 1,
            pages: usable as u32,
            shared: usable as u32,
            written: cached_tokens,
            completed: cached_tokens,
            last_lease: 0,
            attempt: seq.attempt,
        };
        Ok(Begun { slot, cached_tokens, snapshot })
    }

    /// Gives the sequence pages until it has room for `tokens` positions, evicting cached pages
    /// that nobody reads, least recently used first. Returns the positions it has room for now:
    /// fewer than asked where the pool has no more.
    ///
    /// # Errors
    /// The slot is not the request's, or the sequence is longer than a block table.
    pub fn extend(
        &mut self,
        slot: SlotId,
        request: RequestId,
        tokens: u32,
    ) -> Result<u32, PoolError> {
        self.seq_of(slot, request)?;
        let wanted = tokens.div_ceil(PAGE_TOKENS);
        let stride = self.config.pages_per_seq_max;
        if wanted > stride {
            let tokens_max = stride * PAGE_TOKENS;
            return Err(PoolError::SequenceTooLong { slot, tokens, tokens_max });
        }
        while self.seqs[slot.index()].pages < wanted {
            let Some(page) = self.vacant_page() else { break };
            must(self.states.take(page, request));
            let seq = &mut self.seqs[slot.index()];
            self.block_tables[slot.index() * stride as usize + seq.pages as usize] = page.0;
            seq.pages += 1;
        }
        Ok(self.extent_tokens(slot))
    }

    /// Takes the sequence back to `tokens` positions: the next lease writes from there. Steps that
    /// wrote further must not have completed usably ([`Pool::abandon`]), so nothing that counts
    /// is written twice.
    ///
    /// # Errors
    /// The slot is not the request's, a step with a row of it is in flight, or the sequence is not
    /// that long or has completed more.
    pub fn rewind(
        &mut self,
        slot: SlotId,
        request: RequestId,
        tokens: u32,
    ) -> Result<(), PoolError> {
        let seq = *self.seq_of(slot, request)?;
        if seq.last_lease > self.completed {
            let (expected, found) = (self.completed, seq.last_lease);
            return Err(PoolError::WrongLease { expected, found });
        }
        if !(seq.completed..=seq.written).contains(&tokens) {
            let (expected, found) = (Position(seq.written), Position(tokens));
            return Err(PoolError::NotContiguous { slot, expected, found });
        }
        self.seqs[slot.index()].written = tokens;
        Ok(())
    }

    /// Puts the sequence's completed whole pages into the prefix index, where later sequences find
    /// them. `tokens` are the sequence's tokens from its start. Where the index has a run already,
    /// the sequence goes on with the index's page (the same bits, by contract 1) and gives up its
    /// own. `snapshot` is the slot's state after the last of these pages.
    ///
    /// # Errors
    /// The slot is not the request's, or `tokens` are fewer than its completed pages hold.
    pub fn publish(
        &mut self,
        slot: SlotId,
        request: RequestId,
        tokens: &[Token],
        snapshot: Option<SnapshotId>,
    ) -> Result<(), PoolError> {
        let seq = *self.seq_of(slot, request)?;
        let full = seq.completed / PAGE_TOKENS;
        let needed = full * PAGE_TOKENS;
        if tokens.len() < needed as usize {
            return Err(PoolError::TokensShort { slot, needed, found: tokens.len() as u32 });
        }
        let base = slot.index() * self.config.pages_per_seq_max as usize;
        for i in seq.shared..full {
            let at = base + i as usize;
            let parent = if i == 0 { PageId::PADDING } else { PageId(self.block_tables[at - 1]) };
            let run = &tokens[i as usize * PAGE_TOKENS as usize..][..PAGE_TOKENS as usize];
            let own = PageId(self.block_tables[at]);
            if let Some(known) = self.index.child(parent, seq.adapter, run) {
                self.acquire(known);
                self.block_tables[at] = known.0;
                self.digests.merge(own, known);
                self.retire(own, request, seq.last_lease);
                self.counters.pages_merged += 1;
            } else {
                must(self.states.share(own, request));
                self.index.insert(own, parent, seq.adapter, run);
                self.counters.pages_shared += 1;
            }
            self.seqs[slot.index()].shared = i + 1;
        }
        if let (Some(snapshot), Some(last)) = (snapshot, full.checked_sub(1)) {
            let node = PageId(self.block_tables[base + last as usize]);
            self.orphans.extend(self.index.set_snapshot(node, snapshot));
        }
        Ok(())
    }

    /// Ends the sequence: its slot, its own pages and its hold on shared ones are given up, each
    /// as soon as no step in flight can touch it. Shared pages stay in the index until evicted.
    ///
    /// # Errors
    /// The slot is not the request's.
    pub fn release(&mut self, slot: SlotId, request: RequestId) -> Result<(), PoolError> {
        let seq = *self.seq_of(slot, request)?;
        let base = slot.index() * self.config.pages_per_seq_max as usize;
        // Leaves first, so that of one sequence the deepest page is the first to be evicted.
        for i in (0..seq.pages).rev() {
            let page = PageId(self.block_tables[base + i as usize]);
            if i < seq.shared {
                let stamp = &mut self.stamps[page.index()];
                *stamp = seq.last_lease.max(*stamp);
                match must(self.states.release(page)) {
                    crate::PageState::Shared(readers) => self.index.released(page, readers),
                    state => panic!("page {page} was shared and is {state}"),
                }
            } else {
                self.retire(page, request, seq.last_lease);
            }
        }
        let seq = &mut self.seqs[slot.index()];
        seq.request = None;
        (seq.pages, seq.shared, seq.written, seq.completed) = (0, 0, 0, 0);
        if seq.last_lease > self.completed {
            self.leaving_slots.push(slot.0);
        } else {
            self.free_slots.push(slot.0);
        }
        Ok(())
    }

    /// Gives up every cached page that nobody reads (`/flush_cache`). Returns how many.
    pub fn flush_cache(&mut self) -> u32 {
        let mut pages = 0;
        while let Some(page) = self.index.lru.first() {
            self.evict(PageId(page));
            pages += 1;
        }
        pages
    }

    /// Snapshots whose pages are gone: the engine may reuse them once the steps leased before this
    /// call are complete.
    pub fn drain_orphaned_snapshots(&mut self) -> impl Iterator<Item = SnapshotId> + '_ {
        self.orphans.drain(..)
    }

    fn acquire(&mut self, page: PageId) {
        match must(self.states.acquire(page)) {
            crate::PageState::Shared(readers) => self.index.acquired(page, readers - 1),
            state => panic!("page {page} was shared and is {state}"),
        }
    }

    /// A page on its way out is free at once where every lease that could touch it is complete.
    fn waits_for(&self, page: PageId) -> Option<Until> {
        let stamp = self.stamps[page.index()];
        (stamp > self.completed).then_some(Until::Lease(stamp))
    }

    fn vacate(&mut self, page: PageId, until: Option<Until>) {
        if until.is_some() {
            self.counters.pages_quarantined += 1;
            self.quarantine.push(page.0);
        } else {
            self.free.push(page.0);
        }
    }

    fn retire(&mut self, page: PageId, request: RequestId, last_lease: u64) {
        self.digests.forget(page);
        self.stamps[page.index()] = last_lease;
        let until = self.waits_for(page);
        must(self.states.retire(page, request, until));
        self.vacate(page, until);
    }

    pub(crate) fn evict(&mut self, page: PageId) {
        self.digests.forget(page);
        let until = self.waits_for(page);
        let snapshot = self.index.remove(page, &self.states);
        self.orphans.extend(snapshot);
        must(self.states.evict(page, until));
        self.vacate(page, until);
        self.counters.pages_evicted += 1;
    }

    fn vacant_page(&mut self) -> Option<PageId> {
        if self.free.is_empty() {
            // Evicting a page that a step in flight may still read would not give one now.
            match self.index.lru.first().map(PageId) {
                Some(page) if self.waits_for(page).is_some() => return None,
                Some(page) => self.evict(page),
                None => self.bring_back(),
            }
        }
        let page = self.free.pop().map(PageId)?;
        assert!(owner(self.states.get(page)).is_none(), "page {page} is free and has an owner");
        Some(page)
    }

    /// A page that was set aside is used after all: no request may wait for ever, and whoever gets
    /// it writes it before he reads it.
    fn bring_back(&mut self) {
        if !self.set_aside.is_empty() && self.quarantine.is_empty() {
            let page = self.set_aside.remove(0);
            must(self.states.settle(PageId(page)));
            self.free.push(page);
        }
    }

    /// Frees what waited for leases up to `completed`.
    pub(crate) fn settle(&mut self) {
        let Pool { quarantine, states, free, stamps, completed, .. } = self;
        quarantine.retain(|&page| {
            let waits = stamps[page as usize] > *completed;
            if !waits {
                must(states.settle(PageId(page)));
                free.push(page);
            }
            waits
        });
        let Pool { leaving_slots, free_slots, seqs, completed, .. } = self;
        leaving_slots.retain(|&slot| {
            let waits = seqs[slot as usize].last_lease > *completed;
            if !waits {
                free_slots.push(slot);
            }
            waits
        });
    }
}

/// A move that the pool itself decided on must be legal: anything else is a bug of this room, and
/// going on would hand one request's KV to another.
fn must<T>(result: Result<T, PoolError>) -> T {
    result.unwrap_or_else(|e| panic!("the pool's books are wrong: {e}"))
}
