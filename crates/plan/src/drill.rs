//! Seeded faults: plans and packings that each break one rule of contract 2, for drills and tests.
//!
//! Each comes from a plan that is right, which is its clean twin. What catches a fault is
//! measured by who runs the drill, never declared here.

mod overlap;
mod seed;

pub use overlap::overlapped;

use crate::{Packing, RowReach, StepPlan, Stride, pack, pack_by_issue_order, structure};
use seed::Drill;

/// A fault that can be seeded into a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PlanFault {
    /// Transients share bytes by the order in which ops are issued.
    ArenaByIssueOrder,
    /// An event between two lanes is neither recorded nor waited for.
    DroppedEdge,
    /// A lane waits for an event of an earlier fork: for an op before the one it needs.
    EventFromOlderFork,
    /// Two branches that run side by side are given one scratch buffer.
    SharedScratch,
    /// A kernel is given a stride that follows the live batch.
    LiveStride,
    /// A kernel's shortcut was decided by the live batch at capture.
    FrozenShortcut,
    /// Padded rows write through a table without a reserved page or slot.
    PaddedRowWritesLivePage,
    /// An op reads every row of its input, padded ones too.
    ReadsPaddedRows,
    /// The next replay may write an output before the host has read it.
    OutputReadAfterNextReplay,
    /// The host may write an input of the next step while this one reads it.
    InputWrittenDuringReplay,
    /// A kernel writes scratch that its op does not declare, so that packing gives it away.
    UndeclaredScratch,
    /// The host repacks a weight on a live plan.
    WeightsRepackedLive,
    /// A kernel launched programmatically reads its predecessor's result before its wait.
    ReadBeforeWait,
    /// An op that writes part of what is read later is missing: an index row is not written.
    RowNotWritten,
    /// An op reads a buffer that nobody writes, instead of the one that it is meant to read.
    NeverWritten,
    /// Two lanes wait for each other.
    LanesWaitForEachOther,
}

/// A plan with one fault in it.
#[derive(Clone, Debug)]
pub struct Drilled {
    /// The plan as a faulty builder would have emitted it.
    pub plan: StepPlan,
    /// Its packing.
    pub packing: Packing,
    /// Where the fault sits, for the report: `event layer3.indexer -> layer3.attention`.
    pub spot: String,
}

impl PlanFault {
    /// All of them.
    pub const ALL: [PlanFault; 16] = [
        PlanFault::ArenaByIssueOrder,
        PlanFault::DroppedEdge,
        PlanFault::EventFromOlderFork,
        PlanFault::SharedScratch,
        PlanFault::LiveStride,
        PlanFault::FrozenShortcut,
        PlanFault::PaddedRowWritesLivePage,
        PlanFault::ReadsPaddedRows,
        PlanFault::OutputReadAfterNextReplay,
        PlanFault::InputWrittenDuringReplay,
        PlanFault::UndeclaredScratch,
        PlanFault::WeightsRepackedLive,
        PlanFault::ReadBeforeWait,
        PlanFault::RowNotWritten,
        PlanFault::NeverWritten,
        PlanFault::LanesWaitForEachOther,
    ];

    /// Its name in `lockstep drill` and `docs/drills.md`.
    pub const fn name(self) -> &'static str {
        match self {
            PlanFault::ArenaByIssueOrder => "arena-reuse-by-issue-order",
            PlanFault::DroppedEdge => "dropped-edge",
            PlanFault::EventFromOlderFork => "event-from-older-fork",
            PlanFault::SharedScratch => "shared-scratch",
            PlanFault::LiveStride => "live-stride",
            PlanFault::FrozenShortcut => "frozen-shortcut",
            PlanFault::PaddedRowWritesLivePage => "padded-row-writes-live-page",
            PlanFault::ReadsPaddedRows => "reads-padded-rows",
            PlanFault::OutputReadAfterNextReplay => "output-read-after-next-replay",
            PlanFault::InputWrittenDuringReplay => "input-written-during-replay",
            PlanFault::UndeclaredScratch => "undeclared-scratch",
            PlanFault::WeightsRepackedLive => "weights-repacked-live",
            PlanFault::ReadBeforeWait => "read-before-wait",
            PlanFault::RowNotWritten => "row-not-written",
            PlanFault::NeverWritten => "never-written",
            PlanFault::LanesWaitForEachOther => "lanes-wait-for-each-other",
        }
    }

    /// What it corrupts.
    pub const fn corrupts(self) -> &'static str {
        match self {
            PlanFault::ArenaByIssueOrder | PlanFault::SharedScratch => {
                "intermediates of one branch, by what another branch writes over them"
            }
            PlanFault::DroppedEdge | PlanFault::EventFromOlderFork | PlanFault::ReadBeforeWait => {
                "whatever is computed from data of the step before"
            }
            PlanFault::LiveStride => "every row but the first, when batch and bucket differ",
            PlanFault::FrozenShortcut => "rows longer than the batch seen at capture",
            PlanFault::PaddedRowWritesLivePage => "another request's KV",
            PlanFault::ReadsPaddedRows => "live rows, by leftovers in padded ones",
            PlanFault::OutputReadAfterNextReplay => "tokens on their way to the client",
            PlanFault::InputWrittenDuringReplay => "tables and ids of the running step",
            PlanFault::UndeclaredScratch => "whoever was given the same bytes",
            PlanFault::WeightsRepackedLive => "every request",
            PlanFault::RowNotWritten => "selection, by rows of an earlier step",
            PlanFault::NeverWritten => "what is computed from bytes that nobody has written",
            PlanFault::LanesWaitForEachOther => "nothing: the replay never ends",
        }
    }

    /// Seeds the fault into a plan that is right; which of the possible places, the seed says.
    /// None where the plan has no place for it: a plan of one lane has no edge to drop.
    pub fn seed(self, clean: &StepPlan, seed: u64) -> Option<Drilled> {
        if !structure::check(clean).is_empty() {
            return None;
        }
        let mut drill = Drill::new(clean, seed);
        let spot = match self {
            PlanFault::ArenaByIssueOrder => {
                let packing = pack_by_issue_order(clean);
                let spot = "the whole arena".into();
                return Some(Drilled { plan: drill.plan, packing, spot });
            }
            PlanFault::SharedScratch => return drill.shared_scratch(),
            PlanFault::UndeclaredScratch => return drill.undeclared(),
            PlanFault::DroppedEdge => drill.dropped_edge(),
            PlanFault::EventFromOlderFork => drill.older_fork(),
            PlanFault::LiveStride => drill.view(|v| v.stride = Stride::Live),
            PlanFault::ReadsPaddedRows => drill.view(|v| v.reach = RowReach::All),
            PlanFault::FrozenShortcut => drill.frozen(),
            PlanFault::PaddedRowWritesLivePage => drill.unreserved(),
            PlanFault::OutputReadAfterNextReplay => drill.next_step_edge(true),
            PlanFault::InputWrittenDuringReplay => drill.next_step_edge(false),
            PlanFault::WeightsRepackedLive => drill.repacked(),
            PlanFault::ReadBeforeWait => drill.before_wait(),
            PlanFault::RowNotWritten => drill.row_not_written(),
            PlanFault::NeverWritten => drill.never_written(),
            PlanFault::LanesWaitForEachOther => drill.deadlock(),
        }?;
        // The bytes stay where the right plan put them, except where a lifetime changed.
        let packing = match self {
            PlanFault::RowNotWritten | PlanFault::NeverWritten => pack(&drill.plan),
            _ => pack(clean),
        };
        Some(Drilled { plan: drill.plan, packing, spot })
    }
}
