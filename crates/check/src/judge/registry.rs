//! Whose code is whose.

use crate::dialogue::Session;
use std::collections::HashMap;

/// Symbols of a code that tells its owner: a made-up code of six symbols is one of a run's ten
/// thousand with a chance of 0.0006, one of four with 0.15.
const TELLING_SYMBOLS: usize = 6;

/// The codes of a run's sessions.
#[derive(Clone, Default, Debug)]
pub struct Registry {
    owners: HashMap<String, Vec<u32>>,
}

impl Registry {
    /// Of these sessions.
    pub fn of<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> Registry {
        let mut owners: HashMap<String, Vec<u32>> = HashMap::new();
        for session in sessions {
            for code in session.codes.iter().filter(|c| c.len() >= TELLING_SYMBOLS) {
                owners.entry(code.clone()).or_default().push(session.id);
            }
        }
        Registry { owners }
    }

    /// Another session that was told `code`, where `session` was not.
    pub fn stranger(&self, code: &str, session: &Session) -> Option<u32> {
        if session.codes.contains(code) {
            return None;
        }
        self.owners.get(code)?.iter().copied().find(|id| *id != session.id)
    }
}
