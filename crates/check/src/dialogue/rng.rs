//! The generator behind every session: splitmix64.

/// Reproducible draws; the same seed gives the same draws on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 where `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw() >> 32) * u128::from(n)) >> 32) as u64
    }

    /// An index below `n`.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }

    /// A seed of its own for the `n`th part of something that was made from `seed`.
    pub fn derive(seed: u64, n: u64) -> u64 {
        Rng::new(seed ^ n.wrapping_mul(0xD6E8_FEB8_6659_FD93)).draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known values of splitmix64 from the seed 1234567.
    #[test]
    fn draws_are_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.draw(), 6_457_827_717_110_365_317);
        assert_eq!(rng.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
        assert_eq!(Rng::new(1).below(0), 0);
    }
}
