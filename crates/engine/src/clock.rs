//! The real clock.

use lockstep_flow::{Clock, Micros};
use std::time::Instant;

/// Monotonic time since its creation.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock that starts at 1 µs, so that 0 stays "never".
    pub fn start() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Micros {
        Micros(self.start.elapsed().as_micros() as u64 + 1)
    }
}
