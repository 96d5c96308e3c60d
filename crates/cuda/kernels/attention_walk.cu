// only: sm_90a
// registers: 240
// One kernel for rotation, the write of K and V, and attention of rows that are one token of their
// sequence each, over f16 pages, where there are more rows and KV heads than multiprocessors.
//
// Definition: that of attention_decode.cu, to the bit.
//
// As many blocks as fit the GPU share all rows and KV heads; a warp takes one of them after the other,
// from its first page to its last, and has `depth` pages of its own on their way, K and V in turns, which
// the copy engine brings whole. So a multiprocessor always waits for the same number of bytes, nobody
// waits for another warp, and what positions before this token hold is on its way before the previous
// kernel has ended. Longest first, to and fro over the blocks, so that all end at about the same time.
#include "attention_pages.cuh"
#include "gemm_wgmma.cuh"
#include "rope.cuh"

struct WalkArgs {
    alignas(64) unsigned char k_map[128];
    unsigned char v_map[128];
    const uint32_t* live;
    const float *qkv, *table;
    const uint32_t *positions, *token_seq, *block_table, *write_slots;
    const float *q_norm, *k_norm;
    void *k_pages, *v_pages, *out;
    uint32_t rows, heads, kv_heads, table_stride;
    uint32_t window, rotary_dim, adjacent, depth;
    float scale, eps;
};

// Rows of the matrix instruction that hold heads; heads that are turned at once; rows that are ordered.
constexpr uint32_t HEADS = 8, AT_ONCE = 6, ORDERED = 256, PAGES_OF_SPLIT = SPLIT / PAGE;

// What a warp keeps beside its pages.
template <int D> struct Nook {
    static constexpr uint32_t Q_STRIDE = D * 2 + 16, Q = HEADS * Q_STRIDE, FRESH = 2 * D * 2, TURN = D * 4,
                              BYTES = Q + FRESH + TURN;
    unsigned char* base;
    __device__ unsigned char* q() const { return base; }
    __device__ __half* fresh() const { return (__half*)(base + Q); }
    __device__ float* turn() const { return (float*)(base + Q + FRESH); }
};

__device__ __forceinline__ void copy_page(uint32_t to, const void* map, uint32_t row, uint32_t barrier,
                                          uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %2}], [%4], %5;"
                 :: "r"(to), "l"(map), "r"(0), "r"(row), "r"(barrier), "l"(policy) : "memory");
}

// Place of eight channels of a position in a page as the copy engine leaves it: all positions' first 64
// channels, behind them the others; 16-byte pieces are swizzled as piece_at has them within 64.
template <int D> __device__ __forceinline__ uint32_t place_of(uint32_t position, uint32_t piece) {
    constexpr int LINE = D < 64 ? D : 64;
    return piece / 8 * (PAGE * 128) + piece_at<LINE>(position, piece % 8);
}

// From where a lane reads the first tile of 16 positions by 16 channels, to the tile `down` and `along`:
// pages are aligned, so the swizzle is one bit or two of the address.
template <int D> __device__ __forceinline__ uint32_t tile_from(uint32_t at, uint32_t down, uint32_t along) {
    return (at ^ along % 4 * 32) + along / 4 * (PAGE * 128) + down * 16 * (D < 64 ? D : 64) * 2;
}

// Scores of the 32 positions of a page, two tiles of 16, by head: a chain of steps of 16 channels from zero.
template <int D>
__device__ __forceinline__ void scores_of(float (&s)[2][4], const uint32_t (&q)[D / 16][2], uint32_t k_at) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[i][c] = 0.0f;
    // All on their way before the first is needed.
    uint32_t k[D / 16][2][4];
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            ldmatrix4<false>(k[kk][i], tile_from<D>(k_at, i, kk));
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
        for (int i = 0; i < 2; i++) mma(s[i], k[kk][i], q[kk][0], q[kk][1]);
}

// What lanes have of head 2 t + g % 2, of both heads 2 t and 2 t + 1.
struct Both {
    float head[2];
    __device__ __forceinline__ Both(float mine, uint32_t g) {
        const float other = __shfl_xor_sync(~0u, mine, 4);
        head[0] = g % 2 ? other : mine;
        head[1] = g % 2 ? mine : other;
    }
};

// turn_head where a lane has both channels of each pair.
template <int N> __device__ __forceinline__ void turn_within(float (&v)[N], const RopeTables<N>& t) {
    float was[N];
#pragma unroll
    for (int j = 0; j < N; j++) was[j] = v[j];
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = __fmaf_rn(was[j], t.cs[j].x, __fmul_rn(was[j ^ N / 2], j < N / 2 ? -t.cs[j].y : t.cs[j].y));
}

// Rows by their pages, most first: into `order`, where they are not all nearly alike.
__device__ __forceinline__ bool order_rows(const WalkArgs& p, uint32_t live, uint16_t* lengths, uint16_t* order) {
    const uint32_t padded = (live + 7) / 8 * 8;
    if (live > ORDERED) return false;
    auto pages = [&](uint32_t position) {
        return min(position / PAGE + 1 - first_seen(p.window, position) / PAGE, 0xffffu);
    };
    bool differs = false;
    const uint32_t any = pages(p.positions[0]);
    for (uint32_t row = threadIdx.x; row < padded; row += blockDim.x) {
        const uint32_t of = row < live ? pages(p.positions[row]) : 0;
        lengths[row] = (uint16_t)of;
        differs |= row < live && (of > any + 1 || of + 1 < any);
    }
    if (!__syncthreads_or(differs)) return false;
    for (uint32_t row = threadIdx.x; row < live; row += blockDim.x) {
        const uint32_t of = lengths[row];
        uint32_t before = 0;
        for (uint32_t i = 0; i < padded; i += 8) {
            const uint4 eight = *(const uint4*)(lengths + i);
            const uint32_t pair[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t other = j % 2 ? pair[j / 2] >> 16 : pair[j / 2] & 0xffff;
                before += other > of || (other == of && i + j < row);
            }
        }
        order[before] = (uint16_t)row;
    }
    __syncthreads();
    return true;
}

template <int D> __device__ __forceinline__ void walk_body(const WalkArgs& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(16) uint16_t lengths[ORDERED], order[ORDERED];
    __shared__ uint32_t taken;
    constexpr uint32_t N = D < 32 ? 1 : D / 32, NT = D / 16, PAGE_BYTES = PAGE * D * 2;
    let_next_start();
    const uint32_t live = min(*p.live, p.rows), per_kv = p.heads / p.kv_heads, units = live * p.kv_heads;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), ring_at = warp * p.depth * PAGE_BYTES;
    const uint32_t all_pages = warps * p.depth * PAGE_BYTES;
    const Nook<D> nook = {shared + all_pages + warp * Nook<D>::BYTES};
    const uint32_t barriers = base + all_pages + warps * Nook<D>::BYTES + warp * p.depth * 8;
    // Where rows are as they come, the first unit's: asked for before it is known.
    const uint32_t likely = min((warp * gridDim.x + (warp % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x)) / p.kv_heads, p.rows - 1);
    const uint32_t likely_position = p.positions[likely], likely_seq = p.token_seq[likely];
    if (lane == 0) {
        asm volatile("prefetch.tensormap [%0];" :: "l"(p.k_map) : "memory");
        asm volatile("prefetch.tensormap [%0];" :: "l"(p.v_map) : "memory");
        for (uint32_t s = 0; s < p.depth; s++) barrier_init(barriers + s * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 0) taken = warps;
    const bool ordered = order_rows(p, live, lengths, order);
    if (!ordered) __syncthreads();
    // K and V are read once a step.
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    const RopeShape shape = {(uint32_t)D, p.rotary_dim, p.adjacent, p.eps};
    // Where in a page this lane's row of the first tile is: of K, and of V, which comes transposed.
    const uint32_t mat = lane / 8, in_mat = lane % 8;
    const uint32_t k_lane = base + place_of<D>(mat % 2 * 8 + in_mat, mat / 2);
    const uint32_t v_lane = base + place_of<D>(mat / 2 * 8 + in_mat, mat % 2);
    // Slots of the ring: the next to fill; the next to look at, and how often that one was filled.
    uint32_t fill = 0, look = 0, parity = 0;

    for (uint32_t turn_of = warp;;) {
        const uint32_t unit = turn_of * gridDim.x + (turn_of % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (unit >= units) break;
        const uint32_t rank = unit / p.kv_heads, row = ordered ? order[rank] : rank, kv_head = unit % p.kv_heads;
        const bool guessed = row == likely;
        const uint32_t position = guessed ? likely_position : p.positions[row], lo = first_seen(p.window, position);
        const uint32_t first = lo / PAGE, last = position / PAGE + 1;  // pages
        const uint32_t* table = p.block_table + (size_t)(guessed ? likely_seq : p.token_seq[row]) * p.table_stride;
        // Page numbers, one a lane, and those of the 32 pages behind them.
        auto numbers_from = [&](uint32_t page) { return page + lane < last ? table[page + lane] : 0; };
        uint32_t numbers = numbers_from(first), later = numbers_from(first + 32);
        const uint32_t all = 2 * (last - first);
        uint32_t asked = 0;
        auto ask = [&]() {
            if (asked >= all) return;
            const uint32_t at = asked / 2;
            if (asked % 64 == 0 && asked > 0) {
                numbers = later;
                later = numbers_from(first + at + 32);
            }
            const uint32_t number = __shfl_sync(~0u, numbers, at % 32);
            if (lane == 0) {
                const uint32_t full = barriers + fill * 8;
                barrier_expect(full, PAGE_BYTES);
                copy_page(base + ring_at + fill * PAGE_BYTES, asked % 2 ? p.v_map : p.k_map,
                          (number * p.kv_heads + kv_head) * PAGE, full, policy);
            }
            fill = fill + 1 == p.depth ? 0 : fill + 1;
            asked++;
        };
        for (uint32_t i = 0; i < p.depth; i++) ask();

        // Heads: q, then this token's k and v.
        const float* turn = p.table + (size_t)position * p.rotary_dim;
        const uint32_t slot = p.write_slots[row];
        const float* of_row = p.qkv + (size_t)row * (p.heads + 2 * p.kv_heads) * D;
        RopeTables<N> of_q, of_k;
        of_q.load(shape, p.q_norm, turn, lane);
        of_k.load(shape, p.k_norm, turn, lane);
        const bool within = N > 1 && p.rotary_dim == D && !p.adjacent;
        wait_for_previous();
#pragma unroll 1
        for (uint32_t from = 0; from < per_kv + 2; from += AT_ONCE) {
            float v[AT_ONCE][N];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                const uint32_t job = from + i;
                const uint32_t head = job < per_kv ? kv_head * per_kv + job : p.heads + (job - per_kv) * p.kv_heads + kv_head;
#pragma unroll
                for (uint32_t j = 0; j < N; j++)
                    v[i][j] = job < per_kv + 2 && lane + 32 * j < D ? of_row[(size_t)head * D + lane + 32 * j] : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                const uint32_t job = from + i;
                if (job < per_kv && p.q_norm) norm_head(v[i], shape, of_q, lane);
                if (job == per_kv && p.k_norm) norm_head(v[i], shape, of_k, lane);
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                const uint32_t job = from + i;
                if (job >= per_kv + 2) break;
                const bool is_q = job < per_kv, is_v = job == per_kv + 1;
                if (!is_v && within) turn_within<N>(v[i], of_q);
                else if (!is_v) {
                    turn_head(v[i], shape, of_q, nook.turn(), lane);
                    __syncwarp();
                }
                __half* pages = (__half*)(is_v ? p.v_pages : p.k_pages);
                const size_t to = (((size_t)(slot / 32) * p.kv_heads + kv_head) * 32 + slot % 32) * D;
                __half* near = is_q ? (__half*)(nook.q() + job * Nook<D>::Q_STRIDE) : nook.fresh() + (is_v ? D : 0);
#pragma unroll
                for (uint32_t j = 0; j < N; j++) {
                    const uint32_t d = lane + 32 * j;
                    if (d >= D) continue;
                    const __half h = __float2half_rn(is_q ? __fmul_rn(v[i][j], p.scale) : v[i][j]);
                    near[d] = h;
                    if (!is_q) pages[to + d] = h;
                }
            }
        }
        __syncwarp();
        // Heads are the columns here, so that none of the instruction's rows is empty.
        uint32_t q[D / 16][2];
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            const uint32_t* line = (const uint32_t*)(nook.q() + g * Nook<D>::Q_STRIDE) + kk * 8 + t;
            q[kk][0] = g < per_kv ? line[0] : 0;
            q[kk][1] = g < per_kv ? line[4] : 0;
        }

        // The split's so far, and all splits before it: sums of heads 2 t and 2 t + 1, channels g and g + 8
        // of each tile of 16; m and l of head 2 t + g % 2.
        float o[NT][4], m, l, all_o[NT][4], all_m = 0.0f, all_l = 0.0f;
        auto clear = [&]() {
#pragma unroll
            for (uint32_t j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) o[j][c] = 0.0f;
            m = -INFINITY;
            l = 0.0f;
        };
        clear();
        bool folded = false;
        const float4* fresh = (const float4*)nook.fresh();
        // What this warp wrote to a slot lies there before the copy engine writes it again.
        auto seen_by_copies = [&]() {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
        };
        auto next_slot = [&]() {
            if (++look == p.depth) {
                look = 0;
                parity ^= 1;
            }
        };
#pragma unroll 1
        for (uint32_t page = first; page < last; page++) {
            const bool own = page + 1 == last, from_lo = page * PAGE < lo;
            barrier_wait(barriers + look * 8, parity);
            const uint32_t k_in = ring_at + look * PAGE_BYTES;
            if (own) {
                if (lane < D / 8) *(float4*)(shared + k_in + place_of<D>(position % PAGE, lane)) = fresh[lane];
                __syncwarp();
            }
            float s[2][4];
            scores_of<D>(s, q, k_lane + k_in);
            if (own) seen_by_copies(); else __syncwarp();
            ask();
            next_slot();
            barrier_wait(barriers + look * 8, parity);
            const uint32_t v_in = ring_at + look * PAGE_BYTES;
            if (own || from_lo) {
                // What nobody wrote may be anything, and would count where its weight is zero.
                for (uint32_t i = lane; i < PAGE * D / 8; i += 32) {
                    const uint32_t in_page = i / (D / 8), at = page * PAGE + in_page;
                    float4* piece = (float4*)(shared + v_in + place_of<D>(in_page, i % (D / 8)));
                    if (at == position) *piece = fresh[D / 8 + i % (D / 8)];
                    else if (at < lo || at > position) *piece = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
                __syncwarp();
            }
            uint32_t v[2][NT][4];
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (uint32_t j = 0; j < NT; j++)
                    ldmatrix4<true>(v[half][j], tile_from<D>(v_lane + v_in, half, j));
            // From positions g + 8 j of two heads to positions 2 (g / 2) + 8 j and the next of one.
            float x[4][2], top = -INFINITY;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float even = s[j / 2][j % 2 * 2], odd = s[j / 2][j % 2 * 2 + 1];
                const float got = __shfl_xor_sync(~0u, g % 2 ? even : odd, 4);
                x[j][0] = g % 2 ? got : even;
                x[j][1] = g % 2 ? odd : got;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const uint32_t seen = page * PAGE + j * 8 + g / 2 * 2 + c;
                    if (seen < lo || seen > position) x[j][c] = -INFINITY;
                    top = fmaxf(top, x[j][c]);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
            top = fmaxf(m, top);
            const float under = top == -INFINITY ? 0.0f : top, a = exp2_fast(__fsub_rn(m, under));
            float sum = 0.0f;
            uint32_t weights[4];
            m = top;
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    x[j][c] = exp2_fast(__fsub_rn(x[j][c], under));
                    sum = __fadd_rn(sum, x[j][c]);
                }
                // To where the instruction takes head g, positions 2 t and 2 t + 1.
                weights[j] = __shfl_sync(~0u, halves(x[j][0], x[j][1]), (2 * t + g % 2) * 4 + g / 2);
            }
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 8));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 16));
            l = __fmaf_rn(l, a, sum);
            const Both of(a, g);
#pragma unroll
            for (uint32_t j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) o[j][c] = __fmul_rn(o[j][c], of.head[c % 2]);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (uint32_t j = 0; j < NT; j++) mma(o[j], v[half][j], weights[half * 2], weights[half * 2 + 1]);
            if (own || from_lo) seen_by_copies(); else __syncwarp();
            ask();
            next_slot();
            if (page % PAGES_OF_SPLIT != PAGES_OF_SPLIT - 1 && !own) continue;
            if (folded) {
                const Fold fold(true, all_m, all_l, m, l);
                const Both before(fold.a, g), now(fold.b, g);
#pragma unroll
                for (uint32_t j = 0; j < NT; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        all_o[j][c] = __fmaf_rn(o[j][c], now.head[c % 2], __fmul_rn(all_o[j][c], before.head[c % 2]));
            } else {
                all_m = m;
                all_l = l;
#pragma unroll
                for (uint32_t j = 0; j < NT; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) all_o[j][c] = o[j][c];
            }
            folded = true;
            clear();
        }
        if (lane == 0) turn_of = atomicAdd(&taken, 1);
        turn_of = __shfl_sync(~0u, turn_of, 0);
        // Over the place of q, to where a head's channels lie side by side.
        const Both inverse(__fdiv_rn(1.0f, all_l), g);
#pragma unroll
        for (uint32_t j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                __nv_bfloat16* line = (__nv_bfloat16*)(nook.q() + (t * 2 + c % 2) * Nook<D>::Q_STRIDE);
                line[j * 16 + c / 2 * 8 + g] = __float2bfloat16_rn(__fmul_rn(all_o[j][c], inverse.head[c % 2]));
            }
        __syncwarp();
        uint4* out = (uint4*)((__nv_bfloat16*)p.out + ((size_t)row * p.heads + kv_head * per_kv) * D);
        for (uint32_t i = lane; i < per_kv * D / 8; i += 32)
            out[i] = *(const uint4*)(nook.q() + i / (D / 8) * Nook<D>::Q_STRIDE + i % (D / 8) * 16);
        __syncwarp();
    }
}

#define WALK(D)                                                                       \
    extern "C" __global__ void __launch_bounds__(192, 1)                              \
        attention_walk_##D(const __grid_constant__ WalkArgs p) { walk_body<D>(p); }
WALK(16)
WALK(32)
WALK(64)
WALK(128)
