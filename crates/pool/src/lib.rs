//! The token pool: who holds which page of KV, and who may touch it until when.
//!
//! A *page* is a run of [`lockstep_flow::limits::PAGE_TOKENS`] token positions in every sub-pool at
//! once (keys and values of each layer, token ids, later compressed rows and index keys): the
//! sub-pools of a range are owned, shared and freed as one group, because a group that is restored
//! in part is how caches corrupt answers. A *slot* is the place of one running sequence's state.
//!
//! This room sees ids only, never a byte or a pointer of KV. Every step runs under a [`StepLease`],
//! which only [`Pool::lease`] can make, and which proves for that step what a plan's proof must
//! leave open: live writes go to distinct positions of pages that the row owns alone, padded rows
//! write to page 0, shared pages are only read, every table entry is in range, and no page that the
//! step can reach is handed to anybody else before [`Pool::complete`].
//!
//! Invariants, all of them checked by [`Pool::audit`]:
//! - every page is in exactly one [`PageState`], and page 0 is reserved for ever;
//! - a sequence's block table is a path of shared pages in the prefix index followed by pages that
//!   it owns alone, so a shared page's readers read its ancestors too;
//! - the count of a shared page is the number of running sequences whose table holds it;
//! - a page that has a digest is closed, and no lease writes it;
//! - nothing on the step path (`extend`, `lease`, `complete`, `publish`) allocates.
#![forbid(unsafe_code)]

mod audit;
mod closed;
mod config;
#[cfg(test)]
mod drills;
mod error;
mod index;
#[cfg(feature = "lab")]
mod lab;
mod lease;
mod lru;
mod own_tables;
mod pool;
mod state;
mod tables;
mod view;

pub use audit::{AuditReport, StateCounts, Violation};
pub use closed::Merged;
pub use config::{PoolConfig, SubPool, SubPoolUsage};
pub use error::PoolError;
pub use index::SnapshotId;
#[cfg(feature = "lab")]
pub use lab::BookFault;
pub use lease::{Logits, RowPlan, StepLease};
pub use own_tables::OwnTables;
pub use pool::{Begun, Pool, PoolCounters};
pub use state::{PageState, PageStates, TransferId, Until};
pub use tables::StepTables;
