//! A step's tables in memory of their own, for whoever has no device's buffers to fill.

use crate::StepTables;
use lockstep_flow::BucketKey;

/// What [`StepTables`] looks at, with the names and shapes that it has there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnTables {
    pub block_tables: Vec<u32>,
    pub write_slots: Vec<u32>,
    pub positions: Vec<u32>,
    pub seq_of_token: Vec<u32>,
    pub slots: Vec<u32>,
    pub logit_tokens: Vec<u32>,
    pub logit_slots: Vec<u32>,
    pub first_tokens: Vec<u32>,
    pub token_counts: Vec<u32>,
    pub kv_lens: Vec<u32>,
}

impl OwnTables {
    /// Of a bucket's capacity, every entry 0.
    pub fn new(bucket: BucketKey, pages_per_seq_max: u32) -> OwnTables {
        OwnTables::filled(bucket, pages_per_seq_max, 0)
    }

    /// Of a bucket's capacity, every entry `word`: what a step before has left, say.
    pub fn filled(bucket: BucketKey, pages_per_seq_max: u32, word: u32) -> OwnTables {
        let of = |n: u32| vec![word; n as usize];
        let BucketKey { tokens: t, seqs: s, logit_rows: r } = bucket;
        OwnTables {
            block_tables: of(s * pages_per_seq_max),
            write_slots: of(t),
            positions: of(t),
            seq_of_token: of(t),
            slots: of(s),
            logit_tokens: of(r),
            logit_slots: of(r),
            first_tokens: of(s),
            token_counts: of(s),
            kv_lens: of(s),
        }
    }

    /// To be filled by [`crate::Pool::lease`], or compared.
    pub fn view(&mut self) -> StepTables<'_> {
        StepTables {
            block_tables: &mut self.block_tables,
            write_slots: &mut self.write_slots,
            positions: &mut self.positions,
            seq_of_token: &mut self.seq_of_token,
            slots: &mut self.slots,
            logit_tokens: &mut self.logit_tokens,
            logit_slots: &mut self.logit_slots,
            first_tokens: Some(&mut self.first_tokens),
            token_counts: Some(&mut self.token_counts),
            kv_lens: Some(&mut self.kv_lens),
        }
    }
}
