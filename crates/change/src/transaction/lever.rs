//! How a change gets into a server: beside the running set, or through what starts it.

use super::Ground;
use crate::fault::ChangeError;
use crate::gate::Criterion;
use crate::target::Launch;
use serde_json::Value;
use std::path::PathBuf;

/// What a step found: it may go on, or the change goes back.
pub enum Step {
    /// Go on; the facts belong to the state that was reached.
    On(Value),
    /// Go back, for these reasons.
    Back(Vec<String>),
}

/// The steps that differ by how a server is started. Each may be asked again after a crash: what
/// it did is looked up in the world, not in memory.
pub trait Lever {
    /// Files that the change will write.
    ///
    /// # Errors
    /// Where they are cannot be found out.
    fn files(&self, g: &Ground<'_>) -> Result<Vec<PathBuf>, ChangeError>;

    /// Puts the new setting beside the old one.
    ///
    /// # Errors
    /// It cannot be; nothing runs with it.
    fn stage(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError>;

    /// Asks what was staged to show that it is right.
    ///
    /// # Errors
    /// It cannot be asked.
    fn prove(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError>;

    /// Makes production run with it; answers once it does.
    ///
    /// # Errors
    /// It does not.
    fn flip(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError>;

    /// What is looked at again and again while it is watched; reasons to go back.
    ///
    /// # Errors
    /// The server cannot be asked.
    fn look(&self, g: &mut Ground<'_>) -> Result<Vec<Criterion>, ChangeError>;

    /// Makes it stay, also over a restart.
    ///
    /// # Errors
    /// It does not.
    fn keep(&self, g: &mut Ground<'_>) -> Result<Step, ChangeError>;

    /// Back to the old setting, from wherever the change stands, and a look whether it is so.
    ///
    /// # Errors
    /// It is not so.
    fn undo(&self, g: &mut Ground<'_>) -> Result<Value, ChangeError>;
}

/// The lever of a way to start.
pub fn of(launch: &Launch) -> Box<dyn Lever> {
    match launch {
        Launch::Live => Box::new(super::live::Live),
        _ => Box::new(super::restart::Restart),
    }
}
