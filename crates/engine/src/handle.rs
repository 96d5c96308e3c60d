//! The handle through which other threads reach the step loop.

use crate::publish::Shared;
use lockstep_flow::{Clock, EngineStatus, EventSink, Micros, Refusal, Request, RequestId, Ticket};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What the step thread is told, between two steps.
pub enum Command {
    /// A request that has a place.
    Submit(Box<Request>, Box<dyn EventSink>),
    /// The client wants no more of it.
    Cancel(RequestId),
    /// Go on with what is there; nothing new comes.
    Drain,
    /// End everything and stop.
    Shutdown,
}

/// A running engine. Clones reach the same one; its last drop stops it.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    clock: Arc<dyn Clock>,
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
        Handle { shared, commands, thread: Arc::new(Mutex::new(None)), clock }
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
        if let Err(refusal) = self.shared.limits.check(&request) {
            self.shared.update(|s| s.counters.refused_other += 1);
            return Err(refusal);
        }
        let entered = self.shared.enter();
        let queued_before = entered.inspect_err(|refusal| {
            let full = matches!(refusal, Refusal::QueueFull { .. });
            self.shared.update(|s| {
                s.counters.refused_queue_full += u64::from(full);
                s.counters.refused_other += u64::from(!full);
            });
        })?;
        let id = request.id;
        let stopped = |_| {
            self.shared.leave();
            Refusal::NotServing { why: "the engine has stopped".into() }
        };
        self.commands.send(Command::Submit(Box::new(request), sink)).map_err(stopped)?;
        Ok(Ticket { id, queued_before })
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
        let _ = self.commands.send(command);
    }
}
