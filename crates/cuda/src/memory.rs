//! Weights and state on the GPU, by name.

use crate::CudaError;
use crate::backend::{CudaBackend, K_STEP, QUANT_TILE_COLS, TILE_ROWS, TileFormat};
use crate::driver::{DeviceBytes, Driver, PinnedBytes, Shape};
use crate::kernels::Kernels;
use crate::launch::{Launch, PackArgs, PackQuantisedArgs};
use half::bf16;
use lockstep_device::DeviceError;
use lockstep_plan::Backend;
use lockstep_plan::format::{Format, decode_blocks};
use std::collections::HashMap;
use std::sync::Arc;

/// Elements that are sent to the GPU at a time: whole groups of rows.
const STAGING_ELEMS: usize = 16 << 20;

/// Rows of a group of tiles (`GROUP_TILES` of `common.cuh`): what is sent at a time is whole ones.
const GROUP_ROWS: usize = 4 * TILE_ROWS as usize;

/// How a weight lies on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightLayout {
    /// Tiles of a matrix of `n` rows of `k`.
    Tiles { n: u32, k: u32, format: TileFormat },
    /// f32 values.
    F32 { len: usize },
}

/// A loaded weight.
#[derive(Debug)]
pub struct Weight {
    bytes: DeviceBytes,
    /// Its layout.
    pub layout: WeightLayout,
}

/// What weights pass through on their way.
#[derive(Debug)]
struct Staging {
    host: PinnedBytes,
    device: DeviceBytes,
}

/// All weights and state of a device.
#[derive(Debug)]
pub struct Memory {
    driver: Arc<Driver>,
    /// How matrices lie here.
    pub backend: CudaBackend,
    weights: HashMap<String, Weight>,
    states: HashMap<String, DeviceBytes>,
    staging: Option<Staging>,
}

fn unbound(name: &str) -> DeviceError {
    DeviceError::Unbound { buffer: name.into() }
}

impl Memory {
    /// Nothing loaded.
    pub fn new(driver: &Arc<Driver>, backend: CudaBackend) -> Memory {
        Memory {
            driver: driver.clone(),
            backend,
            weights: HashMap::new(),
            states: HashMap::new(),
            staging: None,
        }
    }

    fn reserve(&mut self, name: &str, bytes: u64) -> Result<DeviceBytes, DeviceError> {
        if self.weights.contains_key(name) {
            return Err(DeviceError::Binding {
                buffer: name.into(),
                found: "a weight loaded before".into(),
                expected: "a weight that is loaded once".into(),
            });
        }
        self.allocate(name, bytes)
    }

    fn allocate(&self, what: &str, bytes: u64) -> Result<DeviceBytes, DeviceError> {
        DeviceBytes::new(&self.driver, bytes).map_err(|e| match e {
            CudaError::Driver { name, .. } if name == "CUDA_ERROR_OUT_OF_MEMORY" => {
                DeviceError::OutOfMemory { what: what.into(), bytes }
            }
            other => other.into(),
        })
    }

    /// Loads f32 values.
    pub fn add_f32(&mut self, name: &str, values: &[f32]) -> Result<(), DeviceError> {
        let bytes = self.reserve(name, values.len() as u64 * 4)?;
        // SAFETY: any f32 is four bytes to read.
        let raw = unsafe {
            core::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        // SAFETY: `bytes` is as long, and the stream is waited for before `values` can go.
        unsafe { self.driver.upload(bytes.address, raw)? };
        self.driver.synchronize()?;
        let layout = WeightLayout::F32 { len: values.len() };
        self.weights.insert(name.into(), Weight { bytes, layout });
        Ok(())
    }

    /// Loads a matrix: as it is where the GPU's kernels decode its format, else as bf16.
    pub fn add_matrix(
        &mut self,
        kernels: &Kernels,
        name: &str,
        (format, n, k): (Format, u32, u32),
        source: &[u8],
    ) -> Result<(), DeviceError> {
        let size = self.backend.matrix_bytes(format, n, k)?;
        let tile_format = self.backend.tile_format(format, k);
        let expected = format.bytes_for(u64::from(n) * u64::from(k));
        if expected.ok() != Some(source.len() as u64) {
            return Err(DeviceError::Binding {
                buffer: name.into(),
                found: format!("{} bytes", source.len()),
                expected: format!("{n} rows of {k} {format} elements"),
            });
        }
        let bytes = self.reserve(name, size)?;
        let row_elems = k as usize;
        let rows_at_once = (STAGING_ELEMS / row_elems).max(1).next_multiple_of(GROUP_ROWS);
        let row_bytes = source.len() / n as usize;
        let driver = self.driver.clone();
        let staged = self.staging(rows_at_once * row_elems * 2)?;
        let row_tile_bytes = size / u64::from(n.div_ceil(TILE_ROWS));
        for (i, rows) in source.chunks(rows_at_once * row_bytes).enumerate() {
            let count = (rows.len() / row_bytes) as u32;
            let first_tile = (i * rows_at_once) as u64 / u64::from(TILE_ROWS);
            let (from, to) = (staged.device.address, bytes.address + first_tile * row_tile_bytes);
            let (n, tiles) = (count, count.div_ceil(TILE_ROWS));
            let (host, launch) = if tile_format == TileFormat::Bf16 {
                let host = &mut staged.host.bytes_mut()[..count as usize * row_elems * 2];
                to_bf16(format, rows, host);
                let (k_tiles, grouped) = (k / 16, u32::from(kernels.on_wgmma(k)));
                let args =
                    PackArgs { from, to, seed: 0, n, k, k_tiles, tiles, scale: 0.0, grouped };
                (host, pack_launch(kernels, args))
            } else {
                let host = &mut staged.host.bytes_mut()[..rows.len()];
                host.copy_from_slice(rows);
                let args = PackQuantisedArgs { from, to, n, k, tiles, format: tile_format as u32 };
                (host, pack_quantised_launch(kernels, args))
            };
            // SAFETY: the staging buffers hold `count` rows, and the tiles lie in `bytes`; the
            // stream is waited for before the staging is used again.
            unsafe {
                driver.upload(from, host)?;
                driver.launch(&launch.shape, &launch.args)?;
            }
            driver.synchronize()?;
        }
        let layout = WeightLayout::Tiles { n, k, format: tile_format };
        self.weights.insert(name.into(), Weight { bytes, layout });
        Ok(())
    }

    /// Makes a matrix of seeded values on the GPU.
    pub fn add_seeded(
        &mut self,
        kernels: &Kernels,
        name: &str,
        (n, k): (u32, u32),
        (seed, scale): (u64, f32),
    ) -> Result<(), DeviceError> {
        let size = self.backend.matrix_bytes(Format::BF16, n, k)?;
        let bytes = self.reserve(name, size)?;
        let tiles = n.div_ceil(TILE_ROWS);
        let (to, k_tiles, grouped) = (bytes.address, k / 16, u32::from(kernels.on_wgmma(k)));
        let args = PackArgs { from: 0, to, seed, n, k, k_tiles, tiles, scale, grouped };
        let launch = pack_launch(kernels, args);
        // SAFETY: the tiles are exactly `bytes`.
        unsafe { self.driver.launch(&launch.shape, &launch.args)? };
        self.driver.synchronize()?;
        let layout = WeightLayout::Tiles { n, k, format: TileFormat::Bf16 };
        self.weights.insert(name.into(), Weight { bytes, layout });
        Ok(())
    }

    fn staging(&mut self, bytes: usize) -> Result<&mut Staging, DeviceError> {
        let fits = self.staging.as_ref().is_some_and(|s| s.device.len >= bytes as u64);
        if !fits {
            self.staging = Some(Staging {
                host: PinnedBytes::new(&self.driver, bytes)?,
                device: DeviceBytes::new(&self.driver, bytes as u64)?,
            });
        }
        Ok(self.staging.as_mut().expect("made above"))
    }

    /// Frees what only loading needs.
    pub fn end_loading(&mut self) {
        self.staging = None;
    }

    /// Binds zeroed state, or finds the same state bound before.
    pub fn add_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError> {
        if let Some(found) = self.states.get(name) {
            return if found.len == bytes {
                Ok(())
            } else {
                Err(DeviceError::Binding {
                    buffer: name.into(),
                    found: format!("{} bytes bound before", found.len),
                    expected: format!("{bytes} bytes"),
                })
            };
        }
        let state = self.allocate(name, bytes)?;
        // SAFETY: exactly the new bytes.
        unsafe { self.driver.fill(state.address, 0, bytes as usize)? };
        self.driver.synchronize()?;
        self.states.insert(name.into(), state);
        Ok(())
    }

    /// Address and size of a weight.
    pub fn weight(&self, name: &str) -> Result<(u64, u64, WeightLayout), DeviceError> {
        let w = self.weights.get(name).ok_or_else(|| unbound(name))?;
        Ok((w.bytes.address, w.bytes.len, w.layout))
    }

    /// Address and size of state.
    pub fn state(&self, name: &str) -> Result<(u64, u64), DeviceError> {
        let s = self.states.get(name).ok_or_else(|| unbound(name))?;
        Ok((s.address, s.len))
    }

    /// Bytes of weights and of state.
    pub fn bytes(&self) -> (u64, u64) {
        let weights = self.weights.values().map(|w| w.bytes.len).sum();
        (weights, self.states.values().map(|s| s.len).sum())
    }
}

fn pack_launch(kernels: &Kernels, args: PackArgs) -> Launch {
    let elems = u64::from(args.tiles) * u64::from(TILE_ROWS) * u64::from(args.k);
    let blocks = elems.div_ceil(256).min(1 << 20) as u32;
    debug_assert!(args.k.is_multiple_of(K_STEP));
    let function = kernels.get("pack_matrix");
    Launch::new(Shape { function, grid: (blocks, 1), block: 256, shared: 0, cluster: 1 }, args)
}

fn pack_quantised_launch(kernels: &Kernels, args: PackQuantisedArgs) -> Launch {
    let lanes = u64::from(args.tiles) * u64::from(args.k / QUANT_TILE_COLS) * 128;
    let blocks = lanes.div_ceil(256).min(1 << 20) as u32;
    let function = kernels.get("pack_quantised");
    Launch::new(Shape { function, grid: (blocks, 1), block: 256, shared: 0, cluster: 1 }, args)
}

/// Decodes whole rows to bf16, rounding to nearest even.
fn to_bf16(format: Format, rows: &[u8], out: &mut [u8]) {
    if format == Format::BF16 {
        out.copy_from_slice(rows);
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (block, elems) = (format.block_bytes(), format.block_elems());
    let each = (rows.len() / block).div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts = rows.chunks(each * block).zip(out.chunks_mut(each * elems * 2));
        for (from, to) in parts {
            scope.spawn(move || {
                let mut values = vec![0f32; elems * 64];
                for (from, to) in from.chunks(64 * block).zip(to.chunks_mut(64 * elems * 2)) {
                    let values = &mut values[..to.len() / 2];
                    decode_blocks(format, from, values);
                    for (to, v) in to.chunks_exact_mut(2).zip(&*values) {
                        to.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
                    }
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_rows_are_whole_groups_of_the_kernels_tiles() {
        let header = include_str!("../kernels/common.cuh");
        let tiles = GROUP_ROWS as u32 / TILE_ROWS;
        assert!(header.contains(&format!("constexpr uint32_t GROUP_TILES = {tiles};")));
    }

    #[test]
    fn any_format_becomes_bf16_in_order() {
        let values: Vec<f32> = (0..70_000).map(|i| i as f32 * 0.37 - 900.0).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = vec![0; values.len() * 2];
        to_bf16(Format::F32, &bytes, &mut out);
        for (v, o) in values.iter().zip(out.chunks_exact(2)) {
            assert_eq!(bf16::from_le_bytes([o[0], o[1]]), bf16::from_f32(*v));
        }
        let mut again = vec![0; out.len()];
        to_bf16(Format::BF16, &out, &mut again);
        assert_eq!(out, again);
    }
}
