//! What becomes of a model's plan before it is proven.

use lockstep_plan::{InOutBytes, Packing, StepPlan, pack_beside};

/// Makes of a bucket's plan what is to be proven: the plan, and where its buffers lie. Nothing of
/// it is believed: whatever comes back, `prove` judges it.
pub trait Draft: Send + Sync {
    /// `generation` is the number of the one that is being made; `room` is what inputs and outputs
    /// of all its plans need.
    fn draft(&self, generation: u64, plan: StepPlan, room: InOutBytes) -> (StepPlan, Packing);
}

/// The plan as the model emits it, packed by its partial order.
#[derive(Clone, Copy, Debug)]
pub struct Packed;

impl Draft for Packed {
    fn draft(&self, _: u64, plan: StepPlan, room: InOutBytes) -> (StepPlan, Packing) {
        let packing = pack_beside(&plan, room);
        (plan, packing)
    }
}
