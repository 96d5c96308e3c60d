//! The CPU device: captures a proven plan as resolved calls and replays them on pinned threads.

use super::audit;
use super::away::{CpuAway, CpuWorkshop};
use super::backend::CpuBackend;
use super::call::{Call, Live};
use super::exec::{Exec, Stage, capture_in};
use super::isa::Isa;
use super::load;
use super::memory::Memory;
use super::pool::{Pool, Program};
use super::resolve::{Addresses, resolve};
use super::room;
use super::slab::Slab;
use super::source::Source;
use crate::held::Held;
use crate::manifest::Manifest;
use crate::port::{ArenaId, Device, DeviceError, DeviceMemory, ExecId, PageBuffer};
use crate::workshop::{AwayArena, Remains, Workshop};
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, BufferKind, OpId, Proven, StepPlan, WeightData};
use std::sync::Arc;

/// The CPU as a device.
pub struct CpuDevice {
    pub(super) isa: Isa,
    pub(super) pool: Pool,
    pub(super) memory: Arc<Memory>,
    held: Held<Slab, Exec>,
    failed: Option<DeviceError>,
}

/// Why there is no new weight or state.
const PAST_LOADING: DeviceError = DeviceError::State {
    asked: "a new weight or state",
    state: "past loading: arenas are made over what it has",
};

/// Calls that one pool walk runs, in order.
struct Walk<'a> {
    calls: &'a [(OpId, Call)],
    live: Live,
}

impl Program for Walk<'_> {
    fn ops(&self) -> u32 {
        self.calls.len() as u32
    }

    fn tasks(&self, op: u32) -> u32 {
        self.calls[op as usize].1.tasks()
    }

    unsafe fn run(&self, op: u32, task: u32, thread: u32) {
        // SAFETY: addresses were resolved from a plan whose proof orders all accesses, the lease
        // vouches for table entries, and the pool keeps ops in order.
        unsafe { self.calls[op as usize].1.run(task, thread, &self.live) }
    }
}

impl CpuDevice {
    /// A device of `threads` threads (0: one a core) on the instruction set named `isa`
    /// (`auto` takes the best).
    ///
    /// # Errors
    /// The CPU lacks that instruction set, or a thread could not be started.
    pub fn new(threads: u32, isa: &str) -> Result<CpuDevice, DeviceError> {
        let isa = Isa::choose(isa).map_err(DeviceError::Isa)?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let threads = if threads == 0 { cores } else { threads };
        let pool = Pool::new(threads, threads <= cores).map_err(DeviceError::Threads)?;
        Ok(CpuDevice { isa, pool, memory: Arc::default(), held: Held::default(), failed: None })
    }

    /// The instruction set that kernels run on.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Compute threads.
    pub fn threads(&self) -> u32 {
        self.pool.threads()
    }

    pub(super) fn exec(&self, exec: ExecId) -> &Exec {
        self.held.exec(exec)
    }

    /// Checks that `exec` may run a step under `lease`, and reads the live counts.
    pub(super) fn admit(&self, exec: ExecId, lease: &dyn Lease) -> Result<Live, DeviceError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let exec = self.exec(exec);
        if exec.stage != Stage::Sealed {
            return Err(DeviceError::State { asked: "a replay", state: "not sealed" });
        }
        if !self.held.has(exec.arena) {
            return Err(DeviceError::State { asked: "a step", state: "without its arena" });
        }
        let bucket = exec.source.plan().bucket;
        if lease.bucket() != bucket {
            return Err(DeviceError::WrongLease {
                exec: bucket.to_string(),
                lease: lease.bucket().to_string(),
            });
        }
        Ok(self.live(exec))
    }

    /// The live counts of the step whose inputs are there.
    pub(super) fn live(&self, exec: &Exec) -> Live {
        let bucket = exec.source.plan().bucket;
        let full = Live { t: bucket.tokens, s: bucket.seqs, r: bucket.logit_rows };
        let Some(id) = exec.live_counts else { return full };
        let bytes = self.arena_bytes(exec, id);
        let word = |i: usize| {
            let b = [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]];
            u32::from_le_bytes(b)
        };
        Live { t: word(0).min(full.t), s: word(1).min(full.s), r: word(2).min(full.r) }
    }

    fn arena_bytes(&self, exec: &Exec, id: BufferId) -> &[u8] {
        let len = exec.source.plan().buffer(id).bytes as usize;
        // SAFETY: the address and length lie inside a live arena or memory slab (checked at
        // capture); no step runs while `self` is borrowed.
        unsafe { core::slice::from_raw_parts(exec.addresses.at(id), len) }
    }

    pub(super) fn walk(
        &mut self,
        calls: &[(OpId, Call)],
        live: Live,
        plan: &StepPlan,
    ) -> Result<(), DeviceError> {
        self.pool.execute(&Walk { calls, live }).map_err(|e| {
            let op = e.op().and_then(|i| calls.get(i as usize));
            let op = op.map_or_else(|| "?".into(), |(id, _)| plan.op(*id).name.clone());
            let failed = DeviceError::Failed { op, what: e.to_string() };
            self.failed = Some(failed.clone());
            failed
        })
    }

    /// Runs ops one by one, each resolved anew from the plan: the eager twin shares no captured
    /// address with a replay.
    fn run_ops(
        &mut self,
        id: ExecId,
        live: Live,
        order: impl Iterator<Item = OpId>,
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        let exec = self.exec(id);
        let source = exec.source.clone();
        let base = self.arena_base(exec.arena);
        let addresses = Addresses::new(&source, base, &self.memory)?;
        for op in order {
            if let Some(byte) = poison {
                self.poison(source.plan(), &addresses, op, byte);
            }
            if let Some(call) = resolve(&source, op, &addresses, &self.memory, self.isa)? {
                self.walk(&[(op, call)], live, source.plan())?;
            }
        }
        Ok(())
    }

    /// Fills transients that `op` is the first to write, so that a read of something that this
    /// step has not written shows.
    fn poison(&self, plan: &StepPlan, addresses: &Addresses, op: OpId, byte: u8) {
        for access in &plan.op(op).writes {
            let buffer = access.buffer();
            let touches = |o: &OpId| {
                let op = plan.op(*o);
                op.reads.iter().chain(&op.writes).any(|a| a.buffer() == buffer)
            };
            let first = plan.op_ids().find(touches);
            if plan.buffer(buffer).kind == BufferKind::Transient && first == Some(op) {
                let len = plan.buffer(buffer).bytes as usize;
                // SAFETY: a transient's bytes belong to the arena, and no kernel runs meanwhile.
                unsafe { core::ptr::write_bytes(addresses.at(buffer), byte, len) };
            }
        }
    }

    pub(super) fn arena_base(&self, arena: ArenaId) -> *mut u8 {
        self.held.arena(arena).base()
    }
}

impl Device for CpuDevice {
    fn backend(&self) -> Arc<dyn Backend + Send + Sync> {
        Arc::new(CpuBackend)
    }

    fn enter_step_thread(&mut self) {
        self.pool.pin_caller();
    }

    fn load_weight(&mut self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError> {
        let memory = Arc::get_mut(&mut self.memory).ok_or(PAST_LOADING)?;
        load::load(&mut self.pool, memory, name, data)
    }

    fn bind_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError> {
        if self.memory.state(name).is_some_and(|s| s.len() as u64 == bytes) {
            return Ok(());
        }
        let memory = Arc::get_mut(&mut self.memory).ok_or(PAST_LOADING)?;
        memory.add_state(name, bytes)
    }

    fn arena(&mut self, bytes: u64) -> Result<ArenaId, DeviceError> {
        room::check(bytes, "an arena")?;
        let slab = Slab::new(bytes as usize, "an arena")?;
        Ok(self.held.house(slab))
    }

    fn free_arena(&mut self, arena: ArenaId) -> Result<(), DeviceError> {
        self.held.free(arena)
    }

    fn capture(&mut self, proven: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError> {
        self.capture_source(Source::Proven(proven.clone()), arena)
    }

    fn seal(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.check_manifest(exec)?;
        self.held.exec_mut(exec).seal();
        Ok(())
    }

    fn release(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.held.release(exec);
        Ok(())
    }

    fn manifest(&self, exec: ExecId) -> &Manifest {
        &self.exec(exec).manifest
    }

    fn check_manifest(&self, exec: ExecId) -> Result<(), DeviceError> {
        let exec = self.exec(exec);
        exec.check_manifest(self.arena_base(exec.arena), &self.memory)
    }

    fn workshop(&self) -> Arc<dyn Workshop> {
        Arc::new(CpuWorkshop { memory: self.memory.clone(), isa: self.isa })
    }

    fn install(
        &mut self,
        arena: Box<dyn AwayArena>,
    ) -> Result<(ArenaId, Vec<ExecId>), DeviceError> {
        let away = arena.into_any().downcast::<CpuAway>();
        let Ok(away) = away else {
            return Err(DeviceError::State { asked: "an arena", state: "another device than its" });
        };
        let CpuAway { slab, home, execs, .. } = *away;
        Ok(self.held.install(home, slab, execs))
    }

    fn lend(&mut self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError> {
        let slab = self.held.lend(arena);
        Ok(Box::new(CpuAway::lent(slab, arena, self.memory.clone(), self.isa)))
    }

    fn uninstall(&mut self, arena: ArenaId) -> Remains {
        Box::new(self.held.uninstall(arena))
    }

    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8] {
        let [bytes] = self.inputs(exec, [input]);
        bytes
    }

    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8] {
        self.inputs(exec, inputs)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        let exec = self.exec(exec);
        let kind = exec.source.plan().buffer(output).kind;
        assert!(kind == BufferKind::Output { fetched: true }, "not an output of every step");
        self.arena_bytes(exec, output)
    }

    fn replay(&mut self, id: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        let live = self.admit(id, lease)?;
        let exec = self.held.exec(id);
        let result = self.pool.execute(&Walk { calls: &exec.calls, live });
        result.map_err(|e| self.fail(id, &e))
    }

    fn eager(&mut self, exec: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        let live = self.admit(exec, lease)?;
        let ops = self.exec(exec).source.plan().op_ids();
        self.run_ops(exec, live, ops, None)
    }

    fn explore(
        &mut self,
        exec: ExecId,
        lease: &dyn Lease,
        order: &[OpId],
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        let live = self.admit(exec, lease)?;
        self.run_ops(exec, live, order.iter().copied(), poison)
    }

    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]) {
        let bytes = self.arena_bytes(self.exec(exec), buffer);
        let offset = offset as usize;
        out.copy_from_slice(&bytes[offset..offset + out.len()]);
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        let (from, to) = (self.exec(from), self.exec(to));
        let plan = to.source.plan();
        for (id, buffer) in plan.buffer_ids().zip(&plan.buffers) {
            if !matches!(buffer.kind, BufferKind::Input { .. }) {
                continue;
            }
            assert_eq!(from.source.plan().buffer(id), buffer, "executables of two plans");
            let (src, dst) = (from.addresses.at(id), to.addresses.at(id));
            if src != dst {
                // SAFETY: both are arena bytes of this size in different arenas, and no step runs
                // while `self` is borrowed.
                unsafe { core::ptr::copy_nonoverlapping(src, dst, buffer.bytes as usize) };
            }
        }
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        let (a, b) = (self.exec(a), self.exec(b));
        let plans = [a, b].map(|e| e.source.plan().buffer(buffer));
        assert_eq!(plans[0], plans[1], "executables of two plans");
        let (a, b) = (self.arena_bytes(a, buffer), self.arena_bytes(b, buffer));
        let len = len as usize;
        if a[..len] == b[..len] {
            return None;
        }
        a[..len].iter().zip(&b[..len]).position(|(a, b)| a != b).map(|i| i as u64)
    }

    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let slab = self.memory.state(name);
        let slab = slab.ok_or_else(|| DeviceError::Unbound { buffer: name.into() })?;
        let end = (offset as usize).checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= slab.len()), "past the end of {name}");
        // SAFETY: in bounds by the assertion; no step runs while `self` is borrowed mutably.
        unsafe {
            let to = slab.base().add(offset as usize);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let slab = self.memory.state(name);
        let slab = slab.ok_or_else(|| DeviceError::Unbound { buffer: name.into() })?;
        // SAFETY: no step runs while `self` is borrowed.
        out.copy_from_slice(unsafe { slab.bytes(offset as usize, out.len()) });
        Ok(())
    }

    fn replay_op(&mut self, id: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError> {
        let live = self.admit(id, lease)?;
        let exec = self.held.exec(id);
        let Ok(at) = exec.calls.binary_search_by_key(&op, |(op, _)| *op) else { return Ok(()) };
        let result = self.pool.execute(&Walk { calls: &exec.calls[at..=at], live });
        result.map_err(|e| self.fail(id, &e))
    }

    fn digest_pages(
        &mut self,
        buffers: &[PageBuffer],
        pages: &[u32],
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        let on = (&mut self.pool, &*self.memory, self.isa);
        audit::digest_pages(on, buffers, pages, out)
    }

    fn digest_weight(
        &mut self,
        name: &str,
        chunk_bytes: u64,
        first: u64,
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        let on = (&mut self.pool, &*self.memory, self.isa);
        audit::digest_weight(on, name, chunk_bytes, first, out)
    }

    fn memory(&self) -> DeviceMemory {
        let (weight_bytes, state_bytes) = self.memory.bytes();
        let (arenas, arena_bytes) = self.held.arenas();
        let executables = self.held.execs();
        DeviceMemory { weight_bytes, state_bytes, arena_bytes, arenas, executables }
    }
}

impl CpuDevice {
    /// Resolves a plan to addresses and calls in `arena`.
    pub(super) fn capture_source(
        &mut self,
        source: Source,
        arena: ArenaId,
    ) -> Result<ExecId, DeviceError> {
        let exec = capture_in(source, arena, self.held.arena(arena), &self.memory, self.isa)?;
        Ok(self.held.register(exec))
    }

    /// What a capture was made of, for [`super::faults`].
    pub(super) fn parts(&self, id: ExecId) -> (Source, ArenaId, Addresses) {
        let exec = self.exec(id);
        (exec.source.clone(), exec.arena, exec.addresses.clone())
    }

    pub(super) fn arena_len(&self, arena: ArenaId) -> u64 {
        self.held.arena(arena).len() as u64
    }

    pub(super) fn put_call(&mut self, id: ExecId, op: OpId, call: Call) {
        let exec = self.held.exec_mut(id);
        let at = exec.calls.binary_search_by_key(&op, |(op, _)| *op).expect("a captured op");
        exec.calls[at].1 = call;
    }

    fn inputs<const N: usize>(&mut self, exec: ExecId, inputs: [BufferId; N]) -> [&mut [u8]; N] {
        for (i, a) in inputs.iter().enumerate() {
            assert!(!inputs[..i].contains(a), "inputs are distinct");
        }
        let exec = self.exec(exec);
        let plan = exec.source.plan();
        inputs.map(|id| {
            let buffer = plan.buffer(id);
            assert!(matches!(buffer.kind, BufferKind::Input { .. }), "{} is no input", buffer.name);
            // SAFETY: inputs have arena bytes of their own (the packing shares them with nothing,
            // as the proof checked), the ids are distinct, and no step runs while `self` is
            // borrowed.
            unsafe { core::slice::from_raw_parts_mut(exec.addresses.at(id), buffer.bytes as usize) }
        })
    }

    fn fail(&mut self, id: ExecId, e: &super::pool::PoolError) -> DeviceError {
        let exec = self.exec(id);
        let op = e.op().and_then(|i| exec.calls.get(i as usize));
        let op = op.map_or_else(|| "?".into(), |(op, _)| exec.source.plan().op(*op).name.clone());
        let failed = DeviceError::Failed { op, what: e.to_string() };
        self.failed = Some(failed.clone());
        failed
    }
}
