//! What passes between host and device while one step runs and the next is launched behind it.
//!
//! A plan's own host ops are what a stream does at a step's two ends: inputs are sent before its
//! first op, outputs are fetched after its last, both in stream order, so that every edge of the
//! plan stands with a step in flight. Left are the far ends of those copies, in the host's memory,
//! which no plan of a bucket has. They are a plan of their own here, of two steps: the host writes
//! what step n + 1 is sent and launches it, waits for the end of step n, and reads what was fetched
//! of that. [`crate::prove`] judges it as any other plan.

use crate::{
    Access, Buffer, BufferId, BufferKind, Edge, EdgeKind, Elem, LaneId, Op, OpId, OpKind,
    StateKind, StepPlan,
};
use lockstep_flow::BucketKey;

/// Bytes of every buffer: any number would do.
const BYTES: u64 = 64;

/// How a device keeps the two ends apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relay {
    /// The host writes inputs only once those of the step before have been sent.
    pub waits_for_sent: bool,
    /// Copies of the outputs in the host's memory, used in turn. With none the host reads what the
    /// sampler writes, where it writes it.
    pub fetched: u32,
}

impl Relay {
    /// Two steps, `.0` and `.1`, with one always in flight: what the host reads first is of the
    /// step before both.
    pub fn plan(&self) -> StepPlan {
        let mut plan = StepPlan {
            bucket: BucketKey::decode(1),
            buffers: Vec::new(),
            ops: Vec::new(),
            lanes: vec!["host".into(), "stream".into()],
            edges: Vec::new(),
        };
        let [staged, inputs, last_token, outputs] =
            ["staged", "inputs", "last_token", "outputs"].map(|name| carried(&mut plan, name));
        let copies: Vec<BufferId> =
            (0..self.fetched).map(|i| carried(&mut plan, &format!("fetched.{i}"))).collect();
        let shown = |step: usize| match copies.len() {
            0 => outputs,
            n => copies[step % n],
        };
        let write = OpKind::HostWrite { input: staged };
        let mut ends = Vec::new();
        for step in 0..2 {
            let mut op = |name: &str, kind: OpKind, reads: &[BufferId], writes: &[BufferId]| {
                push(&mut plan, format!("{name}.{step}"), kind, (reads, writes))
            };
            let seed = |of: u64| OpKind::Mix { seed: of };
            let written = op("write", write.clone(), &[], &[staged]);
            let sent = op("send", seed(1), &[staged], &[inputs]);
            // The tokens that it takes are those that the step before has sampled, on the device.
            let sampled = op("sample", seed(2), &[inputs, last_token], &[last_token, outputs]);
            let end = match shown(step) {
                at if at == outputs => sampled,
                at => op("fetch", seed(3), &[outputs], &[at]),
            };
            let other = shown(1 - step);
            let read = OpKind::HostRead { output: other };
            let seen = op(&format!("read_of_{}_behind", 1 - step), read, &[other], &[]);
            ends.push((written, sent, end, seen));
        }
        let [(write_0, sent_0, end_0, read_1), (write_1, sent_1, end_1, read_0)] = ends[..] else {
            unreachable!("two steps")
        };
        let mut edge = |from, to, kind| plan.edges.push(Edge { from, to, kind });
        use EdgeKind::{Event, NextStep};
        // Launched once its inputs are written.
        edge(write_0, sent_0, Event);
        edge(write_1, sent_1, Event);
        // Read once it has ended.
        edge(end_0, read_0, Event);
        edge(end_1, read_1, NextStep);
        // The host's thread is one.
        edge(read_0, write_0, NextStep);
        if self.waits_for_sent {
            edge(sent_0, write_1, Event);
            edge(sent_1, write_0, NextStep);
        }
        plan
    }
}

fn carried(plan: &mut StepPlan, name: &str) -> BufferId {
    let kind = BufferKind::State(StateKind::Slots { slot_bytes: BYTES });
    let name = name.into();
    plan.buffers.push(Buffer {
        name,
        bytes: BYTES,
        align: 64,
        kind,
        rows: None,
        elem: Elem::Opaque,
    });
    BufferId(plan.buffers.len() as u32 - 1)
}

fn push(
    plan: &mut StepPlan,
    name: String,
    kind: OpKind,
    (reads, writes): (&[BufferId], &[BufferId]),
) -> OpId {
    let all = |of: &[BufferId]| of.iter().map(|b| Access::whole(*b, BYTES)).collect();
    let lane = if kind.is_host() { LaneId::HOST } else { LaneId::MAIN };
    let (reads, writes) = (all(reads), all(writes));
    plan.ops.push(Op { name, kind, reads, writes, lane, decisions: Vec::new() });
    OpId(plan.ops.len() as u32 - 1)
}
