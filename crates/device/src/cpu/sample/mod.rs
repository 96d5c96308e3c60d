//! Choosing a token for every logit row: the last op of a step.
//!
//! **Definition**, in the order that [`lockstep_flow::SamplingParams`] states:
//! penalties, bias and mask on a copy of the logits ([`adjust`]); greedy (temperature 0 or
//! top-k 1) takes the greatest, the lowest id of equals; else integer weights at the temperature,
//! top-k, top-p of what that left, min-p against the most likely token, and one draw
//! ([`select`]). The draw's 64 bits are Philox4x32-10 keyed by the request's seed, at counter
//! (position of the new token, choice, 0, 0). Log-probabilities are of the raw logits: f64
//! `x - m - ln(sum)`, rounded to f32 at the end ([`scan`]).
//!
//! A row is one task and reads nothing of another row. NaN or +infinity among the logits, or a row
//! with nothing allowed, gives a status instead of a token.

mod adjust;
mod params;
mod philox;
mod scan;
mod select;

pub use params::{BiasEntry, SampleParams, SampleResult, SampleStatus};
pub use philox::philox;

use super::isa::{Isa, KernelKind, counters};
use super::lanes::{LANES, Lanes, per_isa};
use adjust::{History, adjust};
use lockstep_flow::limits::LOGIT_BIAS_MAX;
use scan::{Row, logprob_of};
use select::Weights;

/// Bytes of working memory of one logit row.
pub const fn scratch_bytes(vocab: u32) -> u64 {
    // One word a token: the history, then the adjusted logits, then the weights take turns in it.
    (vocab as u64).next_multiple_of(LANES as u64) * 4
}

/// Chooses a token for every logit row.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Instruction set.
    pub isa: Isa,
    /// Logit rows, live and padded.
    pub rows: u32,
    /// Vocabulary, at most [`lockstep_flow::limits::VOCAB_MAX`].
    pub vocab: u32,
    /// `[rows][vocab]`
    pub logits: *const f32,
    /// Floats from one row of logits to the next.
    pub logits_stride: usize,
    /// `[rows]`
    pub params: *const SampleParams,
    /// `[rows]`: the token row that a logit row belongs to.
    pub logit_rows: *const u32,
    /// `[rows]`: the slot whose last token the choice becomes; slot 0 keeps nothing.
    pub logit_slots: *const u32,
    /// `[token rows]`: the row's sequence.
    pub token_seq: *const u32,
    /// `[rows]` of `ceil(vocab / 32)` words: bit t % 32 of word t / 32 is 1 where t is allowed.
    pub masks: *const u32,
    /// Words from one row's mask to the next.
    pub mask_stride: usize,
    /// `[rows][LOGIT_BIAS_MAX]`
    pub bias: *const BiasEntry,
    /// Rows of page ids.
    pub block_table: *const u32,
    /// Entries from one sequence's row of the table to the next: its capacity.
    pub table_stride: usize,
    /// Token-id pages, one u32 a position.
    pub token_pages: *const u32,
    /// `[slots]`
    pub last_token: *mut u32,
    /// `[rows]` of [`scratch_bytes`], aligned to 4.
    pub scratch: *mut u32,
    /// `[rows]`
    pub results: *mut SampleResult,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for Sample {}
// SAFETY: as above.
unsafe impl Sync for Sample {}

impl Sample {
    /// One a row.
    pub fn tasks(&self) -> u32 {
        self.rows
    }

    /// Chooses row `task`'s token, unless the row is not below `live_rows`.
    ///
    /// # Safety
    /// `isa` is available. For the first `live_rows` rows: every table has the row's entry, and
    /// entries name token rows, sequences, slots and pages that exist; the row's logits, its mask
    /// where it is masked, its bias entries, and where it has a penalty the token pages up to its
    /// position are readable; its scratch, its result and its slot's last token are writable and
    /// nothing else touches them meanwhile (slots other than 0 are distinct).
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Sample, self.isa);
        }
        if task < live_rows.min(self.rows) {
            // SAFETY: the caller's contract.
            unsafe { sample_row(self.isa, self, task as usize) }
        }
    }
}

per_isa! {
    unsafe fn sample_row(a: &Sample, r: usize) = sample_row_body;
}

#[inline(always)]
unsafe fn sample_row_body<V: Lanes>(a: &Sample, r: usize) {
    // SAFETY: the caller of `run` vouches for every table and row.
    unsafe {
        let p = &*a.params.add(r);
        let row = Row { p: a.logits.add(r * a.logits_stride), n: a.vocab as usize };
        let m = row.greatest::<V>();
        let mut result = choose::<V>(a, r, p, row, m);
        let ok = result.status == SampleStatus::Ok as u32;
        if ok && p.logprobs >= 0 {
            let log_sum = row.log_sum::<V>(m);
            result.logprob = logprob_of(row.at(result.token as usize), m, log_sum);
            row.best::<V>(p.logprobs as usize, m, log_sum, &mut result);
        }
        let slot = *a.logit_slots.add(r) as usize;
        if slot != 0 && p.target < 0 {
            *a.last_token.add(slot) = result.token;
        }
        *a.results.add(r) = result;
    }
}

/// The token and status of a row whose greatest logit is `m`.
#[inline(always)]
unsafe fn choose<V: Lanes>(
    a: &Sample,
    r: usize,
    p: &SampleParams,
    row: Row,
    m: f32,
) -> SampleResult {
    let none = |status| SampleResult::of(0, status);
    if m.is_nan() || m == f32::INFINITY {
        return none(SampleStatus::NotFinite);
    }
    if m == f32::NEG_INFINITY {
        return none(SampleStatus::NothingAllowed);
    }
    if p.target >= 0 {
        let token = p.target as u32;
        let inside = token < a.vocab;
        return if inside {
            SampleResult::of(token, SampleStatus::Ok)
        } else {
            none(SampleStatus::BadTarget)
        };
    }
    // SAFETY: the caller of `run` vouches for every table and row.
    unsafe {
        let work = a.scratch.add(r * row.n.next_multiple_of(LANES));
        let (mut row, mut m) = (row, m);
        if p.has_penalties() || p.bias_count > 0 || p.masked != 0 {
            let seq = *a.token_seq.add(*a.logit_rows.add(r) as usize) as usize;
            let history = History {
                table: a.block_table.add(seq * a.table_stride),
                token_pages: a.token_pages,
            };
            let (bias, mask) = (a.bias.add(r * LOGIT_BIAS_MAX), a.masks.add(r * a.mask_stride));
            let adjusted = core::slice::from_raw_parts_mut(work.cast::<f32>(), row.n);
            adjust(p, row, history, bias, mask, adjusted);
            row = Row { p: work.cast(), n: row.n };
            m = row.greatest::<V>();
            if m.is_nan() || m == f32::INFINITY {
                return none(SampleStatus::NotFinite);
            }
            if m == f32::NEG_INFINITY {
                return none(SampleStatus::NothingAllowed);
            }
        }
        let token = if p.is_greedy() {
            row.first_at::<V>(m)
        } else {
            let weights = Weights::new::<V>(row, m, p.temperature, work);
            let uniform =
                philox::draw([p.seed_low, p.seed_high], p.choice, p.position.wrapping_add(1));
            weights.draw(weights.keep(p), uniform)
        };
        SampleResult::of(token, SampleStatus::Ok)
    }
}
