//! The pool's books falsified in the middle of a run, and the lease that is then refused.

use crate::rng::Rng;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, PageId, RequestId, SlotId};
use lockstep_pool::{BookFault, OwnTables, Pool, PoolConfig, PoolError, RowPlan, SubPool};

/// What is falsified.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Books {
    /// A page that a sequence reads is freed while its steps go on.
    FreedInFlight,
    /// A sequence has grown a page, and its table's entry still names another's.
    StaleEntry,
}

/// When the pool first refused to sign, in steps from the fault (1 is the first after it).
#[derive(Clone, Copy, Default, Debug)]
pub struct Refusal {
    /// The fault was put in.
    pub struck: bool,
    /// The step that was refused.
    pub steps: Option<u64>,
}

const SEQS: u32 = 3;
const STRIDE: u32 = 8;
const STEPS: u64 = 60;
const BUCKET: BucketKey = BucketKey { tokens: 4, seqs: 4, logit_rows: 4 };

#[derive(Clone, Copy)]
struct Sequence {
    request: RequestId,
    slot: SlotId,
    tokens: u32,
}

/// Decodes three sequences of unlike lengths for sixty steps; the fault, where there is one, comes
/// somewhere on the way.
///
/// # Errors
/// A refusal before there was any fault: a bug.
pub fn run(fault: Option<Books>, seed: u64) -> Result<Refusal, PoolError> {
    let mut rng = Rng::new(seed);
    let mut pool = Pool::new(PoolConfig {
        id: 1,
        pages: 1 + SEQS * STRIDE,
        slots: SEQS,
        pages_per_seq_max: STRIDE,
        rows_max: BUCKET.seqs,
        steps_in_flight_max: 1,
        sub_pools: vec![SubPool { name: "full".into(), bytes_per_page: 64 }],
        slot_snapshots: false,
    })?;
    let mut seqs = Vec::new();
    for i in 0..SEQS {
        let request = RequestId(u64::from(i) + 1);
        let slot = pool.begin(request, 0, &[])?.slot;
        seqs.push(Sequence { request, slot, tokens: 0 });
    }
    // Unlike lengths: each has decoded some tokens alone before they share steps.
    for i in 0..seqs.len() {
        for _ in 0..rng.below(u64::from(PAGE_TOKENS) * 2) {
            step(&mut pool, &mut seqs[i..=i])?;
        }
    }
    let at = 1 + rng.below(STEPS / 2);
    let mut refusal = Refusal::default();
    let mut since = 0;
    for n in 0..STEPS {
        if n >= at && !refusal.struck {
            refusal.struck = match fault {
                Some(fault) => falsify(&mut pool, &seqs, fault, &mut rng)?,
                None => false,
            };
        }
        since += u64::from(refusal.struck);
        match step(&mut pool, &mut seqs) {
            Ok(()) => {}
            Err(e) if !refusal.struck => return Err(e),
            Err(_) => {
                refusal.steps = Some(since);
                break;
            }
        }
    }
    Ok(refusal)
}

fn falsify(
    pool: &mut Pool,
    seqs: &[Sequence],
    fault: Books,
    rng: &mut Rng,
) -> Result<bool, PoolError> {
    let victim = seqs[rng.below(seqs.len() as u64) as usize];
    let pages = victim.tokens.div_ceil(PAGE_TOKENS);
    match fault {
        Books::FreedInFlight => {
            let index = rng.below(pages.into()) as usize;
            let page = PageId(pool.block_table(victim.slot)[index]);
            pool.break_books(BookFault::Freed { page })?;
            Ok(true)
        }
        Books::StaleEntry => {
            // At page growth: the step before has filled the last page.
            if !victim.tokens.is_multiple_of(PAGE_TOKENS) || victim.tokens == 0 {
                return Ok(false);
            }
            pool.extend(victim.slot, victim.request, victim.tokens + 1)?;
            let other = seqs[(rng.below(2) as usize + 1 + victim.slot.index()) % seqs.len()];
            let others = if other.slot == victim.slot { seqs[0] } else { other };
            let page = PageId(pool.block_table(others.slot)[0]);
            if others.slot == victim.slot {
                return Ok(false);
            }
            pool.break_books(BookFault::Entry { slot: victim.slot, index: pages, page })?;
            Ok(true)
        }
    }
}

/// One token more for each.
fn step(pool: &mut Pool, seqs: &mut [Sequence]) -> Result<(), PoolError> {
    for s in seqs.iter() {
        pool.extend(s.slot, s.request, s.tokens + 1)?;
    }
    let rows = seqs.iter().map(|s| RowPlan::drawing(s.request, s.slot, s.tokens, 1));
    let mut tables = OwnTables::new(BUCKET, STRIDE);
    let lease = pool.lease(rows, BUCKET, &mut tables.view())?;
    pool.complete(lease).map_err(|(_, e)| e)?;
    seqs.iter_mut().for_each(|s| s.tokens += 1);
    Ok(())
}
