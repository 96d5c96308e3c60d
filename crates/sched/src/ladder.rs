//! The buckets that the engine has plans for, and the choice among them.

use crate::SchedError;
use lockstep_flow::{BucketKey, decode_ladder};

/// The bucket list, cheapest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ladder {
    buckets: Vec<BucketKey>,
    /// Most tokens of a step that may hold any mix of rows.
    mixed_tokens_max: u32,
    /// Most tokens of a step that has logits for all of them.
    echo_tokens_max: u32,
}

impl Ladder {
    /// Sorts the buckets and checks that whatever `running_requests_max` sequences can ask for has
    /// one: decode rows of all of them, any mix of prefill and decode, logits for every token.
    ///
    /// # Errors
    /// Which of these has no bucket wide enough.
    pub fn new(
        mut buckets: Vec<BucketKey>,
        running_requests_max: u32,
    ) -> Result<Ladder, SchedError> {
        buckets.sort_unstable_by_key(|b| (b.tokens, !b.is_decode(), b.logit_rows, b.seqs));
        buckets.dedup();
        let n = running_requests_max;
        let widest = |keep: &dyn Fn(&BucketKey) -> bool| {
            buckets.iter().filter(|b| keep(b)).map(|b| b.tokens).max().unwrap_or(0)
        };
        let mixed = widest(&|b| !b.is_decode() && b.seqs >= n && b.logit_rows >= n);
        let echo = widest(&|b| !b.is_decode() && b.seqs >= n && b.logit_rows >= b.tokens);
        let need = |what, found: u32, needed: u32| {
            if found >= needed {
                Ok(())
            } else {
                Err(SchedError::LadderTooSmall { what, needed, found })
            }
        };
        // One row of two tokens beside a decode row of everybody else.
        need("prefill beside decode", mixed, n + 1)?;
        need("log-probabilities of prompt tokens", echo, n + 1)?;
        Ok(Ladder { buckets, mixed_tokens_max: mixed, echo_tokens_max: echo })
    }

    /// The buckets: by tokens, decode first, then by logit rows and sequences.
    pub fn buckets(&self) -> &[BucketKey] {
        &self.buckets
    }

    /// Most tokens of a step that may hold any mix of rows.
    pub const fn mixed_tokens_max(&self) -> u32 {
        self.mixed_tokens_max
    }

    /// Most tokens of a step that has logits for all of them.
    pub const fn echo_tokens_max(&self) -> u32 {
        self.echo_tokens_max
    }

    /// The cheapest bucket for a step. A decode bucket takes rows of one token only.
    pub fn pick(&self, live: BucketKey) -> Option<BucketKey> {
        let single = live.tokens == live.seqs;
        self.buckets
            .iter()
            .find(|b| {
                b.holds(live.tokens, live.seqs, live.logit_rows) && (single || !b.is_decode())
            })
            .copied()
    }

    /// The least tokens of a bucket for any rows that has at least so many.
    pub fn above(&self, tokens: u32) -> Option<u32> {
        self.buckets.iter().filter(|b| !b.is_decode()).map(|b| b.tokens).find(|t| *t >= tokens)
    }

    /// The largest token count under `tokens` that fills a bucket for `seqs` sequences and
    /// `logit_rows` logit rows; 0 where there is none.
    pub fn below(&self, live: BucketKey) -> u32 {
        self.buckets
            .iter()
            .filter(|b| !b.is_decode() && b.tokens < live.tokens)
            .filter(|b| b.seqs >= live.seqs && b.logit_rows >= live.logit_rows.min(b.tokens))
            .map(|b| b.tokens)
            .max()
            .unwrap_or(0)
    }
}

/// A bucket list that covers everything: the decode ladder to `running_requests_max`; prefill and
/// mixed buckets of 16, 32, 64, .. tokens to `chunked_prefill_tokens`, each with few and with many
/// sequences; buckets with logits for all tokens up to `echo_tokens`.
pub fn standard_buckets(
    running_requests_max: u32,
    chunked_prefill_tokens: u32,
    echo_tokens: u32,
) -> Vec<BucketKey> {
    let n = running_requests_max;
    let mut buckets: Vec<_> = decode_ladder(n).into_iter().map(BucketKey::decode).collect();
    let mut seqs: Vec<u32> = [1, 4, 16, 64].into_iter().filter(|s| *s < n).collect();
    seqs.push(n);
    for tokens in doubling(chunked_prefill_tokens.max(n + 1)) {
        for &s in seqs.iter().filter(|s| **s < tokens) {
            buckets.push(BucketKey { tokens, seqs: s, logit_rows: s });
        }
    }
    for tokens in doubling(echo_tokens.max(n + 1)) {
        let seqs = n.min(tokens - 1);
        buckets.push(BucketKey { tokens, seqs, logit_rows: tokens });
    }
    buckets
}

/// 16, 32, 64, .. and `max` itself.
fn doubling(max: u32) -> impl Iterator<Item = u32> {
    (4..32).map(|i| 1 << i).take_while(move |t| *t < max).chain([max])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_buckets_are_enough_for_any_number_of_requests() {
        for n in 1..300 {
            for chunk in [16, 100, 512] {
                let ladder = Ladder::new(standard_buckets(n, chunk, 64), n).unwrap();
                assert!(ladder.mixed_tokens_max() >= chunk);
                for rows in 1..=n {
                    let bucket = ladder.pick(BucketKey::decode(rows)).unwrap();
                    assert!(bucket.is_decode() && bucket.tokens >= rows);
                }
            }
        }
    }

    /// Sixteen tokens of one prompt hold in decode-16 by count alone; its plan has one token a
    /// sequence and would compute nonsense.
    #[test]
    fn a_prefill_chunk_never_gets_a_decode_bucket() {
        let ladder = Ladder::new(standard_buckets(16, 64, 32), 16).unwrap();
        let bucket = ladder.pick(BucketKey { tokens: 16, seqs: 1, logit_rows: 1 }).unwrap();
        assert_eq!(bucket, BucketKey { tokens: 16, seqs: 1, logit_rows: 1 });
        let echo = ladder.pick(BucketKey { tokens: 9, seqs: 2, logit_rows: 9 }).unwrap();
        assert_eq!((echo.tokens, echo.logit_rows), (16, 16));
    }

    #[test]
    fn a_ladder_with_a_hole_is_refused_with_the_reason() {
        let decode_only = vec![BucketKey::decode(8)];
        let e = Ladder::new(decode_only, 8).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the widest bucket for prefill beside decode has 0 rows and 9 can be needed: add a \
             wider bucket or lower max_running_requests"
        );
    }
}
