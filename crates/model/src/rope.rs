//! RoPE tables: cosines and sines by position.

use lockstep_weights::Rope;

/// The table `[positions][rotary_dim / 2][cos, sin]`.
///
/// Angles are rounded to f32 as Hugging Face's reference does; sine and cosine are taken in f64 by
/// a pure Rust routine, so that the table has the same bits on every machine.
pub fn table(rope: &Rope, positions: u32) -> Vec<f32> {
    let frequencies = rope.inverse_frequencies();
    let scale = f64::from(rope.attention_factor());
    let mut out = Vec::with_capacity(positions as usize * frequencies.len() * 2);
    for position in 0..positions {
        for frequency in &frequencies {
            let (sin, cos) = libm::sincos(f64::from(position as f32 * frequency));
            out.push((cos * scale) as f32);
            out.push((sin * scale) as f32);
        }
    }
    out
}
