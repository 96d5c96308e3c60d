//! Packing against the best there is, and what a proof of a large plan costs in counted work.

mod support;

use lockstep_flow::BucketKey;
use lockstep_plan::{
    Access, LaneId, OpKind, PlanBuilder, StepPlan, pack, pack_by_issue_order, prove,
};
use support::{Rng, large, overlap};

/// A chain on one lane over transients that live for random stretches of it.
fn chain(rng: &mut Rng, ops: usize, transients: usize, bytes: u64) -> StepPlan {
    let mut b = PlanBuilder::new(BucketKey::decode(1), 1);
    let lives: Vec<(usize, usize, Access)> = (0..transients)
        .map(|i| {
            let bytes = 64 * (1 + rng.below(bytes));
            let t = Access::whole(b.scratch(format!("t{i}"), bytes), bytes);
            let (x, y) = (rng.below(ops as u64) as usize, rng.below(ops as u64) as usize);
            (x.min(y), x.max(y), t)
        })
        .collect();
    for o in 0..ops {
        let at = |f: &dyn Fn(&(usize, usize, Access)) -> bool| {
            lives.iter().filter(|l| f(l)).map(|l| l.2).collect::<Vec<_>>()
        };
        let reads = at(&|l| l.0 < o && o == l.1);
        let writes = at(&|l| l.0 == o);
        if !writes.is_empty() || !reads.is_empty() {
            let sink = Access::whole(b.scratch(format!("sink{o}"), 64), 64);
            let writes = if writes.is_empty() { vec![sink] } else { writes };
            b.op_with(format!("op{o}"), LaneId::MAIN, OpKind::Mix { seed: 0 }, reads, writes);
        }
    }
    b.finish()
}

/// First and last op that touches each transient that is touched.
fn lives(plan: &StepPlan) -> Vec<(usize, usize, u64)> {
    plan.buffer_ids()
        .filter_map(|id| {
            let uses = |o: &usize| {
                let op = &plan.ops[*o];
                op.reads.iter().chain(&op.writes).any(|a| a.buffer() == id)
            };
            let mut users = (0..plan.ops.len()).filter(uses);
            let first = users.next()?;
            Some((first, users.next_back().unwrap_or(first), plan.buffer(id).bytes))
        })
        .collect()
}

/// The smallest arena by trying every order of placing at the lowest free offset, one of which is
/// the order of the best packing's offsets.
fn smallest(lives: &[(usize, usize, u64)]) -> u64 {
    fn place(
        left: &mut Vec<usize>,
        placed: &mut Vec<(usize, u64)>,
        l: &[(usize, usize, u64)],
    ) -> u64 {
        if left.is_empty() {
            return placed.iter().map(|(i, at)| at + l[*i].2).max().unwrap_or(0);
        }
        let mut best = u64::MAX;
        for k in 0..left.len() {
            let i = left.remove(k);
            let mut taken: Vec<(u64, u64)> = placed
                .iter()
                .filter(|(j, _)| l[i].0 <= l[*j].1 && l[*j].0 <= l[i].1)
                .map(|(j, at)| (*at, at + l[*j].2))
                .collect();
            taken.sort_unstable();
            let mut at = 0;
            for (lo, hi) in taken {
                if at + l[i].2 > lo {
                    at = at.max(hi);
                }
            }
            placed.push((i, at));
            best = best.min(place(left, placed, l));
            placed.pop();
            left.insert(k, i);
        }
        best
    }
    place(&mut (0..lives.len()).collect(), &mut Vec::new(), lives)
}

#[test]
fn small_single_lane_plans_are_packed_as_well_as_can_be() {
    let (mut plans, mut exact) = (0, 0);
    for seed in 0..400 {
        let plan = chain(&mut Rng(seed), 7, 6, 16);
        let lives = lives(&plan);
        if lives.len() > 8 {
            continue;
        }
        let best = smallest(&lives);
        let packing = pack(&plan);
        let packed = packing.report().transient_bytes;
        assert!(packed >= best, "seed {seed}: {packed} is below {best}");
        assert!(packed * 100 <= best * 105, "seed {seed}: {packed}, and {best} would do");
        assert_eq!(packing.report().overlap_bytes(), 0);
        plans += 1;
        exact += usize::from(packed == best);
        prove(plan, packing).unwrap();
    }
    println!("{exact} of {plans} exact");
    assert!(plans > 150, "{plans}");
}

#[test]
fn large_single_lane_plans_stay_within_5_percent_of_the_live_bytes() {
    let mut worst = 1.0f64;
    for seed in 0..24 {
        let n = 40 + 20 * seed as usize;
        let plan = chain(&mut Rng(seed ^ 0xface), n, n, 256);
        let report = *pack(&plan).report();
        let ratio = report.transient_bytes as f64 / report.live_bytes as f64;
        worst = worst.max(ratio);
        assert!(ratio <= 1.05, "seed {seed}: {report:?}");
    }
    println!("worst {worst:.4}");
}

#[test]
fn overlap_has_a_price_and_one_lane_has_none() {
    let many = pack(&overlap::plan(4, 8, 8));
    let one = pack(&overlap::plan(4, 8, 1));
    assert_eq!(one.report().overlap_bytes(), 0);
    assert_eq!(many.report().single_lane_bytes, one.report().transient_bytes);
    assert!(many.report().overlap_bytes() > 0);
    assert!(many.report().saved_bytes() > 0);
    let issue = pack_by_issue_order(&overlap::plan(4, 8, 8));
    assert!(issue.arena_bytes() < many.arena_bytes(), "which is what makes it tempting");
}

/// The time is printed by `examples/prove_large`; what a test can hold is the work: near linear
/// where a comparison of all pairs would take 50 million steps.
#[test]
fn a_proof_of_ten_thousand_ops_takes_counted_work() {
    let plan = large::plan(10_000, 8);
    let packing = pack(&plan);
    let proven = prove(plan, packing).unwrap();
    let counts = proven.counts();
    assert_eq!((counts.ops, counts.lanes), (10_002, 9));
    assert!(counts.pairs < 20 * counts.ops, "{counts:?}");
    assert!(counts.clock_joins < 4 * (counts.ops + counts.edges), "{counts:?}");
}
