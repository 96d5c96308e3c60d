// only: sm_90a
// registers: 168
// Products of bf16 matrices; gemm_wgmma.cuh is their definition.
#include "gemm_wgmma.cuh"

GEMM(gemm_wgmma_n8, 8, 6, 2, false, false)
GEMM(gemm_wgmma_n16, 16, 6, 2, false, false)
GEMM(gemm_wgmma_n32, 32, 5, 2, false, false)
GEMM(gemm_wgmma_n48, 48, 5, 2, false, false)
GEMM(gemm_wgmma_n64, 64, 4, 2, false, false)
GEMM(gemm_wgmma_n96, 96, 4, 2, false, false)
GEMM(gemm_wgmma_n128, 128, 6, 1, false, false)
GEMM(gemm_wgmma_n256, 256, 4, 1, false, false)
// Many tokens: a block takes all slices of its outputs, one after the other.
GEMM(gemm_wgmma_seq_n128, 128, 6, 1, true, false)
// Three warpgroups of sums; a block has a multiprocessor to itself.
GEMM_OF(gemm_wgmma_wide_n8, 8, 8, 3, 1, 2, false, false)
GEMM_OF(gemm_wgmma_wide_n16, 16, 8, 3, 1, 2, false, false)
GEMM_OF(gemm_wgmma_wide_n32, 32, 7, 3, 1, 2, false, false)
GEMM_OF(gemm_wgmma_wide_n48, 48, 7, 3, 1, 1, false, false)
GEMM_OF(gemm_wgmma_wide_n64, 64, 7, 3, 1, 1, false, false)
GEMM_OF(gemm_wgmma_wide_n96, 96, 6, 3, 1, 1, false, false)
GEMM_OF(gemm_wgmma_wide_n192, 192, 4, 3, 1, 1, false, false)
// Two slices of 64 features side by side, a warpgroup each.
GEMM_OF(gemm_wgmma_pair_n8, 8, 10, 2, 2, 2, false, false)
GEMM_OF(gemm_wgmma_pair_n16, 16, 9, 2, 2, 2, false, false)
GEMM_OF(gemm_wgmma_pair_n32, 32, 8, 2, 2, 2, false, false)
GEMM_OF(gemm_wgmma_pair_n48, 48, 7, 2, 2, 2, false, false)
GEMM_OF(gemm_wgmma_pair_n64, 64, 6, 2, 2, 2, false, false)
GEMM_OF(gemm_wgmma_pair_n96, 96, 5, 2, 2, 2, false, false)
