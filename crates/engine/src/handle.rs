//! The handle through which other threads reach the step loop.

use crate::canary::Canary;
use crate::knobs::KnobChange;
use crate::masks::Done;
use crate::publish::Shared;
use crate::yard::{Arrival, Yard};
use lockstep_device::{AwayArena, Remains};
use lockstep_flow::generation::{GenerationError, StageMode};
use lockstep_flow::{Clock, EngineStatus, EventSink, Micros, Refusal, Request, RequestId, Ticket};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What the step thread is told, between two steps.
pub enum Command {
    /// Requests that have their places.
    Submit(Vec<Submission>),
    /// A worker is done with a grammar.
    Masked(Box<Done>),
    /// The client wants no more of it.
    Cancel(RequestId),
    /// Go on with what is there; nothing new comes.
    Drain,
    /// End everything and stop.
    Shutdown,
    /// A staged generation arrives; its main arena goes back, lent.
    Install { arrival: Box<Arrival>, reply: Sender<Result<Box<dyn AwayArena>, String>> },
    /// One of its buckets is to show what it does.
    Canary(Box<Canary>),
    /// All of them have; here is its arena.
    Finish { number: u64, arena: Box<dyn AwayArena>, reply: Sender<Result<(), String>> },
    /// It is given up.
    Discard { number: u64, reply: Sender<Option<Remains>> },
    /// Steps are to be held, and the live generation's place is to be given to another one.
    Vacate { number: u64, reply: Sender<Result<Remains, String>> },
    /// That one is there and verified.
    MoveIn { number: u64, reply: Sender<Result<(), String>> },
    /// It is not; here is the old one, built again.
    MoveBack { arrival: Box<Arrival>, reply: Sender<Result<(), String>> },
    /// Neither of them is there.
    Fail(String),
    /// Steps are to run in another generation.
    Flip { number: u64, watch: Option<Micros>, reply: Sender<Result<(), GenerationError>> },
    /// A generation is to be given up.
    Retire { number: u64, reply: Sender<Result<Remains, GenerationError>> },
}

/// A request, and where its events go.
pub type Submission = (Request, Box<dyn EventSink>);

/// A running engine. Clones reach the same one; its last drop stops it.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    door: Arc<Door>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    clock: Arc<dyn Clock>,
    yard: Arc<Yard>,
}

/// The way to the step loop; where nobody is left who could use it, the loop ends. (The workers of
/// [`crate::masks`] answer on the same way, so the channel itself stays open.)
struct Door(Sender<Command>);

impl Drop for Door {
    fn drop(&mut self) {
        // A loop that has stopped by itself needs no telling.
        let _ = self.0.send(Command::Shutdown);
    }
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Handle(engine)")
    }
}

impl Handle {
    pub(crate) fn new(yard: Arc<Yard>, commands: Sender<Command>) -> Handle {
        let (shared, clock) = (yard.shared.clone(), yard.clock.clone());
        let door = Arc::new(Door(commands));
        Handle { shared, door, thread: Arc::new(Mutex::new(None)), clock, yard }
    }

    /// The step thread, for [`Handle::shutdown`] to wait for.
    pub(crate) fn attend(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Admits a request, or says why not. Returns at once; events go to `sink` from the step
    /// thread, exactly one of them final.
    ///
    /// # Errors
    /// A limit that it exceeds, a full queue, or an engine that takes nothing new. No event is
    /// sent then.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<Ticket, Refusal> {
        let tickets = self.submit_all(vec![(request, sink)])?;
        Ok(tickets[0])
    }

    /// Admits all of these or none: a refusal leaves no place taken and sends no event. Tickets
    /// are in the order of the requests.
    ///
    /// # Errors
    /// As [`Handle::submit`], for the first request that is at fault; and
    /// [`Refusal::TooManySequences`] where all places together would not be enough.
    ///
    /// # Panics
    /// Where there is nothing to submit.
    pub fn submit_all(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>, Refusal> {
        assert!(!submissions.is_empty(), "there is something to submit");
        let count = u32::try_from(submissions.len()).unwrap_or(u32::MAX);
        self.admit(submissions).inspect_err(|refusal| {
            let full = matches!(refusal, Refusal::QueueFull { .. });
            self.shared.update(|s| {
                let counter = match full {
                    true => &mut s.counters.refused_queue_full,
                    false => &mut s.counters.refused_other,
                };
                *counter += u64::from(count);
            });
        })
    }

    fn admit(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>, Refusal> {
        for (request, _) in &submissions {
            self.shared.limits.check(request)?;
        }
        let count = u32::try_from(submissions.len()).unwrap_or(u32::MAX);
        let before = self.shared.enter(count)?;
        let ticket = |((request, _), at): (&Submission, u32)| Ticket {
            id: request.id,
            queued_before: before + at,
        };
        let tickets = submissions.iter().zip(0..).map(ticket).collect();
        self.door.0.send(Command::Submit(submissions)).map_err(|_| {
            self.shared.leave(count);
            Refusal::NotServing { why: "the engine has stopped".into() }
        })?;
        Ok(tickets)
    }

    /// Ends a request within one step; one that has ended is ignored.
    pub fn cancel(&self, id: RequestId) {
        self.send(Command::Cancel(id));
    }

    /// What operators ask about, as of the last step.
    pub fn status(&self) -> EngineStatus {
        self.shared.status()
    }

    /// The engine's clock.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Takes nothing new and goes on with what it has. No generation is staged or flipped to any
    /// more but back to the one before, and one that is being built is rejected, unless steps are
    /// held for it.
    pub fn drain(&self) {
        self.shared.close("it is draining");
        self.shared.update(|s| {
            if s.health.is_serving() {
                s.health = lockstep_flow::status::Health::Draining;
            }
        });
        self.send(Command::Drain);
    }

    /// Ends what is left and returns when the step thread has stopped.
    pub fn shutdown(&self) {
        self.shared.close("it is shutting down");
        self.send(Command::Shutdown);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic on the step thread was reported by its hook; there is nothing to add here.
            let _ = thread.join();
        }
    }

    /// Stages a generation: the live one's knobs with these changes. Returns its number at once;
    /// it is built and verified on the way to [`lockstep_flow::GenerationState::Verified`], or
    /// rejected with a reason, as its report in [`Handle::status`] says. Nothing that serves
    /// changes meanwhile.
    ///
    /// # Errors
    /// A knob that no live flip can change, another generation beside the live one, or a server
    /// that drains.
    pub fn stage(&self, changes: &[KnobChange]) -> Result<u64, GenerationError> {
        self.stage_as(changes, StageMode::Beside)
    }

    /// As [`Handle::stage`], in a mode: one that drains is live where it does not fail.
    ///
    /// # Errors
    /// As [`Handle::stage`].
    pub fn stage_as(
        &self,
        changes: &[KnobChange],
        mode: StageMode,
    ) -> Result<u64, GenerationError> {
        self.yard.stage(changes, mode, self.door.0.clone())
    }

    /// Flips to a verified generation, or back to the draining one, between two steps; returns
    /// once that is done. `watch` is how long the old one can be flipped back to by itself, by
    /// default `generations.watch`.
    ///
    /// # Errors
    /// It is in no state for that, the server drains, or the step loop has stopped.
    pub fn flip(&self, number: u64, watch: Option<Micros>) -> Result<(), GenerationError> {
        self.ask(|reply| Command::Flip { number, watch, reply })?
    }

    /// Gives up the draining generation, or a verified one; returns once its memory is back.
    ///
    /// # Errors
    /// It serves, it is watched, or the step loop has stopped.
    pub fn retire(&self, number: u64) -> Result<(), GenerationError> {
        let remains = self.ask(|reply| Command::Retire { number, reply })??;
        // Here it costs no step.
        drop(remains);
        Ok(())
    }

    /// Asks the step loop and waits for its answer, which comes between two steps.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, GenerationError> {
        let stopped = || GenerationError::Stopped {
            why: self.shared.failure().unwrap_or_else(|| "it is shutting down".into()),
        };
        let (reply, answer) = mpsc::channel();
        self.door.0.send(command(reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())
    }

    /// A command for a loop that has stopped has nobody to wait for it.
    fn send(&self, command: Command) {
        let _ = self.door.0.send(command);
    }
}
