//! Seeded numbers, so that a run's prompts, lengths and arrivals can be had again.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// From a seed and a stream of it: streams do not overlap in practice.
    pub fn new(seed: u64, stream: u64) -> Seeded {
        let mut mixed = Seeded(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        mixed.next();
        mixed
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..high`; `low` where the range is empty.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low).max(1));
        low + (((self.next() >> 32) * span) >> 32) as u32
    }

    /// Above 0, at most 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1: the gap between Poisson arrivals.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// Normally distributed, mean 0, deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (core::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right_and_seeds_repeat() {
        let mut r = Seeded::new(7, 1);
        let n = 20_000;
        let gaps: f64 = (0..n).map(|_| r.exponential()).sum::<f64>() / f64::from(n);
        let normals: Vec<f64> = (0..n).map(|_| r.normal()).collect();
        let mean = normals.iter().sum::<f64>() / f64::from(n);
        let square = normals.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!((gaps - 1.0).abs() < 0.03 && mean.abs() < 0.03 && (square - 1.0).abs() < 0.05);
        assert!((0..1000).all(|_| (3..9).contains(&r.within(3, 9))));
        assert_eq!(Seeded::new(7, 1).next(), Seeded::new(7, 1).next());
        assert_ne!(Seeded::new(7, 1).next(), Seeded::new(7, 2).next());
    }
}
