//! The laboratory: plans that nobody has proven, run on purpose, in any order that their lanes and
//! edges allow, so that what a proof excludes can be seen to happen.
//!
//! Absent without the feature `lab`, which only the room `sim` may turn on; `cargo xtask tidy`
//! holds that. A server never names this module.
//!
//! A raw plan is wrong in what it *means*, never in where it points: what keeps every access inside
//! its memory (ids, spans, places in the arena, inputs that share no bytes) is checked here as
//! `prove` does. On real threads only `Mix` ops may be wrong: their bytes are atomics.

use super::call::{Call, Live};
use super::device::CpuDevice;
use super::mix::{load, store};
use super::resolve::{Addresses, resolve};
use super::source::Source;
use crate::port::{ArenaId, Device, DeviceError, ExecId};
use core::sync::atomic::{AtomicBool, Ordering};
use lockstep_flow::Lease;
use lockstep_plan::explore::{Extension, LaneItem, POISON, Poison, StepOp, Threaded};
use lockstep_plan::{
    Buffer, BufferId, Fault, Hazard, OpId, OpKind, Packing, Rule, StepPlan, Unsupported, prove,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A plan and its packing without a proof.
#[derive(Clone, Debug)]
pub struct Raw {
    /// What is scheduled.
    pub plan: StepPlan,
    /// Where its buffers lie.
    pub packing: Packing,
    /// What the kernels really touch where the plan lies about it: the same buffers and ops, with
    /// other accesses.
    pub kernels: Option<StepPlan>,
}

/// The host of a run: fills inputs and takes outputs where the plan's own host ops stand.
pub trait HostLane: Sync {
    /// Fills an input of a step.
    fn write(&self, step: u32, input: &Buffer, bytes: &mut [u8]);

    /// Takes an output of a step.
    fn read(&self, step: u32, output: &Buffer, bytes: &[u8]);
}

/// A CPU device that also runs plans without a proof.
pub struct LabDevice {
    inner: CpuDevice,
}

impl LabDevice {
    /// Opens the laboratory on a device.
    pub fn new(inner: CpuDevice) -> LabDevice {
        LabDevice { inner }
    }

    /// The device itself.
    pub fn device(&self) -> &CpuDevice {
        &self.inner
    }

    /// The device itself.
    pub fn device_mut(&mut self) -> &mut CpuDevice {
        &mut self.inner
    }

    /// Captures a plan that nobody has proven, and seals it.
    ///
    /// # Errors
    /// A plan that would touch memory outside its buffers or its arena, and what capture refuses.
    pub fn capture_raw(&mut self, raw: Raw, arena: ArenaId) -> Result<ExecId, DeviceError> {
        for plan in core::iter::once(&raw.plan).chain(&raw.kernels) {
            let hazards = prove(plan.clone(), raw.packing.clone()).err().unwrap_or_default();
            if let Some(hazard) = hazards.iter().find(|h| leaves_memory(h)) {
                return Err(refuse(hazard.to_string(), "plans whose accesses stay inside memory"));
            }
        }
        if raw
            .kernels
            .as_ref()
            .is_some_and(|k| k.buffers != raw.plan.buffers || k.ops.len() != raw.plan.ops.len())
        {
            let asked = "kernels of another plan".to_string();
            return Err(refuse(asked, "kernels over the plan's own buffers and ops"));
        }
        let exec = self.inner.capture_source(Source::Raw(Arc::new(raw)), arena)?;
        self.inner.seal(exec)?;
        Ok(exec)
    }

    /// Runs steps in an order, poisoning what is dead. Without a host, its ops are left out: they
    /// have happened before, and what they filled is there.
    ///
    /// # Errors
    /// A plan of real kernels without a lease for its tables; a kernel that failed.
    pub fn explore_steps(
        &mut self,
        exec: ExecId,
        lease: Option<&dyn Lease>,
        order: &Extension,
        poisons: &[Poison],
        host: Option<&dyn HostLane>,
    ) -> Result<(), DeviceError> {
        let source = self.admit(exec, lease)?;
        let at = self.inner.exec(exec).addresses.clone();
        let base = self.inner.arena_base(self.inner.exec(exec).arena);
        let mut next = poisons.iter().peekable();
        for i in 0..=order.order.len() {
            while let Some(p) = next.next_if(|p| p.before <= i) {
                assert!(p.arena.end <= source.packing().arena_bytes(), "poison inside the arena");
                let len = (p.arena.end - p.arena.start) as usize;
                // SAFETY: inside the arena by the assertion, and no kernel runs meanwhile.
                unsafe { core::ptr::write_bytes(base.add(p.arena.start as usize), POISON, len) };
            }
            let Some(o) = order.order.get(i) else { break };
            if host_op(&source, &at, *o, host) {
                continue;
            }
            let live = self.inner.live(self.inner.exec(exec));
            let (memory, isa) = (&self.inner.memory, self.inner.isa);
            if let Some(call) = resolve(&source, o.op, &at, memory, isa)? {
                self.inner.walk(&[(o.op, call)], live, source.plan())?;
            }
        }
        Ok(())
    }

    /// Runs one thread a lane: edges are events, delays are slept through.
    ///
    /// # Errors
    /// As [`LabDevice::explore_steps`]; and a raw plan with any op but `Mix`, whose races would be
    /// races of the process.
    pub fn run_threads(
        &mut self,
        exec: ExecId,
        lease: Option<&dyn Lease>,
        threaded: &Threaded,
        host: Option<&dyn HostLane>,
    ) -> Result<(), DeviceError> {
        let source = self.admit(exec, lease)?;
        if matches!(source, Source::Raw(_)) && !only_mix(&source) {
            let asked = "real kernels of an unproven plan on threads".to_string();
            return Err(refuse(asked, "a proven plan, or one of `Mix` ops"));
        }
        let (memory, isa) = (&self.inner.memory, self.inner.isa);
        let exec = self.inner.exec(exec);
        let at = exec.addresses.clone();
        let calls = source.plan().op_ids().map(|op| resolve(&source, op, &at, memory, isa));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        let run = Threads {
            live: self.inner.live(exec),
            source: &source,
            calls,
            at: &at,
            host,
            events: (0..threaded.events).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            failed: Mutex::new(None),
        };
        let run = &run;
        std::thread::scope(|scope| {
            for lane in &threaded.lanes {
                scope.spawn(move || run.lane(lane));
            }
        });
        let failed = run.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(()), |(op, what)| {
            let op = source.plan().op(op).name.clone();
            Err(DeviceError::Failed { op, what })
        })
    }

    /// Overwrites bytes of a loaded weight, as a host that repacks it in place would.
    ///
    /// # Errors
    /// No such weight, or past its end.
    pub fn write_weight(
        &mut self,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let at = self.weight(name, offset, bytes.len())?;
        // SAFETY: inside the weight, and no step runs while `self` is borrowed mutably.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        Ok(())
    }

    /// Bytes of a loaded weight.
    ///
    /// # Errors
    /// As [`LabDevice::write_weight`].
    pub fn read_weight(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.weight(name, offset, out.len())?;
        // SAFETY: inside the weight, and no step runs while `self` is borrowed.
        unsafe { core::ptr::copy_nonoverlapping(at.cast_const(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn weight(&self, name: &str, offset: u64, len: usize) -> Result<*mut u8, DeviceError> {
        let weight = self.inner.memory.weight(name);
        let weight = weight.ok_or_else(|| DeviceError::Unbound { buffer: name.into() })?;
        let end = (offset as usize).checked_add(len);
        if end.is_none_or(|end| end > weight.bytes) {
            return Err(DeviceError::Binding {
                buffer: name.into(),
                found: format!("byte {offset} and {len} more"),
                expected: format!("bytes below {}", weight.bytes),
            });
        }
        Ok(weight.address.wrapping_add(offset as usize))
    }

    /// Overwrites bytes of a buffer of the arena, between steps.
    pub fn write_buffer(&mut self, exec: ExecId, buffer: BufferId, offset: u64, bytes: &[u8]) {
        let exec = self.inner.exec(exec);
        let b = exec.source.plan().buffer(buffer);
        let end = offset.checked_add(bytes.len() as u64);
        assert!(b.kind.in_arena() && end.is_some_and(|e| e <= b.bytes), "inside {}", b.name);
        // SAFETY: inside the buffer by the assertion; no step runs while `self` is borrowed.
        unsafe {
            let at = exec.addresses.at(buffer).add(offset as usize);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        }
    }

    /// The plan that an executable runs.
    pub fn plan(&self, exec: ExecId) -> &StepPlan {
        self.inner.exec(exec).source.plan()
    }

    /// Where it lies.
    pub fn packing(&self, exec: ExecId) -> &Packing {
        self.inner.exec(exec).source.packing()
    }

    fn admit(&self, exec: ExecId, lease: Option<&dyn Lease>) -> Result<Source, DeviceError> {
        let source = self.inner.exec(exec).source.clone();
        match lease {
            Some(lease) => drop(self.inner.admit(exec, lease)?),
            None if only_mix(&source) => {}
            None => {
                let asked = "real kernels without a lease".to_string();
                return Err(refuse(asked, "a lease for their tables, or a plan of `Mix` ops"));
            }
        }
        Ok(source)
    }
}

fn refuse(asked: String, supported: &str) -> DeviceError {
    let (device, supported) = ("laboratory", supported.to_string());
    DeviceError::Unsupported(Unsupported { device, asked, supported })
}

/// True where following the plan could leave its memory or hand out bytes twice.
fn leaves_memory(hazard: &Hazard) -> bool {
    hazard.rule() == Rule::Structure
        || matches!(
            hazard.fault,
            Fault::Placement { .. }
                | Fault::OutsideArena { .. }
                | Fault::Misaligned { .. }
                | Fault::SharedInOut { .. }
                | Fault::ShortBuffer { .. }
        )
}

fn only_mix(source: &Source) -> bool {
    source.plan().ops.iter().all(|op| op.kind.is_host() || matches!(op.kind, OpKind::Mix { .. }))
}

/// Runs a host op; false where it is none.
fn host_op(source: &Source, at: &Addresses, o: StepOp, host: Option<&dyn HostLane>) -> bool {
    let plan = source.plan();
    let (id, write) = match plan.op(o.op).kind {
        OpKind::HostWrite { input } => (input, true),
        OpKind::HostRead { output } => (output, false),
        _ => return false,
    };
    let Some(host) = host else { return true };
    let buffer = plan.buffer(id);
    // Copied as atomics: a wrong plan's device lanes may be at the same bytes.
    let mut bytes = vec![0; buffer.bytes as usize];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: inside the buffer, whose place capture has checked.
        *byte = unsafe { load(at.at(id).add(i)) };
    }
    if write {
        host.write(o.step, buffer, &mut bytes);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { store(at.at(id).add(i), *byte) };
        }
    } else {
        host.read(o.step, buffer, &bytes);
    }
    true
}

/// A run with one thread a lane.
struct Threads<'a> {
    live: Live,
    source: &'a Source,
    calls: Vec<Option<Call>>,
    at: &'a Addresses,
    host: Option<&'a dyn HostLane>,
    events: Vec<AtomicBool>,
    stop: AtomicBool,
    failed: Mutex<Option<(OpId, String)>>,
}

// SAFETY: the addresses lead to memory that outlives the scope of the threads; of an unproven plan
// only `Mix` ops and host ops run, which touch it as atomics, and a proven one orders all the rest.
unsafe impl Sync for Threads<'_> {}

impl Threads<'_> {
    fn lane(&self, items: &[LaneItem]) {
        for item in items {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match *item {
                LaneItem::Wait(event) => {
                    while !self.events[event as usize].load(Ordering::Acquire) {
                        if self.stop.load(Ordering::Acquire) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                }
                LaneItem::Delay { micros } => {
                    let until = Instant::now() + Duration::from_micros(micros.into());
                    while Instant::now() < until {
                        std::thread::yield_now();
                    }
                }
                LaneItem::Run(o) => self.run(o),
                LaneItem::Record(event) => {
                    self.events[event as usize].store(true, Ordering::Release);
                }
            }
        }
    }

    fn run(&self, o: StepOp) {
        let work = || {
            if host_op(self.source, self.at, o, self.host) {
                return;
            }
            let Some(call) = &self.calls[o.op.index()] else { return };
            for task in 0..call.tasks() {
                // SAFETY: addresses are live; either the proof orders this op against the other
                // lanes', or it is a `Mix` op; one lane runs the op's tasks one by one.
                unsafe { call.run(task, 0, &self.live) };
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let what = panic.downcast_ref::<String>().cloned();
            let what = what.unwrap_or_else(|| "it panicked".into());
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((o.op, what));
            self.stop.store(true, Ordering::Release);
        }
    }
}
