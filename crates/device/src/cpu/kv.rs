//! How K and V lie in pages of the token pool.
//!
//! Of one layer, a K page is `[kv_head][head_dim][PAGE_TOKENS]` and a V page is
//! `[kv_head][PAGE_TOKENS][head_dim]`. In K the positions are the vector lanes, so a score is a
//! chain of fused multiply-adds over the channels with no sum across lanes; in V the channels are.
//! The price is a scattered write of each K row, which happens once where reads happen every step.

use super::lanes::{LANES, Lanes};
use half::f16;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{AttnShape, KvDtype, Unsupported};

/// Channels of a head, at most.
pub const HEAD_DIM_MAX: usize = 256;

/// Tokens of a page as an index type.
pub const PAGE: usize = PAGE_TOKENS as usize;

/// Bytes of one layer's K page and V page.
///
/// # Errors
/// Where the shape is one that the attention kernels do not take.
pub fn kv_page_bytes(shape: &AttnShape) -> Result<(u64, u64), Unsupported> {
    check_shape(shape)?;
    let bytes = u64::from(PAGE_TOKENS)
        * u64::from(shape.kv_heads)
        * u64::from(shape.head_dim)
        * shape.kv_dtype.bytes();
    Ok((bytes, bytes))
}

/// Checks that the kernels take the shape.
///
/// # Errors
/// Says what was asked and what would work.
pub fn check_shape(shape: &AttnShape) -> Result<(), Unsupported> {
    let AttnShape { heads, kv_heads, head_dim, .. } = *shape;
    let dim_ok = head_dim > 0
        && head_dim as usize <= HEAD_DIM_MAX
        && (head_dim as usize).is_multiple_of(LANES);
    let heads_ok = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
    if dim_ok && heads_ok {
        return Ok(());
    }
    Err(Unsupported {
        device: "cpu",
        asked: format!(
            "attention of {heads} heads over {kv_heads} KV heads of {head_dim} channels"
        ),
        supported: format!(
            "heads that are a multiple of the KV heads, of 16 to {HEAD_DIM_MAX} channels in \
             steps of 16"
        ),
    })
}

/// An element of a KV page.
pub trait KvElem: Copy + 'static {
    /// Its name in plans.
    const DTYPE: KvDtype;

    /// Sixteen elements, exactly.
    ///
    /// # Safety
    /// As [`Lanes::load`]: `p` is readable for 16 elements.
    unsafe fn load<V: Lanes>(p: *const Self) -> V;

    /// Sixteen elements, rounded to nearest even where they do not fit.
    ///
    /// # Safety
    /// `p` is writable for 16 elements.
    unsafe fn store<V: Lanes>(v: V, p: *mut Self);
}

impl KvElem for f32 {
    const DTYPE: KvDtype = KvDtype::F32;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const Self) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(p) }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(v: V, p: *mut Self) {
        // SAFETY: the caller's contract.
        unsafe { v.store(p) }
    }
}

impl KvElem for f16 {
    const DTYPE: KvDtype = KvDtype::F16;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const Self) -> V {
        // SAFETY: the caller's contract; `f16` is a transparent `u16`.
        unsafe { V::load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(v: V, p: *mut Self) {
        // SAFETY: the caller's contract; `f16` is a transparent `u16`.
        unsafe { v.store_f16(p.cast()) }
    }
}

/// Writes one head's K row into column `offset` of its page part `[head_dim][PAGE_TOKENS]`.
///
/// # Safety
/// The instruction set of `V` is available, `k` is readable for `dim` floats (a multiple of 16),
/// `page` is writable for `dim * PAGE` elements, and `offset < PAGE`.
#[inline(always)]
pub unsafe fn write_k<V: Lanes, E: KvElem>(k: *const f32, dim: usize, page: *mut E, offset: usize) {
    // SAFETY: channels stay below `dim`, and element d * PAGE + offset below dim * PAGE.
    unsafe {
        for d in (0..dim).step_by(LANES) {
            let mut row = core::mem::MaybeUninit::<[E; LANES]>::uninit();
            E::store(V::load(k.add(d)), row.as_mut_ptr().cast());
            for (i, v) in row.assume_init().into_iter().enumerate() {
                page.add((d + i) * PAGE + offset).write(v);
            }
        }
    }
}

/// Writes one head's V row into row `offset` of its page part `[PAGE_TOKENS][head_dim]`.
///
/// # Safety
/// As [`write_k`].
#[inline(always)]
pub unsafe fn write_v<V: Lanes, E: KvElem>(v: *const f32, dim: usize, page: *mut E, offset: usize) {
    // SAFETY: as in `write_k`.
    unsafe {
        for d in (0..dim).step_by(LANES) {
            E::store(V::load(v.add(d)), page.add(offset * dim + d));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttnShape =
        AttnShape { heads: 9, kv_heads: 3, head_dim: 64, kv_dtype: KvDtype::F16, window: 0 };

    #[test]
    fn a_page_holds_its_tokens() {
        assert_eq!(kv_page_bytes(&SHAPE), Ok((12_288, 12_288)));
        let wide = AttnShape { kv_dtype: KvDtype::F32, ..SHAPE };
        assert_eq!(kv_page_bytes(&wide), Ok((24_576, 24_576)));
    }

    #[test]
    fn shapes_without_a_kernel_are_refused_in_words() {
        for bad in [
            AttnShape { head_dim: 0, ..SHAPE },
            AttnShape { head_dim: 24, ..SHAPE },
            AttnShape { head_dim: 272, ..SHAPE },
            AttnShape { kv_heads: 0, ..SHAPE },
            AttnShape { kv_heads: 2, ..SHAPE },
            AttnShape { heads: 0, ..SHAPE },
        ] {
            let words = kv_page_bytes(&bad).unwrap_err().to_string();
            assert!(words.contains("the cpu device has no kernel for attention"), "{words}");
        }
    }
}
