//! What a [`crate::FaultDevice`] does wrong, and when.

use lockstep_plan::drill::PlanFault;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// One kind of wrong. Each stands for a fault that serving engines have had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Strike {
    /// Replays run the plan with this fault in it, its lanes out of order within what edges allow.
    Plan(PlanFault),
    /// The host's table keeps its old entry where a sequence has grown a page: the row reads the
    /// reserved page there. After the lease was signed, before the step.
    StaleBlockTable,
    /// The host packs block tables as wide as the widest live row; the kernel reads them at the
    /// bucket's stride. After the lease, before the step.
    LiveStride,
    /// The same, but only what the replay sees: between the step's checks and its kernels.
    LiveStrideInReplay,
    /// Two requests are given one page: the second writes into the first's. After the lease.
    PageGivenTwice,
    /// Padded rows are not skipped and write to a live page.
    PaddedRowsWrite,
    /// The next step's tables land while this one runs (as seen by the step: it reads the
    /// positions, ids and slots of another step).
    InputsOfAnotherStep,
    /// Attention sees only the pages that a sequence had when the plan was captured: the first.
    FrozenShortcut,
    /// Sampling takes its logits from another row.
    SamplesAnotherRow,
    /// A row's keys of one layer are not written.
    RowNotWritten,
    /// The same, in the eager twin too: the kernel itself is wrong.
    RowNotWrittenByKernel,
    /// Of equal logits, whichever arrived last wins.
    TiesByArrival,
    /// A kernel that was launched programmatically reads its predecessor's result before its wait:
    /// it gets the bytes that lay there before.
    EarlyRead,
    /// The host reads an output after the next replay has begun to write it: as seen by the host,
    /// the bytes of another step.
    OutputOfAnotherStep,
    /// A kernel writes sixteen bytes into a closed page that its step does not own.
    StrayWrite,
    /// One bit of a closed page flips.
    PageBit,
    /// One bit of a weight flips.
    WeightBit,
    /// A weight is packed anew in another layout under a live plan.
    WeightRepacked,
    /// One bit of a named state flips: a test's own choice.
    StateBit {
        /// The state's name.
        name: String,
        /// Which byte.
        byte: u64,
        /// Which bit, 0 to 7.
        bit: u8,
    },
}

/// A strike and its schedule, in replays of this device (1 is the first).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sabotage {
    /// What.
    pub strike: Strike,
    /// The first replay that it may hit.
    pub first: u64,
    /// How many replays it hits, at most. Where a replay has nothing that the strike could hit
    /// (no padded row, no second row), the next one is taken.
    pub times: u64,
    /// Where in the step it hits, and which steps where not every one is.
    pub seed: u64,
    /// Of a million steps, how many it is to hit; [`EVERY_STEP`] is each.
    pub per_million: u32,
}

/// See [`Sabotage::per_million`].
pub const EVERY_STEP: u32 = 1_000_000;

/// What a device's sabotage came to; shared with whoever made the device.
#[derive(Debug, Default)]
pub struct StrikeLog {
    /// Set while nothing may be struck.
    resting: AtomicBool,
    replays: AtomicU64,
    strikes: AtomicU64,
    first: AtomicU64,
    steps: AtomicU64,
    overlapped: AtomicU64,
    at: OnceLock<Instant>,
}

impl StrikeLog {
    /// Holds strikes back, or lets them go: a server is to come up well.
    pub fn rest(&self, rest: bool) {
        self.resting.store(rest, Ordering::Release);
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.resting.load(Ordering::Acquire)
    }

    /// Replays so far.
    pub fn replays(&self) -> u64 {
        self.replays.load(Ordering::Acquire)
    }

    /// Steps so far, replayed or run op by op, twins not counted.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    /// Steps so far whose lanes ran out of program order.
    pub fn overlapped(&self) -> u64 {
        self.overlapped.load(Ordering::Acquire)
    }

    /// Strikes so far.
    pub fn strikes(&self) -> u64 {
        self.strikes.load(Ordering::Acquire)
    }

    /// The replay that was hit first; 0 where none was.
    pub fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// When the first strike hit.
    pub fn at(&self) -> Option<Instant> {
        self.at.get().copied()
    }

    pub(crate) fn replay(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::AcqRel);
        self.replays.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn overlap(&self) {
        self.overlapped.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn struck(&self, replay: u64) {
        if self.strikes.fetch_add(1, Ordering::AcqRel) == 0 {
            self.at.get_or_init(Instant::now);
            self.first.store(replay.max(1), Ordering::Release);
        }
    }
}
