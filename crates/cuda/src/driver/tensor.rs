//! How the copy engine finds the rows that a matrix multiplies.

use super::check;
use crate::CudaError;
use cudarc::driver::sys;

/// A tensor map of bf16 rows, in boxes of 64 channels by some tokens, swizzled over 128 bytes.
/// Rows past the last one read as zeros.
#[derive(Clone, Copy, Debug)]
pub struct TokenMap(pub [u64; 16]);

impl TokenMap {
    /// Of `rows` rows of `k` channels at `address`.
    pub fn new(address: u64, rows: u32, k: u32, box_tokens: u32) -> Result<TokenMap, CudaError> {
        encode(Tensor {
            kind: sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            address,
            dims: [u64::from(k), u64::from(rows)],
            strides: [u64::from(k) * 2],
            in_box: [64, box_tokens],
            swizzle: sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
            promotion: sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        })
        .map(TokenMap)
    }
}

/// A tensor map of f16 pages of K or V, in boxes of a page of one KV head: all positions' first 64
/// channels, behind them the others, swizzled over what a position has of them.
#[derive(Clone, Copy, Debug)]
pub struct PageMap(pub [u64; 16]);

impl PageMap {
    /// Of `rows` positions of one KV head each, of `head_dim` channels (16, 32, 64 or 128), at `address`.
    pub fn new(
        address: u64,
        rows: u64,
        head_dim: u32,
        page_tokens: u32,
    ) -> Result<PageMap, CudaError> {
        use sys::CUtensorMapSwizzle_enum as S;
        let (line, lines) = (head_dim.min(64), head_dim.div_ceil(64));
        let swizzle = match line {
            16 => S::CU_TENSOR_MAP_SWIZZLE_32B,
            32 => S::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => S::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        encode(Tensor {
            kind: sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            address,
            dims: [u64::from(line), rows, u64::from(lines)],
            strides: [u64::from(head_dim) * 2, u64::from(line) * 2],
            in_box: [line, page_tokens, lines],
            swizzle,
            // Both halves of a position are asked for by themselves: 256 bytes would come twice.
            promotion: sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        })
        .map(PageMap)
    }
}

/// A tensor of `N` dimensions in memory, and the boxes that are copied of it.
struct Tensor<const N: usize, const STRIDES: usize> {
    kind: sys::CUtensorMapDataType_enum,
    address: u64,
    dims: [u64; N],
    /// Bytes from one index to the next, of all dimensions but the first.
    strides: [u64; STRIDES],
    in_box: [u32; N],
    swizzle: sys::CUtensorMapSwizzle_enum,
    promotion: sys::CUtensorMapL2promotion_enum,
}

/// The map of a tensor, dense in each box; what lies outside the tensor reads as zeros.
fn encode<const N: usize, const STRIDES: usize>(
    t: Tensor<N, STRIDES>,
) -> Result<[u64; 16], CudaError> {
    const { assert!(STRIDES + 1 == N) };
    let mut map = sys::CUtensorMap_st { opaque: [0; 16] };
    let steps = [1u32; N];
    // Places of this frame; the address is only written down.
    call!(cuTensorMapEncodeTiled(
        &mut map,
        t.kind,
        N as u32,
        t.address as *mut core::ffi::c_void,
        t.dims.as_ptr(),
        t.strides.as_ptr(),
        t.in_box.as_ptr(),
        steps.as_ptr(),
        sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
        t.swizzle,
        t.promotion,
        sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    ))?;
    Ok(map.opaque)
}
