//! Sixteen virtual float lanes: the scalar definition that every instruction set reproduces.
//!
//! A kernel written once over [`Lanes`] gives the same bits on every path, because each method is
//! an IEEE operation on each lane and the two reductions use one stated tree. What is *not* here
//! (estimates, horizontal adds in another order, flush-to-zero) cannot be used by accident.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod part;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use part::{Part, Whole};
pub use portable::Portable;

use super::isa::Isa;

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Sixteen f32 values.
///
/// A value of an implementing type exists only where its instruction set does: the functions that
/// make one from nothing are unsafe, and methods on a value rely on that.
pub trait Lanes: Copy {
    /// The instruction set.
    const ISA: Isa;
    /// Query vectors that attention holds in registers at once; shapes speed, not bits.
    const TILE: usize;
    /// What one register holds.
    type Part: Part;

    /// All lanes `v`.
    ///
    /// # Safety
    /// The CPU has the instruction set of the implementing type.
    unsafe fn splat(v: f32) -> Self;

    /// Lane `l` is `p[l]`; no alignment is needed.
    ///
    /// # Safety
    /// As [`Lanes::splat`], and `p` is readable for 16 floats.
    unsafe fn load(p: *const f32) -> Self;

    /// Lane `l` is `p[l]` where `l < n`, else 0; `n <= 16`.
    ///
    /// # Safety
    /// As [`Lanes::splat`], and `p` is readable for `n` floats.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;

    /// Lane `l` is the half-precision number `p[l]`, exactly.
    ///
    /// # Safety
    /// As [`Lanes::splat`], and `p` is readable for 16 half-precision numbers.
    unsafe fn load_f16(p: *const u16) -> Self;

    /// Writes lane `l` to `p[l]`.
    ///
    /// # Safety
    /// `p` is writable for 16 floats.
    unsafe fn store(self, p: *mut f32);

    /// Writes lane `l` to `p[l]` where `l < n`; `n <= 16`.
    ///
    /// # Safety
    /// `p` is writable for `n` floats.
    unsafe fn store_part(self, p: *mut f32, n: usize);

    /// Writes lane `l` to `p[l]` in half precision, rounded to nearest even.
    ///
    /// # Safety
    /// `p` is writable for 16 half-precision numbers.
    unsafe fn store_f16(self, p: *mut u16);

    /// Writes lane `l` to `p[l]` as the nearest integer, ties to even.
    /// Lanes are in `0..=2^30`.
    ///
    /// # Safety
    /// `p` is writable for 16 integers.
    unsafe fn store_rounded(self, p: *mut u32);

    /// Asks for the cache line at `p`, which need not be readable.
    fn prefetch<T>(p: *const T);

    /// As [`Lanes::prefetch`], but only as near as the second cache.
    fn fetch<T>(p: *const T);

    /// `self + o`
    fn add(self, o: Self) -> Self;
    /// `self - o`
    fn sub(self, o: Self) -> Self;
    /// `self * o`
    fn mul(self, o: Self) -> Self;
    /// `self / o`
    fn div(self, o: Self) -> Self;
    /// `self * b + c` with one rounding.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > o { self } else { o }`: the second operand where either is NaN.
    fn max(self, o: Self) -> Self;
    /// `if self < bound { yes } else { no }`: `no` where either is NaN.
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self;
    /// The float whose bits are `(bits(self) + 127) << 23`, modulo 2^32: 2^n where `self` is
    /// n + 1.5 * 2^23 with n in -126..=127.
    fn exp2_of_shifted(self) -> Self;
    /// The one quiet NaN of [`f32::NAN`] where a lane is NaN: which payload survives an operation
    /// is the only thing that instruction sets disagree on, so stored results have this one.
    fn quiet(self) -> Self;
    /// Lane `l` is lane `l ^ 1`.
    fn swap_pairs(self) -> Self;
    /// Lane `l` is lane `l & !1`.
    fn even_twice(self) -> Self;
    /// Lane `l` is lane `l | 1`.
    fn odd_twice(self) -> Self;
    /// Lane `l` is lane `l / 4 * 4 + k`, `k < 4`: an entry of each row of a matrix of four.
    fn entry_of_rows(self, k: usize) -> Self;
    /// Lane `l` is lane `4 k + l % 4`, `k < 4`: a row of a matrix of four, four times.
    fn row_of_four(self, k: usize) -> Self;
    /// Bit `l` is 1 where lane `l > o`.
    fn gt_mask(self, o: Self) -> u32;
    /// Bit `l` is 1 where lane `l` is NaN.
    fn nan_mask(self) -> u32;
    /// The sum of the lanes: lane l plus lane l+8, then l plus l+4, l plus l+2, l plus l+1.
    fn sum(self) -> f32;
    /// Lane `l` is the [`Lanes::sum`] of `v[l]`.
    #[inline(always)]
    fn sum_each(v: &[Self; LANES]) -> Self {
        let mut sums = [0f32; LANES];
        for (sum, v) in sums.iter_mut().zip(v) {
            *sum = v.sum();
        }
        // SAFETY: values exist, so their instruction set does; there are 16 floats.
        unsafe { Self::load(sums.as_ptr()) }
    }
    /// The [`Lanes::sum`] of each.
    #[inline(always)]
    fn sum_four(v: [Self; 4]) -> [f32; 4] {
        [v[0].sum(), v[1].sum(), v[2].sum(), v[3].sum()]
    }
    /// Lane `l` of the result's `m` is lane `m` of `v[l]`.
    #[inline(always)]
    fn transpose(v: &[Self; LANES]) -> [Self; LANES] {
        let (mut from, mut to) = ([0f32; LANES * LANES], [0f32; LANES * LANES]);
        // SAFETY: values exist, so their instruction set does; each row has 16 floats.
        unsafe {
            for (l, v) in v.iter().enumerate() {
                v.store(from.as_mut_ptr().add(l * LANES));
            }
            for (i, to) in to.iter_mut().enumerate() {
                *to = from[i % LANES * LANES + i / LANES];
            }
            core::array::from_fn(|m| Self::load(to.as_ptr().add(m * LANES)))
        }
    }
    /// The greatest lane, by the same tree of [`Lanes::max`] (lower lanes are the first operand).
    fn greatest(self) -> f32;
}

/// Asks for the line at `p`, which need not be there, to be written: where nothing has them near,
/// lines that are written one after the other otherwise come one after the other.
#[inline(always)]
pub fn expect<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and is no operation where the CPU does not have it.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// [`expect`] of all lines of a row.
#[inline(always)]
pub fn expect_row(row: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        expect(row.wrapping_add(line));
    }
}

/// Defines `unsafe fn $name(isa, args..)`, which runs `$body::<V>(args..)` compiled for the
/// instruction set that `isa` names.
///
/// # Safety
/// The generated function needs `isa.is_available()` and what `$body` needs.
#[allow(unused_macros)]
macro_rules! per_isa {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
        = $body:ident $(;)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(isa: $crate::cpu::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract is the body's, and the features are on.
                unsafe { $body::<$crate::cpu::lanes::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract is the body's, and the features are on.
                unsafe { $body::<$crate::cpu::lanes::Avx2>($($arg),*) }
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller says that the CPU has the features.
                $crate::cpu::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller says that the CPU has the features.
                $crate::cpu::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: the caller's contract is the body's; no feature is needed.
                _ => unsafe { $body::<$crate::cpu::lanes::Portable>($($arg),*) },
            }
        }
    };
}
#[allow(unused_imports)]
pub(crate) use per_isa;

#[cfg(test)]
pub(crate) fn isas() -> Vec<super::isa::Isa> {
    super::isa::Isa::available().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    per_isa! {
        unsafe fn sums(from: &[f32], each: &mut [f32], four: &mut [f32], one: &mut [f32]) = sums_body;
    }

    #[inline(always)]
    unsafe fn sums_body<V: Lanes>(
        from: &[f32],
        each: &mut [f32],
        four: &mut [f32],
        one: &mut [f32],
    ) {
        // SAFETY: the slices have 256 and 16 floats.
        unsafe {
            let mut v = [V::splat(0.0); LANES];
            for (l, v) in v.iter_mut().enumerate() {
                *v = V::load(from.as_ptr().add(l * LANES));
                one[l] = v.sum();
            }
            V::sum_each(&v).store(each.as_mut_ptr());
            for (four, v) in four.chunks_exact_mut(4).zip(v.chunks_exact(4)) {
                four.copy_from_slice(&V::sum_four([v[0], v[1], v[2], v[3]]));
            }
        }
    }

    per_isa! {
        unsafe fn turned(from: &[f32], to: &mut [f32]) = turned_body;
    }

    #[inline(always)]
    unsafe fn turned_body<V: Lanes>(from: &[f32], to: &mut [f32]) {
        // SAFETY: the slices have 256 floats.
        unsafe {
            let v = core::array::from_fn(|l| V::load(from.as_ptr().add(l * LANES)));
            for (m, v) in V::transpose(&v).into_iter().enumerate() {
                v.store(to.as_mut_ptr().add(m * LANES));
            }
        }
    }

    #[test]
    fn rows_become_columns() {
        let from: Vec<f32> = (0..256).map(|i| i as f32).collect();
        for isa in isas() {
            let mut to = vec![0f32; 256];
            // SAFETY: the instruction set is there.
            unsafe { turned(isa, &from, &mut to) };
            for (i, v) in to.iter().enumerate() {
                assert_eq!(*v, from[i % 16 * 16 + i / 16], "{isa}");
            }
        }
    }

    #[test]
    fn sums_taken_together_are_those_taken_one_by_one() {
        // Of all sizes, so that another order of adding gives other bits.
        let from: Vec<f32> = (0..256u32)
            .map(|i| {
                let bits = i.wrapping_mul(0x9e37_79b9) >> 8;
                (bits as f32 - 8e6) * 2f32.powi((i % 23) as i32 - 11)
            })
            .collect();
        for isa in isas() {
            let [mut each, mut four, mut one] = [const { [0f32; LANES] }; 3];
            // SAFETY: the instruction set is there.
            unsafe { sums(isa, &from, &mut each, &mut four, &mut one) };
            assert_eq!(each, one, "{isa}");
            assert_eq!(four, one, "{isa}");
            assert!(one.iter().all(|v| *v != 0.0));
        }
    }
}
