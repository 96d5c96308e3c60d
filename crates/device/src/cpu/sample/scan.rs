//! Passes over a row of logits: the greatest, log-softmax, the best few.

use super::super::lanes::{LANES, Lanes};
use super::super::math::{exp_lanes, ln};
use super::params::SampleResult;
use lockstep_flow::limits::TOP_LOGPROBS_MAX;

/// Tokens whose exponentials are summed in f32 lanes before the sum joins an f64 total.
const SUM_BLOCK: usize = 1024;

/// A row of `n` floats.
#[derive(Clone, Copy)]
pub struct Row {
    pub p: *const f32,
    pub n: usize,
}

impl Row {
    /// Token `i`.
    ///
    /// # Safety
    /// The row is readable and `i < n`.
    #[inline(always)]
    pub unsafe fn at(self, i: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { *self.p.add(i) }
    }

    /// Tokens `i..i + 16`, -infinity past the end.
    ///
    /// # Safety
    /// The instruction set of `V` is available, the row is readable and `i < n`.
    #[inline(always)]
    pub unsafe fn lanes<V: Lanes>(self, i: usize) -> V {
        // SAFETY: the caller's contract; the last, partial vector goes through an array.
        unsafe {
            if i + LANES <= self.n {
                return V::load(self.p.add(i));
            }
            let mut last = [f32::NEG_INFINITY; LANES];
            core::ptr::copy_nonoverlapping(self.p.add(i), last.as_mut_ptr(), self.n - i);
            V::load(last.as_ptr())
        }
    }

    /// The greatest value, NaN where any is NaN, -infinity where there is none.
    ///
    /// # Safety
    /// As [`Row::lanes`].
    #[inline(always)]
    pub unsafe fn greatest<V: Lanes>(self) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            let mut m = [V::splat(f32::NEG_INFINITY); 2];
            let mut nan = 0;
            for i in (0..self.n).step_by(2 * LANES) {
                let v = self.lanes::<V>(i);
                nan |= v.nan_mask();
                m[0] = m[0].max(v);
                if i + LANES < self.n {
                    let v = self.lanes::<V>(i + LANES);
                    nan |= v.nan_mask();
                    m[1] = m[1].max(v);
                }
            }
            if nan == 0 { m[0].max(m[1]).greatest() } else { f32::NAN }
        }
    }

    /// The lowest token whose value is `m`; 0 where there is none.
    ///
    /// # Safety
    /// As [`Row::lanes`]; no value is greater than `m` or NaN.
    #[inline(always)]
    pub unsafe fn first_at<V: Lanes>(self, m: f32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe {
            let m = V::splat(m);
            for i in (0..self.n).step_by(LANES) {
                // Nothing is greater than m, so what m is not greater than equals it.
                let less = m.gt_mask(self.lanes::<V>(i));
                if less != 0xffff {
                    return i as u32 + (!less).trailing_zeros();
                }
            }
            0
        }
    }

    /// ln of the sum of e^(x - m): f32 in sixteen lanes and their tree over blocks of 1,024
    /// tokens, the blocks added in order in f64.
    ///
    /// # Safety
    /// As [`Row::lanes`]; `m` is the greatest value and finite.
    #[inline(always)]
    pub unsafe fn log_sum<V: Lanes>(self, m: f32) -> f64 {
        let mut total = 0f64;
        for block in (0..self.n).step_by(SUM_BLOCK) {
            // SAFETY: the caller's contract.
            unsafe {
                let mut sum = V::splat(0.0);
                for i in (block..self.n.min(block + SUM_BLOCK)).step_by(LANES) {
                    sum = sum.add(exp_lanes(self.lanes::<V>(i).sub(V::splat(m))));
                }
                total += f64::from(sum.sum());
            }
        }
        ln(total)
    }

    /// Fills in the `count` best tokens: value descending, then id ascending.
    ///
    /// # Safety
    /// As [`Row::lanes`]; no value is NaN and `count <= TOP_LOGPROBS_MAX`.
    #[inline(always)]
    pub unsafe fn best<V: Lanes>(self, count: usize, m: f32, log_sum: f64, to: &mut SampleResult) {
        let mut values = [f32::NEG_INFINITY; TOP_LOGPROBS_MAX];
        let mut found = 0;
        if count == 0 {
            return;
        }
        for i in (0..self.n).step_by(LANES) {
            // SAFETY: the caller's contract.
            let mut over = unsafe { self.lanes::<V>(i).gt_mask(V::splat(values[count - 1])) };
            while over != 0 {
                let token = i + over.trailing_zeros() as usize;
                over &= over - 1;
                // SAFETY: lanes past the end are -infinity and over nothing.
                let value = unsafe { self.at(token) };
                if value > values[count - 1] {
                    let place = values[..count].iter().position(|&v| value > v).unwrap_or(0);
                    values.copy_within(place..count - 1, place + 1);
                    to.top_ids.copy_within(place..count - 1, place + 1);
                    values[place] = value;
                    to.top_ids[place] = token as u32;
                    found = count.min(found + 1);
                }
            }
        }
        to.top_ids[found..].fill(0);
        to.top_count = found as u32;
        for (logprob, value) in to.top_logprobs.iter_mut().zip(&values[..found]) {
            *logprob = logprob_of(*value, m, log_sum);
        }
    }
}

/// ln of the probability of a token with logit `x`.
pub fn logprob_of(x: f32, m: f32, log_sum: f64) -> f32 {
    (f64::from(x) - f64::from(m) - log_sum) as f32
}
