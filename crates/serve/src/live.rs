//! Which responses are being made, by name, so that an operator can end them.

use lockstep_flow::RequestId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The names in use. A name is here from before its first request is submitted until its response
/// is done or dropped, so the map is bounded by the connections.
#[derive(Default, Debug)]
pub struct Live(Mutex<HashMap<String, Vec<RequestId>>>);

/// Keeps the names of one response registered.
#[derive(Debug)]
pub struct Registered {
    live: Arc<Live>,
    names: Vec<String>,
}

impl Live {
    fn map(&self) -> MutexGuard<'_, HashMap<String, Vec<RequestId>>> {
        // The map is valid after any panic: every change to it is one insert or remove.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a response's requests under its name and the client's own, where it gave one.
    /// `None` where the client's name is in use.
    pub fn register(
        self: &Arc<Self>,
        name: &str,
        rid: Option<&str>,
        requests: &[RequestId],
    ) -> Option<Registered> {
        let mut map = self.map();
        if rid.is_some_and(|rid| map.contains_key(rid)) {
            return None;
        }
        let names: Vec<String> = [Some(name), rid].into_iter().flatten().map(Into::into).collect();
        for name in &names {
            map.insert(name.clone(), requests.to_vec());
        }
        Some(Registered { live: Arc::clone(self), names })
    }

    /// The requests behind a name; none where it is unknown.
    pub fn requests(&self, name: &str) -> Vec<RequestId> {
        self.map().get(name).cloned().unwrap_or_default()
    }

    /// Every request of every response.
    pub fn all(&self) -> Vec<RequestId> {
        let mut all: Vec<RequestId> = self.map().values().flatten().copied().collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut map = self.live.map();
        for name in &self.names {
            map.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lives_as_long_as_its_response() {
        let live = Arc::new(Live::default());
        let one = live.register("cmpl-1", Some("mine"), &[RequestId(1)]).unwrap();
        assert!(live.register("cmpl-2", Some("mine"), &[RequestId(2)]).is_none());
        assert_eq!(live.requests("mine"), [RequestId(1)]);
        assert_eq!(live.all(), [RequestId(1)]);
        drop(one);
        assert!(live.requests("mine").is_empty() && live.all().is_empty());
    }
}
