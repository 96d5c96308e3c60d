//! What one register holds of a vector: some lanes that follow each other, or all of them.
//!
//! Lanes know nothing of each other but in sums, so a kernel may take a vector's parts one after the
//! other. Where a vector is two registers, tiles are then made of registers, of which there are few.

use super::{LANES, Lanes};

/// Lanes of a vector that follow each other; part `p` has lanes `p * WIDTH` and on. A value exists
/// only where its instruction set does.
pub trait Part: Copy {
    /// How many lanes, a divisor of 16.
    const WIDTH: usize;

    /// All lanes `v`.
    ///
    /// # Safety
    /// The CPU has the instruction set of the implementing type.
    unsafe fn splat(v: f32) -> Self;

    /// Lane `l` is `p[l]`; no alignment is needed.
    ///
    /// # Safety
    /// As [`Part::splat`], and `p` is readable for [`Part::WIDTH`] floats.
    unsafe fn load(p: *const f32) -> Self;

    /// Writes lane `l` to `p[l]`.
    ///
    /// # Safety
    /// `p` is writable for [`Part::WIDTH`] floats.
    unsafe fn store(self, p: *mut f32);

    /// As [`Lanes::mul`].
    fn mul(self, o: Self) -> Self;
    /// As [`Lanes::fma`].
    fn fma(self, b: Self, c: Self) -> Self;
    /// As [`Lanes::max`].
    fn max(self, o: Self) -> Self;
}

/// The part of a vector that is one register, or an array: all of it.
#[derive(Clone, Copy, Debug)]
pub struct Whole<V>(V);

impl<V: Lanes> Part for Whole<V> {
    const WIDTH: usize = LANES;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: the caller's contract.
        Whole(unsafe { V::splat(v) })
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract.
        Whole(unsafe { V::load(p) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { self.0.store(p) }
    }

    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Whole(self.0.mul(o.0))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Whole(self.0.fma(b.0, c.0))
    }

    #[inline(always)]
    fn max(self, o: Self) -> Self {
        Whole(self.0.max(o.0))
    }
}
