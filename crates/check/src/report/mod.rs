//! The three reports of a finding: for a person in ten seconds, for a machine, and a page.

mod html;
mod json;
mod plot;
mod repeat;
mod summary;

pub use html::html;
pub use json::{ReplayError, json, replay};
pub use summary::{printable, summary};
