//! A histogram of durations that a step can add to: fixed bins, nothing allocated.

use crate::Micros;

/// Counts of durations in bins that double in width, and their sum.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Durations {
    bins: [u64; Durations::BINS],
    sum_micros: u64,
    longest: Micros,
}

impl Durations {
    /// Bins with an upper bound, and one more for what is longer.
    const BINS: usize = 17;
    /// Upper bound of the first bin.
    const FIRST_MICROS: u64 = 250;

    /// Counts one duration. A bin includes its upper bound, as Prometheus' `le` does.
    pub fn add(&mut self, duration: Micros) {
        let over = duration.0.saturating_sub(1) / Durations::FIRST_MICROS;
        let bin = (u64::BITS - over.leading_zeros()) as usize;
        self.bins[bin.min(Durations::BINS - 1)] += 1;
        self.sum_micros = self.sum_micros.saturating_add(duration.0);
        self.longest = self.longest.max(duration);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// All of them together, in seconds.
    pub fn sum_secs(&self) -> f64 {
        self.sum_micros as f64 / 1e6
    }

    /// The longest one.
    pub fn longest(&self) -> Micros {
        self.longest
    }

    /// `(upper bound in seconds, count)` of each bin alone, ascending; the last bound is infinite.
    pub fn bins(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.bins.iter().enumerate().map(|(i, n)| {
            let bound = match i {
                i if i == Durations::BINS - 1 => f64::INFINITY,
                i => (Durations::FIRST_MICROS << i) as f64 / 1e6,
            };
            (bound, *n)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bin_that_holds_it() {
        let bin_of = |micros| {
            let mut d = Durations::default();
            d.add(Micros(micros));
            d.bins().position(|(_, n)| n == 1).unwrap()
        };
        assert_eq!([0, 1, 250, 251, 500, 501, 1000, 1001].map(bin_of), [0, 0, 0, 1, 1, 2, 2, 3]);
        assert_eq!(bin_of(8_192_000), 15);
        assert_eq!(bin_of(8_192_001), 16);
        assert_eq!(bin_of(u64::MAX), 16);
        for (micros, at) in [(250, 0), (8_192_000, 15)] {
            assert_eq!(Durations::default().bins().nth(at).unwrap().0, micros as f64 / 1e6);
        }
    }

    #[test]
    fn sums_and_the_longest_are_kept() {
        let mut d = Durations::default();
        for micros in [3_000, 1_000, 2_000] {
            d.add(Micros(micros));
        }
        assert_eq!((d.count(), d.sum_secs(), d.longest()), (3, 0.006, Micros(3_000)));
        assert_eq!(d.bins().map(|b| b.1).sum::<u64>(), 3);
    }
}
