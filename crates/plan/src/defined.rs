//! Definedness: every byte that is read was written in this step by an op ordered before.

use crate::StepPlan;
use crate::hazard::{Fault, Hazard};
use crate::order::Order;
use crate::uses::{Findings, Pieces, Use};

/// Checks every buffer of the arena; weights and state are defined from outside the step.
pub(crate) fn check(plan: &StepPlan, order: &Order, uses: &[Vec<Use>], out: &mut Findings) {
    for (buffer, uses) in plan.buffers.iter().zip(uses) {
        if buffer.kind.in_arena() {
            check_buffer(plan, order, uses, out);
        }
    }
}

fn check_buffer(plan: &StepPlan, order: &Order, uses: &[Use], out: &mut Findings) {
    let pieces = Pieces::new(uses);
    let mut writers: Vec<Vec<u32>> = vec![Vec::new(); pieces.len()];
    for (i, u) in uses.iter().enumerate().filter(|(_, u)| u.write) {
        for piece in pieces.of(*u) {
            writers[piece].push(i as u32);
        }
    }
    for &read in uses.iter().filter(|u| !u.write) {
        let mut missing: Option<core::ops::Range<u64>> = None;
        for piece in pieces.of(read) {
            // The latest writer first: it is the likeliest to be ordered before the read.
            let writers = &writers[piece];
            let earlier = writers.partition_point(|w| uses[*w as usize].op < read.op);
            let defined = writers[..earlier].iter().rev().any(|&w| {
                out.pairs += 1;
                order.before(uses[w as usize].op, read.op, read.before_wait)
            });
            // Writers that come earlier but are not ordered are races, and reported as such.
            if !defined && earlier == 0 {
                let bytes = pieces.bytes(piece);
                missing = Some(missing.map_or(bytes.clone(), |m| m.start..bytes.end));
            }
        }
        if let Some(bytes) = missing {
            let read = read.touch(plan);
            out.push(Hazard::new(Fault::Undefined { read, bytes }));
        }
    }
}
