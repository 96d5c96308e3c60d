//! The explorer: plans of `Mix` ops on the CPU device, in every order that they allow.
//!
//! What a run gives is compared as bits with program order of the *same* plan: an explorer has
//! nothing else to go by. A plan that keeps contract 2 gives the same in every order.

use lockstep_device::lab::{HostLane, LabDevice, Raw};
use lockstep_device::{CpuDevice, Device, DeviceError, ExecId, WeightData};
use lockstep_plan::explore::{Extension, Threaded};
use lockstep_plan::mix::mix64;
use lockstep_plan::{Buffer, BufferKind};
use std::sync::{Mutex, PoisonError};

/// Steps of one run: enough for what one step leaves to the next, and the next to the one after.
pub const STEPS: u32 = 3;

/// What can be seen of a run from outside: outputs as the host read them, by step and name, and
/// all state at the end.
pub type Seen = (Vec<(u32, String, Vec<u8>)>, Vec<Vec<u8>>);

/// A plan of `Mix` ops, captured.
pub struct Explorer {
    lab: LabDevice,
    exec: ExecId,
    raw: Raw,
    expected: Seen,
}

/// Fills inputs with a function of step and name, and keeps outputs.
#[derive(Default)]
struct Host(Mutex<Vec<(u32, String, Vec<u8>)>>);

impl HostLane for Host {
    fn write(&self, step: u32, input: &Buffer, bytes: &mut [u8]) {
        let name = input.name.bytes().fold(0, |h, b| mix64(h ^ u64::from(b)));
        for (i, byte) in bytes.iter_mut().enumerate() {
            // Small words: they are entries of tables too.
            let word = mix64(name ^ u64::from(step) << 32 ^ i as u64) % 4;
            *byte = if i % 4 == 0 { word as u8 } else { 0 };
        }
    }

    fn read(&self, step: u32, output: &Buffer, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((step, output.name.clone(), bytes.to_vec()));
    }
}

fn start_bytes(buffer: &Buffer) -> Vec<u8> {
    let name = buffer.name.bytes().fold(1, |h, b| mix64(h ^ u64::from(b)));
    (0..buffer.bytes).map(|i| mix64(name ^ i << 8) as u8).collect()
}

impl Explorer {
    /// Captures a plan and runs it in program order, which is what all else is compared with.
    ///
    /// # Errors
    /// What the laboratory refuses.
    pub fn new(raw: Raw) -> Result<Explorer, DeviceError> {
        let mut lab = LabDevice::new(CpuDevice::new(1, "auto")?);
        for b in &raw.plan.buffers {
            match b.kind {
                BufferKind::Weight => {
                    let floats = |c: &[u8]| f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                    let values: Vec<f32> = start_bytes(b).chunks_exact(4).map(floats).collect();
                    lab.device_mut().load_weight(&b.name, WeightData::F32(&values))?;
                }
                BufferKind::State(_) => lab.device_mut().bind_state(&b.name, b.bytes)?,
                _ => {}
            }
        }
        let arena = lab.device_mut().arena(raw.packing.arena_bytes().max(1))?;
        let exec = lab.capture_raw(raw.clone(), arena)?;
        let mut explorer = Explorer { lab, exec, raw, expected: Seen::default() };
        let order = Extension::program_order(&explorer.raw.plan, STEPS);
        explorer.expected = explorer.run(&order, false)?;
        Ok(explorer)
    }

    /// True where a random order differs from program order, by seed. `None` where there is no
    /// order at all: lanes wait for each other.
    ///
    /// # Errors
    /// A kernel that failed.
    pub fn differs(&mut self, seed: u64) -> Result<Option<bool>, DeviceError> {
        let Some(order) = Extension::random(&self.raw.plan, STEPS, seed) else { return Ok(None) };
        let seen = self.run(&order, true)?;
        Ok(Some(seen != self.expected))
    }

    /// The same with lanes on threads, delayed by up to `delay_us` around edges.
    ///
    /// # Errors
    /// A kernel that failed.
    pub fn threads_differ(
        &mut self,
        seed: u64,
        delay_us: u32,
    ) -> Result<Option<bool>, DeviceError> {
        let threaded = Threaded::new(&self.raw.plan, STEPS, seed, delay_us);
        let Some(threaded) = threaded else { return Ok(None) };
        let host = Host::default();
        self.reset()?;
        self.lab.run_threads(self.exec, None, &threaded, Some(&host))?;
        Ok(Some(self.seen(host)? != self.expected))
    }

    fn run(&mut self, order: &Extension, poisoned: bool) -> Result<Seen, DeviceError> {
        let poisons = order.poisons(&self.raw.plan, &self.raw.packing);
        let poisons = if poisoned { &poisons[..] } else { &[] };
        let host = Host::default();
        self.reset()?;
        self.lab.explore_steps(self.exec, None, order, poisons, Some(&host))?;
        self.seen(host)
    }

    fn reset(&mut self) -> Result<(), DeviceError> {
        for b in &self.raw.plan.buffers {
            match b.kind {
                BufferKind::State(_) => {
                    self.lab.device_mut().write_state(&b.name, 0, &start_bytes(b))?;
                }
                // A faulty host writes weights too.
                BufferKind::Weight => self.lab.write_weight(&b.name, 0, &start_bytes(b))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn seen(&self, host: Host) -> Result<Seen, DeviceError> {
        let mut outputs = host.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        outputs.sort();
        let mut states = Vec::new();
        for b in &self.raw.plan.buffers {
            if matches!(b.kind, BufferKind::State(_)) {
                let mut bytes = vec![0; b.bytes as usize];
                self.lab.device().read_state(&b.name, 0, &mut bytes)?;
                states.push(bytes);
            }
        }
        Ok((outputs, states))
    }
}
