//! Which tokens a step runs, and their embedding rows.

use super::isa::{Isa, KernelKind, counters};
use super::tile::{PackedMatrix, unpack_row};
use lockstep_plan::TOKEN_FROM_LAST;

/// Rows of one task of [`Embed`], at most; shapes speed, not bits.
const ROWS_PER_TASK: u32 = 8;

/// Resolves each row's token, and records it in the token-id pages (penalties look back there).
///
/// Definition: token = source, or `last_token[slot of the row's sequence]` where the source is
/// [`TOKEN_FROM_LAST`]. Integers only, so there is one path.
#[derive(Clone, Copy, Debug)]
pub struct GatherTokens {
    /// Token rows, live and padded.
    pub rows: u32,
    /// Vocabulary; a token at or past it is written as 0, which only a broken input can cause.
    pub vocab: u32,
    /// `[rows]`
    pub token_source: *const u32,
    /// `[rows]`: the row's sequence.
    pub token_seq: *const u32,
    /// `[seqs]`: the sequence's slot.
    pub seq_slots: *const u32,
    /// `[slots]`
    pub last_token: *const u32,
    /// `[rows]`: page * PAGE_TOKENS + offset.
    pub write_slots: *const u32,
    /// Token-id pages, one u32 a position.
    pub token_pages: *mut u32,
    /// `[rows]`
    pub out: *mut u32,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for GatherTokens {}
// SAFETY: as above.
unsafe impl Sync for GatherTokens {}

impl GatherTokens {
    /// One: a row is a few loads.
    pub fn tasks(&self) -> u32 {
        1
    }

    /// Resolves the first `live_rows` rows.
    ///
    /// # Safety
    /// For the first `live_rows` rows, the tables are readable and name sequences, slots and token
    /// pages that exist; write slots are distinct; `out` is writable; nothing else touches `out`
    /// and the named entries meanwhile.
    pub unsafe fn run(&self, _: u32, live_rows: u32) {
        for row in 0..live_rows.min(self.rows) as usize {
            // SAFETY: the caller's contract.
            unsafe {
                let mut token = *self.token_source.add(row);
                if token == TOKEN_FROM_LAST {
                    let slot = *self.seq_slots.add(*self.token_seq.add(row) as usize);
                    token = *self.last_token.add(slot as usize);
                }
                // Keeps the embedding lookup inside its matrix whatever the host wrote.
                if token >= self.vocab {
                    token = 0;
                }
                *self.out.add(row) = token;
                *self.token_pages.add(*self.write_slots.add(row) as usize) = token;
            }
        }
    }
}

/// Copies embedding rows as f32, decoding them exactly as their file format says.
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    /// Counted only: decoding is exact on every path.
    pub isa: Isa,
    /// Token rows, live and padded.
    pub rows: u32,
    /// `[rows]` below the matrix's rows.
    pub tokens: *const u32,
    /// `vocab` by `dim`.
    pub desc: PackedMatrix,
    /// `desc.bytes()` bytes.
    pub weights: *const u8,
    /// `[rows][dim]`
    pub out: *mut f32,
    /// Floats from one output row to the next.
    pub out_stride: usize,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for Embed {}
// SAFETY: as above.
unsafe impl Sync for Embed {}

impl Embed {
    /// Tasks that cover all rows.
    pub fn tasks(&self) -> u32 {
        self.rows.div_ceil(self.rows_of_task())
    }

    /// A quarter of the bucket's rows, so that a few threads share even a small one.
    fn rows_of_task(&self) -> u32 {
        (self.rows / 4).clamp(1, ROWS_PER_TASK)
    }

    /// Copies the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `weights` is readable for `desc.bytes()` bytes; for the first `live_rows` rows `tokens` is
    /// readable and below `desc.n()`, and `out` is writable for `desc.k()` floats a row and nothing
    /// else touches it meanwhile.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        if task == 0 {
            counters().count(KernelKind::Embed, self.isa);
        }
        let first = task * self.rows_of_task();
        let end = (first + self.rows_of_task()).min(self.rows).min(live_rows);
        for row in first as usize..end as usize {
            // SAFETY: the caller's contract.
            unsafe {
                let bytes = core::slice::from_raw_parts(self.weights, self.desc.bytes());
                let out = self.out.add(row * self.out_stride);
                let out = core::slice::from_raw_parts_mut(out, self.desc.k());
                unpack_row(&self.desc, bytes, *self.tokens.add(row) as usize, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tile::repack;
    use super::*;
    use lockstep_plan::format::Format;

    #[test]
    fn tokens_come_from_the_source_or_the_slot() {
        let source = [5, TOKEN_FROM_LAST, TOKEN_FROM_LAST, 70, 9];
        let seqs = [0u32, 1, 0, 0, 0];
        let slots = [3u32, 1];
        let last = [0u32, 41, 0, 43];
        let write = [33u32, 64, 34, 35, 1];
        let mut pages = vec![u32::MAX; 96];
        let mut out = [99u32; 5];
        let op = GatherTokens {
            rows: 5,
            vocab: 64,
            token_source: source.as_ptr(),
            token_seq: seqs.as_ptr(),
            seq_slots: slots.as_ptr(),
            last_token: last.as_ptr(),
            write_slots: write.as_ptr(),
            token_pages: pages.as_mut_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: all tables have five rows and name what is there.
        unsafe { op.run(0, 4) };
        assert_eq!(out, [5, 41, 43, 0, 99], "70 is outside the vocabulary, row 4 is padding");
        assert_eq!([pages[33], pages[64], pages[34], pages[35]], [5, 41, 43, 0]);
        assert_eq!(pages.iter().filter(|&&t| t != u32::MAX).count(), 4);
    }

    #[test]
    fn rows_are_those_of_the_matrix() {
        let (vocab, dim) = (37, 64);
        let source: Vec<f32> = (0..vocab * dim).map(|i| i as f32 * 0.5 - 7.0).collect();
        let bytes: Vec<u8> = source.iter().flat_map(|v| v.to_le_bytes()).collect();
        let desc = PackedMatrix::plan(Format::F32, vocab, dim).unwrap();
        let mut packed = vec![0; desc.bytes()];
        repack(&desc, &bytes, &mut packed).unwrap();
        let tokens = [36u32, 0, 17, 17, 1, 2, 3, 4, 5, 6];
        let mut out = vec![f32::NAN; tokens.len() * dim];
        let op = Embed {
            isa: Isa::detect(),
            rows: tokens.len() as u32,
            tokens: tokens.as_ptr(),
            desc,
            weights: packed.as_ptr(),
            out: out.as_mut_ptr(),
            out_stride: dim,
        };
        for task in 0..op.tasks() {
            // SAFETY: all rows are there.
            unsafe { op.run(task, 9) };
        }
        for (row, &token) in tokens.iter().enumerate().take(9) {
            assert_eq!(out[row * dim..][..dim], source[token as usize * dim..][..dim]);
        }
        assert!(out[9 * dim..].iter().all(|v| v.is_nan()), "row 9 is padding");
    }
}
