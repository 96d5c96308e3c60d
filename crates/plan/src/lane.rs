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

/// The accesses of an op that come before its programmatic wait, as bit masks: bit `i` of `reads`
/// is `op.reads[i]`. Indices from 64 on always count as after the wait; `prove` refuses an op that
/// waits programmatically and has that many accesses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct BeforeWait {
    /// Which of the op's reads.
    pub reads: u64,
    /// Which of the op's writes.
    pub writes: u64,
}

impl BeforeWait {
    /// Both masks, joined.
    pub const fn join(self, other: BeforeWait) -> BeforeWait {
        BeforeWait { reads: self.reads | other.reads, writes: self.writes | other.writes }
    }

    /// True where the access with this index comes before the wait.
    pub const fn holds(self, write: bool, index: usize) -> bool {
        let mask = if write { self.writes } else { self.reads };
        index < 64 && mask >> index & 1 == 1
    }
}

/// How an edge orders its two ops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EdgeKind {
    /// An event recorded after `from` and waited for before `to`, in the same step.
    Event,
    /// The same, from `from` in step n to `to` in step n + 1. Where the next step runs another
    /// bucket, which has no such `from`, `to` waits for every op of all earlier steps that is on
    /// the same side as `from`: for all device lanes, or for all ops of the host.
    NextStep,
    /// Programmatic dependent launch: `to` may start as soon as `from` has started. Of its
    /// accesses only those after its wait are ordered after `from`; the others are ordered by
    /// what `from` itself had to wait for before it could start. Between neighbours of one lane
    /// it takes the place of the lane's own order.
    Programmatic {
        /// The accesses of `to` that come before its wait.
        before_wait: BeforeWait,
    },
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
