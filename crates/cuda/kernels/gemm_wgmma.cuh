// out = x * w^T for bf16 rows x and bf16 weights w on Hopper: wgmma with the weights as its 64 rows
// and the tokens as its columns, so that one kernel serves one token and thousands.
//
// Definition. K is cut into `slices` equal parts, a number that follows from N and K alone. The sum of a
// slice is a chain of wgmma steps of 16 channels in order of K from zero; slices are added in order, the first
// as it is; then bias, then the epilogue, whose addition to the residual takes subnormals as zeros. A token is
// a column of the instruction and depends on no other, so how many columns an instruction has, and whether the
// slices of an output belong to the blocks of a cluster or follow each other in one block, changes no bits.
//
// A block multiplies 128 output features (of gate and up 64 each) with BT tokens. One warp keeps STAGES stages
// of 64 channels on their way: weights as bulk copies of the tiles as they lie (grouped, common.cuh), tokens
// through a tensor map into swizzled rows. Weights of the first stages are asked for before the previous kernel
// has ended. Two warpgroups take 64 features each: weights from shared memory to registers, which is the order
// they are stored in, tokens straight from shared memory.
//
// QUANT: parts may be quantised (quantised.cuh). Their tiles come to shared memory as they are, and
// are decoded on their way to registers.
#pragma once
#include "gemm.cuh"
#include "quantised.cuh"
#include "wgmma.cuh"

struct WgmmaArgs {
    alignas(64) unsigned char x_map[128];
    const uint32_t* live;
    void* out;
    GemmPart part[3];
    uint32_t parts, rows, out_stride, epilogue;
    uint32_t k_tiles, stages, s_out, s_seq;
    uint32_t token_tiles;
    uint32_t late;  // the next kernel starts after the last load has landed, not after it was asked for
};

// Consumer threads, tiles of 16 features and bytes of weights of a stage of a block of WGS warpgroups.
__host__ __device__ constexpr int consumers(int wgs) { return wgs * 128; }
__host__ __device__ constexpr uint32_t tiles_of(int wgs) { return wgs * 4; }
__host__ __device__ constexpr uint32_t weight_bytes(int wgs) { return tiles_of(wgs) * 2048; }

__device__ __forceinline__ void barrier_init(uint32_t at, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" :: "r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_weights(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                             uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy_tokens(uint32_t to, const void* map, uint32_t channel, uint32_t token,
                                            uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(map), "r"(channel), "r"(token), "r"(barrier) : "memory");
}

// Stages of one block: weights and tokens of each, and behind them all a barrier that says it is
// full (weights and tokens announce themselves one by one) and one that says it is free.
template <int BT, int STAGES, int WGS, int SIDE> struct Ring {
    static constexpr uint32_t X_BYTES = SIDE * BT * 128, W_BYTES = weight_bytes(WGS), BYTES = W_BYTES + X_BYTES;
    uint32_t base;
    __device__ uint32_t weights(uint32_t s) const { return base + s * BYTES; }
    __device__ uint32_t tokens(uint32_t s) const { return base + s * BYTES + W_BYTES; }
    __device__ uint32_t full(uint32_t s) const { return base + STAGES * BYTES + s * 8; }
    __device__ uint32_t free(uint32_t s) const { return base + STAGES * BYTES + (STAGES + s) * 8; }
};

// Part and tile of row of tiles `i` of a block.
template <uint32_t TILES>
__device__ __forceinline__ uint32_t part_of(const WgmmaArgs& p, uint32_t unit, uint32_t i, uint32_t& tile) {
    constexpr uint32_t HALF = TILES / 2;
    uint32_t part = 0;
    tile = unit * TILES + i;
    if (p.epilogue == SWIGLU) {
        tile = unit * HALF + i % HALF;
        part = i / HALF % 2;
    } else {
        while (part + 1 < p.parts && tile >= p.part[part].tiles) tile -= p.part[part++].tiles;
    }
    if (tile >= p.part[part].tiles) tile = 0;  // past the last one: nobody takes its sums
    return part;
}

// Where stages of a tile lie: the first byte, and how far it is to the next.
struct TileStages {
    const unsigned char* first;
    uint32_t step;
    // Of row `tile` of a bf16 part, from stage `stage` on.
    __device__ __forceinline__ TileStages(const GemmPart& part, uint32_t tile, uint32_t stage, uint32_t k_tiles)
        : first((const unsigned char*)part.w + tile_at(tile, stage * 4, k_tiles, part.tiles) * 2),
          step(group_width(tile, part.tiles) * 2048) {}
    // Of a quantised one, whose tiles lie row by row.
    __device__ __forceinline__ TileStages(const GemmPart& part, uint32_t tile, uint32_t stage, uint32_t k_tiles,
                                          uint32_t bytes)
        : first((const unsigned char*)part.w + ((size_t)tile * (k_tiles / 4) + stage) * bytes), step(bytes) {}
};

// The warp that feeds the ring. Lane r copies tile r of the block's rows of tiles.
template <int BT, int STAGES, int WGS, int SIDE, bool QUANT>
__device__ __forceinline__ void produce(const WgmmaArgs& p, const Ring<BT, STAGES, WGS, SIDE>& ring, uint32_t unit,
                                        uint32_t token0, uint32_t stage0, uint32_t count) {
    constexpr uint32_t TILES = tiles_of(WGS), FEATURES = TILES / SIDE, W_BYTES = weight_bytes(WGS);
    const uint32_t lane = threadIdx.x % 32;
    uint32_t tile;
    const uint32_t part = part_of<FEATURES>(p, unit, lane % FEATURES, tile);
    stage0 += lane / FEATURES % SIDE * count;
    uint32_t bytes = 2048, all = W_BYTES;
    if constexpr (QUANT) {
        bytes = wide_tile_bytes(p.part[part].format);
        all = __reduce_add_sync(~0u, lane < TILES ? bytes : 0);
    }
    TileStages w(p.part[part], tile, stage0, p.k_tiles);
    if constexpr (QUANT) if (bytes != 2048) w = TileStages(p.part[part], tile, stage0, p.k_tiles, bytes);
    // Tiles that lie one behind the other come in one copy, which the first one's lane asks for.
    bool asks = lane < TILES;
    if constexpr (!QUANT) {
        const auto before = (const unsigned char*)__shfl_up_sync(~0u, (unsigned long long)w.first, 1);
        const uint32_t step_before = __shfl_up_sync(~0u, w.step, 1);
        const bool begins = lane == 0 || lane >= TILES || w.first != before + 2048 || w.step != step_before;
        const uint32_t later = __ballot_sync(~0u, begins) >> 1 >> lane;
        asks &= begins;
        bytes *= __ffs(later);
    }
    // Weights that one tile of tokens reads are read once a step.
    uint64_t policy;
    if (p.token_tiles == 1)
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else
        asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    auto ask_weights = [&](uint32_t i) {
        const uint32_t s = i % STAGES;
        if (lane == 0) barrier_expect(ring.full(s), all);
        __syncwarp();
        if (asks) copy_weights(ring.weights(s) + lane * 2048, w.first + (size_t)i * w.step, bytes, ring.full(s), policy);
    };
    auto ask_tokens = [&](uint32_t i) {
        const uint32_t s = i % STAGES;
        if (lane == 0) {
            barrier_expect(ring.full(s), Ring<BT, STAGES, WGS, SIDE>::X_BYTES);
#pragma unroll
            for (int slice = 0; slice < SIDE; slice++)
                copy_tokens(ring.tokens(s) + slice * BT * 128, p.x_map, (stage0 + slice * count + i) * 64, token0, ring.full(s));
        }
    };
    const uint32_t early = min(count, (uint32_t)STAGES), live = min(*p.live, p.rows);
    for (uint32_t i = 0; i < early; i++) ask_weights(i);
    wait_for_previous();
    if (token0 >= live) {
        // Nobody needs this block, and what is on its way must land before it goes.
        for (uint32_t i = 0; i < early; i++) {
            if (lane == 0) barrier_arrive(ring.full(i));
            barrier_wait(ring.full(i), 0);
        }
        return;
    }
    for (uint32_t i = 0; i < early; i++) ask_tokens(i);
    for (uint32_t i = early; i < count; i++) {
        barrier_wait(ring.free(i % STAGES), (i / STAGES + 1) & 1);
        ask_weights(i);
        ask_tokens(i);
    }
    // Not before: blocks that wait for this kernel would take the place of its own, and where there
    // are few tokens, what they ask for early would keep its last weights.
    if (p.late && count > STAGES) barrier_wait(ring.full((count - 1) % STAGES), (count - 1) / STAGES & 1);
    let_next_start();
}

// The sums of this thread's features and tokens over all stages.
template <int BT, int STAGES, int WGS, int SIDE, bool SEQ, bool QUANT>
__device__ __forceinline__ void consume(const Ring<BT, STAGES, WGS, SIDE>& ring, uint32_t per_slice, uint32_t count,
                                        uint32_t format, float (&sum)[BT / 2]) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t mine = warp * 2048 + lane * 16;
    const uint32_t of_slice = SIDE > 1 ? warp / (WGS * 4 / SIDE) * (BT * 128) : 0;
    constexpr uint64_t SWIZZLED = 1ull << 62 | 64ull << 32 | 1ull << 16;
    // Weights of the next stage come to registers while this one's are multiplied, where both fit.
    constexpr int AHEAD = (BT == 96 && WGS == 2) || (BT == 32 && WGS == 3) || BT == 192 ? 1 : 2;
    uint4 a[AHEAD][4];
    uint32_t in_slice = 0;
    bool first_slice = true;
    auto load = [&](uint32_t i, uint4 (&to)[4]) {
        const uint32_t s = i % STAGES;
        barrier_wait(ring.full(s), i / STAGES & 1);
        if constexpr (QUANT) {
            const uint32_t tile = ring.weights(s) + warp * 2048;
            if (format == Q8_0) return decode_tile<Q8_0>(tile, lane, to);
            if (format == Q4_0) return decode_tile<Q4_0>(tile, lane, to);
            if (format == Q4_1) return decode_tile<Q4_1>(tile, lane, to);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(to[k].x), "=r"(to[k].y), "=r"(to[k].z), "=r"(to[k].w)
                         : "r"(ring.weights(s) + mine + k * 512));
    };
    auto run = [&](float (&acc)[BT / 2]) {
        auto stage = [&](uint32_t i, uint4 (&now)[4], uint4 (&next)[4]) {
            const uint32_t s = i % STAGES;
            const uint64_t b = SWIZZLED | ((ring.tokens(s) + of_slice) & 0x3ffff) >> 4;
            if constexpr (AHEAD == 1) load(i, now);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma<BT>(acc, now[k], b + 2 * k, in_slice > 0 || k > 0);
            wgmma_commit();
            if (AHEAD == 2 && i + 1 < count) load(i + 1, next);
            wgmma_wait();
            if (lane == 0) barrier_arrive(ring.free(s));
            if (++in_slice == per_slice) {
                in_slice = 0;
                if constexpr (SEQ) {
#pragma unroll
                    for (int c = 0; c < BT / 2; c++) sum[c] = first_slice ? acc[c] : __fadd_rn(sum[c], acc[c]);
                    first_slice = false;
                }
            }
        };
        if constexpr (AHEAD == 2) load(0, a[0]);
#pragma unroll 1
        for (uint32_t i = 0; i < count; i += AHEAD) {
            stage(i, a[0], a[AHEAD - 1]);
            if (AHEAD == 2 && i + 1 < count) stage(i + 1, a[AHEAD - 1], a[0]);
        }
    };
    if constexpr (SEQ) {
        float acc[BT / 2];
        run(acc);
    } else {
        run(sum);
    }
}

template <int BT, int STAGES, int WGS, int SIDE, int BLOCKS, bool SEQ, bool QUANT>
__device__ __forceinline__ void wgmma_body(const WgmmaArgs& p) {
    constexpr int CONSUMERS = consumers(WGS);
    // Tiles of features, and bytes of the sums of a slice.
    constexpr uint32_t TILES = tiles_of(WGS) / SIDE, RED_STRIDE = TILES * 16 + 4, SLICE_BYTES = BT * RED_STRIDE * 4;
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring<BT, STAGES, WGS, SIDE> ring = {(uint32_t)__cvta_generic_to_shared(shared)};
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % p.s_out, group = blockIdx.x / p.s_out;
    const uint32_t token0 = group % p.token_tiles * BT, unit = group / p.token_tiles;
    const uint32_t count = p.stages * p.s_seq;
    const bool clustered = p.s_out > 1;
    const uint32_t live = min(*p.live, p.rows);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(ring.full(s), 2);
            barrier_init(ring.free(s), CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= CONSUMERS / 32) {
        // Registers that feeding does not need go to the sums: all warps together have what the
        // launch gave them (two warpgroups of sums: 384 times 168 or 80, three: 512 times 128 or 64),
        // and an increase waits for ever for more.
        if constexpr (BLOCKS == 1 || WGS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (warp == CONSUMERS / 32) produce<BT, STAGES, WGS, SIDE, QUANT>(p, ring, unit, token0, rank * SIDE * count, count);
        __syncwarp();
        if (token0 >= live) return;
        if (clustered) {
            cluster_barrier();
            cluster_barrier();
        }
    } else {
        if constexpr (WGS == 3 && BLOCKS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        else if constexpr (WGS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 72;");
        else if constexpr (BLOCKS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
        wait_for_previous();
        if (token0 >= live) return;  // all blocks of a cluster alike
        const uint32_t rows = min(live - token0, (uint32_t)BT);
        float sum[BT / 2];
        uint32_t tile, format = BF16;
        if constexpr (QUANT) format = p.part[part_of<TILES>(p, unit, warp, tile)].format;
        consume<BT, STAGES, WGS, SIDE, SEQ, QUANT>(ring, p.stages, count, format, sum);
        // All warpgroups are done with the ring: sums take its place, [slice][token][feature].
        asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory");
        float* mine = (float*)shared + warp / TILES * (SLICE_BYTES / 4) + lane % 4 * 2 * RED_STRIDE + warp % TILES * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < BT / 8; j++) {
            mine[j * 8 * RED_STRIDE] = sum[j * 4];
            mine[(j * 8 + 1) * RED_STRIDE] = sum[j * 4 + 1];
            mine[j * 8 * RED_STRIDE + 8] = sum[j * 4 + 2];
            mine[(j * 8 + 1) * RED_STRIDE + 8] = sum[j * 4 + 3];
        }
        if (clustered) cluster_barrier(); else asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory");
        const bool gated = p.epilogue == SWIGLU;
        // Four features a thread.
        const uint32_t quads = gated ? TILES * 2 : TILES * 4, slices = p.s_out * SIDE;
        for (uint32_t e = rank * CONSUMERS + threadIdx.x; e < rows * quads; e += p.s_out * CONSUMERS) {
            // Divisions by constants.
            const uint32_t token = gated ? e / (TILES * 2) : e / (TILES * 4), f = (e - token * quads) * 4;
            const uint32_t at = ring.base + (token * RED_STRIDE + f) * 4;
            const float4 y = all_slices(slices, at, SLICE_BYTES, SIDE, clustered);
            const size_t row = (size_t)(token0 + token) * p.out_stride;
            if (gated) {
                const float4 up = all_slices(slices, at + TILES * 32, SLICE_BYTES, SIDE, clustered);
                const uint32_t n = unit * (TILES * 8) + f;
                if (n < p.part[0].n) put_gated(p.out, row + n, y, up);
            } else {
                put_sums(p.part, p.parts, p.epilogue, (float*)p.out + row, unit * TILES + f / 16, f % 16, y);
            }
        }
        // Nobody leaves while another block may still read its shared memory.
        if (clustered) cluster_barrier();
    }
}

#define GEMM_OF(NAME, BT, STAGES, WGS, SIDE, BLOCKS, SEQ, QUANT)                       \
    extern "C" __global__ void __launch_bounds__(consumers(WGS) + 128, BLOCKS)         \
        NAME(const __grid_constant__ WgmmaArgs p) {                                    \
        wgmma_body<BT, STAGES, WGS, SIDE, BLOCKS, SEQ, QUANT>(p);                      \
    }
#define GEMM(NAME, BT, STAGES, BLOCKS, SEQ, QUANT) GEMM_OF(NAME, BT, STAGES, 2, 1, BLOCKS, SEQ, QUANT)
