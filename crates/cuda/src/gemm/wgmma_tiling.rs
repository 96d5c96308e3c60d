//! How blocks of `gemm_wgmma.cu` share a product.

use super::BLOCKS_ENOUGH;

/// Tiles of 16 features that a block of the wgmma kernels takes.
pub(super) const WGMMA_TILES: u32 = 8;

/// Channels of one stage of the wgmma kernels.
pub(crate) const WGMMA_STAGE: u32 = 64;

/// Channels up to which blocks that go on to the next tile are faster than new ones.
const MANY_K_MOST: u32 = 8192;

/// Three stages and the sums so far, or four and what gates and ups swap; 128 for barriers.
const MOST_SHARED_BYTES: u32 = 4 * 49_152 + 32_768 + 128;

/// Multiprocessors of an H200.
pub(super) const MULTIPROCESSORS: u32 = 132;

/// Into how many equal parts a wgmma product of `tiles` blocks of features over `k` channels cuts
/// K: a function of N and K, and the only one that the sums depend on.
///
/// The most, up to the 4 blocks for which a cluster finds room everywhere, that divides K into
/// whole stages, four or more, while an H200 can hold all blocks at once, two a multiprocessor.
pub(super) fn wgmma_slices(tiles: u32, k: u32) -> u32 {
    let stages = k / WGMMA_STAGE;
    let mut slices = 1;
    while slices < 4
        && tiles * slices * 2 <= 264
        && stages.is_multiple_of(slices * 2)
        && stages / (slices * 2) >= 4
    {
        slices *= 2;
    }
    slices
}

/// How blocks share a wgmma product: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WgmmaTiling {
    /// Tokens of a block.
    pub(super) tokens: u32,
    pub(super) token_tiles: u32,
    /// Blocks of a cluster, which share the slices; 1 where a block takes all of them.
    pub(super) s_out: u32,
    /// Which kernel of these tokens.
    pub(super) form: Form,
}

/// Forms of a kernel of equal tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Two warpgroups of sums; up to 96 tokens, two blocks a multiprocessor.
    Plain,
    /// Three, and a block has a multiprocessor to itself.
    Wide,
    /// Two, of 64 features and a slice each; a block has a multiprocessor to itself.
    Pair,
    /// Two, and a block takes all slices, one after the other.
    Seq,
    /// The same, and a block goes on to the next tile.
    Many,
    /// The same with 256 tokens.
    Most,
}

/// What a tiling follows from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) rows: u32,
    /// Tiles of 16 features, of gate and up together.
    pub(super) tiles: u32,
    pub(super) k: u32,
    pub(super) slices: u32,
    pub(super) gated: bool,
    pub(super) quantised: bool,
}

impl Work {
    /// Features times tokens that a multiprocessor multiplies at most in tiles of so many.
    fn most_of(&self, features: u32, tokens: u32) -> u32 {
        let blocks = (self.tiles * 16).div_ceil(features) * self.rows.div_ceil(tokens);
        blocks.div_ceil(MULTIPROCESSORS) * features * tokens
    }

    /// The same of blocks that take one tile of 256 tokens after the other, those of a last half at the end.
    fn most_of_most(&self) -> u32 {
        let units = self.tiles.div_ceil(WGMMA_TILES);
        let last = u32::from((1..=128).contains(&(self.rows % 256)));
        let whole = units * (self.rows.div_ceil(256) - last);
        let before =
            |tiles: u32, block: u32| (tiles + MULTIPROCESSORS - 1 - block) / MULTIPROCESSORS;
        let halves = |block: u32| before(whole, block) + before(whole + last * units, block);
        (0..MULTIPROCESSORS).map(halves).max().unwrap_or(0) * 128 * 128
    }

    /// Whether those are faster than blocks of other forms, which take a third longer (K cut, 128
    /// tokens) or a tenth (gate and up) for a product of equal size, for all rows of the bucket and where a
    /// sixth of them is empty.
    fn most_is_faster(&self) -> bool {
        let fewer = Work { rows: self.rows - self.rows / 6, ..*self };
        self.most_is_faster_at_all() && fewer.most_is_faster_at_all()
    }

    fn most_is_faster_at_all(&self) -> bool {
        let most = self.most_of_most();
        if self.slices > 1 {
            return 3 * most <= 4 * self.most_of(128, 128);
        }
        let other = self.most_of(128, 256).min(self.most_of(192, 192));
        self.rows > 256 && 11 * most <= 12 * other
    }
}

impl WgmmaTiling {
    pub(super) fn of(w: Work) -> WgmmaTiling {
        const LADDER: [u32; 6] = [8, 16, 32, 48, 64, 96];
        match LADDER.into_iter().find(|t| *t >= w.rows) {
            Some(tokens) => WgmmaTiling::of_few(w, tokens),
            None => WgmmaTiling::of_many(w),
        }
    }

    /// One tile of tokens. Blocks that have a multiprocessor each are faster than two a multiprocessor:
    /// which ones have two then depends on whose shared memory is freed first.
    fn of_few(w: Work, tokens: u32) -> WgmmaTiling {
        let t = WgmmaTiling { tokens, token_tiles: 1, s_out: w.slices, form: Form::Plain };
        if w.quantised {
            return t;
        }
        let pairs = w.tiles.div_ceil(4) * 2;
        let fill = pairs > MULTIPROCESSORS / 2 && pairs <= MULTIPROCESSORS;
        if w.slices == 4 && !w.gated && fill {
            return WgmmaTiling { s_out: 2, form: Form::Pair, ..t };
        }
        // Warpgroups that a multiprocessor has at most. The blocks of clusters of four do not find a
        // multiprocessor each.
        let most = |groups: u32| w.tiles.div_ceil(groups * 4).div_ceil(MULTIPROCESSORS) * groups;
        let wide = most(3) < most(2) || most(3) == most(2) && w.rows > 32;
        if w.slices == 1 && wide { WgmmaTiling { form: Form::Wide, ..t } } else { t }
    }

    fn of_many(w: Work) -> WgmmaTiling {
        let narrow = w.tiles.div_ceil(WGMMA_TILES);
        let with = |tokens: u32, s_out: u32, form: Form| {
            let token_tiles = w.rows.div_ceil(tokens);
            WgmmaTiling { tokens, token_tiles, s_out, form }
        };
        if !w.quantised && w.gated == (w.slices == 1) && w.most_is_faster() {
            return with(256, 1, Form::Most);
        }
        if w.slices > 1 && narrow * w.rows.div_ceil(128) >= BLOCKS_ENOUGH {
            let old = w.quantised || w.gated || w.k > MANY_K_MOST;
            return with(128, 1, if old { Form::Seq } else { Form::Many });
        }
        if w.slices == 1 && w.rows > 256 && narrow * w.rows.div_ceil(256) >= BLOCKS_ENOUGH {
            // What a multiprocessor multiplies at most, in tiles of features times tokens.
            let most = |tokens: u32, tiles: u32| {
                let blocks = w.tiles.div_ceil(tiles) * w.rows.div_ceil(tokens);
                blocks.div_ceil(MULTIPROCESSORS) * tokens * tiles
            };
            if !w.quantised && most(192, 12) < most(256, 8) {
                return with(192, 1, Form::Wide);
            }
            return with(256, 1, Form::Plain);
        }
        with(128, w.slices, Form::Plain)
    }

    pub(super) fn kernel(&self, quantised: bool, gated: bool) -> String {
        let of = if quantised { "q_" } else { "" };
        let form = match self.form {
            Form::Plain => "",
            Form::Wide => "wide_",
            Form::Pair => "pair_",
            Form::Seq => "seq_",
            Form::Many => return "gemm_wgmma_many".into(),
            Form::Most if gated => return "gemm_wgmma_most_gated".into(),
            Form::Most => return "gemm_wgmma_most".into(),
        };
        format!("gemm_wgmma_{of}{form}n{}", self.tokens)
    }

    /// Warpgroups of sums.
    fn groups(&self) -> u32 {
        if self.form == Form::Wide { 3 } else { 2 }
    }

    /// Slices that a block takes side by side.
    pub(super) fn side(&self) -> u32 {
        if self.form == Form::Pair { 2 } else { 1 }
    }

    /// Tiles of 16 features of a block.
    pub(super) fn tiles(&self) -> u32 {
        self.groups() * 4 / self.side()
    }

    pub(super) fn threads(&self) -> u32 {
        (self.groups() + 1) * 128
    }

    /// Whether the next kernel waits for the last load to land. Where it has room beside this one, what
    /// it asks for early would keep the last weights.
    pub(super) fn late(&self) -> bool {
        self.tokens <= 32 && self.form == Form::Plain && self.s_out == 1
    }

    /// The stages with their barriers; the sums take their place afterwards.
    pub(super) fn shared_bytes(&self) -> u32 {
        if self.form == Form::Most {
            return MOST_SHARED_BYTES;
        }
        let stages = match (self.form, self.tokens) {
            (Form::Pair, 8) => 10,
            (Form::Pair, 16) => 9,
            (Form::Pair, 32) | (Form::Wide, 8 | 16) => 8,
            (Form::Pair, 48) | (Form::Wide, 32..=64) => 7,
            (Form::Pair, 64) | (Form::Wide, 96) => 6,
            (Form::Pair, 96) => 5,
            (_, 8 | 16 | 128) => 6,
            (_, 32 | 48) => 5,
            _ => 4,
        };
        stages * (self.groups() * 4 * 2048 + self.side() * self.tokens * 128 + 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_wgmma_product_follow_from_its_shape() {
        for tiles in [1, 5, 8, 32, 48, 192, 1187] {
            for k in [64, 128, 576, 1024, 1536, 4096, 12288] {
                let s = wgmma_slices(tiles, k);
                assert!(s.is_power_of_two() && s <= 4);
                assert_eq!(k % (s * WGMMA_STAGE), 0, "{tiles} {k}");
            }
        }
        let shapes = [(48, 4096), (32, 4096), (192, 4096), (32, 12288), (1187, 4096), (5, 576)];
        assert_eq!(shapes.map(|(tiles, k)| wgmma_slices(tiles, k)), [4, 4, 1, 4, 1, 1]);
    }

    fn tilings(rows: u32) -> impl Iterator<Item = (Work, WgmmaTiling)> {
        let shapes =
            [(8, 1, 4096), (256, 4, 4096), (256, 4, 12288), (384, 4, 4096), (1536, 1, 4096)];
        let cases = shapes.into_iter().chain([(9496, 1, 4096), (384, 4, 1024)]);
        cases.flat_map(move |(tiles, slices, k)| {
            [false, true].into_iter().flat_map(move |quantised| {
                [false, true].into_iter().map(move |gated| {
                    let w = Work { rows, tiles, k, slices, gated, quantised };
                    (w, WgmmaTiling::of(w))
                })
            })
        })
    }

    #[test]
    fn every_wgmma_tiling_covers_the_rows_and_fits() {
        for rows in 1..=5000 {
            for (w, t) in tilings(rows) {
                assert!(t.tokens * t.token_tiles >= rows && t.tokens * (t.token_tiles - 1) < rows);
                let all_slices = matches!(t.form, Form::Seq | Form::Many | Form::Most);
                assert!(all_slices || t.s_out * t.side() == w.slices, "{w:?} {t:?}");
                // Two blocks a multiprocessor; each block has 1 KiB of its own.
                let two = t.form == Form::Plain && t.tokens <= 96;
                assert!(t.shared_bytes() <= if two { 113 } else { 227 } << 10, "{w:?} {t:?}");
                let sums = t.side() * t.tokens * (t.tiles() * 16 + 4) * 4;
                assert!(
                    matches!(t.form, Form::Many | Form::Most) || sums <= t.shared_bytes(),
                    "sums fit: {t:?}"
                );
            }
        }
    }

    #[test]
    fn blocks_of_few_tokens_have_a_multiprocessor_each_where_they_can() {
        let of = |rows, tiles, slices, gated| {
            let t = WgmmaTiling::of(Work { rows, tiles, k: 4096, slices, gated, quantised: false });
            (t.kernel(false, gated), t.s_out)
        };
        let is = |name: &str, s_out| (name.to_string(), s_out);
        assert_eq!(of(1, 1536, 1, true), is("gemm_wgmma_wide_n8", 1));
        assert_eq!(of(96, 1536, 1, true), is("gemm_wgmma_wide_n96", 1));
        assert_eq!(of(1, 256, 4, false), is("gemm_wgmma_pair_n8", 2));
        assert_eq!(of(96, 256, 4, false), is("gemm_wgmma_pair_n96", 2));
        assert_eq!(of(1, 384, 4, false), is("gemm_wgmma_n8", 4));
        // Whole waves of tiles of 256 tokens, and too few of them.
        assert_eq!(of(2048, 256, 4, false), is("gemm_wgmma_most", 1));
        assert_eq!(of(4096, 1536, 1, true), is("gemm_wgmma_most_gated", 1));
        assert_eq!(of(608, 256, 4, false), is("gemm_wgmma_many", 1));
        for rows in 1..=96 {
            for (_, t) in tilings(rows).filter(|(_, t)| matches!(t.form, Form::Wide | Form::Pair)) {
                assert!(t.shared_bytes() > 114 << 10, "two would fit: {t:?}");
            }
        }
    }
}
