//! RoPE tables: cosines and sines by position.

use lockstep_weights::Rope;

/// The table `[positions][rotary_dim / 2][cos, sin]`, of angles rounded to f32.
///
/// Hugging Face's reference rounds frequencies and angles so. Sine and cosine are taken in f64 by a
/// pure Rust routine, so that the table has the same bits on every machine.
pub fn table(rope: &Rope, positions: u32) -> Vec<f32> {
    let frequencies = rope.inverse_frequencies();
    let angle = |position: u32, i: usize| f64::from(position as f32 * frequencies[i]);
    entries(rope, positions, angle)
}

/// The same table, of angles in f64.
///
/// The error of an angle in f32 grows with the position: of 1,500 radians it is up to 6e-5, far more
/// than f32 costs anywhere else in a step.
pub fn exact_table(rope: &Rope, positions: u32) -> Vec<f32> {
    let frequencies = rope.inverse_frequencies_f64();
    entries(rope, positions, |position, i| f64::from(position) * frequencies[i])
}

fn entries(rope: &Rope, positions: u32, angle: impl Fn(u32, usize) -> f64) -> Vec<f32> {
    let scale = f64::from(rope.attention_factor());
    let pairs = rope.rotary_dim as usize / 2;
    let mut out = Vec::with_capacity(positions as usize * pairs * 2);
    for position in 0..positions {
        for i in 0..pairs {
            let (sin, cos) = libm::sincos(angle(position, i));
            out.push((cos * scale) as f32);
            out.push((sin * scale) as f32);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_weights::{Pairing, RopeScaling};

    /// The recall model's logits were 6.9e-4 from its references at position 1,500, ten times as far
    /// as at 150: angles were rounded to f32.
    #[test]
    fn exact_angles_are_not_rounded_to_f32() {
        let rope = Rope {
            theta: 160_000.0,
            pairing: Pairing::Adjacent,
            scaling: RopeScaling::None,
            rotary_dim: 64,
        };
        let worst = |table: &[f32]| {
            let at = |position: usize, i: usize| {
                let angle = position as f64 * 160_000f64.powf(-(i as f64) / 32.0);
                let entry = &table[(position * 32 + i) * 2..][..2];
                (f64::from(entry[0]) - angle.cos())
                    .abs()
                    .max((f64::from(entry[1]) - angle.sin()).abs())
            };
            let all = (0..4000).flat_map(|position| (0..32).map(move |i| (position, i)));
            all.map(|(position, i)| at(position, i)).fold(0f64, f64::max)
        };
        let (exact, rounded) = (worst(&exact_table(&rope, 4000)), worst(&table(&rope, 4000)));
        assert!(exact < 4e-8, "{exact:e}");
        assert!(rounded > 5e-5, "{rounded:e}: what the other table costs");
    }
}
