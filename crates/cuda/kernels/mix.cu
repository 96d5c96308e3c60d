// registers: 32
// Synthetic ops: crates/plan/src/mix.rs is their definition. One block an op, so that every byte is
// read before any is written; it is slow on purpose, as an indexer beside a layer is.
#include "common.cuh"

struct MixSpan {
    uint8_t* at;
    uint64_t bytes;
};

struct MixArgs {
    uint64_t seed;
    MixSpan read[8], write[8];
    uint32_t reads, writes;
};

constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15ull;

extern "C" __global__ void __launch_bounds__(256) mix(const __grid_constant__ MixArgs p) {
    let_next_start();
    wait_for_previous();
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    uint64_t sum = 0, first = 0;
    for (uint32_t s = 0; s < p.reads; s++) {
        const MixSpan span = p.read[s];
        for (uint64_t i = threadIdx.x; i < span.bytes; i += 256)
            sum += mix64(256 * (first + i) + span.at[i] + GOLDEN);
        first += span.bytes;
    }
    // A sum modulo 2^64 has no order.
    atomicAdd(&total, (unsigned long long)sum);
    __syncthreads();
    const uint64_t key = mix64(mix64(p.seed + GOLDEN) + total);
    first = 0;
    for (uint32_t s = 0; s < p.writes; s++) {
        const MixSpan span = p.write[s];
        for (uint64_t i = threadIdx.x; i < span.bytes; i += 256)
            span.at[i] = (uint8_t)(mix64(key + (first + i + 1) * GOLDEN) >> 56);
        first += span.bytes;
    }
}
