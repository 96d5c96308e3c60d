//! An executable on the GPU: a captured plan, its graph, and the host's side of its inputs and
//! outputs.

use crate::CudaError;
use crate::ahead::COPIES;
use crate::driver::{Driver, Graph, GraphExec, Node, PinnedBytes, Wait};
use crate::fuse::Step;
use crate::launch::Launch;
use crate::memory::Memory;
use crate::resolve::Addresses;
use lockstep_device::{ArenaId, Bound, DeviceError, InArena, Manifest};
use lockstep_plan::{BufferId, BufferKind, EdgeKind, OpId, Packing, Proven, StepPlan};
use std::sync::Arc;

/// Where an executable stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Resolved, its graph built.
    Captured,
    /// Runnable.
    Sealed,
}

/// How a graph is made of a plan: of no consequence for bits.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// A kernel may start while its predecessor ends.
    pub programmatic: bool,
    /// One kernel does several ops where there is one for them.
    pub fused: bool,
    /// Where buffers of the first arena lie, whatever was proven: what the laboratory alone sets.
    pub laid: Option<fn(&StepPlan) -> Packing>,
}

impl Default for Style {
    fn default() -> Style {
        Style { programmatic: true, fused: true, laid: None }
    }
}

/// Bytes that the GPU may copy beyond what changed, to save a copy.
const GAP_MAX: u64 = 16 << 10;

/// A captured plan.
pub struct Exec {
    /// The plan with its proof.
    pub proven: Arc<Proven>,
    /// Where its buffers lie if that is not where the proof has them ([`Style::laid`]).
    pub laid: Option<Packing>,
    /// Its arena.
    pub arena: ArenaId,
    /// Where its buffers lie.
    pub addresses: Addresses,
    /// The graph.
    pub graph: GraphExec,
    /// Kernels of the graph, in program order.
    pub steps: Vec<Step>,
    /// A kernel for each op alone, in program order.
    pub launches: Vec<(OpId, Launch)>,
    /// What it is bound to.
    pub manifest: Manifest,
    /// Where it stands.
    pub stage: Stage,
    pub(crate) inputs: HostSide,
    pub(crate) outputs: HostSide,
}

impl InArena for Exec {
    fn arena(&self) -> ArenaId {
        self.arena
    }

    fn house_in(&mut self, arena: ArenaId) {
        self.arena = arena;
    }
}

/// The host's copies of one region of the arena.
pub(crate) struct HostSide {
    copies: Vec<PinnedBytes>,
    /// The one that is looked at.
    shown: usize,
    /// Buffers in order of address: id, offset in the region, bytes, changed since the last copy.
    buffers: Vec<(BufferId, u64, u64, bool)>,
    /// The region's first byte on the GPU.
    address: u64,
}

impl HostSide {
    fn new(
        driver: &Arc<Driver>,
        plan: &StepPlan,
        addresses: &Addresses,
        (wanted, copies): (impl Fn(BufferKind) -> bool, usize),
    ) -> Result<HostSide, CudaError> {
        let mut buffers: Vec<_> = plan
            .buffer_ids()
            .filter(|id| wanted(plan.buffer(*id).kind))
            .map(|id| (id, addresses.at(id), plan.buffer(id).bytes, true))
            .collect();
        buffers.sort_by_key(|b| b.1);
        let address = buffers.first().map_or(0, |b| b.1);
        let end = buffers.last().map_or(0, |b| b.1 + b.2);
        for b in &mut buffers {
            b.1 -= address;
        }
        let copy = |_| PinnedBytes::new(driver, (end - address) as usize);
        let copies = (0..copies).map(copy).collect::<Result<_, _>>()?;
        Ok(HostSide { copies, shown: 0, buffers, address })
    }

    fn place(&self, id: BufferId) -> usize {
        let found = self.buffers.iter().position(|b| b.0 == id);
        found.unwrap_or_else(|| panic!("buffer {} is not of this side", id.0))
    }

    /// A buffer in the copy that is looked at.
    fn buffer(&self, id: BufferId) -> &[u8] {
        let (_, offset, bytes, _) = self.buffers[self.place(id)];
        &self.copies[self.shown].bytes()[offset as usize..(offset + bytes) as usize]
    }
}

impl Exec {
    /// Builds the graph of resolved launches and the host's sides.
    pub fn new(
        driver: &Arc<Driver>,
        (proven, laid): (Arc<Proven>, Option<Packing>),
        (arena, addresses): (ArenaId, Addresses),
        (launches, steps): (Vec<(OpId, Launch)>, Vec<Step>),
        style: Style,
    ) -> Result<Exec, CudaError> {
        let plan = proven.plan();
        let graph = graph(plan, &steps, style.programmatic)?.instantiate(driver)?;
        let is_input = |kind| matches!(kind, BufferKind::Input { .. });
        let inputs = HostSide::new(driver, plan, &addresses, (is_input, 1))?;
        let is_fetched = |kind| kind == BufferKind::Output { fetched: true };
        let outputs = HostSide::new(driver, plan, &addresses, (is_fetched, COPIES))?;
        let manifest = manifest(plan, &addresses);
        let stage = Stage::Captured;
        Ok(Exec {
            proven,
            laid,
            arena,
            addresses,
            graph,
            steps,
            launches,
            manifest,
            stage,
            inputs,
            outputs,
        })
    }

    /// Where its buffers lie in the arena.
    pub fn packing(&self) -> &Packing {
        self.laid.as_ref().unwrap_or_else(|| self.proven.packing())
    }

    /// Compares the manifest with what is bound now.
    ///
    /// # Errors
    /// The first buffer that is not where it was captured.
    pub fn check_manifest(&self, base: u64, memory: &Memory) -> Result<(), DeviceError> {
        let placed = (self.proven.plan(), self.packing());
        let addresses = Addresses::new(placed, base, memory)?;
        let now = manifest(self.proven.plan(), &addresses);
        for (was, is) in self.manifest.bound.iter().zip(&now.bound) {
            if was != is {
                return Err(DeviceError::Manifest {
                    buffer: was.name.clone(),
                    found: is.describe(),
                    expected: was.describe(),
                });
            }
        }
        Ok(())
    }

    /// An input's bytes, to write; they go to the GPU with the next step.
    pub fn input_mut<const N: usize>(&mut self, ids: [BufferId; N]) -> [&mut [u8]; N] {
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[..i].contains(id), "inputs are distinct");
        }
        let places = ids.map(|id| self.inputs.place(id));
        let base = self.inputs.copies[0].bytes_mut().as_mut_ptr();
        places.map(|at| {
            let (_, offset, bytes, changed) = &mut self.inputs.buffers[at];
            *changed = true;
            // SAFETY: buffers of the inputs' region do not overlap (the proof checked), the ids
            // are distinct, and the region is borrowed mutably with `self`.
            unsafe { core::slice::from_raw_parts_mut(base.add(*offset as usize), *bytes as usize) }
        })
    }

    /// The host's copy of an input.
    pub fn input(&self, id: BufferId) -> &[u8] {
        self.inputs.buffer(id)
    }

    /// An output's bytes, as the last step that was waited for left them.
    pub fn output(&self, id: BufferId) -> &[u8] {
        self.outputs.buffer(id)
    }

    /// The step whose outputs were fetched to place `at` is over.
    pub fn show(&mut self, at: usize) {
        self.outputs.shown = at;
    }

    /// Sends what changed among the inputs, in as few copies as it takes.
    pub fn send_inputs(&mut self, driver: &Driver) -> Result<(), CudaError> {
        let HostSide { copies, buffers, address, .. } = &mut self.inputs;
        let bytes = &copies[0];
        let mut run: Option<(u64, u64)> = None;
        let send = |(from, to): (u64, u64)| {
            let part = &bytes.bytes()[from as usize..to as usize];
            // SAFETY: the same range of the arena's inputs, which this executable's steps own; the
            // host waits for the step, or for the copy alone, before it writes again.
            unsafe { driver.upload(*address + from, part) }
        };
        for (_, offset, len, changed) in buffers {
            if !core::mem::take(changed) {
                continue;
            }
            run = match run {
                Some((from, to)) if *offset <= to + GAP_MAX => Some((from, *offset + *len)),
                Some(done) => {
                    send(done)?;
                    Some((*offset, *offset + *len))
                }
                None => Some((*offset, *offset + *len)),
            };
        }
        run.map_or(Ok(()), send)
    }

    /// Asks for the outputs, at place `at`; they are there once the step has been waited for.
    pub fn fetch_outputs(&mut self, driver: &Driver, at: usize) -> Result<(), CudaError> {
        let from = self.outputs.address;
        let to = self.outputs.copies[at].bytes_mut();
        // SAFETY: the same range of the arena's outputs; nobody looks at this place before the step
        // was waited for, by the relay that was proven.
        unsafe { driver.download(to, from) }
    }
}

/// Describes what every buffer of `plan` is bound to.
fn manifest(plan: &StepPlan, addresses: &Addresses) -> Manifest {
    let bound = plan.buffer_ids().map(|id| Bound::new(plan.buffer(id), addresses.at(id))).collect();
    Manifest { bound }
}

/// One node a kernel; a node waits for the node before it in its lane and for the far end of every
/// event edge. What the host does is ordered by the stream: inputs before the launch of the graph,
/// outputs after its end.
///
/// Where `programmatic`, a node that waits for nothing but its lane's last one may start while
/// that one ends: until its wait a kernel reads weights only, which nobody writes, and the wait
/// ends when the other has ended and its writes are seen, so every order of the plan stands.
fn graph(plan: &StepPlan, steps: &[Step], programmatic: bool) -> Result<Graph, CudaError> {
    let mut graph = Graph::new()?;
    let mut nodes: Vec<Option<Node>> = vec![None; plan.ops.len()];
    let mut last: Vec<Option<Node>> = vec![None; plan.lanes.len()];
    for Step { first, last: end, launch, .. } in steps {
        let lane = plan.op(*first).lane.index();
        let of_it = |op: OpId| *first <= op && op <= *end;
        let joined = plan.edges.iter().filter(|e| of_it(e.to) && e.kind != EdgeKind::NextStep);
        let others: Vec<Node> = joined
            .filter(|e| plan.op(e.from).lane.index() != lane)
            .filter_map(|e| nodes[e.from.index()])
            .collect();
        let wait = if programmatic && others.is_empty() { Wait::Programmatic } else { Wait::End };
        let before: Vec<(Node, Wait)> = last[lane]
            .iter()
            .map(|n| (*n, wait))
            .chain(others.iter().map(|n| (*n, Wait::End)))
            .collect();
        // SAFETY: addresses were resolved from a plan whose proof orders all accesses, and the
        // graph has every order of the plan between its kernels.
        let node = unsafe { graph.kernel(&launch.shape, &launch.args, &before)? };
        nodes[first.index()..=end.index()].fill(Some(node));
        last[lane] = Some(node);
    }
    Ok(graph)
}
