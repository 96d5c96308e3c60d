//! The lanes as plain Rust: the definition itself.

use super::super::isa::Isa;
use super::{LANES, Lanes, Whole};
use core::array::from_fn;
use half::f16;

/// Sixteen floats in an array.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Portable([f32; LANES]);

impl Lanes for Portable {
    const ISA: Isa = Isa::Portable;
    const TILE: usize = 4;
    type Part = Whole<Self>;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        Portable([v; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 16 floats are readable; an unaligned read needs no alignment.
        Portable(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        // SAFETY: only the first `n` floats are read.
        Portable(from_fn(|l| if l < n { unsafe { p.add(l).read_unaligned() } } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: 16 numbers are readable.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Portable(halves.map(|h| f16::from_bits(h).to_f32()))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 floats are writable.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        for (l, v) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: only the first `n` floats are written.
            unsafe { p.add(l).write_unaligned(v) }
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        let halves = self.0.map(|v| f16::from_f32(v).to_bits());
        // SAFETY: 16 numbers are writable.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn store_rounded(self, p: *mut u32) {
        let rounded = self.0.map(|v| v.round_ties_even() as u32);
        // SAFETY: 16 integers are writable.
        unsafe { p.cast::<[u32; LANES]>().write_unaligned(rounded) }
    }

    #[inline(always)]
    fn prefetch<T>(_: *const T) {}

    #[inline(always)]
    fn fetch<T>(_: *const T) {}

    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Portable(from_fn(|l| self.0[l] + o.0[l]))
    }

    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Portable(from_fn(|l| self.0[l] - o.0[l]))
    }

    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Portable(from_fn(|l| self.0[l] * o.0[l]))
    }

    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Portable(from_fn(|l| self.0[l] / o.0[l]))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Portable(from_fn(|l| self.0[l].mul_add(b.0[l], c.0[l])))
    }

    #[inline(always)]
    fn max(self, o: Self) -> Self {
        Portable(from_fn(|l| greater(self.0[l], o.0[l])))
    }

    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        Portable(from_fn(|l| if self.0[l] < bound.0[l] { yes.0[l] } else { no.0[l] }))
    }

    #[inline(always)]
    fn exp2_of_shifted(self) -> Self {
        Portable(self.0.map(|v| f32::from_bits(v.to_bits().wrapping_add(127) << 23)))
    }

    #[inline(always)]
    fn quiet(self) -> Self {
        Portable(self.0.map(|v| if v.is_nan() { f32::NAN } else { v }))
    }

    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Portable(from_fn(|l| self.0[l ^ 1]))
    }

    #[inline(always)]
    fn even_twice(self) -> Self {
        Portable(from_fn(|l| self.0[l & !1]))
    }

    #[inline(always)]
    fn odd_twice(self) -> Self {
        Portable(from_fn(|l| self.0[l | 1]))
    }

    #[inline(always)]
    fn entry_of_rows(self, k: usize) -> Self {
        Portable(from_fn(|l| self.0[l / 4 * 4 + k]))
    }

    #[inline(always)]
    fn row_of_four(self, k: usize) -> Self {
        Portable(from_fn(|l| self.0[4 * k + l % 4]))
    }

    #[inline(always)]
    fn gt_mask(self, o: Self) -> u32 {
        (0..LANES).fold(0, |m, l| m | u32::from(self.0[l] > o.0[l]) << l)
    }

    #[inline(always)]
    fn nan_mask(self) -> u32 {
        (0..LANES).fold(0, |m, l| m | u32::from(self.0[l].is_nan()) << l)
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        tree(self.0, |a, b| a + b)
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        tree(self.0, greater)
    }
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn tree(mut v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            v[l] = f(v[l], v[l + half]);
        }
    }
    v[0]
}
