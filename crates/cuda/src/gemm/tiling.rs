//! How blocks of `gemm.cu` share a product.

use super::BLOCKS_ENOUGH;

/// Tokens that a block of the mma kernels takes, in tiles of 8, with 16 and with 32 features a
/// warp.
const TOKEN_TILES_1: [u32; 5] = [1, 2, 4, 6, 8];
const TOKEN_TILES_2: [u32; 4] = [1, 2, 4, 6];

/// Bytes of shared memory that a line of 128 channels takes.
const LINE_BYTES: u32 = (128 + 8) * 2;

/// How blocks share an mma product: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tiling {
    /// Tiles of 16 features a warp.
    pub(super) m: u32,
    /// Tiles of 8 tokens a block.
    pub(super) n: u32,
    /// Slices of K that the warps of a block take side by side.
    pub(super) s_in: u32,
    /// Blocks of a cluster, which take the slices between them.
    pub(super) s_out: u32,
    /// Slices that a warp takes one after the other.
    pub(super) s_seq: u32,
}

impl Tiling {
    /// For `rows` tokens and `units` tiles of features. Few tokens: a block takes all slices,
    /// since what it reads of x is little. More: the blocks of a cluster take a slice each, so
    /// that x is read once for 128 features instead of once for 16. Many: there are blocks enough
    /// without cutting K, so a warp takes its slices in order and nobody has to meet.
    pub(super) fn of(rows: u32, units: u32, gated: bool, slices: u32, clusters: bool) -> Tiling {
        // Room for the sums so far of 128 tokens is what chips with clusters have.
        let wide = if clusters { 16 } else { 8 };
        let seq_blocks = units.div_ceil(if gated { 8 } else { 16 }) * rows.div_ceil(wide * 8);
        let alone = !clusters && rows > 32;
        if rows > 128 && seq_blocks >= BLOCKS_ENOUGH || alone {
            return Tiling { m: 2, n: wide, s_in: 1, s_out: 1, s_seq: slices };
        }
        let (m, ladder): (u32, &[u32]) =
            if gated { (2, &TOKEN_TILES_2) } else { (1, &TOKEN_TILES_1) };
        let s_in = match rows {
            _ if !clusters => slices,
            0..=4 => slices,
            // A cluster of more than four finds no room on some parts of the chip.
            5..=16 => slices.div_ceil(4).max(slices.min(2)),
            _ => slices.div_ceil(4),
        };
        let fits = |n: &&u32| 2 * s_in * **n * 8 * LINE_BYTES <= 150 << 10;
        let allowed = ladder.iter().filter(fits).copied();
        let most = allowed.clone().next_back().unwrap_or(1);
        // Equal shares of the rows, as many as it takes.
        let share = rows.div_ceil(8).div_ceil(rows.div_ceil(most * 8));
        let n = allowed.into_iter().find(|n| *n >= share).unwrap_or(most);
        Tiling { m, n, s_in, s_out: slices / s_in, s_seq: 1 }
    }

    /// Whether the kernel is the one for many tokens; a product whose K is not cut has one slice.
    fn seq(&self) -> bool {
        self.m == 2 && self.n >= 8
    }

    /// The kernel's name.
    pub(super) fn kernel(&self) -> String {
        if self.seq() {
            format!("gemm_seq_n{}", self.n)
        } else {
            format!("gemm_m{}_n{}", self.m, self.n)
        }
    }

    /// Two chunks of x and the sums so far, or the partial sums of eight warps.
    pub(super) fn shared_bytes(&self) -> u32 {
        let so_far = if self.seq() { self.m * self.n * 4 * 256 * 4 } else { 0 };
        let x = 2 * self.s_in * self.n * 8 * LINE_BYTES + so_far;
        let sums = 8 * self.n * 8 * (self.m * 16 + 4) * 4;
        x.max(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tiling_fits_and_takes_all_slices() {
        for rows in 1..=1000 {
            for slices in [1, 2, 4, 8] {
                for case in 0..16 {
                    let (gated, clusters) = (case & 1 == 1, case & 2 == 2);
                    let units = [1, 64, 256, 9496][case >> 2];
                    let t = Tiling::of(rows, units, gated, slices, clusters);
                    assert_eq!(t.s_in * t.s_out * t.s_seq, slices);
                    assert!(8 % t.s_in == 0 && (clusters || t.s_out == 1));
                    let room = if clusters { 227 } else { 160 };
                    assert!(t.shared_bytes() <= room << 10, "{rows} {t:?}");
                }
            }
        }
        let tiling = |rows, units| Tiling::of(rows, units, false, 8, true);
        let of = |m, n, s_in, s_out, s_seq| Tiling { m, n, s_in, s_out, s_seq };
        assert_eq!(tiling(1, 256), of(1, 1, 8, 1, 1));
        assert_eq!(tiling(96, 256), of(1, 6, 2, 4, 1));
        assert_eq!(tiling(2048, 256), of(2, 16, 1, 1, 8));
    }
}
