// registers: 88
// The small ops of a step, a block or a warp a row. Their definitions are those of the CPU device's
// modules of the same names, but for the order of sums, which is stated here.
#include "quantised.cuh"
#include "rope.cuh"

struct GatherArgs {
    const uint32_t* live;
    const uint32_t *source, *token_seq, *seq_slots, *last_token, *write_slots;
    uint32_t *token_pages, *out;
    uint32_t rows, vocab;
};

extern "C" __global__ void __launch_bounds__(256) gather_tokens(const __grid_constant__ GatherArgs p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.x * 256 + threadIdx.x;
    if (row >= min(*p.live, p.rows)) return;
    uint32_t token = p.source[row];
    if (token == 0xffffffffu) token = p.last_token[p.seq_slots[p.token_seq[row]]];
    if (token >= p.vocab) token = 0;  // keeps the embedding lookup inside its matrix
    p.out[row] = token;
    p.token_pages[p.write_slots[row]] = token;
}

struct EmbedArgs {
    const uint32_t* live;
    const uint32_t* tokens;
    const __nv_bfloat16* w;
    float* out;
    uint32_t rows, dim, k_tiles, format;
    uint32_t grouped, pad;
};

// The row of a quantised matrix.
template <int F> __device__ __forceinline__ void embed_quantised(const EmbedArgs& p, uint32_t token, float* out) {
    const uint32_t row = token % 16, half = row / 8, g = token % 8;
    for (uint32_t i = threadIdx.x; i < p.dim / 4; i += 256) {
        const uint32_t k_tile = i / 4, t = i % 4, lane = g * 4 + t;
        const size_t at = (size_t)(token / 16) * (p.k_tiles / 4) + k_tile / 4;
        const unsigned char* tile = (const unsigned char*)p.w + at * wide_tile_bytes(F);
        auto weight = [&](int e) { return weight_in<F>(tile, row, k_tile % 4, lane, e + half * 2); };
        *(float2*)(out + k_tile * 16 + 2 * t) = make_float2(weight(0), weight(1));
        *(float2*)(out + k_tile * 16 + 2 * t + 8) = make_float2(weight(4), weight(5));
    }
}

extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedArgs p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.x;
    if (row >= min(*p.live, p.rows)) return;
    const uint32_t token = p.tokens[row], half = token % 16 / 8, g = token % 8;
    float* out = p.out + (size_t)row * p.dim;
    if (p.format == Q8_0) return embed_quantised<Q8_0>(p, token, out);
    if (p.format == Q4_0) return embed_quantised<Q4_0>(p, token, out);
    if (p.format == Q4_1) return embed_quantised<Q4_1>(p, token, out);
    for (uint32_t i = threadIdx.x; i < p.dim / 4; i += 256) {
        const uint32_t k_tile = i / 4, t = i % 4;
        const __nv_bfloat16* lane = p.w + tile_at(token / 16, k_tile, p.k_tiles, p.grouped) + (g * 4 + t) * 8 + half * 2;
        const __nv_bfloat162 low = *(const __nv_bfloat162*)lane, high = *(const __nv_bfloat162*)(lane + 4);
        *(float2*)(out + k_tile * 16 + 2 * t) = __bfloat1622float2(low);
        *(float2*)(out + k_tile * 16 + 2 * t + 8) = __bfloat1622float2(high);
    }
}

// The sum over a block of 256 threads: warps by their tree, then the eight warps in order.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float warps[8];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = warps[0];
#pragma unroll
    for (int i = 1; i < 8; i++) sum = __fadd_rn(sum, warps[i]);
    return sum;
}

__device__ __forceinline__ void store4(__nv_bfloat16* to, float4 v) {
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    *(uint2*)to = *(const uint2*)pair;
}

struct NormArgs {
    const uint32_t* live;
    const float* x;
    const uint32_t* row_index;
    const float* weight;
    float* out;
    __nv_bfloat16* out_q;
    uint32_t rows, dim, q_stride;
    float eps;
};

// Thread t sums fma(x, x, acc) over the channels 4 t + 1024 j + (0..4) in order, from zero.
extern "C" __global__ void __launch_bounds__(256) rms_norm(const __grid_constant__ NormArgs p) {
    let_next_start();
    const uint32_t row = blockIdx.x;
    constexpr uint32_t HELD = 4;
    float4 v[HELD], w[HELD];
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++) {
        const uint32_t i = threadIdx.x * 4 + j * 1024;
        if (i < p.dim) w[j] = *(const float4*)(p.weight + i);
    }
    wait_for_previous();
    // A row past the live ones is read, since its bytes are there, and not written.
    const uint32_t live = *p.live;
    const float* x = p.x + (size_t)(p.row_index ? p.row_index[row] : row) * p.dim;
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++) {
        const uint32_t i = threadIdx.x * 4 + j * 1024;
        if (i < p.dim) v[j] = *(const float4*)(x + i);
    }
    if (row >= live) return;
    float sum = 0.0f;
    auto add = [&](float4 q) {
        sum = __fmaf_rn(q.x, q.x, sum);
        sum = __fmaf_rn(q.y, q.y, sum);
        sum = __fmaf_rn(q.z, q.z, sum);
        sum = __fmaf_rn(q.w, q.w, sum);
    };
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++)
        if (threadIdx.x * 4 + j * 1024 < p.dim) add(v[j]);
    for (uint32_t i = threadIdx.x * 4 + HELD * 1024; i < p.dim; i += 1024) add(*(const float4*)(x + i));
    sum = block_sum(sum);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)p.dim), p.eps)));
    auto put = [&](uint32_t i, float4 q, float4 w) {
        const float4 y = {__fmul_rn(__fmul_rn(q.x, r), w.x), __fmul_rn(__fmul_rn(q.y, r), w.y),
                          __fmul_rn(__fmul_rn(q.z, r), w.z), __fmul_rn(__fmul_rn(q.w, r), w.w)};
        if (p.out) *(float4*)(p.out + (size_t)row * p.dim + i) = y;
        if (p.out_q) store4(p.out_q + (size_t)row * p.q_stride + i, y);
    };
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++) {
        const uint32_t i = threadIdx.x * 4 + j * 1024;
        if (i < p.dim) put(i, v[j], w[j]);
    }
    for (uint32_t i = threadIdx.x * 4 + HELD * 1024; i < p.dim; i += 1024) put(i, *(const float4*)(x + i), *(const float4*)(p.weight + i));
}

struct RowsArgs {
    const uint32_t* live;
    const float* x;
    void* out;
    uint32_t rows, dim, out_stride, pad;
};

// f32 rows to the bf16 rows that matrices multiply, rounded to nearest even.
extern "C" __global__ void __launch_bounds__(256) quantize_rows(const __grid_constant__ RowsArgs p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.y, i = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (i >= p.dim) return;
    const float4 v = *(const float4*)(p.x + (size_t)row * p.dim + i);
    if (row >= min(*p.live, p.rows)) return;
    store4((__nv_bfloat16*)p.out + (size_t)row * p.out_stride + i, v);
}

extern "C" __global__ void __launch_bounds__(256) silu_mul(const __grid_constant__ RowsArgs p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.dim || row >= min(*p.live, p.rows)) return;
    const float* x = p.x + (size_t)row * 2 * p.dim + i;
    ((float*)p.out)[(size_t)row * p.dim + i] = __fmul_rn(silu_exact(x[0]), x[p.dim]);
}

struct RopeArgs {
    const uint32_t* live;
    float* qkv;
    const float* table;
    const uint32_t *positions, *write_slots;
    const float *q_norm, *k_norm;
    void *k_pages, *v_pages;
    uint32_t rows, heads, kv_heads, head_dim;
    uint32_t rotary_dim, adjacent, kv_f16;
    float eps;
    uint32_t first, pad;  // heads before the first stay as they are
};

template <class T> __device__ __forceinline__ void put_kv(void* pages, size_t at, float v);
template <> __device__ __forceinline__ void put_kv<float>(void* pages, size_t at, float v) {
    ((float*)pages)[at] = v;
}
template <> __device__ __forceinline__ void put_kv<__half>(void* pages, size_t at, float v) {
    ((__half*)pages)[at] = __float2half_rn(v);
}

// A warp a head of q, k or v, one after the other where rows are many. The norm's sum: lane l over the
// channels l + 32 j in order, then the warp's tree.
template <int N> __device__ __forceinline__ void rope_row(const RopeArgs& p) {
    let_next_start();
    __shared__ float heads[4][N * 32];
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, all = p.heads + 2 * p.kv_heads;
    uint32_t h = p.first + blockIdx.y * 4 + threadIdx.x / 32;
    if (h >= all) return;
    // Rows past the live ones are read, since their bytes are there, and not written.
    const uint32_t live = *p.live, position = p.positions[row], slot = p.write_slots[row];
    float* mine = heads[threadIdx.x / 32];
    const RopeShape shape = {p.head_dim, p.rotary_dim, p.adjacent, p.eps};
    RopeTables<N> tables;
    auto weight_of = [&](uint32_t of) { return of < p.heads ? p.q_norm : of < p.heads + p.kv_heads ? p.k_norm : nullptr; };
    const float* weight = weight_of(h);
    tables.load(shape, weight, p.table + (size_t)position * p.rotary_dim, lane);
    wait_for_previous();
    float* of_row = p.qkv + (size_t)row * all * p.head_dim;
    float v[N], next[N];
    auto load = [&](float (&to)[N], uint32_t of) {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[j] = of < all && lane + 32 * j < p.head_dim ? of_row[of * p.head_dim + lane + 32 * j] : 0.0f;
    };
    load(v, h);
    if (row >= live) return;
    const uint32_t step = gridDim.y * 4;
    for (; h < all; h += step) {
        load(next, h + step);
        const bool is_q = h < p.heads, is_v = h >= p.heads + p.kv_heads;
        if (weight_of(h) != weight) {
            weight = weight_of(h);
            tables.load(shape, weight, nullptr, lane);
        }
        if (weight) norm_head(v, shape, tables, lane);
        if (!is_v) turn_head(v, shape, tables, mine, lane);
        __syncwarp();
        const uint32_t kv_head = is_v ? h - p.heads - p.kv_heads : h - p.heads;
        const size_t at = (((size_t)(slot / 32) * p.kv_heads + kv_head) * 32 + slot % 32) * p.head_dim;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t d = lane + 32 * j;
            if (d < p.head_dim) {
                if (is_q) {
                    of_row[h * p.head_dim + d] = v[j];
                } else {
                    void* pages = is_v ? p.v_pages : p.k_pages;
                    if (p.kv_f16) put_kv<__half>(pages, at + d, v[j]); else put_kv<float>(pages, at + d, v[j]);
                }
            }
            v[j] = next[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) rope_kv_write(const __grid_constant__ RopeArgs p) {
    rope_row<8>(p);
}
// Heads of up to 128 channels.
extern "C" __global__ void __launch_bounds__(128) rope_kv_write_128(const __grid_constant__ RopeArgs p) {
    rope_row<4>(p);
}

struct PackArgs {
    const __nv_bfloat16* from;  // null: seeded values
    __nv_bfloat16* to;
    uint64_t seed;
    uint32_t n, k, k_tiles, tiles;
    float scale;
    uint32_t grouped;
};

// Row-major bf16 to tiles; rows past n are zero. Without a source, element i of the matrix is
// scale times a uniform value in -1..1 that follows from seed and i.
extern "C" __global__ void __launch_bounds__(256) pack_matrix(const __grid_constant__ PackArgs p) {
    const uint64_t elems = (uint64_t)p.tiles * 16 * p.k;
    for (uint64_t e = blockIdx.x * 256ull + threadIdx.x; e < elems; e += gridDim.x * 256ull) {
        const uint64_t tile = e / 256;
        const uint32_t i = e % 8, lane = e % 256 / 8, g = lane / 4, t = lane % 4;
        const uint32_t row = tile / p.k_tiles * 16 + g + (i / 2 % 2) * 8;
        const uint32_t col = tile % p.k_tiles * 16 + t * 2 + i % 2 + i / 4 * 8;
        __nv_bfloat16 v = __float2bfloat16_rn(0.0f);
        if (row < p.n) {
            const uint64_t at = (uint64_t)row * p.k + col;
            if (p.from) {
                v = p.from[at];
            } else {
                const uint64_t bits = mix64(p.seed + (at + 1) * 0x9e3779b97f4a7c15ull);
                const float u = __fmaf_rn((float)(uint32_t)(bits >> 40), 1.0f / 8388608.0f, -1.0f);
                v = __float2bfloat16_rn(__fmul_rn(u, p.scale));
            }
        }
        p.to[tile_at(tile / p.k_tiles, tile % p.k_tiles, p.k_tiles, p.grouped ? p.tiles : 0) + e % 256] = v;
    }
}

struct PackQuantisedArgs {
    const uint8_t* from;
    uint8_t* to;
    uint32_t n, k, tiles, format;
};

// Rows of blocks of 32, as GGUF files have them, to tiles of 16 rows by 64 channels; rows past n are
// zero. A thread takes the eight weights of a lane.
extern "C" __global__ void __launch_bounds__(256) pack_quantised(const __grid_constant__ PackQuantisedArgs p) {
    const uint32_t stages = p.k / 64, head = head_bytes(p.format), bytes = wide_tile_bytes(p.format);
    const uint32_t block_head = p.format == Q4_1 ? 4 : 2, block = block_head + (p.format == Q8_0 ? 32 : 16);
    const size_t row_bytes = (size_t)(p.k / 32) * block;
    const uint64_t lanes = (uint64_t)p.tiles * stages * 128;
    for (uint64_t e = blockIdx.x * 256ull + threadIdx.x; e < lanes; e += gridDim.x * 256ull) {
        const uint32_t lane = e % 32, k = e / 32 % 4, g = lane / 4, t = lane % 4;
        const uint64_t tile = e / 128;
        const uint32_t row0 = tile / stages * 16, first = tile % stages * 2;
        uint8_t* to = p.to + tile * bytes;
        uint64_t codes = 0;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t row = row0 + g + i / 2 % 2 * 8, col = k % 2 * 16 + t * 2 + i % 2 + i / 4 * 8;
            if (row >= p.n) continue;
            const uint8_t* q = p.from + row * row_bytes + (first + k / 2) * block + block_head;
            if (p.format == Q8_0) codes |= (uint64_t)q[col] << 8 * i;
            else codes |= (uint64_t)(col < 16 ? q[col] & 15 : q[col - 16] >> 4) << 4 * i;
        }
        if (p.format == Q8_0) *(uint64_t*)(to + head + k * 256 + lane * 8) = codes;
        else *(uint32_t*)(to + head + k * 128 + lane * 4) = (uint32_t)codes;
        // Lane r of the first two steps of 16 channels brings the scales of row r.
        if (k < 2 && lane < 16) {
            const bool live = row0 + lane < p.n;
            const uint8_t* from = p.from + (row0 + lane) * row_bytes + (first + k) * block;
            for (uint32_t b = 0; b < 2; b++) {
                to[lane * 4 + k * 2 + b] = live ? from[b] : 0;
                if (p.format == Q4_1) to[64 + lane * 4 + k * 2 + b] = live ? from[2 + b] : 0;
            }
        }
    }
}

struct DigestArgs {
    const ulonglong2* items;  // address, bytes
    uint64_t* out;
    uint32_t count, pad;
};

__device__ __forceinline__ uint64_t digest_step(uint64_t a, uint64_t w) {
    a = (a ^ w) * 0x9e3779b97f4a7c15ull;
    return a << 29 | a >> 35;
}

// The digest of crates/device/src/digest.rs, a warp an item: its lanes are that definition's.
extern "C" __global__ void __launch_bounds__(128) digest_items(const __grid_constant__ DigestArgs p) {
    const uint32_t item = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (item >= p.count) return;
    const ulonglong2 it = p.items[item];
    const uint8_t* bytes = (const uint8_t*)it.x;
    uint64_t a = (lane + 1ull) * 0x9e3779b97f4a7c15ull;
    const uint64_t words = it.y / 256 * 32;
#pragma unroll 8
    for (uint64_t w = lane; w < words; w += 32) a = digest_step(a, ((const uint64_t*)bytes)[w]);
    if (it.y % 256) {
        uint64_t word = 0;
        for (uint64_t i = 0; i < 8; i++) {
            const uint64_t at = (words + lane) * 8 + i;
            if (at < it.y) word |= (uint64_t)bytes[at] << (8 * i);
        }
        a = digest_step(a, word);
    }
    uint64_t h = it.y;
    for (int i = 0; i < 32; i++) h = digest_step(h, __shfl_sync(~0u, a, i));
    if (lane == 0) p.out[item] = h ^ h >> 32;
}

struct DifferenceArgs {
    const uint8_t *a, *b;
    unsigned long long* out;
    uint64_t len;
};

// Lowers *out to the first byte at which a and b differ.
extern "C" __global__ void __launch_bounds__(256) first_difference(const __grid_constant__ DifferenceArgs p) {
    const uint64_t words = p.len / 8, thread = blockIdx.x * 256ull + threadIdx.x;
    for (uint64_t w = thread; w < words; w += gridDim.x * 256ull) {
        const uint64_t x = ((const uint64_t*)p.a)[w] ^ ((const uint64_t*)p.b)[w];
        if (x == 0) continue;
        atomicMin(p.out, w * 8 + (__ffsll(x) - 1) / 8);
        return;
    }
    const uint64_t at = words * 8 + thread;
    if (at < p.len && p.a[at] != p.b[at]) atomicMin(p.out, at);
}
