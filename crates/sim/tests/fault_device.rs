//! The fault device under the real engine: the clean twin changes no bit, and the audit sees what
//! is done wrong.

use lockstep_flow::AuditPart;
use lockstep_plan::drill::PlanFault;
use lockstep_sim::{EVERY_STEP, Outcome, Sabotage, Scene, Strike};

fn play(scene: Scene) -> Outcome {
    scene.play().unwrap_or_else(|e| panic!("{e}"))
}

fn struck(strike: Strike, seed: u64) -> Scene {
    let ties = strike == Strike::TiesByArrival;
    let sabotage = Some(Sabotage { strike, first: 6, times: 1000, seed, per_million: EVERY_STEP });
    Scene { seed, sabotage, ties, ..Scene::default() }
}

#[test]
fn replays_on_lanes_in_random_order_change_no_bit() {
    for seed in 0..4 {
        let plain = play(Scene { seed, ..Scene::default() });
        assert!(plain.failures.is_empty() && plain.findings.is_empty(), "{plain:?}");
        assert!(plain.audits > 40 && plain.seen.iter().all(|s| s.len() == 24));
        let lanes = play(Scene { seed, lanes: true, ..Scene::default() });
        assert_eq!(plain.seen, lanes.seen);
        assert!(lanes.findings.is_empty(), "{:?}", lanes.findings);
    }
}

/// What is done wrong, and which part of the audit says so. Two are seen by neither part: a host
/// that reads another step's results (the twin compares what the device holds), and a kernel that
/// is wrong in the twin too.
#[test]
fn twin_and_tables_see_what_is_done_wrong() {
    let table: [(Strike, Option<AuditPart>); 15] = [
        (Strike::Plan(PlanFault::ArenaByIssueOrder), Some(AuditPart::Twin)),
        (Strike::EarlyRead, Some(AuditPart::Twin)),
        (Strike::StaleBlockTable, Some(AuditPart::Tables)),
        (Strike::LiveStride, Some(AuditPart::Tables)),
        (Strike::LiveStrideInReplay, Some(AuditPart::Twin)),
        (Strike::PageGivenTwice, Some(AuditPart::Tables)),
        (Strike::PaddedRowsWrite, Some(AuditPart::Tables)),
        (Strike::InputsOfAnotherStep, Some(AuditPart::Twin)),
        (Strike::FrozenShortcut, Some(AuditPart::Twin)),
        (Strike::SamplesAnotherRow, Some(AuditPart::Twin)),
        (Strike::RowNotWritten, Some(AuditPart::Twin)),
        (Strike::TiesByArrival, Some(AuditPart::Twin)),
        (Strike::StrayWrite, Some(AuditPart::Twin)),
        (Strike::RowNotWrittenByKernel, None),
        (Strike::OutputOfAnotherStep, None),
    ];
    for (strike, part) in table {
        for seed in 0..2 {
            let o = play(struck(strike.clone(), seed));
            assert!(o.strikes > 0, "{strike:?} had nothing to hit");
            let found = o.findings.iter().any(|f| Some(f.part) == part);
            assert!(found || part.is_none(), "{strike:?}: {:?}", o.findings);
            let silent = o.findings.is_empty();
            assert!(part.is_some() || silent, "{strike:?}: {:?}", o.findings);
        }
    }
}
