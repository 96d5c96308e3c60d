//! The prefix index against a plain model of it: a list of runs with the time of their last use.
#![forbid(unsafe_code)]

use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, RequestId, SlotId, Token};
use lockstep_pool::{OwnTables, Pool, PoolConfig, RowPlan, SnapshotId};
use proptest::prelude::*;

const STRIDE: u32 = 6;

fn pool(pages: u32, slot_snapshots: bool) -> Pool {
    Pool::new(PoolConfig {
        id: 0,
        pages,
        slots: 4,
        pages_per_seq_max: STRIDE,
        rows_max: 1,
        steps_in_flight_max: 1,
        sub_pools: vec![],
        slot_snapshots,
    })
    .unwrap()
}

/// Computes positions `from..to` of a sequence in one step.
fn compute(pool: &mut Pool, slot: SlotId, request: RequestId, from: u32, to: u32) {
    if from == to {
        return;
    }
    let bucket = BucketKey { tokens: to - from, seqs: 1, logit_rows: 1 };
    let mut tables = OwnTables::new(bucket, STRIDE);
    let row = RowPlan::drawing(request, slot, from, to - from);
    let lease = pool.lease([row].into_iter(), bucket, &mut tables.view()).unwrap();
    pool.complete(lease).unwrap();
}

/// The text number `text`: texts share their first pages with the texts they divide into.
fn tokens(text: u32, pages: u32) -> Vec<Token> {
    (0..pages * PAGE_TOKENS).map(|i| Token((text >> (i / PAGE_TOKENS)) & 1)).collect()
}

/// A run of pages from the start, as the model keeps it: its bits, its length, its adapter.
type Run = (u32, u32, u32);

#[derive(Default, Debug)]
struct Model {
    /// Cached runs with the order of their last use.
    runs: Vec<(Run, u64)>,
    clock: u64,
}

impl Model {
    fn run(text: u32, pages: u32, adapter: u32) -> Run {
        (text & ((1 << pages) - 1), pages, adapter)
    }

    fn has(&self, text: u32, pages: u32, adapter: u32) -> bool {
        self.runs.iter().any(|(r, _)| *r == Self::run(text, pages, adapter))
    }

    fn hit(&self, text: u32, pages: u32, adapter: u32) -> u32 {
        (1..=pages).take_while(|n| self.has(text, *n, adapter)).count() as u32
    }

    /// A sequence ends: its pages are used in order from the deepest.
    fn used(&mut self, text: u32, pages: u32, adapter: u32) {
        for n in (1..=pages).rev() {
            let run = Self::run(text, n, adapter);
            self.clock += 1;
            self.runs.retain(|(r, _)| *r != run);
            self.runs.push((run, self.clock));
        }
    }

    /// Gives up the leaf used longest ago that no running sequence reads.
    fn evict(&mut self, running: Run) {
        let leaf = |run: &Run| {
            let child =
                |r: &Run| r.1 == run.1 + 1 && r.2 == run.2 && r.0 & ((1 << run.1) - 1) == run.0;
            !self.runs.iter().any(|(r, _)| child(r))
        };
        let held = |run: &Run| {
            run.2 == running.2 && run.1 <= running.1 && running.0 & ((1 << run.1) - 1) == run.0
        };
        let oldest = self.runs.iter().filter(|(r, _)| leaf(r) && !held(r)).min_by_key(|r| r.1);
        let gone = oldest.expect("something can go").0;
        self.runs.retain(|(r, _)| *r != gone);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Sequences come one after the other: hits, evictions and their order are the model's.
    #[test]
    fn hits_and_evictions_are_those_of_a_plain_list(
        pages in 7u32..20,
        asks in prop::collection::vec((0u32..64, 1u32..=STRIDE, 0u32..2), 1..60),
    ) {
        let mut pool = pool(pages, false);
        let mut model = Model::default();
        for (i, (text, want, adapter)) in asks.into_iter().enumerate() {
            let request = RequestId(i as u64);
            let tokens = tokens(text, want);
            let hit = model.hit(text, want, adapter);
            prop_assert_eq!(pool.peek(adapter, &tokens), hit * PAGE_TOKENS);
            let prefix = &tokens[..tokens.len() - 1];
            let begun = pool.begin(request, adapter, prefix).unwrap();
            let hit = hit.min(want - 1);
            prop_assert_eq!(begun.cached_tokens, hit * PAGE_TOKENS);
            let length = want * PAGE_TOKENS;
            prop_assert_eq!(pool.extend(begun.slot, request, length).unwrap(), length);
            let free = (pages - 1) as usize - model.runs.len();
            for _ in free..(want - hit) as usize {
                model.evict(Model::run(text, hit, adapter));
            }
            compute(&mut pool, begun.slot, request, begun.cached_tokens, length);
            pool.publish(begun.slot, request, &tokens, None).unwrap();
            pool.release(begun.slot, request).unwrap();
            model.used(text, want, adapter);
            let report = pool.audit();
            prop_assert_eq!(report.violation, None);
            prop_assert_eq!(report.counts.cached as usize, model.runs.len());
        }
        prop_assert_eq!(pool.flush_cache() as usize, model.runs.len());
        prop_assert_eq!(pool.free_pages(), pages - 1);
    }
}

/// A model with per-sequence state restores pages and state together or neither.
#[test]
fn a_prefix_without_its_snapshot_is_no_hit() {
    let mut pool = pool(20, true);
    let (a, text) = (RequestId(1), tokens(0b01, 3));
    let slot = pool.begin(a, 0, &text).unwrap().slot;
    pool.extend(slot, a, 96).unwrap();
    compute(&mut pool, slot, a, 0, 64);
    pool.publish(slot, a, &text, Some(SnapshotId(7))).unwrap();
    compute(&mut pool, slot, a, 64, 96);
    pool.publish(slot, a, &text, None).unwrap();
    pool.release(slot, a).unwrap();
    assert_eq!(pool.peek(0, &text), 96, "the pages are there");
    let begun = pool.begin(RequestId(2), 0, &text).unwrap();
    assert_eq!((begun.cached_tokens, begun.snapshot), (64, Some(SnapshotId(7))));
    pool.release(begun.slot, RequestId(2)).unwrap();
    let begun = pool.begin(RequestId(3), 0, &text[..50]).unwrap();
    assert_eq!((begun.cached_tokens, begun.snapshot), (0, None), "page 0 has no snapshot");
    pool.release(begun.slot, RequestId(3)).unwrap();
    pool.flush_cache();
    assert_eq!(pool.drain_orphaned_snapshots().collect::<Vec<_>>(), [SnapshotId(7)]);
    assert_eq!(pool.audit().violation, None);
}

/// Two sequences compute the same prompt at the same time: the second one's pages are given up
/// for the first one's, and both go on from the same ones.
#[test]
fn equal_pages_computed_twice_are_kept_once() {
    let mut pool = pool(20, false);
    let (a, b, text) = (RequestId(1), RequestId(2), tokens(0, 2));
    let mut slots = Vec::new();
    for request in [a, b] {
        let slot = pool.begin(request, 0, &text[..63]).unwrap().slot;
        pool.extend(slot, request, 64).unwrap();
        compute(&mut pool, slot, request, 0, 64);
        slots.push(slot);
    }
    assert_eq!(pool.free_pages(), 15);
    pool.publish(slots[0], a, &text, None).unwrap();
    pool.publish(slots[1], b, &text, None).unwrap();
    assert_eq!(pool.free_pages(), 17);
    assert_eq!(pool.block_table(slots[0]), pool.block_table(slots[1]));
    assert_eq!(pool.counters().pages_merged, 2);
    assert_eq!(pool.audit().violation, None);
}

#[test]
fn bad_sizes_are_refused_with_what_would_do() {
    let config = pool(20, false).config().clone();
    let e = Pool::new(PoolConfig { pages: 1, ..config.clone() }).unwrap_err();
    assert_eq!(e.to_string(), "the pool's pages is 1; it takes 2 to 134217727");
    let e = Pool::new(PoolConfig { pages_per_seq_max: 20, ..config }).unwrap_err();
    assert_eq!(e.to_string(), "the pool's pages_per_seq_max is 20; it takes 1 to 19");
}
