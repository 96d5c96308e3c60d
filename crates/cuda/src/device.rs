//! The CUDA device behind the port.

use crate::CudaError;
use crate::ahead::{Ahead, RELAY};
use crate::away::{Base, CudaAway, CudaWorkshop};
use crate::backend::CudaBackend;
use crate::captured::{self, Captured};
use crate::digest::Digests;
use crate::driver::{DeviceBytes, Driver, Timer};
use crate::exec::{Exec, Stage, Style};
use crate::kernels::{KernelSource, Kernels};
use crate::memory::Memory;
use crate::probe::Probe;
use lockstep_device::{
    ArenaId, AwayArena, Device, DeviceError, DeviceMemory, ExecId, Held, Manifest, PageBuffer,
    Remains, Workshop,
};
use lockstep_flow::Lease;
use lockstep_plan::{Backend, BufferId, BufferKind, OpId, Proven, Relay, WeightData};
use std::sync::Arc;
use std::time::Instant;

/// A GPU as a device.
pub struct CudaDevice {
    pub(crate) held: Held<DeviceBytes, Exec>,
    digests: Digests,
    pub(crate) timer: Timer,
    pub(crate) ahead: Ahead,
    pub(crate) base: Arc<Base>,
    pub(crate) style: Style,
    pub(crate) captured: Captured,
    pub(crate) probe: Option<Arc<Probe>>,
    pub(crate) failed: Option<DeviceError>,
}

impl CudaDevice {
    /// GPU `ordinal`.
    ///
    /// # Errors
    /// There is no driver, no such GPU, or no kernels for it.
    pub fn new(ordinal: u32, kernels: &KernelSource) -> Result<CudaDevice, CudaError> {
        let driver = Driver::open(ordinal)?;
        let kernels = Kernels::load(&driver, kernels)?;
        let backend = CudaBackend { quantised: kernels.wgmma };
        Ok(CudaDevice {
            held: Held::default(),
            digests: Digests::new(&driver)?,
            ahead: Ahead::new(&driver)?,
            timer: Timer::new()?,
            base: Arc::new(Base { memory: Memory::new(&driver, backend), kernels, driver }),
            style: Style::default(),
            captured: Captured::default(),
            probe: None,
            failed: None,
        })
    }

    /// The GPU's name.
    pub fn name(&self) -> &str {
        &self.base.driver.name
    }

    /// Its compute capability.
    pub fn capability(&self) -> (u32, u32) {
        self.base.driver.capability
    }

    /// Its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.base.driver.multiprocessors
    }

    /// The CUDA version of its driver: 13000 is 13.0.
    pub fn driver_version(&self) -> u32 {
        self.base.driver.version
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn free_and_total(&self) -> Result<(u64, u64), CudaError> {
        self.base.driver.bind()?;
        self.base.driver.memory()
    }

    /// Whether a kernel may start while its predecessor ends (from the next capture on).
    pub fn set_programmatic(&mut self, on: bool) {
        self.style.programmatic = on;
    }

    /// Whether one kernel does several ops where there is one for them (from the next capture on).
    pub fn set_fused(&mut self, on: bool) {
        self.style.fused = on;
    }

    /// Whether matrices of Q8_0, Q4_0 and Q4_1 stay as they are, or are decoded as they are loaded:
    /// of no consequence for bits. False where it is too late, or where the GPU has no kernels for
    /// such matrices.
    pub fn set_quantised(&mut self, on: bool) -> bool {
        let Some(base) = Arc::get_mut(&mut self.base) else { return false };
        if base.memory.bytes().0 > 0 || on && !base.kernels.wgmma {
            return false;
        }
        base.memory.backend.quantised = on;
        true
    }

    /// Kernels of a captured plan.
    pub fn kernels_of(&self, exec: ExecId) -> usize {
        self.exec(exec).steps.len()
    }

    /// Has `probe` look at replays.
    pub fn set_probe(&mut self, probe: Arc<Probe>) {
        self.probe = Some(probe);
    }

    pub(crate) fn exec(&self, exec: ExecId) -> &Exec {
        self.held.exec(exec)
    }

    pub(crate) fn exec_mut(&mut self, exec: ExecId) -> &mut Exec {
        self.held.exec_mut(exec)
    }

    /// Weights and state, to be added to.
    fn base_mut(&mut self) -> Result<&mut Base, DeviceError> {
        Arc::get_mut(&mut self.base).ok_or(DeviceError::State {
            asked: "a new weight or state",
            state: "past loading: arenas are made over what it has",
        })
    }
}

impl Device for CudaDevice {
    fn backend(&self) -> Arc<dyn Backend + Send + Sync> {
        Arc::new(self.base.memory.backend)
    }

    fn enter_step_thread(&mut self) {
        // What goes wrong here goes wrong again in the first step, which can say so.
        let _ = self.base.driver.bind();
    }

    fn load_weight(&mut self, name: &str, data: WeightData<'_>) -> Result<(), DeviceError> {
        let Base { memory, kernels, driver } = self.base_mut()?;
        driver.bind()?;
        match data {
            WeightData::Matrix { format, n, k, bytes } => {
                memory.add_matrix(kernels, name, (format, n, k), bytes)
            }
            WeightData::Seeded { n, k, seed, scale } => {
                memory.add_seeded(kernels, name, (n, k), (seed, scale))
            }
            WeightData::F32(values) => memory.add_f32(name, values),
            WeightData::U32(_) => Err(crate::resolve::refuse(
                &format!("the table of ids {name}"),
                "the weights of the Llama family",
            )),
        }
    }

    fn bind_state(&mut self, name: &str, bytes: u64) -> Result<(), DeviceError> {
        if self.base.memory.state(name).is_ok_and(|s| s.1 == bytes) {
            return Ok(());
        }
        self.base_mut()?.memory.add_state(name, bytes)
    }

    fn arena(&mut self, bytes: u64) -> Result<ArenaId, DeviceError> {
        if let Some(base) = Arc::get_mut(&mut self.base) {
            base.memory.end_loading();
        }
        let ms = self.captured.ms;
        let arena = self.counted(captured::arena_bytes(bytes), |d| d.base.arena(bytes))?;
        self.captured.ms = ms;
        self.captured.arena_bytes += bytes;
        Ok(self.held.house(arena))
    }

    fn free_arena(&mut self, arena: ArenaId) -> Result<(), DeviceError> {
        self.ahead.at_rest("to free an arena")?;
        self.held.free(arena)
    }

    fn capture(&mut self, proven: &Arc<Proven>, arena: ArenaId) -> Result<ExecId, DeviceError> {
        let exec = self.counted(captured::graph_bytes(proven.plan()), |d| {
            d.base.capture(proven, (arena, d.held.arena(arena)), d.style)
        })?;
        self.captured.weight_bytes = self.base.memory.bytes().0;
        self.captured.plans += 1;
        self.captured.kernels += exec.steps.len() as u32;
        self.captured.turning += exec.steps.iter().filter(|s| s.turns_queries).count() as u32;
        if let Some(probe) = &self.probe {
            probe.captured(self.captured);
        }
        Ok(self.held.register(exec))
    }

    fn seal(&mut self, exec: ExecId) -> Result<(), DeviceError> {
        self.check_manifest(exec)?;
        self.exec_mut(exec).stage = Stage::Sealed;
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
        exec.check_manifest(self.held.arena(exec.arena).address, &self.base.memory)
    }

    fn workshop(&self) -> Arc<dyn Workshop> {
        Arc::new(CudaWorkshop { base: self.base.clone(), style: self.style })
    }

    fn install(
        &mut self,
        arena: Box<dyn AwayArena>,
    ) -> Result<(ArenaId, Vec<ExecId>), DeviceError> {
        let away = arena.into_any().downcast::<CudaAway>();
        let Ok(away) = away else {
            return Err(DeviceError::State { asked: "an arena", state: "another device than its" });
        };
        let CudaAway { execs, arena, home, .. } = *away;
        Ok(self.held.install(home, arena, execs))
    }

    fn lend(&mut self, arena: ArenaId) -> Result<Box<dyn AwayArena>, DeviceError> {
        self.ahead.at_rest("a loan")?;
        let (home, arena) = (Some(arena), self.held.lend(arena));
        let (base, style) = (self.base.clone(), self.style);
        Ok(Box::new(CudaAway { execs: Vec::new(), arena, home, base, style }))
    }

    fn uninstall(&mut self, arena: ArenaId) -> Remains {
        self.ahead.assert_at_rest("the end of an arena");
        Box::new(self.held.uninstall(arena))
    }

    fn input_mut(&mut self, exec: ExecId, input: BufferId) -> &mut [u8] {
        self.ahead.settle_inputs(exec);
        let [bytes] = self.exec_mut(exec).input_mut([input]);
        bytes
    }

    fn inputs_mut(&mut self, exec: ExecId, inputs: [BufferId; 8]) -> [&mut [u8]; 8] {
        self.ahead.settle_inputs(exec);
        self.exec_mut(exec).input_mut(inputs)
    }

    fn output(&self, exec: ExecId, output: BufferId) -> &[u8] {
        self.exec(exec).output(output)
    }

    fn replay(&mut self, id: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.admit(id, lease)?;
        let start = Instant::now();
        let result = self.step(id, |device| {
            // SAFETY: the manifest was checked at seal and weights, state and arenas do not move;
            // the lease vouches for table entries.
            unsafe { device.exec(id).graph.launch()? };
            device.probe_step(id)
        });
        self.probe_time(id, start.elapsed());
        self.latch(result)
    }

    fn relay(&self) -> Option<Relay> {
        Some(RELAY)
    }

    fn launch(&mut self, id: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.launch_ahead(id, lease)
    }

    fn await_step(&mut self, id: ExecId) -> Result<(), DeviceError> {
        self.await_oldest(id)
    }

    fn eager(&mut self, id: ExecId, lease: &dyn Lease) -> Result<(), DeviceError> {
        self.admit(id, lease)?;
        let ops = self.exec(id).proven.plan().op_ids();
        let result = self.step(id, |device| device.run_ops(id, ops, None));
        self.latch(result)
    }

    fn explore(
        &mut self,
        id: ExecId,
        lease: &dyn Lease,
        order: &[OpId],
        poison: Option<u8>,
    ) -> Result<(), DeviceError> {
        self.admit(id, lease)?;
        let order = order.iter().copied();
        let result = self.step(id, |device| device.run_ops(id, order, poison));
        self.latch(result)
    }

    fn peek(&self, exec: ExecId, buffer: BufferId, offset: u64, out: &mut [u8]) {
        self.ahead.assert_at_rest("a look at a buffer");
        let exec = self.exec(exec);
        let bytes = exec.proven.plan().buffer(buffer).bytes;
        assert!(offset + out.len() as u64 <= bytes, "past the end of the buffer");
        let done = self.read(exec.addresses.at(buffer) + offset, out);
        done.unwrap_or_else(|e| panic!("reading a buffer of the last step: {e}"));
    }

    fn copy_inputs(&mut self, from: ExecId, to: ExecId) {
        self.ahead.assert_at_rest("a copy of inputs");
        assert_eq!(
            self.exec(from).proven.digest(),
            self.exec(to).proven.digest(),
            "executables of two plans"
        );
        let plan = self.exec(from).proven.clone();
        let plan = plan.plan();
        for id in plan.buffer_ids() {
            if matches!(plan.buffer(id).kind, BufferKind::Input { .. }) {
                let bytes = self.exec(from).input(id).to_vec();
                let [to] = self.exec_mut(to).input_mut([id]);
                to.copy_from_slice(&bytes);
            }
        }
    }

    fn first_difference(&self, a: ExecId, b: ExecId, buffer: BufferId, len: u64) -> Option<u64> {
        self.ahead.assert_at_rest("a comparison of buffers");
        let at = [a, b].map(|exec| {
            let exec = self.exec(exec);
            let bytes = exec.proven.plan().buffer(buffer).bytes;
            assert!(len <= bytes, "past the end of the buffer");
            exec.addresses.at(buffer)
        });
        let kernels = &self.base.kernels;
        // SAFETY: inside the buffers by the assertion, which are aligned to 64; no step runs.
        let found = unsafe { self.digests.first_difference(kernels, at, len) };
        found.unwrap_or_else(|e| panic!("comparing buffers of the last step: {e}"))
    }

    fn write_state(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.ahead.at_rest("a write of state")?;
        self.base.driver.bind()?;
        let (address, len) = self.base.memory.state(name)?;
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= len), "past the end of {name}");
        // SAFETY: in bounds by the assertion; the stream is waited for before `bytes` can go.
        unsafe { self.base.driver.upload(address + offset, bytes)? };
        self.base.driver.synchronize()?;
        Ok(())
    }

    fn read_state(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.ahead.at_rest("a look at state")?;
        let (address, len) = self.base.memory.state(name)?;
        let end = offset.checked_add(out.len() as u64);
        assert!(end.is_some_and(|end| end <= len), "past the end of {name}");
        self.read(address + offset, out)
    }

    fn replay_op(&mut self, id: ExecId, lease: &dyn Lease, op: OpId) -> Result<(), DeviceError> {
        self.admit(id, lease)?;
        let result = self.step(id, |device| {
            let launches = &device.exec(id).launches;
            let Ok(at) = launches.binary_search_by_key(&op, |(op, _)| *op) else { return Ok(()) };
            let launch = &launches[at].1;
            // SAFETY: as in `replay`, for one of its kernels.
            unsafe { device.base.driver.launch(&launch.shape, &launch.args)? };
            Ok(())
        });
        self.latch(result)
    }

    fn digest_pages(
        &mut self,
        buffers: &[PageBuffer],
        pages: &[u32],
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        assert_eq!(out.len(), pages.len() * buffers.len(), "a word for each buffer of each page");
        let last = u64::from(pages.iter().copied().max().unwrap_or(0)) + 1;
        for PageBuffer { name, page_bytes } in buffers {
            let (_, len) = self.base.memory.state(name)?;
            assert!(last * page_bytes <= len, "past the end of {name}");
        }
        let Base { memory, kernels, .. } = &*self.base;
        let range = |i: usize| {
            let buffer = &buffers[i % buffers.len()];
            let (address, _) = memory.state(&buffer.name).expect("checked above");
            let page = u64::from(pages[i / buffers.len()]);
            (address + page * buffer.page_bytes, buffer.page_bytes)
        };
        // SAFETY: in bounds as checked above; pages are multiples of 8 bytes, and no step in flight
        // writes one of these, which is the caller's promise.
        unsafe { self.digests.of(kernels, range, out)? };
        Ok(())
    }

    fn digest_weight(
        &mut self,
        name: &str,
        chunk_bytes: u64,
        first: u64,
        out: &mut [u64],
    ) -> Result<(), DeviceError> {
        let Base { memory, kernels, .. } = &*self.base;
        let (address, len, _) = memory.weight(name)?;
        let all = len.div_ceil(chunk_bytes.max(1));
        assert!(chunk_bytes > 0 && first + out.len() as u64 <= all, "past the end of {name}");
        assert!(chunk_bytes.is_multiple_of(8), "chunks of whole words");
        let range = |i: usize| {
            let offset = (first + i as u64) * chunk_bytes;
            (address + offset, chunk_bytes.min(len - offset))
        };
        // SAFETY: in bounds as checked above; nothing writes a loaded weight.
        unsafe { self.digests.of(kernels, range, out)? };
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        let (weight_bytes, state_bytes) = self.base.memory.bytes();
        let (arenas, arena_bytes) = self.held.arenas();
        let executables = self.held.execs();
        DeviceMemory { weight_bytes, state_bytes, arena_bytes, arenas, executables }
    }
}
