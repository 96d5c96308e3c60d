//! Weights on their way into memory: vectors are copied, matrices packed on all threads.

use super::backend::CpuBackend;
use super::memory::{Memory, WeightLayout};
use super::pool::{Pool, Program};
use super::tile::{PackedMatrix, repack_tiles};
use crate::port::DeviceError;
use lockstep_plan::WeightData;
use lockstep_plan::format::Format;

/// See [`crate::Device::load_weight`].
pub(super) fn load(
    pool: &mut Pool,
    memory: &mut Memory,
    name: &str,
    data: WeightData<'_>,
) -> Result<(), DeviceError> {
    match data {
        WeightData::Matrix { format, n, k, bytes } => {
            let desc = CpuBackend::packed(format, n, k)?;
            let expected = format.bytes_for(u64::from(n) * u64::from(k));
            if expected.ok() != Some(bytes.len() as u64) {
                return Err(DeviceError::Binding {
                    buffer: name.into(),
                    found: format!("{} bytes", bytes.len()),
                    expected: format!("{n} rows of {k} {format} elements"),
                });
            }
            pack(pool, memory, name, desc, bytes)
        }
        WeightData::Seeded { n, k, seed, scale } => {
            let elems = u64::from(n) * u64::from(k);
            let value = |i| lockstep_plan::seeded(seed, i, scale).to_le_bytes();
            let bytes: Vec<u8> = (0..elems).flat_map(value).collect();
            let desc = CpuBackend::packed(Format::BF16, n, k)?;
            pack(pool, memory, name, desc, &bytes)
        }
        WeightData::F32(values) => {
            let layout = WeightLayout::F32 { len: values.len() };
            copy(memory, name, layout, bytemuck::cast_slice(values))
        }
        WeightData::U32(words) => {
            let layout = WeightLayout::Words { len: words.len() };
            copy(memory, name, layout, bytemuck::cast_slice(words))
        }
    }
}

fn copy(
    memory: &mut Memory,
    name: &str,
    layout: WeightLayout,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let weight = memory.add_weight(name, bytes.len(), layout)?;
    // SAFETY: the new weight has room for the bytes and nobody else knows it yet.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), weight.address, bytes.len()) };
    Ok(())
}

fn pack(
    pool: &mut Pool,
    memory: &mut Memory,
    name: &str,
    desc: PackedMatrix,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let weight = memory.add_weight(name, desc.bytes(), WeightLayout::Packed(desc))?;
    let job = PackJob { desc, src: bytes, dst: weight.address };
    pool.execute(&job)
        .map_err(|e| DeviceError::Failed { op: format!("packing of {name}"), what: e.to_string() })
}

/// Repacks a matrix, some tiles a task.
struct PackJob<'a> {
    desc: PackedMatrix,
    src: &'a [u8],
    dst: *mut u8,
}

// SAFETY: tasks write disjoint tiles of `dst`, which outlives the walk.
unsafe impl Sync for PackJob<'_> {}

/// Tiles that one packing task takes.
const PACK_TILES: usize = 16;

impl Program for PackJob<'_> {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        self.desc.tiles().div_ceil(PACK_TILES) as u32
    }

    unsafe fn run(&self, _op: u32, task: u32, _thread: u32) {
        let first = task as usize * PACK_TILES;
        let tiles = first..(first + PACK_TILES).min(self.desc.tiles());
        let len = tiles.len() * self.desc.tile_bytes();
        // SAFETY: the tiles lie inside the weight's bytes and belong to this task alone.
        let dst = unsafe {
            core::slice::from_raw_parts_mut(self.dst.add(first * self.desc.tile_bytes()), len)
        };
        repack_tiles(&self.desc, self.src, tiles, dst).expect("sizes were checked by load_weight");
    }
}
