// registers: 255
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
// has chunks, four warps share the pages of a tile of tokens if they are of one sequence or of two, one
// after the other; a token of another tile, or of a bucket without chunks, is a warp's own. Pages come
// by asynchronous copies, two ahead, with swizzled rows; positions that nobody sees are zeros.
//
// Where `turn`, queries come as the product left them, and are normed and turned here with the bits of
// rope_kv_write: a thread has, of a row, the channels 8 i + 2 t and 8 i + 2 t + 1, so whole chains of
// that norm's sum (channels l + 32 j), three of the five steps of its tree, and both of every pair.
#include "attention_pages.cuh"

constexpr int STAGES = 3;

// What a thread knows of its rows g and g + 8.
struct Rows {
    uint32_t at[2];          // query head, of all of the batch's rows
    uint32_t lo[2], end[2];  // positions seen; end 0 where there is no row
    __device__ bool sees(int r, uint32_t position) const { return position >= lo[r] && position < end[r]; }
    // The page from `start` on; what is no row sees what it is shown.
    __device__ bool sees_all(int r, uint32_t start) const { return start >= lo[r] && start + PAGE - 1 <= end[r] - 1; }
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

// A page: scores, weights, values. `whole`: every row sees all of it.
template <int D>
__device__ __forceinline__ void see_page(Sums<D>& sums, const uint32_t (&q)[D / 16][4], const Rows& rows,
                                         uint32_t start, bool whole, uint32_t k_at, uint32_t v_at) {
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    const uint32_t mat = lane / 8, in_mat = lane % 8;
    float s[4][4];
    page_scores<D>(s, q, k_at);
    float top[2] = {sums.m[0], sums.m[1]};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (!whole && !rows.sees(c / 2, start + j * 8 + t * 2 + c % 2)) s[j][c] = -INFINITY;
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
    return p.scratch + ((size_t)rows.at[r] * p.parts + part) * (D + PART_EXTRA);
}

// Writes this thread's channels of row r, folded with what it wrote before where `folds`.
template <int D>
__device__ __forceinline__ void put_values(float* to, const Sums<D>& sums, int r, bool folds, const Fold& fold) {
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        float2* at = (float2*)(to + j * 8 + threadIdx.x % 4 * 2);
        float2 v = make_float2(sums.o[j][2 * r], sums.o[j][2 * r + 1]);
        if (folds) {
            const float2 before = *at;
            v = make_float2(fold.value(before.x, v.x), fold.value(before.y, v.y));
        }
        *at = v;
    }
}

// Of eight channels of four neighbouring tiles, two a thread each: all eight of tile t.
__device__ __forceinline__ uint4 gather_tile(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t t = threadIdx.x % 4;
    const uint32_t p = __shfl_xor_sync(~0u, t % 2 ? a : b, 1), q = __shfl_xor_sync(~0u, t % 2 ? c : d, 1);
    const uint2 low = t % 2 ? make_uint2(p, b) : make_uint2(a, p), high = t % 2 ? make_uint2(q, d) : make_uint2(c, q);
    const uint2 give = t / 2 ? low : high;
    const uint2 got = make_uint2(__shfl_xor_sync(~0u, give.x, 2), __shfl_xor_sync(~0u, give.y, 2));
    return t / 2 ? make_uint4(got.x, got.y, high.x, high.y) : make_uint4(low.x, low.y, got.x, got.y);
}

// Writes this thread's channels of row r as the combination would, where `is`; `fold` brings in what it wrote
// `before`, if anything. The lanes of a row do so together.
template <int D>
__device__ __forceinline__ void put_whole(const AttnArgs& p, const Rows& rows, const float* before, const Sums<D>& sums,
                                          int r, bool is, const Fold& fold, float l) {
    const float inverse = __fdiv_rn(1.0f, l);
    const uint32_t t = threadIdx.x % 4;
    __nv_bfloat16* out = (__nv_bfloat16*)p.out + (size_t)rows.at[r] * D;
    auto two = [&](int j) {
        float2 v = make_float2(sums.o[j][2 * r], sums.o[j][2 * r + 1]);
        if (before) {
            const float2 b = *(const float2*)(before + j * 8 + t * 2);
            v = make_float2(fold.value(b.x, v.x), fold.value(b.y, v.y));
        }
        const __nv_bfloat162 y = __floats2bfloat162_rn(__fmul_rn(v.x, inverse), __fmul_rn(v.y, inverse));
        return *(const uint32_t*)&y;
    };
    if constexpr (D / 8 % 4 == 0) {
#pragma unroll
        for (int j = 0; j < D / 8; j += 4) {
            const uint4 y = gather_tile(two(j), two(j + 1), two(j + 2), two(j + 3));
            if (is) *(uint4*)(out + (j + t) * 8) = y;
        }
    } else {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            if (is) *(uint32_t*)(out + j * 8 + t * 2) = two(j);
    }
}

// This thread's channels of its rows' queries, as they are multiplied.
template <int D>
__device__ __forceinline__ void load_queries(const AttnArgs& p, const Rows& rows, uint32_t (&q)[D / 16][4]) {
    constexpr int TILES = D / 8, CHAINS = TILES < 4 ? TILES : 4;
    const uint32_t t = threadIdx.x % 4;
    float2 v[2][TILES];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Behind the heads of a row are its keys and values.
        const size_t head = rows.at[r] + (size_t)(rows.at[r] / p.heads) * 2 * p.kv_heads;
        const float* from = p.qkv + head * D + t * 2;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            v[r][i] = rows.end[r] ? *(const float2*)(from + i * 8) : make_float2(0.0f, 0.0f);
    }
    if (p.turn && p.q_norm) {
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 c[CHAINS];
#pragma unroll
            for (int i = 0; i < CHAINS; i++) {
                c[i] = make_float2(0.0f, 0.0f);
#pragma unroll
                for (int j = i; j < TILES; j += 4) {
                    c[i].x = __fmaf_rn(v[r][j].x, v[r][j].x, c[i].x);
                    c[i].y = __fmaf_rn(v[r][j].y, v[r][j].y, c[i].y);
                }
            }
#pragma unroll
            for (int step = CHAINS / 2; step > 0; step /= 2)
#pragma unroll
                for (int i = 0; i < step; i++)
                    c[i] = make_float2(__fadd_rn(c[i].x, c[i + step].x), __fadd_rn(c[i].y, c[i + step].y));
#pragma unroll
            for (int d = 2; d > 0; d /= 2) {
                c[0].x = __fadd_rn(c[0].x, __shfl_xor_sync(~0u, c[0].x, d));
                c[0].y = __fadd_rn(c[0].y, __shfl_xor_sync(~0u, c[0].y, d));
            }
            const float mean = __fdiv_rn(__fadd_rn(c[0].x, c[0].y), (float)D);
            scale[r] = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float2 w = *(const float2*)(p.q_norm + i * 8 + t * 2);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                v[r][i].x = __fmul_rn(__fmul_rn(v[r][i].x, scale[r]), w.x);
                v[r][i].y = __fmul_rn(__fmul_rn(v[r][i].y, scale[r]), w.y);
            }
        }
    }
    if (p.turn) {
        auto turned = [](float x, float y, float c, float s) { return __fmaf_rn(x, c, __fmul_rn(y, s)); };
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!rows.end[r]) continue;
            const float* turn = p.turn + (size_t)(rows.end[r] - 1) * D;
            if (p.adjacent) {
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    const float2 cs = *(const float2*)(turn + i * 8 + t * 2), x = v[r][i];
                    v[r][i] = make_float2(turned(x.x, x.y, cs.x, -cs.y), turned(x.y, x.x, cs.x, cs.y));
                }
            } else {
#pragma unroll
                for (int i = 0; i < TILES / 2; i++) {
                    const float4 cs = *(const float4*)(turn + i * 16 + t * 4);
                    const float2 x = v[r][i], y = v[r][i + TILES / 2];
                    v[r][i] = make_float2(turned(x.x, y.x, cs.x, -cs.y), turned(x.y, y.y, cs.z, -cs.w));
                    v[r][i + TILES / 2] = make_float2(turned(y.x, x.x, cs.x, cs.y), turned(y.y, x.y, cs.z, cs.w));
                }
            }
        }
    }
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 x = v[i % 2][2 * kk + i / 2];
            q[kk][i] = halves(__fmul_rn(x.x, p.scale), __fmul_rn(x.y, p.scale));
        }
}

// Leads the rows of a warp past pages [first, last) of sequence `seq`, with the other warps of the
// block where BLOCK. Pages before `old` were written before this step.
template <int D, bool BLOCK>
__device__ __forceinline__ void walk(const AttnArgs& p, const Rows& rows, uint32_t seq, uint32_t kv_head,
                                     uint32_t first, uint32_t last, uint32_t old, uint32_t seen_from,
                                     uint32_t seen_to) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr uint32_t HALF = PAGE * D * 2, PIECES = PAGE * D / 8;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), lane = threadIdx.x % 32;
    const uint32_t thread = BLOCK ? threadIdx.x : lane;
    constexpr uint32_t THREADS = BLOCK ? 128 : 32;
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
#pragma unroll 4
            for (uint32_t i = thread; i < PIECES; i += THREADS) {
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
    load_queries<D>(p, rows, q);

    Sums<D> now;
    now.clear();
#pragma unroll 1
    for (uint32_t page = first; page < last; page++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        if constexpr (BLOCK) __syncthreads(); else __syncwarp();
        ask(page + STAGES - 1);
        const uint32_t at = base + page % STAGES * 2 * HALF, start = page * PAGE;
        const bool sees_all = rows.sees_all(0, start) && rows.sees_all(1, start);
        if (__any_sync(~0u, max(rows.end[0], rows.end[1]) > start))
            see_page<D>(now, q, rows, start, __all_sync(~0u, sees_all), at, at + HALF);
        constexpr uint32_t PAGES = SPLIT / PAGE;
        if (page % PAGES != PAGES - 1 && page + 1 != last) continue;
        const uint32_t split = page / PAGES;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t from = rows.lo[r] / SPLIT, to = (rows.end[r] - 1) / SPLIT;
            const bool mine = rows.end[r] && split >= from && split <= to, ends = mine && p.whole && split == to;
            // Where parts are folded here, what they are so far waits in the scratch.
            float* part = part_at<D>(p, rows, r, p.parts > 1 ? split - from : 0);
            const bool folds = mine && p.parts == 1 && split > from;
            float2 ml = make_float2(now.m[r], now.l[r]);
            if (folds) ml = *(const float2*)(part + D);
            const Fold fold(true, ml.x, ml.y, now.m[r], now.l[r]);
            if (!folds) ml = make_float2(now.m[r], now.l[r]);
            __syncwarp();
            if (__any_sync(~0u, ends)) put_whole<D>(p, rows, folds ? part : nullptr, now, r, ends, fold, ml.y);
            if (!mine || ends) continue;
            put_values<D>(part, now, r, folds, fold);
            if (threadIdx.x % 4 == 0) *(float2*)(part + D) = ml;
        }
        __syncwarp();
        now.clear();
    }
}

// One row of one KV head, of up to 16 query heads: number `at` of all, rows outermost, ways innermost.
template <int D>
__device__ __forceinline__ void attend_row(const AttnArgs& p, uint32_t at, uint32_t groups, uint32_t live) {
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
    Rows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t i = group * 16 + lane / 4 + 8 * r;
        const bool is = i < per_kv;
        rows.at[r] = row * p.heads + kv_head * per_kv + i;
        rows.lo[r] = is ? lo : 0;
        rows.end[r] = is ? end : 0;
    }
    const uint32_t first = max(lo / PAGE, (split0 + from) * (SPLIT / PAGE));
    const uint32_t last = min((end + PAGE - 1) / PAGE, (split0 + to) * (SPLIT / PAGE));
    // The step's tokens of this sequence are no more than its rows, and this is one of the last.
    const uint32_t old = (end - min(end, live)) / PAGE;
    walk<D, false>(p, rows, p.token_seq[row], kv_head, first, last, old, lo, end);
}

// Sequences of a tile that a block takes one after the other; a tile of more is taken row by row.
constexpr uint32_t SEQUENCES = 2;

// Which of 32 tiles of `of_tile` rows from tile0 on, as far as they are live, are of more sequences
// than that; of a warp.
__device__ __forceinline__ uint32_t mixed_tiles(const AttnArgs& p, uint32_t tile0, uint32_t of_tile, uint32_t live) {
    const uint32_t row0 = (tile0 + threadIdx.x % 32) * of_tile;
    uint32_t seq = p.token_seq[min(row0, live - 1)], found = 1;
#pragma unroll 8
    for (uint32_t i = 1; i < of_tile; i++) {
        const uint32_t next = p.token_seq[min(row0 + i, live - 1)];
        found += next != seq;
        seq = next;
    }
    return __ballot_sync(~0u, found > SEQUENCES);
}

// The unit that is number `unit` of those of such tiles, of `each` units a tile; of a warp.
__device__ __forceinline__ uint32_t unit_alone(const AttnArgs& p, uint32_t unit, uint32_t each, uint32_t of_tile,
                                               uint32_t live) {
    for (uint32_t tile0 = 0; tile0 * of_tile < live; tile0 += 32) {
        for (uint32_t mixed = mixed_tiles(p, tile0, of_tile, live); mixed; mixed &= mixed - 1, unit -= each)
            if (unit < each) return (tile0 + __ffs(mixed) - 1) * each + unit;
    }
    return 0xffffffffu;
}

// A tile of `of_tile` rows from row0 on, as far as they are live, by the block.
template <int D>
__device__ __forceinline__ void attend_tile(const AttnArgs& p, uint32_t row0, uint32_t of_tile, uint32_t kv_head,
                                            uint32_t live) {
    bool two = false;
#pragma unroll 1
    for (uint32_t turn = 0; turn < 1u + two; turn++) {
        const uint32_t lane = threadIdx.x % 32, per_kv = p.heads / p.kv_heads, last = min(row0 + of_tile, live) - 1;
        const uint32_t of = p.token_seq[turn ? last : row0];
        // Two rows a lane: where the second sequence starts, and what the one of this turn sees.
        uint32_t cuts = 0, lo = 0xffffffffu, end = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t row = min(row0 + lane + 32 * r, last), seq = p.token_seq[row], position = p.positions[row];
            const bool cut = seq != p.token_seq[row > row0 ? row - 1 : row] && row0 + lane + 32 * r <= last;
            cuts += __popc(__ballot_sync(~0u, cut));
            if (seq != of) continue;
            lo = min(lo, first_seen(p.window, position));
            end = max(end, position + 1);
        }
        if (cuts >= SEQUENCES) return;
        two = cuts > 0;
        Rows rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t i = lane / 4 + 8 * r, row = row0 + threadIdx.x / 32 * (of_tile / 4) + i / per_kv;
            const uint32_t at = min(row, last), position = p.positions[at];
            const bool is = i < of_tile / 4 * per_kv && row <= last && p.token_seq[at] == of;
            rows.at[r] = at * p.heads + kv_head * per_kv + i % per_kv;
            rows.lo[r] = is ? first_seen(p.window, position) : 0;
            rows.end[r] = is ? position + 1 : 0;
        }
        lo = __reduce_min_sync(~0u, lo);
        end = __reduce_max_sync(~0u, end);
        if (turn) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
        }
        walk<D, true>(p, rows, of, kv_head, lo / PAGE, (end + PAGE - 1) / PAGE, 0, lo, end);
    }
}

template <int D> __device__ __forceinline__ void attention_body(const AttnArgs& p) {
    let_next_start();
    const uint32_t live = min(*p.live, p.rows), per_kv = p.heads / p.kv_heads;
    const uint32_t groups = (per_kv + 15) / 16;
    if (live == 0) return;
    if (!p.tiled) {
        if (threadIdx.x < 32) attend_row<D>(p, blockIdx.x, groups, live);
        return;
    }
    // Tokens of a tile. Rows of tiles that are taken row by row come first: they take longest.
    const uint32_t of_tile = 4 * (16 / per_kv), alone = gridDim.x - p.tiled;
    if (blockIdx.x >= alone) {
        const uint32_t tiles = p.tiled / p.kv_heads, at = blockIdx.x - alone;
        // Those that see most come first.
        const uint32_t row0 = (tiles - 1 - at % tiles) * of_tile;
        if (row0 < live) attend_tile<D>(p, row0, of_tile, at / tiles, live);
        return;
    }
    if (threadIdx.x >= 32) return;
    // Those rows are few: blocks take them in turns.
#pragma unroll 1
    for (uint32_t unit = blockIdx.x;; unit += gridDim.x - p.tiled) {
        const uint32_t at = unit_alone(p, unit, of_tile * p.kv_heads * groups * p.ways, of_tile, live);
        if (at == 0xffffffffu) return;
        attend_row<D>(p, at, groups, live);
        __syncwarp();
    }
}

#define ATTENTION(D)                                                                    \
    extern "C" __global__ void __launch_bounds__(128, 2)                                \
        attention_mma_##D(const __grid_constant__ AttnArgs p) { attention_body<D>(p); }
ATTENTION(16)
ATTENTION(32)
ATTENTION(64)
ATTENTION(128)
