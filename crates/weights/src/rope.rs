//! Rotary position facts, and the frequencies that follow from them.
//!
//! Frequencies are computed with additions, multiplications, divisions and our own root and
//! logarithm in f64, so that they have the same bits wherever the program runs; a platform's
//! `pow` may differ between instruction sets.

use core::f64::consts::PI;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// Elements `2 i` and `2 i + 1`: GGUF files of `llama` architecture, whose q and k rows were
    /// permuted for it when they were converted.
    Adjacent,
    /// Elements `i` and `i + rotary_dim / 2`: Hugging Face checkpoints, and GGUF files of Qwen.
    Half,
}

/// How the frequencies of a longer context follow from the original ones.
#[derive(Clone, PartialEq, Debug)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: u32,
    },
    /// Each frequency divided by its own factor (`rope_freqs.weight` of Llama 3 GGUF files).
    Factors(Vec<f32>),
    /// YaRN (Peng et al. 2023, section 3): interpolated and kept frequencies blended by the
    /// number of turns within the original context.
    Yarn {
        factor: f64,
        original_context: u32,
        beta_fast: f64,
        beta_slow: f64,
        /// Multiplies sin and cos; already includes the default `0.1 ln(factor) + 1`.
        attention_factor: f64,
        /// Round the ends of the blend to whole dimensions.
        truncate: bool,
    },
}

/// Rotary position embedding of one model.
#[derive(Clone, PartialEq, Debug)]
pub struct Rope {
    pub theta: f64,
    pub pairing: Pairing,
    pub scaling: RopeScaling,
    /// Elements at the start of each head that are rotated; the rest stay as they are.
    pub rotary_dim: u32,
}

impl Rope {
    /// Radians a position of each of the `rotary_dim / 2` pairs: the angle of pair `i` at
    /// position `p` is `p * inverse_frequencies()[i]`.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        self.inverse_frequencies_f64().into_iter().map(|f| f as f32).collect()
    }

    /// The same before they are rounded to f32.
    pub fn inverse_frequencies_f64(&self) -> Vec<f64> {
        let pairs = (self.rotary_dim / 2) as usize;
        let step = 1.0 / root(self.theta, self.rotary_dim / 2);
        let mut plain = 1.0;
        let mut out = Vec::with_capacity(pairs);
        for i in 0..pairs {
            out.push(self.scaled(i, plain));
            plain *= step;
        }
        out
    }

    /// Factor on sin and cos: 1 unless the scaling is YaRN.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        }
    }

    fn scaled(&self, i: usize, plain: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Factors(ref factors) => plain / f64::from(factors[i]),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = f64::from(original_context) * plain / (2.0 * PI);
                if turns > high_freq_factor {
                    plain
                } else if turns < low_freq_factor {
                    plain / factor
                } else {
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - kept) * plain / factor + kept * plain
                }
            }
            RopeScaling::Yarn {
                factor, original_context, beta_fast, beta_slow, truncate, ..
            } => {
                let context = f64::from(original_context);
                let (mut low, mut high) = (
                    self.pair_of_turns(beta_fast, context),
                    self.pair_of_turns(beta_slow, context),
                );
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(f64::from(self.rotary_dim - 1)));
                if low == high {
                    high += 0.001; // A step instead of a division by zero.
                }
                let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain / factor * interpolated + plain * (1.0 - interpolated)
            }
        }
    }

    /// The (fractional) pair that makes `turns` full turns within `context` positions.
    fn pair_of_turns(&self, turns: f64, context: f64) -> f64 {
        f64::from(self.rotary_dim) * ln(context / (turns * 2.0 * PI)) / (2.0 * ln(self.theta))
    }
}

impl RopeScaling {
    /// The factor on sin and cos that YaRN recommends for a context that is `factor` times longer.
    pub fn yarn_attention_factor(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * ln(factor) + 1.0 }
    }

    /// Whether every value is finite, positive and in order.
    pub(crate) fn is_sound(&self, rotary_dim: u32) -> bool {
        let positive = |v: f64| v > 0.0 && v < 1e9;
        match *self {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => positive(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive(factor)
                    && positive(low_freq_factor)
                    && positive(high_freq_factor)
                    && low_freq_factor < high_freq_factor
                    && original_context > 0
            }
            RopeScaling::Factors(ref f) => {
                f.len() == (rotary_dim / 2) as usize && f.iter().all(|&v| positive(v.into()))
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
                ..
            } => {
                positive(factor)
                    && positive(beta_fast)
                    && positive(beta_slow)
                    && beta_slow <= beta_fast
                    && positive(attention_factor)
                    && original_context > 0
            }
        }
    }
}

/// `value` to the power `1 / n`, for `value > 1`: `exp(ln(value) / n)`, then two steps of Newton's
/// method for the last bits.
fn root(value: f64, n: u32) -> f64 {
    let (mut t, mut squarings) = (ln(value) / f64::from(n), 0);
    while t > 0.25 {
        (t, squarings) = (t * 0.5, squarings + 1);
    }
    let series = (1..=14).rev().fold(1.0, |sum, k| 1.0 + sum * t / f64::from(k));
    let mut x = (0..squarings).fold(series, |x, _| x * x);
    for _ in 0..2 {
        let lower = (1..n).fold(1.0, |power, _| power * x);
        x -= (x * lower - value) / (f64::from(n) * lower);
    }
    x
}

/// Natural logarithm of a positive, finite number: halvings to `[0.75, 1.5)`, then
/// `2 atanh((m - 1) / (m + 1))`.
fn ln(value: f64) -> f64 {
    let (mut m, mut halvings) = (value, 0i32);
    while m >= 1.5 {
        (m, halvings) = (m * 0.5, halvings + 1);
    }
    while m < 0.75 {
        (m, halvings) = (m * 2.0, halvings - 1);
    }
    let t = (m - 1.0) / (m + 1.0);
    let mut sum = 0.0;
    for k in (0..20).rev() {
        sum = sum * t * t + 1.0 / f64::from(2 * k + 1);
    }
    f64::from(halvings) * core::f64::consts::LN_2 + 2.0 * t * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_ln_agree_with_the_platform() {
        for theta in [1.0001, 1.5, 1e4, 1e5, 5e5, 1e6, 1e18] {
            for n in [1, 2, 8, 16, 32, 64, 128, 512] {
                let (got, want) = (root(theta, n), theta.powf(1.0 / f64::from(n)));
                assert!((got / want - 1.0).abs() < 1e-14, "root {n} of {theta}: {got} {want}");
            }
        }
        for v in [1e-9, 0.5, 0.75, 1.0, 1.4999, 1.5, 4.0, 40.0, 1e6, 1e18] {
            assert!((ln(v) - v.ln()).abs() < 1e-14 * v.ln().abs().max(1.0), "ln {v}");
        }
    }

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { theta: 1e4, pairing: Pairing::Half, scaling, rotary_dim: 64 }
    }

    #[test]
    fn plain_frequencies_are_powers_of_theta() {
        let got = rope(RopeScaling::None).inverse_frequencies();
        assert_eq!((got.len(), got[0]), (32, 1.0));
        for (i, &g) in got.iter().enumerate() {
            let want = 1e4f64.powf(-(i as f64) / 32.0);
            assert!((f64::from(g) / want - 1.0).abs() < 1e-7, "pair {i}");
        }
        let half = rope(RopeScaling::Linear { factor: 4.0 }).inverse_frequencies();
        assert!(half.iter().zip(&got).all(|(h, g)| h * 4.0 == *g));
    }

    #[test]
    fn unsound_scalings_are_named() {
        assert!(!RopeScaling::Linear { factor: f64::NAN }.is_sound(64));
        assert!(!RopeScaling::Factors(vec![1.0; 31]).is_sound(64));
        assert!(!RopeScaling::Factors(vec![0.0; 32]).is_sound(64));
        let llama3 = |low, high| RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: 8192,
        };
        assert!(llama3(1.0, 4.0).is_sound(64));
        assert!(!llama3(4.0, 4.0).is_sound(64));
    }
}
