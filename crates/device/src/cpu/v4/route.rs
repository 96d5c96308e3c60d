//! The choice of experts.
//!
//! Definition: s = sqrt(softplus(z)) with softplus(z) = max(z, 0) + ln(1 + exp(-|z|)); the
//! exponential is [`super::super::math::exp`]'s in f32, the sum and logarithm are f64 and rounded
//! to f32 once before the root. Chosen are the greatest s + bias (ties to the lowest expert, a NaN
//! below everything), in that order, or the token's row of a table in its order. Weights are
//! s * scaling / total, the total added in the order of choice.

use core::mem::MaybeUninit;

use super::super::isa::Isa;
use super::super::lanes::{LANES, Lanes, per_isa};
use super::super::math::{exp_lanes, ln_lanes};
use super::SharedRows;

/// Experts, at most.
pub const EXPERTS_MAX: usize = 1024;
/// Experts of a token, at most.
pub const PER_TOKEN_MAX: usize = 32;
/// Rows of a task, at most, which share vectors where experts are few; shapes speed, not bits.
const ROWS_MAX: usize = LANES;
/// Rows whose choices are worth a lane each.
const TOGETHER: usize = 4;

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
    /// Rows of a task, of which there is room for all scores.
    fn shared(&self) -> SharedRows {
        let most = (EXPERTS_MAX / self.experts).clamp(1, ROWS_MAX);
        SharedRows { rows: self.rows, most: most as u32 }
    }

    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        self.shared().tasks()
    }

    /// Chooses for the rows of one task, but for those from `live_rows` on.
    ///
    /// # Safety
    /// `isa` is available; addresses hold what their fields say; sizes are within the limits of
    /// this module; nothing else touches the rows' outputs.
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        let rows = self.shared().of(task, live_rows);
        if !rows.is_empty() {
            // SAFETY: the caller's contract.
            unsafe { route(self.isa, self, rows.start, rows.end) }
        }
    }
}

per_isa! {
    unsafe fn route(a: &Route, first: usize, end: usize) = route_body;
}

#[inline(always)]
unsafe fn route_body<V: Lanes>(a: &Route, first: usize, end: usize) {
    let (n, k) = (a.experts, a.per_token);
    let mut scores = [const { MaybeUninit::<f32>::uninit() }; EXPERTS_MAX];
    // SAFETY: the caller's contract; a task has no more scores than there is room for.
    unsafe {
        // Rows of logits follow each other, and a score depends on nothing but its logit.
        let logits = core::slice::from_raw_parts(a.logits.add(first * n), (end - first) * n);
        assert!(logits.len() <= EXPERTS_MAX, "a task has room for its scores");
        score::<V>(logits, scores.as_mut_ptr().cast());
        let scores = core::slice::from_raw_parts(scores.as_ptr().cast::<f32>(), logits.len());
        let chosen = core::slice::from_raw_parts_mut(a.chosen.add(first * k), (end - first) * k);
        if a.table.is_null() {
            let bias = core::slice::from_raw_parts(a.bias, n);
            if end - first < TOGETHER || !choose_together::<V>(scores, bias, chosen) {
                for (scores, chosen) in scores.chunks_exact(n).zip(chosen.chunks_exact_mut(k)) {
                    choose(scores, bias, chosen);
                }
            }
        } else {
            for (row, chosen) in (first..end).zip(chosen.chunks_exact_mut(k)) {
                // Keeps the look-up inside the table whatever an unproven plan left there.
                let token = (*a.tokens.add(row) as usize).min(a.vocab - 1);
                chosen.copy_from_slice(core::slice::from_raw_parts(a.table.add(token * k), k));
            }
        }
        let weights = core::slice::from_raw_parts_mut(a.weights.add(first * k), chosen.len());
        let rows = scores.chunks_exact(n).zip(chosen.chunks_exact(k));
        for ((scores, chosen), weights) in rows.zip(weights.chunks_exact_mut(k)) {
            let total = chosen.iter().fold(0.0, |sum, e| sum + scores[*e as usize]);
            for (w, e) in weights.iter_mut().zip(chosen.iter()) {
                *w = scores[*e as usize] * a.scaling / total;
            }
        }
    }
}

/// The root of each softplus.
///
/// # Safety
/// The instruction set of `V` is available; `to` has room for as many values.
#[inline(always)]
unsafe fn score<V: Lanes>(logits: &[f32], to: *mut f32) {
    for (i, some) in logits.chunks(LANES).enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let z = V::load_part(some.as_ptr(), some.len());
            let zero = V::splat(0.0);
            let (mut e, mut above) = ([0f32; LANES], [0f32; LANES]);
            let away = z.select_lt(zero, z, zero.sub(z));
            exp_lanes(away).store(e.as_mut_ptr());
            z.max(zero).store(above.as_mut_ptr());
            // Loops that become vectors: nothing in them branches.
            let logs = ln_lanes(e.map(|e| 1.0 + f64::from(e)));
            for l in 0..LANES {
                e[l] = ((f64::from(above[l]) + logs[l]) as f32).sqrt();
            }
            V::load(e.as_ptr()).quiet().store_part(to.add(i * LANES), some.len());
        }
    }
}

/// The choices of up to sixteen rows, a lane each. False, and nothing is chosen, where a value is a
/// NaN or as low as nothing: vectors do not tell these from places that nothing has taken.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn choose_together<V: Lanes>(scores: &[f32], bias: &[f32], chosen: &mut [u32]) -> bool {
    let n = bias.len();
    let rows = scores.len() / n;
    let k = chosen.len() / rows;
    assert!(k <= n, "a token has no more experts than there are");
    // SAFETY: the caller has the instruction set; parts are inside the slices.
    unsafe {
        let (lowest, none) = (V::splat(f32::NEG_INFINITY), V::splat(0.0));
        let mut best = [(lowest, none); PER_TOKEN_MAX];
        let best = &mut best[..k];
        for first in (0..n).step_by(LANES) {
            let count = (n - first).min(LANES);
            let bias = V::load_part(bias.as_ptr().add(first), count);
            let mut values = [none; LANES];
            for (row, values) in values.iter_mut().enumerate().take(rows) {
                *values = V::load_part(scores.as_ptr().add(row * n + first), count).add(bias);
            }
            let values = V::transpose(&values);
            for (i, value) in values.into_iter().enumerate().take(count) {
                if value.gt_mask(lowest) != (1 << LANES) - 1 {
                    return false;
                }
                take(best, value, V::splat((first + i) as f32));
            }
        }
        for (slot, (_, expert)) in best.iter().enumerate() {
            let mut experts = [0f32; LANES];
            expert.store(experts.as_mut_ptr());
            for (chosen, expert) in chosen.iter_mut().skip(slot).step_by(k).zip(experts) {
                *chosen = expert as u32;
            }
        }
    }
    true
}

/// Puts a value in its place among the greatest, behind those that are the same.
#[inline(always)]
fn take<V: Lanes>(best: &mut [(V, V)], value: V, expert: V) {
    for slot in (0..best.len()).rev() {
        let (most, who) = best[slot];
        let mut new = (most.select_lt(value, value, most), most.select_lt(value, expert, who));
        if slot > 0 {
            // One that is above the place before too pushes that one here.
            let (before, was) = best[slot - 1];
            new = (before.select_lt(value, before, new.0), before.select_lt(value, was, new.1));
        }
        best[slot] = new;
    }
}

/// The experts with the greatest score plus bias.
#[inline(always)]
fn choose(scores: &[f32], bias: &[f32], chosen: &mut [u32]) {
    // The greatest key below the last one: nothing is marked, so that a pass is vectors.
    let mut last = i64::MAX;
    for slot in chosen {
        let keys = scores.iter().zip(bias).enumerate().map(|(e, (s, b))| key(s + b, e as u32));
        last = keys.fold(i64::MIN, |most, key| if key < last && key > most { key } else { most });
        assert!(last > i64::MIN, "a token has no more experts than there are");
        *slot = !(last as u32);
    }
}

/// A number that is greater for a greater value (a NaN being below everything) or, where values are
/// the same, for a lower expert.
#[inline(always)]
fn key(value: f32, expert: u32) -> i64 {
    // Both zeros have the bits of one.
    let bits = (value + 0.0).to_bits() as i32;
    let ordered = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    let ordered = if value.is_nan() { i32::MIN } else { ordered };
    i64::from(ordered) << 32 | i64::from(!expert)
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::isas;
    use super::super::super::math::{exp, ln};
    use super::super::tests::noise;
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

    /// One after the other, as the definition has it.
    fn chosen_one_by_one(scores: &[f32], bias: &[f32], count: usize) -> Vec<u32> {
        let mut chosen: Vec<u32> = Vec::new();
        for _ in 0..count {
            let left = (0..scores.len()).filter(|e| !chosen.contains(&(*e as u32)));
            let better = |a: f32, b: f32| a > b || b.is_nan() && !a.is_nan();
            let value = |e: usize| scores[e] + bias[e];
            let best = left.reduce(|m, e| if better(value(e), value(m)) { e } else { m });
            chosen.push(best.unwrap() as u32);
        }
        chosen
    }

    #[test]
    fn keys_choose_what_comparing_one_by_one_does() {
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-45, -1e-45];
        for seed in 1..400 {
            let n = seed as usize % 70 + 1;
            let mut scores = noise(n, seed);
            let mut bias = noise(n, seed + 1000);
            for (i, v) in noise(n, seed + 2000).into_iter().enumerate() {
                let place = (v.abs() * 24.0) as usize;
                scores[i] = odd.get(place).copied().unwrap_or((4.0 * scores[i]).round());
                bias[i] = if place.is_multiple_of(2) { -0.0 } else { bias[i].round() };
            }
            let mut chosen = vec![0; n.min(PER_TOKEN_MAX)];
            choose(&scores, &bias, &mut chosen);
            assert_eq!(chosen, chosen_one_by_one(&scores, &bias, chosen.len()), "{scores:?}");
        }
    }

    /// Logits of eighty rows, one of them with a NaN, and the bias of each expert.
    fn given(experts: usize) -> (Vec<f32>, Vec<f32>) {
        let mut logits = noise(80 * experts, 7);
        logits.iter_mut().for_each(|z| *z *= 12.0);
        logits[experts / 2] = f32::NAN;
        logits[experts] = f32::INFINITY;
        // Scores of nothing, and biases that four experts share: values that are the same.
        for row in logits.chunks_exact_mut(experts).skip(24).step_by(3) {
            row.iter_mut().step_by(2).for_each(|z| *z = -200.0);
        }
        let mut bias = noise(experts, 8);
        bias.chunks_mut(4).for_each(|some| some.fill(some[0]));
        (logits, bias)
    }

    /// Choices and weights of the first `live` rows of a bucket of `rows`.
    fn routed(
        isa: Isa,
        (experts, per_token): (usize, usize),
        rows: usize,
        live: usize,
    ) -> [Vec<u32>; 2] {
        let (logits, bias) = given(experts);
        let mut chosen = vec![u32::MAX; rows * per_token];
        let mut weights = vec![f32::NAN; rows * per_token];
        let op = Route {
            isa,
            rows: rows as u32,
            experts,
            per_token,
            scaling: 2.5,
            logits: logits.as_ptr(),
            bias: bias.as_ptr(),
            table: core::ptr::null(),
            vocab: 0,
            tokens: core::ptr::null(),
            chosen: chosen.as_mut_ptr(),
            weights: weights.as_mut_ptr(),
        };
        for task in 0..op.tasks() {
            // SAFETY: the vectors have the rows that the fields name.
            unsafe { op.run(task, live as u32) };
        }
        let bits = weights.into_iter().map(|w| if w.is_nan() { 1 } else { w.to_bits() });
        [chosen, bits.collect()]
    }

    /// The definition of a row, in scalar code that shares nothing with the kernel but `exp` and
    /// `ln`.
    fn defined(logits: &[f32], bias: &[f32], per_token: usize) -> (Vec<u32>, Vec<u32>) {
        let score = |z: &f32| {
            let log = ln(1.0 + f64::from(exp(-z.abs())));
            ((f64::from(z.max(0.0)) + log) as f32).sqrt()
        };
        let scores: Vec<f32> =
            logits.iter().map(|z| if z.is_nan() { f32::NAN } else { score(z) }).collect();
        let chosen = chosen_one_by_one(&scores, bias, per_token);
        let total = chosen.iter().fold(0.0, |sum, e| sum + scores[*e as usize]);
        let weight = |e: &u32| scores[*e as usize] * 2.5 / total;
        let bits = |w: f32| if w.is_nan() { 1 } else { w.to_bits() };
        let weights = chosen.iter().map(|e| bits(weight(e))).collect();
        (chosen, weights)
    }

    #[test]
    fn rows_that_share_vectors_have_the_bits_of_the_definition() {
        for shape in [(8, 2), (3, 1), (16, 6), (40, 8), (256, 6), (1024, 32)] {
            let (experts, per_token) = shape;
            let (logits, bias) = given(experts);
            for isa in isas() {
                for (rows, live) in [(1, 1), (2, 2), (7, 5), (8, 8), (33, 33), (80, 71)] {
                    let [chosen, weights] = routed(isa, shape, rows, live);
                    for row in 0..live {
                        let of = row * per_token..(row + 1) * per_token;
                        let want = defined(&logits[row * experts..][..experts], &bias, per_token);
                        let got = (chosen[of.clone()].to_vec(), weights[of].to_vec());
                        assert_eq!(got, want, "{isa}, {shape:?}, row {row} of {rows}");
                    }
                    let padded = &chosen[live * per_token..];
                    assert!(padded.iter().all(|e| *e == u32::MAX), "{isa}: a padded row");
                }
            }
        }
    }
}
