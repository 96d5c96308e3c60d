//! The step loop: commands between steps, steps while there is work, one end for every request.

use crate::core::{Core, Turn};
use crate::handle::Command;
use lockstep_device::DeviceError;
use lockstep_flow::Failure;
use lockstep_flow::generation::GenerationError;
use lockstep_flow::status::WaitReason;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// How often an idle loop looks at deadlines.
const IDLE_TICK: Duration = Duration::from_millis(20);

/// How long the first turn of a loop waits where there is nothing to wait for.
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// How long a stopping loop waits for a command of a request that has taken a place.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a turn of the loop came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopTurn {
    /// A step ran.
    Stepped,
    /// There was nothing to step.
    Idle,
    /// It was told to stop, or the device failed: every request has ended and no step will run.
    Stopped,
}

/// The step loop of an engine. [`crate::start`] runs it on a thread of its own; whoever wants to
/// choose when a step happens (tests, a simulated world) takes it from [`crate::assemble`].
pub struct StepLoop {
    core: Core,
    commands: Receiver<Command>,
    draining: bool,
    stopped: bool,
    /// This thread has waited for a command: the first time takes memory, later ones do not.
    has_waited: bool,
}

impl core::fmt::Debug for StepLoop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "StepLoop")
    }
}

impl StepLoop {
    pub(crate) fn new(core: Core, commands: Receiver<Command>) -> StepLoop {
        core.publish();
        StepLoop { core, commands, draining: false, stopped: false, has_waited: false }
    }

    /// The audit goes on at another rate, for whoever measures what it costs on one and the same
    /// engine; it must have been on at the start, when twins are captured.
    #[doc(hidden)]
    pub fn audit_at(&mut self, rate: u32) {
        self.core.audit_follow(&crate::Knobs { audit_rate: rate, ..crate::Knobs::default() });
    }

    /// Follows the commands that are there, then runs at most one step. Waits only for grammars:
    /// shortly where there is a step to run without them, else until one is done.
    pub fn turn(&mut self) -> LoopTurn {
        loop {
            self.follow_all();
            if self.stopped {
                return LoopTurn::Stopped;
            }
            let turn = self.core.turn();
            let waits = self.core.masks.any_away() && !self.core.canary_is_due();
            if !matches!(turn, Ok(Turn::Idle)) || !waits {
                return self.turned(turn);
            }
            if !self.wait(IDLE_TICK) {
                self.core.watch_over(self.core.clock.now());
                self.core.publish();
            }
        }
    }

    /// Follows what is there, and waits as long as a step may for masks that have just been begun.
    fn follow_all(&mut self) {
        while !self.stopped {
            match self.commands.try_recv() {
                Ok(command) => self.follow(command),
                Err(TryRecvError::Disconnected) => self.follow(Command::Shutdown),
                Err(TryRecvError::Empty) => match self.core.mask_patience() {
                    Some(left) => _ = self.wait(left),
                    None if !self.has_waited => _ = self.wait(FIRST_WAIT),
                    None => break,
                },
            }
        }
    }

    fn turned(&mut self, turn: Result<Turn, DeviceError>) -> LoopTurn {
        match turn {
            Ok(mut turn) => {
                if self.core.canary_turn() {
                    turn = Turn::Stepped;
                }
                if turn == Turn::Stepped || self.draining {
                    self.core.publish();
                }
                if turn == Turn::Stepped { LoopTurn::Stepped } else { LoopTurn::Idle }
            }
            Err(e) => {
                self.device_failed(&e);
                LoopTurn::Stopped
            }
        }
    }

    fn device_failed(&mut self, e: &DeviceError) {
        self.core.fail(&e.to_string());
        self.stop(&Failure::Engine { what: e.to_string() });
    }

    /// Runs until told to stop or until the device fails. A panic on the way ends every request
    /// with words and leaves the engine failed.
    pub(crate) fn run(mut self) {
        self.core.device.enter_step_thread();
        if self.core.yard.start.verify_first {
            self.core.verify_first();
        }
        let turns = || {
            while self.turn() != LoopTurn::Stopped {
                self.rest();
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(turns)) {
            let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(s), _) => s,
                (_, Some(s)) => s.as_str(),
                _ => "a value that is no text",
            };
            let what = format!("the step thread panicked: {message}");
            self.core.give_up(&what);
            self.stop(&Failure::Engine { what });
        }
    }

    /// Where there is nothing to step, waits for a command.
    fn rest(&mut self) {
        if !self.core.is_idle() {
            return;
        }
        self.core.audit_idle();
        self.core.watch_over(self.core.clock.now());
        self.core.publish();
        self.wait(IDLE_TICK);
    }

    /// Waits for a command and follows it; false where none came.
    fn wait(&mut self, limit: Duration) -> bool {
        self.has_waited = true;
        match self.commands.recv_timeout(limit) {
            Ok(command) => self.follow(command),
            Err(RecvTimeoutError::Disconnected) => self.follow(Command::Shutdown),
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    fn follow(&mut self, command: Command) {
        let beside = matches!(
            command,
            Command::Submit(_) | Command::Masked(_) | Command::Cancel(_) | Command::Drain
        );
        if !beside && let Err(e) = self.core.ground(WaitReason::Generation) {
            return self.device_failed(&e);
        }
        match command {
            Command::Submit(all) => {
                for (request, sink) in all {
                    self.core.submit(request, sink);
                }
            }
            Command::Masked(done) => self.core.masked(*done),
            Command::Cancel(id) => self.core.abort(id, Failure::Cancelled),
            Command::Drain => {
                self.draining = true;
                self.core.leave_first_unverified();
            }
            Command::Install { .. }
            | Command::Vacate { .. }
            | Command::MoveIn { .. }
            | Command::MoveBack { .. }
            | Command::Canary(_)
            | Command::Finish { .. }
            | Command::Discard { .. }
            | Command::Flip { .. }
            | Command::Retire { .. } => self.change(command),
            Command::Fail(what) => {
                self.core.fail(&what);
                self.core.abort_all(&Failure::Engine { what: what.clone() });
                self.stop(&Failure::Engine { what });
            }
            Command::Shutdown => {
                self.core.shared.close("it is shutting down");
                self.core.abort_all(&Failure::ShuttingDown);
                self.core.publish();
                self.stop(&Failure::ShuttingDown);
            }
        }
    }

    /// What is asked of generations, timed: it comes between two steps. Whoever does not wait for
    /// an answer any more needs none.
    fn change(&mut self, command: Command) {
        let core = &mut self.core;
        let began = core.clock.now();
        let number = match command {
            Command::Install { arrival, reply } => {
                let number = arrival.blueprint.number;
                core.install(*arrival, &reply);
                number
            }
            Command::Vacate { number, reply } => {
                let on = core.yard.go_on(number).map_err(|e| e.to_string());
                let _ = reply.send(on.and_then(|()| core.vacate(number)));
                number
            }
            Command::MoveIn { number, reply } => {
                let done = core.move_in(number);
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::MoveBack { arrival, reply } => {
                let number = arrival.blueprint.number;
                let done = core.move_back(*arrival);
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::Canary(canary) => {
                let number = canary.number;
                core.begin_canary(*canary);
                number
            }
            Command::Finish { number, arena, reply } => {
                let done = core.finish(number, arena);
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::Discard { number, reply } => {
                let done = core.discard(number);
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::Flip { number, watch, reply } => {
                let refused = self.draining && !core.is_the_way_back(number);
                let done = match refused {
                    true => Err(GenerationError::Draining { asked: "flipped to" }),
                    false => core.flip(number, watch),
                };
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::Retire { number, reply } => {
                let done = core.retire(number);
                core.publish();
                let _ = reply.send(done);
                number
            }
            Command::Submit(_)
            | Command::Masked(_)
            | Command::Cancel(_)
            | Command::Drain
            | Command::Fail(_)
            | Command::Shutdown => {
                unreachable!("followed by `follow`")
            }
        };
        core.spent_since(number, began);
    }

    /// Ends the requests that had taken a place before the door closed and whose command is still
    /// on its way: nothing that was admitted ends without an event.
    fn stop(&mut self, failure: &Failure) {
        self.stopped = true;
        while self.core.shared.live() > 0 {
            match self.commands.recv_timeout(FAREWELL) {
                Ok(Command::Submit(all)) => {
                    for (request, sink) in all {
                        self.core.turn_away(request.id, sink, failure.clone());
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
