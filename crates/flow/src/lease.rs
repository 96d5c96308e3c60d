//! The seam between who owns pages and who touches them.

use crate::BucketKey;

/// Signed permission for one step: the pool has checked every obligation that a plan's indexed
/// accesses leave open (architecture, section 3), for this step's tables.
///
/// Only `pool` implements it for a type that only `pool` can construct; `cargo xtask tidy` holds
/// that. A device takes a lease by reference for every replay, eager or captured, so a step
/// without one cannot be written down.
pub trait Lease {
    /// The bucket whose tables were checked.
    fn bucket(&self) -> BucketKey;

    /// Number of the step, ascending from 1.
    fn step(&self) -> u64;
}
