//! One prefill step of one sequence on a model's real kernels, in any order that an unproven plan
//! allows.
//!
//! What a plan gives in an order is compared, as bits, with what the same plan gives in program
//! order: its logits, its results, and every byte of state.

use crate::scene::SceneError;
use lockstep_device::cpu::CpuBackend;
use lockstep_device::lab::{HostLane, LabDevice, Raw};
use lockstep_device::sample::SampleParams;
use lockstep_device::{CpuDevice, Device, DeviceError, ExecId};
use lockstep_engine::load_weights;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, RequestId, Token};
use lockstep_model::{Model, PlanShape};
use lockstep_plan::explore::{Extension, Poison};
use lockstep_plan::{Buffer, BufferId, BufferKind, IndexDtype, KvDtype, LIVE_COUNTS, StepPlan};
use lockstep_pool::{OwnTables, Pool, PoolConfig, RowPlan, StepLease};
use std::collections::HashMap;
use std::ops::Range;

/// The step: a device with the model's weights, the step's tables and their lease.
pub struct OneStep {
    lab: LabDevice,
    plan: StepPlan,
    lease: StepLease,
    inputs: Inputs,
    // The lease is of this pool.
    _pool: Pool,
}

/// What the host writes, by name of the input.
struct Inputs(HashMap<String, Vec<u8>>);

impl HostLane for Inputs {
    fn write(&self, _: u32, input: &Buffer, bytes: &mut [u8]) {
        if let Some(from) = self.0.get(&input.name) {
            bytes[..from.len()].copy_from_slice(from);
        }
    }

    fn read(&self, _: u32, _: &Buffer, _: &[u8]) {}
}

/// Logits, results and state after a step.
type Seen = Vec<Vec<u8>>;

impl OneStep {
    /// The step that prefills `ids`, its plan on up to `lanes` device lanes.
    ///
    /// # Errors
    /// The model has no plan of that shape, or the device no memory for it.
    pub fn new(model: &Model, ids: &[Token], lanes: u32) -> Result<OneStep, SceneError> {
        let n = ids.len() as u32;
        let pages = n.div_ceil(PAGE_TOKENS) + 1;
        let key = BucketKey { tokens: n, seqs: 1, logit_rows: 1 };
        let shape = PlanShape {
            pages,
            slots: 2,
            context_tokens: n.next_multiple_of(PAGE_TOKENS),
            kv_dtype: KvDtype::F32,
            index_dtype: IndexDtype::F32,
            lanes,
            drafts: 0,
        };
        let plan = model.plan(&CpuBackend, &shape, key).map_err(SceneError::Model)?;
        let mut lab = LabDevice::new(CpuDevice::new(2, "auto").map_err(SceneError::Device)?);
        load_weights(lab.device_mut(), model, &shape, &mut |_, _| {})
            .map_err(SceneError::Engine)?;
        for b in plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::State(_))) {
            lab.device_mut().bind_state(&b.name, b.bytes).map_err(SceneError::Device)?;
        }
        let (pool, lease, inputs) = tables(ids, key, pages, &shape);
        Ok(OneStep { lab, plan, lease, inputs, _pool: pool })
    }

    /// The model's own plan of the step.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// The first of `seeds` whose order is `wanted` and gives other bits than program order of the
    /// same plan, dead bytes poisoned. Where the lanes wait for each other there is none.
    ///
    /// # Errors
    /// A plan that leaves its memory, or a kernel that failed in program order. One that fails in
    /// another order differs.
    pub fn first_difference(
        &mut self,
        raw: &Raw,
        seeds: Range<u64>,
        wanted: impl Fn(&Extension) -> bool,
    ) -> Result<Option<u64>, DeviceError> {
        let arena = self.lab.device_mut().arena(raw.packing.arena_bytes())?;
        let exec = self.lab.capture_raw(raw.clone(), arena)?;
        let expected = self.run(exec, &Extension::program_order(&raw.plan, 1), &[])?;
        let mut found = None;
        for seed in seeds {
            let Some(order) = Extension::random(&raw.plan, 1, seed) else { break };
            if !wanted(&order) {
                continue;
            }
            let poisons = order.poisons(&raw.plan, &raw.packing);
            let poisons = transients_only(raw, &order, poisons);
            if self.run(exec, &order, &poisons).ok().as_ref() != Some(&expected) {
                found = Some(seed);
                break;
            }
        }
        self.lab.device_mut().release(exec)?;
        self.lab.device_mut().free_arena(arena)?;
        Ok(found)
    }

    fn run(
        &mut self,
        exec: ExecId,
        order: &Extension,
        poisons: &[Poison],
    ) -> Result<Seen, DeviceError> {
        let named: Vec<(BufferId, String, u64, BufferKind)> = {
            let plan = self.lab.plan(exec);
            let of = |id| {
                let b: &Buffer = plan.buffer(id);
                (id, b.name.clone(), b.bytes, b.kind)
            };
            plan.buffer_ids().map(of).collect()
        };
        for (id, name, bytes, kind) in &named {
            match kind {
                BufferKind::State(_) => {
                    let zeros = vec![0; *bytes as usize];
                    self.lab.device_mut().write_state(name, 0, &zeros)?;
                }
                // Of what the host has not written yet, every table says 0: a place that exists.
                BufferKind::Input { .. } => {
                    let mut start = vec![0; *bytes as usize];
                    if name == LIVE_COUNTS {
                        start.copy_from_slice(&self.inputs.0[LIVE_COUNTS]);
                    }
                    self.lab.write_buffer(exec, *id, 0, &start);
                }
                _ => {}
            }
        }
        let host: &dyn HostLane = &self.inputs;
        self.lab.explore_steps(exec, Some(&self.lease), order, poisons, Some(host))?;
        let mut seen = Seen::new();
        for (id, name, bytes, kind) in &named {
            let mut out = vec![0; *bytes as usize];
            match kind {
                BufferKind::State(_) => self.lab.device().read_state(name, 0, &mut out)?,
                BufferKind::Output { .. } => self.lab.device().peek(exec, *id, 0, &mut out),
                _ => continue,
            }
            seen.push(out);
        }
        Ok(seen)
    }
}

/// Poison of transients before the last op: inputs hold what the host wrote, and what is looked at
/// after the step has to be there.
fn transients_only(raw: &Raw, order: &Extension, poisons: Vec<Poison>) -> Vec<Poison> {
    let end = |id| {
        let b = raw.plan.buffer(id);
        let place = raw.packing.offset(id).filter(|_| b.kind != BufferKind::Transient);
        place.map(|at| at + b.bytes)
    };
    let first = raw.plan.buffer_ids().filter_map(end).max().unwrap_or(0);
    let device = |o: &lockstep_plan::explore::StepOp| !raw.plan.op(o.op).kind.is_host();
    let last = order.order.iter().rposition(device).unwrap_or(0);
    let clip = |p: Poison| {
        let arena = p.arena.start.max(first)..p.arena.end;
        (!arena.is_empty() && p.before <= last).then_some(Poison { before: p.before, arena })
    };
    poisons.into_iter().filter_map(clip).collect()
}

/// A pool that holds the sequence, its lease for the step, and what the host writes.
fn tables(
    ids: &[Token],
    key: BucketKey,
    pages: u32,
    shape: &PlanShape,
) -> (Pool, StepLease, Inputs) {
    let n = ids.len();
    let mut pool = Pool::new(PoolConfig {
        id: 1,
        pages,
        slots: 1,
        pages_per_seq_max: shape.pages_per_seq_max(),
        rows_max: 1,
        steps_in_flight_max: 1,
        sub_pools: Vec::new(),
        slot_snapshots: false,
    })
    .expect("a pool for one sequence");
    let request = RequestId(1);
    let begun = pool.begin(request, 0, &[]).expect("the pool is empty");
    pool.extend(begun.slot, request, n as u32).expect("the pool is as large as the sequence");
    let row = RowPlan::drawing(request, begun.slot, 0, n as u32);
    let mut own = OwnTables::new(key, shape.pages_per_seq_max());
    let lease = pool.lease(core::iter::once(row), key, &mut own.view());
    let lease = lease.expect("one sequence with its pages");
    let tokens: Vec<u32> = ids.iter().map(|t| t.0).collect();
    let live = [n as u32, 1, 1];
    let params = SampleParams::report(0, 0);
    let words: [(&str, &[u32]); 9] = [
        (LIVE_COUNTS, &live),
        ("token_source", &tokens),
        ("block_table", &own.block_tables),
        ("write_slots", &own.write_slots),
        ("positions", &own.positions),
        ("token_seq", &own.seq_of_token),
        ("seq_slots", &own.slots),
        ("logit_rows", &own.logit_tokens),
        ("logit_slots", &own.logit_slots),
    ];
    let bytes = |(name, words): (&str, &[u32])| {
        (name.to_string(), bytemuck::cast_slice::<u32, u8>(words).to_vec())
    };
    let mut inputs: HashMap<String, Vec<u8>> = words.into_iter().map(bytes).collect();
    inputs.insert("sample_params".into(), bytemuck::bytes_of(&params).to_vec());
    (pool, lease, Inputs(inputs))
}
