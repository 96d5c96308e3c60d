//! Time comes in from outside, so that a simulated year and a real second run the same code.

/// Microseconds since an arbitrary start; differences mean something, absolute values do not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Micros(pub u64);

impl Micros {
    /// The time from `earlier` to `self`; zero where `earlier` is later.
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// This many milliseconds.
    pub const fn from_millis(ms: u64) -> Micros {
        Micros(ms * 1000)
    }

    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// A monotonic clock. The real one lives in `engine`, a virtual one in the simulator.
pub trait Clock: Send + Sync {
    /// The present; never less than an earlier answer.
    fn now(&self) -> Micros;
}
