//! The guarded change: targets, journal, gates, rollback, records.
#![forbid(unsafe_code)]
