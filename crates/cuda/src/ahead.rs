//! A step in flight, and the next launched behind it: the stream keeps the order between them, two
//! events tell the host what is over, and outputs are fetched to two places in turn.

use crate::driver::{Driver, Event};
use crate::{CudaDevice, CudaError};
use lockstep_device::{DeviceError, ExecId};
use lockstep_flow::Lease;
use lockstep_plan::Relay;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// What passes between host and device, as it is proven: outputs in two places by the parity of
/// their step ([`COPIES`]), inputs written when the last ones have been sent ([`Ahead::sent`]).
pub const RELAY: Relay = Relay { waits_for_sent: true, fetched: COPIES as u32 };

/// Places in the host's memory to which an executable's outputs are fetched in turn.
pub const COPIES: usize = 2;

/// Steps that may be launched and not waited for.
const FLIGHTS: usize = 2;

/// The place of a step's outputs.
pub fn place(step: u64) -> usize {
    (step % COPIES as u64) as usize
}

/// A launched step.
#[derive(Clone, Copy, Debug)]
struct Flight {
    exec: ExecId,
    step: u64,
    /// Its inputs are known to have been sent.
    sent: bool,
    began: Instant,
}

/// Launched steps and their events.
#[derive(Debug)]
pub struct Ahead {
    flights: VecDeque<Flight>,
    /// By the place of a step: its inputs have been sent.
    sent: [Event; COPIES],
    /// By the place of a step: its outputs have been fetched.
    fetched: [Event; COPIES],
    landed: Instant,
}

impl Ahead {
    /// Nothing is in flight.
    pub fn new(driver: &Arc<Driver>) -> Result<Ahead, CudaError> {
        let event = || Event::new(driver);
        Ok(Ahead {
            flights: VecDeque::with_capacity(FLIGHTS),
            sent: [event()?, event()?],
            fetched: [event()?, event()?],
            landed: Instant::now(),
        })
    }

    /// Waits until nothing is sent any more from where inputs of `exec` are written. A stream that
    /// has failed says so where its step is waited for.
    pub fn settle_inputs(&mut self, exec: ExecId) {
        for flight in self.flights.iter_mut().filter(|f| f.exec == exec && !f.sent) {
            let _ = self.sent[place(flight.step)].wait();
            flight.sent = true;
        }
    }

    /// Refuses what cannot be asked while a step is in flight.
    pub fn at_rest(&self, asked: &'static str) -> Result<(), DeviceError> {
        let state = "in the middle of a step that was launched ahead";
        if self.flights.is_empty() { Ok(()) } else { Err(DeviceError::State { asked, state }) }
    }

    /// The same of what nobody answers for: a look or a write now would be another step's.
    pub fn assert_at_rest(&self, asked: &'static str) {
        self.at_rest(asked).unwrap_or_else(|e| panic!("{e}"));
    }
}

impl CudaDevice {
    /// Sends inputs, launches the graph and asks for the outputs, behind what was launched before.
    pub(crate) fn launch_ahead(
        &mut self,
        id: ExecId,
        lease: &dyn Lease,
    ) -> Result<(), DeviceError> {
        self.admit(id, lease)?;
        if self.ahead.flights.len() == FLIGHTS {
            let state = "in the middle of two others";
            return Err(DeviceError::State { asked: "a third step", state });
        }
        let result = self.send_and_launch(id, lease.step());
        self.latch(result)
    }

    fn send_and_launch(&mut self, exec: ExecId, step: u64) -> Result<(), DeviceError> {
        let began = Instant::now();
        let driver = self.base.driver.clone();
        driver.bind()?;
        let at = place(step);
        // From here on something of it may run, whatever fails: it has to be waited for.
        self.ahead.flights.push_back(Flight { exec, step, sent: false, began });
        self.exec_mut(exec).send_inputs(&driver)?;
        self.ahead.sent[at].record()?;
        // SAFETY: the manifest was checked at seal and weights, state and arenas do not move; the
        // lease vouches for table entries until the step is over.
        unsafe { self.exec(exec).graph.launch()? };
        self.probe_step(exec)?;
        self.exec_mut(exec).fetch_outputs(&driver, at)?;
        self.ahead.fetched[at].record()?;
        Ok(())
    }

    /// Waits for the oldest launched step.
    pub(crate) fn await_oldest(&mut self, id: ExecId) -> Result<(), DeviceError> {
        let Some(flight) = self.ahead.flights.pop_front() else {
            let state = "not in the middle of one";
            return Err(DeviceError::State { asked: "the end of a step", state });
        };
        assert_eq!(flight.exec, id, "the oldest step is waited for first");
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let at = place(flight.step);
        let waited = self.base.driver.bind().and_then(|()| self.ahead.fetched[at].wait());
        self.latch(waited.map_err(DeviceError::from))?;
        self.exec_mut(id).show(at);
        let now = Instant::now();
        let began = flight.began.max(self.ahead.landed);
        self.ahead.landed = now;
        self.probe_time(id, now - began);
        Ok(())
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What is in flight reads and writes memory that goes now.
        let _ = self.base.driver.bind();
        let _ = self.base.driver.synchronize();
    }
}
