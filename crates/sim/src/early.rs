//! A read before its time: what a kernel does that was launched programmatically and reads its
//! predecessor's result before it has waited for it.

use crate::rng::Rng;
use lockstep_device::lab::LabDevice;
use lockstep_device::{Device, DeviceError, ExecId};
use lockstep_flow::Lease;
use lockstep_plan::{Access, BufferId, BufferKind, Elem, OpId, StepPlan};

/// Two ops, one after the other on a lane, and the buffer through which the first one's result
/// reaches the second.
#[derive(Clone, Copy)]
struct Handover {
    from: OpId,
    to: OpId,
    through: BufferId,
}

/// Runs the step op by op, in its order; one op is given the bytes that its predecessor was to
/// overwrite, as they were before. True where they were other bytes.
///
/// # Errors
/// The device's.
pub fn replay(
    lab: &mut LabDevice,
    exec: ExecId,
    lease: &dyn Lease,
    rng: &mut Rng,
) -> Result<bool, DeviceError> {
    let plan = lab.plan(exec);
    let ops: Vec<OpId> = plan.op_ids().filter(|o| !plan.op(*o).kind.is_host()).collect();
    let early = rng.pick(&handovers(plan, &ops));
    let bytes = early.map_or(0, |h| plan.buffer(h.through).bytes as usize);
    let (mut before, mut after) = (vec![0; bytes], vec![0; bytes]);
    for op in ops {
        if let Some(h) = early.filter(|h| h.from == op) {
            lab.device().peek(exec, h.through, 0, &mut before);
        }
        lab.device_mut().replay_op(exec, lease, op)?;
        match early {
            Some(h) if h.from == op => {
                lab.device().peek(exec, h.through, 0, &mut after);
                lab.write_buffer(exec, h.through, 0, &before);
            }
            // Whoever reads it after its wait finds what was written.
            Some(h) if h.to == op => lab.write_buffer(exec, h.through, 0, &after),
            _ => {}
        }
    }
    Ok(before != after)
}

fn handovers(plan: &StepPlan, ops: &[OpId]) -> Vec<Handover> {
    let buffer = |a: &Access| match a {
        Access::Static { span, .. } => Some(span.buffer),
        Access::Indexed { .. } => None,
    };
    let mut found = Vec::new();
    for pair in ops.windows(2) {
        let (from, to) = (plan.op(pair[0]), plan.op(pair[1]));
        let keeps = |b: &BufferId| !to.writes.iter().filter_map(buffer).any(|w| w == *b);
        let reads = |b: &BufferId| to.reads.iter().filter_map(buffer).any(|r| r == *b);
        // An id or an index that is anything leads out of memory: a crash, and nothing to be seen.
        let values = |b: &BufferId| plan.buffer(*b).elem != Elem::U32;
        let transient = |b: &BufferId| plan.buffer(*b).kind == BufferKind::Transient;
        if from.lane == to.lane {
            let through = from.writes.iter().filter_map(buffer);
            let through = through.filter(|b| transient(b) && values(b) && keeps(b) && reads(b));
            found.extend(through.map(|b| Handover { from: pair[0], to: pair[1], through: b }));
        }
    }
    found
}
