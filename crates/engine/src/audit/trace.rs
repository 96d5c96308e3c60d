//! After a mismatch: replay and twin run once more, side by side and op by op, and the first op
//! whose written bytes differ is named. Off the hot path; takes memory.
//!
//! Both write the same state, so each op runs as captured, what it wrote to state is read and put
//! back as it was, and it runs again as the twin. The twin's state is what the next op reads, on
//! both sides: up to the first difference they are the same.

use super::twin::{Step, Twin, live_bytes};
use lockstep_device::{Device, DeviceError};
use lockstep_plan::{Access, BufferId, BufferKind, OpId, StateKind};

/// Fills what the twin's op is the first to write, before it does; a word of it is no value that a
/// kernel leaves (as a float: -2.87e-16).
const POISON: u8 = 0xa5;
const WORD: usize = 4;

/// What running both op by op showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trace {
    /// The inputs differ before any op runs: they changed between the choice of the step and now.
    Input { buffer: String, byte: u64 },
    /// The first op that differs, and where in which of the buffers that it writes.
    Op { op: String, buffer: String, byte: u64 },
    /// Nothing differed this time: the fault was there for a moment, or comes from running ops
    /// together.
    Gone,
}

impl core::fmt::Display for Trace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Trace::Input { buffer, byte } => {
                write!(f, "the input {buffer} has changed at byte {byte} since the step was chosen")
            }
            Trace::Op { op, buffer, byte } => {
                write!(f, "op by op, {op} differs first, at byte {byte} of {buffer}")
            }
            Trace::Gone => f.write_str("op by op, the two agree: the fault does not show again"),
        }
    }
}

/// A range of a state buffer that an op may write.
struct Block {
    name: String,
    offset: u64,
    bytes: usize,
}

/// Finds the first op that differs.
///
/// # Errors
/// The device's.
pub fn first_op(
    device: &mut dyn Device,
    step: &Step<'_>,
    twin: &Twin,
) -> Result<Trace, DeviceError> {
    let plan = step.bucket.proven.plan();
    for (id, buffer) in plan.buffer_ids().zip(&plan.buffers) {
        if matches!(buffer.kind, BufferKind::Input { .. }) {
            let (a, b) = (step.bucket.exec, step.twin);
            if let Some(byte) = device.first_difference(a, b, id, buffer.bytes) {
                return Ok(Trace::Input { buffer: buffer.name.clone(), byte });
            }
        }
    }
    twin.rewind(device)?;
    let mut found = Trace::Gone;
    for op in plan.op_ids() {
        if let Some((buffer, byte)) = differs_at(device, step, twin, op)? {
            found = Trace::Op { op: plan.op(op).name.clone(), buffer, byte };
            break;
        }
    }
    twin.restore(device)?;
    Ok(found)
}

fn differs_at(
    device: &mut dyn Device,
    step: &Step<'_>,
    twin: &Twin,
    op: OpId,
) -> Result<Option<(String, u64)>, DeviceError> {
    let blocks = state_blocks(step, twin, op);
    let before = read(device, &blocks)?;
    device.replay_op(step.bucket.exec, step.lease, op)?;
    let replayed = read(device, &blocks)?;
    for (block, bytes) in blocks.iter().zip(&before) {
        device.write_state(&block.name, block.offset, bytes)?;
    }
    device.explore(step.twin, step.lease, &[op], Some(POISON))?;
    let again = read(device, &blocks)?;
    let plan = step.bucket.proven.plan();
    for access in &plan.op(op).writes {
        let id = access.buffer();
        if !plan.buffer(id).kind.in_arena() {
            continue;
        }
        if let Some(byte) = arena_difference(device, step, id, access) {
            return Ok(Some((plan.buffer(id).name.clone(), byte)));
        }
    }
    for ((block, a), b) in blocks.iter().zip(&replayed).zip(&again) {
        if let Some(byte) = a.iter().zip(b).position(|(a, b)| a != b) {
            return Ok(Some((block.name.clone(), block.offset + byte as u64)));
        }
    }
    Ok(None)
}

/// The first byte of a written span, as far as its rows are live, that differs in the two arenas.
/// A kernel may write less than its span (attention: the splits that there are); words in which
/// the twin's poison stands were written by neither.
fn arena_difference(
    device: &dyn Device,
    step: &Step<'_>,
    id: BufferId,
    access: &Access,
) -> Option<u64> {
    let buffer = step.bucket.proven.plan().buffer(id);
    let live = live_bytes(buffer, step.batch.live);
    let (first, end) = match access {
        Access::Static { span, .. } => (span.offset, span.end().min(live)),
        Access::Indexed { .. } => (0, live),
    };
    let len = end.checked_sub(first)? as usize;
    let mut sides = [vec![0; len], vec![0; len]];
    device.peek(step.bucket.exec, id, first, &mut sides[0]);
    device.peek(step.twin, id, first, &mut sides[1]);
    let [replayed, again] = &sides;
    let word = |i: usize| &again[i / WORD * WORD..(i / WORD * WORD + WORD).min(len)];
    let unwritten = |i: usize| word(i).iter().all(|b| *b == POISON);
    let differs = |i: &usize| replayed[*i] != again[*i] && !unwritten(*i);
    Some(first + (0..len).find(differs)? as u64)
}

/// What an op may write of state in this step: the step's pages and slots.
fn state_blocks(step: &Step<'_>, twin: &Twin, op: OpId) -> Vec<Block> {
    let plan = step.bucket.proven.plan();
    let mut blocks = Vec::new();
    for access in &plan.op(op).writes {
        let buffer = plan.buffer(access.buffer());
        let (block_bytes, ids): (u64, Vec<u32>) = match buffer.kind {
            BufferKind::State(StateKind::Pages { page_bytes }) => {
                (page_bytes, twin.written.iter().map(|w| w.page).collect())
            }
            BufferKind::State(StateKind::Slots { slot_bytes }) => (slot_bytes, twin.slots.clone()),
            _ => continue,
        };
        blocks.extend(ids.into_iter().map(|id| Block {
            name: buffer.name.clone(),
            offset: u64::from(id) * block_bytes,
            bytes: block_bytes as usize,
        }));
    }
    blocks
}

fn read(device: &dyn Device, blocks: &[Block]) -> Result<Vec<Vec<u8>>, DeviceError> {
    let of = |block: &Block| {
        let mut bytes = vec![0; block.bytes];
        device.read_state(&block.name, block.offset, &mut bytes)?;
        Ok(bytes)
    };
    blocks.iter().map(of).collect()
}
