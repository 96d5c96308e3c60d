//! Whether a plan makes sense at all: ids, names, spans, lanes, edges.

use crate::hazard::{Fault, Hazard, Touch};
use crate::{Access, BufferKind, Edge, EdgeKind, LaneId, OpId, StepPlan};
use std::collections::HashSet;

/// Programmatic masks have this many bits.
const MASKED_ACCESSES_MAX: usize = 64;

/// Every structural fault. The other rules look only at plans without any.
pub(crate) fn check(plan: &StepPlan) -> Vec<Hazard> {
    let mut out = Vec::new();
    names(plan, &mut out);
    for op in plan.op_ids() {
        lane(plan, op, &mut out);
        accesses(plan, op, &mut out);
    }
    if plan.edges.iter().all(|e| edge_ids(plan, e, &mut out)) && out.is_empty() {
        edges(plan, &mut out);
    }
    out
}

fn names(plan: &StepPlan, out: &mut Vec<Hazard>) {
    let mut seen = HashSet::new();
    for b in &plan.buffers {
        if !seen.insert(&b.name) {
            let name = b.name.clone();
            out.push(Hazard::new(Fault::NameTwice { what: "buffers", name }));
        }
        if !b.align.is_power_of_two() {
            let (buffer, align) = (b.name.clone(), b.align);
            out.push(Hazard::new(Fault::BadAlign { buffer, align }));
        }
    }
    seen.clear();
    for op in &plan.ops {
        if !seen.insert(&op.name) {
            let name = op.name.clone();
            out.push(Hazard::new(Fault::NameTwice { what: "ops", name }));
        }
    }
}

fn lane(plan: &StepPlan, id: OpId, out: &mut Vec<Hazard>) {
    let op = plan.op(id);
    let Some(lane) = plan.lanes.get(op.lane.index()) else {
        let (id, count) = (u32::from(op.lane.0), plan.lanes.len());
        out.push(Hazard::new(Fault::NoSuch { what: "lane", id, count }));
        return;
    };
    let host_op = op.kind.is_host();
    if host_op != (op.lane == LaneId::HOST) {
        let (op, lane) = (op.name.clone(), lane.clone());
        out.push(Hazard::new(Fault::WrongLane { op, lane, host_op }));
    }
}

fn accesses(plan: &StepPlan, id: OpId, out: &mut Vec<Hazard>) {
    let op = plan.op(id);
    let no_buffer = |id: u32| {
        let count = plan.buffers.len();
        Hazard::new(Fault::NoSuch { what: "buffer", id, count })
    };
    let tagged =
        |list: &[Access], write: bool| list.iter().map(|a| (*a, write)).collect::<Vec<_>>();
    for (access, write) in tagged(&op.reads, false).into_iter().chain(tagged(&op.writes, true)) {
        let touch = || Touch::new(plan, id, write, &access);
        let Some(buffer) = plan.buffers.get(access.buffer().index()) else {
            out.push(no_buffer(access.buffer().0));
            continue;
        };
        match access {
            Access::Static { span, rows } => {
                let end = span.offset.checked_add(span.len);
                if end.is_none_or(|e| e > buffer.bytes) {
                    let (touch, buffer_bytes) = (touch(), buffer.bytes);
                    out.push(Hazard::new(Fault::OutsideBuffer { touch, buffer_bytes }));
                }
                if let Some(crate::RowReach::Gather { via }) = rows.map(|r| r.reach)
                    && via.index() >= plan.buffers.len()
                {
                    out.push(no_buffer(via.0));
                }
            }
            Access::Indexed { via, .. } if via.index() >= plan.buffers.len() => {
                out.push(no_buffer(via.0));
            }
            Access::Indexed { .. } => {}
        }
        if op.lane == LaneId::HOST && buffer.kind == BufferKind::Transient {
            out.push(Hazard::new(Fault::HostTouchesDevice { touch: touch() }));
        }
    }
}

fn edge_ids(plan: &StepPlan, e: &Edge, out: &mut Vec<Hazard>) -> bool {
    let count = plan.ops.len();
    let bad: Vec<u32> = [e.from.0, e.to.0].into_iter().filter(|i| *i as usize >= count).collect();
    out.extend(bad.iter().map(|&id| Hazard::new(Fault::NoSuch { what: "op", id, count })));
    bad.is_empty()
}

fn edges(plan: &StepPlan, out: &mut Vec<Hazard>) {
    for e in &plan.edges {
        let (from, to) = (plan.op(e.from), plan.op(e.to));
        if e.kind != EdgeKind::NextStep && e.from >= e.to {
            let cycle = path(plan, e.to, e.from).unwrap_or_default();
            let (from, to) = (from.name.clone(), to.name.clone());
            out.push(Hazard::new(Fault::EdgeBackwards { edge: *e, from, to, cycle }));
        }
        if let EdgeKind::Programmatic { .. } = e.kind {
            let host = from.lane == LaneId::HOST || to.lane == LaneId::HOST;
            let many = to.reads.len().max(to.writes.len()) > MASKED_ACCESSES_MAX;
            let why = match (host, many) {
                (true, _) => "involves the host, which launches nothing early",
                (_, true) => "has more than 64 reads or writes, which its masks cannot name",
                _ => continue,
            };
            let to = to.name.clone();
            out.push(Hazard::new(Fault::BadProgrammatic { edge: *e, to, why }));
        }
    }
}

/// Names along a path of lane order and in-step edges, where there is one.
fn path(plan: &StepPlan, from: OpId, to: OpId) -> Option<Vec<String>> {
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); plan.ops.len()];
    let mut last: Vec<Option<u32>> = vec![None; plan.lanes.len()];
    for (i, op) in plan.ops.iter().enumerate() {
        if let Some(before) = last[op.lane.index()].replace(i as u32) {
            after[before as usize].push(i as u32);
        }
    }
    for e in plan.edges.iter().filter(|e| e.kind != EdgeKind::NextStep) {
        after[e.from.index()].push(e.to.0);
    }
    let mut came_from: Vec<Option<u32>> = vec![None; plan.ops.len()];
    let mut queue = std::collections::VecDeque::from([from.0]);
    came_from[from.index()] = Some(from.0);
    while let Some(u) = queue.pop_front() {
        if u == to.0 {
            let mut names = vec![plan.op(to).name.clone()];
            let mut at = u;
            while at != from.0 {
                at = came_from[at as usize].unwrap_or(from.0);
                names.push(plan.ops[at as usize].name.clone());
            }
            names.reverse();
            return Some(names);
        }
        for &v in &after[u as usize] {
            if came_from[v as usize].is_none() {
                came_from[v as usize] = Some(u);
                queue.push_back(v);
            }
        }
    }
    None
}
