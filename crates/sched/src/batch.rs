//! What a step is made of.

use lockstep_flow::BucketKey;
use lockstep_pool::RowPlan;

/// Where a row's tokens come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenSource {
    /// The host knows them: [`crate::Scheduler::literal`].
    Literal,
    /// The one token that a step in flight is sampling: `last_token[slot]` on the device.
    LastToken,
}

/// One sequence's row of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeqRow {
    /// Request, slot, positions and logits, as the pool signs for them.
    pub plan: RowPlan,
    /// Where its tokens come from.
    pub source: TokenSource,
    /// Index among the output tokens of the (first) token that it samples, where it samples one.
    pub output_index: u32,
    /// Of its tokens, how many are drafts: the last ones.
    pub drafts: u32,
    /// Its first token row in the step.
    pub token_row: u32,
    /// Its first logit row in the step, where it has any.
    pub logit_row: u32,
    /// Positions of its sequence under this had been in a step before this one.
    pub(crate) reached: u32,
    pub(crate) entry: u32,
    pub(crate) epoch: u32,
}

impl SeqRow {
    /// Of its tokens, how many had been computed before.
    pub(crate) fn recomputed_tokens(&self) -> u64 {
        let first = self.plan.first_position.0;
        u64::from(self.reached.min(self.plan.end()).saturating_sub(first))
    }
}

/// A planned step: decode rows first, then prefill rows, each by arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Number of the step; the generation of its lease.
    pub step: u64,
    /// The plan to run.
    pub bucket: BucketKey,
    /// Live tokens, sequences, logit rows.
    pub live: BucketKey,
    /// Sequence rows 0..; their tokens are token rows 0.. in this order.
    pub rows: Vec<SeqRow>,
    /// Of the rows, how many decode; the others prefill.
    pub decode_rows: u32,
}

impl Batch {
    pub(crate) fn with_capacity(rows: usize) -> Batch {
        let none = BucketKey { tokens: 0, seqs: 0, logit_rows: 0 };
        Batch { step: 0, bucket: none, live: none, rows: Vec::with_capacity(rows), decode_rows: 0 }
    }

    /// Counts what is live and tells each row where its token and logit rows start.
    pub(crate) fn number(&mut self) {
        self.live = BucketKey { tokens: 0, seqs: 0, logit_rows: 0 };
        for row in &mut self.rows {
            (row.token_row, row.logit_row) = (self.live.tokens, self.live.logit_rows);
            self.live.tokens += row.plan.n_tokens;
            self.live.seqs += 1;
            self.live.logit_rows += row.plan.logit_rows();
        }
    }
}
