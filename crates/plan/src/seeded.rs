//! Seeded weights: values that follow from a seed and a place alone, for measurements without a
//! checkpoint. Every device makes the same ones, on its own memory.

use crate::mix::mix64;
use half::bf16;

/// Element `index` of a matrix, rounded to bf16: `scale` times a uniform value in -1..1, which is
/// `u / 2^23 - 1` with `u` the top 24 bits of `mix64(seed + (index + 1) * 0x9e3779b97f4a7c15)`.
pub fn seeded(seed: u64, index: u64, scale: f32) -> bf16 {
    let at = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let top = (mix64(seed.wrapping_add(at)) >> 40) as f32;
    bf16::from_f32((top / 8_388_608.0 - 1.0) * scale)
}

/// The seed of a buffer's values: FNV-1a of its name, mixed with the seed of them all.
pub fn seed_of(seed: u64, name: &str) -> u64 {
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    mix64(seed ^ name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

/// A scale at which a product of unit rows with a matrix of `k` columns has unit variance.
pub fn unit_scale(k: u32) -> f32 {
    (3.0 / k as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_spread_evenly_and_follow_from_seed_and_place() {
        let values: Vec<f32> = (0..20_000).map(|i| seeded(7, i, 2.0).to_f32()).collect();
        assert!(values.iter().all(|v| v.abs() <= 2.0));
        let mean = values.iter().sum::<f32>() / 20_000.0;
        let square = values.iter().map(|v| v * v).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.05 && (square - 4.0 / 3.0).abs() < 0.05, "{mean} {square}");
        assert_eq!(seeded(7, 3, 2.0), seeded(7, 3, 2.0));
        assert_ne!(seed_of(1, "a"), seed_of(1, "b"));
        assert_ne!(seed_of(1, "a"), seed_of(2, "a"));
    }
}
