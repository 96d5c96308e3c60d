// registers: 248
// Partial results of paged causal grouped-query attention over f16 pages, on tensor cores, for one
// token a sequence and for whole chunks.
//
// Definition, of one row at position t and one query head over its KV head, which sees the
// positions lo..=t:
// - q' = f16(q * scale), scale = log2(e) / sqrt(head_dim) rounded to f32. A score is a chain of
//   mma.m16n8k16 over its channels in order from zero.
// - Positions are cut into splits at multiples of 256, never elsewhere; a split is walked page by
//   page (32 positions) from m = -infinity, l = 0, o = 0:
//   m' = max(m, scores of the page); a = 2^(m - m'); p = 2^(s - m'), zero where the row sees nothing;
//   l = fma(l, a, sum), sum: thread t of four adds its positions 8 j + 2 t and 8 j + 2 t + 1 in
//   order of j, the four by the tree of halving distances from one up;
//   o = o a, then mma.m16n8k16 over the page's two halves with f16(p).
// - Splits are folded from the left. Where there is one part and the plan's combination comes right after,
//   the row is written here.
// A page of which a row sees nothing leaves m, l and o as they are, so it is of no consequence which
// pages a row is led past, and with whom: a row of an mma depends on no other.
//
// A warp takes 16 rows: the heads of one token, or of several tokens of one sequence. Where a bucket
// has chunks, four warps share the pages of a tile of tokens if all of them are of one sequence; a
// token of another tile, or of a bucket without chunks, is a warp's own. Pages come by asynchronous
// copies, two ahead, with swizzled rows; positions that nobody sees are zeros.
#include "attention_pages.cuh"

constexpr int STAGES = 3;

// What a thread knows of its rows g and g + 8.
struct Rows {
    uint32_t row[2], head[2];  // row of the batch, query head
    uint32_t lo[2], end[2];    // positions seen; end 0 where there is no row
    __device__ bool sees(int r, uint32_t position) const { return position >= lo[r] && position < end[r]; }
};

template <int D> struct Sums {
    float o[D / 8][4], m[2], l[2];
    __device__ void clear() {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[j][c] = 0.0f;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0.0f;
    }
};

// A page: scores, weights, values.
template <int D>
__device__ __forceinline__ void see_page(Sums<D>& sums, const uint32_t (&q)[D / 16][4], const Rows& rows,
                                         uint32_t start, uint32_t k_at, uint32_t v_at) {
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    const uint32_t mat = lane / 8, in_mat = lane % 8;
    float s[4][4];
    page_scores<D>(s, q, k_at);
    float top[2] = {sums.m[0], sums.m[1]};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (!rows.sees(c / 2, start + j * 8 + t * 2 + c % 2)) s[j][c] = -INFINITY;
            top[c / 2] = fmaxf(top[c / 2], s[j][c]);
        }
    float a[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        const float base = top[r] == -INFINITY ? 0.0f : top[r];
        a[r] = exp2_fast(__fsub_rn(sums.m[r], base));
        sums.m[r] = top[r];
        top[r] = base;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[j][c] = exp2_fast(__fsub_rn(s[j][c], top[c / 2]));
            sum[c / 2] = __fadd_rn(sum[c / 2], s[j][c]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 2));
        sums.l[r] = __fmaf_rn(sums.l[r], a[r], sum[r]);
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums.o[j][c] = __fmul_rn(sums.o[j][c], a[c / 2]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t w[4] = {halves(s[2 * half][0], s[2 * half][1]), halves(s[2 * half][2], s[2 * half][3]),
                               halves(s[2 * half + 1][0], s[2 * half + 1][1]),
                               halves(s[2 * half + 1][2], s[2 * half + 1][3])};
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            uint32_t b[4];
            ldmatrix4<true>(b, v_at + piece_at<D>(half * 16 + mat % 2 * 8 + in_mat, j + mat / 2));
            mma(sums.o[j], w, b[0], b[1]);
            mma(sums.o[j + 1], w, b[2], b[3]);
        }
    }
}

// Where part `part` of this thread's row r lies.
template <int D>
__device__ __forceinline__ float* part_at(const AttnArgs& p, const Rows& rows, int r, uint32_t part) {
    return p.scratch + (((size_t)rows.row[r] * p.heads + rows.head[r]) * p.parts + part) * (D + PART_EXTRA);
}

// Writes this thread's channels of row r, folded with what it wrote before where `fold`.
template <int D>
__device__ __forceinline__ void put_values(float* to, const Sums<D>& sums, int r, const Fold* fold) {
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        float2* at = (float2*)(to + j * 8 + threadIdx.x % 4 * 2);
        float2 v = make_float2(sums.o[j][2 * r], sums.o[j][2 * r + 1]);
        if (fold) {
            const float2 before = *at;
            v = make_float2(fold->value(before.x, v.x), fold->value(before.y, v.y));
        }
        *at = v;
    }
}

// Writes this thread's channels of row r as the combination would: `fold` brings in what it wrote before.
template <int D>
__device__ __forceinline__ void put_whole(const AttnArgs& p, const Rows& rows, const float* before, const Sums<D>& sums,
                                          int r, const Fold* fold, float l) {
    const float inverse = __fdiv_rn(1.0f, l);
    __nv_bfloat16* out = (__nv_bfloat16*)p.out + ((size_t)rows.row[r] * p.heads + rows.head[r]) * D;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const uint32_t at = j * 8 + threadIdx.x % 4 * 2;
        float2 v = make_float2(sums.o[j][2 * r], sums.o[j][2 * r + 1]);
        if (fold) {
            const float2 b = *(const float2*)(before + at);
            v = make_float2(fold->value(b.x, v.x), fold->value(b.y, v.y));
        }
        *(__nv_bfloat162*)(out + at) = __floats2bfloat162_rn(__fmul_rn(v.x, inverse), __fmul_rn(v.y, inverse));
    }
}

// Leads the rows of a warp past pages [first, last) of sequence `seq`, with the other warps of the
// block where `block`. Pages before `old` were written before this step.
template <int D>
__device__ __forceinline__ void walk(const AttnArgs& p, const Rows& rows, uint32_t seq, uint32_t kv_head,
                                     uint32_t first, uint32_t last, uint32_t old, uint32_t seen_from, uint32_t seen_to,
                                     bool block) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr uint32_t HALF = PAGE * D * 2, PIECES = PAGE * D / 8;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), lane = threadIdx.x % 32;
    const uint32_t thread = block ? threadIdx.x : lane, threads = block ? blockDim.x : 32;
    const uint32_t* table = p.block_table + (size_t)seq * p.table_stride;

    // Page numbers, one a lane, of 32 pages at a time.
    uint32_t numbers = 0, numbers_from = first;
    auto refill = [&](uint32_t from) {
        numbers_from = from;
        numbers = from + lane < last ? table[from + lane] : 0;
    };
    refill(first);
    auto ask = [&](uint32_t page) {
        if (page < last) {
            if (page - numbers_from >= 32) refill(page);
            const size_t number = __shfl_sync(~0u, numbers, page - numbers_from);
            const size_t from = (number * p.kv_heads + kv_head) * HALF;
            const uint32_t to = base + page % STAGES * 2 * HALF;
            for (uint32_t i = thread; i < PIECES; i += threads) {
                const uint32_t position = i / (D / 8), at = page * PAGE + position;
                const uint32_t bytes = at >= seen_from && at < seen_to ? 16 : 0;
                const uint32_t there = to + piece_at<D>(position, i % (D / 8));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(there), "l"((const char*)p.k_pages + from + i * 16), "r"(bytes));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                             :: "r"(there + HALF), "l"((const char*)p.v_pages + from + i * 16), "r"(bytes));
            }
        }
        asm volatile("cp.async.commit_group;");
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (first + i >= old) wait_for_previous();
        ask(first + i);
    }
    wait_for_previous();
    uint32_t q[D / 16][4];
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i % 2;
            float2 v = make_float2(0.0f, 0.0f);
            if (rows.end[r]) {
                const size_t width = (size_t)(p.heads + 2 * p.kv_heads) * D;
                v = *(const float2*)(p.qkv + rows.row[r] * width + rows.head[r] * D + kk * 16 + i / 2 * 8 + lane % 4 * 2);
            }
            q[kk][i] = halves(__fmul_rn(v.x, p.scale), __fmul_rn(v.y, p.scale));
        }

    const uint32_t warp_end = __reduce_max_sync(~0u, max(rows.end[0], rows.end[1]));
    Sums<D> now;
    float m[2], l[2];  // folded so far, where parts are folded here; their values wait in the scratch
    bool have[2] = {false, false};
    now.clear();
#pragma unroll 1
    for (uint32_t page = first; page < last; page++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        if (block) __syncthreads(); else __syncwarp();
        ask(page + STAGES - 1);
        const uint32_t at = base + page % STAGES * 2 * HALF, start = page * PAGE;
        if (start < warp_end) see_page<D>(now, q, rows, start, at, at + HALF);
        constexpr uint32_t PAGES = SPLIT / PAGE;
        if (page % PAGES != PAGES - 1 && page + 1 != last) continue;
        const uint32_t split = page / PAGES;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool mine = rows.end[r] && split >= rows.lo[r] / SPLIT && split <= (rows.end[r] - 1) / SPLIT;
            if (!mine) continue;
            float* to = part_at<D>(p, rows, r, p.parts > 1 ? split - rows.lo[r] / SPLIT : 0);
            if (p.whole && split == (rows.end[r] - 1) / SPLIT) {
                if (have[r]) {
                    const Fold fold(true, m[r], l[r], now.m[r], now.l[r]);
                    put_whole<D>(p, rows, to, now, r, &fold, l[r]);
                } else {
                    put_whole<D>(p, rows, to, now, r, nullptr, now.l[r]);
                }
                continue;
            }
            if (p.parts > 1 || !have[r]) {
                have[r] = true;
                m[r] = now.m[r];
                l[r] = now.l[r];
                put_values<D>(to, now, r, nullptr);
            } else {
                const Fold fold(true, m[r], l[r], now.m[r], now.l[r]);
                put_values<D>(to, now, r, &fold);
            }
            if (threadIdx.x % 4 == 0) *(float2*)(to + D) = make_float2(m[r], l[r]);
        }
        now.clear();
    }
}

// Whether `count` rows from `row0` on, as far as they are live, are of one sequence; of a warp.
__device__ __forceinline__ bool one_sequence(const AttnArgs& p, uint32_t row0, uint32_t count, uint32_t live) {
    const uint32_t seq = p.token_seq[row0];
    bool same = true;
    for (uint32_t i = threadIdx.x % 32; i < count && row0 + i < live; i += 32) same &= p.token_seq[row0 + i] == seq;
    return __all_sync(~0u, same);
}

// One row of one KV head, of up to 16 query heads: number `at` of all, rows outermost, ways innermost.
template <int D>
__device__ __forceinline__ void attend_row(const AttnArgs& p, Rows& rows, uint32_t at, uint32_t groups, uint32_t live) {
    const uint32_t lane = threadIdx.x % 32, per_kv = p.heads / p.kv_heads;
    const uint32_t way = at % p.ways;
    at /= p.ways;
    const uint32_t group = at % groups;
    at /= groups;
    const uint32_t kv_head = at % p.kv_heads, row = at / p.kv_heads;
    if (row >= live) return;
    const uint32_t position = p.positions[row], lo = first_seen(p.window, position), end = position + 1;
    // Splits in as many runs as there are ways.
    const uint32_t split0 = lo / SPLIT, splits = position / SPLIT - split0 + 1;
    const uint32_t each = (splits + p.ways - 1) / p.ways, from = way * each, to = min(from + each, splits);
    if (from >= to) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t i = group * 16 + lane / 4 + 8 * r;
        const bool is = i < per_kv;
        rows.row[r] = row;
        rows.head[r] = kv_head * per_kv + i;
        rows.lo[r] = is ? lo : 0;
        rows.end[r] = is ? end : 0;
    }
    const uint32_t first = max(lo / PAGE, (split0 + from) * (SPLIT / PAGE));
    const uint32_t last = min((end + PAGE - 1) / PAGE, (split0 + to) * (SPLIT / PAGE));
    // The step's tokens of this sequence are no more than its rows, and this is one of the last.
    const uint32_t old = (end - min(end, live)) / PAGE;
    walk<D>(p, rows, p.token_seq[row], kv_head, first, last, old, lo, end, false);
}

// Which of 32 tiles of `of_tile` rows from tile0 on, as far as they are live, are of several
// sequences; of a warp.
__device__ __forceinline__ uint32_t mixed_tiles(const AttnArgs& p, uint32_t tile0, uint32_t of_tile, uint32_t live) {
    const uint32_t row0 = (tile0 + threadIdx.x % 32) * of_tile;
    bool mixed = false;
    if (row0 < live) {
        const uint32_t seq = p.token_seq[row0];
        for (uint32_t i = 1; i < of_tile && row0 + i < live; i++) mixed |= p.token_seq[row0 + i] != seq;
    }
    return __ballot_sync(~0u, mixed);
}

template <int D> __device__ __forceinline__ void attention_body(const AttnArgs& p) {
    let_next_start();
    if (blockIdx.x < p.tiled) wait_for_previous();
    const uint32_t live = min(*p.live, p.rows), per_kv = p.heads / p.kv_heads;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Tokens of a warp and of a tile.
    const uint32_t of_warp = 16 / per_kv, of_tile = 4 * of_warp;
    Rows rows;
    if (blockIdx.x < p.tiled) {
        const uint32_t tiles = p.tiled / p.kv_heads, kv_head = blockIdx.x / tiles;
        // Those that see most come first.
        const uint32_t row0 = (tiles - 1 - blockIdx.x % tiles) * of_tile;
        if (row0 >= live || !one_sequence(p, row0, of_tile, live)) return;
        uint32_t lo = 0xffffffffu, end = 0;
        for (uint32_t i = 0; i < of_tile && row0 + i < live; i++) {
            const uint32_t position = p.positions[row0 + i];
            lo = min(lo, first_seen(p.window, position));
            end = max(end, position + 1);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t i = lane / 4 + 8 * r;
            rows.row[r] = row0 + warp * of_warp + i / per_kv;
            rows.head[r] = kv_head * per_kv + i % per_kv;
            rows.lo[r] = rows.end[r] = 0;
            if (i < of_warp * per_kv && rows.row[r] < live) {
                const uint32_t position = p.positions[rows.row[r]];
                rows.lo[r] = first_seen(p.window, position);
                rows.end[r] = position + 1;
            }
        }
        walk<D>(p, rows, p.token_seq[row0], kv_head, lo / PAGE, (end + PAGE - 1) / PAGE, 0, lo, end, true);
        return;
    }
    if (warp > 0) return;
    const uint32_t block = blockIdx.x - p.tiled, groups = (per_kv + 15) / 16;
    if (!p.tiled) return attend_row<D>(p, rows, block, groups, live);
    // Rows of tiles of several sequences, which are few: blocks take them in turns.
    const uint32_t each = of_tile * p.kv_heads * groups * p.ways, tiles = (live + of_tile - 1) / of_tile;
    uint32_t unit = block, before = 0;
    for (uint32_t tile0 = 0; tile0 < tiles; tile0 += 32) {
        uint32_t mixed = mixed_tiles(p, tile0, of_tile, live);
        for (; mixed; mixed &= mixed - 1, before += each) {
            const uint32_t first = (tile0 + __ffs(mixed) - 1) * of_tile * (each / of_tile);
            for (; unit < before + each; unit += gridDim.x - p.tiled) {
                attend_row<D>(p, rows, first + unit - before, groups, live);
                __syncwarp();
            }
        }
    }
}

#define ATTENTION(D)                                                                    \
    extern "C" __global__ void __launch_bounds__(128, 2)                                \
        attention_mma_##D(const __grid_constant__ AttnArgs p) { attention_body<D>(p); }
ATTENTION(16)
ATTENTION(32)
ATTENTION(64)
ATTENTION(128)
