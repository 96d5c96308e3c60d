//! The scalar definition of the tile kernels, which is also the portable path.

use core::slice;

use half::{bf16, f16};

use super::layout::Layout;
use super::{ACC_STRIDE, FloatElem, FloatFormat, K_CHUNK, ROWS_MAX, TileCall};
use crate::cpu::quant::{BLOCK, QBlock};
use crate::cpu::tile::{LaneBlock, lane_block};
use crate::cpu::tile_format::{LANES, Scales};

/// **The scalar definition of a quantised product**: `acc` after one more block of 32 along K.
///
/// The integer dot products are exact and fit f32 exactly (at most 32 * 128 * 127 < 2^24).
pub(super) fn add_block<L: Layout>(mut acc: f32, w: &LaneBlock, x: &QBlock) -> f32 {
    let dot = |range: core::ops::Range<usize>| -> f32 {
        let code = |i: usize| i32::from(w.stored[i]) - L::Q.zero;
        range.map(|i| code(i) * i32::from(x.codes[i])).sum::<i32>() as f32
    };
    if L::Q.scales == Scales::F32Halves {
        acc = dot(0..16).mul_add(w.scale[0] * x.scale, acc);
        return dot(16..32).mul_add(w.scale[1] * x.scale, acc);
    }
    acc = dot(0..32).mul_add(w.scale[0] * x.scale, acc);
    match w.min {
        Some(min) => min.mul_add(x.scaled_sum, acc),
        None => acc,
    }
}

/// **The scalar definition of a float product**: `sum(w[k] * x[k])` with one rounding a step, in
/// order of k inside chunks of [`K_CHUNK`], and the chunks' sums added in order.
pub(super) fn float_dot(w: impl Fn(usize) -> f32, x: &[f32]) -> f32 {
    let mut total = 0f32;
    for (chunk, x) in x.chunks(K_CHUNK).enumerate() {
        let mut part = 0f32;
        for (k, x) in x.iter().enumerate() {
            part = w(chunk * K_CHUNK + k).mul_add(*x, part);
        }
        total = if chunk == 0 { part } else { total + part };
    }
    total
}

/// Quantised tiles times quantised rows.
///
/// # Safety
/// `call` is as [`TileCall`] asks, of layout `L`.
pub(super) unsafe fn quantised<L: Layout>(call: &TileCall) {
    let blocks = call.k / BLOCK;
    for lane in 0..call.tiles * LANES {
        // SAFETY: the call's tiles have this many bytes each.
        let tile = unsafe {
            let start = call.weights.add(lane / LANES * call.tile_bytes);
            slice::from_raw_parts(start, call.tile_bytes)
        };
        let mut acc = [0f32; ROWS_MAX];
        for b in 0..blocks {
            let w = lane_block(L::Q, tile, blocks, b, lane % LANES);
            for (r, acc) in acc[..call.rows].iter_mut().enumerate() {
                // SAFETY: each of the call's rows has `blocks` blocks.
                let x = unsafe { &*call.x.add(r * call.x_stride_bytes).cast::<QBlock>().add(b) };
                *acc = add_block::<L>(*acc, &w, x);
            }
        }
        store(call, lane, &acc);
    }
}

/// Float tiles times f32 rows.
///
/// # Safety
/// `call` is as [`TileCall`] asks, of element type `E`.
pub(super) unsafe fn float<E: FloatElem>(call: &TileCall) {
    for lane in 0..call.tiles * LANES {
        // SAFETY: the call's tiles have this many bytes each.
        let tile = unsafe {
            let start = call.weights.add(lane / LANES * call.tile_bytes);
            slice::from_raw_parts(start, call.tile_bytes)
        };
        let weight = |k: usize| {
            let at = &tile[(k * LANES + lane % LANES) * E::BYTES..][..E::BYTES];
            match E::FORMAT {
                FloatFormat::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
                FloatFormat::F16 => f16::from_le_bytes([at[0], at[1]]).to_f32(),
                FloatFormat::BF16 => bf16::from_le_bytes([at[0], at[1]]).to_f32(),
            }
        };
        let acc: [f32; ROWS_MAX] = core::array::from_fn(|r| {
            if r >= call.rows {
                return 0.0;
            }
            // SAFETY: each of the call's rows has K values.
            let x = unsafe {
                slice::from_raw_parts(call.x.add(r * call.x_stride_bytes).cast(), call.k)
            };
            float_dot(weight, x)
        });
        store(call, lane, &acc);
    }
}

fn store(call: &TileCall, lane: usize, acc: &[f32; ROWS_MAX]) {
    for (r, &acc) in acc[..call.rows].iter().enumerate() {
        // SAFETY: the accumulators have a line for each row and a place for each lane.
        unsafe { *call.acc.add(r * ACC_STRIDE + lane) = acc };
    }
}
