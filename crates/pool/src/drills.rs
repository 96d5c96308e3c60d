//! Faults put in by hand: for each obligation of a lease, and for each of the pool's books, one
//! way to break it, and the check that must catch it.

use crate::pool::Pool;
use crate::{OwnTables, PageState, PoolConfig, PoolError, RowPlan, SubPool, Until};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, PageId, Position, RequestId, SlotId, Token};

const A: RequestId = RequestId(11);
const B: RequestId = RequestId(12);
const STRIDE: usize = 4;

/// Tables that hold garbage, as buffers do that the step before has used.
fn garbage(bucket: BucketKey) -> OwnTables {
    OwnTables::filled(bucket, STRIDE as u32, u32::MAX)
}

const BUCKET: BucketKey = BucketKey { tokens: 64, seqs: 3, logit_rows: 3 };

fn config() -> PoolConfig {
    PoolConfig {
        id: 1,
        pages: 12,
        slots: 3,
        pages_per_seq_max: STRIDE as u32,
        rows_max: 4,
        steps_in_flight_max: 2,
        sub_pools: vec![
            SubPool { name: "k.0".into(), bytes_per_page: 100 },
            SubPool { name: "tokens".into(), bytes_per_page: 4 },
        ],
        slot_snapshots: false,
    }
}

fn pool() -> Pool {
    Pool::new(config()).unwrap()
}

fn row(request: RequestId, slot: SlotId, first: u32, n_tokens: u32) -> RowPlan {
    RowPlan::drawing(request, slot, first, n_tokens)
}

/// Two sequences with 40 and 10 tokens' room.
fn two() -> (Pool, SlotId, SlotId) {
    let mut pool = pool();
    let a = pool.begin(A, 0, &[]).unwrap().slot;
    let b = pool.begin(B, 0, &[]).unwrap().slot;
    assert_eq!(pool.extend(a, A, 40), Ok(2 * PAGE_TOKENS));
    assert_eq!(pool.extend(b, B, 10), Ok(PAGE_TOKENS));
    (pool, a, b)
}

/// Leases `rows` and expects a refusal that has written and changed nothing.
fn refused(pool: &mut Pool, rows: &[RowPlan]) -> PoolError {
    let mut tables = garbage(BUCKET);
    let e = pool.lease(rows.iter().copied(), BUCKET, &mut tables.view()).unwrap_err();
    assert!(tables == garbage(BUCKET), "a refused lease wrote into the tables: {e}");
    assert_eq!(pool.steps_in_flight(), 0);
    e
}

fn words(pool: &Pool) -> String {
    pool.audit().violation.expect("the audit must see this").to_string()
}

#[test]
fn a_good_step_is_signed_and_its_tables_are_the_documented_ones() {
    let (mut pool, a, b) = two();
    let rows = [row(A, a, 0, 40), row(B, b, 0, 2)];
    let mut tables = garbage(BUCKET);
    let lease = pool.lease(rows.iter().copied(), BUCKET, &mut tables.view()).unwrap();
    assert_eq!(lease.live(), BucketKey { tokens: 42, seqs: 2, logit_rows: 2 });
    assert_eq!(tables.block_tables, [1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(tables.write_slots[..3], [32, 33, 34]);
    assert_eq!(tables.write_slots[31..34], [63, 64, 65]);
    assert_eq!(tables.write_slots[40..44], [96, 97, 0, 1]);
    assert_eq!(tables.positions[38..44], [38, 39, 0, 1, 0, 0]);
    assert_eq!(tables.seq_of_token[39..44], [0, 1, 1, 2, 2]);
    assert_eq!(tables.slots, [a.0, b.0, 0]);
    assert_eq!(tables.first_tokens, [0, 40, 42]);
    assert_eq!(tables.token_counts, [40, 2, 22]);
    assert_eq!(tables.kv_lens, [40, 2, 1]);
    assert_eq!(tables.logit_tokens, [39, 41, 63]);
    assert_eq!(tables.logit_slots, [a.0, b.0, 0]);
    pool.verify_tables(&lease, rows.iter().copied(), &mut tables.view()).unwrap();
    assert_eq!(pool.audit().violation, None);
    pool.complete(lease).unwrap();
    assert_eq!(pool.completed_tokens(a), 40);
}

#[test]
fn two_rows_that_write_the_same_slot_are_refused() {
    let (mut pool, a, b) = two();
    let e = refused(&mut pool, &[row(A, a, 0, 3), row(A, a, 0, 3)]);
    assert_eq!(e, PoolError::SlotTwice { slot: a });
    // The same page at both places of one table: one row would write it twice.
    pool.block_tables[a.index() * STRIDE + 1] = pool.block_table(a)[0];
    let e = refused(&mut pool, &[row(B, b, 0, 1), row(A, a, 0, 40)]);
    assert_eq!(e, PoolError::WrittenTwice { page: PageId(1) });
    assert_eq!(
        words(&pool),
        "page 1 is owned by request 11: it is in another number of block tables"
    );
}

#[test]
fn a_foreign_page_in_a_table_is_refused() {
    let (mut pool, a, b) = two();
    let page = PageId(pool.block_table(a)[0]);
    pool.block_tables[b.index() * STRIDE] = page.0;
    let e = refused(&mut pool, &[row(B, b, 0, 1)]);
    assert_eq!(e, PoolError::ForeignPage { slot: b, index: 0, page, state: PageState::Owned(A) });
    assert_eq!(
        words(&pool),
        "page 1 is owned by request 11: it is in a block table where it may not be"
    );
    pool.block_tables[b.index() * STRIDE] = 0;
    assert!(refused(&mut pool, &[row(B, b, 0, 1)]).to_string().ends_with("which is reserved"));
    pool.block_tables[b.index() * STRIDE] = 4000;
    assert!(matches!(refused(&mut pool, &[row(B, b, 0, 1)]), PoolError::ForeignPage { .. }));
}

#[test]
fn a_page_freed_early_is_seen_by_lease_and_audit() {
    let (mut pool, a, _) = two();
    pool.states.force(PageId(1), PageState::Free);
    assert!(matches!(refused(&mut pool, &[row(A, a, 0, 1)]), PoolError::ForeignPage { .. }));
    assert_eq!(words(&pool), "page 1 is free: it is listed twice, or not where it belongs");
    pool.free.push(1);
    assert_eq!(words(&pool), "page 1 is free: it is in a block table where it may not be");
}

#[test]
fn a_stale_or_altered_table_is_told_from_the_leased_one() {
    let (mut pool, a, b) = two();
    let mut old = garbage(BUCKET);
    let lease = pool.lease([row(A, a, 0, 31)].into_iter(), BUCKET, &mut old.view()).unwrap();
    pool.complete(lease).unwrap();
    let rows = [row(A, a, 31, 2), row(B, b, 0, 5)];
    let mut tables = garbage(BUCKET);
    let lease = pool.lease(rows.iter().copied(), BUCKET, &mut tables.view()).unwrap();
    let e = pool.verify_tables(&lease, rows.iter().copied(), &mut old.view()).unwrap_err();
    assert!(matches!(e, PoolError::TableEntry { .. }), "{e}");
    // Any one entry of any table, live or padded.
    for table in 0..10 {
        let len = slice(&mut tables, table).len();
        for i in 0..len {
            slice(&mut tables, table)[i] ^= 1;
            let found = pool.verify_tables(&lease, rows.iter().copied(), &mut tables.view());
            assert!(found.is_err(), "table {table} entry {i}");
            slice(&mut tables, table)[i] ^= 1;
        }
    }
    pool.verify_tables(&lease, rows.iter().copied(), &mut tables.view()).unwrap();
    pool.complete(lease).unwrap();
}

fn slice(tables: &mut OwnTables, i: usize) -> &mut [u32] {
    match i {
        0 => &mut tables.block_tables,
        1 => &mut tables.write_slots,
        2 => &mut tables.positions,
        3 => &mut tables.seq_of_token,
        4 => &mut tables.slots,
        5 => &mut tables.first_tokens,
        6 => &mut tables.token_counts,
        7 => &mut tables.kv_lens,
        8 => &mut tables.logit_tokens,
        _ => &mut tables.logit_slots,
    }
}

#[test]
fn rows_that_go_back_leave_gaps_or_run_over_are_refused() {
    let (mut pool, a, b) = two();
    let at = |n| Position(n);
    let e = refused(&mut pool, &[row(A, a, 1, 3)]);
    assert_eq!(e, PoolError::NotContiguous { slot: a, expected: at(0), found: at(1) });
    let e = refused(&mut pool, &[row(A, a, 0, 65)]);
    assert!(matches!(e, PoolError::NotExtended { capacity_tokens: 64, .. }), "{e}");
    let e = refused(&mut pool, &[row(B, b, 0, u32::MAX)]);
    assert!(matches!(e, PoolError::NotExtended { .. }), "{e}");
    assert_eq!(refused(&mut pool, &[row(A, a, 0, 0)]), PoolError::EmptyRow { slot: a });
    let e = refused(&mut pool, &[row(B, a, 0, 1)]);
    assert_eq!(e, PoolError::NotInSlot { slot: a, asked: B, found: Some(A) });
    for slot in [SlotId(0), SlotId(3), SlotId(99)] {
        let e = refused(&mut pool, &[row(A, slot, 0, 1)]);
        assert_eq!(e, PoolError::NotInSlot { slot, asked: A, found: None });
    }
    let e = refused(&mut pool, &[row(A, a, 0, 60), row(B, b, 0, 10)]);
    assert!(matches!(e, PoolError::BucketTooSmall { tokens: 70, .. }), "{e}");
}

#[test]
fn a_write_into_a_shared_page_is_refused() {
    let (mut pool, a, _) = two();
    let tokens: Vec<Token> = (0..40).map(Token).collect();
    let mut tables = garbage(BUCKET);
    let lease = pool.lease([row(A, a, 0, 40)].into_iter(), BUCKET, &mut tables.view()).unwrap();
    pool.complete(lease).unwrap();
    pool.publish(a, A, &tokens, None).unwrap();
    assert_eq!(pool.page_state(PageId(1)), PageState::Shared(1));
    let e = refused(&mut pool, &[row(A, a, 31, 2)]);
    assert_eq!(
        e.to_string(),
        "the row of slot 1 writes position 31, and positions under 32 are shared and read-only"
    );
    pool.states.force(PageId(1), PageState::Shared(0));
    assert!(matches!(refused(&mut pool, &[row(A, a, 40, 1)]), PoolError::ForeignPage { .. }));
    assert!(words(&pool).starts_with("page 1 is shared by 0 sequences"));
}

/// The fault of a captured consumer with a live producer: tables as wide as the batch, not as the
/// bucket.
#[test]
fn tables_of_the_live_size_are_refused() {
    let (mut pool, a, _) = two();
    let live = BucketKey { tokens: 2, seqs: 1, logit_rows: 1 };
    let mut tables = garbage(live);
    let e = pool.lease([row(A, a, 0, 2)].into_iter(), BUCKET, &mut tables.view()).unwrap_err();
    let table = "block_tables";
    assert_eq!(e, PoolError::TableShape { table, expected: 3 * STRIDE, found: STRIDE });
}

#[test]
fn pages_come_free_after_the_last_lease_that_could_touch_them_and_not_before() {
    let (mut pool, a, b) = two();
    let mut tables = garbage(BUCKET);
    let first = pool.lease([row(A, a, 0, 40)].into_iter(), BUCKET, &mut tables.view()).unwrap();
    let rows = [row(A, a, 40, 1), row(B, b, 0, 1)];
    let second = pool.lease(rows.into_iter(), BUCKET, &mut tables.view()).unwrap();
    let third = pool.lease([row(B, b, 1, 1)].into_iter(), BUCKET, &mut tables.view());
    assert_eq!(third.unwrap_err(), PoolError::TooManySteps { in_flight: 2, max: 2 });
    pool.release(a, A).unwrap();
    assert_eq!(pool.page_state(PageId(2)), PageState::Quarantined(Until::Lease(2)));
    assert_eq!((pool.free_pages(), pool.quarantined_pages()), (8, 2));
    assert_eq!(pool.audit().violation, None);
    let (second, e) = pool.complete(second).unwrap_err();
    assert_eq!(e, PoolError::WrongLease { expected: 1, found: 2 });
    pool.complete(first).unwrap();
    assert_eq!((pool.free_pages(), pool.quarantined_pages()), (8, 2));
    assert_eq!(pool.free_slots, [3], "its slot's last token is still to be written");
    pool.complete(second).unwrap();
    assert_eq!((pool.free_pages(), pool.quarantined_pages()), (10, 0));
    assert_eq!(pool.free_slots, [3, 1]);
    assert_eq!(pool.audit().violation, None);
}

#[test]
fn a_lease_of_another_pool_is_given_back() {
    let (mut pool, a, _) = two();
    let mut other = Pool::new(PoolConfig { id: 2, ..config() }).unwrap();
    let mut tables = garbage(BUCKET);
    let lease = pool.lease([row(A, a, 0, 1)].into_iter(), BUCKET, &mut tables.view()).unwrap();
    let (lease, e) = other.complete(lease).unwrap_err();
    assert_eq!(e, PoolError::WrongLease { expected: 1, found: 1 });
    pool.complete(lease).unwrap();
}

#[test]
fn what_an_abandoned_step_wrote_never_gets_into_the_index() {
    let (mut pool, a, _) = two();
    let tokens: Vec<Token> = (0..64).map(Token).collect();
    let mut tables = garbage(BUCKET);
    let first = pool.lease([row(A, a, 0, 20)].into_iter(), BUCKET, &mut tables.view()).unwrap();
    let second = pool.lease([row(A, a, 20, 44)].into_iter(), BUCKET, &mut tables.view()).unwrap();
    pool.abandon(first).unwrap();
    pool.complete(second).unwrap();
    assert_eq!(pool.completed_tokens(a), 0, "positions 20.. stand on a gap");
    pool.publish(a, A, &tokens, None).unwrap();
    assert_eq!(pool.peek(0, &tokens), 0);
    assert_eq!(pool.audit().violation, None);
}

/// Every book that the audit reads, falsified.
#[test]
fn the_audit_sees_each_book_that_is_wrong() {
    type Fault = fn(&mut Pool);
    let faults: [(Fault, &str); 9] = [
        (|p| p.free.push(1), "page 1 is owned by request 11: it is on the free list"),
        (|p| p.free.truncate(7), "page 4 is free: it is listed twice, or not where it belongs"),
        (|p| p.quarantine.push(1), "page 1 is owned by request 11: it is listed as waiting"),
        (|p| p.states.force(PageId(0), PageState::Shared(0)), "page 0 is shared by 0 sequences"),
        (|p| p.states.force(PageId(3), PageState::Shared(1)), "page 3 is shared by 1 sequences"),
        (|p| p.seqs[1].written = 65, "slot 1 has lengths out of order"),
        (|p| p.seqs[2].request = Some(A), "page 3 is owned by request 12"),
        (|p| p.free_slots.clear(), "slot 3 is not in exactly one list"),
        (|p| p.completed = 7, "the leases: more are out than may be"),
    ];
    for (fault, expected) in faults {
        let (mut pool, ..) = two();
        assert_eq!(pool.audit().violation, None);
        fault(&mut pool);
        let found = words(&pool);
        assert!(found.starts_with(expected), "{found}; expected {expected}");
    }
}

#[test]
fn usage_is_told_for_each_sub_pool() {
    let (pool, ..) = two();
    let usage = pool.usage();
    let of = |i: usize| (&usage[i].name[..], usage[i].used_bytes, usage[i].total_bytes);
    assert_eq!(of(0), ("k.0", 300, 1100));
    assert_eq!(of(1), ("tokens", 12, 44));
    assert_eq!(pool.audit().counts.owned, 3);
}
