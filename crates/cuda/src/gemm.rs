//! From a GEMM of a plan to a launch: which kernel, and how its blocks share the work.
//!
//! On Hopper a product whose K is a multiple of 64 is one of `gemm_wgmma.cu`, every other one of
//! `gemm.cu`: a choice of the GPU and K, never of the rows.

use crate::backend::{K_STEP, TILE_ROWS, TileFormat, gemm_slices};
use crate::driver::{Shape, TokenMap};
use crate::launch::{GemmArgs, Launch, PartArgs, WgmmaArgs};
use crate::resolve::{Resolver, refuse};
use lockstep_device::DeviceError;
use lockstep_plan::{Epilogue, Gemm};

/// Tokens that a block of the mma kernels takes, in tiles of 8, with 16 and with 32 features a
/// warp.
const TOKEN_TILES_1: [u32; 5] = [1, 2, 4, 6, 8];
const TOKEN_TILES_2: [u32; 4] = [1, 2, 4, 6];

/// Bytes of shared memory that a line of 128 channels takes.
const LINE_BYTES: u32 = (128 + 8) * 2;

/// Tiles of 16 features that a block of the wgmma kernels takes.
const WGMMA_TILES: u32 = 8;

/// Channels of one stage of the wgmma kernels.
const WGMMA_STAGE: u32 = 64;

/// A product with what both kernels need of it.
struct Product {
    part: [PartArgs; 3],
    parts: u32,
    rows: u32,
    epilogue: u32,
    gated: bool,
    /// Tiles of 16 features; of the gate alone where up goes with it.
    units: u32,
    /// A part is not bf16.
    quantised: bool,
}

impl Resolver<'_> {
    /// Resolves a GEMM.
    pub(crate) fn gemm(&self, g: &Gemm) -> Result<Launch, DeviceError> {
        let product = self.product(g)?;
        if self.on_wgmma(g) {
            return self.wgmma(g, &product);
        }
        assert!(!product.quantised, "matrices that stay quantised have a wgmma kernel");
        Ok(self.mma(g, &product))
    }

    /// Whether a GEMM is one of `gemm_wgmma.cu`.
    pub(crate) fn on_wgmma(&self, g: &Gemm) -> bool {
        self.kernels.wgmma && g.k.is_multiple_of(WGMMA_STAGE)
    }

    fn product(&self, g: &Gemm) -> Result<Product, DeviceError> {
        assert!(g.parts.len() <= 3, "a GEMM of {} parts", g.parts.len());
        let gated = g.epilogue == Epilogue::SwiGluQuantised;
        let epilogue = match g.epilogue {
            Epilogue::Store => 0,
            Epilogue::AddTo => 1,
            Epilogue::SwiGluQuantised => 2,
            Epilogue::SwiGlu => {
                return Err(refuse("SwiGLU into f32 rows", "SwiGLU into bf16 rows"));
            }
        };
        let mut quantised = false;
        let mut part = [PartArgs::default(); 3];
        for (to, p) in part.iter_mut().zip(&g.parts) {
            let (n, k, format) = self.tiles(p.w)?;
            quantised |= format != TileFormat::Bf16;
            assert_eq!((n, k), (p.n, g.k), "a plan's matrices have the shapes that were loaded");
            let (w, bias) = (self.at.at(p.w), self.at.opt(p.bias));
            let tiles = n.div_ceil(TILE_ROWS);
            *to = PartArgs { w, bias, tiles, n, out_col: p.out_col, format: format as u32 };
        }
        let tiles: u32 = part.iter().map(|p| p.tiles).sum();
        let units = if gated { part[0].tiles } else { tiles };
        let (rows, parts) = (self.rows(g.axis), g.parts.len() as u32);
        Ok(Product { part, parts, rows, epilogue, gated, units, quantised })
    }

    fn wgmma(&self, g: &Gemm, product: &Product) -> Result<Launch, DeviceError> {
        let Product { rows, gated, quantised, .. } = *product;
        let per_unit = 1 + u32::from(gated);
        let slices = wgmma_slices(product.units.div_ceil(WGMMA_TILES / per_unit), g.k);
        let tiles = product.units * per_unit;
        let t = WgmmaTiling::of(Work { rows, tiles, k: g.k, slices, gated, quantised });
        let x = self.at.at(g.xq.expect(BF16_ROWS));
        let tiles = product.units.div_ceil(t.tiles() / per_unit);
        let args = WgmmaArgs {
            x_map: TokenMap::new(x, rows, g.k, t.tokens)?.0,
            live: self.live(g.axis),
            out: self.at.at(g.out),
            part: product.part,
            parts: product.parts,
            rows,
            out_stride: g.out_cols,
            epilogue: product.epilogue,
            k_tiles: g.k / 16,
            stages: g.k / WGMMA_STAGE / slices,
            s_out: t.s_out,
            s_seq: slices / t.s_out / t.side(),
            token_tiles: match t.form {
                Form::Many | Form::Most => tiles,
                _ => t.token_tiles,
            },
            late: u32::from(t.late()),
            pad: [0; 10],
        };
        let blocks = tiles * t.token_tiles * t.s_out;
        let goes_on = matches!(t.form, Form::Many | Form::Most);
        let grid = (if goes_on { blocks.min(MULTIPROCESSORS) } else { blocks }, 1);
        let kernel = t.kernel(quantised, gated);
        let shape = self.shape(&kernel, grid, t.threads(), t.shared_bytes());
        Ok(Launch::new(Shape { cluster: t.s_out, ..shape }, args))
    }

    fn mma(&self, g: &Gemm, product: &Product) -> Launch {
        let Product { part, parts, rows, epilogue, gated, units, .. } = *product;
        let slices = gemm_slices(units, g.k);
        let t = Tiling::of(rows, units, gated, slices, self.kernels.clusters);
        let units = if gated { units } else { units.div_ceil(t.m) };
        let groups = units.div_ceil(8 / t.s_in);
        let token_tiles = rows.div_ceil(t.n * 8);
        let args = GemmArgs {
            live: self.live(g.axis),
            x: self.at.at(g.xq.expect(BF16_ROWS)),
            out: self.at.at(g.out),
            part,
            parts,
            rows,
            x_stride: g.k,
            out_stride: g.out_cols,
            epilogue,
            units,
            k_tiles: g.k / 16,
            steps: g.k / K_STEP / slices,
            s_in: t.s_in,
            s_out: t.s_out,
            token_tiles,
            s_seq: t.s_seq,
        };
        let grid = (groups * token_tiles * t.s_out, 1);
        let shape = self.shape(&t.kernel(), grid, 256, t.shared_bytes());
        Launch::new(Shape { cluster: t.s_out, ..shape }, args)
    }
}

const BF16_ROWS: &str = "a GEMM has its input as bf16 rows";

/// Into how many equal parts a wgmma product of `tiles` blocks of features over `k` channels cuts
/// K: a function of N and K, and the only one that the sums depend on.
///
/// The most, up to the 4 blocks for which a cluster finds room everywhere, that divides K into
/// whole stages, four or more, while an H200 can hold all blocks at once, two a multiprocessor.
pub(crate) fn wgmma_slices(tiles: u32, k: u32) -> u32 {
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
struct WgmmaTiling {
    /// Tokens of a block.
    tokens: u32,
    token_tiles: u32,
    /// Blocks of a cluster, which share the slices; 1 where a block takes all of them.
    s_out: u32,
    /// Which kernel of these tokens.
    form: Form,
}

/// Forms of a kernel of equal tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
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
struct Work {
    rows: u32,
    /// Tiles of 16 features, of gate and up together.
    tiles: u32,
    k: u32,
    slices: u32,
    gated: bool,
    quantised: bool,
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
    fn of(w: Work) -> WgmmaTiling {
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

    fn kernel(&self, quantised: bool, gated: bool) -> String {
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
    fn side(&self) -> u32 {
        if self.form == Form::Pair { 2 } else { 1 }
    }

    /// Tiles of 16 features of a block.
    fn tiles(&self) -> u32 {
        self.groups() * 4 / self.side()
    }

    fn threads(&self) -> u32 {
        (self.groups() + 1) * 128
    }

    /// Whether the next kernel waits for the last load to land. Where it has room beside this one, what
    /// it asks for early would keep the last weights.
    fn late(&self) -> bool {
        self.tokens <= 32 && self.form == Form::Plain && self.s_out == 1
    }

    /// The stages with their barriers; the sums take their place afterwards.
    fn shared_bytes(&self) -> u32 {
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

/// How blocks share an mma product: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tiling {
    /// Tiles of 16 features a warp.
    m: u32,
    /// Tiles of 8 tokens a block.
    n: u32,
    /// Slices of K that the warps of a block take side by side.
    s_in: u32,
    /// Blocks of a cluster, which take the slices between them.
    s_out: u32,
    /// Slices that a warp takes one after the other.
    s_seq: u32,
}

/// Blocks that occupy an H200.
const BLOCKS_ENOUGH: u32 = 128;

/// Channels up to which blocks that go on to the next tile are faster than new ones.
const MANY_K_MOST: u32 = 8192;

/// Three stages and the sums so far, or four and what gates and ups swap; 128 for barriers.
const MOST_SHARED_BYTES: u32 = 4 * 49_152 + 32_768 + 128;

/// Multiprocessors of an H200.
const MULTIPROCESSORS: u32 = 132;

impl Tiling {
    /// For `rows` tokens and `units` tiles of features. Few tokens: a block takes all slices,
    /// since what it reads of x is little. More: the blocks of a cluster take a slice each, so
    /// that x is read once for 128 features instead of once for 16. Many: there are blocks enough
    /// without cutting K, so a warp takes its slices in order and nobody has to meet.
    fn of(rows: u32, units: u32, gated: bool, slices: u32, clusters: bool) -> Tiling {
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
    fn kernel(&self) -> String {
        if self.seq() {
            format!("gemm_seq_n{}", self.n)
        } else {
            format!("gemm_m{}_n{}", self.m, self.n)
        }
    }

    /// Two chunks of x and the sums so far, or the partial sums of eight warps.
    fn shared_bytes(&self) -> u32 {
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
