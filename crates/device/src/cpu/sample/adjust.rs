//! Penalties, bias and grammar mask, in that order, on a copy of the logits.

use super::params::{BiasEntry, SampleParams};
use super::scan::Row;
use lockstep_flow::limits::{LOGIT_BIAS_MAX, PAGE_TOKENS};

/// In a history word: the token is in the prompt. The lower bits count it in the output.
const IN_PROMPT: u32 = 1 << 31;

/// Where a row's earlier tokens are.
#[derive(Clone, Copy)]
pub struct History {
    /// Page ids of the sequence.
    pub table: *const u32,
    /// Token-id pages.
    pub token_pages: *const u32,
}

impl History {
    /// Marks every token up to and including the row's position in `words`, one a vocabulary entry.
    ///
    /// # Safety
    /// The table names readable token pages up to the position.
    unsafe fn mark(self, p: &SampleParams, words: &mut [u32]) {
        let first = if p.repetition_penalty == 1.0 { p.prompt_len } else { 0 };
        for position in first..p.position.saturating_add(1) {
            // SAFETY: the caller's contract.
            let token = unsafe {
                let page = *self.table.add((position / PAGE_TOKENS) as usize) as usize;
                let entry = page * PAGE_TOKENS as usize + (position % PAGE_TOKENS) as usize;
                *self.token_pages.add(entry)
            };
            if let Some(word) = words.get_mut(token as usize) {
                if position < p.prompt_len { *word |= IN_PROMPT } else { *word += 1 }
            }
        }
    }
}

/// One token's penalties: repetition where it was seen at all (x / r above 0, x * r else), then
/// minus frequency * count, then minus presence where the count is not 0.
fn penalised(p: &SampleParams, x: f32, word: u32) -> f32 {
    let r = p.repetition_penalty;
    let x = if x > 0.0 { x / r } else { x * r };
    match word & !IN_PROMPT {
        0 => x,
        count => x - count as f32 * p.frequency_penalty - p.presence_penalty,
    }
}

/// Writes the adjusted logits of a row to `out`, of `row.n` floats.
///
/// # Safety
/// `row` is readable; `history` holds the row's sequence where a penalty is on; `bias` is readable
/// for the row's bias entries and `mask`, where the row is masked, for `ceil(n / 32)` words.
pub unsafe fn adjust(
    p: &SampleParams,
    row: Row,
    history: History,
    bias: *const BiasEntry,
    mask: *const u32,
    out: &mut [f32],
) {
    assert_eq!(out.len(), row.n, "one adjusted logit a token");
    // SAFETY: the caller's contract.
    let logits = unsafe { core::slice::from_raw_parts(row.p, row.n) };
    if p.has_penalties() {
        // SAFETY: f32 and u32 share size and alignment, and every bit pattern is valid for both.
        let words =
            unsafe { core::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u32>(), row.n) };
        words.fill(0);
        // SAFETY: the caller's contract.
        unsafe { history.mark(p, words) };
        for (word, &x) in words.iter_mut().zip(logits) {
            *word = if *word == 0 { x } else { penalised(p, x, *word) }.to_bits();
        }
    } else {
        out.copy_from_slice(logits);
    }
    for i in 0..(p.bias_count as usize).min(LOGIT_BIAS_MAX) {
        // SAFETY: the caller's contract.
        let BiasEntry { token, bias } = unsafe { *bias.add(i) };
        if let Some(x) = out.get_mut(token as usize) {
            *x += bias;
        }
    }
    if p.masked != 0 {
        for (i, x) in out.chunks_mut(32).enumerate() {
            // SAFETY: the caller's contract.
            match unsafe { *mask.add(i) } {
                u32::MAX => {}
                0 => x.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, x) in x.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *x = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}
