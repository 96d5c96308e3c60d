// registers: 200
// Paged causal grouped-query attention in two ops: partial results of fixed splits, then their
// combination. Partial results of f16 pages of up to 128 channels are `attention_mma.cu`'s.
//
// Definition, of one row at position t and one query head over its KV head, which sees the
// positions lo..=t:
// - q' = q * scale, scale = 1 / sqrt(head_dim) rounded to f32.
// - A score: lane i of head_dim / 8 lanes chains fma(q', k, s) over its eight channels from zero;
//   the lanes are added by the tree of halving distances. (Lanes of several positions are added
//   together, each lane keeping half of the positions a step; the sums are those of the tree.)
// - Positions are cut at multiples of 256, never elsewhere. Of a split: m = greatest score;
//   p = exp(score - m); l = the sum of p, lane i of 32 over the positions i + 32 j in order, then
//   the tree.
// - Position j of a split belongs to group j mod G, G = 2048 / head_dim groups of lanes in eight
//   warps; a group chains o = fma(p, v, o) over its positions in order; groups of a warp are
//   added by the tree of halving distances, warps in order.
// - Splits are folded from the left as the CPU device folds them.
// A position that a row does not see takes no part, and nothing depends on another row.
#include "attention.cuh"

constexpr int AT_ONCE = 4;  // query heads whose sums are in registers together

struct Eight {
    float v[8];
};

template <class T> struct Raw;
template <> struct Raw<__half> { uint4 a; };
template <> struct Raw<float> { float4 a, b; };

__device__ __forceinline__ void load_raw(Raw<__half>& r, const __half* p) { r.a = __ldg((const uint4*)p); }
__device__ __forceinline__ void load_raw(Raw<float>& r, const float* p) {
    r.a = __ldg((const float4*)p);
    r.b = __ldg((const float4*)p + 1);
}
__device__ __forceinline__ Eight widen(const Raw<__half>& r) {
    const float2 a = __half22float2(*(const __half2*)&r.a.x), b = __half22float2(*(const __half2*)&r.a.y);
    const float2 c = __half22float2(*(const __half2*)&r.a.z), d = __half22float2(*(const __half2*)&r.a.w);
    return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}
__device__ __forceinline__ Eight widen(const Raw<float>& r) {
    return {{r.a.x, r.a.y, r.a.z, r.a.w, r.b.x, r.b.y, r.b.z, r.b.w}};
}

__host__ __device__ constexpr int at_most(int a, int b) { return a < b ? a : b; }

// Adds LANES lanes of B values each by the tree of halving distances; lane i is left with value
// i / (LANES / B).
template <int B, int LANES>
__device__ __forceinline__ float add_lanes(float (&s)[B], uint32_t lane) {
    int n = B;
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1) {
        if (n > 1) {
            const bool high = lane & d;
            n /= 2;
#pragma unroll
            for (int i = 0; i < B / 2; i++)
                if (i < n) {
                    const float mine = high ? s[i + n] : s[i], other = high ? s[i] : s[i + n];
                    s[i] = __fadd_rn(mine, __shfl_xor_sync(~0u, other, d));
                }
        } else {
            s[0] = __fadd_rn(s[0], __shfl_xor_sync(~0u, s[0], d));
        }
    }
    return s[0];
}

constexpr int WARPS = 8, THREADS = 32 * WARPS;

template <int D, class T>
__device__ __forceinline__ void partial_body(const AttnArgs& p) {
    constexpr int LANES = D / 8, GROUPS_WARP = 32 / LANES, GROUPS = WARPS * GROUPS_WARP;
    constexpr int EACH = SPLIT / GROUPS, B = at_most(at_most(8, LANES), EACH);
    extern __shared__ float shared[];
    __shared__ uint32_t pages[SPLIT / 32];
    let_next_start();
    wait_for_previous();
    const uint32_t way = blockIdx.x % p.ways, at = blockIdx.x / p.ways;
    const uint32_t kv_head = at % p.kv_heads, row = at / p.kv_heads;
    const uint32_t per_kv = p.heads / p.kv_heads;
    const uint32_t live = *p.live, position = p.positions[row], seq = p.token_seq[row];
    if (row >= min(live, p.rows)) return;
    const uint32_t seen = position + 1, lo = p.window && seen > p.window ? seen - p.window : 0;
    const uint32_t first_split = lo / SPLIT, splits = position / SPLIT - first_split + 1;
    if (p.parts > 1 && way >= splits) return;

    float* q = shared;                         // [per_kv][D]
    float* scores = q + per_kv * D;            // [per_kv][SPLIT]
    float* sums = scores + per_kv * SPLIT;     // [WARPS][AT_ONCE][D]
    float* ml = sums + WARPS * AT_ONCE * D;    // [per_kv][4]: m, l of the split; m, l so far
    float* folded = ml + per_kv * 4;           // [per_kv][D], where splits are folded here
    const uint32_t width = (p.heads + 2 * p.kv_heads) * D;
    for (uint32_t i = threadIdx.x; i < per_kv * D; i += THREADS)
        q[i] = __fmul_rn(p.qkv[(size_t)row * width + kv_head * per_kv * D + i], p.scale);
    const uint32_t* table = p.block_table + (size_t)seq * p.table_stride;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t group = warp * GROUPS_WARP + lane / LANES, d0 = lane % LANES * 8;
    const T* k_pages = (const T*)p.k_pages;
    const T* v_pages = (const T*)p.v_pages;

    const uint32_t step = p.parts > 1 ? p.ways : 1;
    for (uint32_t split = p.parts > 1 ? way : 0; split < splits; split += step) {
        const uint32_t start = (first_split + split) * SPLIT;
        const uint32_t end = min(start + SPLIT, seen), from = max(start, lo);
        if (threadIdx.x < SPLIT / 32 && start + threadIdx.x * 32 < end)
            pages[threadIdx.x] = table[start / 32 + threadIdx.x];
        __syncthreads();
        auto line = [&](uint32_t j) {
            return (((size_t)pages[j / 32] * p.kv_heads + kv_head) * 32 + j % 32) * D + d0;
        };
        auto sees = [&](uint32_t j) { return start + j >= from && start + j < end; };
#pragma unroll 1
        for (int i0 = 0; i0 < EACH; i0 += B) {
            Raw<T> k[B];
#pragma unroll
            for (int i = 0; i < B; i++) {
                const uint32_t j = group + GROUPS * (i0 + i);
                k[i] = {};
                if (sees(j)) load_raw(k[i], k_pages + line(j));
            }
            for (uint32_t h = 0; h < per_kv; h++) {
                float s[B];
#pragma unroll
                for (int i = 0; i < B; i++) {
                    const Eight e = widen(k[i]);
                    s[i] = 0.0f;
#pragma unroll
                    for (int c = 0; c < 8; c++) s[i] = __fmaf_rn(q[h * D + d0 + c], e.v[c], s[i]);
                }
                const float sum = add_lanes<B, LANES>(s, lane);
                const uint32_t j = group + GROUPS * (i0 + lane % LANES / (LANES / B));
                if (lane % (LANES / B) == 0) scores[h * SPLIT + j] = sees(j) ? sum : -INFINITY;
            }
        }
        // The first values are on their way while scores become weights.
        Raw<T> v[B];
        auto load_values = [&](int i0) {
#pragma unroll
            for (int i = 0; i < B; i++) {
                const uint32_t j = group + GROUPS * (i0 + i);
                if (sees(j)) load_raw(v[i], v_pages + line(j));
            }
        };
        load_values(0);
        __syncthreads();
        for (uint32_t h = warp; h < per_kv; h += WARPS) {
            float s[SPLIT / 32], m = -INFINITY, l = 0.0f;
#pragma unroll
            for (int j = 0; j < SPLIT / 32; j++) {
                s[j] = scores[h * SPLIT + lane + 32 * j];
                m = fmaxf(m, s[j]);
            }
            m = warp_max(m);
#pragma unroll
            for (int j = 0; j < SPLIT / 32; j++) {
                const bool seen_here = sees(lane + 32 * j);
                const float e = seen_here ? exp_exact(__fsub_rn(s[j], m)) : 0.0f;
                scores[h * SPLIT + lane + 32 * j] = e;
                if (seen_here) l = __fadd_rn(l, e);
            }
            l = warp_sum(l);
            if (lane == 0) {
                ml[h * 4] = m;
                ml[h * 4 + 1] = l;
            }
        }
        __syncthreads();
        for (uint32_t h0 = 0; h0 < per_kv; h0 += AT_ONCE) {
            float o[AT_ONCE][8];
#pragma unroll
            for (int h = 0; h < AT_ONCE; h++)
#pragma unroll
                for (int i = 0; i < 8; i++) o[h][i] = 0.0f;
#pragma unroll 1
            for (int i0 = 0; i0 < EACH; i0 += B) {
                if (i0 > 0 || h0 > 0) load_values(i0);
#pragma unroll
                for (int i = 0; i < B; i++) {
                    const uint32_t j = group + GROUPS * (i0 + i);
                    if (!sees(j)) continue;
                    const Eight e = widen(v[i]);
#pragma unroll
                    for (int h = 0; h < AT_ONCE; h++)
                        if (h0 + h < per_kv) {
                            const float w = scores[(h0 + h) * SPLIT + j];
#pragma unroll
                            for (int c = 0; c < 8; c++) o[h][c] = __fmaf_rn(w, e.v[c], o[h][c]);
                        }
                }
            }
#pragma unroll
            for (int h = 0; h < AT_ONCE; h++) {
                if (h0 + h >= per_kv) break;
#pragma unroll
                for (int i = 0; i < 8; i++) {
#pragma unroll
                    for (int d = 16; d >= LANES; d >>= 1)
                        o[h][i] = __fadd_rn(o[h][i], __shfl_xor_sync(~0u, o[h][i], d));
                    if (lane < LANES) sums[(warp * AT_ONCE + h) * D + d0 + i] = o[h][i];
                }
            }
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < AT_ONCE * D; i += THREADS) {
                const uint32_t h = h0 + i / D, d = i % D;
                if (h >= per_kv) break;
                float sum = sums[i];
#pragma unroll
                for (int w = 1; w < WARPS; w++) sum = __fadd_rn(sum, sums[w * AT_ONCE * D + i]);
                if (p.parts > 1) {
                    float* part = p.scratch
                        + (((size_t)row * p.heads + kv_head * per_kv + h) * p.parts + split) * (D + PART_EXTRA);
                    part[d] = sum;
                    if (d < 2) part[D + d] = ml[h * 4 + d];
                } else if (split == 0) {
                    folded[h * D + d] = sum;
                } else {
                    float m = ml[h * 4 + 2], l = ml[h * 4 + 3];
                    const Fold fold(false, m, l, ml[h * 4], ml[h * 4 + 1]);
                    folded[h * D + d] = fold.value(folded[h * D + d], sum);
                }
            }
            __syncthreads();
        }
        if (p.parts == 1) {
            for (uint32_t h = threadIdx.x; h < per_kv; h += THREADS) {
                float m = ml[h * 4], l = ml[h * 4 + 1];
                if (split > 0) {
                    float m1 = ml[h * 4 + 2], l1 = ml[h * 4 + 3];
                    const Fold fold(false, m1, l1, m, l);
                    m = m1;
                    l = l1;
                }
                ml[h * 4 + 2] = m;
                ml[h * 4 + 3] = l;
            }
            __syncthreads();
        }
    }
    if (p.parts == 1) {
        for (uint32_t i = threadIdx.x; i < per_kv * D; i += THREADS) {
            float* part = p.scratch + ((size_t)row * p.heads + kv_head * per_kv + i / D) * (D + PART_EXTRA);
            part[i % D] = folded[i];
            if (i % D < 2) part[D + i % D] = ml[i / D * 4 + 2 + i % D];
        }
    }
}

#define PARTIAL(NAME, D, T, BLOCKS)                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                       \
        attention_partial_##NAME(const __grid_constant__ AttnArgs p) { partial_body<D, T>(p); }
PARTIAL(f16_256, 256, __half, 2)
PARTIAL(f32_16, 16, float, 1)
PARTIAL(f32_32, 32, float, 1)
PARTIAL(f32_64, 64, float, 1)
PARTIAL(f32_128, 128, float, 1)
PARTIAL(f32_256, 256, float, 1)

// A warp a row and head; lane l has the channels l + 32 j.
extern "C" __global__ void __launch_bounds__(128) attention_combine(const __grid_constant__ AttnArgs p) {
    let_next_start();
    const uint32_t at = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row = at / p.heads;
    if (row >= p.rows) return;
    const uint32_t live = *p.live, position = p.positions[row];
    if (row >= live) return;
    const uint32_t seen = position + 1, lo = p.window && seen > p.window ? seen - p.window : 0;
    const uint32_t splits = p.parts > 1 ? position / SPLIT - lo / SPLIT + 1 : 1;
    wait_for_previous();
    const uint32_t part_floats = p.head_dim + PART_EXTRA;
    const float* part = p.scratch + (size_t)at * p.parts * part_floats;
    float m = part[p.head_dim], l = part[p.head_dim + 1], o[8];
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] = lane + 32 * j < p.head_dim ? part[lane + 32 * j] : 0.0f;
    for (uint32_t s = 1; s < splits; s++) {
        part += part_floats;
        const Fold fold(p.base2, m, l, part[p.head_dim], part[p.head_dim + 1]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (lane + 32 * j < p.head_dim) o[j] = fold.value(o[j], part[lane + 32 * j]);
    }
    const float inverse = __fdiv_rn(1.0f, l);
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (lane + 32 * j < p.head_dim) {
            const size_t to = (size_t)at * p.head_dim + lane + 32 * j;
            const float y = __fmul_rn(o[j], inverse);
            if (p.out_bf16) ((__nv_bfloat16*)p.out)[to] = __float2bfloat16_rn(y); else ((float*)p.out)[to] = y;
        }
}
