//! The audit: is every page in exactly one place, and do all the books agree?

use crate::PageState;
use crate::pool::Pool;
use core::fmt;
use lockstep_flow::{PageId, SlotId};

/// Pages by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StateCounts {
    /// On the free list.
    pub free: u32,
    /// Written by one running request.
    pub owned: u32,
    /// Read by at least one running sequence, and in the index.
    pub shared: u32,
    /// In the index only.
    pub cached: u32,
    /// In a transfer.
    pub in_flight: u32,
    /// Waiting for a step or a peer.
    pub quarantined: u32,
    /// Page 0.
    pub reserved: u32,
}

/// The first thing that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Something about a page.
    Page { page: PageId, state: PageState, what: &'static str },
    /// Something about a sequence.
    Slot { slot: SlotId, what: &'static str },
    /// Something about leases.
    Leases { what: &'static str },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Page { page, state, what } => {
                write!(f, "page {page} is {state}: it {what}")
            }
            Violation::Slot { slot, what } => write!(f, "slot {slot} {what}"),
            Violation::Leases { what } => write!(f, "the leases: {what}"),
        }
    }
}

/// What the audit saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditReport {
    /// Pages by state.
    pub counts: StateCounts,
    /// Sequences that have a slot.
    pub sequences: u32,
    /// Steps leased and not given back.
    pub steps_in_flight: u32,
    /// The first violation, if any: the pool must not be used any more.
    pub violation: Option<Violation>,
}

impl Pool {
    /// Checks every invariant of the pool. Reads everything (pages + slots x pages a sequence) and
    /// allocates, so it is for idle time, sampled steps and tests.
    pub fn audit(&self) -> AuditReport {
        AuditReport {
            counts: self.count_states(),
            sequences: self.seqs.iter().filter(|s| s.request.is_some()).count() as u32,
            steps_in_flight: self.steps_in_flight(),
            violation: self
                .audit_lists()
                .or_else(|| self.audit_sequences())
                .or_else(|| self.audit_index())
                .or_else(|| self.audit_leases()),
        }
    }

    fn count_states(&self) -> StateCounts {
        let mut counts = StateCounts::default();
        for i in 0..self.config.pages {
            match self.states.get(PageId(i)) {
                PageState::Free => counts.free += 1,
                PageState::Owned(_) => counts.owned += 1,
                PageState::Shared(0) => counts.cached += 1,
                PageState::Shared(_) => counts.shared += 1,
                PageState::InFlight(_) => counts.in_flight += 1,
                PageState::Quarantined(_) => counts.quarantined += 1,
                PageState::Reserved => counts.reserved += 1,
            }
        }
        counts
    }

    fn page_violation(&self, page: u32, what: &'static str) -> Option<Violation> {
        let page = PageId(page);
        Some(Violation::Page { page, state: self.states.get(page), what })
    }

    /// The free list holds the free pages once each, the quarantine those that wait for a lease.
    fn audit_lists(&self) -> Option<Violation> {
        let mut listed = vec![0u8; self.config.pages as usize];
        for &page in &self.free {
            if self.states.get(PageId(page)) != PageState::Free {
                return self.page_violation(page, "is on the free list");
            }
            listed[page as usize] += 1;
        }
        for &page in &self.quarantine {
            match self.states.get(PageId(page)) {
                PageState::Quarantined(crate::Until::Lease(g))
                    if g == self.stamps[page as usize]
                        && g > self.completed
                        && g <= self.issued => {}
                _ => return self.page_violation(page, "is listed as waiting for a lease"),
            }
            listed[page as usize] += 1;
        }
        for &page in &self.set_aside {
            if self.states.get(PageId(page)) != PageState::Quarantined(crate::Until::Needed) {
                return self.page_violation(page, "is listed as set aside");
            }
            listed[page as usize] += 1;
        }
        for page in 0..self.config.pages {
            let expected = match self.states.get(PageId(page)) {
                PageState::Free => 1,
                PageState::Quarantined(crate::Until::Lease(_) | crate::Until::Needed) => 1,
                _ => 0,
            };
            if listed[page as usize] != expected {
                return self.page_violation(page, "is listed twice, or not where it belongs");
            }
            let held =
                matches!(self.states.get(PageId(page)), PageState::Owned(_) | PageState::Shared(_));
            if self.digests.is_closed(page) && !held {
                return self.page_violation(page, "is nobody's and has a digest");
            }
            if (page == 0) != (self.states.get(PageId(page)) == PageState::Reserved) {
                return self
                    .page_violation(page, "breaks the rule that page 0 is the reserved one");
            }
        }
        None
    }

    /// Block tables: shared pages in front with the right counts, own pages behind, each once.
    fn audit_sequences(&self) -> Option<Violation> {
        let mut holders = vec![0u32; self.config.pages as usize];
        for (slot, seq) in self.seqs.iter().enumerate() {
            let slot = SlotId(slot as u32);
            let bad = |what| Some(Violation::Slot { slot, what });
            let Some(request) = seq.request else {
                if seq.pages != 0 || seq.shared != 0 {
                    return bad("is empty and has pages");
                }
                continue;
            };
            let full = seq.pages * lockstep_flow::limits::PAGE_TOKENS;
            let shared = seq.shared * lockstep_flow::limits::PAGE_TOKENS;
            if !(shared <= seq.completed && seq.completed <= seq.written && seq.written <= full) {
                return bad("has lengths out of order");
            }
            if seq.last_lease > self.issued || seq.pages > self.config.pages_per_seq_max {
                return bad("has a lease or a length that cannot be");
            }
            for (i, &page) in self.block_table(slot).iter().enumerate() {
                let held = match self.states.get(PageId(page)) {
                    PageState::Shared(n) => n > 0 && i < seq.shared as usize,
                    PageState::Owned(r) => r == request && i >= seq.shared as usize,
                    _ => false,
                };
                if !held {
                    return self.page_violation(page, "is in a block table where it may not be");
                }
                holders[page as usize] += 1;
            }
        }
        for page in 0..self.config.pages {
            let expected = match self.states.get(PageId(page)) {
                PageState::Owned(_) => 1,
                PageState::Shared(n) => n,
                _ => 0,
            };
            if holders[page as usize] != expected {
                return self.page_violation(page, "is in another number of block tables");
            }
        }
        self.audit_slots()
    }

    /// Every slot is running, free or leaving; a request has one slot.
    fn audit_slots(&self) -> Option<Violation> {
        let mut listed = vec![0u8; self.seqs.len()];
        for &slot in self.free_slots.iter().chain(&self.leaving_slots) {
            listed[slot as usize] += 1;
        }
        for (slot, seq) in self.seqs.iter().enumerate().skip(1) {
            if listed[slot] != u8::from(seq.request.is_none()) {
                let slot = SlotId(slot as u32);
                return Some(Violation::Slot { slot, what: "is not in exactly one list" });
            }
        }
        let mut requests: Vec<_> = self.seqs.iter().filter_map(|s| s.request).collect();
        requests.sort_unstable();
        if requests.windows(2).any(|w| w[0] == w[1]) || self.seqs[0].request.is_some() {
            let what = "shares its request with another slot, or is the reserved one";
            return Some(Violation::Slot { slot: SlotId(0), what });
        }
        for &slot in &self.leaving_slots {
            if self.seqs[slot as usize].last_lease <= self.completed {
                let slot = SlotId(slot);
                return Some(Violation::Slot { slot, what: "waits for a completed lease" });
            }
        }
        None
    }

    fn audit_index(&self) -> Option<Violation> {
        let (page, what) = self.index.fault(&self.states)?;
        self.page_violation(page.0, what)
    }

    /// Leases: as many as the books say, and what they have written is what they will complete.
    fn audit_leases(&self) -> Option<Violation> {
        let bad = |what| Some(Violation::Leases { what });
        if self.completed > self.issued || self.steps_in_flight() > self.config.steps_in_flight_max
        {
            return bad("more are out than may be");
        }
        let mut ends: Vec<u32> = self.seqs.iter().map(|s| s.completed).collect();
        for generation in self.completed + 1..=self.issued {
            for row in &self.leased[(generation % self.leased.len() as u64) as usize] {
                let seq = &self.seqs[row.slot as usize];
                if seq.request.is_none() || seq.epoch != row.epoch {
                    continue;
                }
                let end = &mut ends[row.slot as usize];
                if row.end <= *end || generation > seq.last_lease {
                    return bad("a step in flight goes back over what is written");
                }
                *end = row.end;
            }
        }
        // A step that was abandoned leaves `written` ahead until its rows' sequences are released.
        let behind = self.seqs.iter().zip(&ends).any(|(s, end)| s.written < *end);
        if behind { bad("a step in flight writes more than its sequence knows of") } else { None }
    }
}
