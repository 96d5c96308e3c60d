//! Every seeded fault beside its clean twin: which of prover and explorer sees it, how often.

mod support;

use lockstep_plan::drill::{Drilled, PlanFault};
use lockstep_plan::explore::Extension;
use lockstep_plan::{Hazard, Rule, StepPlan, pack, prove};
use support::interpreter::{Machine, explored, program_order};
use support::overlap;

fn rule_of(fault: PlanFault) -> Rule {
    match fault {
        PlanFault::ArenaByIssueOrder | PlanFault::SharedScratch => Rule::Aliasing,
        PlanFault::DroppedEdge
        | PlanFault::EventFromOlderFork
        | PlanFault::OutputReadAfterNextReplay
        | PlanFault::InputWrittenDuringReplay
        | PlanFault::ReadBeforeWait => Rule::Race,
        PlanFault::LiveStride => Rule::Stride,
        PlanFault::FrozenShortcut => Rule::FrozenDecision,
        PlanFault::PaddedRowWritesLivePage | PlanFault::ReadsPaddedRows => Rule::Padding,
        // A Mix op has no kind that would say what it forgot: see `undeclared_scratch...`.
        PlanFault::UndeclaredScratch => Rule::Workspace,
        PlanFault::WeightsRepackedLive => Rule::Workspace,
        PlanFault::RowNotWritten | PlanFault::NeverWritten => Rule::Definedness,
        PlanFault::LanesWaitForEachOther => Rule::Structure,
    }
}

fn rules(d: &Drilled) -> Vec<Rule> {
    let result = prove(d.plan.clone(), d.packing.clone());
    result.err().into_iter().flatten().map(|h: Hazard| h.rule()).collect()
}

#[test]
fn the_clean_twin_is_proven_and_never_alarms() {
    let plan = overlap::plan(3, 4, 8);
    let packing = pack(&plan);
    prove(plan.clone(), packing.clone()).unwrap();
    let expected = program_order(&plan, &packing, 3);
    for seed in 0..100 {
        assert_eq!(explored(&plan, &plan, &packing, seed), expected, "seed {seed}");
    }
}

#[test]
fn the_prover_refuses_every_fault_by_its_rule() {
    let plan = overlap::plan(3, 4, 8);
    for fault in PlanFault::ALL {
        if fault == PlanFault::UndeclaredScratch {
            continue;
        }
        for seed in 0..10 {
            let drilled = fault.seed(&plan, seed).unwrap_or_else(|| panic!("{}", fault.name()));
            let found = rules(&drilled);
            assert!(
                found.contains(&rule_of(fault)),
                "{} at {}: {found:?}",
                fault.name(),
                drilled.spot
            );
        }
    }
}

/// What the explorer sees with the prover switched off, over orders of three steps: all that an
/// order can show. Strides, shortcuts and padding are the kernels' business and stay the same in
/// every order; a deadlock has none.
#[test]
fn the_explorer_shows_what_an_order_can_show() {
    let plan = overlap::plan(3, 4, 8);
    let expected = program_order(&plan, &pack(&plan), 3);
    let mut shown = Vec::new();
    for fault in PlanFault::ALL {
        let (mut runs, mut detected) = (0, 0);
        for seed in 0..10 {
            let Some(d) = fault.seed(&plan, seed) else { continue };
            if fault == PlanFault::WeightsRepackedLive {
                continue;
            }
            for order in 0..20 {
                let Some(x) = Extension::random(&d.plan, 3, order) else { continue };
                // Kernels do what they do, whatever the faulty plan says of them.
                let truth = if fault == PlanFault::UndeclaredScratch { &plan } else { &d.plan };
                let seen = Machine::new(truth, &d.packing).explore(&d.plan, &d.packing, &x);
                runs += 1;
                detected += usize::from(seen != expected);
            }
        }
        println!("{:32} {detected:4} of {runs:4}", fault.name());
        if detected > 0 {
            shown.push(fault);
        }
    }
    let expected = [
        PlanFault::ArenaByIssueOrder,
        PlanFault::DroppedEdge,
        PlanFault::EventFromOlderFork,
        PlanFault::SharedScratch,
        PlanFault::OutputReadAfterNextReplay,
        PlanFault::InputWrittenDuringReplay,
        PlanFault::UndeclaredScratch,
        PlanFault::RowNotWritten,
        PlanFault::NeverWritten,
    ];
    assert_eq!(shown, expected);
}

/// No proof can know what a kernel does not declare; packing then gives its scratch away, and
/// the explorer shows it. Ops of a declared kind are refused for it (`Fault::Undeclared`).
#[test]
fn undeclared_scratch_of_an_open_kind_passes_the_proof() {
    let plan: StepPlan = overlap::plan(3, 4, 8);
    let drilled = PlanFault::UndeclaredScratch.seed(&plan, 1).unwrap();
    assert_eq!(rules(&drilled), []);
}

#[test]
fn a_plan_without_a_place_for_a_fault_says_so() {
    let plan = overlap::plan(1, 1, 1);
    prove(plan.clone(), pack(&plan)).unwrap();
    for fault in [
        PlanFault::SharedScratch,
        PlanFault::LiveStride,
        PlanFault::PaddedRowWritesLivePage,
        PlanFault::LanesWaitForEachOther,
    ] {
        assert!(fault.seed(&plan, 0).is_none(), "{}", fault.name());
    }
}
