//! Everything that the pool can refuse.

use crate::PageState;
use core::fmt;
use lockstep_flow::{BucketKey, PageId, Position, RequestId, SlotId};

/// Why the pool said no. Nothing has changed where it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// A size out of its bounds.
    Config { what: &'static str, found: u32, min: u32, max: u32 },
    /// A page cannot go there from where it is.
    IllegalMove { page: PageId, from: PageState, to: &'static str },
    /// Every slot is taken or still leased.
    NoSlot { slots: u32, leased: u32 },
    /// No live sequence in that slot, or another request's.
    NotInSlot { slot: SlotId, asked: RequestId, found: Option<RequestId> },
    /// A sequence longer than a block table.
    SequenceTooLong { slot: SlotId, tokens: u32, tokens_max: u32 },
    /// The step's live rows do not fit the bucket.
    BucketTooSmall { bucket: BucketKey, tokens: u32, seqs: u32, logit_rows: u32 },
    /// A table of the wrong length.
    TableShape { table: &'static str, expected: usize, found: usize },
    /// A row of no tokens.
    EmptyRow { slot: SlotId },
    /// Two rows of one step with the same slot.
    SlotTwice { slot: SlotId },
    /// A row that leaves a gap in its sequence, or goes back.
    NotContiguous { slot: SlotId, expected: Position, found: Position },
    /// A row that would write into shared pages.
    SharedWrite { slot: SlotId, position: Position, shared_tokens: u32 },
    /// A row beyond the pages that its sequence has.
    NotExtended { slot: SlotId, end: Position, capacity_tokens: u32 },
    /// A block table holds a page that is not the sequence's to use.
    ForeignPage { slot: SlotId, index: u32, page: PageId, state: PageState },
    /// Two rows of one step write the same page.
    WrittenTwice { page: PageId },
    /// A row writes a page whose tokens are all written: its digest would be of other bytes.
    ClosedWrite { page: PageId },
    /// As many steps are leased as may be.
    TooManySteps { in_flight: u32, max: u32 },
    /// A lease of another pool, or not the oldest one.
    WrongLease { expected: u64, found: u64 },
    /// A table entry that is not what the lease stands for.
    TableEntry { table: &'static str, index: usize, expected: u32, found: u32 },
    /// `publish` was given fewer tokens than the sequence has completed.
    TokensShort { slot: SlotId, needed: u32, found: u32 },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PoolError::*;
        match self {
            Config { what, found, min, max } => {
                write!(f, "the pool's {what} is {found}; it takes {min} to {max}")
            }
            IllegalMove { page, from, to } => {
                write!(f, "page {page} is {from} and cannot become {to}")
            }
            NoSlot { slots, leased } => write!(
                f,
                "all {slots} sequence slots are taken, {leased} of them by steps in flight"
            ),
            NotInSlot { slot, asked, found: Some(found) } => {
                write!(f, "slot {slot} holds request {found}, not request {asked}")
            }
            NotInSlot { slot, asked, found: None } => {
                write!(f, "slot {slot} holds no request; request {asked} was asked for")
            }
            SequenceTooLong { slot, tokens, tokens_max } => write!(
                f,
                "the sequence in slot {slot} wants {tokens} tokens; a block table holds {tokens_max}"
            ),
            BucketTooSmall { bucket, tokens, seqs, logit_rows } => write!(
                f,
                "{tokens} tokens of {seqs} sequences with {logit_rows} logit rows do not fit \
                 bucket {bucket}"
            ),
            TableShape { table, expected, found } => {
                write!(f, "table {table} has {found} entries; the bucket's capacity is {expected}")
            }
            EmptyRow { slot } => write!(f, "the row of slot {slot} has no tokens"),
            SlotTwice { slot } => write!(f, "slot {slot} has two rows in one step"),
            NotContiguous { slot, expected, found } => write!(
                f,
                "the row of slot {slot} starts at position {found}; the sequence goes on at \
                 {expected}"
            ),
            SharedWrite { slot, position, shared_tokens } => write!(
                f,
                "the row of slot {slot} writes position {position}, and positions under \
                 {shared_tokens} are shared and read-only"
            ),
            NotExtended { slot, end, capacity_tokens } => write!(
                f,
                "the row of slot {slot} ends at position {end}; its pages hold {capacity_tokens}"
            ),
            ForeignPage { slot, index, page, state } => write!(
                f,
                "entry {index} of the block table of slot {slot} is page {page}, which is {state}"
            ),
            ClosedWrite { page } => {
                write!(f, "page {page} is full and would be written again")
            }
            WrittenTwice { page } => write!(f, "page {page} is written by two rows of one step"),
            TooManySteps { in_flight, max } => {
                write!(f, "{in_flight} steps are in flight and {max} may be")
            }
            WrongLease { expected, found } => {
                write!(f, "lease {found} was given back; the oldest one out is {expected}")
            }
            TableEntry { table, index, expected, found } => {
                write!(f, "entry {index} of table {table} is {found}; the lease says {expected}")
            }
            TokensShort { slot, needed, found } => write!(
                f,
                "{found} tokens were given for slot {slot}, whose completed pages hold {needed}"
            ),
        }
    }
}

impl core::error::Error for PoolError {}
