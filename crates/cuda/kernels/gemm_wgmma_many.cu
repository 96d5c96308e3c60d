// only: sm_90a
// registers: 168
// Products of bf16 matrices and many tokens whose K is cut; gemm_wgmma_many.cuh says how.
#include "gemm_wgmma_many.cuh"

extern "C" __global__ void __launch_bounds__(384, 1) gemm_wgmma_many(const __grid_constant__ WgmmaArgs p) {
    many_body<6>(p);
}
