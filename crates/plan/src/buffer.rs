//! Buffers: every byte that a step touches has a name, a size and a kind.

use crate::format::Format;
use lockstep_flow::BucketKey;

/// Index of a buffer in its plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index into [`crate::StepPlan::buffers`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a buffer's rows count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Axis {
    /// Token slots: `bucket.tokens` rows.
    T,
    /// Sequence slots: `bucket.seqs` rows.
    S,
    /// Logit rows: `bucket.logit_rows` rows.
    R,
}

impl Axis {
    /// Rows of this axis in `bucket`, live and padded.
    pub const fn rows(self, bucket: BucketKey) -> u32 {
        match self {
            Axis::T => bucket.tokens,
            Axis::S => bucket.seqs,
            Axis::R => bucket.logit_rows,
        }
    }
}

/// What the rows past the live ones hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PaddingPolicy {
    /// Every padded word is this; 0 names the reserved page or slot in a table.
    Word(u32),
    /// The buffer has no rows that can be padded.
    NoRows,
}

/// How state is addressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateKind {
    /// One block of `page_bytes` a page of the token pool; page 0 takes padded writes.
    Pages { page_bytes: u64 },
    /// One block of `slot_bytes` a sequence slot; slot 0 takes padded writes.
    Slots { slot_bytes: u64 },
}

/// Where a buffer lives and how long its bytes mean something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BufferKind {
    /// Written once at load, read by every bucket.
    Weight,
    /// Carried from step to step, shared by every bucket.
    State(StateKind),
    /// Written by the host lane before (or, where `late`, during) a step. `consumed_by_sampling`
    /// inputs such as grammar masks are late: an event orders them before their reader.
    Input { padding: PaddingPolicy, late: bool },
    /// Read by the host lane after the step, at every step where `fetched`: a device whose memory
    /// is its own brings those bytes to the host with the step. The others lie in the arena for
    /// whoever looks (the audit, canaries, tests), and the next step's writers wait all the same.
    Output { fetched: bool },
    /// Means something only between its writer and its last reader in one step.
    Transient,
}

impl BufferKind {
    /// True where packing places the buffer in the generation's arena.
    pub const fn in_arena(self) -> bool {
        matches!(self, BufferKind::Input { .. } | BufferKind::Output { .. } | BufferKind::Transient)
    }
}

/// A named range of bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// Unique in the plan; weights and state bind by this name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Kind.
    pub kind: BufferKind,
    /// The row axis and the bytes from one row to the next, where the buffer has rows. The stride
    /// is a function of the bucket's capacity, never of the live batch.
    pub rows: Option<(Axis, u64)>,
    /// Element type, for people and manifests.
    pub elem: Elem,
}

/// Element type of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Elem {
    /// 32-bit unsigned words: tables, ids.
    U32,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Rows quantised by the device for its integer dot products.
    QuantRows,
    /// A weight matrix packed by the device from this file format.
    Packed(Format),
    /// Rows of DeepSeek-V4, kept like this.
    Rows(crate::RowCode),
    /// Structs or bytes that one kernel understands.
    Opaque,
}

/// A byte range of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Span {
    /// One past the last byte; saturates, so that a span that lies about its place is refused by
    /// `prove` instead of wrapping.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// True where both touch a byte of the same buffer; a span of no bytes touches nothing.
    pub fn overlaps(self, other: Span) -> bool {
        self.buffer == other.buffer && self.offset.max(other.offset) < self.end().min(other.end())
    }
}
