//! Lanes and the edges between them.

use crate::OpId;

/// A logical stream. Ops of a lane run in the order in which the plan lists them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The host: writes inputs, reads outputs, frees pages.
    pub const HOST: LaneId = LaneId(0);
    /// The device's main lane.
    pub const MAIN: LaneId = LaneId(1);

    /// As an index into [`crate::StepPlan::lanes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How an edge orders its two ops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EdgeKind {
    /// An event recorded after `from` and waited for before `to`, in the same step.
    Event,
    /// The same, from `from` in step n to `to` in step n + 1.
    NextStep,
    /// Programmatic dependent launch: `to` may start while `from` runs; of its accesses, only
    /// those after its wait are ordered. `reads_before_wait` and `writes_before_wait` list the
    /// indices of the accesses of `to` that come before the wait: those are *not* ordered.
    Programmatic,
}

/// An order between two lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// The op that must have finished.
    pub from: OpId,
    /// The op that waits.
    pub to: OpId,
    /// How.
    pub kind: EdgeKind,
}
