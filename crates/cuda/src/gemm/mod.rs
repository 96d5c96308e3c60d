//! From a GEMM of a plan to a launch: which kernel, and how its blocks share the work.
//!
//! On Hopper a product whose K is a multiple of 64 is one of `gemm_wgmma.cu`, every other one of
//! `gemm.cu`: a choice of the GPU and K, never of the rows.

mod tiling;
mod wgmma_tiling;

use self::tiling::Tiling;
pub(crate) use self::wgmma_tiling::WGMMA_STAGE;
use self::wgmma_tiling::{Form, MULTIPROCESSORS, WGMMA_TILES, WgmmaTiling, Work, wgmma_slices};
use crate::backend::{K_STEP, TILE_ROWS, TileFormat, gemm_slices};
use crate::driver::{Shape, TokenMap};
use crate::launch::{GemmArgs, Launch, PartArgs, WgmmaArgs};
use crate::resolve::{Resolver, refuse};
use lockstep_device::DeviceError;
use lockstep_plan::{Epilogue, Gemm};

/// Blocks that occupy an H200.
const BLOCKS_ENOUGH: u32 = 128;

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
        if self.kernels.on_wgmma(g.k) {
            return self.wgmma(g, &product);
        }
        assert!(!product.quantised, "matrices that stay quantised have a wgmma kernel");
        Ok(self.mma(g, &product))
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
