//! Generations as seen from outside: their states, what a staged one has shown, and why a request
//! about one was not granted.
//!
//! A generation is one complete, immutable set of executables. One is live; at most one other is
//! there beside it: staged and on its way up, or draining and on its way out.

use crate::{BucketKey, Micros};
use core::fmt;
use std::sync::Arc;

/// Where a generation stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GenerationState {
    /// Its knobs were taken; its plans are being made.
    Planned,
    /// Every plan is proven, and every order of its steps and those of the live generation.
    Proven,
    /// Its arenas are there, every byte of them touched.
    Prepared,
    /// Every plan is resolved to addresses and calls.
    Captured,
    /// Its manifests are checked; nothing is allocated for it any more.
    Sealed,
    /// Canary steps gave the same bits as replay and op by op, whatever the arena held.
    Verified,
    /// It serves.
    Live,
    /// Another one serves; this one can be flipped back to.
    Draining,
    /// Given up, its memory with it.
    Retired,
    /// It failed, and its memory is given up.
    Rejected,
}

impl GenerationState {
    /// Every state, in the order of a life.
    pub const ALL: [GenerationState; 10] = [
        GenerationState::Planned,
        GenerationState::Proven,
        GenerationState::Prepared,
        GenerationState::Captured,
        GenerationState::Sealed,
        GenerationState::Verified,
        GenerationState::Live,
        GenerationState::Draining,
        GenerationState::Retired,
        GenerationState::Rejected,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            GenerationState::Planned => "planned",
            GenerationState::Proven => "proven",
            GenerationState::Prepared => "prepared",
            GenerationState::Captured => "captured",
            GenerationState::Sealed => "sealed",
            GenerationState::Verified => "verified",
            GenerationState::Live => "live",
            GenerationState::Draining => "draining",
            GenerationState::Retired => "retired",
            GenerationState::Rejected => "rejected",
        }
    }

    /// The named transitions, and no others: one step further on, back from draining to live, out
    /// of verified without having served, and from anything that is not over to rejected.
    pub const fn may_become(self, next: GenerationState) -> bool {
        use GenerationState as S;
        match (self, next) {
            (S::Planned, S::Proven)
            | (S::Proven, S::Prepared)
            | (S::Prepared, S::Captured)
            | (S::Captured, S::Sealed)
            | (S::Sealed, S::Verified)
            | (S::Verified, S::Live | S::Retired)
            | (S::Live, S::Draining)
            | (S::Draining, S::Live | S::Retired) => true,
            (from, S::Rejected) => !from.is_over(),
            _ => false,
        }
    }

    /// True where nothing of it is left but its report.
    pub const fn is_over(self) -> bool {
        matches!(self, GenerationState::Retired | GenerationState::Rejected)
    }

    /// True while it is built and checked: a later state comes without anybody asking.
    pub const fn is_on_its_way(self) -> bool {
        use GenerationState as S;
        matches!(self, S::Planned | S::Proven | S::Prepared | S::Captured | S::Sealed)
    }
}

impl fmt::Display for GenerationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a staged generation comes to serve.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StageMode {
    /// Built and verified beside the live one, which serves meanwhile; flipped to when asked.
    #[default]
    Beside,
    /// Steps stop, the live one gives its memory back, the new one is built in its place and
    /// verified, and steps go on in it; where that fails, the old one is built again. For memory
    /// that does not hold both.
    Drain,
}

impl StageMode {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            StageMode::Beside => "beside",
            StageMode::Drain => "drain",
        }
    }
}

/// A move that the state machine does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IllegalMove {
    /// From here.
    pub from: GenerationState,
    /// To there.
    pub to: GenerationState,
}

impl fmt::Display for IllegalMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a generation that is {} cannot become {}", self.from, self.to)
    }
}

impl core::error::Error for IllegalMove {}

/// A knob as the generation has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnobInForce {
    /// Its dotted name.
    pub name: &'static str,
    /// Its value, in the operator's notation.
    pub value: String,
    /// The value of the generation that was live when this one was staged, where it was another.
    pub was: Option<String>,
}

/// What a generation is, as digests in hex.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GenerationDigests {
    /// Of all plans with their packings.
    pub plans: String,
    /// Where state lies: names, kinds and bytes. A live flip needs two equal ones.
    pub state_layout: String,
    /// What is computed: kernels in order, formats of weights and KV. A live flip needs two equal
    /// ones.
    pub numerics: String,
    /// Of the weights.
    pub weights: String,
}

/// What a bucket of a staged generation has shown. Counts are what ran, not what was meant to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketEvidence {
    /// Its shape.
    pub key: BucketKey,
    /// Captured, or proven and run op by op.
    pub captured: bool,
    /// Bytes of the arena that it uses.
    pub arena_bytes: u64,
    /// Ops of its plan.
    pub ops: u32,
    /// Pairs of accesses that its proof compared.
    pub proof_pairs: u64,
    /// Sets of rows that its canary steps ran with: as many as it holds, and one.
    pub canaries: u32,
    /// Live token rows of those sets together.
    pub canary_rows: u32,
    /// Live token rows of the largest set.
    pub canary_rows_max: u32,
    /// Padded token rows beside the smallest set.
    pub canary_padding_max: u32,
    /// Canary steps that were replayed.
    pub replays: u32,
    /// Canary steps that ran op by op.
    pub eager_steps: u32,
    /// Of all these, how many began with an arena full of a pattern.
    pub poisoned_steps: u32,
    /// Bits compared between them.
    pub compared_bits: u64,
    /// Bits that differed. Anything but 0 rejects the generation.
    pub differing_bits: u64,
    /// Times that its manifest was compared with what is bound.
    pub manifest_checks: u32,
}

impl BucketEvidence {
    /// True where its canary steps gave the same bits. A captured bucket has been compared with
    /// itself op by op.
    pub const fn is_verified(&self) -> bool {
        self.compared_bits > 0 && self.differing_bits == 0
    }

    /// Nothing shown yet.
    pub const fn none(key: BucketKey, captured: bool) -> BucketEvidence {
        BucketEvidence {
            key,
            captured,
            arena_bytes: 0,
            ops: 0,
            proof_pairs: 0,
            canaries: 0,
            canary_rows: 0,
            canary_rows_max: 0,
            canary_padding_max: 0,
            replays: 0,
            eager_steps: 0,
            poisoned_steps: 0,
            compared_bits: 0,
            differing_bits: 0,
            manifest_checks: 0,
        }
    }
}

/// How long the step loop was held up between two steps by staging, flipping and retiring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Gap {
    /// The longest time between two steps that went to this, canary steps left out.
    pub longest: Micros,
    /// The longest canary step, with the comparison of its bits: one at most goes between two
    /// steps, and it has no more rows than the step before it.
    pub longest_canary: Micros,
    /// Canary steps.
    pub canary_steps: u64,
}

/// Everything that is known of a generation.
#[derive(Clone, PartialEq, Debug)]
pub struct GenerationReport {
    /// 1 for the one that the engine started with.
    pub number: u64,
    /// Where it stands.
    pub state: GenerationState,
    /// How it comes, or came, to serve.
    pub mode: StageMode,
    /// The knobs that a generation has.
    pub knobs: Vec<KnobInForce>,
    /// Its buckets, decode ascending, then the others ascending.
    pub buckets: Arc<[BucketEvidence]>,
    /// Bytes of the arena that its buckets share.
    pub arena_bytes: u64,
    /// Bytes of the arena of the audit's twins; 0 where the audit is off.
    pub shadow_bytes: u64,
    /// What it is.
    pub digests: GenerationDigests,
    /// Pairs of plans, of this one and the one that was live when it was staged, whose order was
    /// proven in both directions.
    pub order_proofs: u64,
    /// When it came to each state, in order, by the engine's clock.
    pub moves: Vec<(GenerationState, Micros)>,
    /// Steps served, as replays and op by op.
    pub steps: u64,
    /// Of those, replays.
    pub captured_steps: u64,
    /// What it cost the step loop.
    pub gap: Gap,
    /// When the watch window after the last flip to it closes, while it is open.
    pub watched_until: Option<Micros>,
    /// When the last of its buckets had shown what it does. The first generation of an engine is
    /// live before that.
    pub verified_at: Option<Micros>,
    /// Why it was rejected, or flipped back from, or a bucket of it left service.
    pub reason: Option<String>,
}

impl GenerationReport {
    /// A generation of which nothing but its number is known.
    pub fn planned(number: u64) -> GenerationReport {
        GenerationReport {
            number,
            state: GenerationState::Planned,
            mode: StageMode::Beside,
            knobs: Vec::new(),
            buckets: Arc::new([]),
            arena_bytes: 0,
            shadow_bytes: 0,
            digests: GenerationDigests::default(),
            order_proofs: 0,
            moves: Vec::new(),
            steps: 0,
            captured_steps: 0,
            gap: Gap::default(),
            watched_until: None,
            verified_at: None,
            reason: None,
        }
    }

    /// Buckets that have shown what they do.
    pub fn verified_buckets(&self) -> usize {
        self.buckets.iter().filter(|b| b.is_verified()).count()
    }

    /// Moves on; `at` is now.
    ///
    /// # Errors
    /// The state machine has no such move; nothing has changed.
    pub fn advance(&mut self, to: GenerationState, at: Micros) -> Result<(), IllegalMove> {
        let from = self.state;
        if !from.may_become(to) {
            return Err(IllegalMove { from, to });
        }
        self.state = to;
        if self.moves.len() < MOVES_MAX {
            self.moves.push((to, at));
        }
        Ok(())
    }

    /// Gives it up with a reason; one that is over stays as it is.
    pub fn reject(&mut self, reason: impl Into<String>, at: Micros) {
        if self.advance(GenerationState::Rejected, at).is_ok() {
            self.reason = Some(reason.into());
        }
    }
}

/// Moves that a report keeps: flips back and forth could go on for ever.
const MOVES_MAX: usize = 256;

/// Reports that an engine keeps; the oldest that are over go first.
pub const GENERATIONS_KEPT: usize = 64;

/// Why something that was asked of generations was not done. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GenerationError {
    /// The knob cannot be changed this way.
    Knob { name: &'static str, what: String },
    /// There is no such generation, or none any more.
    Unknown { number: u64, oldest: u64, newest: u64 },
    /// One at a time: another one is staged or draining.
    Busy { number: u64, state: GenerationState },
    /// It is not in a state for that.
    State { number: u64, state: GenerationState, asked: &'static str, would_work: &'static str },
    /// The watch window is open: the old generation stays until it closes.
    Watched { number: u64, left: Micros },
    /// The scheduler cannot go on with it.
    Refused { number: u64, why: String },
    /// The server takes nothing new and ends what it has: this would hold that up.
    Draining { asked: &'static str },
    /// The step loop has stopped.
    Stopped { why: String },
    /// This engine has none.
    NotOffered,
}

impl fmt::Display for GenerationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GenerationError::Knob { name, what } => write!(f, "{name} {what}"),
            GenerationError::Unknown { number, oldest, newest } => {
                match (1..*newest).contains(number) {
                    true => write!(
                        f,
                        "generation {number} is over and its report forgotten: the last \
                         {GENERATIONS_KEPT} are kept, from {oldest} on"
                    ),
                    false => write!(f, "there is no generation {number}; the newest is {newest}"),
                }
            }
            GenerationError::Busy { number, state } => {
                let first = match state {
                    GenerationState::Verified => "flip to it or retire it first",
                    GenerationState::Draining => "retire it first",
                    _ => "wait until it is verified or rejected",
                };
                write!(f, "generation {number} is {state}, and one at a time is staged: {first}")
            }
            GenerationError::State { number, state, asked, would_work } => {
                write!(f, "generation {number} is {state} and cannot be {asked}: {would_work}")
            }
            GenerationError::Watched { number, left } => write!(
                f,
                "generation {number} can still be flipped back to: the watch window closes in \
                 {:.0} s",
                left.as_secs_f64().ceil()
            ),
            GenerationError::Refused { number, why } => {
                write!(f, "generation {number} cannot serve now: {why}")
            }
            GenerationError::Draining { asked } => write!(
                f,
                "the server is draining, and no generation is {asked} any more: what runs would \
                 wait for it; ask the server that comes after it"
            ),
            GenerationError::Stopped { why } => write!(f, "the step loop has stopped: {why}"),
            GenerationError::NotOffered => write!(f, "this engine has one generation, for good"),
        }
    }
}

impl core::error::Error for GenerationError {}

#[cfg(test)]
mod tests {
    use super::*;
    use GenerationState as S;

    fn report(state: S) -> GenerationReport {
        GenerationReport { state, ..GenerationReport::planned(2) }
    }

    #[test]
    fn a_life_goes_one_state_at_a_time() {
        let mut r = report(S::Planned);
        for (at, to) in S::ALL[1..9].iter().enumerate() {
            r.advance(*to, Micros(at as u64)).unwrap();
        }
        assert_eq!(r.state, S::Retired);
        assert_eq!(r.moves.len(), 8);
        let e = r.advance(S::Live, Micros(9)).unwrap_err();
        assert_eq!(e.to_string(), "a generation that is retired cannot become live");
        assert_eq!((r.state, r.moves.len()), (S::Retired, 8), "nothing has changed");
    }

    #[test]
    fn moves_are_the_named_ones_and_no_others() {
        let legal = S::ALL.iter().flat_map(|a| S::ALL.iter().map(move |b| (*a, *b)));
        let legal: Vec<(S, S)> = legal.filter(|(a, b)| a.may_become(*b)).collect();
        // Five steps up to verified, out of it two ways, live to draining and out of it two ways;
        // and from each of the eight states that are not over to rejected.
        assert_eq!(legal.len(), 5 + 2 + 1 + 2 + 8);
        for (from, to) in legal {
            assert_ne!(from, to);
            assert!(!from.is_over(), "{from} is over");
        }
        // Nothing serves that is not verified.
        for from in S::ALL {
            assert_eq!(from.may_become(S::Live), matches!(from, S::Verified | S::Draining));
        }
    }

    /// A generation that had been there was once said never to have been.
    #[test]
    fn a_forgotten_generation_is_told_from_one_that_never_was() {
        let unknown =
            |number| GenerationError::Unknown { number, oldest: 7, newest: 70 }.to_string();
        assert_eq!(
            unknown(3),
            "generation 3 is over and its report forgotten: the last 64 are kept, from 7 on"
        );
        assert_eq!(unknown(71), "there is no generation 71; the newest is 70");
        assert_eq!(unknown(0), "there is no generation 0; the newest is 70");
    }

    #[test]
    fn a_rejection_keeps_its_first_reason() {
        let mut r = report(S::Captured);
        r.reject("no memory", Micros(1));
        r.reject("something else", Micros(2));
        assert_eq!((r.state, r.reason.as_deref()), (S::Rejected, Some("no memory")));
    }
}
