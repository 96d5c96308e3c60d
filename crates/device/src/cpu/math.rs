//! `exp`, `silu` and `ln`, defined here so that no library decides their bits.

use super::lanes::{LANES, Lanes, Portable};

/// Below this `exp` is 0: results stay normal numbers.
pub const EXP_MIN: f32 = -87.33;
/// Above this `exp` is infinite.
pub const EXP_MAX: f32 = 88.37;

const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// ln 2 in two parts, so that `x - n ln 2` keeps its low bits.
const LN2_HIGH: f32 = 0.693_115_23;
const LN2_LOW: f32 = 3.194_618_3e-5;
/// 1.5 * 2^23: adding it rounds to an integer, ties to even, and leaves it in the low bits.
const SHIFT: f32 = 12_582_912.0;
/// (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, interpolated at the Chebyshev nodes; the relative
/// error of the whole is 1.1e-8, below half a unit in the last place.
const C: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_556, 0.008_363_179, 0.001_392_618_4];

/// e^x in each lane.
///
/// Definition: t = fma(x, log2 e, 1.5 * 2^23); n = t - 1.5 * 2^23; r = fma(n, -LN2_HIGH, x), then
/// fma(n, -LN2_LOW, r); p = C4, then fma(p, r, c) for c = C3, C2, C1, C0, 1, 1; result p * 2^n.
/// 0 below [`EXP_MIN`], infinite above [`EXP_MAX`], NaN for NaN (its payload is not defined);
/// exp(0) is exactly 1.
#[inline(always)]
pub fn exp_lanes<V: Lanes>(x: V) -> V {
    // SAFETY: `x` exists, so its instruction set does.
    let k = |v: f32| unsafe { V::splat(v) };
    let t = x.fma(k(LOG2_E), k(SHIFT));
    let n = t.sub(k(SHIFT));
    let r = n.fma(k(-LN2_HIGH), x);
    let r = n.fma(k(-LN2_LOW), r);
    let mut p = k(C[4]);
    for c in [C[3], C[2], C[1], C[0], 1.0, 1.0] {
        p = p.fma(r, k(c));
    }
    let e = p.mul(t.exp2_of_shifted());
    let e = k(EXP_MAX).select_lt(x, k(f32::INFINITY), e);
    x.select_lt(k(EXP_MIN), k(0.0), e)
}

/// x / (1 + e^-x) in each lane: one `exp`, one add, one division.
#[inline(always)]
pub fn silu_lanes<V: Lanes>(x: V) -> V {
    // SAFETY: `x` exists, so its instruction set does.
    let k = |v: f32| unsafe { V::splat(v) };
    x.div(k(1.0).add(exp_lanes(k(0.0).sub(x))))
}

/// e^x as [`exp_lanes`] defines it.
pub fn exp(x: f32) -> f32 {
    first(exp_lanes::<Portable>, x)
}

/// x / (1 + e^-x) as [`silu_lanes`] defines it.
pub fn silu(x: f32) -> f32 {
    first(silu_lanes::<Portable>, x)
}

fn first(f: impl Fn(Portable) -> Portable, x: f32) -> f32 {
    let mut out = [0.0; LANES];
    // SAFETY: the portable lanes need no instruction set; `out` holds 16 floats.
    unsafe { f(Portable::splat(x)).store(out.as_mut_ptr()) };
    out[0]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::lanes::{Avx2, Avx512};
    use super::{exp_lanes, silu_lanes};
    use core::arch::x86_64::{__m256, __m512};

    /// [`super::exp_lanes`] on eight lanes.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub unsafe fn exp_avx2(x: __m256) -> __m256 {
        exp_lanes(Avx2(x, x)).0
    }

    /// [`super::silu_lanes`] on eight lanes.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub unsafe fn silu_avx2(x: __m256) -> __m256 {
        silu_lanes(Avx2(x, x)).0
    }

    /// [`super::exp_lanes`] on sixteen lanes.
    ///
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    #[inline]
    pub unsafe fn exp_avx512(x: __m512) -> __m512 {
        exp_lanes(Avx512(x)).0
    }

    /// [`super::silu_lanes`] on sixteen lanes.
    ///
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    #[inline]
    pub unsafe fn silu_avx512(x: __m512) -> __m512 {
        silu_lanes(Avx512(x)).0
    }
}
#[cfg(target_arch = "x86_64")]
pub use x86::{exp_avx2, exp_avx512, silu_avx2, silu_avx512};

/// Natural logarithm of a positive normal number, to about 1e-15 relative.
///
/// x = m 2^e with m in [sqrt(1/2), sqrt 2); ln m = 2 atanh(s) with s = (m - 1) / (m + 1), as its
/// series in s^2 to the power 12, Horner with plain (not fused) operations. 0 gives -infinity,
/// infinity itself; below 0 and NaN give NaN.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY {
        return x;
    }
    // A subnormal is scaled into the normal range first.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * (1u64 << 54) as f64, 54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i64 - 1023 - shift;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > core::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut series = 0.0;
    for k in (0..=12).rev() {
        series = series * s2 + 1.0 / (2 * k + 1) as f64;
    }
    e as f64 * core::f64::consts::LN_2 + 2.0 * s * series
}

/// Coefficients of the series of [`ln`], the last power first.
const LN_SERIES: [f64; 13] = {
    let mut series = [0.0; 13];
    let mut k = 0;
    while k < 13 {
        series[12 - k] = 1.0 / (2 * k + 1) as f64;
        k += 1;
    }
    series
};

/// [`ln`] of numbers of 1 to 2, to the bit (a NaN for a NaN): loops that become vectors.
#[inline(always)]
pub fn ln_lanes(x: [f64; LANES]) -> [f64; LANES] {
    let (mut s, mut e) = ([0.0; LANES], [0.0; LANES]);
    for l in 0..LANES {
        let halved = x[l] > core::f64::consts::SQRT_2;
        let m = if halved { x[l] * 0.5 } else { x[l] };
        // A choice of two numbers would become a branch, which a router's logits take at random.
        let all = u64::from(halved).wrapping_neg();
        e[l] = f64::from_bits(core::f64::consts::LN_2.to_bits() & all);
        s[l] = (m - 1.0) / (m + 1.0);
    }
    // The first step from 0 gives the first coefficient.
    let mut series = [LN_SERIES[0]; LANES];
    for c in &LN_SERIES[1..] {
        for l in 0..LANES {
            series[l] = series[l] * (s[l] * s[l]) + c;
        }
    }
    core::array::from_fn(|l| e[l] + 2.0 * s[l] * series[l])
}

#[cfg(test)]
mod tests {
    use super::super::lanes::isas;
    use super::*;

    super::super::lanes::per_isa! {
        unsafe fn both(x: &[f32; LANES], e: &mut [f32; LANES], s: &mut [f32; LANES]) = both_body;
    }

    unsafe fn both_body<V: Lanes>(x: &[f32; LANES], e: &mut [f32; LANES], s: &mut [f32; LANES]) {
        // SAFETY: each array holds 16 floats; the caller's contract gives the instruction set.
        unsafe {
            let v = V::load(x.as_ptr());
            exp_lanes(v).store(e.as_mut_ptr());
            silu_lanes(v).store(s.as_mut_ptr());
        }
    }

    /// All of f32 at a stride that is coprime to every power of two, and the edges.
    fn samples() -> Vec<f32> {
        let mut x: Vec<f32> = (0..u32::MAX / 40_961).map(|i| f32::from_bits(i * 40_961)).collect();
        for edge in [EXP_MIN, EXP_MAX, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for d in [-1, 0, 1] {
                x.push(f32::from_bits(edge.to_bits().wrapping_add_signed(d)));
            }
        }
        x.extend((-90_000..90_000).map(|i| i as f32 * 1e-3));
        while !x.len().is_multiple_of(LANES) {
            x.push(1.0);
        }
        x
    }

    #[test]
    fn every_instruction_set_gives_the_same_exp_and_silu() {
        for isa in isas() {
            for x in samples().chunks_exact(LANES) {
                let (mut e, mut s) = ([0.0; LANES], [0.0; LANES]);
                // SAFETY: `isa` is available.
                unsafe { both(isa, x.try_into().unwrap(), &mut e, &mut s) };
                for l in 0..LANES {
                    let same =
                        |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(same(e[l], exp(x[l])), "exp({}) {isa:?}", x[l]);
                    assert!(same(s[l], silu(x[l])), "silu({}) {isa:?}", x[l]);
                }
            }
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for x in samples() {
            let y = exp(x);
            if x.is_nan() {
                assert!(y.is_nan());
            } else if x < EXP_MIN {
                assert_eq!(y, 0.0);
            } else if x > EXP_MAX {
                assert_eq!(y, f32::INFINITY);
            } else {
                let exact = f64::from(x).exp();
                assert!((f64::from(y) / exact - 1.0).abs() < 1.3e-7, "exp({x}) = {y}, not {exact}");
                assert!(y.is_normal());
            }
        }
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
    }

    #[test]
    fn silu_is_defined_at_the_ends() {
        // -inf / (1 + inf) has no value; a model that gets there is broken and says so.
        assert!(silu(f32::NEG_INFINITY).is_nan() && silu(f32::NAN).is_nan());
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
    }

    #[test]
    fn logarithms_taken_together_are_those_taken_one_by_one() {
        for i in 0..=20_000u32 {
            let x: [f64; LANES] = core::array::from_fn(|l| {
                1.0 + f64::from((i * 16 + l as u32) as f32 / 320_016.0).min(1.0)
            });
            for (x, got) in x.into_iter().zip(ln_lanes(x)) {
                assert_eq!(got.to_bits(), ln(x).to_bits(), "ln({x})");
            }
        }
        assert_eq!(ln_lanes([2.0; LANES]), [ln(2.0); LANES]);
        assert!(ln_lanes([f64::NAN; LANES]).iter().all(|v| v.is_nan()));
    }

    #[test]
    fn ln_agrees_with_the_library() {
        for i in 1..200_000u64 {
            let x = f64::from_bits(i * 46_000_000_000_000);
            if x.is_finite() && x > 0.0 {
                let (a, b) = (ln(x), x.ln());
                assert!((a - b).abs() <= 4e-16 * b.abs().max(1.0), "ln({x}) = {a}, not {b}");
            }
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan());
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
    }
}
