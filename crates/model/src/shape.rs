//! What shapes a plan beside the model and the bucket.

use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{IndexDtype, KvDtype};

/// Shapes of a generation: equal for all its buckets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlanShape {
    /// Pages of the token pool, the reserved page 0 included.
    pub pages: u32,
    /// Sequence slots, the reserved slot 0 included.
    pub slots: u32,
    /// Longest sequence, in tokens.
    pub context_tokens: u32,
    /// Element type of KV rows.
    pub kv_dtype: KvDtype,
    /// Element type of index keys, of models that have some.
    pub index_dtype: IndexDtype,
    /// Device lanes that a plan may use.
    pub lanes: u32,
    /// Tokens that a prediction block drafts for a sequence in each step; 0 leaves the block out.
    pub drafts: u32,
}

impl PlanShape {
    /// Columns of a block table: pages of the longest sequence, which no more than the whole pool
    /// can hold. `pages` of 0 asks before the pool's size is known.
    pub const fn pages_per_seq_max(&self) -> u32 {
        let context = self.context_tokens.div_ceil(PAGE_TOKENS);
        match self.pages.checked_sub(1) {
            Some(usable) if usable < context => usable,
            _ => context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool of less than one full context once made tables of one width and leases of another,
    /// so that every request failed.
    #[test]
    fn a_block_table_is_no_wider_than_the_pool() {
        let shape = |pages| PlanShape {
            pages,
            slots: 2,
            context_tokens: 8192,
            kv_dtype: KvDtype::F16,
            index_dtype: IndexDtype::F32,
            lanes: 1,
            drafts: 0,
        };
        assert_eq!(shape(0).pages_per_seq_max(), 256);
        assert_eq!(shape(1000).pages_per_seq_max(), 256);
        assert_eq!(shape(257).pages_per_seq_max(), 256);
        assert_eq!(shape(255).pages_per_seq_max(), 254);
    }
}
