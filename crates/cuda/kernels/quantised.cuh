// Matrices that stay as their file has them: 8 or 4 bits a weight, and for 32 of a row a scale, for
// Q4_1 also a minimum.
//
// Definition. A weight is bf16(scale * code) or bf16(scale * code + minimum), product and sum
// rounded to f32: what a matrix that is decoded when it is loaded holds. So products have the bits
// of those of the decoded matrix.
//
// A tile is 16 rows by 64 channels: the two scales of each row, the two minima of each row, then
// codes of four tiles of 16 channels, each in the order of bf16 tiles (tile_at), a byte or half a
// byte a weight. Codes of Q4_0 are stored unsigned, 8 too high.
#pragma once
#include "common.cuh"

enum { BF16 = 0, Q8_0 = 1, Q4_0 = 2, Q4_1 = 3 };

__host__ __device__ constexpr uint32_t head_bytes(uint32_t format) { return format == Q4_1 ? 128 : 64; }
__host__ __device__ constexpr uint32_t code_bytes(uint32_t format) { return format == Q8_0 ? 256 : 128; }
__host__ __device__ constexpr uint32_t wide_tile_bytes(uint32_t format) {
    return format == BF16 ? 2048 : head_bytes(format) + 4 * code_bytes(format);
}

// Byte i of a word, less `zero`: the byte goes to the low end of 2^23, and the difference is exact.
__device__ __forceinline__ float byte_less(uint32_t word, int i, float zero) {
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4b000000, 0x7540 + i)), __fadd_rn(8388608.0f, zero));
}

// Code i of the eight of a lane.
template <int F> __device__ __forceinline__ float code_of(uint2 codes, int i) {
    if constexpr (F == Q8_0) return (float)(int)(int8_t)((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
    const uint32_t nibbles = (i % 2 ? codes.x >> 4 : codes.x) & 0x0f0f0f0f;
    return byte_less(nibbles, i / 2, F == Q4_0 ? 8.0f : 0.0f);
}

template <int F> __device__ __forceinline__ float weight_of(float code, float scale, float minimum) {
    const float v = __fmul_rn(scale, code);
    return F == Q4_1 ? __fadd_rn(v, minimum) : v;
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t*)&pair;
}

// The eight weights of a lane, of rows g and g + 8, as bf16 in the order of a tile.
template <int F>
__device__ __forceinline__ uint4 decode_lane(uint2 codes, float scale0, float scale1, float min0, float min1) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = weight_of<F>(code_of<F>(codes, i), i / 2 % 2 ? scale1 : scale0, i / 2 % 2 ? min1 : min0);
    return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}

__device__ __forceinline__ uint32_t shared_word(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ float half_of(uint32_t pair, int i) {
    const unsigned short bits = (unsigned short)(i ? pair >> 16 : pair);
    return __half2float(__ushort_as_half(bits));
}

// What lane `lane` multiplies of a tile in shared memory, for its four steps of 16 channels.
template <int F>
__device__ __forceinline__ void decode_tile(uint32_t at, uint32_t lane, uint4 (&to)[4]) {
    const uint32_t row = at + lane / 4 * 4, codes = at + head_bytes(F) + lane * (code_bytes(F) / 32);
    const uint32_t scale0 = shared_word(row), scale1 = shared_word(row + 32);
    const uint32_t min0 = F == Q4_1 ? shared_word(row + 64) : 0, min1 = F == Q4_1 ? shared_word(row + 96) : 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint2 c = {shared_word(codes + k * code_bytes(F)), 0};
        if constexpr (F == Q8_0) c.y = shared_word(codes + k * code_bytes(F) + 4);
        to[k] = decode_lane<F>(c, half_of(scale0, k / 2), half_of(scale1, k / 2), half_of(min0, k / 2), half_of(min1, k / 2));
    }
}

// Weight `i` of the eight of a lane, of one row of a tile, rounded to bf16.
template <int F>
__device__ __forceinline__ float weight_in(const unsigned char* tile, uint32_t row, uint32_t k, uint32_t lane, int i) {
    const __half* heads = (const __half*)tile + row * 2 + k / 2;
    const uint32_t* codes = (const uint32_t*)(tile + head_bytes(F) + k * code_bytes(F) + lane * (code_bytes(F) / 32));
    const uint2 c = {codes[0], F == Q8_0 ? codes[1] : 0};
    const float v = weight_of<F>(code_of<F>(c, i), __half2float(heads[0]), F == Q4_1 ? __half2float(heads[32]) : 0.0f);
    return __bfloat162float(__float2bfloat16_rn(v));
}
