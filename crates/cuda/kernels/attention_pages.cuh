// Pages in shared memory and the matrix instruction over them: what attention on tensor cores shares.
#pragma once
#include "attention.cuh"

constexpr int PAGE = 32;

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool TRANSPOSED> __device__ __forceinline__ void ldmatrix4(uint32_t (&b)[4], uint32_t at) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at));
}
__device__ __forceinline__ uint32_t halves(float x, float y) {
    const __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t*)&h;
}

// Place of eight channels of a position in a page's rows: 16-byte pieces, swizzled so that eight
// positions of one piece lie in different banks.
template <int D> __device__ __forceinline__ uint32_t piece_at(uint32_t position, uint32_t piece) {
    constexpr uint32_t PIECES = D / 8, LINE = D < 64 ? 64 / D : 1, TURN = PIECES < 8 ? PIECES : 8;
    return position * (D * 2) + (piece ^ (position / LINE % TURN)) * 16;
}

__device__ __forceinline__ uint32_t first_seen(uint32_t window, uint32_t position) {
    return window && position + 1 > window ? position + 1 - window : 0;
}
