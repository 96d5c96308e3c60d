//! The lanes as one AVX-512 register.

use super::super::isa::Isa;
use super::{LANES, Lanes, Whole};
use core::arch::x86_64::*;

/// Sixteen floats in a register. Exists only where AVX-512 F, BW, DQ and VL do.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(pub __m512);

macro_rules! lanewise {
    ($($name:ident = $intrinsic:ident($($arg:ident),*);)*) => {
        $(#[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: the value exists, so the CPU has AVX-512.
            Avx512(unsafe { $intrinsic(self.0, $($arg.0),*) })
        })*
    };
}

impl Lanes for Avx512 {
    const ISA: Isa = Isa::Avx512;
    const TILE: usize = 12;
    type Part = Whole<Self>;

    lanewise! {
        add = _mm512_add_ps(o);
        sub = _mm512_sub_ps(o);
        mul = _mm512_mul_ps(o);
        div = _mm512_div_ps(o);
        fma = _mm512_fmadd_ps(b, c);
        max = _mm512_max_ps(o);
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
        // SAFETY: the caller says that the CPU has AVX-512.
        Avx512(unsafe { _mm512_set1_ps(v) })
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as above, and 16 floats are readable.
        Avx512(unsafe { _mm512_loadu_ps(p) })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        // SAFETY: as above, and lanes that the mask leaves out are not read.
        Avx512(unsafe { _mm512_maskz_loadu_ps(first(n), p) })
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: as above, and 16 numbers are readable.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 floats are writable.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: lanes that the mask leaves out are not written.
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: 16 numbers are writable.
        unsafe {
            let h = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            _mm256_storeu_si256(p.cast(), h);
        }
    }

    #[inline(always)]
    unsafe fn store_rounded(self, p: *mut u32) {
        // SAFETY: 16 integers are writable; the default rounding mode is nearest even.
        unsafe { _mm512_storeu_si512(p.cast(), _mm512_cvtps_epi32(self.0)) }
    }

    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        unsafe {
            let lt = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0);
            Avx512(_mm512_mask_blend_ps(lt, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn exp2_of_shifted(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        unsafe {
            let n = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }

    #[inline(always)]
    fn quiet(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            Avx512(_mm512_mask_blend_ps(nan, self.0, _mm512_set1_ps(f32::NAN)))
        }
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        Avx512(unsafe { _mm512_permute_ps::<0b10_11_00_01>(self.0) })
    }

    #[inline(always)]
    fn even_twice(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        Avx512(unsafe { _mm512_moveldup_ps(self.0) })
    }

    #[inline(always)]
    fn odd_twice(self) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        Avx512(unsafe { _mm512_movehdup_ps(self.0) })
    }

    #[inline(always)]
    fn entry_of_rows(self, k: usize) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        Avx512(unsafe {
            match k {
                0 => _mm512_permute_ps::<0x00>(self.0),
                1 => _mm512_permute_ps::<0x55>(self.0),
                2 => _mm512_permute_ps::<0xaa>(self.0),
                _ => _mm512_permute_ps::<0xff>(self.0),
            }
        })
    }

    #[inline(always)]
    fn row_of_four(self, k: usize) -> Self {
        // SAFETY: the value exists, so the CPU has AVX-512.
        Avx512(unsafe {
            match k {
                0 => _mm512_shuffle_f32x4::<0x00>(self.0, self.0),
                1 => _mm512_shuffle_f32x4::<0x55>(self.0, self.0),
                2 => _mm512_shuffle_f32x4::<0xaa>(self.0, self.0),
                _ => _mm512_shuffle_f32x4::<0xff>(self.0, self.0),
            }
        })
    }

    #[inline(always)]
    fn gt_mask(self, o: Self) -> u32 {
        // SAFETY: the value exists, so the CPU has AVX-512.
        u32::from(unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, o.0) })
    }

    #[inline(always)]
    fn nan_mask(self) -> u32 {
        // SAFETY: the value exists, so the CPU has AVX-512.
        u32::from(unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the value exists, so the CPU has AVX-512.
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(self.0), high(self.0));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    /// The tree of [`Lanes::sum`] on all sixteen at once: each level adds halves of what is left of
    /// two vectors, so that 15 additions do for 16 sums.
    #[inline(always)]
    fn sum_each(v: &[Self; LANES]) -> Self {
        // SAFETY: values exist, so the CPU has AVX-512.
        unsafe {
            let mut s = [_mm512_setzero_ps(); 8];
            for (i, s) in s.iter_mut().enumerate() {
                let (a, b) = (v[i].0, v[i + 8].0);
                let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
                *s = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            }
            for i in 0..4 {
                let (a, b) = (s[i], s[i + 4]);
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                s[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            }
            for i in 0..2 {
                let (a, b) = (_mm512_castps_pd(s[i]), _mm512_castps_pd(s[i + 2]));
                let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                s[i] = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            }
            let low = _mm512_shuffle_ps::<0b10_00_10_00>(s[0], s[1]);
            let sums = _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_01_11_01>(s[0], s[1]));
            // Where each vector's sum has come to lie.
            let at = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
            Avx512(_mm512_permutexvar_ps(at, sums))
        }
    }

    #[inline(always)]
    fn transpose(v: &[Self; LANES]) -> [Self; LANES] {
        // SAFETY: values exist, so the CPU has AVX-512.
        unsafe {
            // Pairs, then quads of rows change places inside each 128 bits: `quads[4 i + j]` has of
            // rows 4 i to 4 i + 3 the columns j, 4 + j, 8 + j and 12 + j.
            let mut quads = [_mm512_setzero_ps(); LANES];
            for i in (0..LANES).step_by(4) {
                let (a, b, c, d) = (v[i].0, v[i + 1].0, v[i + 2].0, v[i + 3].0);
                let pd = |v| _mm512_castps_pd(v);
                let (ab, cd) = (pd(_mm512_unpacklo_ps(a, b)), pd(_mm512_unpacklo_ps(c, d)));
                quads[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                quads[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
                let (ab, cd) = (pd(_mm512_unpackhi_ps(a, b)), pd(_mm512_unpackhi_ps(c, d)));
                quads[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                quads[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            }
            // Then the 128 bits themselves.
            let mut out = [Avx512(_mm512_setzero_ps()); LANES];
            for j in 0..4 {
                let (a, b, c, d) = (quads[j], quads[4 + j], quads[8 + j], quads[12 + j]);
                let (ab0, ab1) = (
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
                );
                let (cd0, cd1) = (
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d),
                );
                out[j] = Avx512(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab0, cd0));
                out[8 + j] = Avx512(_mm512_shuffle_f32x4::<0b11_01_11_01>(ab0, cd0));
                out[4 + j] = Avx512(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab1, cd1));
                out[12 + j] = Avx512(_mm512_shuffle_f32x4::<0b11_01_11_01>(ab1, cd1));
            }
            out
        }
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        // SAFETY: the value exists, so the CPU has AVX-512.
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(self.0), high(self.0));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
}

/// A mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

/// The upper eight lanes.
///
/// # Safety
/// The CPU has AVX-512 DQ.
#[inline(always)]
unsafe fn high(v: __m512) -> __m256 {
    // SAFETY: the caller says so.
    unsafe { _mm512_extractf32x8_ps::<1>(v) }
}
