// Products of many tokens: gemm_wgmma.cuh is their definition.
//
// As many blocks as there are multiprocessors take tiles of 128 tokens by 128 features one after the
// other, tokens first. The warp that feeds the ring goes on to the next tile while the sums of
// this one are written, which happens from registers: lanes of neighbouring features exchange a token,
// so that each writes two features of one.
#pragma once
#include "gemm_wgmma.cuh"

// Stages of TOKENS tokens and 128 features.
template <int TOKENS, int STAGES> struct ManyRing {
    static constexpr uint32_t TILES = 8, W_BYTES = TILES * 2048, X_BYTES = TOKENS * 128, BYTES = W_BYTES + X_BYTES;
    uint32_t base;
    __device__ uint32_t weights(uint32_t s) const { return base + s * BYTES; }
    __device__ uint32_t tokens(uint32_t s) const { return base + s * BYTES + W_BYTES; }
    __device__ uint32_t full(uint32_t s) const { return base + STAGES * BYTES + s * 8; }
    __device__ uint32_t free(uint32_t s) const { return base + STAGES * BYTES + (STAGES + s) * 8; }
};

// Makes the barriers: one warp fills a stage, eight empty it.
template <int TOKENS, int STAGES> __device__ __forceinline__ void begin_ring(const ManyRing<TOKENS, STAGES>& ring) {
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(ring.full(s), 1);
            barrier_init(ring.free(s), 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// What a warp multiplies of a stage, as it comes; the stage is waited for.
template <int TOKENS, int STAGES>
__device__ __forceinline__ void take_weights(uint4 (&to)[4], const ManyRing<TOKENS, STAGES>& ring, uint32_t s) {
    const uint32_t at = ring.weights(s) + threadIdx.x / 32 * 2048 + threadIdx.x % 32 * 16;
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[k].x), "=r"(to[k].y), "=r"(to[k].z), "=r"(to[k].w) : "r"(at + k * 512));
}

// A place in the ring, and how often it came round.
template <int STAGES> struct Turn {
    uint32_t s = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++s == STAGES) {
            s = 0;
            parity ^= 1;
        }
    }
};

// Tiles of `live` tokens and all features. A last tile of tokens of which half or less is there comes last
// (HALVES), so that no block is left with a whole one then.
template <int TOKENS, bool HALVES> struct Tiles {
    uint32_t whole, units, half;
    __device__ Tiles(uint32_t live, uint32_t units) : whole((live + TOKENS - 1) / TOKENS), units(units), half(0) {
        const uint32_t last = live % TOKENS;
        if (HALVES && last > 0 && last <= TOKENS / 2) whole--, half = 1;
    }
    __device__ uint32_t all() const { return (whole + half) * units; }
    // Whether tile `i` is half a one, its first token, its unit of features.
    __device__ bool is_half(uint32_t i) const { return HALVES && i >= whole * units; }
    __device__ uint32_t token(uint32_t i) const { return (is_half(i) ? whole : i % whole) * TOKENS; }
    __device__ uint32_t unit(uint32_t i) const { return is_half(i) ? i - whole * units : i / whole; }
};

// Which of its block's tiles of features warp `i` has. SPLIT: gates and ups of the same features are two
// warps apart.
template <bool SPLIT> __device__ __forceinline__ uint32_t tile_of_warp(uint32_t i) {
    return SPLIT ? i % 4 / 2 * 4 + i / 4 * 2 + i % 2 : i;
}

template <int TOKENS, int STAGES, bool SPLIT, bool HALVES>
__device__ __forceinline__ void produce_many(const WgmmaArgs& p, const ManyRing<TOKENS, STAGES>& ring,
                                             const Tiles<TOKENS, HALVES>& tiles, uint32_t count) {
    using R = ManyRing<TOKENS, STAGES>;
    const uint32_t lane = threadIdx.x % 32;
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    // Weights lead tokens only before the previous kernel's end.
    Turn<STAGES> w, x;
    uint32_t asked = 0;
    auto tile_weights = [&](uint32_t of) {
        uint32_t tile;
        const uint32_t part = part_of<R::TILES>(p, tiles.unit(of), tile_of_warp<SPLIT>(lane % R::TILES), tile);
        return TileStages(p.part[part], tile, 0, p.k_tiles);
    };
    auto ask_weights = [&](const TileStages& from, uint32_t i) {
        if (asked >= STAGES) barrier_wait(ring.free(w.s), w.parity ^ 1);
        asked++;
        if (lane == 0) barrier_expect(ring.full(w.s), R::BYTES);
        __syncwarp();
        if (lane < R::TILES) copy_weights(ring.weights(w.s) + lane * 2048, from.first + (size_t)i * from.step, 2048, ring.full(w.s), policy);
        w.next();
    };
    auto ask_tokens = [&](uint32_t of, uint32_t i) {
        if (lane == 0) copy_tokens(ring.tokens(x.s), p.x_map, i * 64, tiles.token(of), ring.full(x.s));
        x.next();
    };
    const uint32_t early = min(count, (uint32_t)STAGES);
    bool first = true;
    for (uint32_t of = blockIdx.x; of < tiles.all(); of += gridDim.x) {
        const TileStages from = tile_weights(of);
        uint32_t i = 0;
        if (first) {
            for (; i < early; i++) ask_weights(from, i);
            wait_for_previous();
            for (i = 0; i < early; i++) ask_tokens(of, i);
            first = false;
        }
        for (; i < count; i++) {
            ask_weights(from, i);
            ask_tokens(of, i);
        }
    }
    wait_for_previous();
    let_next_start();
}

// From two tokens of this lane's feature to two neighbouring features of one token.
__device__ __forceinline__ float2 turn_pair(float first, float second, bool odd) {
    const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
    return odd ? make_float2(other, second) : make_float2(first, other);
}

// Writes two features of a token, as far as there are `left` of them; PAIRS: two, in eight bytes of their own.
template <bool PAIRS> __device__ __forceinline__ void put_pair(float* to, float2 y, bool adds, int left) {
    if (PAIRS) {
        if (adds) add_at((float2*)to, y); else *(float2*)to = y;
    } else {
        if (left > 0) {
            if (adds) add_at(to, y.x); else to[0] = y.x;
        }
        if (left > 1) {
            if (adds) add_at(to + 1, y.y); else to[1] = y.y;
        }
    }
}

// Writes sums of a tile of 16 features, of which `left` are there from this lane's first one on. WHOLE: all
// features and tokens are there and no bias is, so that no lane waits for what the next one does.
template <int TOKENS, bool PAIRS, bool WHOLE>
__device__ __forceinline__ void put_tile(const float (&sum)[TOKENS / 2], float* row, uint32_t stride, const float* bias,
                                         bool adds, int left, uint32_t token, uint32_t live) {
    const bool odd = threadIdx.x / 4 % 2;
    const size_t eight = (size_t)8 * stride;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        // One address at a time: those of all turns together have no room.
        asm volatile("" : "+l"(row));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 y = turn_pair(sum[j * 4 + h * 2], sum[j * 4 + h * 2 + 1], odd);
            if (!WHOLE && token + j * 8 >= live) continue;
            if (!WHOLE && bias) {
                const float more[2] = {left > h * 8 ? __ldcg(bias + h * 8) : 0.0f, left > h * 8 + 1 ? __ldcg(bias + h * 8 + 1) : 0.0f};
                y = make_float2(__fadd_rn(y.x, more[0]), __fadd_rn(y.y, more[1]));
            }
            put_pair<PAIRS>(row + h * 8, y, adds, left - h * 8);
        }
        row += eight;
    }
}

// Writes the sums of this warp's tile of 16 features.
template <int TOKENS>
__device__ __forceinline__ void put_many(const WgmmaArgs& p, const float (&sum)[TOKENS / 2], uint32_t tile,
                                         uint32_t token0, uint32_t live) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const GemmPart* part = p.part;
    for (uint32_t more = p.parts - 1; more > 0 && tile >= part->tiles; more--) tile -= (part++)->tiles;
    const uint32_t n = tile * 16 + (g & ~1u), token = token0 + 2 * t + g % 2;
    float* row = (float*)p.out + (size_t)token * p.out_stride + part->out_col + n;
    const float* bias = part->bias ? part->bias + n : nullptr;
    const int left = (int)part->n - (int)n;
    const bool adds = p.epilogue == ADD_TO, aligned = ((uintptr_t)row % 8 | p.out_stride % 2) == 0;
    const bool pairs = aligned && tile * 16 + 16 <= part->n;
    if (!pairs) put_tile<TOKENS, false, false>(sum, row, p.out_stride, bias, adds, left, token, live);
    else if (bias || token0 + TOKENS > live) put_tile<TOKENS, true, false>(sum, row, p.out_stride, bias, adds, left, token, live);
    else put_tile<TOKENS, true, true>(sum, row, p.out_stride, bias, adds, left, token, live);
}

template <int STAGES> __device__ __forceinline__ void many_body(const WgmmaArgs& p) {
    constexpr int MANY = 128;
    using R = ManyRing<MANY, STAGES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const R ring = {(uint32_t)__cvta_generic_to_shared(shared)};
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t live = min(*p.live, p.rows);
    const Tiles<MANY, false> tiles(live, p.token_tiles);  // tiles of features here
    begin_ring(ring);
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8) produce_many<MANY, STAGES, false>(p, ring, tiles, p.stages * p.s_seq);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    constexpr uint64_t SWIZZLED = 1ull << 62 | 64ull << 32 | 1ull << 16;
    Turn<STAGES> turn;
    for (uint32_t of = blockIdx.x; of < tiles.all(); of += gridDim.x) {
        const uint32_t token0 = tiles.token(of), unit = tiles.unit(of);
        auto load = [&](uint4 (&to)[4]) {
            barrier_wait(ring.full(turn.s), turn.parity);
            take_weights(to, ring, turn.s);
        };
        float sum[MANY / 2], acc[MANY / 2];
        uint4 a[4];
#pragma unroll 1
        for (uint32_t slice = 0; slice < p.s_seq; slice++) {
#pragma unroll 1
            for (uint32_t i = 0; i < p.stages; i++) {
                const uint64_t b = SWIZZLED | (ring.tokens(turn.s) & 0x3ffff) >> 4;
                load(a);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++) wgmma<MANY>(acc, a[k], b + 2 * k, i > 0 || k > 0);
                wgmma_commit();
                wgmma_wait();
                if (lane == 0) barrier_arrive(ring.free(turn.s));
                turn.next();
            }
#pragma unroll
            for (int c = 0; c < MANY / 2; c++) sum[c] = slice == 0 ? acc[c] : __fadd_rn(sum[c], acc[c]);
        }
        put_many<MANY>(p, sum, unit * 8 + warp, token0, live);
    }
}
