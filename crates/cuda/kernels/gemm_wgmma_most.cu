// only: sm_90a
// registers: 168
// Products of bf16 matrices and thousands of tokens; gemm_wgmma_most.cuh says how.
#include "gemm_wgmma_most.cuh"

// K is cut.
extern "C" __global__ void __launch_bounds__(384, 1) gemm_wgmma_most(const __grid_constant__ WgmmaArgs p) {
    most_body<3, 48, false>(p);
}
// Gate and up, whose K is not.
extern "C" __global__ void __launch_bounds__(384, 1) gemm_wgmma_most_gated(const __grid_constant__ WgmmaArgs p) {
    most_body<4, 0, true>(p);
}
