//! Hazards: why a plan was refused, as data and as words that an engineer can act on.

use crate::{Access, BufferId, Edge, EdgeKind, LaneId, OpId, StepPlan};
use core::fmt;
use core::ops::Range;

/// The rules of contract 2, and the two that make the others well-formed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Ids, names, spans and edges make sense.
    Structure,
    /// Conflicting accesses are ordered.
    Race,
    /// Bytes change hands only along the partial order.
    Aliasing,
    /// Accesses through tables can be leased.
    Indexed,
    /// Nothing is read that this step has not written.
    Definedness,
    /// Padded rows reach nothing live.
    Padding,
    /// Strides are the bucket's.
    Stride,
    /// No control flow depends on the live batch.
    FrozenDecision,
    /// Scratch is declared, weights stay as they are.
    Workspace,
}

impl Rule {
    /// Every rule, in the order of contract 2.
    pub const ALL: [Rule; 9] = [
        Rule::Structure,
        Rule::Race,
        Rule::Aliasing,
        Rule::Indexed,
        Rule::Definedness,
        Rule::Padding,
        Rule::Stride,
        Rule::FrozenDecision,
        Rule::Workspace,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Structure => "structure",
            Rule::Race => "race",
            Rule::Aliasing => "aliasing",
            Rule::Indexed => "indexed access",
            Rule::Definedness => "definedness",
            Rule::Padding => "padding",
            Rule::Stride => "stride",
            Rule::FrozenDecision => "frozen decision",
            Rule::Workspace => "workspace",
        }
    }
}

/// Which of two consecutive steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum When {
    /// Step n.
    ThisStep,
    /// Step n + 1.
    NextStep,
}

/// One op's access to some bytes, with the names that a reader knows them by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Touch {
    /// In which step.
    pub when: When,
    /// The op.
    pub op: OpId,
    /// Its name.
    pub op_name: String,
    /// Its lane.
    pub lane: LaneId,
    /// The lane's name.
    pub lane_name: String,
    /// True where it writes.
    pub write: bool,
    /// The buffer.
    pub buffer: BufferId,
    /// Its name.
    pub buffer_name: String,
    /// Bytes of the buffer.
    pub bytes: Range<u64>,
    /// The table through which it chooses its bytes at run time.
    pub via: Option<String>,
}

impl Touch {
    /// The touch of `access` of `op`. Ids out of range get a name that says so.
    pub(crate) fn new(plan: &StepPlan, op: OpId, write: bool, access: &Access) -> Touch {
        let buffer_of = |id: BufferId| plan.buffers.get(id.index());
        let name_of = |id: BufferId| {
            buffer_of(id).map_or_else(|| format!("buffer #{}", id.0), |b| b.name.clone())
        };
        let buffer = access.buffer();
        let (bytes, via) = match access {
            Access::Static { span, .. } => (span.offset..span.end(), None),
            Access::Indexed { via, .. } => {
                (0..buffer_of(buffer).map_or(0, |b| b.bytes), Some(name_of(*via)))
            }
        };
        let o = plan.op(op);
        let lane_name = plan.lanes.get(o.lane.index()).cloned();
        Touch {
            when: When::ThisStep,
            op,
            op_name: o.name.clone(),
            lane: o.lane,
            lane_name: lane_name.unwrap_or_else(|| format!("#{}", o.lane.0)),
            write,
            buffer,
            buffer_name: name_of(buffer),
            bytes,
            via,
        }
    }
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.write { "writes" } else { "reads" };
        write!(f, "{} (lane {}", self.op_name, self.lane_name)?;
        if self.when == When::NextStep {
            write!(f, ", next step")?;
        }
        let (b, r) = (&self.buffer_name, &self.bytes);
        write!(f, ") {verb} {b}[{}..{}]", r.start, r.end)?;
        if let Some(via) = &self.via {
            write!(f, " through {via}")?;
        }
        Ok(())
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A buffer, op or lane number that the plan does not have.
    NoSuch { what: &'static str, id: u32, count: usize },
    /// Two buffers or two ops of one name: names bind weights, state and evidence.
    NameTwice { what: &'static str, name: String },
    /// State or a weight that two plans take for different things: kind and bytes.
    BoundTwice { name: String, first: (&'static str, u64), then: (&'static str, u64) },
    /// An alignment that is not a power of two.
    BadAlign { buffer: String, align: u32 },
    /// An access past the end of its buffer.
    OutsideBuffer { touch: Touch, buffer_bytes: u64 },
    /// An edge against program order. `cycle` are the ops that wait for each other, where they do.
    EdgeBackwards { edge: Edge, from: String, to: String, cycle: Vec<String> },
    /// A programmatic edge that a device cannot make.
    BadProgrammatic { edge: Edge, to: String, why: &'static str },
    /// A host op on a device lane, or the other way round.
    WrongLane { op: String, lane: String, host_op: bool },
    /// The host touches bytes that only a device lane may touch.
    HostTouchesDevice { touch: Touch },
    /// Two accesses to common bytes, at least one a write, that nothing orders.
    Race { first: Touch, second: Touch, bytes: Range<u64> },
    /// Bytes given to `second`'s buffer while `first` may still use them for its own.
    Aliasing { first: Touch, second: Touch, arena: Range<u64> },
    /// An input or output shares bytes with another buffer.
    SharedInOut { a: String, b: String, arena: Range<u64> },
    /// A buffer of the arena without a place, or a place for a buffer that is not in it.
    Placement { buffer: String, placed: bool },
    /// A place that its alignment does not allow.
    Misaligned { buffer: String, offset: u64, align: u32 },
    /// A place past the end of the arena.
    OutsideArena { buffer: String, arena: Range<u64>, arena_bytes: u64 },
    /// An indexed access to a buffer that is not pages or slots.
    IndexedNotState { touch: Touch },
    /// An indexed access whose table the op does not read.
    TableNotRead { touch: Touch },
    /// An indexed write through a table that the host did not write: no lease can vouch for it.
    TableNotInput { touch: Touch },
    /// Bytes read that no op ordered before has written in this step.
    Undefined { read: Touch, bytes: Range<u64> },
    /// An output row may see padded rows.
    ReachesPadding { touch: Touch },
    /// An access to a buffer of rows that does not say how it sees them.
    NoRowView { touch: Touch },
    /// Row i of one axis read as row i of another.
    WrongAxis { touch: Touch },
    /// Padded rows write where live data may be.
    PaddedWrite { touch: Touch },
    /// A table of indexed writes whose padded entries do not name the reserved page or slot.
    PaddedTable { table: String, touch: Touch },
    /// A stride that follows the live batch.
    LiveStride { touch: Touch },
    /// A stride that is not the buffer's.
    OtherStride { touch: Touch, stride: u64, buffer_stride: u64 },
    /// A buffer smaller than the bucket's rows.
    ShortBuffer { buffer: String, bytes: u64, needed: u64 },
    /// Control flow that depends on the live batch.
    Frozen { op: String, decision: String },
    /// An op that declares no write.
    NoWrites { op: String },
    /// An access that the op's kind makes and the op does not declare.
    Undeclared { touch: Touch },
    /// A weight that a step writes.
    WeightWritten { touch: Touch },
}

/// One reason to refuse a plan.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hazard {
    /// What is wrong, with everyone involved.
    pub fault: Fault,
    /// The edge whose absence makes it wrong, where an edge would do.
    pub missing: Option<Edge>,
}

impl Hazard {
    /// A hazard that no edge cures.
    pub(crate) fn new(fault: Fault) -> Hazard {
        Hazard { fault, missing: None }
    }

    /// The rule that is broken.
    pub const fn rule(&self) -> Rule {
        match self.fault {
            Fault::NoSuch { .. }
            | Fault::NameTwice { .. }
            | Fault::BoundTwice { .. }
            | Fault::BadAlign { .. }
            | Fault::OutsideBuffer { .. }
            | Fault::EdgeBackwards { .. }
            | Fault::BadProgrammatic { .. }
            | Fault::WrongLane { .. }
            | Fault::HostTouchesDevice { .. } => Rule::Structure,
            Fault::Race { .. } => Rule::Race,
            Fault::Aliasing { .. }
            | Fault::SharedInOut { .. }
            | Fault::Placement { .. }
            | Fault::Misaligned { .. }
            | Fault::OutsideArena { .. } => Rule::Aliasing,
            Fault::IndexedNotState { .. }
            | Fault::TableNotRead { .. }
            | Fault::TableNotInput { .. } => Rule::Indexed,
            Fault::Undefined { .. } => Rule::Definedness,
            Fault::ReachesPadding { .. }
            | Fault::NoRowView { .. }
            | Fault::WrongAxis { .. }
            | Fault::PaddedWrite { .. }
            | Fault::PaddedTable { .. } => Rule::Padding,
            Fault::LiveStride { .. } | Fault::OtherStride { .. } | Fault::ShortBuffer { .. } => {
                Rule::Stride
            }
            Fault::Frozen { .. } => Rule::FrozenDecision,
            Fault::NoWrites { .. } | Fault::Undeclared { .. } | Fault::WeightWritten { .. } => {
                Rule::Workspace
            }
        }
    }

    /// Every access that takes part.
    pub fn touches(&self) -> Vec<&Touch> {
        match &self.fault {
            Fault::Race { first, second, .. } | Fault::Aliasing { first, second, .. } => {
                vec![first, second]
            }
            Fault::Undefined { read: touch, .. }
            | Fault::OutsideBuffer { touch, .. }
            | Fault::HostTouchesDevice { touch }
            | Fault::IndexedNotState { touch }
            | Fault::TableNotRead { touch }
            | Fault::TableNotInput { touch }
            | Fault::ReachesPadding { touch }
            | Fault::NoRowView { touch }
            | Fault::WrongAxis { touch }
            | Fault::PaddedWrite { touch }
            | Fault::PaddedTable { touch, .. }
            | Fault::LiveStride { touch }
            | Fault::OtherStride { touch, .. }
            | Fault::Undeclared { touch }
            | Fault::WeightWritten { touch } => vec![touch],
            _ => Vec::new(),
        }
    }

    /// The shortest change that makes this hazard go away.
    pub fn fix(&self) -> String {
        if let (Some(edge), [first, second]) = (self.missing, &self.touches()[..]) {
            let then = match edge.kind {
                EdgeKind::NextStep => " of the next step",
                _ => "",
            };
            let edge = format!(
                "record an event after {} on lane {} and wait for it before {}{then} on lane {}",
                first.op_name, first.lane_name, second.op_name, second.lane_name
            );
            return match self.fault {
                Fault::Aliasing { .. } => format!("{edge}, or pack by the partial order"),
                _ => edge,
            };
        }
        self.fault.fix()
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}. Fix: {}.", self.rule().name(), self.fault, self.fix())
    }
}

impl core::error::Error for Hazard {}
