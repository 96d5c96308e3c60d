//! Weights against the digests taken when they were loaded.

use super::evidence::Finding;
use super::schedule::Allowance;
use lockstep_device::{Device, DeviceError};
use lockstep_flow::Micros;
use lockstep_plan::{BufferKind, StepPlan};
use std::collections::BTreeMap;

/// Bytes with a digest of their own: what one step of the sweep hashes.
const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes a second beside steps, and while there are none.
const BUSY_PER_S: u64 = 4 << 20;
const IDLE_PER_S: u64 = 32 << 20;

#[derive(Debug)]
struct Weight {
    name: String,
    bytes: u64,
    /// Its first digest in `kept`.
    first: usize,
}

/// Digests of all weights and the sweep's place among them.
#[derive(Default, Debug)]
pub struct Weights {
    list: Vec<Weight>,
    kept: Vec<u64>,
    /// Weight and chunk that come next.
    next: (usize, usize),
    began: Micros,
    /// A pass over all weights begins at most this often: an idle machine is left alone between.
    every: Micros,
    allowance: Allowance,
    /// Passes over all weights.
    pub sweeps: u64,
}

fn chunks(bytes: u64) -> usize {
    bytes.div_ceil(CHUNK_BYTES) as usize
}

impl Weights {
    /// Takes the digests of all weights that the plans name.
    ///
    /// # Errors
    /// The device's.
    pub fn take<'a>(
        device: &mut dyn Device,
        every: Micros,
        plans: impl Iterator<Item = &'a StepPlan>,
    ) -> Result<Weights, DeviceError> {
        let all = plans.flat_map(|p| &p.buffers).filter(|b| b.kind == BufferKind::Weight);
        let sizes: BTreeMap<&str, u64> = all.map(|b| (b.name.as_str(), b.bytes)).collect();
        let mut weights = Weights { every, ..Weights::default() };
        for (name, bytes) in sizes {
            let first = weights.kept.len();
            weights.kept.resize(first + chunks(bytes), 0);
            device.digest_weight(name, CHUNK_BYTES, 0, &mut weights.kept[first..])?;
            weights.list.push(Weight { name: name.into(), bytes, first });
        }
        Ok(weights)
    }

    /// The same, with passes at most so often.
    pub fn every(self, every: Micros) -> Weights {
        Weights { every, ..self }
    }

    /// Nothing more is compared: what was found is enough.
    pub fn stop(&mut self) {
        self.list.clear();
    }

    /// Compares the next chunks that there is time for. Returns how many, their bytes, and the
    /// first that differs.
    ///
    /// # Errors
    /// The device's.
    pub fn sweep(
        &mut self,
        device: &mut dyn Device,
        idle: bool,
        now: Micros,
    ) -> Result<(u64, u64, Option<Finding>), DeviceError> {
        let per_second = if idle { IDLE_PER_S } else { BUSY_PER_S };
        let (mut audits, mut hashed) = (0, 0);
        while let Some(weight) = self.list.get(self.next.0) {
            if self.next == (0, 0) && self.sweeps > 0 && now.since(self.began) < self.every {
                break;
            }
            let (chunk, offset) = (self.next.1, self.next.1 as u64 * CHUNK_BYTES);
            let bytes = CHUNK_BYTES.min(weight.bytes - offset);
            if !self.allowance.take(bytes, per_second, now) {
                break;
            }
            if self.next == (0, 0) {
                self.began = now;
            }
            let mut found = [0];
            device.digest_weight(&weight.name, CHUNK_BYTES, chunk as u64, &mut found)?;
            (audits, hashed) = (audits + 1, hashed + bytes);
            let (kept, found) = (self.kept[weight.first + chunk], found[0]);
            if kept != found {
                let name = weight.name.clone();
                let finding = Finding::Weight { name, offset, bytes, kept, found };
                return Ok((audits, hashed, Some(finding)));
            }
            let last = chunk + 1 == chunks(weight.bytes);
            self.next = if last { (self.next.0 + 1, 0) } else { (self.next.0, chunk + 1) };
            if self.next.0 == self.list.len() {
                self.next = (0, 0);
                self.sweeps += 1;
            }
        }
        Ok((audits, hashed, None))
    }
}
