//! What an op touches, as functions of the bucket's capacity.

use crate::{Axis, BufferId, Span};

/// The row stride that a kernel was given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stride {
    /// The bucket's capacity stride in bytes; must equal the buffer's own.
    Capacity(u64),
    /// A stride that follows the live batch (its largest context, its row count). It can be
    /// written down so that it can be refused: `prove` never accepts it.
    Live,
}

/// Which rows of its input reach a row of an op's output.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowReach {
    /// Output row i reads input row i only.
    Same,
    /// Output row i reads the input rows that a table names for it; live rows of the table name
    /// live rows (the lease checks it).
    Gather { via: BufferId },
    /// Output rows may read every input row, padded ones too; `prove` refuses it where padded
    /// rows exist and are not neutral.
    All,
}

/// How an op sees a buffer's rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowView {
    /// The axis that the kernel iterates.
    pub axis: Axis,
    /// The stride that it was given.
    pub stride: Stride,
    /// Which rows reach which.
    pub reach: RowReach,
}

/// One access of an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// These bytes, known at planning time.
    Static { span: Span, rows: Option<RowView> },
    /// Bytes of a state buffer chosen through a table at run time: ordered by `prove` as if the
    /// whole buffer were touched, with obligations left to the step's lease.
    Indexed { buffer: BufferId, via: BufferId, reserved_for_padding: bool },
}

impl Access {
    /// The buffer.
    pub const fn buffer(&self) -> BufferId {
        match self {
            Access::Static { span, .. } => span.buffer,
            Access::Indexed { buffer, .. } => *buffer,
        }
    }

    /// A whole-buffer access without rows.
    pub const fn whole(buffer: BufferId, bytes: u64) -> Access {
        Access::Static { span: Span { buffer, offset: 0, len: bytes }, rows: None }
    }
}

/// What a step's lease has to vouch for, because a plan cannot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Obligation {
    /// Live entries of `table` are distinct, and each names bytes of `state` that its row's
    /// sequence owns exclusively.
    WritesExclusive { state: BufferId, table: BufferId },
    /// Padded entries of `table` name the reserved page or slot of `state`.
    PaddedReserved { state: BufferId, table: BufferId },
    /// Every entry of `table` names bytes inside `state`.
    InRange { state: BufferId, table: BufferId },
    /// Pages of `state` that `table` reads stay until the step has completed.
    HeldUntilComplete { state: BufferId, table: BufferId },
    /// Live entries of `table` name live rows.
    LiveRowsOnly { table: BufferId },
}

/// Something a plan's control flow was made to depend on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Decision {
    /// What was decided, in words: `attention split count`.
    pub name: String,
    /// On what.
    pub depends_on: DependsOn,
}

/// What a decision may look at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DependsOn {
    /// The bucket key.
    Bucket,
    /// A generation's knobs or the model's shapes.
    Generation,
    /// The live batch's lengths: frozen by capture, so `prove` refuses it (contract 2).
    LiveBatch,
}
