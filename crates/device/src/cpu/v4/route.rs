//! The choice of experts.
//!
//! Definition: s = sqrt(softplus(z)) with softplus(z) = max(z, 0) + ln(1 + exp(-|z|)); the
//! exponential is [`super::super::math::exp`]'s in f32, the sum and logarithm are f64 and rounded
//! to f32 once before the root. Chosen are the greatest s + bias (ties to the lowest expert, a NaN
//! below everything), in that order, or the token's row of a table in its order. Weights are
//! s * scaling / total, the total added in the order of choice.

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::{exp_lanes, ln_lanes};

/// Experts, at most.
pub const EXPERTS_MAX: usize = 1024;
/// Experts of a token, at most.
pub const PER_TOKEN_MAX: usize = 32;

/// Chooses and weighs experts.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Instruction set.
    pub isa: Isa,
    /// Rows, live and padded.
    pub rows: u32,
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub per_token: usize,
    /// What a token's weights add up to.
    pub scaling: f32,
    /// `[rows][experts]`
    pub logits: *const f32,
    /// `[experts]`; null where a table chooses.
    pub bias: *const f32,
    /// `[vocab][per_token]`; null where scores choose.
    pub table: *const u32,
    /// Rows of the table.
    pub vocab: usize,
    /// `[rows]`, with a table.
    pub tokens: *const u32,
    /// `[rows][per_token]`
    pub chosen: *mut u32,
    /// `[rows][per_token]`
    pub weights: *mut f32,
}

// SAFETY: the pointers are followed only by `run`, whose caller vouches for them.
unsafe impl Send for Route {}
// SAFETY: as above.
unsafe impl Sync for Route {}

impl Route {
    /// Chooses for one row.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; sizes are within the limits of
    /// this module; nothing else touches the row's outputs.
    pub unsafe fn run(&self, row: usize) {
        // SAFETY: the caller's contract.
        unsafe { route(self.isa, self, row) }
    }
}

per_isa! {
    unsafe fn route(a: &Route, row: usize) = route_body;
}

#[inline(always)]
unsafe fn route_body<V: Lanes>(a: &Route, row: usize) {
    let (n, k) = (a.experts, a.per_token);
    let mut scores = [0f32; EXPERTS_MAX];
    // SAFETY: the caller's contract.
    unsafe {
        let logits = core::slice::from_raw_parts(a.logits.add(row * n), n);
        for i in (0..n).step_by(LANES) {
            let count = (n - i).min(LANES);
            let mut z = [0f32; LANES];
            z[..count].copy_from_slice(&logits[i..i + count]);
            let mut e = z.map(|z| -z.abs());
            exp_lanes(V::load(e.as_ptr())).store(e.as_mut_ptr());
            let logs = ln_lanes(e.map(|e| 1.0 + f64::from(e)));
            for l in 0..LANES {
                let softplus = f64::from(if z[l] > 0.0 { z[l] } else { 0.0 }) + logs[l];
                e[l] = if z[l].is_nan() { f32::NAN } else { (softplus as f32).sqrt() };
            }
            scores[i..i + count].copy_from_slice(&e[..count]);
        }
        let chosen = core::slice::from_raw_parts_mut(a.chosen.add(row * k), k);
        if a.table.is_null() {
            let bias = core::slice::from_raw_parts(a.bias, n);
            choose(&scores[..n], bias, chosen);
        } else {
            // Keeps the look-up inside the table whatever an unproven plan left there.
            let token = (*a.tokens.add(row) as usize).min(a.vocab - 1);
            chosen.copy_from_slice(core::slice::from_raw_parts(a.table.add(token * k), k));
        }
        let weights = core::slice::from_raw_parts_mut(a.weights.add(row * k), k);
        let total = chosen.iter().fold(0.0, |sum, e| sum + scores[*e as usize]);
        for (w, e) in weights.iter_mut().zip(chosen.iter()) {
            *w = scores[*e as usize] * a.scaling / total;
        }
    }
}

/// The experts with the greatest score plus bias.
fn choose(scores: &[f32], bias: &[f32], chosen: &mut [u32]) {
    let mut taken = [0u64; EXPERTS_MAX / 64];
    for slot in chosen {
        let mut best: Option<(usize, f32)> = None;
        for (e, (s, b)) in scores.iter().zip(bias).enumerate() {
            let v = s + b;
            let better = match best {
                None => true,
                Some((_, most)) => v > most || (most.is_nan() && !v.is_nan()),
            };
            if taken[e / 64] >> (e % 64) & 1 == 0 && better {
                best = Some((e, v));
            }
        }
        let (e, _) = best.expect("a token has no more experts than there are");
        taken[e / 64] |= 1 << (e % 64);
        *slot = e as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_come_by_score_then_number_and_nan_last() {
        let mut chosen = [0; 3];
        choose(&[1.0, 3.0, 3.0, 2.0], &[0.0; 4], &mut chosen);
        assert_eq!(chosen, [1, 2, 3]);
        choose(&[1.0, 3.0, 3.0, 2.0], &[5.0, 0.0, 0.5, 0.0], &mut chosen);
        assert_eq!(chosen, [0, 2, 1]);
        choose(&[f32::NAN, 1.0, f32::NAN, -1.0], &[0.0; 4], &mut chosen);
        assert_eq!(chosen, [1, 3, 0]);
    }
}
