//! The digest that the audit keeps of closed pages and of weights.
//!
//! Definition. The bytes are little-endian 64-bit words, the last block of [`BLOCK`] bytes padded
//! with zeros. Word w belongs to lane w mod [`LANES`]; lane i starts as (i + 1) * C and takes its
//! words in order:
//!
//! ```text
//! step(a, w) = rotl((a xor w) * C, 29)
//! ```
//!
//! with C odd. The digest is `step` over the lanes in order, started from the length in bytes, and
//! at last h xor (h >> 32).
//!
//! What it is sure to see: `step` is a bijection of `a` for a fixed `w`, and of `w` for a fixed
//! `a` (xor, a product with an odd number and a rotation can each be undone). So if all bytes but
//! those of one aligned word are equal, that word's lane differs from there to its end, and the
//! digest differs: every flip of one bit, and every change inside one word, is seen with
//! certainty. A change that spans words has 2^64 values to fall on. Words that swap places differ,
//! for lanes and blocks take them in order, and the rotation carries high bits down, so that two
//! flips of a top bit do not cancel. It is no defence against somebody who wants a collision.
//!
//! Lanes are independent, so a compiler turns a block into a few vector operations; every
//! instruction set gives the same number.

/// Accumulators.
pub const LANES: usize = 32;
/// Bytes that the lanes take together.
pub const BLOCK: usize = LANES * 8;

/// Odd: 2^64 divided by the golden ratio.
const C: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
const fn step(a: u64, w: u64) -> u64 {
    (a ^ w).wrapping_mul(C).rotate_left(29)
}

#[inline(always)]
fn take(lanes: &mut [u64; LANES], block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane = step(*lane, u64::from_le_bytes(*word));
    }
}

/// The definition, to be compiled once for each instruction set.
#[inline(always)]
pub(crate) fn body(bytes: &[u8]) -> u64 {
    let mut lanes = [0; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = (i as u64 + 1).wrapping_mul(C);
    }
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        take(&mut lanes, block);
    }
    if !tail.is_empty() {
        let mut last = [0; BLOCK];
        last[..tail.len()].copy_from_slice(tail);
        take(&mut lanes, &last);
    }
    let h = lanes.iter().fold(bytes.len() as u64, |h, lane| step(h, *lane));
    h ^ (h >> 32)
}

/// The digest of `bytes`.
pub fn digest(bytes: &[u8]) -> u64 {
    body(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (step(i, 7) >> 13) as u8).collect()
    }

    /// Every bit of buffers around the sizes of words, lanes and blocks.
    #[test]
    fn every_flipped_bit_is_seen() {
        for len in [1, 7, 8, 9, 63, 64, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17] {
            let mut bytes = noise(len);
            let clean = digest(&bytes);
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(digest(&bytes), clean, "bit {bit} of {len} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(digest(&bytes), clean);
        }
    }

    /// Two flips of the same bit in one lane: what a sum or a product alone would lose.
    #[test]
    fn equal_flips_in_one_lane_do_not_cancel() {
        let mut bytes = noise(4 * BLOCK);
        let clean = digest(&bytes);
        for bit in 0..64 {
            for block in 1..4 {
                for at in [0, block * BLOCK] {
                    bytes[at + bit / 8] ^= 1 << (bit % 8);
                }
                assert_ne!(digest(&bytes), clean, "bit {bit} of blocks 0 and {block}");
                for at in [0, block * BLOCK] {
                    bytes[at + bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    #[test]
    fn places_and_lengths_count() {
        let bytes = noise(2 * BLOCK);
        let clean = digest(&bytes);
        for (a, b) in [(0, 8), (0, BLOCK), (8, BLOCK + 16)] {
            let mut swapped = bytes.clone();
            for i in 0..8 {
                swapped.swap(a + i, b + i);
            }
            assert_ne!(digest(&swapped), clean, "words at {a} and {b}");
        }
        let zeros = |len| digest(&vec![0; len]);
        let all: std::collections::BTreeSet<u64> = (0..3 * BLOCK).map(zeros).collect();
        assert_eq!(all.len(), 3 * BLOCK, "runs of zeros of different lengths");
    }

    /// The definition in plain words, with nothing shared but the constant.
    #[test]
    fn the_definition_is_what_it_says() {
        let bytes = noise(2 * BLOCK + 100);
        let mut padded = bytes.clone();
        padded.resize(3 * BLOCK, 0);
        let mut lanes: Vec<u64> = (1..=LANES as u64).map(|i| i.wrapping_mul(C)).collect();
        for (w, word) in padded.chunks(8).enumerate() {
            let word = word.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let product = (lanes[w % LANES] ^ word).wrapping_mul(C);
            lanes[w % LANES] = product.rotate_left(29);
        }
        let mut h = bytes.len() as u64;
        for lane in lanes {
            let product = (h ^ lane).wrapping_mul(C);
            h = product.rotate_left(29);
        }
        assert_eq!(digest(&bytes), h ^ (h >> 32));
    }
}
