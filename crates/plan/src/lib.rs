//! The step-plan IR, block formats, lanes and edges, arena packing, prove, the explorer.
#![forbid(unsafe_code)]

pub mod format;
