//! A step plan: buffers, ops, lanes and edges of one bucket.

use crate::{Buffer, BufferId, Edge, LaneId, Op, OpId};
use lockstep_flow::BucketKey;

/// Everything one step of one bucket does, before it has been proven.
///
/// Ops of a lane run in list order. Device lanes of one replay all finish before any device lane
/// of the next replay starts; the host lane is ordered against other steps by
/// [`crate::EdgeKind::NextStep`] edges alone.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StepPlan {
    /// Shape of the step.
    pub bucket: BucketKey,
    /// Buffers by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// Ops by [`OpId`], in a program order that is a linear extension of the partial order.
    pub ops: Vec<Op>,
    /// Names of the lanes by [`LaneId`]; lane 0 is the host.
    pub lanes: Vec<String>,
    /// Orders between lanes.
    pub edges: Vec<Edge>,
}

impl StepPlan {
    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The op.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// Finds a buffer by name.
    pub fn find(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.name == name).map(|i| BufferId(i as u32))
    }

    /// Ids of all ops in program order.
    pub fn op_ids(&self) -> impl Iterator<Item = OpId> + use<> {
        (0..self.ops.len() as u32).map(OpId)
    }

    /// Ids of all buffers.
    pub fn buffer_ids(&self) -> impl Iterator<Item = BufferId> + use<> {
        (0..self.buffers.len() as u32).map(BufferId)
    }

    /// Lanes in use, the host's included.
    pub fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes.len() as u8).map(LaneId)
    }
}
