//! Drain, swap, verify: the way to another generation where memory does not hold two.
//!
//! Steps are held between two of them: what runs keeps its pages and waits, what comes queues up to
//! the same limits as ever. The live generation's arenas are given back, the new one's are made in
//! their place, captured, and verified by canary steps, and steps go on in it. Where that fails at
//! any point, the old one is built again from its proven plans, and steps go on in that. Nobody's
//! tokens change; the pause is in the new generation's report.

use crate::Knobs;
use crate::core::Core;
use crate::generation::Generation;
use crate::handle::Command;
use crate::yard::{Arrival, Rejection, Yard, gone, in_words};
use lockstep_device::Remains;
use lockstep_flow::Micros;
use lockstep_flow::generation::GenerationState;
use std::sync::mpsc::{self, Sender};

/// Steps are held for a generation.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub(crate) number: u64,
    since: Micros,
}

impl Yard {
    /// The builder's whole life, where it builds in place of the live generation.
    pub(crate) fn replace(&self, number: u64, knobs: Knobs, commands: &Sender<Command>) {
        lockstep_device::cpu::stand_back();
        // While steps still run: most of what can fail does so here.
        let blueprint = match in_words(|| self.planned_out(number, knobs)) {
            Ok(blueprint) => blueprint,
            Err(why) => return self.reject(number, &why),
        };
        let old = self.live();
        let vacated = in_words(|| {
            let (reply, remains) = mpsc::channel();
            commands.send(Command::Vacate { number, reply }).map_err(gone)?;
            // Dropped here: it is the memory that the new one is made in.
            drop(remains.recv().map_err(gone)?.map_err(Rejection::Because)?);
            Ok(())
        });
        if let Err(why) = vacated {
            return self.reject(number, &why);
        }
        let moved_in = in_words(|| {
            self.bring_up(&blueprint, commands)?;
            let (reply, done) = mpsc::channel();
            commands.send(Command::MoveIn { number, reply }).map_err(gone)?;
            done.recv().map_err(gone)?.map_err(Rejection::Because)
        });
        let Err(why) = moved_in else { return };
        let (reply, remains) = mpsc::channel();
        if commands.send(Command::Discard { number, reply }).is_ok() {
            drop(remains.recv());
        }
        let back = in_words(|| {
            let unsent = self.make(&old, |_| Ok(()))?;
            let (reply, done) = mpsc::channel();
            let arrival = Box::new(unsent.arrival(&old));
            commands.send(Command::MoveBack { arrival, reply }).map_err(gone)?;
            done.recv().map_err(gone)?.map_err(Rejection::Because)
        });
        match back {
            Ok(()) => {
                self.reject(number, &format!("{why}; generation {} serves again", old.number))
            }
            Err(worse) => {
                let what = format!(
                    "generation {number} could not take the place of {}: {why}; and that one could \
                     not be built again: {worse}",
                    old.number
                );
                self.reject(number, &what);
                let _ = commands.send(Command::Fail(what));
            }
        }
    }
}

impl Core {
    /// Holds steps, and gives the live generation's arenas back.
    pub fn vacate(&mut self, number: u64) -> Result<Remains, String> {
        if self.held.is_some() || self.staged.is_some() || self.draining.is_some() {
            return Err("another generation is on its way".into());
        }
        self.put_off_own_canary();
        self.watch = None;
        self.held = Some(Held { number, since: self.clock.now() });
        self.shared.update(|s| s.held_for = Some(number));
        let main = self.device.uninstall(self.generation.arena);
        let shadow = self.generation.shadow.map(|shadow| self.device.uninstall(shadow));
        Ok(Box::new((main, shadow)))
    }

    /// True while steps are held; what has passed its deadline ends all the same.
    pub fn is_held(&mut self, now: Micros) -> bool {
        if self.held.is_none() {
            return false;
        }
        self.sched.expire_held(now).expect("no step is planned while steps are held");
        self.deliver(None);
        true
    }

    /// Steps go on in the verified generation `number`, which has taken the live one's place.
    pub fn move_in(&mut self, number: u64) -> Result<(), String> {
        let verified = |g: &mut Box<Generation>| g.number() == number && g.verified;
        let next = self.staged.take_if(verified).ok_or("the new generation is not verified")?;
        let before = self.generation.number();
        if let Err((next, e)) = self.swap(next) {
            self.staged = Some(next);
            return Err(e.to_string());
        }
        // Its arenas went before.
        self.draining = None;
        for to in [GenerationState::Draining, GenerationState::Retired] {
            self.moved(before, to);
        }
        self.moved(number, GenerationState::Live);
        self.counters.flips += 1;
        self.counters.retired += 1;
        self.let_go();
        Ok(())
    }

    /// Steps go on in the old generation, which was built again. What was out of service stays so.
    pub fn move_back(&mut self, arrival: Arrival) -> Result<(), String> {
        let mut back = self.placed(arrival).map_err(|e| e.to_string())?;
        for (bucket, before) in back.buckets.iter_mut().zip(&self.generation.buckets) {
            bucket.quarantined = before.quarantined;
        }
        *self.generation = back;
        self.let_go();
        Ok(())
    }

    /// Steps run again, and the report of the generation that they were held for says how long
    /// they did not.
    fn let_go(&mut self) {
        let Some(Held { number, since }) = self.held.take() else { return };
        self.shared.update(|s| s.held_for = None);
        let took = self.clock.now().since(since);
        self.shared.report(number, |r| r.gap.longest = r.gap.longest.max(took));
    }
}
