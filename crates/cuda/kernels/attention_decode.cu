// registers: 168
// One kernel for rotation, the write of K and V, and attention of rows that are one token of their
// sequence each, over f16 pages.
//
// Definition: that of rope_kv_write, of attention_mma.cu and of attention_combine, to the bit. A
// row's own K and V are rounded to f16 as they go to their page, and seen as such here.
//
// A block takes a row and a KV head, or `ways` blocks of a cluster do, with every ways-th split.
// Pages come four at a time, one a warp. What positions before this token hold is older than the
// step, so it is asked for before the previous kernel has ended. Warp w makes the scores of page w;
// then each warp walks all four pages for its share of the channels: which warp made a score is of
// no consequence, the order of positions is that of one warp alone.
#include "attention_pages.cuh"
#include "gemm.cuh"
#include "rope.cuh"

struct DecodeArgs {
    const uint32_t* live;
    const float *qkv, *table;
    const uint32_t *positions, *token_seq, *block_table, *write_slots;
    const float *q_norm, *k_norm;
    void *k_pages, *v_pages, *out;
    uint32_t rows, heads, kv_heads, table_stride;
    uint32_t window, rotary_dim, adjacent, ways;
    uint32_t depth;  // groups of four pages that are on their way
    uint32_t kept;   // splits of a block whose results wait for the others
    float scale, eps;
};

constexpr uint32_t WARPS = 4, GROUP = WARPS, GROUPS_OF_SPLIT = SPLIT / PAGE / GROUP;
// Rows of the matrix instruction that hold heads.
constexpr uint32_t HEADS = 8;

// Shared memory of a block: pages, scores, then what is small.
template <int D> struct Room {
    static constexpr uint32_t PAGE_BYTES = PAGE * D * 2, Q_STRIDE = D * 2 + 16;
    static constexpr uint32_t SCORES = GROUP * 1024, TOPS = GROUP * HEADS * 4, Q = HEADS * Q_STRIDE,
                              FRESH = 2 * D * 2, TURN = WARPS * D * 4;
    unsigned char* base;
    uint32_t depth;
    __device__ uint32_t k_page(uint32_t i, uint32_t warp) const { return ((i % depth) * GROUP + warp) * PAGE_BYTES; }
    __device__ uint32_t v_page(uint32_t i, uint32_t warp) const { return k_page(i, warp) + depth * GROUP * PAGE_BYTES; }
    __device__ unsigned char* behind_pages() const { return base + depth * 2 * GROUP * PAGE_BYTES; }
    __device__ float4* scores() const { return (float4*)behind_pages(); }
    __device__ float* tops() const { return (float*)(behind_pages() + SCORES); }
    __device__ unsigned char* q() const { return behind_pages() + SCORES + TOPS; }
    __device__ __half* fresh() const { return (__half*)(behind_pages() + SCORES + TOPS + Q); }
    __device__ float* turn() const { return (float*)(behind_pages() + SCORES + TOPS + Q + FRESH); }
    __device__ float* kept() const { return (float*)(behind_pages() + SCORES + TOPS + Q + FRESH + TURN); }
};

template <int D> __device__ __forceinline__ void decode_body(const DecodeArgs& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr uint32_t N = D < 32 ? 1 : D / 32, PIECES = PAGE * D / 8;
    // Tiles of eight channels that a warp adds up.
    constexpr uint32_t NT = D / 8 / WARPS < 2 ? 2 : D / 8 / WARPS;
    let_next_start();
    const uint32_t live = min(*p.live, p.rows), per_kv = p.heads / p.kv_heads;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t rank = blockIdx.x % p.ways, at = blockIdx.x / p.ways;
    const uint32_t kv_head = at % p.kv_heads, row = at / p.kv_heads;
    if (row >= live) return;  // all blocks of a cluster alike
    const Room<D> room = {shared, p.depth};
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t position = p.positions[row], lo = first_seen(p.window, position);
    const uint32_t split0 = lo / SPLIT, splits = position / SPLIT - split0 + 1;
    const uint32_t first = lo / PAGE, last = position / PAGE + 1;  // pages
    const bool clustered = p.ways > 1;
    const uint32_t mine = rank < splits ? (splits - rank + p.ways - 1) / p.ways : 0;
    const bool has_last = mine > 0 && rank + (mine - 1) * p.ways == splits - 1;
    // Groups of pages, in order; those of a split's end that hold nothing are passed over.
    auto group_of = [&](uint32_t i) {
        return (split0 + rank + i / GROUPS_OF_SPLIT * p.ways) * GROUPS_OF_SPLIT + i % GROUPS_OF_SPLIT;
    };
    uint32_t groups = mine * GROUPS_OF_SPLIT;
    while (groups > 0 && group_of(groups - 1) * GROUP >= last) groups--;

    // Page numbers of this warp, one a lane, of 32 groups at a time.
    const uint32_t* table = p.block_table + (size_t)p.token_seq[row] * p.table_stride;
    uint32_t numbers = 0;
    auto refill = [&](uint32_t from) {
        const uint32_t page = from + lane < groups ? group_of(from + lane) * GROUP + warp : last;
        numbers = page >= first && page < last ? table[page] : 0;
    };
    refill(0);
    // Positions before this one; the others of its page are zeros.
    auto ask = [&](uint32_t i, bool values) {
        const uint32_t page = i < groups ? group_of(i) * GROUP + warp : last;
        if (!values && i > 0 && i % 32 == 0) refill(i);
        const size_t number = __shfl_sync(~0u, numbers, i % 32);
        if (page >= first && page < last) {
            const char* from = (const char*)(values ? p.v_pages : p.k_pages)
                             + (number * p.kv_heads + kv_head) * Room<D>::PAGE_BYTES;
            const uint32_t to = base + (values ? room.v_page(i, warp) : room.k_page(i, warp));
#pragma unroll 8
            for (uint32_t j = lane; j < PIECES; j += 32) {
                const uint32_t in_page = j / (D / 8), at = page * PAGE + in_page;
                const uint32_t bytes = at >= lo && at < position ? 16 : 0;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(to + piece_at<D>(in_page, j % (D / 8))), "l"(from + j * 16), "r"(bytes) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    auto arrived = [&]() {
        if (p.depth == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
        else asm volatile("cp.async.wait_group 3;" ::: "memory");
        __syncwarp();
    };
    // Numbers of 32 groups are at hand while values of the last of them are still to be asked for.
    uint32_t v_numbers = numbers;
    auto ask_keys = [&](uint32_t i) { ask(i, false); };
    auto ask_values = [&](uint32_t i) {
        const uint32_t of_keys = numbers;
        numbers = v_numbers;
        if (i > 0 && i % 32 == 0) refill(i);
        v_numbers = numbers;
        ask(i, true);
        numbers = of_keys;
    };
    for (uint32_t i = 0; i < p.depth; i++) {
        ask_keys(i);
        ask_values(i);
    }

    // Heads: q, then this token's k and v where its page is this block's.
    const RopeShape shape = {(uint32_t)D, p.rotary_dim, p.adjacent, p.eps};
    const uint32_t jobs = mine == 0 ? 0 : per_kv + (has_last ? 2 : 0);
    const float* turn = p.table + (size_t)position * p.rotary_dim;
    const uint32_t slot = p.write_slots[row];
    const float* of_row = p.qkv + (size_t)row * (p.heads + 2 * p.kv_heads) * D;
    auto head_of = [&](uint32_t job) {
        return job < per_kv ? kv_head * per_kv + job : p.heads + (job - per_kv) * p.kv_heads + kv_head;
    };
    RopeTables<N> tables[2];
    float v[2][N];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t job = warp + i * WARPS;
        if (job < jobs && job != per_kv + 1) tables[i].load(shape, job < per_kv ? p.q_norm : p.k_norm, turn, lane);
    }
    wait_for_previous();
    for (uint32_t from = warp; from < jobs; from += 2 * WARPS) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t job = from + i * WARPS;
#pragma unroll
            for (int j = 0; j < N; j++)
                v[i][j] = job < jobs && lane + 32 * j < D ? of_row[(size_t)head_of(job) * D + lane + 32 * j] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t job = from + i * WARPS;
            if (job >= jobs) break;
            const bool is_q = job < per_kv, is_v = job == per_kv + 1;
            const float* weight = is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
            if (from != warp && !is_v) tables[i].load(shape, weight, turn, lane);
            if (weight) norm_head(v[i], shape, tables[i], lane);
            if (!is_v) turn_head(v[i], shape, tables[i], room.turn() + warp * D, lane);
            __syncwarp();
            __half* pages = (__half*)(is_v ? p.v_pages : p.k_pages);
            const size_t to = (((size_t)(slot / 32) * p.kv_heads + kv_head) * 32 + slot % 32) * D;
            __half* near = is_q ? (__half*)(room.q() + job * Room<D>::Q_STRIDE) : room.fresh() + (is_v ? D : 0);
#pragma unroll
            for (int j = 0; j < N; j++) {
                const uint32_t d = lane + 32 * j;
                if (d >= D) continue;
                const __half h = __float2half_rn(is_q ? __fmul_rn(v[i][j], p.scale) : v[i][j]);
                near[d] = h;
                if (!is_q) pages[to + d] = h;
            }
        }
    }
    __syncthreads();
    uint32_t q[D / 16][4];
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        const uint32_t* line = (const uint32_t*)(room.q() + g * Room<D>::Q_STRIDE) + kk * 8 + t;
        q[kk][0] = g < per_kv ? line[0] : 0;
        q[kk][2] = g < per_kv ? line[4] : 0;
        q[kk][1] = q[kk][3] = 0;
    }

    // Of head g: the split's so far, and all splits before it.
    float o[NT][4], m = -INFINITY, l = 0.0f, all_o[NT][2], all_m = 0.0f, all_l = 0.0f;
    auto clear = [&]() {
#pragma unroll
        for (uint32_t j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[j][c] = 0.0f;
        m = -INFINITY;
        l = 0.0f;
    };
    clear();
    const uint32_t mat = lane / 8, in_mat = lane % 8;
    const bool adds = warp * NT < D / 8;
    const float4* fresh = (const float4*)room.fresh();
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t page = group_of(i) * GROUP + warp;
        const bool is = page >= first && page < last, is_own = is && page == position / PAGE;
        arrived();
        if (is) {
            const uint32_t k_at = room.k_page(i, warp);
            if (is_own) {
                if (lane < D / 8) *(float4*)(shared + k_at + piece_at<D>(position % PAGE, lane)) = fresh[lane];
                __syncwarp();
            }
            float s[4][4];
            page_scores<D>(s, q, base + k_at);
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const uint32_t seen = page * PAGE + j * 8 + t * 2 + c;
                    if (seen < lo || seen > position) s[j][c] = -INFINITY;
                    top = fmaxf(top, s[j][c]);
                }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            if (t == 0) room.tops()[warp * HEADS + g] = top;
            room.scores()[warp * 64 + lane] = make_float4(s[0][0], s[0][1], s[1][0], s[1][1]);
            room.scores()[warp * 64 + 32 + lane] = make_float4(s[2][0], s[2][1], s[3][0], s[3][1]);
        }
        __syncwarp();
        ask_keys(i + p.depth);
        arrived();
        if (is_own) {
            if (lane < D / 8)
                *(float4*)(shared + room.v_page(i, warp) + piece_at<D>(position % PAGE, lane)) = fresh[D / 8 + lane];
        }
        __syncthreads();
#pragma unroll
        for (uint32_t w = 0; w < GROUP; w++) {
            const uint32_t there = group_of(i) * GROUP + w;
            if (!adds || there < first || there >= last) continue;
            const float4 low = room.scores()[w * 64 + lane], high = room.scores()[w * 64 + 32 + lane];
            float s[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
            const float top = fmaxf(m, room.tops()[w * HEADS + g]), under = top == -INFINITY ? 0.0f : top;
            const float a = exp2_fast(__fsub_rn(m, under));
            float sum = 0.0f;
            m = top;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    s[j][c] = exp2_fast(__fsub_rn(s[j][c], under));
                    sum = __fadd_rn(sum, s[j][c]);
                }
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
            l = __fmaf_rn(l, a, sum);
#pragma unroll
            for (uint32_t j = 0; j < NT; j++) {
                o[j][0] = __fmul_rn(o[j][0], a);
                o[j][1] = __fmul_rn(o[j][1], a);
            }
            const uint32_t v_at = base + room.v_page(i, w);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t weights[4] = {halves(s[2 * half][0], s[2 * half][1]), 0,
                                             halves(s[2 * half + 1][0], s[2 * half + 1][1]), 0};
#pragma unroll
                for (uint32_t j = 0; j < NT; j += 2) {
                    uint32_t b[4];
                    ldmatrix4<true>(b, v_at + piece_at<D>(half * 16 + mat % 2 * 8 + in_mat, warp * NT + j + mat / 2));
                    mma(o[j], weights, b[0], b[1]);
                    mma(o[j + 1], weights, b[2], b[3]);
                }
            }
        }
        __syncthreads();
        ask_values(i + p.depth);
        if (i % GROUPS_OF_SPLIT != GROUPS_OF_SPLIT - 1 && i + 1 != groups) continue;
        const uint32_t split = i / GROUPS_OF_SPLIT;
        if (clustered) {
            float* to = room.kept() + (split * per_kv + g) * (D + PART_EXTRA);
            if (adds && g < per_kv) {
#pragma unroll
                for (uint32_t j = 0; j < NT; j++)
                    *(float2*)(to + (warp * NT + j) * 8 + t * 2) = make_float2(o[j][0], o[j][1]);
                if (warp == 0 && t == 0) *(float2*)(to + D) = make_float2(m, l);
            }
        } else if (split == 0) {
            all_m = m;
            all_l = l;
#pragma unroll
            for (uint32_t j = 0; j < NT; j++) {
                all_o[j][0] = o[j][0];
                all_o[j][1] = o[j][1];
            }
        } else {
            const Fold fold(true, all_m, all_l, m, l);
#pragma unroll
            for (uint32_t j = 0; j < NT; j++) {
                all_o[j][0] = fold.value(all_o[j][0], o[j][0]);
                all_o[j][1] = fold.value(all_o[j][1], o[j][1]);
            }
        }
        clear();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");

    __nv_bfloat16* out = (__nv_bfloat16*)p.out + ((size_t)row * p.heads + kv_head * per_kv) * D;
    if (!clustered) {
        if (!adds || g >= per_kv) return;
        const float inverse = __fdiv_rn(1.0f, all_l);
#pragma unroll
        for (uint32_t j = 0; j < NT; j++)
            *(__nv_bfloat162*)(out + g * D + (warp * NT + j) * 8 + t * 2) =
                __floats2bfloat162_rn(__fmul_rn(all_o[j][0], inverse), __fmul_rn(all_o[j][1], inverse));
        return;
    }
    cluster_barrier();
    const uint32_t kept_at = (uint32_t)__cvta_generic_to_shared(room.kept());
    for (uint32_t e = (rank * 128 + threadIdx.x) * 4; e < per_kv * D; e += p.ways * 128 * 4) {
        const uint32_t head = e / D, channel = e % D;
        float4 sum;
        float top = 0.0f, all = 0.0f;
        for (uint32_t s = 0; s < splits; s++) {
            const uint32_t from = kept_at + (s / p.ways * per_kv + head) * (D + PART_EXTRA) * 4;
            const float4 ml = peer_floats(from + D * 4, s % p.ways, true);
            const float4 value = peer_floats(from + channel * 4, s % p.ways, true);
            if (s == 0) {
                top = ml.x;
                all = ml.y;
                sum = value;
            } else {
                const Fold fold(true, top, all, ml.x, ml.y);
                sum = {fold.value(sum.x, value.x), fold.value(sum.y, value.y), fold.value(sum.z, value.z),
                       fold.value(sum.w, value.w)};
            }
        }
        const float inverse = __fdiv_rn(1.0f, all);
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(__fmul_rn(sum.x, inverse), __fmul_rn(sum.y, inverse)),
                                  __floats2bfloat162_rn(__fmul_rn(sum.z, inverse), __fmul_rn(sum.w, inverse))};
        *(uint2*)(out + e) = *(const uint2*)pair;
    }
    // Nobody leaves while another block may still read its shared memory.
    cluster_barrier();
}

#define DECODE(D)                                                                       \
    extern "C" __global__ void __launch_bounds__(128, 3)                                \
        attention_decode_##D(const __grid_constant__ DecodeArgs p) { decode_body<D>(p); }
DECODE(16)
DECODE(32)
DECODE(64)
DECODE(128)
