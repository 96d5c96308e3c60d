// Products of thousands of tokens: gemm_wgmma.cuh is their definition.
//
// As gemm_wgmma_many.cuh, with 256 tokens a block: a stage takes 48 KB to write and 80 KB to read in the
// 1,024 cycles of its products, which is what shared memory moves in them. The sums of a slice take
// half of the registers. Where K is cut, KEPT of the 128 sums so far of a thread stay in registers and the
// others wait in shared memory. Gate and up: of the four warps of a warpgroup two have gates and two the ups
// of the same features; two such warps swap halves of their tokens, and each writes one half.
#pragma once
#include "gemm_wgmma_many.cuh"

constexpr int MOST = 256;

// The first step of a slice: what the sums were is of no consequence, so that they take no
// registers between slices.
#define WGMMA_OUT4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define WGMMA_OUT16(i) WGMMA_OUT4(i), WGMMA_OUT4(i + 4), WGMMA_OUT4(i + 8), WGMMA_OUT4(i + 12)
#define WGMMA_OUT64(i) WGMMA_OUT16(i), WGMMA_OUT16(i + 16), WGMMA_OUT16(i + 32), WGMMA_OUT16(i + 48)
#define WGMMA_FIRST(N, A0, A1, A2, A3, B, ...)                                                                 \
    __device__ __forceinline__ void wgmma_first(float (&d)[N / 2], const uint4& a, uint64_t b) {               \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_SUMS_##N "}, "         \
                     "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}"                      \
                     : __VA_ARGS__                                                                             \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));                                        \
    }
WGMMA_FIRST(128, 64, 65, 66, 67, 68, WGMMA_OUT64(0))
WGMMA_FIRST(256, 128, 129, 130, 131, 132, WGMMA_OUT64(0), WGMMA_OUT64(64))

__device__ __forceinline__ void put_floats(uint32_t at, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" :: "r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ float4 get_floats(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

// silu_exact of a usual x: the same steps without what is for others, so that several can be under way.
__device__ __forceinline__ bool usual(float x) { return fabsf(x) >= 0x1p-40f && fabsf(x) <= 80.0f; }
__device__ __forceinline__ float silu_usual(float x) {
    const float d = __fadd_rn(1.0f, exp_usual(__fsub_rn(0.0f, x)));
    // The quotient, rounded once: an estimate of 1 / d made exact but for its last bit, then twice the rest.
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    float q = __fmul_rn(x, r);
    q = __fmaf_rn(r, __fmaf_rn(-d, q, x), q);
    return __fmaf_rn(r, __fmaf_rn(-d, q, x), q);
}

// silu(gate) * up of eight outputs, rounded to bf16, in pairs.
__device__ __forceinline__ void gate_eight(const float (&gate)[8], const float (&up)[8], uint32_t (&out)[4]) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 8; i++) all &= usual(gate[i]);
    float y[8];
    if (all) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = silu_usual(gate[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = silu_exact(gate[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 two =
            __floats2bfloat162_rn(__fmul_rn(y[2 * i], up[2 * i]), __fmul_rn(y[2 * i + 1], up[2 * i + 1]));
        out[i] = *(const uint32_t*)&two;
    }
}

// silu(gate) * up of this warp's half of the tokens: gates have the first. `room`: 4 KB a warp.
template <int TOKENS, int HALF>
__device__ __forceinline__ void put_gated_half(const WgmmaArgs& p, const float (&sum)[TOKENS / 2], uint32_t room,
                                               uint32_t unit, uint32_t token0, uint32_t live) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t pair = warp / 4 * 2 + warp % 2, mine = room + warp * 4096 + lane * 16;
    const uint32_t theirs = room + (warp ^ 2) * 4096 + lane * 16;
    auto meet = [&] { asm volatile("bar.sync %0, 64;" :: "r"(1 + pair) : "memory"); };
    constexpr int SUMS = TOKENS / 2, KEEP = HALF * (SUMS / 2), GIVE = SUMS / 2 - KEEP, B = 8;
    // Four features of one token: even lanes of the first eight of a tile, odd ones of the last.
    const uint32_t token = token0 + HALF * (TOKENS / 2) + g, n = unit * 64 + pair * 16 + t % 2 * 8 + t / 2 * 4;
    __nv_bfloat16* row = (__nv_bfloat16*)p.out + (size_t)token * p.out_stride + n;
    const uint32_t count = n < p.part[0].n ? min(p.part[0].n - n, 4u) : 0;
    const bool whole = count == 4 && (uintptr_t)row % 8 == 0 && p.out_stride % 4 == 0;
    const size_t eight = (size_t)8 * p.out_stride;
    auto put = [&](int j, uint32_t low, uint32_t high) {
        // Of features g and g + 8 and two tokens each: now of token g, and two features each.
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(low));
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(high));
        const uint32_t got = __shfl_xor_sync(~0u, t % 2 ? low : high, 1);
        const uint2 y = t % 2 ? make_uint2(got, high) : make_uint2(low, got);
        if (token + j * 8 >= live) return;
        __nv_bfloat16* at = row + j % B * eight;
        if (whole) {
            *(uint2*)at = y;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < count) at[i] = __ushort_as_bfloat16((unsigned short)((i < 2 ? y.x : y.y) >> i % 2 * 16));
        }
    };
#pragma unroll
    for (int j0 = 0; j0 < SUMS / 8; j0 += B) {
#pragma unroll
        for (int j = 0; j < B; j++) {
            const int c = GIVE + (j0 + j) * 4;
            put_floats(mine + j * 512, sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
        }
        meet();
        // One address at a time: those of all turns together have no room.
        asm volatile("" : "+l"(row));
#pragma unroll
        for (int j = 0; j < B; j += 2) {
            float own[8], other[8];
#pragma unroll
            for (int i = 0; i < 8; i++) own[i] = sum[KEEP + (j0 + j) * 4 + i];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float4 v = get_floats(theirs + (j + i) * 512);
                other[4 * i] = v.x, other[4 * i + 1] = v.y, other[4 * i + 2] = v.z, other[4 * i + 3] = v.w;
            }
            uint32_t y[4];
            if constexpr (HALF) gate_eight(other, own, y);
            else gate_eight(own, other, y);
            put(j0 + j, y[0], y[1]);
            put(j0 + j + 1, y[2], y[3]);
        }
        row += B * eight;
        meet();
    }
}

// A tile of 128 features by TOKENS tokens, of which 256 have come.
template <int TOKENS, int STAGES, int KEPT, bool GATED>
__device__ __forceinline__ void most_tile(const WgmmaArgs& p, const ManyRing<MOST, STAGES>& ring, Turn<STAGES>& turn,
                                          uint32_t unit, uint32_t token0, uint32_t live) {
    constexpr int SUMS = TOKENS / 2;
    constexpr uint64_t SWIZZLED = 1ull << 62 | 64ull << 32 | 1ull << 16;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Behind the barriers: sums so far, or what gates and ups swap.
    const uint32_t room = ring.base + STAGES * ring.BYTES + 128;
    float acc[SUMS];
    auto stage = [&](bool first) {
        const uint64_t b = SWIZZLED | (ring.tokens(turn.s) & 0x3ffff) >> 4;
        barrier_wait(ring.full(turn.s), turn.parity);
        uint4 a[4];
        take_weights(a, ring, turn.s);
        wgmma_fence();
        if (first) wgmma_first(acc, a[0], b);
        else wgmma<TOKENS>(acc, a[0], b, 1);
#pragma unroll
        for (int k = 1; k < 4; k++) wgmma<TOKENS>(acc, a[k], b + 2 * k, 1);
        wgmma_commit();
        wgmma_wait();
        if (lane == 0) barrier_arrive(ring.free(turn.s));
        turn.next();
    };
    auto slice = [&] {
        stage(true);
#pragma unroll 1
        for (uint32_t i = 1; i < p.stages; i++) stage(false);
    };
    if constexpr (GATED) {
        slice();
        if (warp % 4 < 2) put_gated_half<TOKENS, 0>(p, acc, room, unit, token0, live);
        else put_gated_half<TOKENS, 1>(p, acc, room, unit, token0, live);
    } else {
        float sum[KEPT];
        const uint32_t kept = room + threadIdx.x * 16;
#pragma unroll 1
        for (uint32_t left = p.s_seq; left > 0; left--) {
            slice();
            const bool first = left == p.s_seq;
            if (left > 1) {
#pragma unroll
                for (int c = 0; c < KEPT; c++) sum[c] = first ? acc[c] : __fadd_rn(sum[c], acc[c]);
#pragma unroll
                for (int c = KEPT; c < SUMS; c += 4) {
                    const uint32_t at = kept + (c - KEPT) * 1024;
                    // Minus zero and x are x.
                    float4 so = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
                    if (!first) so = get_floats(at);
                    put_floats(at, __fadd_rn(so.x, acc[c]), __fadd_rn(so.y, acc[c + 1]), __fadd_rn(so.z, acc[c + 2]),
                               __fadd_rn(so.w, acc[c + 3]));
                }
            } else {
                float out[SUMS];
#pragma unroll
                for (int c = 0; c < KEPT; c++) out[c] = __fadd_rn(sum[c], acc[c]);
#pragma unroll
                for (int c = KEPT; c < SUMS; c += 4) {
                    const float4 so = get_floats(kept + (c - KEPT) * 1024);
                    out[c] = __fadd_rn(so.x, acc[c]);
                    out[c + 1] = __fadd_rn(so.y, acc[c + 1]);
                    out[c + 2] = __fadd_rn(so.z, acc[c + 2]);
                    out[c + 3] = __fadd_rn(so.w, acc[c + 3]);
                }
                put_many<TOKENS>(p, out, unit * 8 + warp, token0, live);
            }
        }
    }
}

template <int STAGES, int KEPT, bool GATED> __device__ __forceinline__ void most_body(const WgmmaArgs& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const ManyRing<MOST, STAGES> ring = {(uint32_t)__cvta_generic_to_shared(shared)};
    const uint32_t live = min(*p.live, p.rows);
    const Tiles<MOST, true> tiles(live, p.token_tiles);  // tiles of features here
    begin_ring(ring);
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 288) produce_many<MOST, STAGES, GATED, true>(p, ring, tiles, p.stages * p.s_seq);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    Turn<STAGES> turn;
    uint32_t of = blockIdx.x;
    for (; of < tiles.whole * tiles.units; of += gridDim.x)
        most_tile<MOST, STAGES, KEPT, GATED>(p, ring, turn, tiles.unit(of), tiles.token(of), live);
    for (; of < tiles.all(); of += gridDim.x)
        most_tile<MOST / 2, STAGES, KEPT, GATED>(p, ring, turn, tiles.unit(of), tiles.token(of), live);
}
