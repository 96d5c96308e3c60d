// Norm and rotation of one head by a warp: lane l has the channels l + 32 j, N of them.
#pragma once
#include "common.cuh"

struct RopeShape {
    uint32_t head_dim, rotary_dim, adjacent;
    float eps;
};

// What a head's norm and rotation read beside the head: loaded before the head is there.
template <int N> struct RopeTables {
    float2 cs[N];
    float scale[N];
    __device__ __forceinline__ void load(const RopeShape& p, const float* weight, const float* turn, uint32_t lane) {
        const uint32_t half = p.rotary_dim / 2;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t d = lane + 32 * j;
            if (weight && d < p.head_dim) scale[j] = weight[d];
            if (turn && d < p.rotary_dim) cs[j] = *(const float2*)(turn + 2 * (p.adjacent ? d / 2 : d < half ? d : d - half));
        }
    }
};

// The norm's sum: lane l over its channels in order, then the warp's tree.
template <int N>
__device__ __forceinline__ void norm_head(float (&v)[N], const RopeShape& p, const RopeTables<N>& t, uint32_t lane) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) sum = __fmaf_rn(v[j], v[j], sum);
    sum = warp_sum(sum);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)p.head_dim), p.eps)));
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < p.head_dim) v[j] = __fmul_rn(__fmul_rn(v[j], r), t.scale[j]);
}

// Turns the head; `mine` is room for it that only this warp uses.
template <int N>
__device__ __forceinline__ void turn_head(float (&v)[N], const RopeShape& p, const RopeTables<N>& t, float* mine,
                                          uint32_t lane) {
    const uint32_t half = p.rotary_dim / 2;
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < p.head_dim) mine[lane + 32 * j] = v[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t d = lane + 32 * j;
        if (d < p.rotary_dim) {
            const uint32_t partner = p.adjacent ? d ^ 1 : d < half ? d + half : d - half;
            const bool first = p.adjacent ? d % 2 == 0 : d < half;
            const float sine = __fmul_rn(mine[partner], first ? -t.cs[j].y : t.cs[j].y);
            v[j] = __fmaf_rn(v[j], t.cs[j].x, sine);
        }
    }
}
