//! Packing: where each input, output and transient lies in the arena.
//!
//! The arena is `[inputs][outputs][transients]`. Inputs and outputs own their bytes, because the
//! host touches them while another step may run. Two transients may share bytes where one is dead
//! before the other is written *in the partial order*, whatever order the host issues them in.

use crate::alias::Lifetimes;
use crate::fit::{self, Item};
use crate::order::Order;
use crate::{BufferId, BufferKind, StepPlan, structure, uses};

/// What a packing costs and what it saves, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PackReport {
    /// Inputs, with the space that the generation reserves for them.
    pub input_bytes: u64,
    /// Outputs, likewise.
    pub output_bytes: u64,
    /// Transients, as packed.
    pub transient_bytes: u64,
    /// Transients without any sharing.
    pub no_reuse_bytes: u64,
    /// Transients of the same ops on one lane: what the plan would take with overlap off.
    pub single_lane_bytes: u64,
    /// No packing is smaller: the most transient bytes alive at once in program order, which is
    /// one of the orders that the plan allows.
    pub live_bytes: u64,
}

impl PackReport {
    /// Bytes that sharing saves.
    pub const fn saved_bytes(&self) -> u64 {
        self.no_reuse_bytes.saturating_sub(self.transient_bytes)
    }

    /// Bytes that running lanes side by side costs.
    pub const fn overlap_bytes(&self) -> u64 {
        self.transient_bytes.saturating_sub(self.single_lane_bytes)
    }
}

/// Room for the inputs and outputs of every bucket that shares an arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct InOutBytes {
    /// Bytes of the inputs region.
    pub inputs: u64,
    /// Bytes of the outputs region.
    pub outputs: u64,
}

impl InOutBytes {
    /// What one plan needs.
    pub fn of(plan: &StepPlan) -> InOutBytes {
        let mut need = InOutBytes::default();
        for b in &plan.buffers {
            let region = match b.kind {
                BufferKind::Input { .. } => &mut need.inputs,
                BufferKind::Output { .. } => &mut need.outputs,
                _ => continue,
            };
            *region = fit::align_up(*region, b.align).saturating_add(b.bytes);
        }
        need
    }

    /// Room for both.
    pub fn join(self, other: InOutBytes) -> InOutBytes {
        InOutBytes {
            inputs: self.inputs.max(other.inputs),
            outputs: self.outputs.max(other.outputs),
        }
    }
}

/// The place of every buffer of the arena.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Packing {
    offsets: Vec<Option<u64>>,
    arena_bytes: u64,
    report: PackReport,
}

impl Packing {
    /// A packing made elsewhere, for `prove` to judge: one offset for every buffer of the plan,
    /// none for weights and state.
    pub fn from_offsets(offsets: Vec<Option<u64>>, arena_bytes: u64) -> Packing {
        Packing { offsets, arena_bytes, report: PackReport::default() }
    }

    /// First byte of the buffer in the arena; none for weights and state.
    pub fn offset(&self, id: BufferId) -> Option<u64> {
        self.offsets.get(id.index()).copied().flatten()
    }

    /// Offsets by buffer.
    pub fn offsets(&self) -> &[Option<u64>] {
        &self.offsets
    }

    /// Bytes of the whole arena.
    pub const fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// What it costs and saves; zeros where it was not made by packing.
    pub const fn report(&self) -> &PackReport {
        &self.report
    }
}

/// Packs by the partial order of lanes and edges.
pub fn pack(plan: &StepPlan) -> Packing {
    pack_beside(plan, InOutBytes::of(plan))
}

/// Packs a plan that shares its arena with others: `room` is the join of what all of them need,
/// so that the transients of one bucket never lie where another's inputs and outputs do.
pub fn pack_beside(plan: &StepPlan, room: InOutBytes) -> Packing {
    if !structure::check(plan).is_empty() {
        // No order to go by: nothing shares, and `prove` says what is wrong.
        return place(plan, room, &|_, _| true);
    }
    let order = Order::new(plan);
    let uses = uses::by_buffer(plan, &order);
    let life = Lifetimes::new(plan, &order, &uses);
    place(plan, room, &|a, b| !(life.precedes(a, b) || life.precedes(b, a)))
}

/// Packs by the order in which ops are listed, as if they ran one after the other: what a caching
/// allocator does under capture, and the root cause of the corruption that this project answers.
/// Right on one lane; `prove` refuses it where two lanes overlap.
pub fn pack_by_issue_order(plan: &StepPlan) -> Packing {
    let life = issue_order(plan);
    place(plan, InOutBytes::of(plan), &|a, b| overlaps(&life, a, b))
}

/// First and last op that touches each buffer.
fn issue_order(plan: &StepPlan) -> Vec<Option<(u32, u32)>> {
    let mut life: Vec<Option<(u32, u32)>> = vec![None; plan.buffers.len()];
    for (i, op) in plan.ops.iter().enumerate() {
        for access in op.reads.iter().chain(&op.writes) {
            if let Some(l) = life.get_mut(access.buffer().index()) {
                *l = Some((l.map_or(i as u32, |(first, _)| first), i as u32));
            }
        }
    }
    life
}

fn overlaps(life: &[Option<(u32, u32)>], a: usize, b: usize) -> bool {
    match (life[a], life[b]) {
        (Some(a), Some(b)) => a.0 <= b.1 && b.0 <= a.1,
        _ => true,
    }
}

fn place(plan: &StepPlan, room: InOutBytes, interferes: &dyn Fn(usize, usize) -> bool) -> Packing {
    let need = InOutBytes::of(plan);
    let room = room.join(need);
    let mut offsets = vec![None; plan.buffers.len()];
    let widest = plan.buffers.iter().map(|b| b.align).max().unwrap_or(1);
    let outputs_at = fit::align_up(room.inputs, widest);
    let transients_at = fit::align_up(outputs_at.saturating_add(room.outputs), widest);
    let (mut input_at, mut output_at) = (0, outputs_at);
    let mut items = Vec::new();
    for id in plan.buffer_ids() {
        let b = plan.buffer(id);
        let at = match b.kind {
            BufferKind::Input { .. } => &mut input_at,
            BufferKind::Output { .. } => &mut output_at,
            BufferKind::Transient if b.bytes == 0 => {
                offsets[id.index()] = Some(transients_at);
                continue;
            }
            BufferKind::Transient => {
                items.push(Item { id: id.index(), bytes: b.bytes, align: b.align });
                continue;
            }
            BufferKind::Weight | BufferKind::State(_) => continue,
        };
        let offset = fit::align_up(*at, b.align);
        offsets[id.index()] = Some(offset);
        *at = offset.saturating_add(b.bytes);
    }
    let life = issue_order(plan);
    let live_bytes = live_bytes(plan, &life);
    let fitted = fit::fit(&items, interferes, live_bytes);
    for (item, offset) in items.iter().zip(&fitted.offsets) {
        offsets[item.id] = Some(transients_at.saturating_add(*offset));
    }
    let no_reuse = items.iter().fold(0, |at, i| fit::align_up(at, i.align).saturating_add(i.bytes));
    let single = fit::fit(&items, &|a, b| overlaps(&life, a, b), live_bytes);
    let report = PackReport {
        input_bytes: room.inputs,
        output_bytes: room.outputs,
        transient_bytes: fitted.bytes,
        no_reuse_bytes: no_reuse,
        single_lane_bytes: single.bytes.min(fitted.bytes),
        live_bytes,
    };
    Packing { offsets, arena_bytes: transients_at.saturating_add(fitted.bytes), report }
}

/// The most transient bytes that are alive at once when ops run in the order listed.
fn live_bytes(plan: &StepPlan, life: &[Option<(u32, u32)>]) -> u64 {
    let mut change = vec![0i128; plan.ops.len() + 1];
    for (b, life) in plan.buffers.iter().zip(life) {
        if let (BufferKind::Transient, Some((first, last))) = (b.kind, life) {
            change[*first as usize] += i128::from(b.bytes);
            change[*last as usize + 1] -= i128::from(b.bytes);
        }
    }
    let mut live = 0;
    let peak = change.iter().map(|c| {
        live += c;
        live
    });
    u64::try_from(peak.max().unwrap_or(0)).unwrap_or(u64::MAX)
}
