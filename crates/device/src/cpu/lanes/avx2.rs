//! The lanes as two AVX2 registers.

use super::super::isa::Isa;
use super::{Lanes, Part};
use core::arch::x86_64::*;

/// Sixteen floats, lanes 0 to 7 and 8 to 15. Exists only where AVX2, FMA and F16C do.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(pub __m256, pub __m256);

macro_rules! lanewise {
    ($($name:ident = $intrinsic:ident($($arg:ident),*);)*) => {
        $(#[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: the value exists, so the CPU has AVX2 and FMA.
            unsafe { Avx2($intrinsic(self.0, $($arg.0),*), $intrinsic(self.1, $($arg.1),*)) }
        })*
    };
}

impl Lanes for Avx2 {
    const ISA: Isa = Isa::Avx2;
    const TILE: usize = 3;
    type Part = Half;

    lanewise! {
        add = _mm256_add_ps(o);
        sub = _mm256_sub_ps(o);
        mul = _mm256_mul_ps(o);
        div = _mm256_div_ps(o);
        fma = _mm256_fmadd_ps(b, c);
        max = _mm256_max_ps(o);
    }

    #[inline(always)]
    fn prefetch<T>(p: *const T) {
        // SAFETY: SSE is part of x86-64, and a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    fn fetch<T>(p: *const T) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: the caller says that the CPU has AVX2.
        unsafe { Avx2(_mm256_set1_ps(v), _mm256_set1_ps(v)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as above, and 16 floats are readable.
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        // SAFETY: as above; lanes that a mask leaves out are not read, and the second pointer is
        // only formed, never followed, where no lane of it is left.
        unsafe {
            Avx2(
                _mm256_maskload_ps(p, first(n)),
                _mm256_maskload_ps(p.wrapping_add(8), first(n.saturating_sub(8))),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: as above, and 16 numbers are readable.
        unsafe {
            Avx2(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 floats are writable.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as in `load_part`, for writes.
        unsafe {
            _mm256_maskstore_ps(p, first(n), self.0);
            _mm256_maskstore_ps(p.wrapping_add(8), first(n.saturating_sub(8)), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: 16 numbers are writable.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(self.1));
        }
    }

    #[inline(always)]
    unsafe fn store_rounded(self, p: *mut u32) {
        // SAFETY: 16 integers are writable; the default rounding mode is nearest even.
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm256_cvtps_epi32(self.0));
            _mm256_storeu_si256(p.add(8).cast(), _mm256_cvtps_epi32(self.1));
        }
    }

    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let lo = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0);
            let hi = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, bound.1);
            Avx2(_mm256_blendv_ps(no.0, yes.0, lo), _mm256_blendv_ps(no.1, yes.1, hi))
        }
    }

    #[inline(always)]
    fn exp2_of_shifted(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe { Avx2(exp2_of_shifted(self.0), exp2_of_shifted(self.1)) }
    }

    #[inline(always)]
    fn quiet(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let nan = _mm256_set1_ps(f32::NAN);
            let lo = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            let hi = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1);
            Avx2(_mm256_blendv_ps(self.0, nan, lo), _mm256_blendv_ps(self.1, nan, hi))
        }
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            Avx2(
                _mm256_permute_ps::<0b10_11_00_01>(self.0),
                _mm256_permute_ps::<0b10_11_00_01>(self.1),
            )
        }
    }

    #[inline(always)]
    fn even_twice(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe { Avx2(_mm256_moveldup_ps(self.0), _mm256_moveldup_ps(self.1)) }
    }

    #[inline(always)]
    fn odd_twice(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe { Avx2(_mm256_movehdup_ps(self.0), _mm256_movehdup_ps(self.1)) }
    }

    #[inline(always)]
    fn entry_of_rows(self, k: usize) -> Self {
        let (a, b) = (self.0, self.1);
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            match k {
                0 => Avx2(_mm256_permute_ps::<0x00>(a), _mm256_permute_ps::<0x00>(b)),
                1 => Avx2(_mm256_permute_ps::<0x55>(a), _mm256_permute_ps::<0x55>(b)),
                2 => Avx2(_mm256_permute_ps::<0xaa>(a), _mm256_permute_ps::<0xaa>(b)),
                _ => Avx2(_mm256_permute_ps::<0xff>(a), _mm256_permute_ps::<0xff>(b)),
            }
        }
    }

    #[inline(always)]
    fn row_of_four(self, k: usize) -> Self {
        let half = if k < 2 { self.0 } else { self.1 };
        // SAFETY: the value exists, so the CPU has AVX2.
        let row = unsafe {
            match k % 2 {
                0 => _mm256_permute2f128_ps::<0x00>(half, half),
                _ => _mm256_permute2f128_ps::<0x11>(half, half),
            }
        };
        Avx2(row, row)
    }

    #[inline(always)]
    fn gt_mask(self, o: Self) -> u32 {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let lo = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(self.0, o.0));
            let hi = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(self.1, o.1));
            (lo | hi << 8) as u32
        }
    }

    #[inline(always)]
    fn nan_mask(self) -> u32 {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let lo = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
            let hi = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1));
            (lo | hi << 8) as u32
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let v = quarter(self);
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn sum_four(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: values exist, so the CPU has AVX2.
        unsafe {
            // The tree's last two steps on four at once.
            let [a, b, c, d] = [quarter(v[0]), quarter(v[1]), quarter(v[2]), quarter(v[3])];
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let mut sums = [0f32; 4];
            let all = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            _mm_storeu_ps(sums.as_mut_ptr(), all);
            sums
        }
    }

    #[inline(always)]
    fn transpose(v: &[Self; 16]) -> [Self; 16] {
        // SAFETY: values exist, so the CPU has AVX2.
        unsafe {
            let mut to = [Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()); 16];
            for half in [0, 8] {
                let (mut low, mut high) = ([v[0].0; 8], [v[0].0; 8]);
                for (i, v) in v[half..half + 8].iter().enumerate() {
                    (low[i], high[i]) = (v.0, v.1);
                }
                let (low, high) = (eight_by_eight(low), eight_by_eight(high));
                for i in 0..8 {
                    if half == 0 {
                        (to[i].0, to[i + 8].0) = (low[i], high[i]);
                    } else {
                        (to[i].1, to[i + 8].1) = (low[i], high[i]);
                    }
                }
            }
            to
        }
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        // SAFETY: the value exists, so the CPU has AVX2.
        unsafe {
            let v = _mm256_max_ps(self.0, self.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
}

/// Lane l plus l + 8, then l plus l + 4.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn quarter(v: Avx2) -> __m128 {
    // SAFETY: the caller says so.
    unsafe {
        let v = _mm256_add_ps(v.0, v.1);
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v))
    }
}

/// Rows become columns.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn eight_by_eight(v: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller says so.
    unsafe {
        let [a, b, c, d, e, f, g, h] = v;
        let (a, b) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (c, d) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let (e, f) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
        let (g, h) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
        let (a, c) = (_mm256_shuffle_ps::<0x44>(a, c), _mm256_shuffle_ps::<0xee>(a, c));
        let (b, d) = (_mm256_shuffle_ps::<0x44>(b, d), _mm256_shuffle_ps::<0xee>(b, d));
        let (e, g) = (_mm256_shuffle_ps::<0x44>(e, g), _mm256_shuffle_ps::<0xee>(e, g));
        let (f, h) = (_mm256_shuffle_ps::<0x44>(f, h), _mm256_shuffle_ps::<0xee>(f, h));
        [
            _mm256_permute2f128_ps::<0x20>(a, e),
            _mm256_permute2f128_ps::<0x20>(c, g),
            _mm256_permute2f128_ps::<0x20>(b, f),
            _mm256_permute2f128_ps::<0x20>(d, h),
            _mm256_permute2f128_ps::<0x31>(a, e),
            _mm256_permute2f128_ps::<0x31>(c, g),
            _mm256_permute2f128_ps::<0x31>(b, f),
            _mm256_permute2f128_ps::<0x31>(d, h),
        ]
    }
}

/// Eight lanes: one of the two registers.
#[derive(Clone, Copy, Debug)]
pub struct Half(__m256);

impl Part for Half {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: the caller says that the CPU has AVX2.
        Half(unsafe { _mm256_set1_ps(v) })
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as above, and 8 floats are readable.
        Half(unsafe { _mm256_loadu_ps(p) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 8 floats are writable.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        Half(unsafe { _mm256_mul_ps(self.0, o.0) })
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2 and FMA.
        Half(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    fn max(self, o: Self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX2.
        Half(unsafe { _mm256_max_ps(self.0, o.0) })
    }
}

/// All ones in the first `min(n, 8)` lanes.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the caller says so.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), lane)
    }
}

/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn exp2_of_shifted(v: __m256) -> __m256 {
    // SAFETY: the caller says so.
    unsafe {
        let n = _mm256_add_epi32(_mm256_castps_si256(v), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
    }
}
