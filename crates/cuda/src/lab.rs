//! The laboratory: what this room refuses to do, done on purpose, so that it can be seen what then
//! goes wrong. Absent without the feature `lab`, which only the suite of a GPU machine turns on.

use crate::driver::Graph;
use crate::{CudaDevice, CudaError};
use lockstep_plan::{Packing, StepPlan};

impl CudaDevice {
    /// From the next capture on, buffers of plans in the first arena lie where `lay` puts them,
    /// whatever was proven. Kernels touch no byte outside their arena: offsets are checked against
    /// its size.
    pub fn set_packing(&mut self, lay: fn(&StepPlan) -> Packing) {
        self.style.laid = Some(lay);
    }

    /// Builds a graph with an allocation node.
    ///
    /// # Errors
    /// The refusal, where all is well.
    pub fn graph_that_allocates(&self) -> Result<(), CudaError> {
        let driver = &self.base.driver;
        driver.bind()?;
        let mut graph = Graph::new()?;
        graph.allocation(driver, 1 << 20)?;
        graph.instantiate(driver).map(|_| ())
    }
}
