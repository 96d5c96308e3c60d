//! Drills in a server: which of them a running process can be told to do wrong, and plans that a
//! faulty builder hands to the prover.

use super::list::Drill;
use crate::fault_device::FaultDevice;
use crate::spread::spread;
use crate::strike::{Sabotage, Strike};
use lockstep_device::CpuDevice;
use lockstep_engine::Draft;
use lockstep_plan::drill::PlanFault;
use lockstep_plan::{InOutBytes, Packing, StepPlan, pack_beside};

/// How often a server is struck.
#[derive(Clone, Copy, Debug)]
pub struct Often {
    /// Steps of a million.
    pub per_million: u32,
    /// Strikes in all, at most.
    pub times: u64,
    /// Chooses the steps, and where in them it hits.
    pub seed: u64,
}

impl Drill {
    /// What a server's device is told to do wrong.
    ///
    /// # Errors
    /// Why no server can be told to.
    pub fn in_serving(&self) -> Result<Strike, &'static str> {
        match self.strike.map(|strike| strike()) {
            None => Err("it has no form in a running engine: the prover refuses the plan"),
            Some(Strike::TiesByArrival) => {
                Err("it needs a model whose logits tie, which `lockstep drill` makes for itself")
            }
            Some(strike) => Ok(strike),
        }
    }

    /// The device of a server that does this wrong, held back until [`crate::StrikeLog::rest`] is
    /// told otherwise.
    ///
    /// # Errors
    /// As [`Drill::in_serving`].
    pub fn serve_on(&self, device: CpuDevice, often: Often) -> Result<FaultDevice, &'static str> {
        let Often { per_million, times, seed } = often;
        let strike = self.in_serving()?;
        let sabotage = Sabotage { strike, first: 1, times, seed, per_million };
        let device = FaultDevice::new(device, Some(sabotage)).sparse();
        device.log().rest(true);
        Ok(device)
    }
}

/// A builder that gets the plans of every generation but the first wrong.
#[derive(Clone, Copy, Debug)]
pub struct FaultyDraft {
    /// How.
    pub fault: PlanFault,
    /// Where.
    pub seed: u64,
}

impl Draft for FaultyDraft {
    fn draft(&self, generation: u64, plan: StepPlan, room: InOutBytes) -> (StepPlan, Packing) {
        let faulty = (generation > 1).then(|| self.fault.seed(&spread(&plan), self.seed)).flatten();
        match faulty {
            Some(drilled) => (drilled.plan, drilled.packing),
            None => {
                let packing = pack_beside(&plan, room);
                (plan, packing)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::drill::DRILLS;

    #[test]
    fn what_can_be_served_is_what_an_engine_can_be_struck_by() {
        for drill in DRILLS {
            let served = drill.in_serving();
            assert!(served.is_err() || drill.strike.is_some(), "{}", drill.name);
            assert!(served.err().is_none_or(|why| why.len() > 20), "{}", drill.name);
        }
        assert!(DRILLS.iter().filter(|d| d.in_serving().is_ok()).count() >= 19);
    }
}
