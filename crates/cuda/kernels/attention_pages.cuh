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

// Scores of the 32 positions of a page: a chain of steps of 16 channels from zero.
template <int D>
__device__ __forceinline__ void page_scores(float (&s)[4][4], const uint32_t (&q)[D / 16][4], uint32_t k_at) {
    const uint32_t lane = threadIdx.x % 32, mat = lane / 8, in_mat = lane % 8;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[j][c] = 0.0f;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            uint32_t b[4];
            ldmatrix4<false>(b, k_at + piece_at<D>(j * 8 + mat / 2 * 8 + in_mat, kk * 2 + mat % 2));
            mma(s[j], q[kk], b[0], b[1]);
            mma(s[j + 1], q[kk], b[2], b[3]);
        }
}
