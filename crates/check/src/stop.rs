//! The wish that something long end early, with what it has.

use core::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared between what runs and whoever may want it to end.
#[derive(Clone, Debug)]
pub struct Stop {
    wish: Arc<watch::Sender<bool>>,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop { wish: Arc::new(watch::channel(false).0) }
    }
}

impl Stop {
    /// Asks for the end.
    pub fn stop(&self) {
        self.wish.send_replace(true);
    }

    /// Whether it was asked for.
    pub fn is_stopped(&self) -> bool {
        *self.wish.borrow()
    }

    /// Returns once it was asked for.
    pub async fn stopped(&self) {
        let mut wish = self.wish.subscribe();
        // The sender lives as long as `self`.
        let _ = wish.wait_for(|w| *w).await;
    }

    /// What `work` gives; nothing where the end was asked for first, and then `work` is dropped.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stopped() => None,
            done = work => Some(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_dropped_once_the_end_is_asked_for() {
        let stop = Stop::default();
        assert_eq!(stop.unless(async { 1 }).await, Some(1));
        let asker = stop.clone();
        let never = async {
            asker.stop();
            core::future::pending::<()>().await;
        };
        assert_eq!(stop.unless(never).await, None);
        assert!(stop.is_stopped());
        assert_eq!(stop.unless(async { 1 }).await, None);
    }
}
