//! The handle through which HTTP reaches the step loop.

use lockstep_engine::{KnobChange, Submission};
use lockstep_flow::generation::{GenerationError, StageMode};
use lockstep_flow::{EngineStatus, Micros, Refusal, RequestId, Ticket};

/// A running engine. Every method returns at once except [`Engine::shutdown`], [`Engine::flip`] and
/// [`Engine::retire`]; no other waits for a step.
///
/// Contract 5 as seen from here: a request for which [`Engine::submit_all`] returned a ticket gets
/// exactly one final event, whatever happens; one that was refused gets none.
pub trait Engine: Send + Sync + 'static {
    /// Admits all of these requests or none, and says why not. Events of each go to its sink from
    /// the step thread. A sink that answers false cancels its request within one step.
    fn submit_all(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>, Refusal>;

    /// Ends a queued or running request with [`lockstep_flow::Failure::Cancelled`] within one
    /// step. A request that is unknown or has ended is ignored.
    fn cancel(&self, id: RequestId);

    /// A snapshot of everything that operators ask about.
    fn status(&self) -> EngineStatus;

    /// The engine's clock: what `Request::arrived` and `Request::deadline` are measured by.
    fn now(&self) -> Micros;

    /// Stages a generation with these changes of the live one's knobs; it is built and verified
    /// beside what serves, or in its place, as its report in [`Engine::status`] says. Returns its
    /// number at once.
    fn stage(&self, _changes: &[KnobChange], _mode: StageMode) -> Result<u64, GenerationError> {
        Err(GenerationError::NotOffered)
    }

    /// Flips to a verified generation, or back to the draining one. Waits for the time between
    /// two steps. `watch` is how long a finding of the audit flips back by itself.
    fn flip(&self, _number: u64, _watch: Option<Micros>) -> Result<(), GenerationError> {
        Err(GenerationError::NotOffered)
    }

    /// Gives up the draining generation, or a verified one. Waits as [`Engine::flip`] does.
    fn retire(&self, _number: u64) -> Result<(), GenerationError> {
        Err(GenerationError::NotOffered)
    }

    /// Takes nothing new ([`Refusal::NotServing`]) and goes on with what it has. Idempotent.
    fn drain(&self);

    /// Ends what is left with [`lockstep_flow::Failure::ShuttingDown`], stops the step loop and
    /// returns when it has ended. Idempotent.
    fn shutdown(&self);
}

/// A snapshot whose uptime is of now: a step thread that hangs does not stop the clock.
pub fn present(engine: &dyn Engine) -> EngineStatus {
    let mut status = engine.status();
    status.uptime = engine.now().max(status.uptime);
    status
}

impl Engine for lockstep_engine::Handle {
    fn submit_all(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>, Refusal> {
        self.submit_all(submissions)
    }

    fn cancel(&self, id: RequestId) {
        self.cancel(id);
    }

    fn status(&self) -> EngineStatus {
        self.status()
    }

    fn now(&self) -> Micros {
        self.now()
    }

    fn stage(&self, changes: &[KnobChange], mode: StageMode) -> Result<u64, GenerationError> {
        self.stage_as(changes, mode)
    }

    fn flip(&self, number: u64, watch: Option<Micros>) -> Result<(), GenerationError> {
        self.flip(number, watch)
    }

    fn retire(&self, number: u64) -> Result<(), GenerationError> {
        self.retire(number)
    }

    fn drain(&self) {
        self.drain();
    }

    fn shutdown(&self) {
        self.shutdown();
    }
}
