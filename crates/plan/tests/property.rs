//! `prove` against a judge that walks through every interleaving of small plans.

mod support;

use lockstep_plan::{
    Arenas, Hazard, InOutBytes, Packing, Proven, Rule, StepPlan, derive_edges, pack, pack_beside,
    prove, prove_any_order,
};
use support::oracle::Oracle;
use support::{Rng, generate, show};

/// How many plans to try: `LOCKSTEP_SEEDS` asks for more than the usual number.
fn seeds(usual: u64) -> u64 {
    std::env::var("LOCKSTEP_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(usual)
}

/// On thousands of random plans the verdict is the same as that of the walk through all
/// interleavings of three steps: nothing is missed, and nothing is refused without a reason, where
/// an indexed access counts as the whole buffer and lifetimes are whole buffers' (both documented
/// at `prove`).
#[test]
fn the_verdict_equals_that_of_all_interleavings() {
    let (mut accepted, mut refused, mut states) = (0, 0, 0);
    let mut seen = [0; 3];
    for seed in 0..seeds(6_000) {
        let mut rng = Rng(seed);
        let mut plan = generate::plan(&mut rng, generate::SMALL);
        generate::edges(&mut rng, &mut plan);
        let packing = generate::packing(&mut rng, &plan);
        let (verdict, walked) = Oracle::new(&plan, &packing, None).judge(true);
        states += walked;
        let result = prove(plan.clone(), packing.clone());
        let rules: Vec<Rule> =
            result.as_ref().err().into_iter().flatten().map(Hazard::rule).collect();
        assert_eq!(
            result.is_ok(),
            verdict.is_clean(),
            "seed {seed}: prove says {rules:?}, the walk {verdict:?}: {}",
            show(&plan, &packing)
        );
        if result.is_ok() {
            accepted += 1;
        } else {
            refused += 1;
        }
        for (count, seen_now) in
            seen.iter_mut().zip([verdict.race, verdict.corrupt, verdict.shared_alive])
        {
            *count += usize::from(seen_now);
        }
    }
    println!("{accepted} accepted, {refused} refused, {states} states, {seen:?}");
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
    assert!(seen.iter().all(|n| *n > 100), "too few of each kind: {seen:?}");
}

/// With indexed accesses taken byte by byte, as a table of that step would have it, whatever the
/// walk finds is still refused: over-approximation loses nothing.
#[test]
fn whole_buffers_for_indexed_accesses_miss_nothing() {
    let (mut found, mut stricter) = (0, 0);
    for seed in 0..seeds(4_000) {
        let mut rng = Rng(seed ^ 0xabcdef);
        let mut plan = generate::plan(&mut rng, generate::SMALL);
        generate::edges(&mut rng, &mut plan);
        let packing = generate::packing(&mut rng, &plan);
        let blocks = |op: usize, write: bool, i: usize| {
            let mut r = Rng(seed ^ (op as u64) << 8 ^ u64::from(write) << 4 ^ i as u64);
            vec![r.below(4)]
        };
        let (verdict, _) = Oracle::new(&plan, &packing, Some(&blocks)).judge(true);
        let refused = prove(plan.clone(), packing.clone()).is_err();
        assert!(
            refused || verdict.is_clean(),
            "seed {seed}: missed {verdict:?}: {}",
            show(&plan, &packing)
        );
        found += usize::from(!verdict.is_clean());
        stricter += usize::from(refused && verdict.is_clean());
    }
    println!("{found} found, {stricter} refused beyond");
    assert!(found > 500, "{found}");
}

/// Derived edges and packing by the partial order leave nothing but what the ops themselves got
/// wrong: reads of bytes that nobody wrote.
#[test]
fn derived_edges_and_packing_are_always_proven() {
    let mut accepted = 0;
    for seed in 0..4_000 {
        let mut rng = Rng(seed ^ 0x5eed);
        let size = generate::Size { lanes: 4, ops: 30, buffers: 12, bytes: 64 };
        let mut plan = generate::plan(&mut rng, size);
        derive_edges(&mut plan);
        let packing = pack(&plan);
        match prove(plan, packing) {
            Ok(_) => accepted += 1,
            Err(hazards) => assert!(
                hazards.iter().all(|h| h.rule() == Rule::Definedness),
                "seed {seed}: {hazards:?}"
            ),
        }
    }
    assert!(accepted > 400, "{accepted}");
}

/// Two proven plans in one arena: the proof of any order says the same as the walks through every
/// sequence of three steps of the two, where a step after one of another plan waits by side.
#[test]
fn any_order_of_two_plans_equals_the_walks_through_their_sequences() {
    let (mut accepted, mut refused) = (0, 0);
    let mut seed = 0;
    while accepted + refused < 400 {
        seed += 1;
        let mut rng = Rng(seed ^ 0x70_70);
        let size = generate::Size { ops: 3, ..generate::SMALL };
        let mut one = || {
            let mut plan = generate::plan(&mut rng, size);
            generate::edges(&mut rng, &mut plan);
            plan
        };
        let (p, q) = (one(), one());
        let together = InOutBytes::of(&p).join(InOutBytes::of(&q));
        let packed = |plan: &StepPlan, rng: &mut Rng| -> Option<(Proven, Packing)> {
            let room = if rng.one_in(3) { InOutBytes::of(plan) } else { together };
            let packing = pack_beside(plan, room);
            Some((prove(plan.clone(), packing.clone()).ok()?, packing))
        };
        let (Some(a), Some(b)) = (packed(&p, &mut rng), packed(&q, &mut rng)) else { continue };
        let result = prove_any_order(&[&a.0, &b.0], Arenas::Shared);
        let mut bad = Vec::new();
        for which in 1..7u32 {
            let steps: Vec<(&StepPlan, &Packing)> =
                (0..3).map(|i| if which >> i & 1 == 1 { (&p, &a.1) } else { (&q, &b.1) }).collect();
            let (verdict, _) = Oracle::sequence(&steps, None).judge(true);
            if !verdict.is_clean() {
                bad.push((which, verdict));
            }
        }
        assert_eq!(
            result.is_ok(),
            bad.is_empty(),
            "seed {seed}: {:?}, walks {bad:?}: {} {}",
            result.err().map(|h| h[0].to_string()),
            show(&p, &a.1),
            show(&q, &b.1)
        );
        if bad.is_empty() {
            accepted += 1;
        } else {
            refused += 1;
        }
    }
    println!("{accepted} pairs accepted, {refused} refused");
    assert!(accepted > 50 && refused > 20, "{accepted} accepted, {refused} refused");
}
