//! How large the pool is, and what one page costs.

use crate::PoolError;
use lockstep_flow::limits::{PAGE_TOKENS, RUNNING_REQUESTS_MAX};

/// One kind of row that is kept for every token: keys of a layer, values of a layer, token ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubPool {
    /// As shown to operators: `k.0`, `v.0`, `tokens`.
    pub name: String,
    /// Bytes of one page in this sub-pool.
    pub bytes_per_page: u64,
}

/// The pool's sizes; checked by [`PoolConfig::check`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Tells the leases of two pools apart.
    pub id: u32,
    /// Pages, the reserved page 0 included.
    pub pages: u32,
    /// Live sequence slots; their ids are `1..=slots`, slot 0 is reserved.
    pub slots: u32,
    /// Pages of the longest sequence: the stride of a step's block tables.
    pub pages_per_seq_max: u32,
    /// Sequence rows of the widest bucket.
    pub rows_max: u32,
    /// Steps that may be leased at once: 1 on a device that the host waits for, 2 where step N+1
    /// is launched before step N has come back.
    pub steps_in_flight_max: u32,
    /// What a page holds.
    pub sub_pools: Vec<SubPool>,
    /// True where a model keeps per-sequence state beside its pages: a prefix is then restored at
    /// a node that has a snapshot of the slot, or not at all.
    pub slot_snapshots: bool,
}

/// What a sub-pool holds just now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubPoolUsage {
    /// The sub-pool's name.
    pub name: String,
    /// Bytes of pages that a sequence, a transfer or a step in flight needs.
    pub used_bytes: u64,
    /// Bytes of pages that only the prefix index holds: given up as soon as they are needed.
    pub cached_bytes: u64,
    /// Bytes of all pages but the reserved one.
    pub total_bytes: u64,
}

impl PoolConfig {
    /// Tokens that the pool can hold.
    pub const fn capacity_tokens(&self) -> u32 {
        (self.pages - 1) * PAGE_TOKENS
    }

    /// Bytes of one page in all sub-pools together.
    pub fn bytes_per_page(&self) -> u64 {
        self.sub_pools.iter().map(|s| s.bytes_per_page).sum()
    }

    /// How many pages, the reserved one included, `budget_bytes` buys; at most `pages_max`.
    pub fn pages_for(budget_bytes: u64, bytes_per_page: u64, pages_max: u32) -> u32 {
        let pages = budget_bytes.checked_div(bytes_per_page).unwrap_or(u64::from(pages_max));
        u32::try_from(pages).unwrap_or(u32::MAX).min(pages_max)
    }

    /// Checks every bound and says which one failed and what would do.
    pub fn check(&self) -> Result<(), PoolError> {
        let bound = |what, found: u32, min: u32, max: u32| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(PoolError::Config { what, found, min, max })
            }
        };
        bound("pages", self.pages, 2, u32::MAX / PAGE_TOKENS)?;
        bound("slots", self.slots, 1, 2 * RUNNING_REQUESTS_MAX)?;
        bound("pages_per_seq_max", self.pages_per_seq_max, 1, self.pages - 1)?;
        bound("rows_max", self.rows_max, 1, 2 * RUNNING_REQUESTS_MAX)?;
        bound("steps_in_flight_max", self.steps_in_flight_max, 1, 16)
    }
}
