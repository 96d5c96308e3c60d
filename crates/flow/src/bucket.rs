//! The shape of a step.

use core::fmt;

/// The key of a bucket: how many token slots, sequence slots and logit rows its plan has.
///
/// Decode has `tokens == seqs == logit_rows`; verification of `d` drafts a sequence has
/// `tokens == seqs * (1 + d)`; prefill and mixed steps take `tokens` from a short ladder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BucketKey {
    /// T: token slots, live and padded.
    pub tokens: u32,
    /// S: sequence slots.
    pub seqs: u32,
    /// R: rows for which logits are computed.
    pub logit_rows: u32,
}

impl BucketKey {
    /// A decode bucket of `n` sequences.
    pub const fn decode(n: u32) -> BucketKey {
        BucketKey { tokens: n, seqs: n, logit_rows: n }
    }

    /// A bucket that checks `drafts` drafts of each of `n` sequences.
    pub const fn verify(n: u32, drafts: u32) -> BucketKey {
        let rows = n * (1 + drafts);
        BucketKey { tokens: rows, seqs: n, logit_rows: rows }
    }

    /// True where every sequence has one token.
    pub const fn is_decode(self) -> bool {
        self.tokens == self.seqs && self.seqs == self.logit_rows
    }

    /// True where a step of this shape fits.
    pub const fn holds(self, tokens: u32, seqs: u32, logit_rows: u32) -> bool {
        tokens <= self.tokens && seqs <= self.seqs && logit_rows <= self.logit_rows
    }
}

impl fmt::Display for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_decode() {
            write!(f, "decode-{}", self.tokens)
        } else {
            write!(f, "t{}-s{}-r{}", self.tokens, self.seqs, self.logit_rows)
        }
    }
}

/// The decode ladder up to `max`, which is always its last step: 1, 2, 4, 8, then steps of 4 to
/// 16, of 8 to 256, of 16 above. `decode_ladder(96)` is
/// 1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96.
pub fn decode_ladder(max: u32) -> Vec<u32> {
    let mut ladder = Vec::new();
    let mut n = 1;
    while n < max {
        ladder.push(n);
        n = next_in_ladder(n);
    }
    if max > 0 {
        ladder.push(max);
    }
    ladder
}

/// The step of the unbounded decode ladder after `n`.
pub const fn next_in_ladder(n: u32) -> u32 {
    match n {
        0 => 1,
        1..=7 => (n + 1).next_power_of_two(),
        8..=15 => (n / 4 + 1) * 4,
        16..=255 => (n / 8 + 1) * 8,
        _ => (n / 16 + 1) * 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ladder_of_96_is_the_documented_one() {
        assert_eq!(decode_ladder(96), [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]);
        assert_eq!(decode_ladder(256).len(), 36);
    }

    #[test]
    fn ladder_always_ends_at_its_maximum() {
        for max in 1..600 {
            let ladder = decode_ladder(max);
            assert_eq!(ladder.last(), Some(&max));
            assert!(ladder.windows(2).all(|w| w[0] < w[1]));
        }
    }
}
