//! One step in flight and the next behind it: what the host writes and reads meanwhile is proven
//! for a device that keeps two copies of a step's outputs, and refused, by name, for one that lets
//! the next step overwrite what the host is about to read.

use lockstep_plan::explore::Extension;
use lockstep_plan::mix::mix64;
use lockstep_plan::{BufferId, Hazard, OpKind, Relay, Rule, StepPlan, pack, prove};
use std::collections::HashMap;

const GOOD: Relay = Relay { waits_for_sent: true, fetched: 2 };

fn hazards(relay: Relay) -> Vec<Hazard> {
    let plan = relay.plan();
    let packing = pack(&plan);
    prove(plan, packing).err().unwrap_or_default()
}

/// What the host reads in each step, and which of its reads.
type Reads = Vec<(u32, u32, u64)>;

/// The reads of `steps` pairs of steps in some order: every buffer is a number, every op that is
/// not the host's makes one of those that it reads.
fn reads(plan: &StepPlan, order: &Extension) -> Reads {
    let mut memory: HashMap<BufferId, u64> = HashMap::new();
    let mut seen = Reads::new();
    for at in &order.order {
        let op = plan.op(at.op);
        let value = |b: BufferId| memory.get(&b).copied().unwrap_or(7);
        let taken: Vec<u64> = op.reads.iter().map(|a| value(a.buffer())).collect();
        let made = match op.kind {
            OpKind::HostRead { .. } => {
                seen.push((at.step, at.op.0, taken[0]));
                continue;
            }
            OpKind::HostWrite { .. } => mix64(u64::from(at.step) << 8 | u64::from(at.op.0)),
            _ => taken.iter().fold(1, |h, v| mix64(h ^ v)),
        };
        for access in &op.writes {
            memory.insert(access.buffer(), made);
        }
    }
    seen.sort_unstable();
    seen
}

/// Of many random orders, how many show the host something else than program order does.
fn shown(plan: &StepPlan) -> usize {
    let expected = reads(plan, &Extension::program_order(plan, 4));
    let differs = |seed: &u64| {
        let order = Extension::random(plan, 4, *seed).expect("no cycle");
        reads(plan, &order) != expected
    };
    (0..300).filter(differs).count()
}

#[test]
fn two_copies_of_the_outputs_are_proven_and_every_order_shows_the_same() {
    assert_eq!(hazards(GOOD), []);
    assert_eq!(shown(&GOOD.plan()), 0);
    // Each edge is needed.
    let plan = GOOD.plan();
    for i in 0..plan.edges.len() {
        let mut less = plan.clone();
        let gone = less.edges.remove(i);
        let packing = pack(&less);
        let found = prove(less, packing).err().unwrap_or_default();
        assert!(!found.is_empty(), "without {gone:?}");
    }
}

/// The drill: step n's results are read after step n + 1 has written its own over them.
#[test]
fn reading_results_that_the_next_step_may_have_overwritten_is_named() {
    for (relay, writer) in
        [(Relay { fetched: 1, ..GOOD }, "fetch.1"), (Relay { fetched: 0, ..GOOD }, "sample.1")]
    {
        let found = hazards(relay);
        assert!(!found.is_empty() && found.iter().all(|h| h.rule() == Rule::Race), "{found:?}");
        let words: Vec<String> = found.iter().map(Hazard::to_string).collect();
        let named = |w: &&String| w.contains(writer) && w.contains("read_of_0_behind.1");
        assert!(words.iter().any(|w| named(&w)), "{words:#?}");
        assert!(shown(&relay.plan()) > 50, "{} orders of 300", shown(&relay.plan()));
    }
}

#[test]
fn inputs_that_are_still_being_sent_are_not_written() {
    let found = hazards(Relay { waits_for_sent: false, ..GOOD });
    let words: Vec<String> = found.iter().map(Hazard::to_string).collect();
    let named = |w: &String| w.contains("write.1") && w.contains("send.0");
    assert!(words.iter().any(named), "{words:#?}");
    assert!(shown(&Relay { waits_for_sent: false, ..GOOD }.plan()) > 50);
}
