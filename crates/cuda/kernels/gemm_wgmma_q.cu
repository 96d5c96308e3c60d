// only: sm_90a
// registers: 168
// Products of matrices of which some are quantised; gemm_wgmma.cuh and quantised.cuh are their
// definition.
#include "gemm_wgmma.cuh"

GEMM(gemm_wgmma_q_n8, 8, 6, 2, false, true)
GEMM(gemm_wgmma_q_n16, 16, 6, 2, false, true)
GEMM(gemm_wgmma_q_n32, 32, 5, 2, false, true)
GEMM(gemm_wgmma_q_n48, 48, 5, 2, false, true)
GEMM(gemm_wgmma_q_n64, 64, 4, 2, false, true)
GEMM(gemm_wgmma_q_n96, 96, 4, 2, false, true)
GEMM(gemm_wgmma_q_n128, 128, 6, 1, false, true)
GEMM(gemm_wgmma_q_n256, 256, 4, 1, false, true)
// Many tokens: a block takes all slices of its outputs, one after the other.
GEMM(gemm_wgmma_q_seq_n128, 128, 6, 1, true, true)
