//! Weights and state of the CPU device, by name.

use super::slab::Slab;
use super::tile::PackedMatrix;
use crate::DeviceError;
use std::collections::HashMap;

/// Bytes of one weight slab: a whole number of huge pages, so that small matrices share them.
const WEIGHT_SLAB: usize = 64 << 20;

/// Alignment of every weight: a cache line.
const ALIGN: usize = 64;

/// How a weight lies in memory.
#[derive(Clone, Copy, Debug)]
pub enum WeightLayout {
    /// A packed matrix.
    Packed(PackedMatrix),
    /// f32 values.
    F32 { len: usize },
    /// 32-bit words.
    Words { len: usize },
}

/// A loaded weight.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// First byte.
    pub address: *mut u8,
    /// Bytes.
    pub bytes: usize,
    /// Layout.
    pub layout: WeightLayout,
}

/// All weights and state of a device.
#[derive(Default, Debug)]
pub struct Memory {
    slabs: Vec<Slab>,
    used: usize,
    weights: HashMap<String, Weight>,
    states: HashMap<String, Slab>,
    weight_bytes: u64,
    state_bytes: u64,
}

// SAFETY: the addresses in `weights` point into `slabs`, which move with them and never move
// their bytes; nothing has thread affinity.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives out addresses and sizes only, and nothing of it changes while
// it is shared.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserves bytes for a new weight.
    pub fn add_weight(
        &mut self,
        name: &str,
        bytes: usize,
        layout: WeightLayout,
    ) -> Result<Weight, DeviceError> {
        if let Some(found) = self.weights.get(name) {
            return Err(DeviceError::Binding {
                buffer: name.into(),
                found: format!("{} bytes loaded before", found.bytes),
                expected: "a weight that is loaded once".into(),
            });
        }
        let start = self.used.next_multiple_of(ALIGN);
        let fits = self.slabs.last().is_some_and(|s| start + bytes <= s.len());
        let start = if fits { start } else { 0 };
        if !fits {
            self.slabs.push(Slab::new(bytes.max(WEIGHT_SLAB), "weights")?);
        }
        let slab = self.slabs.last().expect("a slab was pushed where none fitted");
        // SAFETY: `start + bytes` is inside the slab by the check above.
        let address = unsafe { slab.base().add(start) };
        self.used = start + bytes;
        let weight = Weight { address, bytes, layout };
        self.weights.insert(name.into(), weight);
        self.weight_bytes += bytes as u64;
        Ok(weight)
    }

    /// Binds zeroed state, or finds the same state bound before.
    pub fn add_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError> {
        if let Some(found) = self.states.get(name) {
            return if found.len() as u64 == bytes {
                Ok(())
            } else {
                Err(DeviceError::Binding {
                    buffer: name.into(),
                    found: format!("{} bytes bound before", found.len()),
                    expected: format!("{bytes} bytes"),
                })
            };
        }
        let slab = Slab::new(bytes as usize, name)?;
        self.states.insert(name.into(), slab);
        self.state_bytes += bytes;
        Ok(())
    }

    /// A loaded weight.
    pub fn weight(&self, name: &str) -> Option<&Weight> {
        self.weights.get(name)
    }

    /// Bound state.
    pub fn state(&self, name: &str) -> Option<&Slab> {
        self.states.get(name)
    }

    /// Bytes of weights and of state.
    pub fn bytes(&self) -> (u64, u64) {
        (self.weight_bytes, self.state_bytes)
    }
}
