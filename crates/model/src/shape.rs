//! What shapes a plan beside the model and the bucket.

use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::KvDtype;

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
    /// Device lanes that a plan may use.
    pub lanes: u32,
}

impl PlanShape {
    /// Columns of a block table: pages of the longest sequence.
    pub const fn pages_per_seq_max(&self) -> u32 {
        self.context_tokens.div_ceil(PAGE_TOKENS)
    }
}
