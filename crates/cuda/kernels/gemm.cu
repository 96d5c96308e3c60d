// registers: 255
// out = x * w^T for bf16 rows x and bf16 weights w, f32 sums.
//
// Definition. K is cut into `slices` equal parts, a number that follows from N and K alone. The sum of a
// slice is a chain of mma.m16n8k16 steps in order of K from zero; slices are added in order, the first as it
// is; then bias, then the epilogue, whose addition to the residual takes subnormals as zeros. How tokens are
// tiled, and whether the slices of an output belong to the warps of one block, to the blocks of a cluster or
// one after the other to one warp, changes no bits, because a column of an mma depends on no other column.
//
// A warp multiplies MT tiles of 16 output features with 8 NT tokens. Weights go from memory to
// registers in the order in which the warp needs them, AHEAD steps of 32 channels early; tokens go
// through shared memory, in chunks of 128 channels, two at a time.
#include "gemm.cuh"

constexpr int THREADS = 256;
constexpr int CHUNK = 128;
constexpr int X_STRIDE = CHUNK + 8;
constexpr int CHUNK_STEPS = CHUNK / 32;

// Loads in place where `wanted`: the register that an mma has just read takes what comes AHEAD
// steps later, so that no copy has to wait for the load.
__device__ __forceinline__ void load_stream(uint4& v, const uint4* p, bool wanted) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((uint32_t)wanted));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ldmatrix4(uint32_t (&b)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at));
}

__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));
}

template <int NT>
__device__ __forceinline__ void load_chunk(const GemmArgs& p, uint32_t x_at, int chunk, uint32_t token0,
                                           uint32_t rows, uint32_t slice0) {
    constexpr int BT = NT * 8;
    const uint32_t slice_k = p.steps * p.s_seq * 32;
    const uint32_t buffer = x_at + (chunk & 1) * p.s_in * BT * X_STRIDE * 2;
    const uint32_t seg = threadIdx.x % (CHUNK / 8), line = threadIdx.x / (CHUNK / 8);
    const uint32_t k = chunk * CHUNK + seg * 8;
    if (k < slice_k) {
        constexpr uint32_t LINES = THREADS / (CHUNK / 8);
        if (rows < LINES) {
            // Few tokens: slices side by side, so that no thread waits for another's slice.
#pragma unroll 1
            for (uint32_t i = line; i < p.s_in * rows; i += LINES) {
                const uint32_t slice = i / rows, row = i - slice * rows;
                copy16(buffer + ((slice * BT + row) * X_STRIDE + seg * 8) * 2,
                       p.x + (size_t)(token0 + row) * p.x_stride + (slice0 + slice) * slice_k + k);
            }
        } else {
#pragma unroll 1
            for (uint32_t slice = 0; slice < p.s_in; slice++) {
                const __nv_bfloat16* from = p.x + (size_t)(token0 + line) * p.x_stride + (slice0 + slice) * slice_k + k;
                uint32_t to = buffer + ((slice * BT + line) * X_STRIDE + seg * 8) * 2;
#pragma unroll 1
                for (uint32_t row = line; row < rows; row += LINES) {
                    copy16(to, from);
                    from += (size_t)p.x_stride * LINES;
                    to += X_STRIDE * 2 * LINES;
                }
            }
        }
    }
    asm volatile("cp.async.commit_group;");
}

template <int MT, int NT, int AHEAD, bool SEQ>
__device__ __forceinline__ void gemm_body(const GemmArgs& p) {
    constexpr int BT = NT * 8;
    constexpr int RED_STRIDE = MT * 16 + 4;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t x_at = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t slice_local = warp % p.s_in, r = warp / p.s_in, r_tiles = 8 / p.s_in;
    const uint32_t rank = blockIdx.x % p.s_out, group = blockIdx.x / p.s_out;
    const uint32_t token0 = group % p.token_tiles * BT, unit0 = group / p.token_tiles * r_tiles;
    const uint32_t unit = unit0 + r, slice0 = rank * p.s_in;
    const uint32_t steps = SEQ ? p.steps * p.s_seq : p.steps;

    // Which weights: unit u is tile u of gate and of up, or MT tiles of one part. Past the last one
    // a warp multiplies tile 0 and nobody takes its sums.
    const uint4* w[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        uint32_t tile = unit, part = 0;
        if (p.epilogue == SWIGLU) {
            part = m;
        } else {
            tile = unit * MT + m;
            while (part + 1 < p.parts && tile >= p.part[part].tiles) tile -= p.part[part++].tiles;
        }
        if (tile >= p.part[part].tiles) tile = 0;
        w[m] = p.part[part].w + tile_at(tile, 0, p.k_tiles, 0) / 8
             + (size_t)(slice0 + slice_local) * steps * 64 + lane;
    }
    uint4 ring[MT][AHEAD][2];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int m = 0; m < MT; m++) {
            ring[m][i][0] = ring[m][i][1] = make_uint4(0, 0, 0, 0);
            load_stream(ring[m][i][0], w[m] + i * 64, i < steps);
            load_stream(ring[m][i][1], w[m] + i * 64 + 32, i < steps);
        }
    let_next_start();
    wait_for_previous();
    const uint32_t live = min(*p.live, p.rows);
    if (token0 >= live) return;  // all blocks of a cluster alike
    const uint32_t rows = min(live - token0, (uint32_t)BT);

    float acc[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[m][j][c] = 0.0f;
    // Where slices follow each other, the sum so far of each accumulator lies in shared memory,
    // behind the chunks, and is this thread's own.
    float* so_far = (float*)(shared + 2 * BT * X_STRIDE * 2) + threadIdx.x;
    uint32_t in_slice = 0, slice_now = 0;

    const uint32_t lane_at = x_at + (slice_local * BT + lane % 8) * X_STRIDE * 2 + lane / 8 * 16;
    const uint32_t buffer_bytes = p.s_in * BT * X_STRIDE * 2;
    // One step; `wanted` says whether its registers take the weights of AHEAD steps later.
    auto one_step = [&](uint32_t mine, int i, bool wanted) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint32_t b[4];
            ldmatrix4(b, mine + j * 8 * X_STRIDE * 2 + i * 64);
#pragma unroll
            for (int m = 0; m < MT; m++) mma(acc[m][j], ring[m][i % AHEAD][0], b[0], b[1]);
#pragma unroll
            for (int m = 0; m < MT; m++) mma(acc[m][j], ring[m][i % AHEAD][1], b[2], b[3]);
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
            load_stream(ring[m][i % AHEAD][0], w[m] + (i + AHEAD) * 64, wanted);
            load_stream(ring[m][i % AHEAD][1], w[m] + (i + AHEAD) * 64 + 32, wanted);
        }
        if (SEQ && ++in_slice == p.steps) {
            in_slice = 0;
            const bool last = slice_now + 1 == p.s_seq;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int j = 0; j < NT; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        float* sum = so_far + ((m * NT + j) * 4 + c) * THREADS;
                        if (slice_now > 0) acc[m][j][c] = __fadd_rn(*sum, acc[m][j][c]);
                        if (!last) {
                            *sum = acc[m][j][c];
                            acc[m][j][c] = 0.0f;
                        }
                    }
            slice_now++;
        }
    };

    const uint32_t chunks = (steps + CHUNK_STEPS - 1) / CHUNK_STEPS;
    load_chunk<NT>(p, x_at, 0, token0, rows, slice0);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        if (chunk + 1 < chunks) {
            load_chunk<NT>(p, x_at, chunk + 1, token0, rows, slice0);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        const uint32_t mine = lane_at + (chunk & 1) * buffer_bytes, step0 = chunk * CHUNK_STEPS;
#pragma unroll
        for (int i = 0; i < CHUNK_STEPS; i++)
            if (step0 + i < steps) one_step(mine, i, step0 + i + AHEAD < steps);
#pragma unroll
        for (int m = 0; m < MT; m++) w[m] += CHUNK_STEPS * 64;
        __syncthreads();
    }

    // Slices meet in shared memory: [slice][unit][token][feature].
    float* red = (float*)shared;
    const uint32_t region = BT * RED_STRIDE;
    float* own = red + (slice_local * r_tiles + r) * region;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float* at = own + (j * 8 + lane % 4 * 2) * RED_STRIDE + m * 16 + lane / 4;
            at[0] = acc[m][j][0];
            at[RED_STRIDE] = acc[m][j][1];
            at[8] = acc[m][j][2];
            at[RED_STRIDE + 8] = acc[m][j][3];
        }
    if (p.s_out > 1) cluster_barrier(); else __syncthreads();

    const bool gated = MT == 2 && p.epilogue == SWIGLU, clustered = p.s_out > 1;
    const uint32_t width = gated ? 16 : MT * 16;
    // Four features a thread; both powers of two.
    const uint32_t quads = r_tiles * width / 4, quads_log = 31 - __clz(quads);
    const uint32_t slices = p.s_in * p.s_out, slice_step = r_tiles * region * 4;
    for (uint32_t e = rank * THREADS + threadIdx.x; e < quads * rows; e += p.s_out * THREADS) {
        const uint32_t token = e >> quads_log, f = (e & (quads - 1)) * 4, ru = f / width, fu = f % width;
        const uint32_t at = x_at + ((ru * BT + token) * RED_STRIDE + fu) * 4;
        float4 y = all_slices(slices, at, slice_step, p.s_in, clustered);
        const size_t row = (size_t)(token0 + token) * p.out_stride;
        if (gated) {
            const float4 up = all_slices(slices, at + 64, slice_step, p.s_in, clustered);
            const uint32_t n = (unit0 + ru) * 16 + fu;
            if (n < p.part[0].n) put_gated(p.out, row + n, y, up);
        } else {
            put_sums(p.part, p.parts, p.epilogue, (float*)p.out + row, (unit0 + ru) * MT + fu / 16, fu % 16, y);
        }
    }
    // Nobody leaves while another block may still read its shared memory.
    if (p.s_out > 1) cluster_barrier();
}

#define GEMM(MT, NT, AHEAD, BLOCKS)                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                       \
        gemm_m##MT##_n##NT(const __grid_constant__ GemmArgs p) { gemm_body<MT, NT, AHEAD, false>(p); }

GEMM(1, 1, 4, 3)
GEMM(1, 2, 4, 2)
GEMM(1, 4, 4, 2)
GEMM(1, 6, 4, 2)
GEMM(1, 8, 4, 2)
GEMM(2, 1, 4, 2)
GEMM(2, 2, 4, 2)
GEMM(2, 4, 2, 2)
GEMM(2, 6, 2, 2)

// Many tokens: a warp takes all slices of its outputs, one after the other.
#define GEMM_SEQ(NT)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                            \
        gemm_seq_n##NT(const __grid_constant__ GemmArgs p) { gemm_body<2, NT, 2, true>(p); }

GEMM_SEQ(8)
GEMM_SEQ(16)
