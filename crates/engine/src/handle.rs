//! The handle through which other threads reach the step loop.

use crate::masks::Done;
use crate::publish::Shared;
use lockstep_flow::{Clock, EngineStatus, EventSink, Micros, Refusal, Request, RequestId, Ticket};
use std::sync::mpsc::Sender;
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
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: Sender<Command>,
        clock: Arc<dyn Clock>,
    ) -> Handle {
        let door = Arc::new(Door(commands));
        Handle { shared, door, thread: Arc::new(Mutex::new(None)), clock }
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

    /// Takes nothing new and goes on with what it has.
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

    /// A command for a loop that has stopped has nobody to wait for it.
    fn send(&self, command: Command) {
        let _ = self.door.0.send(command);
    }
}
