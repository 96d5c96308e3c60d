// What the matrix kernels share: their argument, and the sums of a cluster's blocks.
#pragma once
#include "common.cuh"

struct GemmPart {
    const uint4* w;
    const float* bias;
    uint32_t tiles, n, out_col, format;
};

struct GemmArgs {
    const uint32_t* live;
    const __nv_bfloat16* x;
    void* out;
    GemmPart part[3];
    uint32_t parts, rows, x_stride, out_stride;
    uint32_t epilogue, units, k_tiles, steps;
    uint32_t s_in, s_out, token_tiles, s_seq;
};

enum { STORE = 0, ADD_TO = 1, SWIGLU = 2 };

__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Four floats of the shared memory of a block of the cluster.
__device__ __forceinline__ float4 peer_floats(uint32_t at, uint32_t rank, bool clustered) {
    float4 v;
#if __CUDA_ARCH__ >= 900
    if (clustered) {
        uint32_t there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
        asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(there));
        return v;
    }
#endif
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

// What an addition to the residual gives, wherever it is made: subnormals are zeros, as they are where memory adds.
__device__ __forceinline__ float add_to_residual(float so_far, float y) {
    float sum;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(so_far), "f"(y));
    return sum;
}

// Adds to one, two or four floats in memory. On Hopper the memory does it, and nobody waits for what was there.
__device__ __forceinline__ void add_at(float* to, float y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" :: "l"(to), "f"(y) : "memory");
#else
    *to = add_to_residual(*to, y);
#endif
}
__device__ __forceinline__ void add_at(float2* to, float2 y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" :: "l"(to), "f"(y.x), "f"(y.y) : "memory");
#else
    *to = {add_to_residual(to->x, y.x), add_to_residual(to->y, y.y)};
#endif
}
__device__ __forceinline__ void add_at(float4* to, float4 y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(y.x), "f"(y.y), "f"(y.z), "f"(y.w) : "memory");
#else
    const float4 x = *to;
    *to = {add_to_residual(x.x, y.x), add_to_residual(x.y, y.y), add_to_residual(x.z, y.z), add_to_residual(x.w, y.w)};
#endif
}

// Slices in order, S of them, read all at once.
template <int S>
__device__ __forceinline__ float4 add_slices(uint32_t at, uint32_t step, uint32_t s_in, bool clustered) {
    float4 v[S];
#pragma unroll
    for (int s = 0; s < S; s++) v[s] = peer_floats(at + s % s_in * step, s / s_in, clustered);
    float4 sum = v[0];
#pragma unroll
    for (int s = 1; s < S; s++) sum = add4(sum, v[s]);
    return sum;
}

__device__ __forceinline__ float4 all_slices(uint32_t slices, uint32_t at, uint32_t step, uint32_t s_in,
                                             bool clustered) {
    if (slices == 1) return add_slices<1>(at, step, s_in, clustered);
    if (slices == 2) return add_slices<2>(at, step, s_in, clustered);
    if (slices == 4) return add_slices<4>(at, step, s_in, clustered);
    return add_slices<8>(at, step, s_in, clustered);
}

// silu(gate) * up of four features, rounded to bf16.
__device__ __forceinline__ void put_gated(void* out, size_t at, float4 gate, float4 up) {
    const float4 y = {__fmul_rn(silu_exact(gate.x), up.x), __fmul_rn(silu_exact(gate.y), up.y),
                      __fmul_rn(silu_exact(gate.z), up.z), __fmul_rn(silu_exact(gate.w), up.w)};
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(y.x, y.y), __floats2bfloat162_rn(y.z, y.w)};
    *(uint2*)((__nv_bfloat16*)out + at) = *(const uint2*)pair;
}

// Bias and the epilogue of four features of tile `tile`, counted over all parts, from its
// feature `in_tile` on.
__device__ __forceinline__ void put_sums(const GemmPart* parts, uint32_t count, uint32_t epilogue, float* row,
                                         uint32_t tile, uint32_t in_tile, float4 y) {
    uint32_t part = 0;
    while (part + 1 < count && tile >= parts[part].tiles) tile -= parts[part++].tiles;
    const GemmPart& p = parts[part];
    const uint32_t n = tile * 16 + in_tile;
    if (n >= p.n) return;
    float* out = row + p.out_col + n;
    if (n + 4 <= p.n && (uintptr_t)out % 16 == 0) {
        if (p.bias) y = add4(y, *(const float4*)(p.bias + n));
        if (epilogue == ADD_TO) add_at((float4*)out, y); else *(float4*)out = y;
        return;
    }
    const float each[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (n + i >= p.n) break;
        const float v = p.bias ? __fadd_rn(each[i], p.bias[n + i]) : each[i];
        if (epilogue == ADD_TO) add_at(out + i, v); else out[i] = v;
    }
}
