//! One step of one sequence, its ops run one by one, to look at what a step leaves nowhere else.

use super::reference::Golden;
use lockstep_device::cpu::CpuBackend;
use lockstep_device::{CpuDevice, Device, ExecId, Mode};
use lockstep_engine::{load_weights, prove_all};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, RequestId};
use lockstep_model::PlanShape;
use lockstep_plan::{BufferKind, IndexDtype, KvDtype, Proven};
use lockstep_pool::{OwnTables, Pool, PoolConfig, RowPlan, StepLease};
use std::path::Path;
use std::sync::Arc;

/// Asserts that the indexers of layers 2, 4 and 6 select the reference's rows at every position.
pub fn assert_selections(path: &Path, golden: &Golden, tokens: usize) {
    let mut step = OneStep::new(path, tokens as u32);
    let mut compared = 0;
    for layer in [2, 4, 6] {
        let found = step.selections(golden, layer);
        let topk = found.len() / tokens;
        for position in 0..tokens {
            let mut want = golden.row(&format!("selection.{layer}"), position).to_vec();
            want.retain(|i| *i != u32::MAX);
            want.sort_unstable();
            let found = &found[position * topk..][..topk];
            let found: Vec<u32> = found.iter().copied().filter(|i| *i != u32::MAX).collect();
            assert_eq!(found, want, "layer {layer}, position {position} of {tokens}");
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * tokens);
}

/// Steps whose ops run one by one as captured.
pub struct OneStep {
    device: CpuDevice,
    exec: ExecId,
    proven: Arc<Proven>,
    pub pool: Pool,
    key: BucketKey,
    /// Pages of the sequences of the last step, by sequence.
    pub blocks: Vec<u32>,
    pages_per_seq: u32,
}

impl OneStep {
    fn new(path: &Path, tokens: u32) -> OneStep {
        OneStep::kept_as(path, tokens, KvDtype::F32, IndexDtype::F32)
    }

    /// One prefill step of one sequence, with key-value rows and index keys of these types.
    pub fn kept_as(path: &Path, tokens: u32, kv: KvDtype, index: IndexDtype) -> OneStep {
        let key = BucketKey { tokens, seqs: 1, logit_rows: 1 };
        OneStep::of(path, key, tokens, (kv, index))
    }

    /// Steps of a bucket whose sequences have up to `context` tokens.
    pub fn of(path: &Path, key: BucketKey, context: u32, kept: (KvDtype, IndexDtype)) -> OneStep {
        let model = super::model(path);
        let mut device = CpuDevice::new(2, "auto").unwrap();
        let pages = key.seqs * context.div_ceil(PAGE_TOKENS) + 1;
        let shape = PlanShape {
            pages,
            slots: key.seqs + 1,
            context_tokens: context.next_multiple_of(PAGE_TOKENS),
            kv_dtype: kept.0,
            index_dtype: kept.1,
            lanes: 8,
            drafts: 0,
        };
        let proven = prove_all(&model, &CpuBackend, &shape, &[(key, Mode::Captured)]).unwrap();
        let proven = proven[0].proven.clone();
        load_weights(&mut device, &model, &shape, &mut |_, _| {}).unwrap();
        let plan = proven.plan();
        for buffer in &plan.buffers {
            if matches!(buffer.kind, BufferKind::State(_)) {
                device.bind_state(&buffer.name, buffer.bytes).unwrap();
            }
        }
        let arena = device.arena(proven.packing().arena_bytes()).unwrap();
        let exec = device.capture(&proven, arena).unwrap();
        device.seal(exec).unwrap();
        let pages_per_seq = shape.pages_per_seq_max();
        let pool = Pool::new(PoolConfig {
            id: 1,
            pages,
            slots: key.seqs,
            pages_per_seq_max: pages_per_seq,
            rows_max: key.seqs,
            steps_in_flight_max: 1,
            sub_pools: Vec::new(),
            slot_snapshots: false,
        });
        let pool = pool.unwrap();
        OneStep { device, exec, proven, pool, key, blocks: Vec::new(), pages_per_seq }
    }

    fn input(&mut self, name: &str) -> &mut [u32] {
        let id = self.proven.plan().find(name).unwrap();
        bytemuck::cast_slice_mut(self.device.input_mut(self.exec, id))
    }

    /// The rows of a buffer, as the ops so far left them.
    pub fn rows(&self, name: &str) -> Vec<f32> {
        bytemuck::cast_slice(&self.words(name)).to_vec()
    }

    /// The same as words.
    pub fn words(&self, name: &str) -> Vec<u32> {
        let plan = self.proven.plan();
        let buffer = plan.find(name).unwrap_or_else(|| panic!("no buffer {name}"));
        let mut out = vec![0u32; plan.buffer(buffer).bytes as usize / 4];
        self.device.peek(self.exec, buffer, 0, bytemuck::cast_slice_mut(&mut out));
        out
    }

    /// Bytes of a page's row in a buffer of state.
    pub fn state(&self, name: &str, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.device.read_state(name, offset, &mut out).unwrap();
        out
    }

    /// Runs the prompt's step up to the selection of `layer` and returns it.
    fn selections(&mut self, golden: &Golden, layer: u32) -> Vec<u32> {
        let mut found = Vec::new();
        self.walk(golden.words("ids"), |step, op| {
            let there = op == format!("layers.{layer}.index_topk");
            if there {
                found = step.words(&format!("layers.{layer}.selection"));
            }
            !there
        });
        found
    }

    /// Runs the prompt's step op by op, and shows it after each while `visit` says true.
    pub fn walk(&mut self, ids: &[u32], visit: impl FnMut(&OneStep, &str) -> bool) {
        let request = RequestId(1);
        let begun = self.pool.begin(request, 0, &[]).unwrap();
        self.pool.extend(begun.slot, request, ids.len() as u32).unwrap();
        let row = RowPlan::drawing(request, begun.slot, 0, ids.len() as u32);
        let lease = self.step(&[row], ids, 1, visit);
        self.pool.abandon(lease).unwrap();
        self.pool.release(begun.slot, request).unwrap();
    }

    /// Runs a step of these rows and their tokens, of which `logit_rows` have logits, op by op, and
    /// shows it after each while `visit` says true.
    pub fn step(
        &mut self,
        rows: &[RowPlan],
        ids: &[u32],
        logit_rows: u32,
        mut visit: impl FnMut(&OneStep, &str) -> bool,
    ) -> StepLease {
        let key = self.key;
        let mut tables = OwnTables::new(key, self.pages_per_seq);
        let lease = self.pool.lease(rows.iter().copied(), key, &mut tables.view()).unwrap();
        self.input("token_source")[..ids.len()].copy_from_slice(ids);
        let live = [ids.len() as u32, rows.len() as u32, logit_rows];
        self.input("live_counts").copy_from_slice(&live);
        for (name, values) in [
            ("block_table", &tables.block_tables),
            ("write_slots", &tables.write_slots),
            ("positions", &tables.positions),
            ("token_seq", &tables.seq_of_token),
            ("seq_slots", &tables.slots),
            ("logit_rows", &tables.logit_tokens),
            ("logit_slots", &tables.logit_slots),
        ] {
            self.input(name).copy_from_slice(values);
        }
        let proven = self.proven.clone();
        let plan = proven.plan();
        self.blocks = tables.block_tables;
        for op in plan.op_ids() {
            self.device.replay_op(self.exec, &lease, op).unwrap();
            if !visit(self, &plan.op(op).name) {
                break;
            }
        }
        lease
    }
}
