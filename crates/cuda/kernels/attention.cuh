// What the attention kernels share: their argument, and how partial results are folded.
#pragma once
#include "common.cuh"

struct AttnArgs {
    const uint32_t* live;
    const float* qkv;
    const uint32_t *positions, *token_seq, *block_table;
    const void *k_pages, *v_pages;
    float* scratch;
    void* out;
    const float *turn, *q_norm;  // of queries that are still to be normed and turned; no turn: done
    uint32_t rows, heads, kv_heads, table_stride;
    uint32_t window, parts, ways, head_dim;
    float scale;
    uint32_t tiled;     // blocks that take tiles of tokens, before those that take one token each
    uint32_t base2;     // m is in powers of two
    uint32_t out_bf16;  // the combination writes bf16 rows
    uint32_t whole;     // there is one part, and who has it writes the rows
    uint32_t adjacent;  // pairs that are turned
    float eps;
    uint32_t pad;
};

constexpr int SPLIT = 256;
constexpr int PART_EXTRA = 4;

// 2^x as the GPU's own instruction has it.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Folds part (m2, l2, o2) into (m, l, o).
struct Fold {
    float a, b;
    __device__ __forceinline__ Fold(bool base2, float& m, float& l, float m2, float l2) {
        const float top = fmaxf(m, m2), da = __fsub_rn(m, top), db = __fsub_rn(m2, top);
        a = base2 ? exp2_fast(da) : exp_exact(da);
        b = base2 ? exp2_fast(db) : exp_exact(db);
        l = __fmaf_rn(l2, b, __fmul_rn(l, a));
        m = top;
    }
    __device__ __forceinline__ float value(float o, float o2) const {
        return __fmaf_rn(o2, b, __fmul_rn(o, a));
    }
};
