//! The projection of some rows where registers are few: a tile of it, read once into the nearest
//! cache, is multiplied with all of them.
//!
//! A row's dots and its sum of squares are those of [`super`]'s definition. Where rows are longer
//! than a stretch, a lane's chain goes on from one to the next, and lies in memory between them.

use core::mem::MaybeUninit;

use super::super::super::lanes::{LANES, Lanes};
use super::{HyperIn, OUTPUTS_MAX};

/// Rows that a tile is multiplied with before the next one is read.
const ROWS: usize = 4;
/// Values of a stretch: of four rows and a tile 28 KB, seven of a cache's eight ways. All outputs
/// of a shorter one would be as small, but rows whose distance is a power of two would share sets.
const STRETCH: usize = 64 * LANES;
/// Outputs of a tile; with two rows their chains and a row's values fill sixteen registers of
/// eight floats, a vector being two.
const TILE: usize = 3;

/// Chains of some rows, between two stretches.
type Chains<V> = [[MaybeUninit<V>; OUTPUTS_MAX]; ROWS];

/// A stretch of some rows.
struct Stretch<'a> {
    x: &'a [*const f32],
    projection: *const f32,
    /// Floats from one output of the projection to the next.
    width: usize,
    len: usize,
    /// Chains begin.
    begins: bool,
}

/// Dots of the projection's rows with each `x`, times the root of its mean square.
///
/// # Safety
/// As the caller's: widths are whole vectors, `x` are rows, and there are at most [`OUTPUTS_MAX`]
/// outputs.
#[inline(always)]
pub(super) unsafe fn project_near<V: Lanes>(
    a: &HyperIn,
    x: &[*const f32],
    outputs: usize,
    z: &mut [[f32; OUTPUTS_MAX]],
) {
    let width = a.streams * a.dim;
    for (x, z) in x.chunks(ROWS).zip(z.chunks_mut(ROWS)) {
        // SAFETY: the caller's contract; a stretch lies inside the rows, and the first one begins
        // all chains that the others and the sums read.
        unsafe {
            let mut chains: Chains<V> = [[const { MaybeUninit::uninit() }; OUTPUTS_MAX]; ROWS];
            let mut squares = [V::splat(0.0); ROWS];
            for first in (0..width).step_by(STRETCH) {
                let mut from = [core::ptr::null(); ROWS];
                for (from, x) in from.iter_mut().zip(x) {
                    *from = x.add(first);
                }
                let len = STRETCH.min(width - first);
                let stretch = Stretch {
                    x: &from[..x.len()],
                    projection: a.projection.add(first),
                    width,
                    len,
                    begins: first == 0,
                };
                add_squares(&stretch, &mut squares);
                add_dots(&stretch, outputs, &mut chains);
            }
            for ((z, chains), squares) in z.iter_mut().zip(&chains).zip(squares) {
                let r = 1.0 / (squares.sum() / width as f32 + a.norm_eps).sqrt();
                for (z, chain) in z.iter_mut().zip(&chains[..outputs]) {
                    *z = chain.assume_init().sum() * r;
                }
            }
        }
    }
}

/// Sums of squares of all rows side by side, so that their chains overlap.
#[inline(always)]
unsafe fn add_squares<V: Lanes>(s: &Stretch<'_>, squares: &mut [V; ROWS]) {
    // SAFETY: the caller's contract.
    unsafe {
        match s.x.len() {
            4 => squares_of::<V, 4>(s, squares),
            3 => squares_of::<V, 3>(s, squares),
            2 => squares_of::<V, 2>(s, squares),
            _ => squares_of::<V, 1>(s, squares),
        }
    }
}

#[inline(always)]
unsafe fn squares_of<V: Lanes, const R: usize>(s: &Stretch<'_>, squares: &mut [V; ROWS]) {
    let x: [*const f32; R] = core::array::from_fn(|r| s.x[r]);
    let mut sums: [V; R] = core::array::from_fn(|r| squares[r]);
    for i in (0..s.len).step_by(LANES) {
        for (sum, x) in sums.iter_mut().zip(x) {
            // SAFETY: the caller's contract.
            let v = unsafe { V::load(x.add(i)) };
            *sum = v.fma(v, *sum);
        }
    }
    squares[..R].copy_from_slice(&sums);
}

#[inline(always)]
unsafe fn add_dots<V: Lanes>(s: &Stretch<'_>, outputs: usize, chains: &mut Chains<V>) {
    let whole = outputs / TILE * TILE;
    // SAFETY: the caller's contract.
    unsafe {
        for o in (0..whole).step_by(TILE) {
            ask_ahead::<V>(s, s.len * o / whole..s.len * (o + TILE) / whole);
            add_tiles::<V, TILE>(s, o, chains);
        }
        for o in whole..outputs {
            add_tiles::<V, 1>(s, o, chains);
        }
    }
}

/// Asks for a part of the rows that follow, which another core may have written. Where there are
/// none, or they lie elsewhere, nothing comes of it.
#[inline(always)]
fn ask_ahead<V: Lanes>(s: &Stretch<'_>, part: core::ops::Range<usize>) {
    for x in s.x {
        for i in part.clone().step_by(LANES) {
            V::fetch(x.wrapping_add(ROWS * s.width + i));
        }
    }
}

/// `O` outputs from `first` on, of all rows.
#[inline(always)]
unsafe fn add_tiles<V: Lanes, const O: usize>(
    s: &Stretch<'_>,
    first: usize,
    chains: &mut Chains<V>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut row = 0;
        while row + 2 <= s.x.len() {
            add_tile::<V, 2, O>(s, row, first, chains);
            row += 2;
        }
        if row < s.x.len() {
            add_tile::<V, 1, O>(s, row, first, chains);
        }
    }
}

#[inline(always)]
unsafe fn add_tile<V: Lanes, const R: usize, const O: usize>(
    s: &Stretch<'_>,
    row: usize,
    first: usize,
    chains: &mut Chains<V>,
) {
    // SAFETY: the caller's contract; chains have begun where they are read.
    unsafe {
        let x: [*const f32; R] = core::array::from_fn(|r| s.x[row + r]);
        let projection = s.projection.add(first * s.width);
        let mut acc = [[V::splat(0.0); O]; R];
        if !s.begins {
            acc = core::array::from_fn(|r| {
                core::array::from_fn(|o| chains[row + r][first + o].assume_init())
            });
        }
        for i in (0..s.len).step_by(LANES) {
            let v: [V; R] = core::array::from_fn(|r| V::load(x[r].add(i)));
            for o in 0..O {
                let p = V::load(projection.add(o * s.width + i));
                for (acc, v) in acc.iter_mut().zip(&v) {
                    acc[o] = p.fma(*v, acc[o]);
                }
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            for (o, acc) in acc.into_iter().enumerate() {
                chains[row + r][first + o].write(acc);
            }
        }
    }
}
