//! Closed pages: what is known of a page group whose tokens are all written.
//!
//! A page closes with the step that writes its last token. From then on nothing may write it
//! until it is free again, so a digest taken then stays true; who takes and compares digests is
//! the engine's audit. This room keeps them: as numbers, with the page, dropped the moment the
//! page changes hands.

use crate::pool::Pool;
use crate::{PageState, PoolError};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{Micros, PageId, SlotId};

/// What is known of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cover {
    /// Not closed, or nobody keeps digests.
    Open,
    /// It closed with a step whose digests are still to be taken.
    Closed,
    /// Its digest is kept; it was last taken or found true then.
    Proven(Micros),
}

/// A page that a sequence gave up because the index had its tokens already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merged {
    /// What it gave up: free, and not written again before the next step.
    pub own: PageId,
    /// What it reads instead.
    pub known: PageId,
}

/// Digests of closed pages.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    /// Words of one page's digest; 0 keeps none.
    words: usize,
    covers: Vec<Cover>,
    /// `words` a page.
    kept: Vec<u64>,
    closed: Vec<u32>,
    merged: Vec<Merged>,
    proven: u32,
}

impl Digests {
    fn on(&self) -> bool {
        self.words > 0
    }

    fn cover(&self, page: u32) -> Cover {
        self.covers.get(page as usize).copied().unwrap_or(Cover::Open)
    }

    fn close(&mut self, page: u32) {
        assert_eq!(self.covers[page as usize], Cover::Open, "page {page} closes twice");
        self.covers[page as usize] = Cover::Closed;
        self.closed.push(page);
    }

    /// The page changes hands: what was known of it is not true of what comes.
    pub fn forget(&mut self, page: PageId) {
        let Some(cover) = self.covers.get_mut(page.index()) else { return };
        match core::mem::replace(cover, Cover::Open) {
            Cover::Open => {}
            Cover::Closed => self.closed.retain(|&p| p != page.0),
            Cover::Proven(_) => self.proven -= 1,
        }
    }

    pub fn merge(&mut self, own: PageId, known: PageId) {
        if self.on() && self.cover(own.0) != Cover::Open {
            self.merged.push(Merged { own, known });
        }
    }

    /// True where the page has to stay as it is.
    pub fn is_closed(&self, page: u32) -> bool {
        self.cover(page) != Cover::Open
    }
}

impl Pool {
    /// Keeps digests of `words` words a page from now on, of pages that close from now on; 0 keeps
    /// none. Takes all memory that they need.
    pub fn keep_digests(&mut self, words: usize) {
        if words == 0 {
            self.digests = Digests::default();
            return;
        }
        let pages = self.config.pages as usize;
        self.digests = Digests {
            words,
            covers: vec![Cover::Open; pages],
            kept: vec![0; pages * words],
            closed: Vec::with_capacity(pages),
            merged: Vec::with_capacity(pages),
            proven: 0,
        };
    }

    /// Marks the pages that a completed row has filled.
    pub(crate) fn close_pages(&mut self, slot: u32, first: u32, end: u32) {
        if !self.digests.on() {
            return;
        }
        let base = slot as usize * self.config.pages_per_seq_max as usize;
        for i in first / PAGE_TOKENS..end / PAGE_TOKENS {
            self.digests.close(self.block_tables[base + i as usize]);
        }
    }

    /// Pages that have closed and whose digest nobody has taken yet.
    pub fn closed_pages(&self) -> &[u32] {
        &self.digests.closed
    }

    /// A page given up for the same tokens in the index, in a step completed since this last gave
    /// none, with the page that took its place.
    pub fn take_merged(&mut self) -> Option<Merged> {
        self.digests.merged.pop()
    }

    /// Keeps the digest of a page that [`Pool::closed_pages`] names.
    ///
    /// # Panics
    /// Where the page is not one of those, or the digest has another length.
    pub fn keep_digest(&mut self, page: PageId, digest: &[u64], now: Micros) {
        let Digests { words, covers, kept, closed, proven, .. } = &mut self.digests;
        assert_eq!(covers[page.index()], Cover::Closed, "page {page} has not just closed");
        kept[page.index() * *words..][..*words].copy_from_slice(digest);
        covers[page.index()] = Cover::Proven(now);
        closed.retain(|&p| p != page.0);
        *proven += 1;
    }

    /// The digest of a closed page.
    pub fn digest(&self, page: PageId) -> Option<&[u64]> {
        let Digests { words, kept, .. } = &self.digests;
        self.proven_at(page).map(|_| &kept[page.index() * words..][..*words])
    }

    /// When the digest of a closed page was taken or last found true.
    pub fn proven_at(&self, page: PageId) -> Option<Micros> {
        match self.digests.cover(page.0) {
            Cover::Proven(at) => Some(at),
            Cover::Open | Cover::Closed => None,
        }
    }

    /// The digest of a closed page has been compared with its bytes.
    pub fn prove_page(&mut self, page: PageId, now: Micros) {
        if let Some(Cover::Proven(at)) = self.digests.covers.get_mut(page.index()) {
            *at = now;
        }
    }

    /// Pages with a digest.
    pub const fn proven_pages(&self) -> u32 {
        self.digests.proven
    }

    /// True where no step has been leased for the sequence since it got its slot.
    pub fn is_fresh(&self, slot: SlotId) -> bool {
        self.seqs.get(slot.index()).is_some_and(|s| s.request.is_some() && s.last_lease == 0)
    }

    /// Pages set aside: they failed, and are given to somebody only where there are no others.
    pub fn set_aside_pages(&self) -> u32 {
        self.set_aside.len() as u32
    }

    /// Takes a page out of use that no running sequence holds: it leaves the prefix index, with
    /// everything that was computed from it, and is set aside. False where a sequence still holds
    /// it, or a step in flight may touch it: it is not set aside then.
    pub fn condemn(&mut self, page: PageId) -> bool {
        if self.states.get(page) == PageState::Shared(0) {
            for node in self.index.subtree(page) {
                self.evict(node);
            }
        }
        if self.states.get(page) != PageState::Free {
            return false;
        }
        let set_aside: Result<_, PoolError> = self.states.set_aside(page);
        set_aside.expect("a free page");
        self.free.retain(|&p| p != page.0);
        self.set_aside.push(page.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OwnTables, PoolConfig, RowPlan, Until};
    use lockstep_flow::{BucketKey, RequestId, Token};

    const BUCKET: BucketKey = BucketKey { tokens: 128, seqs: 2, logit_rows: 2 };

    fn pool(pages: u32) -> Pool {
        let mut pool = Pool::new(PoolConfig {
            id: 1,
            pages,
            slots: 2,
            pages_per_seq_max: 4,
            rows_max: 2,
            steps_in_flight_max: 1,
            sub_pools: Vec::new(),
            slot_snapshots: false,
        })
        .unwrap();
        pool.keep_digests(2);
        pool
    }

    fn tokens(n: u32) -> Vec<Token> {
        (0..n).map(Token).collect()
    }

    /// Leases and completes one row of `n` tokens.
    fn step(pool: &mut Pool, slot: SlotId, request: u64, first: u32, n: u32) {
        let mut tables = OwnTables::new(BUCKET, 4);
        let request = RequestId(request);
        pool.extend(slot, request, first + n).unwrap();
        let row = RowPlan::drawing(request, slot, first, n);
        let lease = pool.lease([row].into_iter(), BUCKET, &mut tables.view()).unwrap();
        pool.complete(lease).unwrap();
    }

    fn keep_all(pool: &mut Pool, now: Micros) {
        while let Some(&page) = pool.closed_pages().first() {
            pool.keep_digest(PageId(page), &[u64::from(page), 7], now);
        }
    }

    fn sound(pool: &Pool) {
        assert_eq!(pool.audit().violation, None);
    }

    #[test]
    fn a_page_closes_with_the_step_that_fills_it() {
        let mut pool = pool(9);
        let slot = pool.begin(RequestId(1), 0, &[]).unwrap().slot;
        assert!(pool.is_fresh(slot));
        step(&mut pool, slot, 1, 0, 31);
        assert!(!pool.is_fresh(slot) && pool.closed_pages().is_empty());
        step(&mut pool, slot, 1, 31, 1);
        assert_eq!(pool.closed_pages().len(), 1);
        step(&mut pool, slot, 1, 32, 70);
        let table = pool.block_table(slot)[..3].to_vec();
        assert_eq!(pool.closed_pages(), table);
        keep_all(&mut pool, Micros(5));
        assert_eq!((pool.proven_pages(), pool.closed_pages().len()), (3, 0));
        assert_eq!(pool.digest(PageId(table[1])), Some(&[u64::from(table[1]), 7][..]));
        assert_eq!(pool.proven_at(PageId(table[1])), Some(Micros(5)));
        pool.prove_page(PageId(table[1]), Micros(9));
        assert_eq!(pool.proven_at(PageId(table[1])), Some(Micros(9)));
        assert_eq!(pool.digest(PageId(pool.block_table(slot)[3])), None, "the page being filled");
        sound(&pool);
        pool.release(slot, RequestId(1)).unwrap();
        assert_eq!((pool.proven_pages(), pool.closed_pages().len()), (0, 0), "nobody's pages");
        sound(&pool);
    }

    #[test]
    fn a_digest_lives_as_long_as_the_page_is_shared() {
        let mut pool = pool(9);
        let slot = pool.begin(RequestId(1), 0, &[]).unwrap().slot;
        step(&mut pool, slot, 1, 0, 64);
        pool.publish(slot, RequestId(1), &tokens(64), None).unwrap();
        keep_all(&mut pool, Micros(1));
        pool.release(slot, RequestId(1)).unwrap();
        assert_eq!((pool.proven_pages(), pool.cached_pages()), (2, 2));
        sound(&pool);
        pool.flush_cache();
        assert_eq!(pool.proven_pages(), 0);
        sound(&pool);
    }

    /// A page that closed and was given up in the same step has no digest, and is compared with
    /// the page that took its place.
    #[test]
    fn merged_pages_are_told() {
        let mut pool = pool(9);
        let first = pool.begin(RequestId(1), 0, &[]).unwrap().slot;
        let second = pool.begin(RequestId(2), 0, &[]).unwrap().slot;
        for (slot, request) in [(first, 1), (second, 2)] {
            step(&mut pool, slot, request, 0, 32);
            let own = PageId(pool.block_table(slot)[0]);
            pool.publish(slot, RequestId(request), &tokens(32), None).unwrap();
            let known = PageId(pool.block_table(slot)[0]);
            let merged: Vec<Merged> = core::iter::from_fn(|| pool.take_merged()).collect();
            assert_eq!(merged.is_empty(), request == 1);
            assert!(merged.iter().all(|m| *m == Merged { own, known }));
        }
        assert_eq!(pool.closed_pages().len(), 1);
        sound(&pool);
    }

    #[test]
    fn a_condemned_page_takes_what_was_computed_from_it_and_is_the_last_to_be_used() {
        let mut pool = pool(9);
        let slot = pool.begin(RequestId(1), 0, &[]).unwrap().slot;
        step(&mut pool, slot, 1, 0, 96);
        pool.publish(slot, RequestId(1), &tokens(96), None).unwrap();
        keep_all(&mut pool, Micros(1));
        let table = pool.block_table(slot).to_vec();
        assert!(!pool.condemn(PageId(table[1])), "a sequence reads it");
        pool.release(slot, RequestId(1)).unwrap();
        assert!(pool.condemn(PageId(table[1])));
        assert_eq!(pool.page_state(PageId(table[1])), PageState::Quarantined(Until::Needed));
        assert_eq!(pool.peek(0, &tokens(96)), 32, "the page before it is still there");
        assert_eq!((pool.free_pages(), pool.cached_pages(), pool.set_aside_pages()), (6, 1, 1));
        sound(&pool);
        // Eight pages are wanted: the cached one goes before the one set aside.
        let slots = [1, 2].map(|r| pool.begin(RequestId(r), 0, &[]).unwrap().slot);
        assert_eq!(pool.extend(slots[0], RequestId(1), 128).unwrap(), 128);
        assert_eq!(pool.extend(slots[1], RequestId(2), 96).unwrap(), 96);
        assert_eq!((pool.cached_pages(), pool.set_aside_pages()), (0, 1));
        assert_eq!(pool.extend(slots[1], RequestId(2), 128).unwrap(), 128);
        assert_eq!(pool.set_aside_pages(), 0);
        assert!(pool.block_table(slots[1]).contains(&table[1]));
        sound(&pool);
    }
}
