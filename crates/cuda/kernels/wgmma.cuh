// The warpgroup's matrix instruction of sm_90a: d[64][N] += a[64][16] * b[16][N], bf16 into f32.
//
// The first operand is in registers, in the order of mma.m16n8k16 for each of the four warps' 16
// rows; the second in shared memory, N rows of 128 bytes under the 128-byte swizzle. A column of
// d depends on its own column of b alone.
#pragma once
#include <stdint.h>

// Orders the warpgroup's registers before the instructions that read them.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

template <int N> __device__ __forceinline__ void wgmma(float (&d)[N / 2], const uint4& a, uint64_t b, uint32_t add);

// Names of the first N / 2 operands: the sums.
#define WGMMA_SUMS_8 \
    "%0, %1, %2, %3"
#define WGMMA_SUMS_16 \
    WGMMA_SUMS_8 \
    ", %4, %5, %6, %7"
#define WGMMA_SUMS_32 \
    WGMMA_SUMS_16 \
    ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_SUMS_48 \
    WGMMA_SUMS_32 \
    ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_SUMS_64 \
    WGMMA_SUMS_48 \
    ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_SUMS_96 \
    WGMMA_SUMS_64 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_SUMS_128 \
    WGMMA_SUMS_96 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_SUMS_192 \
    WGMMA_SUMS_128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80" \
    ", %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_SUMS_256 \
    WGMMA_SUMS_192 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112" \
    ", %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126" \
    ", %127"

#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D16(i) WGMMA_D4(i), WGMMA_D4(i + 4), WGMMA_D4(i + 8), WGMMA_D4(i + 12)
#define WGMMA_D64(i) WGMMA_D16(i), WGMMA_D16(i + 16), WGMMA_D16(i + 32), WGMMA_D16(i + 48)

// N tokens; then the numbers of the operands behind the sums, then the sums.
#define WGMMA(N, A0, A1, A2, A3, B, ADD, ...)                                                                \
    template <>                                                                                              \
    __device__ __forceinline__ void wgmma<N>(float (&d)[N / 2], const uint4& a, uint64_t b, uint32_t add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_SUMS_##N "}, "       \
                     "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}"                    \
                     : __VA_ARGS__                                                                           \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));                            \
    }

WGMMA(8, 4, 5, 6, 7, 8, 9, WGMMA_D4(0))
WGMMA(16, 8, 9, 10, 11, 12, 13, WGMMA_D4(0), WGMMA_D4(4))
WGMMA(32, 16, 17, 18, 19, 20, 21, WGMMA_D16(0))
WGMMA(48, 24, 25, 26, 27, 28, 29, WGMMA_D16(0), WGMMA_D4(16), WGMMA_D4(20))
WGMMA(64, 32, 33, 34, 35, 36, 37, WGMMA_D16(0), WGMMA_D16(16))
WGMMA(96, 48, 49, 50, 51, 52, 53, WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32))
WGMMA(128, 64, 65, 66, 67, 68, 69, WGMMA_D64(0))
WGMMA(192, 96, 97, 98, 99, 100, 101, WGMMA_D64(0), WGMMA_D16(64), WGMMA_D16(80))
WGMMA(256, 128, 129, 130, 131, 132, 133, WGMMA_D64(0), WGMMA_D64(64))
