// What every kernel shares: lanes of a step that are live, exact arithmetic, launch order.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// A kernel lets its successor start before it has ended, and itself touches nothing before its
// predecessor has ended but what no kernel of a step writes: weights, inputs (the host wrote them
// before the step), and KV pages that are older than the step's tokens. Where the launch is an ordinary one both
// do nothing.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// e^x as crates/device/src/cpu/math.rs defines it, to the bit, for x from -87.33 to 88.37.
__device__ __forceinline__ float exp_usual(float x) {
    const float shift = 12582912.0f;
    float t = __fmaf_rn(x, 1.44269504088896340736f, shift);
    float n = __fsub_rn(t, shift);
    float r = __fmaf_rn(n, -0.69311523f, x);
    r = __fmaf_rn(n, -3.1946183e-5f, r);
    float p = 1.3926184e-3f;
    p = __fmaf_rn(p, r, 8.363179e-3f);
    p = __fmaf_rn(p, r, 4.1666556e-2f);
    p = __fmaf_rn(p, r, 1.6666576e-1f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    return __fmul_rn(p, __uint_as_float((__float_as_uint(t) + 127u) << 23));
}

// e^x of any x.
__device__ __forceinline__ float exp_exact(float x) {
    float e = exp_usual(x);
    if (88.37f < x) e = __int_as_float(0x7f800000);
    if (x < -87.33f) e = 0.0f;
    return e;
}

// x / (1 + e^-x), as math.rs defines it.
__device__ __forceinline__ float silu_exact(float x) {
    return __fdiv_rn(x, __fadd_rn(1.0f, exp_exact(__fsub_rn(0.0f, x))));
}

// The sum of a warp's lanes by a fixed tree; every lane has it.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

// Weights are tiles of 16 rows by 16 columns in the order in which the lanes of a warp hold the
// first operand of mma.m16n8k16: lane 4 g + t has rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8,
// 2 t + 9, as eight bf16 in sixteen bytes. Tiles of one row of tiles lie one after the other.
//
// Matrices of gemm_wgmma.cu are grouped: four rows of tiles take turns, 64 columns (a stage) of each, so
// that what a block brings for a stage lies in pieces of 8 KB. The last group may have fewer rows.
constexpr uint32_t GROUP_TILES = 4;

// Rows in the group of row `row_tile`, of `tiles`.
__device__ __forceinline__ uint32_t group_width(uint32_t row_tile, uint32_t tiles) {
    return min(GROUP_TILES, tiles - row_tile / GROUP_TILES * GROUP_TILES);
}
// Where a tile begins. `grouped`: rows of tiles of a grouped matrix, 0 of another.
__device__ __forceinline__ size_t tile_at(uint32_t row_tile, uint32_t k_tile, uint32_t k_tiles, uint32_t grouped) {
    if (!grouped) return ((size_t)row_tile * k_tiles + k_tile) * 256;
    const uint32_t in_group = row_tile % GROUP_TILES, width = group_width(row_tile, grouped);
    return ((size_t)(row_tile - in_group) * k_tiles + (k_tile / 4 * width + in_group) * 4 + k_tile % 4) * 256;
}

__host__ __device__ inline uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
